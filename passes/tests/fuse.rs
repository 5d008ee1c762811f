//! Fusion: what joins what, and that values stay the same.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use proptest::prelude::*;
use tensorc_ir::graph::FusionClass::{Contract, Map, Reduce};
use tensorc_ir::graph::{Graph, NodeKind};
use tensorc_ir::index::Index;
use tensorc_passes::fuse::{By, Fuse};
use tensorc_passes::{Pass, PassCx};
use tensorc_schedule::cost::{self, Machine, Totals};

use common::*;

fn fuse_by(graph: &Graph, by: By) -> Graph {
    let registry = registry();
    let mut fused = graph.clone();
    Fuse { by: Some(by) }.run(&mut fused, &mut PassCx::new(&registry)).unwrap();
    assert_fused_form(&fused);
    for seed in 0..3 {
        assert_same(graph, &fused, &inputs_for(graph, seed, seed > 0), 0.0);
    }
    fused
}

fn totals(fused: &Graph) -> Totals {
    Totals::of(&cost::kernels(fused, &Machine::default()).unwrap())
}

/// Both ways to fuse; alternatives are nowhere dearer.
fn fuse_both(graph: &Graph) -> (Graph, Graph) {
    let (greedy, best) = (fuse_by(graph, By::Greedy), fuse_by(graph, By::Alternatives));
    let (g, b) = (totals(&greedy), totals(&best));
    let moved = |t: &Totals| t.activations + t.constants;
    assert!(b.kernels <= g.kernels && moved(&b) <= moved(&g) && b.time <= g.time, "{b} against {g} of the greedy");
    (greedy, best)
}

fn fuse(graph: &Graph) -> Graph {
    fuse_both(graph).1
}

#[test]
fn softmax_is_one_row_program() {
    let mut p = Prims::new();
    let x = p.input(&[2, 3, 8]);
    let y = p.softmax(x);
    p.output(y);
    assert_eq!(clusters(&fuse(&p.graph)), [(Reduce, 5)]);
}

#[test]
fn layer_norm_with_residual_is_one_row_program_with_two_outputs() {
    let mut p = Prims::new();
    let (x, r) = (p.input(&[2, 3, 8]), p.input(&[2, 3, 8]));
    let (s, b) = (p.input(&[8]), p.input(&[8]));
    let sum = p.add(x, r);
    let y = p.layer_norm(sum, s, b);
    p.output(y);
    p.output(sum);
    let fused = fuse(&p.graph);
    assert_eq!(clusters(&fused), [(Reduce, 10)]);
}

#[test]
fn contraction_takes_bias_activation_and_residual() {
    let mut p = Prims::new();
    let (x, w, b, r) = (p.input(&[2, 3, 8]), p.input(&[8, 5]), p.input(&[5]), p.input(&[2, 3, 5]));
    let y = p.matmul(x, w);
    let y = p.add(y, b);
    let e = p.exp(y);
    let y = p.mul(y, e);
    let y = p.add(y, r);
    p.output(y);
    assert_eq!(clusters(&fuse(&p.graph)), [(Contract, 5)]);
}

#[test]
fn epilogue_stops_where_a_second_value_escapes() {
    let mut p = Prims::new();
    let (x, w, b) = (p.input(&[3, 8]), p.input(&[8, 5]), p.input(&[5]));
    let y = p.matmul(x, w);
    let y = p.add(y, b);
    let z = p.exp(y);
    let t = p.transpose(y, &[1, 0]);
    p.output(z);
    p.output(t);
    let found = clusters(&fuse(&p.graph));
    assert!(found.contains(&(Contract, 2)) && found.len() == 3, "{found:?}");
}

#[test]
fn merged_heads_are_written_by_the_contraction() {
    let mut p = Prims::new();
    let (a, v) = (p.input(&[2, 3, 4, 4]), p.input(&[2, 3, 4, 6]));
    let c = p.matmul(a, v);
    // One view: [b, h, s, d] to [b, s, h·d].
    let d = Index::var(2);
    let map = vec![Index::var(0), d.floor_div(6, &[2u64, 4, 18][..]), Index::var(1), d.modulo(6, &[2u64, 4, 18][..])];
    let y = p.view(c, map, None, &[2, 4, 18]);
    p.output(y);
    assert_eq!(clusters(&fuse(&p.graph)), [(Contract, 2)]);
}

#[test]
fn pooling_reads_its_windows_in_place() {
    let mut p = Prims::new();
    let x = p.input(&[1, 2, 6, 6]);
    let at = |o: u32, k: u32| Index::var(o).scale(2).add(&Index::var(k)).offset(-1);
    let map = vec![Index::var(0), Index::var(1), at(2, 4), at(3, 5)];
    let w = p.view(x, map, Some(f32::NEG_INFINITY), &[1, 2, 3, 3, 3, 3]);
    let y = p.reduce(w, &[4, 5], false, true);
    let y = p.relu(y);
    p.output(y);
    assert_eq!(clusters(&fuse(&p.graph)), [(Reduce, 3)]);
}

#[test]
fn expensive_producers_are_not_repeated() {
    let mut p = Prims::new();
    let (x, y) = (p.input(&[8]), p.input(&[16, 8]));
    let e = p.exp(x);
    let z = p.add(y, e);
    p.output(z);
    assert_eq!(clusters(&fuse(&p.graph)), [(Map, 1), (Map, 1)]);
    let mut p = Prims::new();
    let (x, y) = (p.input(&[8]), p.input(&[16, 8]));
    let e = p.relu(x);
    let z = p.add(y, e);
    p.output(z);
    assert_eq!(clusters(&fuse(&p.graph)), [(Map, 2)]);
}

