//! Explores the interleavings of the pool's handshake with the model checker loom.
//!
//! The gate's source file is compiled here against loom's atomics. The property: a value the caller
//! writes before opening is what every worker inside reads, what workers write is visible after
//! closing, no access races, and no interleaving loses a wake-up (loom reports the deadlock).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod sync {
    pub use loom::sync::{Condvar, Mutex, MutexGuard, atomic};

    pub fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
        mutex.lock().unwrap()
    }

    pub fn wait<'a>(condvar: &Condvar, guard: MutexGuard<'a, ()>) -> MutexGuard<'a, ()> {
        condvar.wait(guard).unwrap()
    }

    /// Never spins, so that every wait goes through the sleeping path.
    pub struct Backoff;

    impl Backoff {
        pub fn new() -> Backoff {
            Backoff
        }

        pub fn spin(&mut self) -> bool {
            false
        }
    }
}

#[path = "../src/pool/gate.rs"]
mod gate;

use gate::{Gate, GateEntry};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};

struct Shared {
    gate: Gate,
    /// The region's description: written by the caller only, outside the region.
    region: UnsafeCell<usize>,
    /// Chunks claimed in this region.
    claimed: AtomicUsize,
    /// One result per chunk.
    results: [UnsafeCell<usize>; 2],
}

fn execute(shared: &Shared) {
    // SAFETY: loom checks that no write of the region runs at the same time.
    let round = shared.region.with(|region| unsafe { *region });
    loop {
        let chunk = shared.claimed.fetch_add(1, Ordering::Relaxed);
        let Some(result) = shared.results.get(chunk) else { return };
        // SAFETY: loom checks that only the thread that claimed the chunk writes its result.
        result.with_mut(|result| unsafe { *result = round });
    }
}

fn worker(shared: &Shared) {
    let mut seen = 0;
    loop {
        match shared.gate.enter(&mut seen) {
            GateEntry::Entered => {
                execute(shared);
                shared.gate.leave();
            }
            GateEntry::Idle => shared.gate.sleep(seen),
            GateEntry::Shutdown => return,
        }
    }
}

fn explore(workers: usize, rounds: usize, helpers: usize, preemptions: usize) {
    assert!(workers <= Gate::MAX_WORKERS);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let shared = Arc::new(Shared {
            gate: Gate::new(),
            region: UnsafeCell::new(0),
            claimed: AtomicUsize::new(0),
            results: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        let threads: Vec<_> = (0..workers)
            .map(|_| {
                let shared = shared.clone();
                loom::thread::spawn(move || worker(&shared))
            })
            .collect();
        for round in 1..=rounds {
            // SAFETY: loom checks that no worker is inside.
            shared.region.with_mut(|region| unsafe { *region = round });
            shared.claimed.store(0, Ordering::Relaxed);
            shared.gate.open(helpers);
            execute(&shared);
            shared.gate.close();
            for result in &shared.results {
                // SAFETY: loom checks that the worker's write happened before.
                assert_eq!(result.with(|result| unsafe { *result }), round);
            }
        }
        shared.gate.shut_down();
        for thread in threads {
            assert!(thread.join().is_ok());
        }
    });
}

#[test]
fn one_worker_two_regions() {
    explore(1, 2, 1, 3);
}

#[test]
fn two_workers_of_which_one_is_wanted() {
    explore(2, 1, 1, 2);
}

/// A region whose caller does not work itself, so that a lost wake-up is a deadlock.
#[test]
fn a_sleeping_worker_wakes() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let shared = Arc::new((Gate::new(), Mutex::new(false), Condvar::new()));
        let other = shared.clone();
        let thread = loom::thread::spawn(move || {
            let (gate, entered, condvar) = &*other;
            let mut seen = 0;
            loop {
                match gate.enter(&mut seen) {
                    GateEntry::Entered => {
                        *entered.lock().unwrap() = true;
                        condvar.notify_one();
                        gate.leave();
                    }
                    GateEntry::Idle => gate.sleep(seen),
                    GateEntry::Shutdown => return,
                }
            }
        });
        let (gate, entered, condvar) = &*shared;
        gate.open(1);
        let mut guard = entered.lock().unwrap();
        while !*guard {
            guard = condvar.wait(guard).unwrap();
        }
        drop(guard);
        gate.close();
        gate.shut_down();
        assert!(thread.join().is_ok());
    });
}
