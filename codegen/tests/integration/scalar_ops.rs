//! Every scalar operation on every type and the edge values of it, against its definition.

use crate::common;
use tensorc_ir::kir::Kernel;

#[test]
fn operations_match_their_definition() {
    let cases = common::operations::cases();
    assert!(cases.len() > 4000, "only {} cases", cases.len());
    for group in cases.chunks(256) {
        let kernels: Vec<Kernel> = group.iter().map(|c| c.kernel()).collect();
        for isa in common::isas() {
            let module = common::compile_for(&kernels, isa);
            for (i, case) in group.iter().enumerate() {
                let mut buffers = case.buffers();
                common::call(&module, i, &mut buffers, &[]);
                case.check(buffers.last().unwrap());
            }
        }
    }
}
