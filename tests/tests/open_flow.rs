//! Branches and loops of ONNX models over open extents: imported and compiled once for many shapes, in this process and ahead of time.
//! Results by the reference interpreter, on the model as it is imported for one shape.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use tempfile::TempDir;
use tensorc::aot::AotRequest;
use tensorc::ir::interp::eval_graph;
use tensorc::ir::{DenseType, Rng, TensorData};
use tensorc::runtime::Pool;
use tensorc::{Compiler, DType, Model, Options, Specialize};
use tensorc_frontend::onnx::proto::*;
use tensorc_tests::cache::visible;
use tensorc_tests::compare::{Tolerance, compare, data, tensor};

use crate::aot::ranges::{library, run};
use crate::aot::{exists, request};
use crate::support::backend::options;
use crate::support::onnx_models::{
    branch, encoded, f32s, graph, i64s, int, ints, model, node, opset, untyped, value, with,
};
use crate::support::plan_counter;

/// A model, and the shapes of its inputs by two extents.
struct FlowCase {
    name: &'static str,
    graph: fn() -> GraphProto,
    shapes: fn(u64, u64) -> Vec<Vec<u64>>,
    /// Plans for all of [`EXTENTS`] but the last, and for all: how long sums are added up depends on their lengths.
    plans: [usize; 2],
    /// Plans in an artifact.
    variants: usize,
}

const CASES: &[FlowCase] = &[
    FlowCase {
        name: "a scan over an open axis, of open rows",
        graph: || recurrent(vec![]),
        shapes: |n, m| vec![vec![n, m, 4]],
        plans: [1, 2],
        variants: 1,
    },
    FlowCase {
        name: "a scan from the end, along the second axis",
        graph: || {
            let mut g = recurrent(vec![
                ints("scan_input_axes", &[1]),
                ints("scan_input_directions", &[1]),
                ints("scan_output_axes", &[-1]),
            ]);
            g.input = vec![open("x", &["m", "n", "4"])];
            g
        },
        shapes: |n, m| vec![vec![m, n, 4]],
        plans: [1, 2],
        variants: 1,
    },
    FlowCase { name: "a branch", graph: conditional, shapes: |n, m| vec![vec![n, m]], plans: [3, 5], variants: 4 },
    FlowCase {
        name: "a loop as long as an axis",
        graph: counted,
        shapes: |n, m| vec![vec![n, m]],
        plans: [1, 3],
        variants: 1,
    },
    FlowCase {
        name: "a loop with a computed condition",
        graph: doubling,
        shapes: |n, m| vec![vec![n, m]],
        plans: [1, 2],
        variants: 1,
    },
    FlowCase { name: "a branch in a scan", graph: nested, shapes: |n, m| vec![vec![n, m]], plans: [3, 4], variants: 4 },
];

/// All but the last have code in common with the first; an extent of 1 is another template.
const EXTENTS: [(u64, u64); 7] = [(20, 3), (33, 2), (127, 5), (2, 17), (31, 16), (97, 7), (40, 1)];

fn open(name: &str, dims: &[&str]) -> ValueInfoProto {
    let dim = |d: &&str| {
        let number = d.parse().map(DimensionValue::Value);
        Dimension { value: Some(number.unwrap_or_else(|_| DimensionValue::Param((*d).into()))) }
    };
    let mut info = value(name, DataType::Float, &[]);
    if let Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) }) = &mut info.r#type {
        tensor.shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    }
    info
}

fn spread(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 29) % 17) as f32 / 30.0 - 0.25).collect()
}

/// `h = tanh(h · w + x[t] · u)` over the rows of `x`, which are stacked; `h` begins as the mean of `x` over its length.
fn recurrent(attributes: Vec<AttributeProto>) -> GraphProto {
    let nodes = vec![
        node("MatMul", &["h", "w"], &["p"]),
        node("MatMul", &["row", "u"], &["q"]),
        node("Add", &["p", "q"], &["s"]),
        node("Tanh", &["s"], &["next"]),
        node("Identity", &["next"], &["out"]),
    ];
    let axis = attributes.iter().find(|a| a.name() == "scan_input_axes").map_or(0, |a| a.ints[0]);
    let body = graph(vec![untyped("h"), untyped("row")], nodes, &["next", "out"]);
    let attributes = [vec![int("num_scan_inputs", 1), branch("body", body)], attributes].concat();
    let nodes = vec![
        with(node("ReduceMean", &["x", "axis"], &["mean"]), vec![int("keepdims", 0)]),
        node("MatMul", &["mean", "u"], &["first"]),
        with(node("Scan", &["first", "x"], &["last", "all"]), attributes),
    ];
    let mut g = graph(vec![open("x", &["n", "m", "4"])], nodes, &["last", "all"]);
    g.initializer = vec![i64s("axis", &[1], &[axis]), f32s("u", &[4, 8], &spread(32)), f32s("w", &[8, 8], &spread(64))];
    g
}

