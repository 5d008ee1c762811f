//! Graph algebra: what becomes of typical patterns, that values stay the same, and that nothing becomes dearer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use proptest::prelude::*;
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::prim::Prim;
use tensorc_ir::{TensorData, index::Index};
use tensorc_passes::algebra::Algebra;
use tensorc_passes::fuse::{By, Fuse};
use tensorc_passes::simplify::Simplify;
use tensorc_passes::{Pass, PassCx};
use tensorc_schedule::cost::{self, Machine, Totals};

use common::*;

fn simplified(graph: &Graph, reassociate: bool) -> Graph {
    let registry = registry();
    let mut out = graph.clone();
    let pass = Simplify { reassociate: Some(reassociate), ..Simplify::default() };
    pass.run(&mut out, &mut PassCx::new(&registry)).unwrap();
    out
}

/// The graph after simplification and algebra, and the rules that fired.
fn rewritten(graph: &Graph, reassociate: bool) -> (Graph, Vec<&'static str>) {
    let registry = registry();
    let mut out = simplified(graph, reassociate);
    let mut cx = PassCx::new(&registry);
    Algebra { reassociate: Some(reassociate) }.run(&mut out, &mut cx).unwrap();
    let mut rules: Vec<&'static str> = cx.rewrites.iter().map(|r| r.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    (out, rules)
}

/// What the kernels of a graph cost by the greedy.
fn totals(graph: &Graph, reassociate: bool) -> Totals {
    let registry = registry();
    let mut fused = graph.clone();
    let mut cx = PassCx::new(&registry);
    cx.options.reassociate = reassociate;
    Fuse { by: Some(By::Greedy) }.run(&mut fused, &mut cx).unwrap();
    Totals::of(&cost::kernels(&fused, &Machine::default()).unwrap())
}

/// Compares results up to rounding, in relation to the largest element of each.
fn assert_close(before: &Graph, after: &Graph, inputs: &[TensorData]) {
    let registry = registry();
    let a = eval_graph(before, &registry, inputs).unwrap();
    let b = eval_graph(after, &registry, inputs).unwrap();
    for (a, b) in a.iter().zip(&b) {
        assert_eq!(a.ty, b.ty);
        let largest = a.iter().map(|x| x.as_f64().abs()).filter(|x| x.is_finite()).fold(1.0, f64::max);
        for (x, y) in a.iter().zip(b.iter()) {
            let (x, y) = (x.as_f64(), y.as_f64());
            assert!(x == y || !x.is_finite() || (x - y).abs() <= 1e-4 * largest, "{x} became {y}");
        }
    }
}

fn algebra(graph: &Graph) -> (Graph, Vec<&'static str>) {
    let (out, rules) = rewritten(graph, true);
    assert_close(graph, &out, &inputs_for(graph, 1, false));
    (out, rules)
}

fn contractions(graph: &Graph) -> Vec<Vec<u64>> {
    let extents = |n| match &graph.node(n).kind {
        NodeKind::Prim(Prim::Contract(c)) => Some(c.extents.clone()),
        _ => None,
    };
    graph.order().into_iter().filter_map(extents).collect()
}

fn constant(p: &mut Prims, dims: &[u64], seed: u64) -> Value {
    let data = Rng(seed).tensor(&ty(dims), false);
    p.constant(data)
}

#[test]
fn chains_are_multiplied_in_the_cheapest_order() {
    // The textbook's example of a chain: 30×35, 35×15, 15×5, 5×10, 10×20, 20×25.
    let sizes = [30u64, 35, 15, 5, 10, 20, 25];
    let mut p = Prims::new();
    let factors: Vec<Value> = sizes.windows(2).map(|w| p.input(w)).collect();
    let y = factors[1..].iter().fold(factors[0], |y, f| p.matmul(y, *f));
    p.output(y);
    let (out, rules) = algebra(&p.graph);
    let products: u64 = contractions(&out).iter().map(|e| e.iter().product::<u64>()).sum();
    assert_eq!((products, rules), (15125, vec!["reassociate-product"]));
}

#[test]
fn constant_weights_meet_unless_they_are_of_low_rank() {
    for (inner, left) in [(64u64, 1), (2, 2)] {
        let mut p = Prims::new();
        let x = p.input(&[16, 48]);
        let (v, w) = (constant(&mut p, &[48, inner], 1), constant(&mut p, &[inner, 40], 2));
        let y = p.matmul(x, v);
        let y = p.matmul(y, w);
        p.output(y);
        assert_eq!(contractions(&algebra(&p.graph).0).len(), left);
    }
}

