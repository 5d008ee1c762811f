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

fn load(graph: GraphProto, options: Options) -> (TempDir, Result<Model, Error>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flow.onnx");
    let proto = ModelProto { opset_import: vec![opset("", 18)], ..model(graph) };
    std::fs::write(&path, encoded(&proto)).unwrap();
    (dir, Compiler::new(options).unwrap().load(path))
}

fn loaded(graph: GraphProto) -> (TempDir, Model) {
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
fn agrees(model: &Model, inputs: &[(&str, Tensor)]) {
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