/// `y = if sum(x) > 0 { softmax(x) } else { x - mean(x) }`
fn conditional() -> GraphProto {
    let then = graph(vec![], vec![node("Softmax", &["x"], &["s"])], &["s"]);
    let otherwise = vec![with(node("ReduceMean", &["x"], &["mean"]), vec![]), node("Sub", &["x", "mean"], &["d"])];
    let otherwise = graph(vec![], otherwise, &["d"]);
    let nodes = vec![
        with(node("ReduceSum", &["x"], &["sum"]), vec![int("keepdims", 0)]),
        node("Greater", &["sum", "zero"], &["positive"]),
        with(node("If", &["positive"], &["y"]), vec![branch("then_branch", then), branch("else_branch", otherwise)]),
    ];
    let mut g = graph(vec![open("x", &["n", "m"])], nodes, &["y"]);
    g.initializer = vec![f32s("zero", &[], &[0.0])];
    g
}

/// As many times as `x` has rows: `v = v / 2 + x[i]`, and the largest of `v` in a row of its own. `v` is as long as a row.
fn counted() -> GraphProto {
    let body = vec![
        node("Identity", &["condition"], &["on"]),
        with(node("Gather", &["x", "i"], &["row"]), vec![int("axis", 0)]),
        node("Mul", &["v", "half"], &["halved"]),
        node("Add", &["halved", "row"], &["next"]),
        with(node("ReduceMax", &["next"], &["largest"]), vec![int("keepdims", 0)]),
    ];
    let body = graph(["i", "condition", "v"].map(untyped).to_vec(), body, &["on", "next", "largest"]);
    let nodes = vec![
        node("Shape", &["x"], &["extents"]),
        node("Gather", &["extents", "zero"], &["rows"]),
        with(node("ReduceSum", &["x", "axis"], &["first"]), vec![int("keepdims", 0)]),
        with(node("Loop", &["rows", "", "first"], &["last", "all"]), vec![branch("body", body)]),
    ];
    let mut g = graph(vec![open("x", &["n", "m"])], nodes, &["last", "all"]);
    g.initializer = vec![i64s("zero", &[], &[0]), i64s("axis", &[1], &[0]), f32s("half", &[], &[0.5])];
    g
}

/// Doubles `v` while its largest element is less than a computed bound, which is beyond that of `x`.
fn doubling() -> GraphProto {
    let body = vec![
        node("Add", &["v", "v"], &["next"]),
        with(node("ReduceMax", &["next"], &["largest"]), vec![int("keepdims", 0)]),
        node("Less", &["largest", "bound"], &["on"]),
    ];
    let body = graph(["i", "condition", "v"].map(untyped).to_vec(), body, &["on", "next"]);
    let nodes = vec![
        with(node("ReduceMax", &["x"], &["first"]), vec![int("keepdims", 0)]),
        node("Mul", &["first", "ten"], &["bound"]),
        node("Less", &["first", "bound"], &["begins"]),
        with(node("Loop", &["", "begins", "x"], &["y"]), vec![branch("body", body)]),
    ];
    let mut g = graph(vec![open("x", &["n", "m"])], nodes, &["y"]);
    g.initializer = vec![f32s("ten", &[], &[10.0])];
    g
}

