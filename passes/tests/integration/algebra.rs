//! Graph algebra on random graphs and a long one: values stay the same, and nothing becomes dearer.

use proptest::prelude::*;
use tensorc_ir::TensorData;
use tensorc_ir::graph::{Graph, NodeKind};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::prim::Prim;
use tensorc_passes::FusionStrategy;
use tensorc_passes::algebra::Algebra;
use tensorc_passes::fuse::Fuse;
use tensorc_passes::simplify::Simplify;
use tensorc_passes::{Pass, PassCx};
use tensorc_schedule::cost::{self, CostModel, Totals};

use crate::common::*;

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

/// What the kernels of a graph cost with greedy fusion.
fn totals(graph: &Graph, reassociate: bool) -> Totals {
    let registry = registry();
    let mut fused = graph.clone();
    let mut cx = PassCx::new(&registry);
    cx.options.reassociate = reassociate;
    Fuse { by: Some(FusionStrategy::Greedy) }.run(&mut fused, &mut cx).unwrap();
    Totals::of(&cost::kernels(&fused, &CostModel::default()).unwrap())
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

#[test]
fn all_regions_of_a_long_program_are_rewritten_the_same() {
    let mut p = Prims::new();
    let mut y = p.input(&[4, 8]);
    for i in 0..400 {
        let [w, s] =
            [(vec![8, 8], i), (vec![8], i + 1)].map(|(dims, seed)| p.constant(Rng(seed).tensor(&ty(&dims), false)));
        y = p.matmul(y, w);
        y = p.mul(y, s);
        y = p.map(&[y], |_, x| x[0].max(&x[0].lit(0.5)).min(&x[0].lit(1.0)));
    }
    p.output(y);
    let (out, _) = rewritten(&p.graph, true);
    assert_close(&p.graph, &out, &inputs_for(&p.graph, 1, false));
    let count = |is: fn(&Prim) -> bool| {
        out.order().iter().filter(|n| matches!(&out.node(**n).kind, NodeKind::Prim(prim) if is(prim))).count()
    };
    assert_eq!([count(|p| matches!(p, Prim::Contract(_))), count(|p| matches!(p, Prim::Map(_)))], [400, 400]);
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
