//! The verifiers accept what is right and name what is wrong.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use tensorc_ir::DType;
use tensorc_ir::Module;
use tensorc_ir::TensorData;
use tensorc_ir::graph::{NodeKind, Value};
use tensorc_ir::interp::{eval_graph, run_kernel};
use tensorc_ir::op::Registry;
use tensorc_ir::scalar::{MathFn, MathLibrary, ScalarFn};
use tensorc_ir::testing::{Rng, random_graph, random_kernel, random_plan};
use tensorc_ir::text::parse_module;
use tensorc_ir::verify::{Stage, verify_graph, verify_kernel, verify_plan};

/// Every function is the identity: enough to run random graphs.
struct Identity(ScalarFn);

impl MathLibrary for Identity {
    fn body(&self, _: MathFn) -> &ScalarFn {
        &self.0
    }
}

fn registry() -> Registry {
    Registry::new([], Box::new(Identity(ScalarFn::identity(DType::F32)))).unwrap()
}

fn parse(text: &str) -> Module {
    parse_module(text, &registry()).unwrap_or_else(|d| panic!("{d}\n{text}"))
}

#[test]
fn random_programs_are_right_and_run() {
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let size = rng.below(14) as usize;
        let graph = random_graph(&mut rng, size);
        let stage = match graph.node_ids().iter().any(|n| matches!(graph.node(*n).kind, NodeKind::Fused(_))) {
            true => Stage::Typed,
            false => Stage::Primitive,
        };
        check_clusters(&graph);
        if stage == Stage::Primitive {
            verify_graph(&graph, stage).unwrap_or_else(|d| panic!("seed {seed}: {d}"));
        }
        let inputs: Vec<TensorData> = graph
            .inputs()
            .iter()
            .map(|&node| {
                let ty = graph.dense(Value { node, port: 0 }).unwrap();
                TensorData::from_fn(ty.clone(), |_| rng.element(ty.dtype))
            })
            .collect();
        let outputs = eval_graph(&graph, &registry(), &inputs).unwrap_or_else(|d| panic!("seed {seed}: {d}"));
        for ((_, v), data) in graph.outputs().iter().zip(&outputs) {
            assert_eq!(graph.dense(*v).unwrap(), data.ty);
        }

        let dtype = *rng.pick(&[DType::F32, DType::F64, DType::I32, DType::I64]);
        let parallel = rng.one_in(2);
        let kernel = random_kernel(&mut rng, dtype, parallel);
        verify_kernel(&kernel).unwrap_or_else(|d| panic!("seed {seed}: {d}"));
        let mut buffers: Vec<Vec<u8>> = kernel.buffers[..kernel.params]
            .iter()
            .map(|b| {
                (0..b.len).flat_map(|_| rng.element(b.dtype).bits.to_le_bytes()[..b.dtype.size()].to_vec()).collect()
            })
            .collect();
        let range = [0, kernel.parallel_extent() as i64];
        let scalars: &[i64] = if parallel { &range } else { &[] };
        run_kernel(&kernel, &mut buffers, scalars, registry().math()).unwrap_or_else(|d| panic!("seed {seed}: {d}"));

        verify_plan(&random_plan(&mut rng), None).unwrap_or_else(|d| panic!("seed {seed}: {d}"));
    }
}

/// Random graphs mix clusters with free primitives, which no stage allows; the clusters alone obey
/// the last stage.
fn check_clusters(graph: &tensorc_ir::graph::Graph) {
    match verify_graph(graph, Stage::Fused) {
        Ok(()) => {}
        Err(d) => assert_eq!(d.message, "the primitive is in no cluster"),
    }
}

fn graph_error(body: &str, stage: Stage) -> String {
    let module = parse(&format!("graph @g{body}"));
    verify_graph(&module.graphs[0], stage).expect_err(body).to_string()
}

