//! Simplification: what becomes of typical patterns, and that values stay the same.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::*;
use proptest::prelude::*;
use tensorc_ir::graph::FusionClass::{Attention, Contract};
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, TensorData};
use tensorc_passes::simplify::Simplify;
use tensorc_passes::{Pass, PassCx, Phase, Pipeline};

fn simplify(graph: &Graph, reassociate: bool) -> Graph {
    let registry = registry();
    let mut out = graph.clone();
    let pass = Simplify { reassociate: Some(reassociate), ..Simplify::default() };
    pass.run(&mut out, &mut PassCx::new(&registry)).unwrap();
    for seed in 0..3 {
        let special = seed > 0 && !reassociate;
        assert_same(graph, &out, &inputs_for(graph, seed, special), if reassociate { 1e-4 } else { 0.0 });
    }
    out
}

fn prims(graph: &Graph) -> Vec<&'static str> {
    let name = |n| match &graph.node(n).kind {
        NodeKind::Prim(p) => Some(match p {
            Prim::Map(_) => "map",
            Prim::Reduce(_) => "reduce",
            Prim::View(_) => "view",
            Prim::Contract(_) => "contract",
            Prim::Gather(_) => "gather",
            Prim::Concat { .. } => "concat",
            Prim::Kernel(_) => "kernel",
            Prim::Extern(_) => "extern",
        }),
        _ => None,
    };
    graph.order().into_iter().filter_map(name).collect()
}

fn constant(p: &mut Prims, dims: &[u64], seed: u64) -> Value {
    let data = Rng(seed).tensor(&ty(dims), false);
    p.constant(data)
}

#[test]
fn neutral_operations_disappear() {
    let mut p = Prims::new();
    let x = p.input(&[3, 4]);
    let one = p.constant(TensorData::splat(&[4], Scalar::f32(1.0)));
    let y = p.mul(x, one);
    let y = p.map(&[y], |_, a| &a[0] - 0.0);
    let y = p.map(&[y], |_, a| a[0].cast(DType::F64).cast(DType::F32));
    p.output(y);
    assert_eq!(prims(&simplify(&p.graph, false)), [""; 0]);
}

#[test]
fn adding_zero_is_kept_because_of_negative_zero() {
    let mut p = Prims::new();
    let x = p.input(&[3, 4]);
    let y = p.map(&[x], |_, a| &a[0] + 0.0);
    p.output(y);
    assert_eq!(prims(&simplify(&p.graph, false)), ["map"]);
}

#[test]
fn views_compose_and_cancel() {
    let mut p = Prims::new();
    let x = p.input(&[2, 3, 4]);
    let y = p.transpose(x, &[2, 0, 1]);
    let y = p.reshape(y, &[4, 6]);
    let y = p.reshape(y, &[4, 2, 3]);
    let y = p.transpose(y, &[1, 2, 0]);
    p.output(y);
    assert_eq!(prims(&simplify(&p.graph, false)), [""; 0]);
}

#[test]
fn broadcasts_before_maps_disappear() {
    let mut p = Prims::new();
    let (x, b) = (p.input(&[3, 4]), p.input(&[1, 4]));
    let e = p.broadcast_to(b, &[3, 4]);
    let y = p.add(x, e);
    p.output(y);
    assert_eq!(prims(&simplify(&p.graph, false)), ["map"]);
}

#[test]
fn attention_needs_no_copies() {
    let (b, s, h, d) = (2u64, 5u64, 3u64, 4u64);
    let mut p = Prims::new();
    let x = p.input(&[b, s, h * d]);
    let heads = |p: &mut Prims, seed: u64, perm: &[usize]| {
        let w = constant(p, &[h * d, h * d], seed);
        let bias = constant(p, &[h * d], seed + 10);
        let y = p.matmul(x, w);
        let y = p.add(y, bias);
        let y = p.reshape(y, &[b, s, h, d]);
        p.transpose(y, perm)
    };
    let (q, k) = (heads(&mut p, 1, &[0, 2, 1, 3]), heads(&mut p, 2, &[0, 2, 3, 1]));
    let v = heads(&mut p, 3, &[0, 2, 1, 3]);
    let scores = p.matmul(q, k);
    let scores = p.map(&[scores], |_, a| &a[0] / 2.0);
    let weights = p.softmax(scores);
    let y = p.matmul(weights, v);
    let y = p.transpose(y, &[0, 2, 1, 3]);
    let y = p.reshape(y, &[b, s, h * d]);
    let w = constant(&mut p, &[h * d, h * d], 4);
    let y = p.matmul(y, w);
    let y = p.add(y, x);
    p.output(y);
    let registry = registry();
    let mut fused = p.graph.clone();
    Pipeline::parse("simplify,fuse").unwrap().run(&mut fused, &mut PassCx::new(&registry)).unwrap();
    assert_fused_form(&fused);
    assert_same(&p.graph, &fused, &inputs_for(&p.graph, 1, false), 1e-5);
    let mut found = clusters(&fused);
    found.sort();
    let bias = (Contract, 2);
    assert_eq!(found, [bias, bias, bias, bias, (Attention, 9)]);
    assert!(fused.order().iter().all(|n| !is_prim(&fused, *n)));
}

