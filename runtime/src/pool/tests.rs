//! Tests of the pool on real threads: every iteration once, panics, nesting.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use super::*;

/// Runs a region and checks that every task ran once and no thread number was used twice at once.
fn check_cover(pool: &Pool, tasks: u64, grain: u64) {
    let counts: Vec<AtomicU64> = (0..tasks).map(|_| AtomicU64::new(0)).collect();
    let inside: Vec<AtomicBool> = (0..pool.threads()).map(|_| AtomicBool::new(false)).collect();
    pool.run(tasks, grain, &|thread, range| {
        assert!(!inside[thread].swap(true, Ordering::SeqCst));
        for task in range {
            counts[task as usize].fetch_add(1, Ordering::Relaxed);
        }
        inside[thread].store(false, Ordering::SeqCst);
    })
    .unwrap();
    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
}

#[test]
fn every_task_runs_once() {
    for threads in [1, 2, 3, 7] {
        let pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads);
        for tasks in if cfg!(miri) { vec![0, 1, 9] } else { vec![0, 1, 2, 3, 31, 33, 1000] } {
            for grain in [0, 1, 2, 7, 1000, u64::MAX] {
                check_cover(&pool, tasks, grain);
            }
        }
    }
}

#[test]
fn many_short_regions_with_sleeping_and_spinning_workers() {
    let rounds = if cfg!(miri) { 20 } else { 3000 };
    for threads in [2, 5] {
        let pool = Pool::new(threads).unwrap();
        for round in 0..rounds {
            check_cover(&pool, 2 + round % 9, 1);
            if round % 500 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
}

#[test]
fn results_are_visible_to_the_caller() {
    const ROUNDS: u64 = if cfg!(miri) { 2 } else { 50 };
    let pool = Pool::new(3).unwrap();
    let mut values = vec![0u64; 512];
    for round in 0..ROUNDS {
        let cells: Vec<_> = values.iter_mut().map(Mutex::new).collect();
        pool.run(512, 5, &|_, range| range.for_each(|i| **cells[i as usize].lock().unwrap() += i * round)).unwrap();
    }
    assert!(values.iter().enumerate().all(|(i, &v)| v == i as u64 * (0..ROUNDS).sum::<u64>()));
}

#[test]
fn a_range_near_the_limit_of_u64_is_covered() {
    let pool = Pool::new(2).unwrap();
    let total = AtomicU64::new(0);
    pool.run(u64::MAX, u64::MAX / 2, &|_, range| {
        total.fetch_add(range.end - range.start, Ordering::Relaxed);
    })
    .unwrap();
    assert_eq!(total.load(Ordering::Relaxed), u64::MAX);
}

/// A payload whose destructor panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("bomb");
    }
}

#[test]
fn a_panic_is_an_error_and_the_pool_stays_usable() {
    for threads in if cfg!(miri) { 2..3 } else { 1..5 } {
        let pool = Pool::new(threads).unwrap();
        for bad in [0, 3, 99] {
            let error = pool.run(100, 1, &|_, range| assert!(!range.contains(&bad), "task {bad} is bad")).unwrap_err();
            assert_eq!(error.message, format!("task {bad} is bad"));
            check_cover(&pool, 100, 3);
        }
        let error = pool.run(4, 1, &|_, _| std::panic::panic_any(7u8)).unwrap_err();
        assert_eq!(error.to_string(), "task panicked: payload that is not text");
        let error = pool.run(4, 1, &|_, _| std::panic::panic_any(Bomb)).unwrap_err();
        assert_eq!(error.to_string(), "task panicked: payload that is not text");
        check_cover(&pool, 100, 3);
    }
}

#[test]
fn nested_regions_run_inline() {
    let pool = Pool::new(3).unwrap();
    let total = AtomicUsize::new(0);
    pool.run(8, 1, &|_, outer| {
        let here = std::thread::current().id();
        for _ in outer {
            pool.run(10, 1, &|thread, inner| {
                assert_eq!(thread, 0);
                assert_eq!(std::thread::current().id(), here);
                total.fetch_add(inner.count(), Ordering::Relaxed);
            })
            .unwrap();
        }
    })
    .unwrap();
    assert_eq!(total.into_inner(), 80);
}

#[test]
fn concurrent_callers_share_a_pool() {
    let pool = Pool::new(3).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..if cfg!(miri) { 2 } else { 300 }).for_each(|_| check_cover(&pool, 40, 3)));
        }
    });
}

#[test]
fn a_sleeping_pool_wakes() {
    let pool = Pool::new(2).unwrap();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(2));
        let helped = AtomicBool::new(false);
        // The second task waits for the first, so both threads must take part.
        pool.run(2, 1, &|thread, _| {
            if thread == 0 {
                while !helped.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            }
            helped.store(true, Ordering::SeqCst);
        })
        .unwrap();
    }
}

#[test]
fn bad_thread_counts_are_errors() {
    assert!(matches!(Pool::new(0), Err(PoolError::Threads { threads: 0, .. })));
    assert!(matches!(Pool::new(1 << 20), Err(PoolError::Threads { .. })));
}

#[test]
fn pools_end_whether_used_or_not() {
    for _ in 0..if cfg!(miri) { 2 } else { 20 } {
        drop(Pool::new(4).unwrap());
        let pool = Pool::new(2).unwrap();
        check_cover(&pool, 4, 1);
    }
}

#[test]
fn runs_side_by_side_take_threads_from_each_other() {
    let pool = Pool::new(3).unwrap();
    // Ends when all threads of the pool are inside.
    let meet = || {
        let inside = AtomicUsize::new(0);
        let wait = |_, _| {
            inside.fetch_add(1, Ordering::SeqCst);
            while inside.load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
        };
        pool.run(3, 1, &wait).unwrap();
    };
    let threads = || {
        let ids = Mutex::new(std::collections::BTreeSet::new());
        pool.run(30, 1, &|thread, _| {
            ids.lock().unwrap().insert(thread);
            std::thread::yield_now();
        })
        .unwrap();
        ids.into_inner().unwrap().len()
    };
    meet();
    let first = pool.share();
    meet();
    let second = pool.share();
    assert!(threads() <= 2);
    let third = pool.share();
    assert_eq!(threads(), 1);
    drop((first, second, third));
    meet();
}
