//! One node by the interpreter, on given operands.

use bytes::Bytes;
use prost::Message;
use tensorc::ir::TensorData;
use tensorc::ir::interp::eval_graph;
use tensorc::ir::op::Registry;
use tensorc_frontend::onnx::proto::{GraphProto, NodeProto, ValueInfoProto};
use tensorc_frontend::onnx::{ImportOptions, OnnxModel, import};

use crate::model::{Value, tensor_proto, wrap};
use crate::trial::caught;

/// The results of a node on operands, which are found by name.
///
/// # Errors
/// tensorc refuses the node, with its reason; or it panics, which the text says.
pub fn node_results(
    node: &NodeProto,
    operands: &[Value],
    opset: i64,
    registry: &Registry,
) -> Result<Vec<TensorData>, String> {
    let output = |name: &String| ValueInfoProto { name: Some(name.clone()), r#type: None };
    let graph = GraphProto {
        node: vec![node.clone()],
        initializer: operands.iter().map(|v| tensor_proto(&v.name, &v.data)).collect(),
        output: node.output.iter().map(output).collect(),
        ..GraphProto::default()
    };
    let bytes = Bytes::from(wrap(graph, opset).encode_to_vec());
    let evaluate = || {
        let model = OnnxModel::decode(bytes, None).map_err(|e| e.to_string())?;
        let imported = import(model, registry, &ImportOptions::default()).map_err(|e| e.to_string())?;
        eval_graph(&imported.graph, registry, &[]).map_err(|e| e.to_string())
    };
    caught(evaluate).unwrap_or_else(|panic| Err(format!("panicked at {panic}")))
}