#[test]
fn wrong_primitives_are_named() {
    let map = |types: &str, result: &str| {
        format!("(%a: {types}) {{ %m = prim.map(%a) (%x: f32) {{ %y = neg %x yield %y }} : {result} return %m }}")
    };
    for (body, message) in [
        (map("f32[3]", "f32[2, 4]"), "f32[3] does not broadcast to f32[2, 4]"),
        (map("f64[3]", "f32[3]"), "the function takes (f32), given (f64)"),
        (map("f32[3]", "i32[3]"), "the function returns (f32), expected (i32)"),
        (map("f32[3]", "(f32[3], f32[2])"), "the results differ in shape"),
        ("(%a: f32[3]) { %m = prim.map(%a) (%x: f32) { %c = coord 1 yield %x } : f32[3] return %m }".into(), "coordinate 1 of 1 axes"),
        ("(%a: f32[3]) { %v = prim.view(%a) [d0 + 1] : f32[3] return %v }".into(), "is read at d0 + 1 = 3"),
        ("(%a: f32[3]) { %v = prim.view(%a) [d0, d0] : f32[3] return %v }".into(), "2 indices for f32[3]"),
        ("(%a: f32[3]) { %v = prim.view(%a) [d1] : f32[3] return %v }".into(), "mentions d1 of 1 axes"),
        ("(%a: f32[3]) { %v = prim.view(%a) [d0] fill f64 0.0 : f32[3] return %v }".into(), "and the fill differ"),
        ("(%a: f32[3]) { %v = prim.view(%a, %a) [d0] : f32[3] return %v }".into(), "one operand and one result"),
        ("(%a: f32[3, 4]) { %r = prim.reduce(%a) axes [1] init [f32 0.0] { combine (%x: f32, %y: f32) { %z = add %x, %y yield %z } } : f32[4] return %r }".into(), "its shape should be [3]"),
        ("(%a: f32[3, 4]) { %r = prim.reduce(%a) axes [2] init [f32 0.0] { combine (%x: f32, %y: f32) { %z = add %x, %y yield %z } } : f32[4] return %r }".into(), "are not ascending axes"),
        ("(%a: f32[3]) { %r = prim.reduce(%a) axes [0] init [f32 0.0] { combine (%x: f32) { yield %x } } : f32[] return %r }".into(), "in `combine`: the function takes (f32), given (f32, f32)"),
        ("(%a: f32[3, 4]) { %c = prim.contract(%a, %a) over [3, 3 | 4] lhs [d0, d2] rhs [d1, d2] : f32[3, 4] return %c }".into(), "not of the shape of the first 2 extents"),
        ("(%a: f32[3, 4]) { %c = prim.contract(%a, %a) over [3, 5 | 4] lhs [d0, d2] rhs [d1, d2] : f32[3, 5] return %c }".into(), "is read at d1 = 3"),
        ("(%a: f32[3], %i: i64[2]) { %c = prim.gather(%a, %i) axis 1 : f32[2] return %c }".into(), "has no axis 1"),
        ("(%a: f32[3], %i: f32[2]) { %c = prim.gather(%a, %i) axis 0 : f32[2] return %c }".into(), "indices of type f32"),
        ("(%a: f32[3, 2], %b: f32[3, 3]) { %c = prim.concat(%a, %b) axis 0 : f32[6, 2] return %c }".into(), "differ in more than axis 0"),
        ("(%a: f32[3]) { %c = prim.concat(%a, %a) axis 0 : f32[5] return %c }".into(), "expected f32[6]"),
        ("(%a: f32[3]) { %k = prim.kernel(%a) @k(%x: f32[3], %y: mut f32[2]) { } : f32[3] return %k }".into(), "parameter `y` does not fit f32[3]"),
    ] {
        let error = graph_error(&body, Stage::Primitive);
        assert!(error.contains(message), "{body}\n{error}");
    }
}

#[test]
fn views_that_intervals_cannot_prove_are_evaluated() {
    let right = "(%a: f32[4]) { %v = prim.view(%a) [d0 - floordiv(d0, 2) * 2 + floordiv(d0, 4)] : f32[8] return %v }";
    let module = parse(&format!("graph @g{right}"));
    verify_graph(&module.graphs[0], Stage::Primitive).unwrap();
    let wrong = right.replace("floordiv(d0, 4)]", "floordiv(d0, 4) * 3]");
    assert!(graph_error(&wrong, Stage::Primitive).contains("for [5]"));
}

#[test]
fn stages_demand_more_and_more() {
    let symbolic = "(%a: f32[?b]) { return %a }";
    let module = parse(&format!("graph @g{symbolic}"));
    verify_graph(&module.graphs[0], Stage::Typed).unwrap();
    assert!(graph_error(symbolic, Stage::Primitive).contains("an extent of result 0 is unknown"));
    assert!(graph_error("(%a: f32[*]) { return %a }", Stage::Typed).contains("rank of result 0 is unknown"));
    assert!(graph_error("(%a: ?[2]) { return %a }", Stage::Typed).contains("element type"));
    let map = "(%a: f32[3]) { %m = prim.map(%a) (%x: f32) { yield %x } : f32[3] return %m }";
    assert!(graph_error(map, Stage::Fused).contains("node `m`: the primitive is in no cluster"));
    let cluster = "(%a: f32[3]) { %m = fused.map(%a) (%b: f32[3]) { return %b } : f32[3] return %m }";
    assert!(graph_error(cluster, Stage::Primitive).contains("a cluster before fusion"));
    verify_graph(&parse(&format!("graph @g{cluster}")).graphs[0], Stage::Fused).unwrap();
}

