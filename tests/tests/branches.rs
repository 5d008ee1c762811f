//! Models with branches of different types: shapes, or integers among the inputs, decide which is taken.

use std::collections::BTreeMap;

use prost::Message;
use tempfile::TempDir;
use tensorc::aot::{self, AotRequest};
use tensorc::{Compiler, DType, Model, Tensor};
use tensorc_frontend::onnx::proto::{
    AttributeProto, DataType, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
};

use crate::support::backend::options;

fn value(name: &str, elem_type: DataType, dims: &[&str]) -> ValueInfoProto {
    let dim = |d: &&str| Dimension { value: Some(DimensionValue::Param((*d).into())) };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor = TypeValue::Tensor(TensorTypeProto { elem_type: Some(elem_type as i32), shape });
    ValueInfoProto { name: Some(name.into()), r#type: Some(TypeProto { value: Some(tensor) }) }
}

fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    let input = inputs.iter().map(|s| s.to_string()).collect();
    NodeProto { op_type: Some(op.into()), input, output: vec![output.into()], ..Default::default() }
}

fn graph(input: Vec<ValueInfoProto>, node: Vec<NodeProto>, output: &str) -> GraphProto {
    let output = vec![ValueInfoProto { name: Some(output.into()), r#type: None }];
    GraphProto { name: Some("branches".into()), input, node, output, ..Default::default() }
}

/// `to = if condition { then } else { otherwise }`
fn conditional(condition: &str, then: NodeProto, otherwise: NodeProto, to: &str) -> NodeProto {
    let branch = |name: &str, node: NodeProto| {
        let result = node.output[0].clone();
        AttributeProto { name: Some(name.into()), g: Some(graph(vec![], vec![node], &result)), ..Default::default() }
    };
    let attribute = vec![branch("then_branch", then), branch("else_branch", otherwise)];
    NodeProto { attribute, ..node("If", &[condition], to) }
}

fn integers(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    let raw_data = Some(values.iter().flat_map(|v| v.to_le_bytes()).collect());
    let data_type = Some(DataType::Int64 as i32);
    TensorProto { name: Some(name.into()), data_type, dims: dims.to_vec(), raw_data, ..Default::default() }
}

/// Of `x[rows, columns]`: a list of its elements if `condition`, itself otherwise; without its first axis if that has
/// extent 1.
fn model(condition: Vec<NodeProto>) -> (TempDir, Model) {
    let mut nodes = condition;
    nodes.push(conditional("flat", node("Reshape", &["x", "all"], "r"), node("Neg", &["x"], "n"), "y"));
    nodes.push(node("Shape", &["y"], "extents"));
    nodes.push(node("Gather", &["extents", "zero"], "first"));
    nodes.push(node("Equal", &["first", "one"], "single"));
    nodes.push(conditional("single", node("Squeeze", &["y", "axis"], "s"), node("Abs", &["y"], "a"), "z"));
    let inputs = vec![value("x", DataType::Float, &["rows", "columns"]), value("flag", DataType::Int64, &[])];
    let mut g = graph(inputs, nodes, "z");
    let constants: [(&str, &[i64], i64); 4] = [("all", &[1], -1), ("zero", &[], 0), ("one", &[], 1), ("axis", &[1], 0)];
    g.initializer = constants.iter().map(|(name, dims, v)| integers(name, dims, &[*v])).collect();
    let opset_import = vec![OperatorSetIdProto { domain: Some(String::new()), version: Some(17) }];
    let proto = ModelProto { ir_version: Some(8), opset_import, graph: Some(g), ..Default::default() };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("branches.onnx");
    std::fs::write(&path, proto.encode_to_vec()).unwrap();
    (dir, Compiler::new(options()).unwrap().load(path).unwrap())
}

fn by_flag() -> (TempDir, Model) {
    model(vec![node("Equal", &["flag", "one"], "flat")])
}

fn flag(n: i64) -> Tensor {
    Tensor::from_bytes(DType::I64, &[], n.to_le_bytes().to_vec()).unwrap()
}

fn x(dims: &[u64]) -> Tensor {
    let values: Vec<f32> = (1..=dims.iter().product::<u64>()).map(|i| i as f32).collect();
    Tensor::from_f32(dims, &values).unwrap()
}

#[test]
fn shapes_and_integers_decide() {
    let (_file, model) = by_flag();
    assert!(model.has_branches());
    assert_eq!(model.inputs().iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>(), ["x", "flag"]);
    assert_eq!(model.outputs()[0].0, "z");
    let run = |dims: &[u64], n: i64| {
        let outputs = model.run(&[("x", x(dims)), ("flag", flag(n))]).unwrap();
        assert_eq!(outputs[0].0, "z");
        (outputs[0].1.dims().to_vec(), outputs[0].1.to_f32().unwrap())
    };
    for _ in 0..2 {
        assert_eq!(run(&[2, 3], 1), (vec![6], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
        assert_eq!(run(&[2, 3], 0), (vec![2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
        assert_eq!(run(&[1, 3], 0), (vec![3], vec![-1.0, -2.0, -3.0]));
        assert_eq!(run(&[1, 1], 1), (vec![], vec![1.0]));
    }
}

#[test]
fn an_input_may_be_fixed_and_the_model_compiled_ahead_of_time() {
    let (_file, model) = by_flag();
    let model = model.with_values(&[("flag", flag(1))]).unwrap();
    assert_eq!(model.inputs().len(), 1);
    assert_eq!(model.run(&[("x", x(&[2, 2]))]).unwrap()[0].1.dims(), [4]);
    let request = AotRequest {
        name: "branches".into(),
        shapes: BTreeMap::from([("columns".into(), vec![3])]),
        ranges: BTreeMap::from([("rows".into(), (2, 3).into())]),
        target: "native".parse().unwrap(),
        gpu: None,
        embed_weights: true,
        program: false,
    };
    let artifact = aot::compile(&model, &request).unwrap();
    assert!(artifact.header.contains("inputs[0]: x"), "{}", artifact.header);
    assert!(!artifact.header.contains("inputs[1]"), "{}", artifact.header);
    let error = model.with_values(&[("y", flag(1))]).err().unwrap().to_string();
    assert!(error.contains("the model has no input `y`; it takes: x"), "{error}");
}

#[test]
fn computed_values_do_not_decide_ranks() {
    let (_file, model) = model(vec![node("ReduceMax", &["x"], "m"), node("IsInf", &["m"], "flat")]);
    let error = model.run(&[("x", x(&[2, 9])), ("flag", flag(1))]).unwrap_err();
    assert_eq!(error.kind(), tensorc::ErrorKind::Undecided);
    let error = error.to_string();
    assert!(
        error.contains("If (ai.onnx, opset 17)") && error.contains("`y`: which of its branches is taken is not known"),
        "{error}"
    );
}

#[test]
fn small_floats_decide() {
    let (_file, model) = model(vec![node("ReduceMax", &["x"], "m"), node("IsInf", &["m"], "flat")]);
    let infinite = Tensor::from_f32(&[2, 2], &[f32::INFINITY, 1.0, 2.0, 3.0]).unwrap();
    let dims = |x: &Tensor| model.run(&[("x", x.clone()), ("flag", flag(1))]).unwrap()[0].1.dims().to_vec();
    // That floats decide is found out by all threads at once.
    std::thread::scope(|scope| {
        for turn in 0..4 {
            let (dims, infinite) = (&dims, &infinite);
            scope.spawn(move || {
                let cases = [(x(&[2, 2]), vec![2, 2]), (infinite.clone(), vec![4])];
                for i in 0..4 {
                    let (value, expected) = &cases[(turn + i) % 2];
                    assert_eq!(&dims(value), expected);
                }
            });
        }
    });
}
