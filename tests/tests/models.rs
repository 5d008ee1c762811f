//! Real models from pinned packages, against stored results of ONNX Runtime.
//!
//! `TENSORC_MODELS_ONLY` runs the models whose id contains it.

use tensorc::{Compiler, Options};
use tensorc_tests::cache::visible;
use tensorc_tests::models::cases;

use crate::support::backend::options;

#[test]
fn real_models_agree_with_onnx_runtime() {
    let compiler = Compiler::new(Options { threads: Some(2), poison: true, ..options() }).unwrap();
    let only = std::env::var("TENSORC_MODELS_ONLY").unwrap_or_default();
    let (mut agreed, mut sets, mut report) = (0, 0, vec![]);
    for case in cases().into_iter().filter(|case| case.id.contains(&only)) {
        let Some(bytes) = case.fetch() else { return };
        let wrong = case.run(&compiler, bytes);
        sets += case.sets();
        agreed += usize::from(wrong.is_empty());
        report.extend(wrong.into_iter().map(|why| format!("{}: {why}", case.id)));
    }
    visible(&format!("models: {agreed} agree, on {sets} sets of inputs"));
    assert!(report.is_empty(), "{}", report.join("\n"));
}
