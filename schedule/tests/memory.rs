//! The memory plan against a brute-force check of what may overlap.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use proptest::prelude::*;
use tensorc_abi::{Arg, BatchedGemm, Buffer, BufferId, DType, KernelId, Plan, Step, StepOp, StorageClass};
use tensorc_random::Rng;
use tensorc_schedule::lowered::{InPlace, Lowered};
use tensorc_schedule::{PlacementOrder, PlacementRoom, plan_memory};

fn step(reads: &[u32], writes: &[u32]) -> Step {
    let args = reads.iter().map(|b| (b, false)).chain(writes.iter().map(|b| (b, true)));
    let args = args.map(|(b, writes)| Arg { buffer: BufferId(*b), writes }).collect();
    Step { name: "step".into(), op: StepOp::Launch { kernel: KernelId(0), args, extent: 1 }, flops: 0, bytes: 0 }
}

fn buffer(bytes: u64, storage: StorageClass) -> Buffer {
    Buffer { name: "b".into(), dtype: DType::U8, dims: vec![bytes], storage, part: None }
}

/// Steps that each write one or two new buffers and read some of the recent ones.
fn random(seed: u64, steps: usize, far: u64) -> Lowered {
    let mut rng = Rng::new(seed);
    let mut l = Lowered::default();
    l.plan.buffers.push(buffer(64, StorageClass::Input(0)));
    for i in 0..steps {
        let known = l.plan.buffers.len() as u64;
        let reads: Vec<u32> = (0..1 + rng.below(3))
            .map(|_| {
                let back = if rng.below(far) == 0 { rng.below(known) } else { rng.below(known.min(4)) };
                (known - 1 - back) as u32
            })
            .collect();
        let mut writes = vec![];
        for _ in 0..1 + rng.below(2) {
            let bytes = match rng.below(4) {
                0 => l.plan.buffers[reads[0] as usize].bytes(),
                1 => rng.below(100),
                _ => 1 + rng.below(64) * 640,
            };
            let id = l.plan.buffers.len() as u32;
            l.plan
                .buffers
                .push(buffer(bytes, if rng.below(10) == 0 { StorageClass::Output(0) } else { StorageClass::Arena(0) }));
            if bytes == l.plan.buffers[reads[0] as usize].bytes() {
                l.in_place.steps.push(InPlace { step: i, input: BufferId(reads[0]), output: BufferId(id) });
            }
            writes.push(id);
        }
        l.plan.steps.push(step(&reads, &writes));
    }
    l
}

/// First and last use of each arena buffer.
fn lives(plan: &Plan) -> Vec<Option<(usize, usize)>> {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
    for (i, s) in plan.steps.iter().enumerate() {
        for a in s.op.args() {
            let life = &mut lives[a.buffer.0 as usize];
            *life = Some((life.map_or(i, |l| l.0), i));
        }
    }
    lives
}

