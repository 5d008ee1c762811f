//! What several tests share.

pub mod backend;
pub mod npz;
/// ONNX models built in code, and damaged ones.
#[path = "../../../frontend/tests/integration/support/mod.rs"]
#[expect(dead_code, reason = "shared with the tests of the reader, which need more of it")]
pub mod onnx_models;

use std::sync::Arc;

use tensorc::ir::TensorData;
use tensorc::ir::interp::eval_graph;
use tensorc::ir::op::Registry;
use tensorc::runtime::Device;
use tensorc_simulator::{CountingDriver, HostDriver};
use tensorc_tests::corpus::{Case, tolerance};

/// Fails unless results of a GPU's code are those of the reference, up to the order of sums and the last bits of functions.
#[track_caller]
pub fn agrees(case: &Case, registry: &Registry, found: &[TensorData]) {
    let expected = eval_graph(&case.graph, registry, &case.inputs).unwrap();
    assert_eq!(expected.len(), found.len(), "{}", case.name);
    for (expected, found) in expected.iter().zip(found) {
        assert_eq!(expected.ty, found.ty, "{}", case.name);
        let largest = expected.iter().map(|x| x.as_f64().abs()).fold(1e-30, f64::max);
        let allowed = if found.dtype().is_float() { tolerance(found.dtype(), case.tf32) * largest } else { 0.0 };
        for (i, (a, b)) in expected.iter().zip(found.iter()).enumerate() {
            let (a, b) = (a.as_f64(), b.as_f64());
            assert!((a - b).abs() <= allowed, "{}, element {i}: {a} expected, {b} found", case.name);
        }
    }
}

/// The folder of examples.
pub fn examples() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// A GPU made of the host whose work is counted; `seed` decides what happens first where nothing else does.
pub fn counted(device: Device, seed: u64) -> CountingDriver {
    CountingDriver::new(Arc::new(HostDriver::with_seed(device, seed)))
}
