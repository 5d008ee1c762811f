//! Priorities, several pushing threads, bounds of run-ahead, and that
//! nothing ready waits for a worker that is stuck.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use tensorc_runtime::engine::*;

static NAME: OpName = OpName::from_static("test");

fn engine(kind: EngineKind, cpu_workers: usize) -> Engine {
    Engine::new(EngineConfig { kind, cpu_workers, ..EngineConfig::default() }).unwrap()
}

fn each(test: impl Fn(&Engine)) {
    for kind in EngineKind::ALL {
        for workers in [1, 2, 4] {
            test(&engine(kind, workers));
        }
    }
}

const THREADED: [EngineKind; 2] = [EngineKind::Pooled, EngineKind::PerDevice];

/// Occupies a worker until the returned sender is used or dropped.
fn block(engine: &Engine, op: Op<'_>) -> mpsc::Sender<()> {
    let (started, wait_started) = mpsc::channel();
    let (release, gate) = mpsc::channel();
    engine
        .push(op, move |_| {
            started.send(()).unwrap();
            let _ = gate.recv();
            Ok(())
        })
        .unwrap();
    wait_started.recv().unwrap();
    release
}

type Log = Arc<Mutex<Vec<usize>>>;

fn note(engine: &Engine, log: &Log, op: Op<'_>, value: usize) {
    let log = log.clone();
    engine
        .push(op, move |_| {
            log.lock().unwrap().push(value);
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_greatest_priority_starts_first_and_equals_in_order() {
    for kind in THREADED {
        for property in [Property::Normal, Property::Prioritized] {
            let engine = engine(kind, 1);
            let log = Log::default();
            let release = block(&engine, Op { property, ..Op::new(&NAME) });
            let priorities: Vec<i32> = (0..300).map(|i| [0, 5, -3, 0, 5, i32::MAX, i32::MIN][i % 7]).collect();
            for (i, &priority) in priorities.iter().enumerate() {
                note(&engine, &log, Op { priority, property, ..Op::new(&NAME) }, i);
            }
            drop(release);
            engine.wait_all().unwrap();
            let mut expected: Vec<usize> = (0..300).collect();
            expected.sort_by_key(|&i| std::cmp::Reverse(priorities[i]));
            assert_eq!(*log.lock().unwrap(), expected);
        }
    }
}

#[test]
fn a_priority_is_seen_behind_many_ready_operations() {
    const READY: usize = 500;
    for kind in THREADED {
        let engine = engine(kind, 1);
        let (var, log) = (engine.new_var(), Log::default());
        // Short operations first, so that the worker takes in no more than it needs.
        (0..5000).for_each(|_| engine.push(Op::new(&NAME), |_| Ok(())).unwrap());
        let release = block(&engine, Op { writes: &[&var], ..Op::new(&NAME) });
        let (started, wait_started) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        for i in 0..READY {
            note(&engine, &log, Op { reads: &[&var], ..Op::new(&NAME) }, i);
        }
        drop(release);
        engine.wait_to_read(&var).unwrap();
        engine
            .push(Op { priority: 1, ..Op::new(&NAME) }, move |_| {
                started.send(()).unwrap();
                let _ = gate.recv();
                Ok(())
            })
            .unwrap();
        wait_started.recv().unwrap();
        note(&engine, &log, Op::new(&NAME), READY + 1);
        note(&engine, &log, Op { priority: 1, ..Op::new(&NAME) }, READY);
        drop(go);
        engine.wait_all().unwrap();
        let log = log.lock().unwrap();
        let place = |value| log.iter().position(|&i| i == value).unwrap();
        assert!(place(READY) < place(READY + 1));
        assert_eq!(log.len(), READY + 2);
    }
}

#[test]
fn prioritized_operations_pass_a_busy_device() {
    let engine = engine(EngineKind::PerDevice, 1);
    let release = block(&engine, Op::new(&NAME));
    let var = engine.new_var();
    let log = Log::default();
    note(&engine, &log, Op { property: Property::Prioritized, writes: &[&var], ..Op::new(&NAME) }, 1);
    engine.wait_to_read(&var).unwrap();
    assert_eq!(*log.lock().unwrap(), [1]);
    drop(release);
}

#[test]
fn the_order_of_each_pushing_thread_is_kept() {
    const THREADS: usize = 4;
    const OPS: usize = 500;
    each(|engine| {
        let shared = engine.new_var();
        let (log, total) = (Log::default(), Arc::new(AtomicU64::new(0)));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (log, total, shared) = (&log, &total, &shared);
                scope.spawn(move || {
                    let own = engine.new_var();
                    for i in 0..OPS {
                        let total = total.clone();
                        let op = Op { reads: &[shared], writes: &[&own], ..Op::new(&NAME) };
                        engine
                            .push(op, move |_| {
                                total.fetch_add(1, Ordering::Relaxed);
                                Ok(())
                            })
                            .unwrap();
                        if i % 10 == 0 {
                            note(engine, log, Op { writes: &[shared], ..Op::new(&NAME) }, thread * OPS + i);
                        }
                        if i % 100 == 0 {
                            engine.wait_to_write(&own).unwrap();
                        }
                    }
                });
            }
        });
        engine.wait_all().unwrap();
        assert_eq!(total.load(Ordering::Relaxed), (THREADS * OPS) as u64);
        assert_eq!(engine.version(&shared), (THREADS * OPS / 10) as u64);
        let log = log.lock().unwrap();
        for thread in 0..THREADS {
            let own: Vec<usize> = log.iter().copied().filter(|&i| i / OPS == thread).collect();
            assert_eq!(own, (0..OPS).step_by(10).map(|i| thread * OPS + i).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_variable_may_be_listed_several_times() {
    each(|engine| {
        let [a, b] = std::array::from_fn(|_| engine.new_var());
        let log = Log::default();
        for i in 0..20 {
            let op = match i % 4 {
                0 => Op { reads: &[&a, &a, &b, &a], ..Op::new(&NAME) },
                1 => Op { writes: &[&a, &a], ..Op::new(&NAME) },
                2 => Op { reads: &[&a, &b], writes: &[&b, &a, &b], ..Op::new(&NAME) },
                _ => Op { reads: &[&b, &b], writes: &[&a, &a], ..Op::new(&NAME) },
            };
            note(engine, &log, op, i);
        }
        engine.wait_all().unwrap();
        assert_eq!(*log.lock().unwrap(), (0..20).collect::<Vec<_>>());
        assert_eq!((engine.version(&a), engine.version(&b)), (15, 5));
    });
}

#[test]
fn variables_are_deleted_after_their_uses_and_their_numbers_used_again() {
    each(|engine| {
        let alive = Arc::new(());
        for round in 0..600 {
            let var = engine.new_var();
            assert_eq!(engine.version(&var), 0, "round {round}");
            let witness = alive.clone();
            let op = Op { writes: &[&var], ..Op::new(&NAME) };
            engine
                .push(op, move |_| {
                    drop(witness);
                    Ok(())
                })
                .unwrap();
            if round % 3 == 0 {
                let witness = alive.clone();
                engine.delete_var(var, move |_| drop(witness)).unwrap();
            }
            if round % 50 == 0 {
                engine.wait_all().unwrap();
            }
        }
        engine.wait_all().unwrap();
        assert_eq!(Arc::strong_count(&alive), 1);
    });
}

#[test]
fn run_ahead_is_bounded() {
    const LIMIT: usize = 10;
    for kind in THREADED {
        for bytes in [0, 100] {
            // One of the two bounds is out of reach.
            let (max_pending, max_staged_bytes) = if bytes == 0 { (LIMIT, u64::MAX) } else { (10_000, 1000) };
            let config = EngineConfig { kind, cpu_workers: 2, max_pending, max_staged_bytes, ..Default::default() };
            let engine = Engine::new(config).unwrap();
            let (pending, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            for i in 0..2000 {
                let pending = pending.clone();
                // Counted after the push, so the bound is on what was pending before.
                let own = pending.clone();
                let op = Op { staged_bytes: bytes, ..Op::new(&NAME) };
                engine
                    .push(op, move |_| {
                        (0..i % 100).for_each(|_| std::hint::spin_loop());
                        own.fetch_sub(1, Ordering::SeqCst);
                        Ok(())
                    })
                    .unwrap();
                let now = pending.fetch_add(1, Ordering::SeqCst).wrapping_add(1) as isize;
                most.fetch_max(now.max(0) as usize, Ordering::SeqCst);
            }
            engine.wait_all().unwrap();
            assert!(most.load(Ordering::SeqCst) <= LIMIT, "{most:?}");
        }
        // One operation may exceed the bound of bytes, alone.
        let engine = Engine::new(EngineConfig { kind, max_staged_bytes: 10, ..Default::default() }).unwrap();
        for _ in 0..3 {
            engine.push(Op { staged_bytes: 1000, ..Op::new(&NAME) }, |_| Ok(())).unwrap();
        }
        engine.wait_all().unwrap();
    }
}

#[test]
fn operations_push_without_bound() {
    for kind in EngineKind::ALL {
        let config = EngineConfig { kind, cpu_workers: 1, max_pending: 2, max_staged_bytes: 5, ..Default::default() };
        let engine = Engine::new(config).unwrap();
        let (inner, count, var) = (engine.clone(), Arc::new(AtomicU64::new(0)), Arc::new(engine.new_var()));
        let (runs, used) = (count.clone(), var.clone());
        engine
            .push(Op { writes: &[&var], ..Op::new(&NAME) }, move |_| {
                for _ in 0..100 {
                    let runs = runs.clone();
                    let op = Op { reads: &[&used], staged_bytes: 3, ..Op::new(&NAME) };
                    inner.push(op, move |_| {
                        runs.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    })?;
                }
                runs.fetch_add(1000, Ordering::SeqCst);
                Ok(())
            })
            .unwrap();
        engine.wait_all().unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 1100, "{kind}");
    }
}

#[test]
fn a_stopped_engine_that_is_full_says_so() {
    for kind in THREADED {
        let engine = Engine::new(EngineConfig { kind, max_pending: 4, ..Default::default() }).unwrap();
        engine.stop().unwrap();
        (0..4).for_each(|_| engine.push(Op::new(&NAME), |_| Ok(())).unwrap());
        let error = engine.push(Op::new(&NAME), |_| Ok(())).unwrap_err();
        assert!(matches!(error, EngineError::Stopped { pending: 4, .. }));
        engine.start().unwrap();
        engine.push(Op::new(&NAME), |_| Ok(())).unwrap();
        engine.wait_all().unwrap();
    }
}

#[test]
fn nothing_ready_waits_for_a_stuck_worker() {
    for kind in THREADED {
        for workers in [2, 3] {
            let engine = engine(kind, workers);
            let count = Arc::new(AtomicU64::new(0));
            let push = |reads: &[&Var]| {
                let count = count.clone();
                let op = Op { reads, ..Op::new(&NAME) };
                engine
                    .push(op, move |_| {
                        count.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    })
                    .unwrap();
            };
            let var = engine.new_var();
            for round in 1..20 {
                // Many short operations, so that one worker seems to be enough.
                (0..2000).for_each(|_| push(&[]));
                let (release, gate) = mpsc::channel::<()>();
                engine
                    .push(Op { writes: &[&var], ..Op::new(&NAME) }, move |_| {
                        let _ = gate.recv();
                        Ok(())
                    })
                    .unwrap();
                (0..1000).for_each(|_| push(&[]));
                while count.load(Ordering::SeqCst) < round * 3000 {
                    std::thread::yield_now();
                }
                drop(release);
            }
            engine.wait_all().unwrap();
        }
    }
}

#[test]
fn an_engine_may_end_inside_an_operation() {
    for kind in EngineKind::ALL {
        let engine = engine(kind, 2);
        let (done, wait_done) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        if kind == EngineKind::Naive {
            drop(go);
        } else {
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(5));
                drop(go);
            });
        }
        let last = engine.clone();
        let after = done.clone();
        engine
            .push(Op::new(&NAME), move |_| {
                let _ = gate.recv();
                let var = last.new_var();
                last.push(Op { writes: &[&var], ..Op::new(&NAME) }, move |_| Ok(done.send(1)?))?;
                last.delete_var(var, move |_| after.send(2).unwrap())?;
                drop(last);
                Ok(())
            })
            .unwrap();
        drop(engine);
        assert_eq!((wait_done.recv().unwrap(), wait_done.recv().unwrap()), (1, 2));
    }
}