#[test]
fn clusters_fit_their_class() {
    const SUM: &str = "init [f32 0.0] { combine (%x: f32, %y: f32) { %z = add %x, %y yield %z } }";
    let cluster = |class: &str, body: &str, result: &str| {
        format!("(%a: f32[3, 3]) {{ %m = fused.{class}(%a) (%b: f32[3, 3]) {{ {body} }} : {result} return %m }}")
    };
    let contract = "%p = prim.contract(%b, %b) over [3, 3 | 3] lhs [d0, d2] rhs [d2, d1] : f32[3, 3]";
    let view = "%v = prim.view(%b) [d1, d0] : f32[3, 3]";
    let two =
        format!("%r = prim.reduce(%b) axes [0] {SUM} : f32[3] %s = prim.reduce(%b) axes [1] {SUM} : f32[3] return %s");
    for (body, message) in [
        (cluster("map", &format!("{contract} return %p"), "f32[3, 3]"), "holds maps, views and gathers only"),
        (cluster("map", "return %b", "f32[9]"), "outputs of the cluster are not of the types"),
        (cluster("reduce", &format!("{view} return %v"), "f32[3, 3]"), "without a reduction"),
        (cluster("reduce", &two, "f32[3]"), "differ in axes or operand shape"),
        (cluster("contract", &format!("{view} return %v"), "f32[3, 3]"), "one contraction"),
        (cluster("map", "%c = prim.view(%b) [d0 + 9, d1] : f32[3, 3] return %c", "f32[3, 3]"), "in the cluster"),
    ] {
        let error = graph_error(&body, Stage::Fused);
        assert!(error.contains(message), "{body}\n{error}");
    }
    let right = cluster("contract", &format!("{contract} {} return %v", view.replace("%b", "%p")), "f32[3, 3]");
    verify_graph(&parse(&format!("graph @g{right}")).graphs[0], Stage::Fused).unwrap();
}

#[test]
fn cycles_and_broken_edges_are_found() {
    let text = "graph @g(%a: f32[3]) { %m = prim.view(%a) [d0] : f32[3] %n = prim.view(%m) [d0] : f32[3] return %n }";
    let broken = |edit: &dyn Fn(&mut tensorc_ir::graph::Graph, Value, Value)| {
        let mut g = parse(text).graphs.remove(0);
        let n = g.outputs()[0].1;
        let m = g.args(n.node)[0];
        edit(&mut g, m, n);
        verify_graph(&g, Stage::Imported).unwrap_err().to_string()
    };
    assert!(broken(&|g, m, n| g.set_arg(m.node, 0, n)).contains("depends on itself"));
    assert!(broken(&|g, m, n| g.set_arg(n.node, 2, m)).contains("operand port 1 is missing"));
    assert!(broken(&|g, m, n| g.set_arg(n.node, 0, Value { port: 3, ..m })).contains("does not have it"));
    assert!(broken(&|g, _, n| g.add_output("y", Value { port: 1, ..n })).contains("output `y`"));
}

fn kernel_error(text: &str) -> String {
    verify_kernel(&parse(&format!("kernel @k{text}")).kernels[0]).expect_err(text).to_string()
}

