//! What every kind of engine promises: order, waits, versions, deletion, stopping, completions.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tensorc_runtime::Device;
use tensorc_runtime::engine::*;

static NAME: OpName = OpName::from_static("test");

fn engine(kind: EngineKind, workers: usize) -> Engine {
    Engine::new(EngineConfig { kind, cpu_workers: workers, ..EngineConfig::default() }).unwrap()
}

/// Every kind of engine, with one worker and several.
fn each(test: impl Fn(&Engine)) {
    for kind in EngineKind::ALL {
        for workers in [1, 2, 4] {
            test(&engine(kind, workers));
        }
    }
}

fn sleep(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// A small generator of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

/// A number in a shared cell, which the engine must keep from being raced for.
struct Cell {
    value: Mutex<f64>,
    readers: AtomicUsize,
    writers: AtomicUsize,
}

/// `ops` operations over `vars` numbers; each reads some and writes the mean of what it read.
fn random_sums(engine: &Engine, seed: u64, vars: usize, ops: usize, busy: bool) {
    let cells: Arc<Vec<Cell>> = Arc::new(
        (0..vars)
            .map(|i| Cell { value: Mutex::new(i as f64), readers: AtomicUsize::new(0), writers: AtomicUsize::new(0) })
            .collect(),
    );
    let handles: Vec<Var> = (0..vars).map(|_| engine.new_var()).collect();
    let mut serial: Vec<f64> = (0..vars).map(|i| i as f64).collect();
    let mut random = Random(seed);
    let violations = Arc::new(AtomicUsize::new(0));
    for _ in 0..ops {
        let write = random.below(vars);
        let mut reads: Vec<usize> = (0..2 + random.below(18)).map(|_| random.below(vars)).collect();
        reads.retain(|&read| read != write);
        serial[write] = reads.iter().map(|&i| serial[i]).sum::<f64>() / (reads.len() + 1) as f64;
        let read_vars: Vec<&Var> = reads.iter().map(|&i| &handles[i]).collect();
        let (cells, violations) = (cells.clone(), violations.clone());
        let (reads, spin) = (reads.clone(), if busy { random.below(200) } else { 0 });
        let op = Op { reads: &read_vars, writes: &[&handles[write]], ..Op::new(&NAME) };
        engine
            .push(op, move |_| {
                let mut wrong = cells[write].writers.fetch_add(1, Ordering::SeqCst) != 0;
                for &i in &reads {
                    cells[i].readers.fetch_add(1, Ordering::SeqCst);
                    wrong |= cells[i].writers.load(Ordering::SeqCst) != 0;
                }
                wrong |= cells[write].readers.load(Ordering::SeqCst) != 0;
                (0..spin).for_each(|_| std::hint::spin_loop());
                let sum: f64 = reads.iter().map(|&i| *cells[i].value.lock().unwrap()).sum();
                *cells[write].value.lock().unwrap() = sum / (reads.len() + 1) as f64;
                for &i in &reads {
                    cells[i].readers.fetch_sub(1, Ordering::SeqCst);
                }
                cells[write].writers.fetch_sub(1, Ordering::SeqCst);
                violations.fetch_add(usize::from(wrong), Ordering::SeqCst);
                Ok(())
            })
            .unwrap();
    }
    engine.wait_all().unwrap();
    assert_eq!(violations.load(Ordering::SeqCst), 0);
    let values: Vec<f64> = cells.iter().map(|cell| *cell.value.lock().unwrap()).collect();
    assert_eq!(values, serial);
}

#[test]
fn random_operations_give_the_serial_result() {
    each(|engine| {
        for seed in 0..5 {
            random_sums(engine, seed, 100, 2000, seed % 2 == 0);
        }
        random_sums(engine, 9, 3, 1000, true);
    });
}

#[test]
fn readers_run_and_the_variable_goes_after_them() {
    each(|engine| {
        let (count, var) = (Arc::new(AtomicU64::new(0)), engine.new_var());
        for _ in 0..10 {
            let count = count.clone();
            let op = Op { reads: &[&var], ..Op::new(&NAME) };
            engine
                .push(op, move |_| {
                    sleep(1);
                    count.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                })
                .unwrap();
        }
        let (seen, then) = (Arc::new(AtomicU64::new(0)), count.clone());
        let out = seen.clone();
        engine.delete_var(var, move |_| out.store(then.load(Ordering::SeqCst), Ordering::SeqCst)).unwrap();
        engine.wait_all().unwrap();
        assert_eq!((count.load(Ordering::SeqCst), seen.load(Ordering::SeqCst)), (10, 10));
    });
}

#[test]
fn writers_run_one_after_the_other_in_order() {
    each(|engine| {
        let (order, var) = (Arc::new(Mutex::new(Vec::new())), engine.new_var());
        for i in 0..10 {
            let order = order.clone();
            let op = Op { writes: &[&var], ..Op::new(&NAME) };
            engine
                .push(op, move |_| {
                    order.lock().unwrap().push((i, "begin"));
                    sleep(1);
                    order.lock().unwrap().push((i, "end"));
                    Ok(())
                })
                .unwrap();
        }
        engine.wait_to_write(&var).unwrap();
        let expected: Vec<_> = (0..10).flat_map(|i| [(i, "begin"), (i, "end")]).collect();
        assert_eq!(*order.lock().unwrap(), expected);
    });
}

#[test]
fn a_fresh_variable_is_not_waited_for() {
    each(|engine| {
        let var = engine.new_var();
        engine.wait_to_read(&var).unwrap();
        engine.wait_to_write(&var).unwrap();
        engine.wait_all().unwrap();
    });
}

#[test]
fn waiting_to_read_waits_for_writers_only() {
    for kind in [EngineKind::Pooled, EngineKind::PerDevice] {
        for workers in [1, 2] {
            let engine = engine(kind, workers);
            let var = engine.new_var();
            let (release, gate) = mpsc::channel::<()>();
            let done = Arc::new(AtomicBool::new(false));
            let flag = done.clone();
            let op = Op { writes: &[&var], ..Op::new(&NAME) };
            engine
                .push(op, move |_| {
                    sleep(5);
                    flag.store(true, Ordering::SeqCst);
                    Ok(())
                })
                .unwrap();
            engine.wait_to_read(&var).unwrap();
            assert!(done.swap(false, Ordering::SeqCst), "the writer must have run");
            let flag = done.clone();
            let op = Op { reads: &[&var], ..Op::new(&NAME) };
            engine
                .push(op, move |_| {
                    gate.recv().unwrap();
                    flag.store(true, Ordering::SeqCst);
                    Ok(())
                })
                .unwrap();
            // Would never return if it waited for the reader.
            engine.wait_to_read(&var).unwrap();
            assert!(!done.load(Ordering::SeqCst));
            release.send(()).unwrap();
            engine.wait_to_write(&var).unwrap();
            assert!(done.load(Ordering::SeqCst));
        }
    }
}

#[test]
fn versions_count_writes() {
    each(|engine| {
        let var = engine.new_var();
        assert_eq!(engine.version(&var), 0);
        for _ in 0..10 {
            engine.push(Op { reads: &[&var], ..Op::new(&NAME) }, |_| Ok(())).unwrap();
        }
        engine.wait_all().unwrap();
        assert_eq!(engine.version(&var), 0);
        for _ in 0..10 {
            engine.push(Op { writes: &[&var], ..Op::new(&NAME) }, |_| Ok(())).unwrap();
        }
        engine.wait_to_read(&var).unwrap();
        assert_eq!(engine.version(&var), 10);
        engine.push(Op { reads: &[&var], writes: &[&var], ..Op::new(&NAME) }, |_| Ok(())).unwrap();
        engine.wait_to_write(&var).unwrap();
        assert_eq!(engine.version(&var), 11);
    });
}

#[test]
fn a_stopped_engine_keeps_what_is_pushed_and_runs_it_later() {
    each(|engine| {
        let (count, var) = (Arc::new(AtomicU64::new(0)), engine.new_var());
        let push = |engine: &Engine| {
            let count = count.clone();
            engine
                .push(Op { writes: &[&var], ..Op::new(&NAME) }, move |_| {
                    sleep(1);
                    count.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                })
                .unwrap();
        };
        for round in 1..4 {
            push(engine);
            push(engine);
            engine.stop().unwrap();
            engine.stop().unwrap();
            assert_eq!(count.load(Ordering::SeqCst), round * 3 - 1);
            engine.wait_all().unwrap();
            push(engine);
            assert!(matches!(engine.wait_to_read(&var), Err(WaitError::Stopped { .. })));
            assert!(matches!(engine.wait_all(), Err(WaitError::Stopped { pending: 1 })));
            assert_eq!(count.load(Ordering::SeqCst), round * 3 - 1);
            engine.start().unwrap();
            engine.wait_all().unwrap();
            assert_eq!(count.load(Ordering::SeqCst), round * 3);
        }
    });
}

#[test]
fn an_operation_may_be_completed_by_another_thread() {
    each(|engine| {
        let var = engine.new_var();
        let done = Arc::new(AtomicBool::new(false));
        let (flag, seen) = (done.clone(), Arc::new(AtomicBool::new(false)));
        let op = Op { writes: &[&var], ..Op::new(&NAME) };
        engine
            .push_async(op, move |_, completion| {
                std::thread::spawn(move || {
                    sleep(5);
                    flag.store(true, Ordering::SeqCst);
                    completion.complete(Ok(()));
                });
            })
            .unwrap();
        let out = seen.clone();
        engine
            .push(Op { reads: &[&var], ..Op::new(&NAME) }, move |_| {
                out.store(done.load(Ordering::SeqCst), Ordering::SeqCst);
                Ok(())
            })
            .unwrap();
        engine.wait_all().unwrap();
        assert!(seen.load(Ordering::SeqCst));
    });
}

#[test]
fn what_was_pushed_runs_before_the_last_handle_is_gone() {
    for kind in EngineKind::ALL {
        let (count, engine) = (Arc::new(AtomicU64::new(0)), engine(kind, 2));
        let (var, other) = (engine.new_var(), engine.new_var());
        for _ in 0..20 {
            let count = count.clone();
            engine
                .push(Op { writes: &[&var], ..Op::new(&NAME) }, move |_| {
                    count.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                })
                .unwrap();
        }
        let then = count.clone();
        engine
            .delete_var(var, move |_| {
                then.fetch_add(100, Ordering::SeqCst);
            })
            .unwrap();
        engine.push(Op { reads: &[&other], ..Op::new(&NAME) }, |_| Ok(())).unwrap();
        drop(engine);
        assert_eq!(count.load(Ordering::SeqCst), 120);
        drop(other);
    }
}

#[test]
fn devices_have_workers_of_their_own() {
    let config = EngineConfig { cpu_workers: 1, ..EngineConfig::default() };
    let engine = Engine::new(config).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let devices = [
        (Device::cpu(0), Property::Normal),
        (Device::cpu(1), Property::Normal),
        (Device::cpu(0), Property::Prioritized),
        (Device::pinned(0), Property::CopyToDevice),
        (Device::accelerator(0), Property::Normal),
        (Device::accelerator(0), Property::CopyToDevice),
        (Device::accelerator(1), Property::CopyFromDevice),
    ];
    // Every operation waits for the others, so each needs a worker that serves no other queue.
    let barrier = Arc::new(std::sync::Barrier::new(devices.len()));
    for (device, property) in devices {
        let (barrier, seen) = (barrier.clone(), seen.clone());
        engine
            .push(Op { device, property, ..Op::new(&NAME) }, move |context| {
                barrier.wait();
                assert_eq!((context.device, context.op), (device, "test"));
                seen.lock().unwrap().push(context.stream);
                Ok(())
            })
            .unwrap();
    }
    engine.wait_all().unwrap();
    let mut streams = seen.lock().unwrap().clone();
    streams.sort_unstable();
    streams.dedup();
    assert_eq!(streams.len(), devices.len());
}
