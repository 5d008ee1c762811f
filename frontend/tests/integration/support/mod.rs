//! ONNX models built in code, for tests of the reader.

pub mod import_any;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use bytes::Bytes;
use prost::Message;
use tensorc_frontend::onnx::proto::*;
use tensorc_frontend::onnx::{ImportOptions, Imported, OnnxError, OnnxModel, ReadOptions, import};
use tensorc_ir::op::Registry;

pub static REGISTRY: LazyLock<Registry> = LazyLock::new(|| match tensorc_ops::registry() {
    Ok(registry) => registry,
    Err(why) => panic!("{why}"),
});

pub fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|s| (*s).to_owned()).collect()
}

pub fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto { op_type: Some(op.into()), input: strings(inputs), output: strings(outputs), ..Default::default() }
}

pub fn call(function: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto { domain: Some("f".into()), ..node(function, inputs, outputs) }
}

pub fn with(mut node: NodeProto, attributes: Vec<AttributeProto>) -> NodeProto {
    node.attribute = attributes;
    node
}

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(kind as i32), ..Default::default() }
}

pub fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) }
}

pub fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..attribute(name, AttributeType::Float) }
}

pub fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..attribute(name, AttributeType::Ints) }
}

pub fn floats(name: &str, values: &[f32]) -> AttributeProto {
    AttributeProto { floats: values.to_vec(), ..attribute(name, AttributeType::Floats) }
}

pub fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: Some(Bytes::from(value.to_owned())), ..attribute(name, AttributeType::String) }
}

pub fn tensor(name: &str, value: TensorProto) -> AttributeProto {
    AttributeProto { t: Some(value), ..attribute(name, AttributeType::Tensor) }
}

pub fn branch(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto { g: Some(graph), ..attribute(name, AttributeType::Graph) }
}

/// An attribute of a function's body that takes the value of one of the call.
pub fn reference(name: &str, kind: AttributeType, to: &str) -> AttributeProto {
    AttributeProto { ref_attr_name: Some(to.into()), ..attribute(name, kind) }
}

/// A tensor of which nothing is stored.
pub fn empty(name: &str, data_type: DataType, dims: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(data_type as i32),
        dims: dims.to_vec(),
        ..Default::default()
    }
}

pub fn raw(name: &str, data_type: DataType, dims: &[i64], data: &[u8]) -> TensorProto {
    TensorProto { raw_data: Some(Bytes::copy_from_slice(data)), ..empty(name, data_type, dims) }
}

pub fn f32s(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    raw(name, DataType::Float, dims, &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

pub fn i64s(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    raw(name, DataType::Int64, dims, &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

pub fn entry(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) }
}

/// A tensor of f32 whose data lies in a file.
pub fn external(name: &str, dims: &[i64], entries: &[(&str, &str)]) -> TensorProto {
    TensorProto {
        data_location: Some(DataLocation::External as i32),
        external_data: entries.iter().map(|(key, value)| entry(key, value)).collect(),
        ..empty(name, DataType::Float, dims)
    }
}

/// A value of a stated type.
pub fn value(name: &str, data_type: DataType, dims: &[i64]) -> ValueInfoProto {
    let dim = dims.iter().map(|d| Dimension { value: Some(DimensionValue::Value(*d)) }).collect();
    let tensor = TensorTypeProto { elem_type: Some(data_type as i32), shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto { name: Some(name.into()), r#type: Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) }) }
}

/// A value of any type.
pub fn untyped(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.into()), r#type: None }
}

pub fn graph(inputs: Vec<ValueInfoProto>, nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    let output = outputs.iter().map(|name| untyped(name)).collect();
    GraphProto { name: Some("g".into()), input: inputs, node: nodes, output, ..Default::default() }
}

pub fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) }
}

/// A model of operator set 17, with one of functions.
pub fn model(graph: GraphProto) -> ModelProto {
    let opset_import = vec![opset("", 17), opset("f", 1)];
    ModelProto { ir_version: Some(8), opset_import, graph: Some(graph), ..Default::default() }
}

pub fn function(name: &str, inputs: &[&str], outputs: &[&str], nodes: Vec<NodeProto>) -> FunctionProto {
    FunctionProto {
        name: Some(name.into()),
        domain: Some("f".into()),
        input: strings(inputs),
        output: strings(outputs),
        node: nodes,
        opset_import: vec![opset("", 17), opset("f", 1)],
        ..Default::default()
    }
}

pub fn encoded(model: &ModelProto) -> Bytes {
    model.encode_to_vec().into()
}

pub fn import_bytes(bytes: Bytes, options: ReadOptions) -> Result<Imported, OnnxError> {
    import(OnnxModel::decode_with(bytes, None, options)?, &REGISTRY, &ImportOptions::default())
}

/// Imports the model with a graph.
pub fn import_graph(graph: GraphProto) -> Result<Imported, OnnxError> {
    import_bytes(encoded(&model(graph)), ReadOptions::default())
}

/// The message with which a model is refused.
#[track_caller]
pub fn refusal(model: &ModelProto) -> String {
    match import_bytes(encoded(model), ReadOptions::default()) {
        Ok(_) => panic!("the model is imported"),
        Err(error) => error.to_string(),
    }
}

/// The message with which the model with a graph is refused.
#[track_caller]
pub fn graph_refusal(graph: GraphProto) -> String {
    refusal(&model(graph))
}

/// A model file that is imported.
pub fn import_file(path: &Path, options: ReadOptions) -> Result<Imported, OnnxError> {
    import(OnnxModel::open_with(path, options)?, &REGISTRY, &ImportOptions::default())
}

/// A fresh folder, with a file in it that no model may read, and a folder of the model beside it with 64 bytes in
/// `weights.bin` and 8 in `sub/more.bin`.
pub fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    let write = |file: &str, bytes: Vec<u8>| std::fs::write(path.join(file), bytes).expect("a file can be written");
    std::fs::create_dir_all(path.join("model/sub")).expect("a folder can be made");
    write("secret.bin", vec![9; 64]);
    write("model/weights.bin", (0..64).collect());
    write("model/sub/more.bin", vec![7; 8]);
    path.join("model")
}
