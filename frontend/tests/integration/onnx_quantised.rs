//! Groups between dequantisation and quantisation: what becomes one operator, and what stays as it is.

use tensorc_frontend::onnx::proto::*;
use tensorc_ir::graph::NodeKind;

use crate::support::{f32s, float, graph, import_graph, int, ints, node, raw, value, with};

/// Names of the operators that results depend on.
fn operators(g: GraphProto) -> Vec<&'static str> {
    let mut imported = import_graph(g).expect("a model that is supported").graph;
    imported.remove_dead();
    let name = |id| match &imported.node(id).kind {
        NodeKind::Op(op) => Some(op.def.name),
        _ => None,
    };
    imported.order().into_iter().filter_map(name).collect()
}

fn i32s(name: &str, values: &[i32]) -> TensorProto {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    raw(name, DataType::Int32, &[values.len() as i64], &bytes)
}

/// A pointwise convolution of bytes [1, 2, 3, 3] with two filters, a bias and a Relu.
fn convolution(nodes: Vec<NodeProto>, constants: Vec<TensorProto>) -> GraphProto {
    let mut all = vec![
        node("DequantizeLinear", &["x", "xs", "xz"], &["xf"]),
        with(node("DequantizeLinear", &["w", "ws", "wz"], &["wf"]), vec![int("axis", 0)]),
        with(node("DequantizeLinear", &["b", "bs", "bz"], &["bf"]), vec![int("axis", 0)]),
    ];
    all.extend(nodes);
    let mut g = graph(vec![value("x", DataType::Uint8, &[1, 2, 3, 3])], all, &["y"]);
    g.initializer = vec![
        f32s("xs", &[], &[0.5]),
        raw("xz", DataType::Uint8, &[], &[7]),
        raw("w", DataType::Int8, &[2, 2, 1, 1], &[1, 2, 3, 4]),
        f32s("ws", &[2], &[0.25, 0.125]),
        raw("wz", DataType::Int8, &[2], &[0, 0]),
        i32s("b", &[5, -6]),
        i32s("bz", &[0, 0]),
        f32s("ys", &[], &[0.75]),
    ];
    g.initializer.extend(constants);
    g
}

fn scales(scales: &[f32]) -> TensorProto {
    f32s("bs", &[2], scales)
}

fn zero(of_type: DataType, zero: u8) -> TensorProto {
    raw("yz", of_type, &[], &[zero])
}

fn conv() -> NodeProto {
    node("Conv", &["xf", "wf", "bf"], &["yf"])
}

fn relu() -> NodeProto {
    node("Relu", &["yf"], &["yr"])
}

fn quantised(from: &str) -> NodeProto {
    node("QuantizeLinear", &[from, "ys", "yz"], &["y"])
}

const FITTING: [f32; 2] = [0.125, 0.0625];

#[test]
fn a_pointwise_convolution_with_its_bias_is_one_operator() {
    let g = convolution(vec![conv(), quantised("yf")], vec![scales(&FITTING), zero(DataType::Uint8, 9)]);
    assert_eq!(operators(g), ["qlinear_conv"]);
}

#[test]
fn a_convolution_of_windows_is_one_operator() {
    let strided = with(conv(), vec![ints("strides", &[2, 2]), ints("pads", &[1, 1, 1, 1])]);
    let mut g = convolution(vec![strided, quantised("yf")], vec![scales(&FITTING), zero(DataType::Uint8, 9)]);
    g.initializer[2] = raw("w", DataType::Int8, &[2, 2, 3, 3], &[5; 36]);
    assert_eq!(operators(g), ["qlinear_conv"]);
}

#[test]
fn convolutions_of_each_channel_and_of_signals_are_one_operator() {
    let grouped = with(conv(), vec![int("group", 2)]);
    let mut depthwise = convolution(vec![grouped, quantised("yf")], vec![scales(&FITTING), zero(DataType::Uint8, 9)]);
    depthwise.initializer[2] = raw("w", DataType::Int8, &[2, 1, 1, 1], &[1, 2]);
    assert_eq!(operators(depthwise), ["qlinear_conv"]);
    let mut signal = convolution(vec![conv(), quantised("yf")], vec![scales(&FITTING), zero(DataType::Uint8, 9)]);
    signal.input = vec![value("x", DataType::Uint8, &[1, 2, 9])];
    signal.initializer[2] = raw("w", DataType::Int8, &[2, 2, 3], &[5; 12]);
    assert_eq!(operators(signal), ["qlinear_conv"]);
}

#[test]
fn a_relu_above_the_least_number_does_nothing_else_than_the_type() {
    for (of_type, least) in [(DataType::Uint8, 0), (DataType::Int8, 0x80)] {
        let nodes = vec![conv(), relu(), quantised("yr")];
        let g = convolution(nodes, vec![scales(&FITTING), zero(of_type, least)]);
        assert_eq!(operators(g), ["qlinear_conv"]);
    }
    let g = convolution(vec![conv(), relu(), quantised("yr")], vec![scales(&FITTING), zero(DataType::Uint8, 1)]);
    assert!(operators(g).contains(&"relu"));
}

