//! Variables that operations give up while they run.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tensorc_runtime::engine::{
    Cause, Completion, Engine, EngineConfig, EngineKind, Op, OpName, RunContext, Var, WaitError,
};

static NAME: OpName = OpName::from_static("writes");
const PATIENCE: Duration = Duration::from_secs(20);

fn engine(kind: EngineKind) -> Engine {
    Engine::new(EngineConfig { kind, cpu_workers: 2, ..EngineConfig::default() }).unwrap()
}

fn writes<'a>(vars: &'a [&'a Var]) -> Op<'a> {
    Op { writes: vars, ..Op::new(&NAME) }
}

/// Pushes an operation that reads a variable, and tells by the channel that it runs.
fn push_reader(engine: &Engine, var: &Var) -> Receiver<()> {
    let (sender, ran) = channel();
    let tell = move |_: &RunContext<'_>| {
        sender.send(()).unwrap();
        Ok(())
    };
    engine.push(Op { reads: &[var], ..Op::new(&NAME) }, tell).unwrap();
    ran
}

/// Two variables, and the beginning of an operation that waits for a word before it begins.
struct Given {
    vars: Arc<[Var; 2]>,
    go: Sender<()>,
    wait: Receiver<()>,
}

fn given(engine: &Engine) -> Given {
    let (go, wait) = channel();
    Given { vars: Arc::new([engine.new_var(), engine.new_var()]), go, wait }
}

#[test]
fn readers_and_waits_do_not_wait_for_the_end() {
    for kind in [EngineKind::Pooled, EngineKind::PerDevice] {
        for fails in [false, true] {
            let engine = engine(kind);
            let Given { vars, go, wait } = given(&engine);
            let held = vars.clone();
            let run = move |context: &RunContext<'_>| {
                assert!(context.release(&held[0]) && !context.release(&held[0]));
                wait.recv_timeout(PATIENCE).unwrap();
                if fails { Err("late".into()) } else { Ok(()) }
            };
            engine.push(writes(&[&vars[0], &vars[1]]), run).unwrap();
            let [early, late] = [0, 1].map(|at| push_reader(&engine, &vars[at]));
            early.recv_timeout(PATIENCE).unwrap();
            engine.wait_to_write(&vars[0]).unwrap();
            assert_eq!((engine.version(&vars[0]), engine.version(&vars[1])), (1, 0));
            assert!(late.try_recv().is_err());
            go.send(()).unwrap();
            let ended = engine.wait_to_write(&vars[1]);
            assert_eq!((ended.is_err(), late.recv_timeout(PATIENCE).is_err()), (fails, fails));
            engine.wait_to_read(&vars[0]).unwrap();
            assert_eq!((engine.version(&vars[0]), engine.version(&vars[1])), (1, 1));
            assert_eq!(engine.wait_all().is_err(), fails, "the failure is told once");
        }
    }
}

/// A thread that waits runs what has become possible.
#[test]
fn a_waiting_thread_of_a_naive_engine_helps() {
    let engine = engine(EngineKind::Naive);
    let Given { vars, go, wait } = given(&engine);
    let (begun, begins) = channel();
    std::thread::scope(|scope| {
        let (engine, held, of) = (&engine, vars.clone(), vars.clone());
        scope.spawn(move || {
            let run = move |context: &RunContext<'_>| {
                begun.send(()).unwrap();
                assert!(context.release(&held[0]));
                wait.recv_timeout(PATIENCE).unwrap();
                Err("late".into())
            };
            engine.push(writes(&[&vars[0], &vars[1]]), run).unwrap();
            let WaitError::Failed(error) = engine.wait_to_read(&vars[1]).unwrap_err() else { panic!() };
            assert!(matches!(error.cause, Cause::Failed(_)));
            engine.wait_to_read(&vars[0]).unwrap();
        });
        begins.recv_timeout(PATIENCE).unwrap();
        push_reader(engine, &of[0]).try_recv().unwrap();
        engine.wait_to_read(&of[0]).unwrap();
        go.send(()).unwrap();
    });
}

#[test]
fn completions_release_from_other_threads() {
    for kind in EngineKind::ALL {
        let engine = engine(kind);
        let vars = Arc::new([engine.new_var(), engine.new_var()]);
        let held = vars.clone();
        std::thread::scope(|scope| {
            let (sender, completions) = channel();
            let run = move |context: &RunContext<'_>, completion: Completion| {
                assert!(!context.release(&held[0]), "its completion does that");
                sender.send(completion).unwrap();
            };
            let (pusher, of) = (&engine, &vars);
            scope.spawn(move || pusher.push_async(writes(&[&of[0], &of[1]]), run).unwrap());
            let completion = completions.recv_timeout(PATIENCE).unwrap();
            assert!(completion.release(&vars[0]) && !completion.release(&vars[0]));
            engine.wait_to_read(&vars[0]).unwrap();
            drop(completion);
        });
        engine.wait_to_read(&vars[0]).unwrap();
        assert!(
            matches!(engine.wait_to_read(&vars[1]), Err(WaitError::Failed(e)) if matches!(e.cause, Cause::Abandoned))
        );
    }
}

#[test]
fn only_what_is_overwritten_is_released() {
    for kind in EngineKind::ALL {
        let (engine, other) = (engine(kind), engine(kind));
        let vars: Arc<Vec<Var>> = Arc::new((0..4).map(|_| engine.new_var()).collect());
        let (held, foreign) = (vars.clone(), other.new_var());
        let run = move |context: &RunContext<'_>| {
            let released: Vec<bool> = held.iter().chain([&foreign]).map(|var| context.release(var)).collect();
            assert_eq!(released, [true, false, false, false, false]);
            Ok(())
        };
        let written = [&vars[0], &vars[1]];
        engine.push(Op { reads: &[&vars[1], &vars[2]], ..writes(&written) }, run).unwrap();
        engine.wait_all().unwrap();
        let versions: Vec<u64> = vars.iter().map(|var| engine.version(var)).collect();
        assert_eq!(versions, [1, 1, 0, 0]);
    }
}