#[test]
fn a_value_read_twice_becomes_a_second_output() {
    let mut p = Prims::new();
    let (x, r, w) = (p.input(&[4, 8]), p.input(&[4, 8]), p.input(&[8, 8]));
    let s = p.add(x, r);
    let e = p.exp(s);
    let m = p.matmul(s, w);
    p.output(e);
    p.output(m);
    let fused = fuse(&p.graph);
    assert_eq!(clusters(&fused).len(), 2);
    assert!(clusters(&fused).contains(&(Map, 2)));
}

#[test]
fn cheap_producers_are_copied_to_all_users() {
    let mut p = Prims::new();
    let x = p.input(&[4, 8]);
    let s = p.map(&[x], |_, a| &a[0] * 2.0);
    let e = p.exp(s);
    let t = p.transpose(s, &[1, 0]);
    p.output(e);
    p.output(t);
    assert_eq!(clusters(&fuse(&p.graph)), [(Map, 2), (Map, 2)]);
}

#[test]
fn reshapes_stay_views() {
    let mut p = Prims::new();
    let x = p.input(&[4, 8]);
    let r = p.reshape(x, &[2, 16]);
    let e = p.exp(r);
    p.output(e);
    let fused = fuse(&p.graph);
    assert_eq!(clusters(&fused), [(Map, 1)]);
    assert_eq!(fused.order().iter().filter(|n| is_prim(&fused, **n)).count(), 1);
}

#[test]
fn no_cluster_depends_on_itself() {
    // The second reduction of the same rows needs the product of the first: it must not join it.
    let mut p = Prims::new();
    let (x, w) = (p.input(&[4, 4]), p.input(&[4, 4]));
    let s = p.softmax(x);
    let m = p.matmul(s, w);
    let y = p.add(s, m);
    let z = p.softmax(y);
    p.output(z);
    let fused = fuse(&p.graph);
    assert_eq!(clusters(&fused), [(Reduce, 5), (Contract, 2), (Reduce, 5)]);
}

#[test]
fn without_fusion_every_primitive_is_a_cluster() {
    let registry = registry();
    let mut p = Prims::new();
    let x = p.input(&[3, 8]);
    let y = p.softmax(x);
    let y = p.transpose(y, &[1, 0]);
    p.output(y);
    let mut fused = p.graph.clone();
    Fuse { by: Some(By::Off) }.run(&mut fused, &mut PassCx::new(&registry)).unwrap();
    assert_fused_form(&fused);
    assert_eq!(clusters(&fused).len(), 6);
    assert!(clusters(&fused).iter().all(|(_, n)| *n == 1));
}

#[test]
fn scalar_constants_are_embedded() {
    let mut p = Prims::new();
    let x = p.input(&[3, 8]);
    let c = p.constant(tensorc_ir::TensorData::scalar(tensorc_ir::scalar::Scalar::f32(2.0)));
    let y = p.mul(x, c);
    p.output(y);
    let fused = fuse(&p.graph);
    let node = fused.outputs()[0].1.node;
    assert_eq!(fused.args(node).len(), 1);
    assert!(matches!(fused.node(node).kind, NodeKind::Fused(_)));
}

#[test]
fn what_moves_more_than_it_computes_is_computed_again() {
    let mut p = Prims::new();
    let x = p.input(&[1024, 768]);
    let s = p.map(&[x], |_, a| &(&a[0].max(&a[0].lit(0.0)) * 3.0) + &a[0].lit(1.0));
    let e = p.map(&[s], |_, a| -&a[0]);
    let t = p.transpose(s, &[1, 0]);
    p.output(e);
    p.output(t);
    let (greedy, best) = fuse_both(&p.graph);
    assert_eq!(clusters(&best), [(Map, 2), (Map, 2)]);
    assert_eq!(totals(&greedy).activations - totals(&best).activations, 1024 * 768 * 4);
}

#[test]
fn reductions_of_one_operand_share_a_kernel() {
    let mut p = Prims::new();
    let x = p.input(&[64, 48]);
    let square = p.mul(x, x);
    for v in [x, square] {
        let sum = p.reduce(v, &[1], true, false);
        p.output(sum);
    }
    let (greedy, best) = fuse_both(&p.graph);
    assert_eq!(clusters(&greedy), [(Reduce, 1), (Reduce, 2)]);
    assert_eq!(clusters(&best), [(Reduce, 3)]);
}

#[test]
fn siblings_that_need_each_other_through_a_third_stay_apart() {
    // The second sum reads what a product makes of the first.
    let mut p = Prims::new();
    let (x, w) = (p.input(&[48, 48]), p.input(&[1, 48]));
    let first = p.reduce(x, &[1], true, false);
    let m = p.matmul(first, w);
    let y = p.add(x, m);
    let second = p.reduce(y, &[1], true, false);
    p.output(first);
    p.output(second);
    let found = clusters(&fuse(&p.graph));
    assert_eq!(found.iter().filter(|(class, _)| *class == Reduce).count(), 2, "{found:?}");
}

const GRAPHS: u32 = 3000;

#[test]
fn random_graphs_keep_their_values() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(11),
        ..ProptestConfig::with_cases(GRAPHS)
    });
    let cheaper = std::cell::Cell::new(0);
    let result = runner.run(&(prop::collection::vec(any::<u32>(), 1..24), 0u64..1000), |(choices, seed)| {
        let (greedy, best) = fuse_both(&random_graph(&choices, seed));
        cheaper.set(cheaper.get() + u32::from(totals(&best).time < totals(&greedy).time));
        Ok(())
    });
    if let Err(e) = result {
        panic!("{e}");
    }
    let cheaper = cheaper.get();
    println!("{cheaper} of {GRAPHS} random graphs are cheaper by alternatives");
    assert!(cheaper > GRAPHS / 50, "{cheaper} graphs");
}
