//! Resources and memory as operations of an engine use them.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};

use super::*;
use crate::device::Device;
use crate::engine::{Engine, EngineConfig, EngineKind, Failure, Op, OpName, RunContext, WaitError};
use crate::storage::{AllocCause, AllocError, POISON, PoolConfig, Pooling, Storage, StorageStats};

const CPU: Device = Device::cpu(0);
static NAME: OpName = OpName::from_static("uses_scratch");

fn engine(kind: EngineKind) -> Engine {
    Engine::new(EngineConfig { kind, cpu_workers: 4, ..EngineConfig::default() }).unwrap()
}

fn storage() -> Storage {
    let pool = PoolConfig { pooling: Pooling::Pages, poison: true, ..PoolConfig::default() };
    Storage::new(pool.into())
}

fn copies(count: usize) -> TempSpaceConfig {
    let count = NonZero::new(count).unwrap();
    TempSpaceConfig { cpu_copies: count, accelerator_copies: count }
}

fn on(device: Device) -> Op<'static> {
    Op { device, ..Op::new(&NAME) }
}

#[test]
fn operations_that_share_a_buffer_take_turns() {
    for kind in EngineKind::ALL {
        let (engine, storage) = (engine(kind), storage());
        let temp = TempSpace::new(&engine, &storage, copies(1));
        let (busy, sum) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        for i in 0..50u8 {
            let (busy, sum) = (busy.clone(), sum.clone());
            temp.push(on(CPU), 100, move |_, scratch| {
                assert!(!busy.swap(true, Ordering::Relaxed));
                scratch.fill(i);
                std::thread::yield_now();
                sum.fetch_add(scratch.iter().map(|&b| usize::from(b)).sum(), Ordering::Relaxed);
                busy.store(false, Ordering::Relaxed);
                Ok(())
            })
            .unwrap();
        }
        engine.wait_all().unwrap();
        assert_eq!(sum.load(Ordering::Relaxed), 100 * 49 * 50 / 2);
        let one = StorageStats { in_use: 4096, peak: 4096, allocations: 1, ..Default::default() };
        assert_eq!(storage.stats(CPU), one, "{kind}");
    }
}

#[test]
fn as_many_operations_as_copies_run_at_the_same_time() {
    let (engine, storage) = (engine(EngineKind::PerDevice), storage());
    let temp = TempSpace::new(&engine, &storage, TempSpaceConfig::default());
    let meet = Arc::new(Barrier::new(4));
    for _ in 0..8 {
        let meet = meet.clone();
        temp.push(on(CPU), 8, move |_, _| {
            meet.wait();
            Ok(())
        })
        .unwrap();
    }
    engine.wait_all().unwrap();
    assert_eq!(storage.stats(CPU).allocations, 4);
}

#[test]
fn buffers_grow_and_are_undefined() {
    let (engine, storage) = (engine(EngineKind::PerDevice), storage());
    let temp = TempSpace::new(&engine, &storage, copies(1));
    for (bytes, in_use) in [(10, 4096), (5000, 8192), (0, 8192), (4096, 8192), (20_000, 20_480), (1, 20_480)] {
        temp.push(on(CPU), bytes, move |_, scratch| {
            assert_eq!(scratch.len() as u64, bytes);
            assert!(scratch.iter().all(|&b| b == POISON));
            scratch.fill(0);
            Ok(())
        })
        .unwrap();
        engine.wait_all().unwrap();
        assert_eq!(storage.stats(CPU).in_use, in_use);
    }
    assert_eq!(storage.stats(CPU).peak, 20_480, "the small buffer goes before the large one comes");
    temp.release().unwrap();
    engine.wait_all().unwrap();
    assert_eq!(storage.stats(CPU).in_use, 0);
    temp.push(on(CPU), 1, |_, _| Ok(())).unwrap();
    engine.wait_all().unwrap();
    drop(temp);
    drop(engine);
    assert_eq!(storage.stats(CPU).in_use, 0);
}

#[test]
fn a_release_waits_for_the_operations_before_it() {
    let (engine, storage) = (engine(EngineKind::PerDevice), storage());
    let temp = TempSpace::new(&engine, &storage, copies(2));
    let (open, closed) = mpsc::channel::<()>();
    temp.push(on(CPU), 64, move |_, scratch| {
        scratch.fill(3);
        closed.recv()?;
        if scratch.iter().any(|&b| b != 3) { Err("the memory was taken away".into()) } else { Ok(()) }
    })
    .unwrap();
    temp.release().unwrap();
    open.send(()).unwrap();
    engine.wait_all().unwrap();
    assert_eq!(storage.stats(CPU).in_use, 0);
}

#[test]
fn a_failure_names_its_cause_and_does_not_stay() {
    let pool = PoolConfig { limit: Some(1 << 20), ..PoolConfig::default() };
    let (engine, storage) = (engine(EngineKind::PerDevice), Storage::new(pool.into()));
    let temp = TempSpace::new(&engine, &storage, copies(1));
    let result = engine.new_var();
    temp.push(Op { writes: &[&result], ..on(CPU) }, 2 << 20, |_, _| Ok(())).unwrap();
    let error = engine.wait_to_read(&result).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("operator `uses_scratch`, on cpu:0: cannot allocate 2097152 bytes on cpu:0"), "{text}");
    temp.push_async(on(CPU), 2 << 20, |_, _, completion| completion.complete(Ok(()))).unwrap();
    temp.push(on(CPU), 8, |_, _| Err("stopped".into())).unwrap();
    temp.push(on(CPU), 8, |_, _| panic!("fell")).unwrap();
    let WaitError::Failures(failures) = engine.wait_all().unwrap_err() else { panic!() };
    assert_eq!(failures.listed.len(), 4);
    temp.push(Op { writes: &[&result], ..on(CPU) }, 8, |_, _| Ok(())).unwrap();
    engine.wait_to_read(&result).unwrap();
    engine.wait_all().unwrap();
}

