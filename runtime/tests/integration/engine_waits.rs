//! Waiting and stopping while other threads push, and engines that have little to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tensorc_runtime::engine::*;

static NAME: OpName = OpName::from_static("test");

fn each(test: impl Fn(&Engine)) {
    for kind in EngineKind::ALL {
        for cpu_workers in [1, 3] {
            test(&Engine::new(EngineConfig { kind, cpu_workers, ..EngineConfig::default() }).unwrap());
        }
    }
}

fn count(engine: &Engine, runs: &Arc<AtomicU64>, writes: &[&Var]) {
    let runs = runs.clone();
    let op = Op { writes, ..Op::new(&NAME) };
    engine
        .push(op, move |_| {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
        .unwrap();
}

#[test]
fn stopping_while_others_push_loses_nothing() {
    const PUSHES: u64 = 1000;
    each(|engine| {
        let runs = Arc::new(AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let runs = &runs;
                scope.spawn(move || {
                    let var = engine.new_var();
                    (0..PUSHES).for_each(|_| count(engine, runs, &[&var]));
                });
            }
            for _ in 0..20 {
                engine.stop().unwrap();
                let stopped_at = runs.load(Ordering::SeqCst);
                std::thread::yield_now();
                assert_eq!(runs.load(Ordering::SeqCst), stopped_at);
                engine.start().unwrap();
                std::thread::yield_now();
            }
        });
        engine.wait_all().unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 3 * PUSHES);
    });
}

#[test]
fn waiting_for_all_ends_while_others_push() {
    each(|engine| {
        let (stop, runs) = (AtomicBool::new(false), Arc::new(AtomicU64::new(0)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    count(engine, &runs, &[]);
                }
            });
            let own = Arc::new(AtomicU64::new(0));
            for round in 1..20 {
                count(engine, &own, &[]);
                engine.wait_all().unwrap();
                assert_eq!(own.load(Ordering::SeqCst), round);
            }
            stop.store(true, Ordering::Relaxed);
        });
        engine.wait_all().unwrap();
    });
}

/// Pushes an operation that pushes another one, and so on.
fn descend(engine: &Engine, runs: &Arc<AtomicU64>, depth: u64) -> Result<(), EngineError> {
    let (inner, runs) = (engine.clone(), runs.clone());
    engine.push(Op::new(&NAME), move |_| {
        std::thread::yield_now();
        if depth > 1 {
            descend(&inner, &runs, depth - 1)?;
        }
        runs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    })
}

#[test]
fn waiting_for_all_includes_what_operations_push() {
    each(|engine| {
        for _ in 0..20 {
            let runs = Arc::new(AtomicU64::new(0));
            descend(engine, &runs, 30).unwrap();
            engine.wait_all().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), 30);
        }
    });
}

#[test]
fn several_threads_wait_for_the_same() {
    each(|engine| {
        let (var, runs) = (engine.new_var(), Arc::new(AtomicU64::new(0)));
        (0..200).for_each(|_| count(engine, &runs, &[&var]));
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (var, runs) = (&var, &runs);
                scope.spawn(move || {
                    match thread % 3 {
                        0 => engine.wait_to_read(var).unwrap(),
                        1 => engine.wait_to_write(var).unwrap(),
                        _ => engine.wait_all().unwrap(),
                    }
                    assert_eq!(runs.load(Ordering::SeqCst), 200);
                });
            }
        });
    });
}

#[test]
fn a_wait_does_not_depend_on_a_worker_that_is_stuck() {
    for kind in [EngineKind::Pooled, EngineKind::PerDevice] {
        let engine = Engine::new(EngineConfig { kind, cpu_workers: 1, ..EngineConfig::default() }).unwrap();
        let (var, other) = (engine.new_var(), engine.new_var());
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let (started, wait_started) = std::sync::mpsc::channel();
        engine
            .push(Op { writes: &[&other], ..Op::new(&NAME) }, move |_| {
                started.send(()).unwrap();
                let _ = gate.recv();
                Ok(())
            })
            .unwrap();
        wait_started.recv().unwrap();
        // Stays in the inbox, as the only worker looks there no more.
        engine.push(Op { writes: &[&other], ..Op::new(&NAME) }, |_| Ok(())).unwrap();
        engine.wait_to_write(&var).unwrap();
        drop(release);
        engine.wait_to_write(&other).unwrap();
        assert_eq!(engine.version(&other), 2);
    }
}

#[test]
fn an_idle_engine_uses_the_numbers_of_dropped_variables_again() {
    each(|engine| {
        for _ in 0..50_000 {
            drop(engine.new_var());
        }
        let text = format!("{:?}", engine.new_var());
        let number: u32 = text.trim_start_matches("Var(").trim_end_matches(')').parse().unwrap();
        assert!(number < 2000, "{text}");
    });
}

#[test]
fn handles_outlive_their_engine() {
    each(|engine| {
        let (var, value) = (engine.new_var(), Arc::new(()));
        let (keep, done) = (value.clone(), std::sync::mpsc::channel());
        let engine = Engine::new(engine.config().clone()).unwrap();
        let own = engine.new_var();
        let writes = Op { writes: &[&own], ..Op::new(&NAME) };
        engine
            .push(writes, move |_| {
                let _ = &keep;
                Ok(())
            })
            .unwrap();
        let send = done.0;
        engine
            .push_async(Op { reads: &[&own], ..Op::new(&NAME) }, move |_, completion| {
                std::thread::spawn(move || {
                    std::thread::yield_now();
                    send.send(()).unwrap();
                    completion.complete(Ok(()));
                });
            })
            .unwrap();
        drop(engine);
        // Ending the engine waited for the completion.
        done.1.try_recv().unwrap();
        drop(own);
        assert_eq!(Arc::strong_count(&value), 1);
        drop(var);
    });
}
