//! Branches and loops that computed values decide: bodies compiled once, in this process and ahead of time. Results by
//! hand, and by the reference interpreter.

use std::time::Duration;

use tempfile::TempDir;
use tensorc::abi::{FlowKind, Plan, StepOp};
use tensorc::aot::link::{LinkOutput, Tools, link};
use tensorc::aot::{self, AotRequest};
use tensorc::ir::interp::eval_graph;
use tensorc::ir::{DenseType, TensorData};
use tensorc::runtime::artifact::{Artifact, LoadOptions};
use tensorc::runtime::{Pool, TensorMut, TensorRef};
use tensorc::{Compiler, DType, Error, Limits, Model, Options, Tensor};
use tensorc_frontend::onnx::proto::*;
use tensorc_tests::cache::visible;

use crate::aot::{exists, request};
use crate::support::backend::options;
use crate::support::onnx_models::{
    branch, encoded, f32s, graph, i64s, int, ints, model, node, opset, untyped, value, with,
};

pub fn load(graph: GraphProto, options: Options) -> (TempDir, Result<Model, Error>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flow.onnx");
    let proto = ModelProto { opset_import: vec![opset("", 18)], ..model(graph) };
    std::fs::write(&path, encoded(&proto)).unwrap();
    (dir, Compiler::new(options).unwrap().load(path))
}

pub fn loaded(graph: GraphProto) -> (TempDir, Model) {
    let (dir, model) = load(graph, Options { poison: true, ..options() });
    (dir, model.unwrap_or_else(|e| panic!("{e}")))
}

fn x(dims: &[u64]) -> Tensor {
    let values: Vec<f32> = (0..dims.iter().product::<u64>()).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    Tensor::from_f32(dims, &values).unwrap()
}

fn floats(model: &Model, inputs: &[(&str, Tensor)]) -> Vec<Vec<f32>> {
    let outputs = model.run(inputs).unwrap_or_else(|e| panic!("{e}"));
    outputs.iter().map(|(_, t)| t.to_f32().unwrap()).collect()
}

/// Results of a model are the bits of the reference interpreter, up to the last ones of functions and sums.
pub fn agrees(model: &Model, inputs: &[(&str, Tensor)]) {
    let data = inputs
        .iter()
        .map(|(_, t)| TensorData::new(DenseType::new(t.dtype(), t.dims()), t.bytes().to_vec().into()).unwrap());
    let types: Vec<DenseType> = inputs.iter().map(|(_, t)| DenseType::new(t.dtype(), t.dims())).collect();
    let graph = model.graph_for(&types).unwrap();
    let expected = eval_graph(&graph, model.compiler().registry(), &data.collect::<Vec<_>>()).unwrap();
    for ((name, found), expected) in model.run(inputs).unwrap().iter().zip(expected) {
        assert_eq!(found.dims(), expected.ty.dims, "{name}");
        for (a, b) in found.to_f32().unwrap().iter().zip(expected.iter().map(|b| b.as_f64())) {
            assert!((f64::from(*a) - b).abs() <= 1e-5, "{name}: {a} found, {b} expected");
        }
    }
}

fn plan(model: &Model, inputs: &[(&str, Tensor)]) -> Plan {
    let given: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
    model.compile_for(&given).unwrap().plan().clone()
}

fn flows(plan: &Plan) -> Vec<&FlowKind> {
    plan.all_steps().into_iter().filter_map(|step| step.op.flow()).map(|flow| &flow.kind).collect()
}

/// `y = if sum(x) > 0 { relu(x · w) } else { -x, twice }`
fn conditional() -> GraphProto {
    let then = graph(vec![], vec![node("MatMul", &["x", "w"], &["p"]), node("Relu", &["p"], &["r"])], &["r"]);
    let otherwise = graph(vec![], vec![node("Neg", &["x"], &["n"]), node("Add", &["n", "n"], &["m"])], &["m"]);
    let nodes = vec![
        with(node("ReduceSum", &["x"], &["sum"]), vec![int("keepdims", 0)]),
        node("Greater", &["sum", "zero"], &["positive"]),
        with(node("If", &["positive"], &["y"]), vec![branch("then_branch", then), branch("else_branch", otherwise)]),
    ];
    let mut g = graph(vec![value("x", DataType::Float, &[6, 6])], nodes, &["y"]);
    let weights: Vec<f32> = (0..36).map(|i| if i % 7 == 0 { 2.0 } else { 0.0 }).collect();
    g.initializer = vec![f32s("zero", &[], &[0.0]), f32s("w", &[6, 6], &weights)];
    g
}

