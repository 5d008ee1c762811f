//! Resources and memory as operations of a device use them.

use std::num::NonZero;
use std::sync::{Arc, Mutex};

use tensorc_runtime::device::stream::Transfer;
use tensorc_runtime::engine::{
    Completion, Engine, EngineConfig, EngineKind, Failure, Op, OpName, RunContext, WaitError,
};
use tensorc_runtime::gpu::{Driver, KernelCode, LaunchConfig, LaunchStream};
use tensorc_runtime::resource::TempSpaceConfig;
use tensorc_runtime::storage::{PoolConfig, Pooling};
use tensorc_runtime::{Device, MemoryBlock, Storage, TempSpace};
use tensorc_simulator::{HostDriver, HostKernel};

const CPU: Device = Device::cpu(0);
const GPU: Device = Device::accelerator(0);
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

/// An asynchronous operation of a device keeps its scratch memory until the device is done with it.
#[test]
fn scratch_of_an_asynchronous_operation_lasts_until_its_completion() {
    let (engine, storage) = (engine(EngineKind::PerDevice), storage());
    let temp = TempSpace::new(&engine, &storage, copies(1));
    let stream: Arc<dyn LaunchStream> = HostDriver::new(GPU).stream().unwrap().into();
    let results = Arc::new(Mutex::new(vec![]));
    for i in 0..20u8 {
        let (stream, results) = (stream.clone(), results.clone());
        temp.push_async(on(CPU), 1000, move |_, mut scratch, completion| {
            let kernel = move || {
                scratch.fill(i);
                std::thread::yield_now();
                results.lock().unwrap().push(scratch.iter().map(|&b| u64::from(b)).sum::<u64>());
                drop(scratch);
                if i == 7 { Err("a bad kernel".into()) } else { Ok(()) }
            };
            stream.enqueue(Box::new(kernel));
            stream.on_complete(Box::new(|result| completion.complete(result.map_err(Into::into))));
        })
        .unwrap();
    }
    let WaitError::Failures(failures) = engine.wait_all().unwrap_err() else { panic!() };
    let texts: Vec<String> = failures.listed.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["operator `uses_scratch`, on cpu:0: work on a stream of gpu:0 failed: a bad kernel"]);
    assert!(results.lock().unwrap().iter().copied().eq((0..20).map(|i| 1000 * i)));
    assert_eq!(storage.stats(CPU).allocations, 1);
}

/// Copies to the device, computes there and copies back as three asynchronous operations that only
/// their variables order.
#[test]
fn a_device_is_driven_by_asynchronous_operations() {
    let driver = Arc::new(HostDriver::new(GPU));
    let (engine, storage) =
        (engine(EngineKind::PerDevice), Storage::with_drivers(PoolConfig::default().into(), vec![driver.clone()]));
    let stream = || -> Arc<dyn LaunchStream> { driver.stream().unwrap().into() };
    let block = |device| Arc::new(storage.alloc(device, 64).unwrap());
    let (host, there, back) = (block(CPU), block(GPU), block(CPU));
    let vars = [engine.new_var(), engine.new_var(), engine.new_var()];
    let source = host.clone();
    let fill = move |_: &RunContext<'_>| -> Result<(), Failure> {
        // SAFETY: the engine keeps the operation apart from others that use the block.
        unsafe { source.start().as_ptr().write_bytes(20, 64) };
        Ok(())
    };
    engine.push(Op { writes: &[&vars[0]], ..on(CPU) }, fill).unwrap();
    let copy = |from: &Arc<MemoryBlock>, to: &Arc<MemoryBlock>| {
        let (from, to, stream) = (from.clone(), to.clone(), stream());
        move |_: &RunContext<'_>, completion: Completion| {
            let transfer = Transfer {
                source: from.as_ptr(),
                from: from.device(),
                target: to.start().as_ptr(),
                to: to.device(),
                bytes: 64,
            };
            // SAFETY: the engine keeps others away until the callback, which keeps the blocks until then.
            unsafe { stream.copy(transfer) };
            stream.on_complete(Box::new(move |result| {
                drop((from, to));
                completion.complete(result.map_err(Into::into));
            }));
        }
    };
    let op = Op { reads: &[&vars[0]], writes: &[&vars[1]], ..on(GPU) };
    engine.push_async(op, copy(&host, &there)).unwrap();
    let run = |buffers: &mut [Vec<u8>]| {
        buffers[0].iter_mut().for_each(|x| *x = 2 * *x + 2);
        Ok(())
    };
    let kernel = HostKernel::new(vec![(64, true)], Arc::new(run));
    let function = driver.load(KernelCode::Ir(vec![kernel.into_code(LaunchConfig::default())])).unwrap().remove(0);
    let (at, compute) = (there.clone(), stream());
    let op = Op { reads: &[&vars[1]], writes: &[&vars[1]], ..on(GPU) };
    engine
        .push_async(op, move |_, completion| {
            // SAFETY: as above; the test keeps the block.
            unsafe { compute.launch(&function, &[at.start().as_ptr()]) };
            compute.on_complete(Box::new(|result| completion.complete(result.map_err(Into::into))));
        })
        .unwrap();
    let op = Op { reads: &[&vars[1]], writes: &[&vars[2]], ..on(GPU) };
    engine.push_async(op, copy(&there, &back)).unwrap();
    engine.wait_to_read(&vars[2]).unwrap();
    assert_eq!(back.as_slice(), [42; 64]);
}
