//! Branches and loops whose types differ from one iteration to the next, or follow from values: the host runs them, each body compiled
//! for many shapes. Results by hand, and by the reference interpreter.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorc::{DType, Limits, Model, Options, Tensor};
use tensorc_frontend::onnx::proto::*;

use crate::flow::{agrees, load, loaded};
use crate::support::backend::options;
use crate::support::onnx_models::{branch, f32s, graph, i64s, int, node, untyped, value, with};
use crate::support::plan_counter;

/// A tensor of floats whose extents are not known.
pub(crate) fn open(name: &str, dims: &[&str]) -> ValueInfoProto {
    let dim = |d: &&str| Dimension { value: Some(DimensionValue::Param((*d).into())) };
    let mut info = value(name, DataType::Float, &[]);
    if let Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) }) = &mut info.r#type {
        tensor.shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    }
    info
}

/// The elements 1, 2, 3, ….
pub(crate) fn counted(dims: &[u64]) -> Tensor {
    let values: Vec<f32> = (1..=dims.iter().product::<u64>()).map(|i| i as f32).collect();
    Tensor::from_f32(dims, &values).unwrap()
}

/// Pseudo-random elements.
pub(crate) fn mixed(dims: &[u64]) -> Tensor {
    let values: Vec<f32> =
        (0..dims.iter().product::<u64>()).map(|i| ((i * 37 + 11) % 101) as f32 / 50.0 - 0.9).collect();
    Tensor::from_f32(dims, &values).unwrap()
}

pub(crate) fn results(model: &Model, inputs: &[(&str, Tensor)]) -> Vec<(Vec<u64>, Vec<f32>)> {
    let outputs = model.run(inputs).unwrap_or_else(|e| panic!("{e}"));
    outputs.iter().map(|(_, t)| (t.dims().to_vec(), t.to_f32().unwrap())).collect()
}

/// Appends the mean of a list to it until the list is as long as its first element says; stacks the means.
pub(crate) fn growing() -> GraphProto {
    let body = vec![
        with(node("ReduceMean", &["list", "front"], &["mean"]), vec![]),
        with(node("Concat", &["list", "mean"], &["longer"]), vec![int("axis", 0)]),
        node("Size", &["longer"], &["size"]),
        with(node("Cast", &["size"], &["length"]), vec![int("to", DataType::Float as i64)]),
        with(node("ReduceMax", &["x"], &["bound"]), vec![int("keepdims", 0)]),
        node("Less", &["length", "bound"], &["on"]),
    ];
    let body = graph(["i", "condition", "list"].map(untyped).to_vec(), body, &["on", "longer", "mean"]);
    let nodes = vec![
        with(node("ReduceMax", &["x"], &["most"]), vec![int("keepdims", 0)]),
        node("Greater", &["most", "zero"], &["begins"]),
        with(node("Loop", &["", "begins", "x"], &["list_of_all", "means"]), vec![branch("body", body)]),
        with(node("ReduceMean", &["means", "front"], &["average"]), vec![]),
    ];
    let mut g = graph(vec![open("x", &["n"])], nodes, &["list_of_all", "means", "average"]);
    g.initializer = vec![i64s("front", &[1], &[0]), f32s("zero", &[], &[0.0])];
    g
}

plan_counter!(PLANNED, count);

#[test]
fn lists_grow_until_a_condition_fails() {
    let (_file, model) = load(growing(), Options { poison: true, progress: Some(count), ..options() });
    let model = model.unwrap();
    let given = |most: f32, n: u64| {
        let mut values = vec![1.0; n as usize];
        values[0] = most;
        Tensor::from_f32(&[n], &values).unwrap()
    };
    let mut plans = vec![];
    for (most, n) in [(20.0, 17), (9.0, 19), (60.0, 18), (90.0, 30)] {
        let found = results(&model, &[("x", given(most, n))]);
        let rows = (most as u64).saturating_sub(n).max(1);
        assert_eq!([&found[0].0, &found[1].0, &found[2].0], [&vec![n + rows], &vec![rows, 1], &vec![1, 1]]);
        // The mean of a list does not change if it is appended.
        let mean = (most + (n - 1) as f32) / n as f32;
        assert!(found[1].1.iter().all(|v| (v - mean).abs() < 1e-4), "{:?}", found[1]);
        assert!((found[2].1[0] - mean).abs() < 1e-4);
        agrees(&model, &[("x", given(most, n))]);
        plans.push(PLANNED.load(Ordering::Relaxed));
    }
    assert_eq!(plans[1], plans[3], "bodies are compiled once for all lengths");
}