/// Three products of one input with biases, split into heads.
fn heads(p: &mut Prims, merge: bool) -> Graph {
    let (s, h, d) = (64u64, 4u64, 16u64);
    let x = p.input(&[1, s, h * d]);
    let all: Vec<Value> = (0..3)
        .map(|i| {
            let x = if merge { x } else { p.input(&[1, s, h * d]) };
            let (w, b) = (constant(p, &[h * d, h * d], i), constant(p, &[h * d], i + 7));
            let y = p.matmul(x, w);
            let y = p.add(y, b);
            let y = p.reshape(y, &[1, s, h, d]);
            p.transpose(y, if i == 1 { &[0, 2, 3, 1] } else { &[0, 2, 1, 3] })
        })
        .collect();
    let scores = p.matmul(all[0], all[1]);
    let weights = p.softmax(scores);
    let y = p.matmul(weights, all[2]);
    p.output(y);
    p.graph.clone()
}

#[test]
fn queries_keys_and_values_are_one_product() {
    let graph = heads(&mut Prims::new(), true);
    let (out, rules) = algebra(&graph);
    assert!(rules.contains(&"merge-products") && rules.contains(&"merge-maps"), "{rules:?}");
    assert_eq!(contractions(&out).iter().filter(|e| e.contains(&192)).count(), 1);
    let (before, after) = (totals(&simplified(&graph, true), true), totals(&out, true));
    assert_eq!((before.kernels, after.kernels), (4, 2), "{before} and {after}");
    let apart = heads(&mut Prims::new(), false);
    assert!(!algebra(&apart).1.contains(&"merge-products"));
}

#[test]
fn convolutions_are_merged_only_where_their_results_are_read_in_place() {
    let mut p = Prims::new();
    let x = p.input(&[1, 16, 14, 14]);
    let mut merged = vec![];
    for convolutions in [false, true] {
        let (v, w) = (constant(&mut p, &[8, 16, 1, 1], 1), constant(&mut p, &[8, 16, 1, 1], 2));
        for w in [v, w] {
            let y = p.conv(x, w, 0);
            let y = if convolutions {
                let k = constant(&mut p, &[4, 8, 3, 3], 3);
                p.conv(y, k, 1)
            } else {
                let y = p.exp(y);
                p.reduce(y, &[2, 3], false, false)
            };
            p.output(y);
        }
        merged.push(algebra(&p.graph).1.contains(&"merge-products"));
        p = Prims::new();
        p.input(&[1, 16, 14, 14]);
    }
    assert_eq!(merged, [true, false]);
}

#[test]
fn normalisation_before_and_after_a_product_goes_into_weights() {
    let mut p = Prims::new();
    let x = p.input(&[8, 32]);
    let [scale, shift] = [1, 2].map(|seed| constant(&mut p, &[32], seed));
    let y = p.mul(x, scale);
    let y = p.add(y, shift);
    let w = constant(&mut p, &[32, 24], 3);
    let y = p.matmul(y, w);
    let [scale, shift] = [4, 5].map(|seed| constant(&mut p, &[24], seed));
    let y = p.mul(y, scale);
    let y = p.add(y, shift);
    p.output(y);
    let (out, _) = algebra(&p.graph);
    let left: Vec<_> = out.order().into_iter().filter(|n| is_prim(&out, *n)).collect();
    assert_eq!(left.len(), 2, "{out:?}");
}

#[test]
fn batch_normalisation_folds_into_convolution() {
    let mut p = Prims::new();
    let x = p.input(&[1, 3, 5, 5]);
    let w = constant(&mut p, &[4, 3, 3, 3], 1);
    let y = p.conv(x, w, 1);
    let [mean, scale, bias] = [2, 3, 4].map(|seed| constant(&mut p, &[4, 1, 1], seed));
    let variance = p.constant(TensorData::f32s(&[4, 1, 1], &[0.5, 1.0, 2.0, 4.0]).unwrap());
    let y = p.map(&[y, mean, variance, scale, bias], |_, a| (&a[0] - &a[1]) / (&a[2] + 1e-5).sqrt() * &a[3] + &a[4]);
    let y = p.relu(y);
    p.output(y);
    let bodies = |graph: &Graph| -> Vec<usize> {
        let body = |n| match &graph.node(n).kind {
            NodeKind::Prim(Prim::Map(f)) => Some(f.nodes.len()),
            _ => None,
        };
        graph.order().into_iter().filter_map(body).collect()
    };
    let (out, rules) = algebra(&p.graph);
    // What is left is the addition of a bias, and the activation.
    assert_eq!((bodies(&out)[0], rules), (3, vec!["scale-after-product"]));
    assert!(bodies(&rewritten(&p.graph, false).0)[0] > 3);
}