#[test]
fn zero_padding_joins_the_convolution() {
    let mut p = Prims::new();
    let x = p.input(&[1, 2, 4, 4]);
    let w = constant(&mut p, &[3, 2, 3, 3], 1);
    let padded = p.shift(x, &[0, 0, -1, -1], Some(0.0), &[1, 2, 6, 6]);
    let y = p.conv(padded, w, 0);
    p.output(y);
    assert_eq!(prims(&simplify(&p.graph, false)), ["contract"]);
}

#[test]
fn reshape_between_product_and_bias_disappears() {
    let mut p = Prims::new();
    let (x, w, b) = (p.input(&[6, 4]), p.input(&[4, 5]), p.input(&[5]));
    let y = p.matmul(x, w);
    let y = p.reshape(y, &[2, 3, 5]);
    let y = p.add(y, b);
    p.output(y);
    assert_eq!(prims(&simplify(&p.graph, false)), ["contract", "map"]);
}

#[test]
fn merging_reshape_sinks_behind_the_epilogue() {
    let mut p = Prims::new();
    let (x, w) = (p.input(&[2, 3, 4]), p.input(&[4, 5]));
    let (b, r) = (p.input(&[5]), p.input(&[6, 5]));
    let y = p.matmul(x, w);
    let y = p.reshape(y, &[6, 5]);
    let y = p.add(y, b);
    let y = p.add(y, r);
    p.output(y);
    let registry = registry();
    let mut fused = p.graph.clone();
    Pipeline::parse("simplify,fuse").unwrap().run(&mut fused, &mut PassCx::new(&registry)).unwrap();
    assert_fused_form(&fused);
    assert_eq!(clusters(&fused), [(Contract, 3)]);
    assert_same(&p.graph, &fused, &inputs_for(&p.graph, 1, true), 0.0);
}

#[test]
fn equal_subexpressions_are_computed_once() {
    let mut p = Prims::new();
    let x = p.input(&[3, 4]);
    let (a, b) = (p.exp(x), p.exp(x));
    let y = p.add(a, b);
    p.output(y);
    assert_eq!(prims(&simplify(&p.graph, false)), ["map", "map"]);
}

#[test]
fn constants_fold_but_do_not_blow_up() {
    let registry = registry();
    let mut p = Prims::new();
    let c = constant(&mut p, &[1, 1000], 1);
    let big = p.broadcast_to(c, &[1000, 1000]);
    let t = p.transpose(c, &[1, 0]);
    let e = p.exp(t);
    p.output(big);
    p.output(e);
    let mut out = p.graph.clone();
    Pipeline::parse("fold-constants").unwrap().run(&mut out, &mut PassCx::new(&registry)).unwrap();
    assert_eq!(prims(&out), ["view"]);
    assert_same(&p.graph, &out, &[], 0.0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn random_graphs_keep_their_bits(choices in prop::collection::vec(any::<u32>(), 1..24), seed in 0u64..1000) {
        simplify(&random_graph(&choices, seed), false);
    }

    #[test]
    fn random_graphs_survive_the_whole_pipeline(
        choices in prop::collection::vec(any::<u32>(), 1..24),
        seed in 0u64..1000,
    ) {
        let graph = random_graph(&choices, seed);
        let registry = registry();
        let run = || {
            let mut out = graph.clone();
            let mut cx = PassCx::new(&registry);
            cx.options.reassociate = false;
            Pipeline::to(Phase::Fuse).run(&mut out, &mut cx).unwrap();
            out
        };
        let out = run();
        assert_fused_form(&out);
        for special in [false, true] {
            assert_same(&graph, &out, &inputs_for(&graph, seed, special), 0.0);
        }
        prop_assert_eq!(format!("{:?}", run()), format!("{out:?}"));
    }
}