fn filled(by: f32) -> Tensor {
    Tensor::from_f32(&[6, 6], &[by; 36]).unwrap()
}

#[test]
fn one_branch_runs() {
    let (_file, model) = loaded(conditional());
    assert_eq!(floats(&model, &[("x", filled(1.5))]), [[3.0; 36]]);
    assert_eq!(floats(&model, &[("x", filled(-1.0))]), [[2.0; 36]]);
    let plan = plan(&model, &[("x", filled(0.0))]);
    assert_eq!(flows(&plan), [&FlowKind::If]);
    let products = |plan: &Plan| plan.steps.iter().filter(|s| matches!(s.op, StepOp::Gemm { .. })).count();
    let flow = plan.steps.iter().find_map(|s| s.op.flow()).unwrap();
    assert_eq!(flow.bodies.iter().map(products).collect::<Vec<_>>(), [1, 0]);
    assert!(!plan.weights.is_empty(), "the weight of the branch is packed");
    agrees(&model, &[("x", x(&[6, 6]))]);
}

/// `h = tanh(h · w + x[t])` over the rows of `x`, which are stacked.
fn recurrent(steps: i64, attributes: Vec<AttributeProto>) -> GraphProto {
    let nodes = vec![
        node("MatMul", &["h", "w"], &["p"]),
        node("Add", &["p", "row"], &["s"]),
        node("Tanh", &["s"], &["next"]),
        node("Identity", &["next"], &["out"]),
    ];
    let body = graph(vec![untyped("h"), untyped("row")], nodes, &["next", "out"]);
    let attributes = [vec![int("num_scan_inputs", 1), branch("body", body)], attributes].concat();
    let scan = with(node("Scan", &["first", "x"], &["last", "all"]), attributes);
    let mut g = graph(vec![value("x", DataType::Float, &[steps, 3, 8])], vec![scan], &["last", "all"]);
    let weights: Vec<f32> = (0..64).map(|i| ((i * 29) % 17) as f32 / 30.0 - 0.25).collect();
    g.initializer = vec![f32s("first", &[3, 8], &[0.1; 24]), f32s("w", &[8, 8], &weights)];
    g
}

#[test]
fn a_long_scan_is_one_step() {
    for attributes in [vec![], vec![ints("scan_input_directions", &[1]), ints("scan_output_directions", &[1])]] {
        let (_file, model) = loaded(recurrent(300, attributes));
        let inputs = [("x", x(&[300, 3, 8]))];
        let plan = plan(&model, &inputs);
        assert!(matches!(flows(&plan)[..], [FlowKind::Loop(l)] if l.trips == Some(300) && !l.conditional));
        assert!(plan.all_steps().len() < 8, "{} steps", plan.all_steps().len());
        assert!(plan.run_bytes(1) < 1 << 12, "{} bytes", plan.run_bytes(1));
        agrees(&model, &inputs);
    }
}

#[test]
fn a_long_scan_goes_along_other_axes() {
    let attributes = vec![ints("scan_input_axes", &[1]), ints("scan_output_axes", &[-1])];
    let mut g = recurrent(3, attributes);
    g.input = vec![value("x", DataType::Float, &[3, 200, 8])];
    let (_file, model) = loaded(g);
    let inputs = [("x", x(&[3, 200, 8]))];
    let all = &model.run(&inputs).unwrap()[1].1;
    assert_eq!(all.dims(), [3, 8, 200]);
    agrees(&model, &inputs);
}