#[test]
fn what_is_no_such_group_stays() {
    let stays = |nodes: Vec<NodeProto>, constants: Vec<TensorProto>| {
        let found = operators(convolution(nodes, constants));
        assert!(found.contains(&"conv") && !found.contains(&"qlinear_conv"), "{found:?}");
    };
    // A bias of another scale; a result of 16 bits; several groups; a result that others use.
    stays(vec![conv(), quantised("yf")], vec![scales(&[0.125, 0.125]), zero(DataType::Uint8, 9)]);
    let sixteen = raw("yz", DataType::Uint16, &[], &[9, 0]);
    stays(vec![conv(), quantised("yf")], vec![scales(&FITTING), sixteen]);
    let grouped = with(conv(), vec![int("group", 2)]);
    let mut groups = convolution(vec![grouped, quantised("yf")], vec![scales(&FITTING), zero(DataType::Uint8, 9)]);
    groups.input = vec![value("x", DataType::Uint8, &[1, 4, 3, 3])];
    groups.initializer[2] = raw("w", DataType::Int8, &[2, 2, 1, 1], &[1, 2, 3, 4]);
    assert!(operators(groups).contains(&"conv"));
    let mut used = convolution(vec![conv(), quantised("yf")], vec![scales(&FITTING), zero(DataType::Uint8, 9)]);
    used.output = graph(vec![], vec![], &["y", "yf"]).output;
    assert!(operators(used).contains(&"conv"));
}

/// A `Gemm` with its bias, between operators as given.
fn gemm(attributes: Vec<AttributeProto>, end: Vec<NodeProto>, bias_scales: &[f32]) -> GraphProto {
    let mut nodes = vec![
        node("DequantizeLinear", &["x", "xs", "xz"], &["xf"]),
        with(node("DequantizeLinear", &["w", "ws", "wz"], &["wf"]), vec![int("axis", 0)]),
        with(node("DequantizeLinear", &["b", "bs", "bz"], &["bf"]), vec![int("axis", 0)]),
        with(node("Gemm", &["xf", "wf", "bf"], &["yf"]), [vec![int("transB", 1)], attributes].concat()),
    ];
    let output = if end.is_empty() { "yf" } else { "y" };
    nodes.extend(end);
    let mut g = graph(vec![value("x", DataType::Uint8, &[5, 3])], nodes, &[output]);
    g.initializer = vec![
        f32s("xs", &[], &[0.5]),
        raw("xz", DataType::Uint8, &[], &[7]),
        raw("w", DataType::Int8, &[2, 3], &[1, 2, 3, 4, 5, 6]),
        f32s("ws", &[2], &[0.25, 0.125]),
        raw("wz", DataType::Int8, &[2], &[0, 0]),
        i32s("b", &[5, -6]),
        f32s("bs", &[2], bias_scales),
        i32s("bz", &[0, 0]),
        f32s("ys", &[], &[0.75]),
        zero(DataType::Uint8, 9),
    ];
    g
}

#[test]
fn a_gemm_is_one_operator_with_its_bias_or_a_product_in_floats() {
    assert_eq!(operators(gemm(vec![], vec![quantised("yf")], &FITTING)), ["qgemm"]);
    // The bias has another scale, or the result is not quantised.
    let other = operators(gemm(vec![], vec![quantised("yf")], &[0.5, 0.5]));
    assert!(other.contains(&"qgemm") && other.contains(&"add") && !other.contains(&"gemm"), "{other:?}");
    let unrounded = operators(gemm(vec![], vec![], &FITTING));
    assert!(
        unrounded.contains(&"qgemm") && unrounded.contains(&"add") && !unrounded.contains(&"gemm"),
        "{unrounded:?}"
    );
    // Sums that are scaled otherwise.
    for name in ["alpha", "beta"] {
        let scaled = operators(gemm(vec![float(name, 0.5)], vec![quantised("yf")], &FITTING));
        assert!(scaled.contains(&"gemm") && !scaled.contains(&"qgemm"), "{name}: {scaled:?}");
    }
}

/// A product of bytes [2, 3] with columns that have scales of their own, along an axis.
fn product(axis: i64) -> GraphProto {
    let nodes = vec![
        node("DequantizeLinear", &["x", "xs", "xz"], &["xf"]),
        with(node("DequantizeLinear", &["w", "ws", "wz"], &["wf"]), vec![int("axis", axis)]),
        node("MatMul", &["xf", "wf"], &["yf"]),
        node("QuantizeLinear", &["yf", "ys", "yz"], &["y"]),
    ];
    let mut g = graph(vec![value("x", DataType::Uint8, &[2, 3])], nodes, &["y"]);
    g.initializer = vec![
        f32s("xs", &[], &[0.5]),
        raw("xz", DataType::Uint8, &[], &[7]),
        raw("w", DataType::Int8, &[3, 3], &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
        f32s("ws", &[3], &[0.25, 0.125, 0.5]),
        raw("wz", DataType::Int8, &[3], &[0, 0, 0]),
        f32s("ys", &[], &[0.75]),
        raw("yz", DataType::Uint8, &[], &[3]),
    ];
    g
}

#[test]
fn a_product_with_scales_of_its_columns_is_one_operator() {
    for axis in [1, -1] {
        assert_eq!(operators(product(axis)), ["qlinear_matmul"], "axis {axis}");
    }
    assert!(operators(product(0)).contains(&"matmul"), "scales of rows of the right operand");
    let mut unrounded = product(1);
    unrounded.node.pop();
    unrounded.output = graph(vec![], vec![], &["yf"]).output;
    assert_eq!(operators(unrounded), ["matmul_integer_to_float"]);
}