/// Half of `x` again and again, until no element is above a bound; of each number of iterations the rows.
pub(crate) fn halving() -> GraphProto {
    let body = vec![
        node("Mul", &["v", "half"], &["next"]),
        with(node("ReduceMax", &["next"], &["largest"]), vec![int("keepdims", 0)]),
        node("Greater", &["largest", "bound"], &["on"]),
        node("Identity", &["next"], &["row"]),
    ];
    let body = graph(["i", "condition", "v"].map(untyped).to_vec(), body, &["on", "next", "row"]);
    let nodes = vec![
        with(node("ReduceMin", &["x"], &["bound"]), vec![int("keepdims", 0)]),
        node("Greater", &["bound", "zero"], &["begins"]),
        with(node("Loop", &["", "begins", "x"], &["last", "rows"]), vec![branch("body", body)]),
    ];
    let mut g = graph(vec![open("x", &["n", "m"])], nodes, &["last", "rows"]);
    g.initializer = vec![f32s("half", &[], &[0.5]), f32s("zero", &[], &[0.0])];
    g
}

#[test]
fn as_many_rows_are_stacked_as_there_are_iterations() {
    let (_file, model) = loaded(halving());
    for dims in [[5, 5], [8, 3], [2, 30]] {
        let found = results(&model, &[("x", counted(&dims))]);
        // From n·m to 1 by halves.
        let rows = ((dims[0] * dims[1]) as f32).log2().ceil() as u64;
        assert_eq!(found[1].0, [rows, dims[0], dims[1]]);
        assert_eq!(found[0].1, found[1].1[found[1].1.len() - (dims[0] * dims[1]) as usize..]);
        agrees(&model, &[("x", counted(&dims))]);
    }
    // No iteration: the bound is below zero.
    let found = results(&model, &[("x", Tensor::from_f32(&[4, 5], &[-1.0; 20]).unwrap())]);
    assert_eq!(found[1].0[0], 0);
    assert_eq!(found[0], (vec![4, 5], vec![-1.0; 20]));
}

/// Elements above the mean, as long as there are more than two.
pub(crate) fn shrinking() -> GraphProto {
    let body = vec![
        with(node("ReduceMean", &["v"], &["mean"]), vec![int("keepdims", 0)]),
        node("Greater", &["v", "mean"], &["above"]),
        with(node("Compress", &["v", "above"], &["next"]), vec![int("axis", 0)]),
        node("Size", &["next"], &["size"]),
        node("Greater", &["size", "two"], &["on"]),
    ];
    let body = graph(["i", "condition", "v"].map(untyped).to_vec(), body, &["on", "next"]);
    let nodes = vec![
        node("Size", &["x"], &["count"]),
        node("Greater", &["count", "two"], &["begins"]),
        with(node("Loop", &["", "begins", "x"], &["y"]), vec![branch("body", body)]),
    ];
    let mut g = graph(vec![open("x", &["n"])], nodes, &["y"]);
    g.initializer = vec![i64s("two", &[], &[2])];
    g
}

#[test]
fn shapes_in_a_body_depend_on_values() {
    let (_file, model) = loaded(shrinking());
    for n in [20, 33, 100, 3] {
        let mut expected: Vec<f32> = (1..=n).map(|i| i as f32).collect();
        while expected.len() > 2 {
            let mean = expected.iter().sum::<f32>() / expected.len() as f32;
            expected.retain(|v| *v > mean);
        }
        assert_eq!(results(&model, &[("x", counted(&[n]))]), [(vec![expected.len() as u64], expected)]);
        agrees(&model, &[("x", counted(&[n]))]);
    }
}