fn check(l: &Lowered) {
    let plan = &l.plan;
    let lives = lives(plan);
    let arena = |i: usize| match plan.buffers[i].storage {
        StorageClass::Arena(offset) if plan.buffers[i].bytes() > 0 => lives[i].map(|life| (offset, life)),
        _ => None,
    };
    for i in 0..plan.buffers.len() {
        let Some((a, life_a)) = arena(i) else { continue };
        assert_eq!(a % Plan::ALIGN, 0);
        assert!(a + plan.buffers[i].bytes() <= plan.arena_bytes);
        for j in 0..i {
            let Some((b, life_b)) = arena(j) else { continue };
            let in_time = life_a.0 <= life_b.1 && life_b.0 <= life_a.1;
            let in_space = a < b + plan.buffers[j].bytes() && b < a + plan.buffers[i].bytes();
            if in_time && in_space {
                let (first, second) = if life_a.0 < life_b.0 { (i, j) } else { (j, i) };
                let at = lives[second].unwrap().0;
                assert_eq!(lives[first].unwrap().1, at, "{first} and {second} overlap and live together");
                let allowed = InPlace { step: at, input: BufferId(first as u32), output: BufferId(second as u32) };
                assert!(l.in_place.steps.contains(&allowed), "{first} and {second} overlap");
                assert_eq!(a, b);
            }
        }
    }
    assert!(plan.lower_bound_bytes <= plan.arena_bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn live_buffers_never_overlap(seed in any::<u64>(), steps in 1usize..60) {
        let planned = || {
            let mut l = random(seed, steps, 8);
            plan_memory(&mut l).unwrap();
            l
        };
        check(&planned());
        prop_assert_eq!(planned().plan, planned().plan);
    }

    #[test]
    fn the_order_of_a_plan_serves_all_sizes(seed in any::<u64>(), steps in 1usize..60) {
        let mut l = random(seed, steps, 8);
        let greedy = PlacementOrder::greedy(&l).unwrap();
        plan_memory(&mut l).unwrap();
        let order = PlacementOrder::of(&l).unwrap();
        let (mut again, mut room) = (l.clone(), PlacementRoom::default());
        greedy.apply(&mut again.plan, &mut room);
        check(&again);
        order.apply(&mut again.plan, &mut room);
        check(&again);
        prop_assert!(again.plan.arena_bytes <= l.plan.arena_bytes);
        // Buffers of one size keep one size.
        for (round, most) in [1 << 20, 100, 2].into_iter().enumerate() {
            let mut other = l.clone();
            let size = |bytes: u64| Rng::new(seed ^ bytes ^ round as u64).below(most);
            other.plan.buffers.iter_mut().for_each(|b| b.dims = vec![size(b.bytes())]);
            order.apply(&mut other.plan, &mut room);
            check(&other);
        }
        let mut smaller = l;
        smaller.plan.buffers.iter_mut().for_each(|b| b.dims = vec![b.bytes() / 3]);
        order.apply(&mut smaller.plan, &mut room);
        check(&smaller);
        prop_assert!(smaller.plan.arena_bytes <= again.plan.arena_bytes);
    }
}

/// As [`random`], with products of the library among the steps, whose extents are up to `most`.
fn with_products(seed: u64, steps: usize, most: u64) -> Lowered {
    let (mut l, mut rng) = (random(seed, steps, 8), Rng::new(seed));
    for i in 0..steps {
        let args = l.plan.steps[i].op.args();
        let reads: Vec<BufferId> = args.iter().filter(|arg| !arg.writes).map(|arg| arg.buffer).collect();
        let writes: Vec<BufferId> = args.iter().filter(|arg| arg.writes).map(|arg| arg.buffer).collect();
        let (&[c], 0) = (&writes[..], rng.below(2)) else { continue };
        let mut extent = || 1 + rng.below(most);
        let call = BatchedGemm { batch: [1; 3], m: extent(), n: extent(), k: extent(), ..BatchedGemm::default() };
        let [a, b] = [reads[0], reads[reads.len() - 1]];
        l.plan.steps[i].op = StepOp::Gemm { call, a: a.into(), b, c, epilogue: None };
        l.plan.steps[i].flops = rng.below(2) << 40;
        l.in_place.steps.retain(|pair| pair.step != i);
    }
    l
}

#[test]
fn working_memory_lies_behind_what_is_live_and_is_common_to_steps_side_by_side() {
    let (mut common, mut free) = (0, 0);
    for seed in 0..300 {
        let mut l = with_products(seed, 20, 300);
        plan_memory(&mut l).unwrap();
        check(&l);
        let (plan, lives) = (&l.plan, lives(&l.plan));
        let needed = |step: usize| tensorc_exec::working_bytes(&plan.steps[step].op).each;
        assert!((0..20).all(|step| plan.scratch_of(step).map_or(0, |scratch| scratch.bytes) >= needed(step)));
        for scratch in &plan.scratch {
            let step = scratch.step as usize;
            let live = plan.buffers.iter().zip(&lives).filter(|(b, life)| {
                matches!(b.storage, StorageClass::Arena(_))
                    && life.is_some_and(|(first, last)| first <= step && step <= last)
            });
            let end = |b: &Buffer| if let StorageClass::Arena(at) = b.storage { at + b.bytes() } else { 0 };
            assert!(live.clone().all(|(b, _)| end(b) <= scratch.offset || b.is_empty()), "{seed}");
            assert!(scratch.live <= scratch.offset && scratch.offset.is_multiple_of(128));
            free += usize::from(scratch.offset < plan.arena_bytes);
        }
        let steps: Vec<usize> = (0..20).collect();
        for region in tensorc_exec::regions(plan, &steps) {
            let places: BTreeSet<(u64, u64)> =
                region.clone().filter_map(|step| plan.scratch_of(step)).map(|s| (s.offset, s.bytes)).collect();
            assert!(places.len() <= 1, "{seed}");
            common += usize::from(region.filter(|step| plan.scratch_of(*step).is_some()).count() > 1);
        }
        for workers in [1, 2, 16] {
            assert!(plan.run_lower_bound_bytes(workers) <= plan.run_bytes(workers));
        }
    }
    assert!(common > 50 && free > 100, "{common} regions of several products, {free} in the place of buffers");
}

fn ratio(mut l: Lowered) -> f64 {
    plan_memory(&mut l).unwrap();
    l.plan.arena_bytes as f64 / l.plan.lower_bound_bytes as f64
}

/// Layers with a residual stream and wider values inside, as in a transformer.
fn layers(count: u32) -> Lowered {
    let mut l = Lowered::default();
    let mut value = |bytes: u64| {
        l.plan.buffers.push(buffer(bytes, StorageClass::Arena(0)));
        l.plan.buffers.len() as u32 - 1
    };
    let mut x = value(3072);
    let mut steps = vec![step(&[], &[x])];
    for i in 0..count {
        let n = value(3072);
        let (q, k, v) = (value(3072), value(1024), value(1024));
        let (scores, y, z) = (value(u64::from(2000 + i % 7 * 640)), value(3072), value(3072));
        let (wide, out) = (value(12288), value(3072));
        steps.extend([step(&[x], &[n]), step(&[n], &[q]), step(&[n], &[k]), step(&[n], &[v])]);
        steps.extend([step(&[q, k], &[scores]), step(&[scores, v], &[y]), step(&[y, x], &[z])]);
        steps.extend([step(&[z], &[wide]), step(&[wide, z], &[out])]);
        x = out;
    }
    l.plan.steps = steps;
    l
}

#[test]
fn large_plans_are_close_to_the_bound() {
    let worst = (0..2).map(|seed| ratio(random(seed, 10_000, 200))).fold(1.0, f64::max);
    assert!(worst < 1.10, "{worst}");
    let layered = ratio(layers(1000));
    assert!(layered < 1.01, "{layered}");
}