/// Sums of the rows of `x`, of which those with a negative sum are exchanged for their squares.
fn nested() -> GraphProto {
    let then = graph(vec![], vec![node("Mul", &["row", "row"], &["square"])], &["square"]);
    let otherwise = graph(vec![], vec![node("Identity", &["row"], &["same"])], &["same"]);
    let body = vec![
        with(node("ReduceSum", &["row"], &["sum"]), vec![int("keepdims", 0)]),
        node("Less", &["sum", "zero"], &["negative"]),
        with(node("If", &["negative"], &["v"]), vec![branch("then_branch", then), branch("else_branch", otherwise)]),
        node("Add", &["total", "v"], &["next"]),
        node("Identity", &["v"], &["out"]),
    ];
    let body = graph(vec![untyped("total"), untyped("row")], body, &["next", "out"]);
    let nodes = vec![
        with(node("ReduceMax", &["x", "axis"], &["first"]), vec![int("keepdims", 0)]),
        with(node("Scan", &["first", "x"], &["last", "all"]), vec![int("num_scan_inputs", 1), branch("body", body)]),
    ];
    let mut g = graph(vec![open("x", &["n", "m"])], nodes, &["last", "all"]);
    g.initializer = vec![i64s("axis", &[1], &[0]), f32s("zero", &[], &[0.0])];
    g
}

fn loaded(case: &FlowCase, options: Options) -> (TempDir, Model) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flow.onnx");
    let proto = ModelProto { opset_import: vec![opset("", 18)], ..model((case.graph)()) };
    std::fs::write(&path, encoded(&proto)).unwrap();
    let compiler = Compiler::new(Options { threads: Some(2), poison: true, ..options }).unwrap();
    (dir, compiler.load(path).unwrap_or_else(|e| panic!("{}: {e}", case.name)))
}

fn inputs(case: &FlowCase, (n, m): (u64, u64)) -> Vec<TensorData> {
    let mut rng = Rng::new(n * 1000 + m);
    let types = (case.shapes)(n, m).into_iter().map(|dims| DenseType::new(DType::F32, dims));
    types.map(|ty| TensorData::from_fn(ty, |_| rng.element(DType::F32))).collect()
}

fn results(model: &Model, given: &[TensorData]) -> Vec<TensorData> {
    let names = model.inputs().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let named: Vec<_> = names.iter().map(String::as_str).zip(given.iter().map(tensor)).collect();
    model.run(&named).unwrap_or_else(|e| panic!("{e}")).iter().map(|(_, t)| data(t)).collect()
}

plan_counter!(PLANNED, count);

#[test]
fn bodies_are_compiled_once_for_many_shapes() {
    for case in CASES {
        let (_file, model) = loaded(case, Options { progress: Some(count), ..options() });
        let (_again, specialised) = loaded(case, Options { specialize: Specialize::Always, ..options() });
        assert!(model.has_branches(), "{}", case.name);
        let (before, mut plans) = (PLANNED.load(Ordering::Relaxed), vec![]);
        for extents in EXTENTS {
            let given = inputs(case, extents);
            let found = results(&model, &given);
            plans.push(PLANNED.load(Ordering::Relaxed) - before);
            let types: Vec<DenseType> = given.iter().map(|data| data.ty.clone()).collect();
            let graph = model.graph_for(&types).unwrap();
            let expected = eval_graph(&graph, model.compiler().registry(), &given).unwrap();
            for (j, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let tolerance = Tolerance { absolute: 2e-5, relative: 2e-5 };
                compare(found, expected, tolerance)
                    .unwrap_or_else(|e| panic!("{}, {extents:?}, output {j}: {e}", case.name));
            }
            for (found, expected) in found.iter().zip(results(&specialised, &given)) {
                assert!(found.bytes() == expected.bytes(), "{}, {extents:?}: other bits", case.name);
            }
        }
        assert_eq!(plans[EXTENTS.len() - 2..], case.plans, "{}", case.name);
    }
}

#[test]
fn artifacts_hold_them_for_ranges() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let pool = Pool::new(2).unwrap();
    for case in CASES {
        let (_file, model) = loaded(case, options());
        let ranges = BTreeMap::from([("n".into(), (2, 140).into()), ("m".into(), (2, 20).into())]);
        let (_dir, artifact, made) = library(&model, AotRequest { ranges, ..request("m", "native") });
        assert_eq!(made.manifest.variants.len(), case.variants, "{}", case.name);
        let mut context = artifact.context(&pool).unwrap();
        for extents in EXTENTS.into_iter().filter(|(_, m)| *m > 1) {
            let given = inputs(case, extents);
            let found = run(&mut context, &given).unwrap_or_else(|e| panic!("{} {extents:?}: {e}", case.name));
            for ((_, dims, bytes), expected) in found.iter().zip(results(&model, &given)) {
                assert_eq!(dims, expected.dims(), "{} {extents:?}", case.name);
                assert!(bytes[..] == expected.bytes()[..], "{} {extents:?}: other bits", case.name);
            }
        }
    }
}