/// Doubles `v` while its largest element is less than `bound`, which is computed, at most `most` times.
fn doubling(most: &str) -> GraphProto {
    let body = vec![
        node("Add", &["v", "v"], &["next"]),
        with(node("ReduceMax", &["next"], &["largest"]), vec![int("keepdims", 0)]),
        node("Less", &["largest", "bound"], &["on"]),
    ];
    let body = graph(["i", "condition", "v"].map(untyped).to_vec(), body, &["on", "next"]);
    let nodes = vec![
        with(node("ReduceSum", &["x"], &["bound"]), vec![int("keepdims", 0)]),
        with(node("ReduceMax", &["x"], &["first"]), vec![int("keepdims", 0)]),
        node("Less", &["first", "bound"], &["begins"]),
        with(node("Loop", &[most, "begins", "x"], &["y"]), vec![branch("body", body)]),
    ];
    let mut g = graph(vec![value("x", DataType::Float, &[20]), value("count", DataType::Int64, &[1])], nodes, &["y"]);
    g.initializer = vec![i64s("four", &[], &[4])];
    g
}

fn count(n: i64) -> Tensor {
    Tensor::from_bytes(DType::I64, &[1], n.to_le_bytes().to_vec()).unwrap()
}

#[test]
fn a_computed_condition_ends_a_loop() {
    // Of twenty ones the sum is 20: 1, 2, 4, 8, 16, 32.
    for (most, given, expected) in [
        ("", 0, 32.0),
        ("four", 0, 16.0),
        ("count", 3, 8.0),
        ("count", 100, 32.0),
        ("count", 0, 1.0),
        ("count", -2, 1.0),
    ] {
        let (_file, model) = loaded(doubling(most));
        let ones = Tensor::from_f32(&[20], &[1.0; 20]).unwrap();
        assert_eq!(floats(&model, &[("x", ones), ("count", count(given))]), [[expected; 20]], "{most} {given}");
        let none = Tensor::from_f32(&[20], &[-1.0; 20]).unwrap();
        assert_eq!(floats(&model, &[("x", none), ("count", count(given))]), [[-1.0; 20]], "{most} {given}");
    }
}

/// Rows `i · x` while their largest element is less than a computed bound, at most `most` of them.
fn rows_until(most: i64) -> GraphProto {
    let body = vec![
        with(node("Cast", &["i"], &["n"]), vec![int("to", DataType::Float as i64)]),
        node("Mul", &["n", "x"], &["row"]),
        with(node("ReduceMax", &["row"], &["largest"]), vec![int("keepdims", 0)]),
        node("Less", &["largest", "bound"], &["on"]),
        node("Add", &["sum", "row"], &["next"]),
    ];
    let body = graph(["i", "condition", "sum"].map(untyped).to_vec(), body, &["on", "next", "row"]);
    let nodes = vec![
        with(node("ReduceSum", &["x"], &["bound"]), vec![int("keepdims", 0)]),
        node("Less", &["zero", "bound"], &["begins"]),
        with(node("Loop", &["most", "begins", "x"], &["sum", "rows"]), vec![branch("body", body)]),
        with(node("ReduceMax", &["rows", "front"], &["y"]), vec![int("keepdims", 0)]),
    ];
    let mut g = graph(vec![value("x", DataType::Float, &[4])], nodes, &["sum", "rows", "y"]);
    g.initializer = vec![i64s("most", &[], &[most]), f32s("zero", &[], &[0.0]), i64s("front", &[1], &[0])];
    g
}

#[test]
fn a_loop_that_a_condition_ends_collects_as_many_rows_as_there_are() {
    // Of ones the bound is 4: rows 0, 1, 2, 3, 4.
    for (most, rows) in [(1000, 5), (3, 3)] {
        let (_file, model) = loaded(rows_until(most));
        for _ in 0..2 {
            let outputs =
                model.run(&[("x", Tensor::from_f32(&[4], &[1.0; 4]).unwrap())]).unwrap_or_else(|e| panic!("{e}"));
            let expected: Vec<f32> = (0..rows).flat_map(|i| [i as f32; 4]).collect();
            assert_eq!((outputs[1].1.dims(), outputs[1].1.to_f32().unwrap()), (&[rows as u64, 4][..], expected));
            assert_eq!(outputs[2].1.to_f32().unwrap(), [rows as f32 - 1.0; 4]);
            let sum: i32 = (0..rows).sum();
            assert_eq!(outputs[0].1.to_f32().unwrap(), [1.0 + sum as f32; 4]);
        }
    }
}

