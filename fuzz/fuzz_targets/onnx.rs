//! ONNX models: any bytes become a graph that holds the rules of graphs, or are refused.
#![no_main]

use std::sync::LazyLock;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tensorc_ir::op::Registry;

// What the tests of damaged files do, too.
#[path = "../../frontend/tests/integration/support/import_any.rs"]
mod import_any;

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| tensorc_ops::registry().expect("the registry is sound"));

fuzz_target!(|data: &[u8]| {
    let _ = import_any::import_any(Bytes::copy_from_slice(data), &REGISTRY);
});
