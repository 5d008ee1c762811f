//! Equal nodes are computed once: how many are saved, and that nothing else changes.

use tensorc::ir::graph::{Graph, NodeKind};
use tensorc::ir::interp::eval_graph;
use tensorc::ir::{DenseType, TensorData};
use tensorc::passes::decompose::Decompose;
use tensorc::passes::infer::{InferTypes, bind};
use tensorc::passes::simplify::merge_equal;
use tensorc::passes::{Pass, PassCx};
use tensorc::symbol::Lowering;
use tensorc_nd::executor::{Executor, GradReq};

use super::every_operator::function::{Function, cast, evaluate, tensor};
use super::*;

/// The graph of a symbol whose inputs have one type.
fn graph(rt: &Runtime, net: &Symbol, ty: &DenseType) -> Graph {
    let lowering = Lowering { random: tensorc::symbol::Random::Input, ..Lowering::default() };
    let made = net.to_graph(rt.compiler().registry(), &Lowering { training: true, ..lowering }).unwrap();
    let mut graph = made.graph;
    let keys = (made.random_nodes > 0).then(|| DenseType::new(DType::U32, [made.random_nodes as u64, 2]));
    let types: Vec<DenseType> = made.arguments.iter().map(|_| ty.clone()).chain(keys).collect();
    bind(&mut graph, &types).unwrap();
    InferTypes.run(&mut graph, &mut PassCx::new(rt.compiler().registry())).unwrap();
    graph
}

/// Primitives, and copies that outputs with one value need.
fn work(graph: &Graph) -> usize {
    let prims = graph.node_ids().into_iter().filter(|n| matches!(graph.node(*n).kind, NodeKind::Prim(_))).count();
    let outputs = graph.outputs();
    let copies = (0..outputs.len()).filter(|i| outputs[..*i].iter().any(|(_, v)| *v == outputs[*i].1)).count();
    prims + copies
}

fn saved(rt: &Runtime, net: &Symbol) -> usize {
    let mut graph = graph(rt, net, &DenseType::new(DType::F32, [2, 3]));
    Decompose.run(&mut graph, &mut PassCx::new(rt.compiler().registry())).unwrap();
    let before = work(&graph);
    while merge_equal(&mut graph) {}
    before - work(&graph)
}

/// Outputs and gradients are those of the graph as it was written, under both requests.
fn same_results(rt: &Runtime, net: &Symbol, dtype: DType, tolerance: f64) {
    let ty = DenseType::new(dtype, [2, 3]);
    let names = net.list_arguments();
    let inputs: Vec<TensorData> = (0..names.len()).map(|i| tensor(&ty, (-2.0, 2.0), 40 + i as u64)).collect();
    let exact = graph(rt, net, &DenseType::new(DType::F64, [2, 3]));
    let function = Function { by: (0..names.len()).collect(), heads: exact.outputs().len(), graph: exact };
    let registry = rt.compiler().registry();
    let wide: Vec<TensorData> = inputs.iter().map(|x| cast(x, DType::F64)).collect();
    let outputs = eval_graph(&function.graph, registry, &wide).unwrap();
    let gradients = evaluate(&function.gradient(registry).unwrap().graph, registry, &wide).unwrap();
    let array =
        |data: &TensorData| rt.from_bytes(rt.options().device, data.dtype(), data.dims(), data.bytes()).unwrap();
    let near = |found: &NDArray, expected: &[f64]| {
        let found: Vec<f64> = found.cast(DType::F64).unwrap().to_vec().unwrap();
        assert!(found.iter().zip(expected).all(|(f, e)| (f - e).abs() <= tolerance * e.abs().max(1.0)), "{found:?}");
    };
    for request in [GradReq::Write, GradReq::Add] {
        let mut binder = Executor::simple_bind(rt, net).grad_req(request);
        for (name, data) in names.iter().zip(&inputs) {
            binder = binder.array(name, &array(data));
        }
        let mut executor = binder.build().unwrap();
        executor.gradients().for_each(|(_, g)| g.fill(1.0).unwrap());
        executor.forward(true).unwrap();
        for (found, expected) in executor.outputs().iter().zip(&outputs) {
            near(found, &expected.to_f64s());
        }
        let heads: Vec<NDArray> = function.seeds().iter().flatten().map(|seed| array(&cast(seed, dtype))).collect();
        executor.backward(&heads.iter().collect::<Vec<_>>()).unwrap();
        let before = if request == GradReq::Add { 1.0 } else { 0.0 };
        for (name, expected) in names.iter().zip(&gradients) {
            let expected: Vec<f64> = expected.to_f64s().iter().map(|g| g + before).collect();
            near(executor.gradient(name).unwrap(), &expected);
        }
    }
}

#[test]
fn a043_equal_nodes_are_computed_once() {
    let rt = runtime();
    let (a, b, c, d) = (var("a"), var("b"), var("c"), var("d"));
    let sum = |x: &Symbol, y: &Symbol| (x + y).unwrap();
    let product = || (&a * &d).unwrap();
    let three = || sum(&sum(&a, &b), &c);
    let cases = [
        (sum(&(&a + 1.0).unwrap(), &(&a + 2.0).unwrap()), 0),
        (sum(&sum(&a, &b), &sum(&a, &b)), 1),
        (sum(&three(), &three()), 2),
        (Symbol::group([&product(), &product()]), 0),
        (Symbol::group([&sum(&product(), &b), &sum(&product(), &b)]), 1),
    ];
    for (i, (net, expected)) in cases.iter().enumerate() {
        assert_eq!(saved(&rt, net), *expected, "case {i}");
        for (dtype, tolerance) in [(DType::F16, 1e-2), (DType::F32, 1e-5), (DType::F64, 1e-12)] {
            same_results(&rt, net, dtype, tolerance);
        }
    }
    let dropped = || op("Dropout").input(&a).param("p", 0.5).build().unwrap();
    let twice = sum(&dropped(), &dropped());
    let mut executor = Executor::simple_bind(&rt, &twice).shape("a", &[40, 50]).build().unwrap();
    executor.argument("a").unwrap().fill(1.0).unwrap();
    let out = values(&executor.forward(true).unwrap()[0]);
    let halves = out.iter().filter(|v| **v == 2.0).count();
    assert!(
        (700..1300).contains(&halves),
        "masks of their own agree on half of the elements, not {halves} of 2000 apart"
    );
}
