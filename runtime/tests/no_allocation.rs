//! A run allocates nothing, on any thread.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/allocations.rs"]
mod allocations;
mod common;

use common::*;
use tensorc_abi::Plan;
use tensorc_runtime::{Bindings, Context, Pool, TensorMut, TensorRef};

#[test]
fn runs_do_not_allocate() {
    const N: usize = 4096;
    type Case = (fn(u64, bool) -> Plan, fn(&[f32]) -> Vec<f32>);
    let plans: [Case; 2] = [(chain, chain_expected), (fork, fork_expected)];
    for ((threads, big), (plan, expected)) in
        [(1, false), (2, true)].into_iter().flat_map(|case| plans.map(|p| (case, p)))
    {
        let pool = Pool::new(threads).unwrap();
        let mut context = Context::new(executable(plan(N as u64, big), vec![]), &pool).unwrap();
        let (dims, x, mut y) = ([N as u64], vec![1f32; N], vec![0f32; N]);
        let mut run = || {
            let outputs = &mut [TensorMut::from_slice(&dims, &mut y)];
            context.run(&pool, Bindings::new(&[TensorRef::from_slice(&dims, &x)], outputs)).unwrap();
        };
        // Threads may allocate their thread-local state once.
        (0..100).for_each(|_| run());
        let mut hundred = || {
            let before = allocations::count();
            (0..100).for_each(|_| run());
            allocations::count() - before
        };
        // The test harness has a thread of its own, which may allocate at any time.
        let rounds: Vec<u64> = (0..10).map(|_| hundred()).collect();
        assert!(rounds.contains(&0), "{threads} threads: {rounds:?}");
        assert_eq!(y, expected(&x));
    }
}
