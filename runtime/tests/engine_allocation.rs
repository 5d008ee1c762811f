//! Pushing and running allocates nothing once an engine has reached its size.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/allocations.rs"]
mod allocations;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorc_runtime::engine::*;

#[test]
fn operations_do_not_allocate() {
    const OPS: u64 = 500;
    let name = OpName::from_static("test");
    let shared = OpName::at_node("test", "node");
    for kind in EngineKind::ALL {
        for cpu_workers in [1, 3] {
            // More than is ever pending, so that no push waits.
            let config = EngineConfig { kind, cpu_workers, max_pending: 1 << 20, ..EngineConfig::default() };
            let engine = Engine::new(config).unwrap();
            let [a, b, c] = std::array::from_fn(|_| engine.new_var());
            let total = Arc::new(AtomicU64::new(0));
            let round = || {
                let before = allocations::count();
                for i in 0..OPS {
                    let (runs, captured) = (total.clone(), [i; 6]);
                    let (name, priority) = if i % 2 == 0 { (&name, 0) } else { (&shared, i as i32 % 3) };
                    let op = Op { reads: &[&a, &c], writes: &[&b], priority, ..Op::new(name) };
                    engine
                        .push(op, move |_| {
                            runs.fetch_add(captured[5] - i + 1, Ordering::Relaxed);
                            Ok(())
                        })
                        .unwrap();
                    engine.push(Op { reads: &[&a, &b], writes: &[&c], ..Op::new(name) }, |_| Ok(())).unwrap();
                }
                while engine.stats().finished < engine.stats().pushed {
                    std::thread::yield_now();
                }
                allocations::count() - before
            };
            // Buffers grow to the most that was ever pending, which depends on how the threads were
            // scheduled; then there are rounds without a single allocation.
            let rounds = (1..=200).find(|_| round() == 0);
            assert!(rounds.is_some(), "{kind}, {cpu_workers} workers");
            assert!(total.load(Ordering::Relaxed) >= OPS);
        }
    }
}
