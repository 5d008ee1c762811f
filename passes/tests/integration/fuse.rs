//! Fusion of random graphs: values stay the same, and alternatives are nowhere dearer.

use proptest::prelude::*;
use tensorc_ir::graph::Graph;
use tensorc_passes::FusionStrategy;
use tensorc_passes::fuse::Fuse;
use tensorc_passes::{Pass, PassCx};
use tensorc_schedule::cost::{self, CostModel, Totals};

use crate::common::*;

fn fuse_by(graph: &Graph, by: FusionStrategy) -> Graph {
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
    Totals::of(&cost::kernels(fused, &CostModel::default()).unwrap())
}

/// Both ways to fuse; alternatives are nowhere dearer.
fn fuse_both(graph: &Graph) -> (Graph, Graph) {
    let (greedy, best) = (fuse_by(graph, FusionStrategy::Greedy), fuse_by(graph, FusionStrategy::Alternatives));
    let (g, b) = (totals(&greedy), totals(&best));
    let moved = |t: &Totals| t.activations + t.constants;
    assert!(b.kernels <= g.kernels && moved(&b) <= moved(&g) && b.time <= g.time, "{b} against {g} of greedy fusion");
    (greedy, best)
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
