//! Damaged ONNX files become valid graphs or typed errors.

use crate::support::import_any::import_any;
use crate::support::*;
use bytes::Bytes;
use tensorc_frontend::onnx::proto::*;
use tensorc_random::each_damaged;

/// A model with tensors of every kind of storage, attributes, a function with one of its own, and branches.
fn with_everything() -> ModelProto {
    let x = value("x", DataType::Float, &[2, 3]);
    let flag = value("flag", DataType::Bool, &[]);
    let inner = |op: &str| graph(vec![], vec![node(op, &["h"], &["b"])], &["b"]);
    let branches = vec![branch("then_branch", inner("Neg")), branch("else_branch", inner("Abs"))];
    let sparse = SparseTensorProto {
        values: Some(f32s("s", &[1], &[9.0])),
        indices: Some(i64s("", &[1, 2], &[1, 2])),
        dims: vec![2, 3],
    };
    let nodes = vec![
        with(node("Gemm", &["x", "w"], &["g"]), vec![float("alpha", 0.5), int("transB", 1)]),
        with(node("Constant", &[], &["c"]), vec![tensor("value", i64s("", &[2], &[2, 3]))]),
        node("Reshape", &["g", "c"], &["r"]),
        with(call("Scaled", &["r", "s"], &["h"]), vec![int("axis", 1)]),
        with(node("If", &["flag"], &["y"]), branches),
    ];
    let body = vec![
        node("Add", &["a", "b"], &["t"]),
        with(node("Softmax", &["t"], &["r"]), vec![reference("axis", AttributeType::Int, "axis")]),
    ];
    let function = FunctionProto { attribute: strings(&["axis"]), ..function("Scaled", &["a", "b"], &["r"], body) };
    let graph = GraphProto {
        initializer: vec![TensorProto { float_data: vec![1.0; 9], ..empty("w", DataType::Float, &[3, 3]) }],
        sparse_initializer: vec![sparse],
        value_info: vec![value("g", DataType::Float, &[2, 3])],
        output: vec![value("y", DataType::Float, &[2, 3])],
        ..graph(vec![x, flag], nodes, &[])
    };
    ModelProto { functions: vec![function], ..model(graph) }
}

/// A model in old forms, with images.
fn old_forms() -> ModelProto {
    let nodes = vec![
        with(node("Conv", &["x", "w"], &["c"]), vec![ints("kernel_shape", &[3, 3]), ints("pads", &[1, 1, 1, 1])]),
        with(node("MaxPool", &["c"], &["p"]), vec![ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])]),
        with(node("Clip", &["p"], &["k"]), vec![float("min", 0.0), float("max", 6.0)]),
        with(node("Upsample", &["k"], &["u"]), vec![floats("scales", &[1.0, 1.0, 2.0, 2.0]), text("mode", "nearest")]),
        with(node("Squeeze", &["u"], &["q"]), vec![ints("axes", &[0])]),
        with(node("Softmax", &["q"], &["y"]), vec![int("axis", 1)]),
    ];
    let mut graph = graph(vec![value("x", DataType::Float, &[1, 2, 4, 4])], nodes, &["y"]);
    graph.initializer = vec![f32s("w", &[2, 2, 3, 3], &[0.5; 36])];
    ModelProto { opset_import: vec![opset("", 8)], ..model(graph) }
}

#[test]
fn damaged_files_are_graphs_or_errors() {
    let files: Vec<Vec<u8>> = [with_everything(), old_forms()].iter().map(|model| encoded(model).to_vec()).collect();
    for file in &files {
        import_any(file.clone().into(), &REGISTRY).unwrap();
    }
    let counts = each_damaged(&files, 6000, None, |bytes| import_any(Bytes::copy_from_slice(bytes), &REGISTRY).is_ok());
    let all = counts.read + counts.refused;
    assert!(counts.read > all / 100 && counts.refused > all / 100, "{counts:?}");
}
