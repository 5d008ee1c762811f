//! The verifiers accept random programs that are right, demand more at each stage, and find broken edges.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use tensorc_ir::DType;
use tensorc_ir::TensorData;
use tensorc_ir::TextModule;
use tensorc_ir::graph::{NodeKind, Value};
use tensorc_ir::interp::{eval_graph, run_kernel};
use tensorc_ir::op::Registry;
use tensorc_ir::scalar::{MathFn, MathLibrary, ScalarFn};
use tensorc_ir::text::parse_module;
use tensorc_ir::verify::{Stage, verify_graph, verify_kernel};
use tensorc_random::{Rng, random_graph, random_kernel};

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

fn parse(text: &str) -> TextModule {
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
                (0..b.elements())
                    .flat_map(|_| rng.element(b.dtype).bits.to_le_bytes()[..b.dtype.size()].to_vec())
                    .collect()
            })
            .collect();
        let range = [0, kernel.parallel_extent().fixed()];
        let scalars: &[i64] = if parallel { &range } else { &[] };
        run_kernel(&kernel, &mut buffers, scalars, registry().math()).unwrap_or_else(|d| panic!("seed {seed}: {d}"));
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
