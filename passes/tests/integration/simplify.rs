//! Simplification of random graphs keeps their bits, alone and with the rest of the pipeline.

use crate::common::*;
use proptest::prelude::*;
use tensorc_passes::simplify::Simplify;
use tensorc_passes::{CompilePhase, Pass, PassCx, Pipeline};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn random_graphs_keep_their_bits(choices in prop::collection::vec(any::<u32>(), 1..24), seed in 0u64..1000) {
        let (graph, registry) = (random_graph(&choices, seed), registry());
        let mut out = graph.clone();
        let pass = Simplify { reassociate: Some(false), ..Simplify::default() };
        pass.run(&mut out, &mut PassCx::new(&registry)).unwrap();
        for seed in 0..3 {
            assert_same(&graph, &out, &inputs_for(&graph, seed, seed > 0), 0.0);
        }
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
            Pipeline::to(CompilePhase::Fuse).run(&mut out, &mut cx).unwrap();
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