#[test]
fn a_loop_without_end_ends_with_the_time() {
    let mut g = doubling("");
    g.node[3].attribute[0].g.as_mut().unwrap().node[2] = node("Equal", &["largest", "largest"], &["on"]);
    let limits = Limits { time: Some(Duration::from_millis(300)), ..Limits::default() };
    let (_file, model) = load(g, Options { limits, ..options() });
    let ones = Tensor::from_f32(&[20], &[0.0; 20].map(|_: f32| 1e-3)).unwrap();
    let error = model.unwrap().run(&[("x", ones), ("count", count(0))]).unwrap_err().to_string();
    assert!(error.contains("takes longer than the 0.3 s"), "{error}");
}

/// `sum(table[at[i]])` over the elements of `at`.
fn lookups() -> GraphProto {
    let body = vec![node("Gather", &["table", "one"], &["found"]), node("Add", &["sum", "found"], &["next"])];
    let body = graph(vec![untyped("sum"), untyped("one")], body, &["next"]);
    let scan = with(node("Scan", &["zero", "at"], &["y"]), vec![int("num_scan_inputs", 1), branch("body", body)]);
    let inputs = vec![value("table", DataType::Float, &[5]), value("at", DataType::Int64, &[400])];
    let mut g = graph(inputs, vec![scan], &["y"]);
    g.initializer = vec![f32s("zero", &[], &[0.0])];
    g
}

