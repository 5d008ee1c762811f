//! `Loop` and `Scan` of ONNX that are short or written out: results by hand. Long ones are in `flow`.

use std::path::PathBuf;

use tempfile::TempDir;
use tensorc::{Compiler, DType, Error, Limits, Model, Options, Tensor};
use tensorc_frontend::onnx::proto::*;

use crate::support::backend::options;
use crate::support::onnx_models::{
    branch, encoded, f32s, graph, i64s, int, ints, model, node, opset, untyped, value, with,
};

/// An input with a name for each extent.
fn open(name: &str, data_type: DataType, dims: &[&str]) -> ValueInfoProto {
    let dim = |d: &&str| Dimension { value: Some(DimensionValue::Param((*d).into())) };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor = TypeValue::Tensor(TensorTypeProto { elem_type: Some(data_type as i32), shape });
    ValueInfoProto { name: Some(name.into()), r#type: Some(TypeProto { value: Some(tensor) }) }
}

fn saved(graph: GraphProto, version: i64) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loop.onnx");
    let proto = ModelProto { opset_import: vec![opset("", version)], ..model(graph) };
    std::fs::write(&path, encoded(&proto)).unwrap();
    (dir, path)
}

fn load(graph: GraphProto, version: i64) -> (TempDir, Result<Model, Error>) {
    let (dir, path) = saved(graph, version);
    (dir, Compiler::new(Options { poison: true, ..options() }).unwrap().load(path))
}

fn whole(value: i64) -> Tensor {
    Tensor::from_bytes(DType::I64, &[], value.to_le_bytes().to_vec()).unwrap()
}

fn x(dims: &[u64]) -> Tensor {
    let values: Vec<f32> = (1..=dims.iter().product::<u64>()).map(|i| i as f32).collect();
    Tensor::from_f32(dims, &values).unwrap()
}

/// Shapes and elements of the outputs.
fn run(model: &Model, inputs: &[(&str, Tensor)]) -> Vec<(Vec<u64>, Vec<f32>)> {
    let outputs = model.run(inputs).unwrap_or_else(|e| panic!("{e}"));
    outputs.iter().map(|(_, t)| (t.dims().to_vec(), t.to_f32().unwrap())).collect()
}

/// Sums of the elements that have been gone through: `next = sum + element`, collected.
fn sums(attributes: Vec<AttributeProto>, inputs: &[&str]) -> NodeProto {
    let nodes = vec![node("Add", &["sum", "element"], &["next"]), node("Identity", &["next"], &["row"])];
    let body = graph(vec![untyped("sum"), untyped("element")], nodes, &["next", "row"]);
    let attributes = [vec![int("num_scan_inputs", 1), branch("body", body)], attributes].concat();
    with(node("Scan", inputs, &["total", "rows"]), attributes)
}

/// `total, rows = scan(x)` over tensors whose extents are not known.
fn scan(attributes: Vec<AttributeProto>) -> (TempDir, Model) {
    let mut g = graph(
        vec![open("x", DataType::Float, &["m", "n"])],
        vec![sums(attributes, &["zero", "x"])],
        &["total", "rows"],
    );
    g.initializer = vec![f32s("zero", &[1], &[0.0])];
    let (dir, model) = load(g, 17);
    (dir, model.unwrap())
}

#[test]
fn a_scan_follows_the_shape() {
    let (_file, model) = scan(vec![]);
    assert!(model.has_branches());
    assert_eq!(run(&model, &[("x", x(&[1, 2]))]), [(vec![2], vec![1.0, 2.0]), (vec![1, 2], vec![1.0, 2.0])]);
    for _ in 0..2 {
        let expected = vec![1.0, 2.0, 4.0, 6.0, 9.0, 12.0];
        assert_eq!(run(&model, &[("x", x(&[3, 2]))]), [(vec![2], vec![9.0, 12.0]), (vec![3, 2], expected)]);
    }
    let long: Vec<f32> = (1..=50).map(|i| (i * (i + 1) / 2) as f32).collect();
    assert_eq!(run(&model, &[("x", x(&[50, 1]))])[1], (vec![50, 1], long));
}