/// `xᵀ · x` if the sum of `x` is positive, else `x + x`: of which the square, and its shape.
pub(crate) fn either() -> GraphProto {
    let then = vec![node("Transpose", &["x"], &["t"]), node("MatMul", &["t", "x"], &["p"])];
    let branches = vec![
        branch("then_branch", graph(vec![], then, &["p"])),
        branch("else_branch", graph(vec![], vec![node("Add", &["x", "x"], &["s"])], &["s"])),
    ];
    let nodes = vec![
        with(node("ReduceSum", &["x"], &["sum"]), vec![int("keepdims", 0)]),
        node("Greater", &["sum", "zero"], &["positive"]),
        with(node("If", &["positive"], &["y"]), branches),
        node("Mul", &["y", "y"], &["z"]),
    ];
    let mut g = graph(vec![open("x", &["n", "m"])], nodes, &["z"]);
    g.initializer = vec![f32s("zero", &[], &[0.0])];
    g
}

#[test]
fn branches_give_results_of_different_shapes() {
    let (_file, model) = loaded(either());
    let negative = Tensor::from_f32(&[2, 3], &[-1.0; 6]).unwrap();
    assert_eq!(results(&model, &[("x", negative)]), [(vec![2, 3], vec![4.0; 6])]);
    for dims in [[2, 3], [20, 7], [3, 40]] {
        assert_eq!(results(&model, &[("x", counted(&dims))])[0].0, [dims[1], dims[1]]);
        agrees(&model, &[("x", counted(&dims))]);
        agrees(&model, &[("x", mixed(&dims))]);
    }
}

/// Doubles a list of rows, or leaves out its first, by turns, until the sum is large; stacks the sums.
pub(crate) fn nested() -> GraphProto {
    let longer = with(node("Concat", &["v", "v"], &["twice"]), vec![int("axis", 0)]);
    let branches = vec![
        branch("then_branch", graph(vec![], vec![longer], &["twice"])),
        branch("else_branch", graph(vec![], vec![node("Slice", &["v", "one", "end", "front"], &["rest"])], &["rest"])),
    ];
    let body = vec![
        node("Mod", &["i", "two"], &["parity"]),
        node("Equal", &["parity", "zero"], &["even"]),
        with(node("If", &["even"], &["next"]), branches),
        with(node("ReduceSum", &["next"], &["sum"]), vec![int("keepdims", 0)]),
        node("Less", &["sum", "bound"], &["on"]),
        node("Identity", &["sum"], &["row"]),
    ];
    let body = graph(["i", "condition", "v"].map(untyped).to_vec(), body, &["on", "next", "row"]);
    let nodes = vec![
        with(node("ReduceMax", &["x"], &["largest"]), vec![int("keepdims", 0)]),
        node("Mul", &["largest", "hundred"], &["bound"]),
        node("Less", &["largest", "bound"], &["begins"]),
        with(node("Loop", &["", "begins", "x"], &["last", "sums"]), vec![branch("body", body)]),
    ];
    let mut g = graph(vec![open("x", &["n", "m"])], nodes, &["last", "sums"]);
    g.initializer = vec![
        i64s("one", &[1], &[1]),
        i64s("end", &[1], &[i64::MAX]),
        i64s("front", &[1], &[0]),
        i64s("two", &[], &[2]),
        i64s("zero", &[], &[0]),
        f32s("hundred", &[], &[100.0]),
    ];
    g
}

#[test]
fn branches_are_nested_in_loops() {
    let (_file, model) = loaded(nested());
    for dims in [[2, 2], [3, 20], [30, 5]] {
        let ones = Tensor::from_f32(&dims, &[1.0; 600][..(dims[0] * dims[1]) as usize]).unwrap();
        let (mut rows, mut sums) = (dims[0], vec![]);
        while sums.last().is_none_or(|sum| *sum < 100.0) {
            rows = if sums.len() % 2 == 0 { rows * 2 } else { rows - 1 };
            sums.push((rows * dims[1]) as f32);
        }
        let found = results(&model, &[("x", ones)]);
        assert_eq!((found[0].0[0], &found[1].1), (rows, &sums), "{dims:?}");
        agrees(&model, &[("x", counted(&dims))]);
    }
}