#[test]
fn a_wrong_value_in_any_iteration_is_an_error_that_names_it() {
    let (_file, model) = loaded(lookups());
    let run = |wrong: Option<(usize, i64)>| {
        let mut at: Vec<i64> = (0..400).map(|i| i % 5).collect();
        wrong.into_iter().for_each(|(i, n)| at[i] = n);
        let bytes: Vec<u8> = at.iter().flat_map(|n| n.to_le_bytes()).collect();
        let at = Tensor::from_bytes(DType::I64, &[400], bytes).unwrap();
        model.run(&[("table", Tensor::from_f32(&[5], &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap()), ("at", at)])
    };
    assert_eq!(run(None).unwrap()[0].1.to_f32().unwrap(), [1200.0]);
    for i in [0, 200, 399] {
        let error = run(Some((i, 17))).unwrap_err().to_string();
        assert!(error.contains("17") && error.contains("found"), "{error}");
    }
}

/// The sum of `j - i` over `i < 60` and `j < 200`, times x.
fn nested() -> GraphProto {
    let inner = vec![
        node("Sub", &["j", "i"], &["difference"]),
        with(node("Cast", &["difference"], &["weight"]), vec![int("to", DataType::Float as i64)]),
        node("Mul", &["weight", "x"], &["part"]),
        node("Add", &["a", "part"], &["b"]),
        node("Identity", &["inner_condition"], &["inner_on"]),
    ];
    let inner = graph(["j", "inner_condition", "a"].map(untyped).to_vec(), inner, &["inner_on", "b"]);
    let outer = vec![
        with(node("Loop", &["many", "", "c"], &["d"]), vec![branch("body", inner)]),
        node("Identity", &["condition"], &["on"]),
    ];
    let outer = graph(["i", "condition", "c"].map(untyped).to_vec(), outer, &["on", "d"]);
    let nodes = vec![
        node("Sub", &["x", "x"], &["start"]),
        with(node("Loop", &["some", "", "start"], &["y"]), vec![branch("body", outer)]),
    ];
    let mut g = graph(vec![value("x", DataType::Float, &[32])], nodes, &["y"]);
    g.initializer = vec![i64s("some", &[], &[60]), i64s("many", &[], &[200])];
    g
}

#[test]
fn loops_are_nested() {
    let (_file, model) = loaded(nested());
    let ones = Tensor::from_f32(&[32], &[1.0; 32]).unwrap();
    let plan = plan(&model, &[("x", ones.clone())]);
    assert_eq!(flows(&plan).len(), 2);
    // 60 · (0 + … + 199) - 200 · (0 + … + 59)
    assert_eq!(floats(&model, &[("x", ones)]), [[60.0 * 19900.0 - 200.0 * 1770.0; 32]]);
}

#[test]
fn every_number_of_threads_gives_the_same_bits() {
    let bits = |threads: usize| {
        let (_file, model) = load(recurrent(300, vec![]), Options { threads: Some(threads), ..options() });
        model
            .unwrap()
            .run(&[("x", x(&[300, 3, 8]))])
            .unwrap()
            .into_iter()
            .map(|(_, t)| t.bytes().to_vec())
            .collect::<Vec<_>>()
    };
    let one = bits(1);
    assert!([2, 3].into_iter().all(|threads| bits(threads) == one));
}

/// Results of a model compiled ahead of time, which runs on so many threads.
fn ahead(model: &Model, name: &str, threads: usize, inputs: &[(&str, Tensor)]) -> Option<Vec<Vec<u8>>> {
    if !exists("cc") {
        visible("skipped: there is no C compiler `cc`");
        return None;
    }
    let artifact = aot::compile(model, &AotRequest { embed_weights: true, ..request(name, "native") }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flow.so");
    let (target, tools) = ("native".parse().unwrap(), Tools::default());
    link(LinkOutput::SharedLibrary, name, &artifact.object, target, &tools, &path).unwrap();
    let artifact = Artifact::load(&path, &LoadOptions::default()).unwrap();
    let pool = Pool::new(threads).unwrap();
    let mut context = artifact.context(&pool).unwrap();
    let shapes: Vec<(DType, &[u64])> = inputs.iter().map(|(_, t)| (t.dtype(), t.dims())).collect();
    let described = context.outputs(&shapes).unwrap();
    let size = |(t, d): &(DType, Vec<u64>)| vec![0xff; d.iter().product::<u64>() as usize * t.size()];
    let mut data: Vec<Vec<u8>> = described.iter().map(size).collect();
    for _ in 0..2 {
        let mut outputs: Vec<TensorMut<'_>> =
            described.iter().zip(&mut data).map(|((t, dims), data)| TensorMut::new(*t, dims, data)).collect();
        let given: Vec<TensorRef<'_>> =
            inputs.iter().map(|(_, t)| TensorRef::new(t.dtype(), t.dims(), t.bytes())).collect();
        context.run(&given, &mut outputs).unwrap();
    }
    Some(data)
}

#[test]
fn artifacts_have_branches_and_loops_with_the_bits_of_the_model() {
    let ones = || Tensor::from_f32(&[20], &[1.0; 20]).unwrap();
    type Case<'c> = (&'c str, GraphProto, Vec<(&'c str, Tensor)>);
    let cases: [Case<'_>; 5] = [
        ("taken", conditional(), vec![("x", filled(1.5))]),
        ("otherwise", conditional(), vec![("x", filled(-1.0))]),
        ("recurrent", recurrent(300, vec![]), vec![("x", x(&[300, 3, 8]))]),
        ("doubling", doubling("count"), vec![("x", ones()), ("count", count(3))]),
        ("nested", nested(), vec![("x", x(&[32]))]),
    ];
    for (name, graph, inputs) in cases {
        let (_file, model) = loaded(graph);
        let expected: Vec<Vec<u8>> = model.run(&inputs).unwrap().iter().map(|(_, t)| t.bytes().to_vec()).collect();
        for threads in [1, 2] {
            let Some(found) = ahead(&model, name, threads, &inputs) else { return };
            assert!(found == expected, "{name}, {threads} threads");
        }
    }
}

/// Of `x`, whose shape says what `t` is, under a computed condition: its rows, or the rows of its double.
fn reshaped() -> GraphProto {
    let rows = |of: &str, to: &str| graph(vec![], vec![node("Reshape", &[of, "shape"], &[to])], &[to]);
    let nodes = vec![
        node("Shape", &["x"], &["extents"]),
        node("Gather", &["extents", "first"], &["rows"]),
        node("Unsqueeze", &["rows", "front"], &["list"]),
        with(node("Concat", &["list", "rest"], &["shape"]), vec![int("axis", 0)]),
        node("Add", &["x", "x"], &["twice"]),
        with(node("ReduceSum", &["x"], &["sum"]), vec![int("keepdims", 0)]),
        node("Greater", &["sum", "zero"], &["positive"]),
        with(
            node("If", &["positive"], &["y"]),
            vec![branch("then_branch", rows("x", "a")), branch("else_branch", rows("twice", "b"))],
        ),
    ];
    let mut g = graph(vec![value("x", DataType::Float, &[2, 3, 2])], nodes, &["y"]);
    g.initializer =
        vec![f32s("zero", &[], &[0.0]), i64s("first", &[], &[0]), i64s("front", &[1], &[0]), i64s("rest", &[1], &[-1])];
    g
}

#[test]
fn a_body_knows_shapes_of_values_around_it() {
    let (_file, model) = loaded(reshaped());
    for (by, expected) in [(1.0, 1.0), (-1.0, -2.0)] {
        let outputs = model.run(&[("x", Tensor::from_f32(&[2, 3, 2], &[by; 12]).unwrap())]).unwrap();
        assert_eq!((outputs[0].1.dims(), outputs[0].1.to_f32().unwrap()), (&[2, 6][..], vec![expected; 12]));
    }
}

/// The sum of `table[i]` for `i < 300`, by slices of which the number of the iteration decides the place.
#[test]
fn a_loop_whose_shapes_depend_on_its_number_is_written_out() {
    let body = vec![
        node("Unsqueeze", &["i", "front"], &["start"]),
        node("Add", &["start", "one"], &["end"]),
        node("Slice", &["table", "start", "end"], &["part"]),
        node("Add", &["sum", "part"], &["next"]),
        node("Identity", &["condition"], &["on"]),
    ];
    let body = graph(["i", "condition", "sum"].map(untyped).to_vec(), body, &["on", "next"]);
    let nodes = vec![with(node("Loop", &["count", "", "zero"], &["y"]), vec![branch("body", body)])];
    let mut g = graph(vec![value("table", DataType::Float, &[300])], nodes, &["y"]);
    g.initializer = vec![
        f32s("zero", &[1], &[0.0]),
        i64s("count", &[], &[300]),
        i64s("front", &[1], &[0]),
        i64s("one", &[1], &[1]),
    ];
    let (_file, model) = loaded(g);
    assert_eq!(floats(&model, &[("table", Tensor::from_f32(&[300], &[0.5; 300]).unwrap())]), [[150.0]]);
}

/// Of a sequence of tensors with different shapes, element by element.
#[test]
fn a_body_that_copies_alone_can_import_is_copied() {
    let body = vec![
        node("SequenceAt", &["parts", "i"], &["part"]),
        with(node("ReduceSum", &["part"], &["total"]), vec![int("keepdims", 0)]),
        node("Add", &["sum", "total"], &["next"]),
        node("Identity", &["condition"], &["on"]),
    ];
    let body = graph(["i", "condition", "sum"].map(untyped).to_vec(), body, &["on", "next"]);
    let nodes = vec![
        node("SequenceConstruct", &["x", "y", "x"], &["parts"]),
        with(node("Loop", &["three", "", "zero"], &["z"]), vec![branch("body", body)]),
    ];
    let inputs = vec![value("x", DataType::Float, &[2]), value("y", DataType::Float, &[3])];
    let mut g = graph(inputs, nodes, &["z"]);
    g.initializer = vec![f32s("zero", &[], &[0.0]), i64s("three", &[], &[3])];
    let (_file, model) = loaded(g);
    let ones = |n: u64| Tensor::from_f32(&[n], &vec![1.0; n as usize]).unwrap();
    assert_eq!(floats(&model, &[("x", ones(2)), ("y", ones(3))]), [[7.0]]);
}

/// `table[at]` under a condition, 0 otherwise.
#[test]
fn a_wrong_value_is_an_error_in_the_branch_that_is_taken() {
    let then = graph(vec![], vec![node("Gather", &["table", "at"], &["found"])], &["found"]);
    let otherwise = graph(vec![], vec![node("Identity", &["zero"], &["none"])], &["none"]);
    let nodes = vec![
        with(node("ReduceMax", &["table"], &["largest"]), vec![int("keepdims", 0)]),
        node("Greater", &["largest", "zero"], &["positive"]),
        with(node("If", &["positive"], &["y"]), vec![branch("then_branch", then), branch("else_branch", otherwise)]),
    ];
    let inputs = vec![value("table", DataType::Float, &[40]), value("at", DataType::Int64, &[])];
    let mut g = graph(inputs, nodes, &["y"]);
    g.initializer = vec![f32s("zero", &[], &[0.0])];
    let (_file, model) = loaded(g);
    let run = |by: f32, at: i64| {
        let at = Tensor::from_bytes(DType::I64, &[], at.to_le_bytes().to_vec()).unwrap();
        model.run(&[("table", Tensor::from_f32(&[40], &[by; 40]).unwrap()), ("at", at)])
    };
    assert_eq!(run(2.0, 39).unwrap()[0].1.to_f32().unwrap(), [2.0]);
    assert_eq!(run(-2.0, 1000).unwrap()[0].1.to_f32().unwrap(), [0.0]);
    let error = run(2.0, 1000).unwrap_err().to_string();
    assert!(error.contains("1000") && error.contains("found"), "{error}");
}

#[test]
fn weights_of_bodies_count_as_memory() {
    let limits = Limits { memory: Some(700 << 10), ..Limits::default() };
    let mut g = recurrent(300, vec![]);
    let size = 256;
    g.input = vec![value("x", DataType::Float, &[300, 1, size])];
    let (size, weights) = (size as usize, vec![0.0; (size * size) as usize]);
    g.initializer = vec![f32s("first", &[1, 256], &vec![0.0; size]), f32s("w", &[256, 256], &weights)];
    let (_file, model) = load(g, Options { limits, ..options() });
    let error = model.and_then(|m| m.run(&[("x", x(&[300, 1, 256]))])).unwrap_err().to_string();
    assert!(error.contains("a run takes"), "{error}");
}

#[test]
fn on_a_gpu_branches_are_selected_and_loops_written_out() {
    let gpu = || Options { gpus: vec![tensorc_simulator::interpreted(crate::support::backend::GPU)], ..options() };
    for (graph, inputs) in [
        (conditional(), [("x", filled(1.5))]),
        (conditional(), [("x", filled(-1.0))]),
        (recurrent(90, vec![]), [("x", x(&[90, 3, 8]))]),
    ] {
        let (_file, here) = loaded(graph.clone());
        let (_file, there) = load(graph, gpu());
        for (expected, found) in floats(&here, &inputs).iter().zip(floats(&there.unwrap(), &inputs)) {
            assert!(
                expected.iter().zip(&found).all(|(a, b)| (a - b).abs() <= 1e-5),
                "{expected:?}, {found:?} on a GPU"
            );
        }
    }
}

/// Constants of two loops, one of which is added behind both.
#[test]
fn constants_of_several_loops_move_into_bodies() {
    let text = "graph @main(%x: f32[4]) {
      %a = const f32[4] [1.0, 2.0, 3.0, 4.0]
      %r = prim.loop(%x, %a) trips 200 carried 1 {
        body(%i: i64[], %h: f32[4], %k: f32[4]) {
          %s = add(%h, %k)
          return
          update %h = %s
        }
      } : f32[4]
      %b = const f32[4] [0.5, 0.5, 0.5, 0.5]
      %q = prim.loop(%r, %b) trips 2 carried 1 {
        body(%i: i64[], %h: f32[4], %k: f32[4]) {
          %s = mul(%h, %k)
          return
          update %h = %s
        }
      } : f32[4]
      return %q
    }";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loops.tc");
    std::fs::write(&path, text).unwrap();
    let model = Compiler::new(Options { poison: true, ..options() }).unwrap().load(path).unwrap();
    let found = floats(&model, &[("x", Tensor::from_f32(&[4], &[0.0; 4]).unwrap())]);
    assert_eq!(found, [[50.0, 100.0, 150.0, 200.0]]);
}
