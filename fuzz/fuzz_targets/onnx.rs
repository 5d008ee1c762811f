//! ONNX models: any bytes become a graph that holds the rules of graphs, or are refused.
#![no_main]

use std::sync::LazyLock;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tensorc_frontend::onnx::{ImportOptions, OnnxModel, import};
use tensorc_ir::op::Registry;
use tensorc_ir::verify::{Stage, verify_graph};

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| tensorc_ops::registry().expect("the registry is sound"));

fuzz_target!(|data: &[u8]| {
    let Ok(model) = OnnxModel::decode(Bytes::copy_from_slice(data), None) else { return };
    let Ok(imported) = import(model, &REGISTRY, &ImportOptions::default()) else { return };
    verify_graph(&imported.graph, Stage::Imported).expect("an imported graph is valid");
});