/// The variable is what keeps operations apart; forgetting it costs memory, not correctness.
#[test]
fn memory_taken_without_the_variable_is_not_shared() {
    let (engine, storage) = (engine(EngineKind::PerDevice), storage());
    let temp = TempSpace::new(&engine, &storage, copies(1));
    let (first, second) = (temp.request(CPU), temp.request(CPU));
    let (mut a, mut b) = (first.take(10).unwrap(), second.take(9000).unwrap());
    a.fill(1);
    b.fill(2);
    assert!(a.iter().all(|&x| x == 1) && b.iter().all(|&x| x == 2));
    drop((a, b));
    assert_eq!(storage.stats(CPU).in_use, 12_288, "the larger one is kept");
    let inside = first.clone();
    engine
        .push(Op { writes: &[first.var()], ..on(CPU) }, move |_| {
            inside.take(9000)?.fill(0);
            Ok(())
        })
        .unwrap();
    engine.wait_all().unwrap();
    assert_eq!(storage.stats(CPU).allocations, 2);
}

/// Memory is given back after the last use that was pushed, not when its owner goes.
#[test]
fn memory_outlives_its_owner_while_operations_use_it() {
    let (engine, storage) = (engine(EngineKind::PerDevice), storage());
    let var = engine.new_var();
    let mut block = storage.alloc(CPU, 100).unwrap();
    block.as_mut_slice().fill(7);
    let address = AtomicPtr::new(block.start().as_ptr());
    let (open, closed) = mpsc::channel::<()>();
    let read = move |_: &RunContext<'_>| -> Result<(), Failure> {
        closed.recv()?;
        // SAFETY: the block is deleted with its variable, which this operation reads.
        let bytes = unsafe { std::slice::from_raw_parts(address.load(Ordering::Relaxed), 100) };
        if bytes == [7; 100] { Ok(()) } else { Err("freed".into()) }
    };
    engine.push(Op { reads: &[&var], ..on(CPU) }, read).unwrap();
    engine.delete_var(var, move |_| drop(block)).unwrap();
    assert_eq!(storage.stats(CPU).in_use, 4096);
    open.send(()).unwrap();
    engine.wait_all().unwrap();
    assert_eq!((storage.stats(CPU).in_use, storage.stats(CPU).held), (0, 4096));
}

#[test]
fn an_operation_without_memory_says_what_was_missing() {
    let pool = PoolConfig { limit: Some(8192), pooling: Pooling::Pages, ..PoolConfig::default() };
    let (engine, storage) = (engine(EngineKind::PerDevice), Storage::new(pool.into()));
    let (var, inner) = (engine.new_var(), storage.clone());
    let _kept = storage.alloc(CPU, 4096).unwrap();
    let op = Op { writes: &[&var], ..on(CPU) };
    engine.push(op, move |_| inner.alloc(CPU, 8192).map(drop).map_err(Into::into)).unwrap();
    let Err(WaitError::Failed(error)) = engine.wait_to_read(&var) else { panic!() };
    let cause = std::error::Error::source(&*error).unwrap().downcast_ref::<AllocError>().unwrap();
    let expected = AllocError { device: CPU, wanted: 8192, in_use: 4096, held: 0, cause: AllocCause::Limit(8192) };
    assert_eq!(*cause, expected);
}

/// A seed takes effect between two pushes, whatever is queued.
#[test]
fn a_seed_set_while_draws_are_queued_changes_only_later_ones() {
    let engine = engine(EngineKind::PerDevice);
    let streams = RandomStreams::new();
    let var = engine.new_var();
    let drawn = Arc::new(Mutex::new(vec![]));
    let (open, closed) = mpsc::channel::<()>();
    engine.push(Op { writes: &[&var], ..on(CPU) }, move |_| Ok(closed.recv()?)).unwrap();
    let draw = |count: usize| {
        for _ in 0..count {
            let (key, drawn) = (streams.next_key(CPU), drawn.clone());
            let op = Op { reads: &[&var], writes: &[&var], ..on(CPU) };
            let record = move |_: &RunContext<'_>| -> Result<(), Failure> {
                drawn.lock().unwrap().push(threefry2x32(key, [0, 0]));
                Ok(())
            };
            engine.push(op, record).unwrap();
        }
    };
    draw(5);
    streams.seed(1);
    draw(5);
    streams.seed(0);
    draw(5);
    open.send(()).unwrap();
    engine.wait_all().unwrap();
    let drawn = drawn.lock().unwrap();
    assert_eq!(drawn[..5], drawn[10..]);
    assert_ne!(drawn[..5], drawn[5..10]);
    let key = |seed| move |n| threefry2x32(threefry2x32([seed, 0], [n, 0]), [0, 0]);
    assert!(drawn[5..10].iter().copied().eq((0..5).map(key(1))));
}
