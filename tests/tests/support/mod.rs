//! What several tests share.

pub mod backend;
pub mod npz;
/// ONNX models built in code, and damaged ones.
#[path = "../../../frontend/tests/integration/support/mod.rs"]
#[expect(dead_code, reason = "shared with the tests of the reader, which need more of it")]
pub mod onnx_models;
pub mod stored;

use std::sync::Arc;

use tensorc::ir::TensorData;
use tensorc::ir::interp::eval_graph;
use tensorc::ir::op::Registry;
use tensorc::runtime::Device;
use tensorc_simulator::{CountingDriver, HostDriver};
use tensorc_tests::corpus::Case;

/// Fails unless results of a GPU's code are those of the reference, up to the order of sums and the last bits of functions.
#[track_caller]
pub fn agrees(case: &Case, registry: &Registry, found: &[TensorData]) {
    let expected = eval_graph(&case.graph, registry, &case.inputs).unwrap();
    assert_eq!(expected.len(), found.len(), "{}", case.name);
    case.largest_error(&expected, found).unwrap_or_else(|e| panic!("{}, {e}", case.name));
}

/// The folder of examples.
pub fn examples() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// A GPU made of the host whose work is counted; `seed` decides what happens first where nothing else does.
pub fn counted(device: Device, seed: u64) -> CountingDriver {
    CountingDriver::new(Arc::new(HostDriver::with_seed(device, seed)))
}

/// A counter, and a function for [`tensorc::Options::progress`] that counts plans in it. For the compilers of one test: the counter is
/// static because progress functions capture nothing.
macro_rules! plan_counter {
    ($counter:ident, $count:ident) => {
        static $counter: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

        fn $count(phase: &str) {
            if phase == "lower" {
                $counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    };
}
pub(crate) use plan_counter;