#[test]
fn a_scan_goes_along_any_axis_in_any_direction() {
    let (_file, model) = scan(vec![
        ints("scan_input_axes", &[-1]),
        ints("scan_input_directions", &[1]),
        ints("scan_output_axes", &[1]),
        ints("scan_output_directions", &[1]),
    ]);
    // The columns (3, 6), (2, 5), (1, 4) are added in this order; the last sum is the first column of the result.
    let rows = vec![6.0, 5.0, 3.0, 15.0, 11.0, 6.0];
    assert_eq!(run(&model, &[("x", x(&[2, 3]))]), [(vec![2], vec![6.0, 15.0]), (vec![2, 3], rows)]);
}

#[test]
fn a_scan_of_version_8_computes_each_element_of_the_batch_by_itself() {
    let inputs = vec![value("zero", DataType::Float, &[2, 1]), value("x", DataType::Float, &[2, 3, 1])];
    let node = sums(vec![ints("directions", &[0])], &["", "zero", "x"]);
    let (_file, model) = load(graph(inputs, vec![node], &["total", "rows"]), 8);
    let zero = Tensor::from_f32(&[2, 1], &[0.0, 100.0]).unwrap();
    let found = run(&model.unwrap(), &[("zero", zero), ("x", x(&[2, 3, 1]))]);
    let rows = vec![1.0, 3.0, 6.0, 104.0, 109.0, 115.0];
    assert_eq!(found, [(vec![2, 1], vec![6.0, 115.0]), (vec![2, 3, 1], rows)]);
}

/// `list` becomes longer by the number of the iteration; the product of the number and a weight is collected.
fn growing() -> GraphProto {
    let nodes = vec![
        node("Identity", &["condition"], &["on"]),
        node("Cast", &["i"], &["number"]),
        node("Unsqueeze", &["number", "front"], &["one"]),
        node("Concat", &["list", "one"], &["longer"]),
        node("Mul", &["number", "weight"], &["product"]),
    ];
    let nodes = nodes.into_iter().map(|n| match n.op_type() {
        "Cast" => with(n, vec![int("to", DataType::Float as i64)]),
        "Concat" => with(n, vec![int("axis", 0)]),
        _ => n,
    });
    let inputs = ["i", "condition", "list"].map(untyped).to_vec();
    let mut body = graph(inputs, nodes.collect(), &["on", "longer", "product"]);
    body.initializer = vec![f32s("weight", &[2], &[1.0, 10.0]), i64s("front", &[1], &[0])];
    body
}

#[test]
fn an_integer_says_how_often_a_loop_runs() {
    let node = with(node("Loop", &["count", "", "first"], &["list", "products"]), vec![branch("body", growing())]);
    let mut g = graph(vec![value("count", DataType::Int64, &[])], vec![node], &["list", "products"]);
    g.initializer = vec![f32s("first", &[1], &[7.0])];
    let (_file, model) = load(g, 17);
    let model = model.unwrap();
    assert_eq!(
        run(&model, &[("count", whole(3))]),
        [(vec![4], vec![7.0, 0.0, 1.0, 2.0]), (vec![3, 2], vec![0.0, 0.0, 1.0, 10.0, 2.0, 20.0])]
    );
    for none in [0, -5] {
        assert_eq!(run(&model, &[("count", whole(none))]), [(vec![1], vec![7.0]), (vec![0, 2], vec![])]);
    }
}

/// `sum` grows by `i` while it is less than a bound.
fn bounded(condition: Vec<NodeProto>) -> GraphProto {
    let mut nodes = vec![node("Add", &["sum", "i"], &["next"])];
    nodes.extend(condition);
    graph(["i", "condition", "sum"].map(untyped).to_vec(), nodes, &["on", "next"])
}

