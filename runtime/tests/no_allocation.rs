//! A run allocates nothing, on any thread.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use tensorc_abi::Plan;
use tensorc_runtime::{Context, Pool, TensorMut, TensorRef};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: passed on from the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: passed on from the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The only test of this binary: another one would be counted too.
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
            context.run(&pool, &[TensorRef::from_slice(&dims, &x)], outputs).unwrap();
        };
        // Threads may allocate their thread-local state once.
        (0..100).for_each(|_| run());
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        assert!(before > 0);
        (0..100).for_each(|_| run());
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before, "{threads} threads");
        assert_eq!(y, expected(&x));
    }
}