#[test]
fn wrong_kernels_are_named() {
    for (text, message) in [
        ("(%x: f32[4]) { store %x[0], 1.0 }", "a store to read-only `x`"),
        ("(%x: mut f32[4]) { store %x[0], i64 1 }", "a store of i64 to `x` of f32"),
        ("(%x: mut f32[4]) { store %x[4], 1.0 }", "`x` of 4 elements is accessed at 4 or above"),
        ("(%x: mut f32[4]) { for %i in 4..8 { store %x[%i], 1.0 } }", "accessed at 4 or above"),
        ("(%x: f32[4]) { %v = load %x[0] %w = exp %v }", "exp on f32 is not expanded"),
        ("(%x: f32[4]) { %v = load %x[0] where true else f64 0.0 }", "a load of f32 is filled with f64"),
        ("(%x: f32[4]) { %v = load %x[0] where f32 1.0 else 0.0 }", "a condition of type f32"),
        ("(%x: f32[4]) { if i64 1 { } }", "a condition of type i64"),
        ("() { for %i in 0..2 { parallel %p in 0..2 { } } }", "must be outermost"),
        ("() { parallel %p in 0..2 { } }", "with two range parameters"),
        ("() scalars(%a, %b) { parallel %p in 1..2 { } }", "over 0..constant by 1"),
        ("() scalars(%a, %b) { parallel %p in 0..2 { } for %i in 0..1 { } }", "only statement"),
        (
            "(%x: mut f32[4]) scalars(%a, %b) { parallel %p in 0..2 { store %x[%a], 0.0 } }",
            "`a` is used where it is not visible",
        ),
        ("() scalars(%n) { vector %l in 0..%n { } }", "must be constant"),
        ("() scalars(%n) { unroll %l in 0..%n { } }", "must be constant"),
        ("() { vector %l in 0..4 { for %i in 0..2 { vector %m in 0..4 { } } } }", "a vector loop in a vector loop"),
        ("() { vector %l in 0..4 { if true { } } }", "an `if` in a vector loop"),
        ("() { vector %l in 0..4 { %b = alloc stack f32[4] } }", "allocated in a vector loop"),
        ("() { %b = alloc register f32[4] for %i in 0..4 { store %b[%i], 0.0 } }", "more than constants and the lane"),
        (
            "() { %b = alloc register f32[8] vector %l in 0..4 { store %b[%l * 2], 0.0 } }",
            "more than constants and the lane",
        ),
    ] {
        let error = kernel_error(text);
        assert!(error.contains(message), "{text}\n{error}");
    }
}

/// What may not be executed, or may be in bounds, is not refused.
#[test]
fn possible_accesses_are_allowed() {
    for text in [
        "(%x: mut f32[4]) { for %i in 0..0 { store %x[9], 0.0 } }",
        "(%x: mut f32[4]) { for %i in 0..9 { store %x[%i], 0.0 } }",
        "(%x: mut f32[4]) scalars(%n) { for %i in 0..%n { store %x[9], 0.0 } }",
        "(%x: mut f32[4]) { if false { store %x[9], 0.0 } }",
        "(%x: f32[4]) { %v = load %x[9] where false else 0.0 }",
        "() { %b = alloc register f32[8] unroll %u in 0..2 { vector %l in 0..4 { store %b[%u * 4 + %l], 0.0 } } }",
    ] {
        verify_kernel(&parse(&format!("kernel @k{text}")).kernels[0]).unwrap_or_else(|d| panic!("{text}\n{d}"));
    }
}

#[test]
fn wrong_plans_are_named() {
    const BUFFERS: &str = "buffer %x: f32[4] = input 0 buffer %h: f32[4] = arena 0 buffer %y: f32[4] = output 0 \
        inputs(%x) outputs(%y)";
    const KERNEL: &str = "kernel @k(%x: f32[4], %y: mut f32[4]) scalars(%a, %b) { parallel %p in 0..4 { } }";
    let check = |plan: String| {
        let module = parse(&format!("{KERNEL} plan @p {{ arena 64 lower_bound 0 kernel @k {plan} }}"));
        verify_plan(&module.plans[0], Some(&module.kernels)).map_err(|d| d.to_string())
    };
    let step = |op: &str| check(format!("{BUFFERS} step s {{flops = 0, bytes = 0}} {op}"));
    step("launch @k(%x, mut %y) extent 4").unwrap();
    step("copy(%x, mut %y)").unwrap();
    for (op, message) in [
        ("launch @k(%x, mut %y) extent 5", "launched over 5, its extent is 4"),
        ("launch @k(%x) extent 4", "takes 2 buffers, 1 given"),
        ("launch @k(%x, %y) extent 4", "`y` does not fit parameter `y`"),
        ("copy(%y, mut %x)", "`x` is written"),
    ] {
        let error = step(op).expect_err(op);
        assert!(error.contains("node `s`") && error.contains(message), "{op}\n{error}");
    }
    let error = check(BUFFERS.replace("arena 0", "arena 4")).unwrap_err();
    assert!(error.contains("which does not exist"), "{error}");
    let error = check(BUFFERS.replace("inputs(%x)", "inputs(%h)")).unwrap_err();
    assert!(error.contains("input 0 is not the buffer with that home"), "{error}");
}