#[test]
fn a_condition_of_shapes_and_integers_ends_a_loop() {
    let body = bounded(vec![node("Less", &["next", "bound"], &["on"])]);
    let nodes = vec![
        node("Less", &["zero", "bound"], &["first"]),
        with(node("Loop", &["", "first", "zero"], &["sum"]), vec![branch("body", body)]),
        with(node("Cast", &["sum"], &["y"]), vec![int("to", DataType::Float as i64)]),
    ];
    let mut g = graph(vec![value("bound", DataType::Int64, &[])], nodes, &["y"]);
    g.initializer = vec![i64s("zero", &[], &[0])];
    let (_file, model) = load(g, 17);
    let model = model.unwrap();
    let sum = |bound: i64| run(&model, &[("bound", whole(bound))]);
    assert_eq!([0, 1, 4, 7].map(|bound| sum(bound)[0].1[0]), [0.0, 1.0, 6.0, 10.0]);
}

#[test]
fn loops_are_nested_and_use_what_is_around_them() {
    let inner = graph(
        ["j", "inner_condition", "value"].map(untyped).to_vec(),
        vec![node("Add", &["value", "i"], &["sum"]), node("Identity", &["inner_condition"], &["inner_on"])],
        &["inner_on", "sum"],
    );
    let outer = graph(
        ["i", "condition", "start"].map(untyped).to_vec(),
        vec![
            with(node("Loop", &["three", "yes", "start"], &["end"]), vec![branch("body", inner)]),
            node("Identity", &["condition"], &["on"]),
        ],
        &["on", "end"],
    );
    let nodes = vec![
        node("Equal", &["three", "three"], &["yes"]),
        with(node("Loop", &["three", "yes", "x"], &["y"]), vec![branch("body", outer)]),
        with(node("Cast", &["y"], &["z"]), vec![int("to", DataType::Float as i64)]),
    ];
    let mut g = graph(vec![value("x", DataType::Int64, &[])], nodes, &["z"]);
    g.initializer = vec![i64s("three", &[], &[3])];
    let (_file, model) = load(g, 17);
    // Three times 0, 1 and 2.
    assert_eq!(run(&model.unwrap(), &[("x", whole(5))]), [(vec![], vec![14.0])]);
}

/// The message with which a loop of `sum` is refused; `bound` is computed.
fn refusal(body: GraphProto, inputs: &[&str], limits: Limits) -> String {
    let nodes = vec![
        with(node("ReduceMax", &["x"], &["bound"]), vec![int("keepdims", 0)]),
        with(node("Loop", inputs, &["y"]), vec![branch("body", body)]),
    ];
    let mut g = graph(vec![open("x", DataType::Int64, &["n"])], nodes, &["y"]);
    g.initializer = vec![i64s("zero", &[], &[0]), i64s("huge", &[], &[i64::MAX])];
    let (_file, path) = saved(g, 17);
    let compiler = Compiler::new(Options { limits, ..options() }).unwrap();
    let x = Tensor::from_bytes(DType::I64, &[20], vec![0; 160]).unwrap();
    compiler.load(path).and_then(|model| model.run(&[("x", x)])).unwrap_err().to_string()
}

#[test]
fn a_condition_that_the_operator_ignores_is_refused() {
    let less = || bounded(vec![node("Less", &["next", "bound"], &["on"])]);
    for most in ["huge", "bound"] {
        let found = refusal(less(), &[most, "", "zero"], Limits::default());
        assert!(
            found.contains("Loop (ai.onnx, opset 17)") && found.contains("computes one that is not known to hold"),
            "{found}"
        );
    }
    let ends = bounded(vec![node("Less", &["zero", "zero"], &["on"])]);
    let found = refusal(ends, &["huge", "", "zero"], Limits::default());
    assert!(found.contains("it has no condition, and its body computes one that is false"), "{found}");
}

#[test]
fn a_loop_without_end_takes_too_long() {
    let forever = bounded(vec![node("Identity", &["condition"], &["on"])]);
    let limits = Limits { time: Some(std::time::Duration::from_millis(200)), ..Limits::default() };
    let found = refusal(forever, &["huge", "", "zero"], limits);
    assert!(found.contains("0.2 s"), "{found}");
}