#[test]
fn transpositions_around_functions_cancel() {
    let mut p = Prims::new();
    let x = p.input(&[2, 8, 6, 6]);
    let y = p.transpose(x, &[0, 2, 3, 1]);
    let b = constant(&mut p, &[8], 1);
    let y = p.add(y, b);
    let y = p.exp(y);
    let y = p.transpose(y, &[0, 3, 1, 2]);
    p.output(y);
    let (out, _) = rewritten(&p.graph, false);
    assert_same(&p.graph, &out, &inputs_for(&p.graph, 1, true), 0.0);
    assert!(out.order().iter().all(|n| !matches!(out.node(*n).kind, NodeKind::Prim(Prim::View(_)))), "{out:?}");
}

#[test]
fn products_written_with_broadcasting_are_found_and_variances_are_left() {
    let mut p = Prims::new();
    let (a, b) = (p.input(&[32, 1, 48]), p.input(&[24, 48]));
    let y = p.mul(a, b);
    let y = p.reduce(y, &[2], false, false);
    p.output(y);
    assert_eq!(contractions(&algebra(&p.graph).0), [[32, 24, 48]]);
    let mut p = Prims::new();
    let x = p.input(&[32, 48]);
    let y = p.mul(x, x);
    let y = p.reduce(y, &[1], true, false);
    p.output(y);
    assert_eq!(contractions(&algebra(&p.graph).0).len(), 0);
}

#[test]
fn padding_keeps_a_shift_before_a_convolution() {
    let mut p = Prims::new();
    let x = p.input(&[1, 3, 6, 6]);
    let [scale, shift] = [1, 2].map(|seed| constant(&mut p, &[3, 1, 1], seed));
    let y = p.mul(x, scale);
    let y = p.add(y, shift);
    let w = constant(&mut p, &[4, 3, 3, 3], 3);
    let y = p.conv(y, w, 1);
    p.output(y);
    assert!(!algebra(&p.graph).1.contains(&"scale-before-product"));
}

#[test]
fn all_regions_of_a_long_program_are_rewritten_the_same() {
    let mut p = Prims::new();
    let mut y = p.input(&[4, 8]);
    for i in 0..400 {
        let w = constant(&mut p, &[8, 8], i);
        let s = constant(&mut p, &[8], i + 1);
        y = p.matmul(y, w);
        y = p.mul(y, s);
        y = p.map(&[y], |_, x| x[0].max(&x[0].lit(0.5)).min(&x[0].lit(1.0)));
    }
    p.output(y);
    let (out, _) = algebra(&p.graph);
    let maps = out.order().iter().filter(|n| matches!(out.node(**n).kind, NodeKind::Prim(Prim::Map(_)))).count();
    assert_eq!((contractions(&out).len(), maps), (400, 400));
}

const GRAPHS: u32 = 1500;

#[test]
fn random_graphs_keep_their_values_and_are_never_dearer() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(5),
        ..ProptestConfig::with_cases(GRAPHS)
    });
    let changed = std::cell::Cell::new([0; 2]);
    let result = runner.run(&(prop::collection::vec(any::<u32>(), 1..32), 0u64..1000), |(choices, seed)| {
        let graph = random_graph(&choices, seed);
        for reassociate in [false, true] {
            let (out, rules) = rewritten(&graph, reassociate);
            prop_assert_eq!(format!("{:?}", rewritten(&graph, reassociate).0), format!("{out:?}"));
            for special in [false, true] {
                match reassociate {
                    false => assert_same(&graph, &out, &inputs_for(&graph, seed, special), 0.0),
                    true if special => {}
                    true => assert_close(&graph, &out, &inputs_for(&graph, seed, false)),
                }
            }
            let (before, after) = (totals(&simplified(&graph, reassociate), reassociate), totals(&out, reassociate));
            prop_assert!(after.time <= before.time, "{after} after {before} by {rules:?}");
            let mut counts = changed.get();
            counts[usize::from(reassociate)] += u32::from(!rules.is_empty());
            changed.set(counts);
        }
        Ok(())
    });
    if let Err(e) = result {
        panic!("{e}");
    }
    let [exact, all] = changed.get();
    println!("of {GRAPHS} random graphs, {exact} become cheaper by exact rules, {all} by all");
    assert!(exact > 20 && all > 2 * exact);
}

#[test]
fn a_slice_of_a_concatenation_reads_one_part() {
    let mut p = Prims::new();
    let (a, b) = (p.input(&[4, 8]), p.input(&[4, 8]));
    let y = p.concat(&[a, b], 1);
    let y = p.view(y, vec![Index::var(0), Index::var(1).offset(8)], None, &[4, 8]);
    let y = p.exp(y);
    p.output(y);
    let (out, rules) = algebra(&p.graph);
    assert_eq!((out.order().iter().filter(|n| is_prim(&out, **n)).count(), rules), (1, vec!["view-of-concat"]));
}