/// A scan over the rows with a positive sum.
pub(crate) fn over_found_rows(backwards: i64) -> GraphProto {
    let body = vec![
        node("Mul", &["h", "half"], &["less"]),
        node("Add", &["less", "row"], &["next"]),
        node("Tanh", &["next"], &["out"]),
    ];
    let body = graph(vec![untyped("h"), untyped("row")], body, &["next", "out"]);
    let directions = ["scan_input_directions", "scan_output_directions"];
    let directions = directions.map(|name| crate::support::onnx_models::ints(name, &[backwards]));
    let attributes = [vec![int("num_scan_inputs", 1), branch("body", body)], directions.to_vec()].concat();
    let nodes = vec![
        with(node("ReduceSum", &["x", "last_axis"], &["sums"]), vec![int("keepdims", 0)]),
        node("Greater", &["sums", "zero"], &["positive"]),
        with(node("Compress", &["x", "positive"], &["found"]), vec![int("axis", 0)]),
        with(node("ReduceMax", &["x", "front"], &["first"]), vec![int("keepdims", 0)]),
        with(node("Scan", &["first", "found"], &["last", "all"]), attributes),
    ];
    let mut g = graph(vec![open("x", &["n", "m"])], nodes, &["last", "all"]);
    g.initializer = vec![
        i64s("last_axis", &[1], &[1]),
        i64s("front", &[1], &[0]),
        f32s("zero", &[], &[0.0]),
        f32s("half", &[], &[0.5]),
    ];
    g
}

#[test]
fn a_scan_goes_over_rows_that_are_found() {
    for backwards in [0, 1] {
        let (_file, model) = loaded(over_found_rows(backwards));
        for dims in [[40, 3], [25, 5], [60, 4]] {
            let found = results(&model, &[("x", mixed(&dims))]);
            assert!(found[1].0[0] > 1 && found[1].0[0] < dims[0], "{:?}", found[1].0);
            agrees(&model, &[("x", mixed(&dims))]);
        }
    }
}

#[test]
fn a_list_that_grows_without_end_ends_with_the_time() {
    let mut g = growing();
    g.node[2].attribute[0].g.as_mut().unwrap().node[5] = node("Equal", &["length", "length"], &["on"]);
    let limits = Limits { time: Some(Duration::from_millis(500)), ..Limits::default() };
    let (_file, model) = load(g, Options { limits, ..options() });
    let error = model.unwrap().run(&[("x", counted(&[20]))]).unwrap_err().to_string();
    assert!(error.contains("takes longer than the 0.5 s"), "{error}");
}

#[test]
fn what_a_loop_carries_keeps_its_element_type_and_rank() {
    let mut g = growing();
    let body = g.node[2].attribute[0].g.as_mut().unwrap();
    body.node.push(node("Unsqueeze", &["longer", "front"], &["deeper"]));
    body.output[1].name = Some("deeper".into());
    let (_file, model) = load(g, options());
    let error = model.and_then(|model| model.run(&[("x", counted(&[20]))])).unwrap_err().to_string();
    assert!(error.contains("Loop (ai.onnx, opset 18)") && error.contains("element type or rank changes"), "{error}");
}

#[test]
fn a_wrong_value_in_an_iteration_is_an_error() {
    let mut g = growing();
    let body = g.node[2].attribute[0].g.as_mut().unwrap();
    body.node.push(with(node("Cast", &["bound"], &["position"]), vec![int("to", DataType::Int64 as i64)]));
    body.node.push(node("Gather", &["longer", "position"], &["found"]));
    body.output[2].name = Some("found".into());
    let (_file, model) = load(g, options());
    let error = model.unwrap().run(&[("x", Tensor::from_f32(&[2], &[1.0, 20.0]).unwrap())]).unwrap_err().to_string();
    assert!(error.contains("found") && error.contains("20"), "{error}");
}

#[test]
fn inputs_of_other_types_are_errors() {
    let (_file, model) = loaded(growing());
    let whole = Tensor::from_bytes(DType::I64, &[2], vec![0; 16]).unwrap();
    let error = model.run(&[("x", whole)]).unwrap_err().to_string();
    assert!(error.contains("`x`"), "{error}");
}
