//! How errors travel through variables, and that misuse is an error and not a hang.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tensorc_runtime::engine::*;
use tensorc_runtime::{Device, TaskPanic};

static GOOD: OpName = OpName::from_static("good");
static BAD: OpName = OpName::from_static("bad");

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("scale {0} is negative")]
struct NegativeScale(i32);

fn each(test: impl Fn(&Engine)) {
    for kind in EngineKind::ALL {
        for cpu_workers in [1, 3] {
            test(&Engine::new(EngineConfig { kind, cpu_workers, ..EngineConfig::default() }).unwrap());
        }
    }
}

fn fail(engine: &Engine, name: &OpName, reads: &[&Var], writes: &[&Var]) {
    engine.push(Op { reads, writes, ..Op::new(name) }, |_| Err(Box::new(NegativeScale(-1)))).unwrap();
}

/// Pushes an operation that counts its runs.
fn count(engine: &Engine, runs: &Arc<AtomicU64>, reads: &[&Var], writes: &[&Var]) {
    let runs = runs.clone();
    let op = Op { reads, writes, ..Op::new(&GOOD) };
    engine
        .push(op, move |_| {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
        .unwrap();
}

fn failure(result: Result<(), WaitError>) -> Arc<OpError> {
    match result {
        Err(WaitError::Failed(error)) => error,
        other => panic!("not the error of a variable: {other:?}"),
    }
}

fn failures(result: Result<(), WaitError>) -> Failures {
    match result {
        Err(WaitError::Failures(failures)) => failures,
        other => panic!("not the failures of an engine: {other:?}"),
    }
}

#[test]
fn an_error_reaches_everything_that_depends_on_it() {
    each(|engine| {
        let [a, b, c, d, free] = std::array::from_fn(|_| engine.new_var());
        let runs = Arc::new(AtomicU64::new(0));
        fail(engine, &BAD, &[], &[&a]);
        count(engine, &runs, &[&a], &[&b]);
        count(engine, &runs, &[&b, &free], &[&c, &d]);
        count(engine, &runs, &[], &[&free]);
        let error = failure(engine.wait_to_read(&a));
        // As often as it is asked for, on each variable, and it is the same one.
        for var in [&a, &b, &c, &d, &a] {
            assert!(Arc::ptr_eq(&failure(engine.wait_to_read(var)), &error));
            assert!(Arc::ptr_eq(&failure(engine.wait_to_write(var)), &error));
        }
        engine.wait_to_read(&free).unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        assert_eq!(error.to_string(), "operator `bad`, on cpu:0: scale -1 is negative");
        assert_eq!(error.source().unwrap().downcast_ref(), Some(&NegativeScale(-1)));
    });
}

#[test]
fn all_failures_are_told_once() {
    each(|engine| {
        let [a, b, c] = std::array::from_fn(|_| engine.new_var());
        fail(engine, &BAD, &[], &[&a]);
        fail(engine, &BAD, &[], &[&b]);
        fail(engine, &BAD, &[&a], &[&c]);
        let told = failures(engine.wait_all());
        assert_eq!((told.listed.len(), told.omitted), (2, 0));
        assert_eq!(told.to_string().matches("scale -1").count(), 2);
        engine.wait_all().unwrap();
        assert!(Arc::ptr_eq(&failure(engine.wait_to_read(&c)), &failure(engine.wait_to_read(&a))));
    });
}

#[test]
fn the_list_of_failures_is_bounded() {
    each(|engine| {
        let total = Failures::MAX_LISTED_FAILURES as u64 + 36;
        (0..total).for_each(|_| fail(engine, &BAD, &[], &[]));
        let told = failures(engine.wait_all());
        assert_eq!((told.listed.len(), told.omitted), (Failures::MAX_LISTED_FAILURES, 36));
        assert!(told.to_string().ends_with("; and 36 more"));
        engine.wait_all().unwrap();
    });
}

#[test]
fn an_error_stays_until_a_successful_overwrite() {
    each(|engine| {
        let (var, runs) = (engine.new_var(), Arc::new(AtomicU64::new(0)));
        fail(engine, &BAD, &[], &[&var]);
        let first = failure(engine.wait_to_read(&var));
        // An update would use the value that is not there.
        count(engine, &runs, &[&var], &[&var]);
        assert!(Arc::ptr_eq(&failure(engine.wait_to_read(&var)), &first));
        // An overwrite that fails puts its own error there.
        fail(engine, &BAD, &[], &[&var]);
        assert!(!Arc::ptr_eq(&failure(engine.wait_to_read(&var)), &first));
        assert_eq!(runs.load(Ordering::SeqCst), 0);
        count(engine, &runs, &[], &[&var]);
        engine.wait_to_read(&var).unwrap();
        count(engine, &runs, &[&var], &[&var]);
        engine.wait_to_read(&var).unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 2);
        assert_eq!(engine.version(&var), 5);
        failures(engine.wait_all());
    });
}

#[test]
fn a_variable_with_an_error_is_deleted() {
    each(|engine| {
        let (var, runs) = (engine.new_var(), Arc::new(AtomicU64::new(0)));
        fail(engine, &BAD, &[], &[&var]);
        let deleted = runs.clone();
        engine
            .delete_var(var, move |_| {
                deleted.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
        failures(engine.wait_all());
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        // Its number is used again, without the error.
        let var = engine.new_var();
        count(engine, &runs, &[&var], &[]);
        engine.wait_to_write(&var).unwrap();
        assert_eq!((engine.version(&var), runs.load(Ordering::SeqCst)), (0, 2));
    });
}

#[test]
fn a_panic_is_an_error_with_its_text() {
    each(|engine| {
        let [a, b, c] = std::array::from_fn(|_| engine.new_var());
        let text = String::from("seven");
        engine.push(Op { writes: &[&a], ..Op::new(&BAD) }, move |_| panic!("no {text}")).unwrap();
        engine.push_async(Op { writes: &[&b], ..Op::new(&BAD) }, |_, _completion| panic!("no eight")).unwrap();
        engine.push(Op { writes: &[&c], ..Op::new(&BAD) }, |_| panic!("no nine")).unwrap();
        for (var, text) in [(&a, "no seven"), (&b, "no eight"), (&c, "no nine")] {
            let error = failure(engine.wait_to_read(var));
            assert!(matches!(&error.cause, Cause::Panicked(TaskPanic { message }) if message == text), "{error}");
            assert_eq!(error.to_string(), format!("operator `bad`, on cpu:0: task panicked: {text}"));
        }
        assert_eq!(failures(engine.wait_all()).listed.len(), 3);
    });
}

#[test]
fn a_panic_beside_a_completion_that_lives_on_is_told() {
    each(|engine| {
        let (var, (send, receive)) = (engine.new_var(), std::sync::mpsc::channel());
        let op = Op { writes: &[&var], ..Op::new(&BAD) };
        let finisher = std::thread::spawn(move || {
            let completion: Completion = receive.recv().unwrap();
            completion.complete(Ok(()));
        });
        engine
            .push_async(op, move |_, completion| {
                send.send(completion).unwrap();
                panic!("too late")
            })
            .unwrap();
        finisher.join().unwrap();
        engine.wait_to_read(&var).unwrap();
        // The panic is recorded by the thread that ran the operation, perhaps after its completion.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let told = loop {
            match engine.wait_all() {
                Err(WaitError::Failures(told)) => break told,
                _ => assert!(std::time::Instant::now() < deadline),
            }
        };
        assert!(told.to_string().contains("too late"));
    });
}

#[test]
fn a_dropped_completion_is_an_error() {
    each(|engine| {
        let var = engine.new_var();
        let name = OpName::at_node("copy", "layer1/weights");
        let op = Op { writes: &[&var], device: Device::cpu(2), ..Op::new(&name) };
        engine.push_async(op, |_, completion| drop(completion)).unwrap();
        let error = failure(engine.wait_to_read(&var));
        assert!(matches!(error.cause, Cause::Abandoned));
        let text = "operator `copy`, node `layer1/weights`, on cpu:2: its completion was dropped without a result";
        assert_eq!(error.to_string(), text);
        assert_eq!(failures(engine.wait_all()).listed.len(), 1);
    });
}

#[test]
fn completions_carry_errors() {
    each(|engine| {
        let [a, b] = std::array::from_fn(|_| engine.new_var());
        let runs = Arc::new(AtomicU64::new(0));
        let op = Op { writes: &[&a], ..Op::new(&BAD) };
        engine
            .push_async(op, |_, completion| {
                std::thread::spawn(move || completion.complete(Err("line is cut".into())));
            })
            .unwrap();
        count(engine, &runs, &[&a], &[&b]);
        assert!(failure(engine.wait_to_read(&b)).to_string().ends_with("line is cut"));
        assert_eq!(runs.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn operations_cannot_wait_for_their_engine() {
    each(|engine| {
        let var = Arc::new(engine.new_var());
        let results = Arc::new(Mutex::new(Vec::new()));
        let (inner, out, own) = (engine.clone(), results.clone(), var.clone());
        engine
            .push(Op { writes: &[&var], ..Op::new(&GOOD) }, move |_| {
                let mut results = out.lock().unwrap();
                results.push(matches!(inner.wait_to_read(&own), Err(WaitError::InsideOperation)));
                results.push(matches!(inner.wait_to_write(&own), Err(WaitError::InsideOperation)));
                results.push(matches!(inner.wait_all(), Err(WaitError::InsideOperation)));
                results.push(matches!(inner.stop(), Err(EngineError::InsideOperation)));
                results.push(matches!(inner.start(), Err(EngineError::InsideOperation)));
                Ok(())
            })
            .unwrap();
        engine.wait_all().unwrap();
        assert_eq!(*results.lock().unwrap(), [true; 5]);
    });
}

#[test]
fn engines_do_not_mix() {
    let (one, other) = (Engine::new(EngineConfig::default()).unwrap(), Engine::new(EngineConfig::default()).unwrap());
    let foreign = other.new_var();
    let op = Op { reads: &[&foreign], ..Op::new(&GOOD) };
    assert!(matches!(one.push(op, |_| Ok(())), Err(EngineError::ForeignVariable { .. })));
    assert!(matches!(one.wait_to_read(&foreign), Err(WaitError::ForeignVariable)));
    assert!(matches!(one.delete_var(foreign, |_| ()), Err(EngineError::ForeignVariable { .. })));
    other.wait_all().unwrap();
}

#[test]
fn wrong_configurations_are_errors() {
    let base = EngineConfig::default;
    for (config, what) in [
        (EngineConfig { cpu_workers: 0, ..base() }, "cpu_workers"),
        (EngineConfig { priority_workers: 1 << 20, ..base() }, "priority_workers"),
        (EngineConfig { accelerator_workers: 0, ..base() }, "accelerator_workers"),
        (EngineConfig { copy_workers: 0, ..base() }, "copy_workers"),
        (EngineConfig { max_pending: 0, ..base() }, "max_pending"),
        (EngineConfig { max_staged_bytes: 0, ..base() }, "max_staged_bytes"),
    ] {
        assert!(Engine::new(config).unwrap_err().to_string().starts_with(what));
    }
    for kind in EngineKind::ALL {
        assert_eq!(kind.to_string().parse::<EngineKind>().unwrap(), kind);
    }
    let error = "threaded".parse::<EngineKind>().unwrap_err();
    assert_eq!(error.to_string(), "`threaded` is no kind of engine; there are naive, pooled, per_device");
}

#[test]
fn what_does_not_run_is_dropped() {
    each(|engine| {
        let (var, value) = (engine.new_var(), Arc::new(()));
        fail(engine, &BAD, &[], &[&var]);
        for size in [1, 100] {
            let values = vec![value.clone(); size];
            let array: [Arc<()>; 20] = std::array::from_fn(|_| value.clone());
            let op = Op { reads: &[&var], ..Op::new(&GOOD) };
            engine
                .push(op, move |_| {
                    drop((values, array));
                    Ok(())
                })
                .unwrap();
        }
        failures(engine.wait_all());
        // The last ones are dropped by a worker after it has told that all is done.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while Arc::strong_count(&value) > 1 {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
    });
}
