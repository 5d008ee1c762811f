//! Plans and arrays on a device: a GPU made of the host, which does everything as late and in as unexpected an order as streams
//! and events allow.

use std::sync::{Arc, Mutex};

use crate::common::*;
use bytes::Bytes;
use tensorc_abi::{DType, Plan, StorageClass};
use tensorc_runtime::array::{
    ArrayLaunch, ArrayOperand, ArraySpace, ArrayView, Chunk, Extents, LaunchOutput, PlannedRun, duplicate,
    read as fetch, run,
};
use tensorc_runtime::engine::{EngineConfig, OpName, Property};
use tensorc_runtime::gpu::{Driver, Finished, KeepAliveQueue, KernelCode, LaunchConfig, LoadedKernel, StreamMemory};
use tensorc_runtime::plan::{DeviceBindings, DeviceTensor, Phase, SharedArena};
use tensorc_runtime::storage::{AllocCause, PoolConfig, Pooling, StorageConfig};
use tensorc_runtime::{
    Bindings, Context, Device, Executable, Pool, RunError, Storage, TensorMut, TensorRef, WeightCache, WeightStorage,
};
use tensorc_simulator::{HostDriver, HostFunction, HostKernel};

const GPU: Device = Device::accelerator(0);
const N: u64 = 40;

fn driver(seed: u64) -> Arc<dyn Driver> {
    Arc::new(HostDriver::with_seed(GPU, seed))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The kernels of `common`, as functions of a GPU over `n` elements: `add`, `scale`, and two that are not used.
fn functions(driver: &dyn Driver, n: u64) -> Vec<LoadedKernel> {
    let entry = |name: &str| LaunchConfig { name: name.into(), blocks: 1, threads: 32, ..LaunchConfig::default() };
    let bytes = 4 * n as usize;
    let add: Arc<HostFunction> = Arc::new(|b: &mut [Vec<u8>]| {
        let sum: Vec<f32> = floats(&b[0]).iter().zip(floats(&b[1])).map(|(x, y)| x + y).collect();
        b[2] = bytes_of(&sum);
        Ok(())
    });
    let scale: Arc<HostFunction> = Arc::new(|b: &mut [Vec<u8>]| {
        let values = floats(&b[0]);
        if values.contains(&99.0) {
            return Err("99 is too much".into());
        }
        b[1] = bytes_of(&values.iter().enumerate().map(|(i, x)| x * 1.5 + i as f32).collect::<Vec<_>>());
        Ok(())
    });
    let (r, w) = ((bytes, false), (bytes, true));
    let nothing = || Arc::new(|_: &mut [Vec<u8>]| Ok(())) as Arc<HostFunction>;
    let kernels = [
        HostKernel::new(vec![r, r, w], add).into_code(entry("add")),
        HostKernel::new(vec![r, w], scale).into_code(entry("scale")),
        HostKernel::new(vec![], nothing()).into_code(entry("bias_relu")),
        HostKernel::new(vec![], nothing()).into_code(entry("nothing")),
    ];
    driver.load(KernelCode::Ir(kernels.into())).unwrap()
}

fn on_device(driver: &Arc<dyn Driver>, plan: Plan, n: u64, weights: Vec<WeightStorage>) -> Arc<Executable> {
    let functions = functions(&**driver, n);
    let cache = WeightCache::default();
    // SAFETY: the functions above stay inside the buffers of these plans.
    Arc::new(unsafe { Executable::on_device(plan, driver.clone(), [&functions, &[]], weights, &cache) }.unwrap())
}

/// What `chain` computes.
fn chained(x: &[f32]) -> Vec<f32> {
    let mut pool_plan = vec![0.0; x.len()];
    let pool = Pool::new(1).unwrap();
    let mut context = Context::new(executable(chain(x.len() as u64, false), vec![]), &pool).unwrap();
    let dims = [x.len() as u64];
    let outputs = &mut [TensorMut::from_slice(&dims, &mut pool_plan)];
    context.run(&pool, Bindings::new(&[TensorRef::from_slice(&dims, x)], outputs)).unwrap();
    pool_plan
}

fn input(k: u64) -> Vec<f32> {
    (0..N).map(|i| (i * (k + 1)) as f32 / 8.0 - k as f32).collect()
}

#[test]
fn runs_agree_with_the_host_in_every_order_and_are_replayed() {
    let pool = Pool::new(1).unwrap();
    for seed in 0..10 {
        let driver = driver(seed);
        let mut context = Context::new(on_device(&driver, chain(N, false), N, vec![]), &pool).unwrap();
        for k in 0..5 {
            let (x, mut y) = (input(k), vec![0f32; N as usize]);
            let outputs = &mut [TensorMut::from_slice(&[N], &mut y)];
            context.run(&pool, Bindings::new(&[TensorRef::from_slice(&[N], &x)], outputs)).unwrap();
            assert_eq!(y, chained(&x), "seed {seed}, run {k}");
            assert_eq!(context.replays(), k >= 2, "seed {seed}, run {k}");
        }
        let (bad, mut y) = (vec![99f32; N as usize], vec![0f32; N as usize]);
        let outputs = &mut [TensorMut::from_slice(&[N], &mut y)];
        let error = context.run(&pool, Bindings::new(&[TensorRef::from_slice(&[N], &bad)], outputs)).unwrap_err();
        assert_eq!(error.to_string(), "work on a stream of gpu:0 failed: kernel `scale`: 99 is too much");
        let x = input(1);
        let outputs = &mut [TensorMut::from_slice(&[N], &mut y)];
        let times = context.run_profiled(None, &pool, Bindings::new(&[TensorRef::from_slice(&[N], &x)], outputs));
        assert!(times.unwrap().iter().all(|t| !t.is_zero()), "each launch is waited for");
        assert_eq!(y, chained(&x), "a failure ends with the run it belongs to");
    }
}

#[test]
fn two_runs_are_under_way_at_a_time() {
    let pool = Pool::new(1).unwrap();
    for seed in 0..10 {
        let driver = driver(seed);
        let mut context = Context::new(on_device(&driver, chain(N, false), N, vec![]), &pool).unwrap();
        let begin = |context: &mut Context, k: u64| context.begin(&[TensorRef::from_slice(&[N], &input(k))]);
        begin(&mut context, 0).unwrap();
        for k in 0..8 {
            begin(&mut context, k + 1).unwrap();
            let third = begin(&mut context, 9).unwrap_err();
            assert!(matches!(third, RunError::Turn { .. }), "{third}");
            let mut y = vec![0f32; N as usize];
            context.finish(&mut [TensorMut::from_slice(&[N], &mut y)]).unwrap();
            assert_eq!(y, chained(&input(k)), "seed {seed}, run {k}");
        }
        assert!(context.replays(), "each of two sets of addresses was used four times");
        let mut y = vec![0f32; N as usize];
        let other = context.run(
            &pool,
            Bindings::new(&[TensorRef::from_slice(&[N], &input(0))], &mut [TensorMut::from_slice(&[N], &mut y)]),
        );
        assert!(matches!(other, Err(RunError::Turn { .. })), "{other:?}");
        // The context goes while a run is under way.
    }
    let mut here = Context::new(executable(chain(N, false), vec![]), &pool).unwrap();
    let refused = here.begin(&[TensorRef::from_slice(&[N], &input(0))]).unwrap_err();
    assert_eq!(refused.to_string(), "plan `test`: it runs here, not on a device");
}

#[test]
fn what_was_begun_fails_alone() {
    let pool = Pool::new(1).unwrap();
    let driver = driver(4);
    let mut context = Context::new(on_device(&driver, chain(N, false), N, vec![]), &pool).unwrap();
    context.begin(&[TensorRef::from_slice(&[N], &[99f32; N as usize])]).unwrap();
    context.begin(&[TensorRef::from_slice(&[N], &input(2))]).unwrap();
    let mut y = vec![0f32; N as usize];
    let error = context.finish(&mut [TensorMut::from_slice(&[N], &mut y)]).unwrap_err();
    assert!(error.to_string().ends_with("kernel `scale`: 99 is too much"), "{error}");
    context.finish(&mut [TensorMut::from_slice(&[N], &mut y)]).unwrap();
    assert_eq!(y, chained(&input(2)));
    let none = context.finish(&mut [TensorMut::from_slice(&[N], &mut y)]).unwrap_err();
    assert_eq!(none.to_string(), "plan `test`: no run was begun");
}

fn space(driver: &Arc<dyn Driver>) -> ArraySpace {
    space_with(driver, Pooling::default())
}

fn space_with(driver: &Arc<dyn Driver>, pooling: Pooling) -> ArraySpace {
    let storage = PoolConfig { pooling, ..PoolConfig::default() };
    ArraySpace::with_drivers(EngineConfig::default(), storage.into(), vec![driver.clone()]).unwrap()
}

fn request(name: &OpName, inputs: Vec<ArrayOperand>, outputs: Vec<LaunchOutput>) -> ArrayLaunch<'_> {
    ArrayLaunch { name, device: GPU, property: Property::Normal, priority: 0, inputs, outputs }
}

fn host(values: &[f32]) -> ArrayOperand {
    let dims = Extents::from_slice(&[values.len() as u64]);
    ArrayOperand::Host { dtype: DType::F32, dims, data: Bytes::from(bytes_of(values)) }
}

fn there(space: &ArraySpace, values: &[f32]) -> ArrayView {
    let view = empty(space, values.len() as u64);
    fill(space, &view, values);
    view
}

fn fill(space: &ArraySpace, view: &ArrayView, values: &[f32]) {
    duplicate(space, request(&COPY, vec![host(values)], vec![LaunchOutput::write(view.clone())])).unwrap();
}

fn empty(space: &ArraySpace, n: u64) -> ArrayView {
    ArrayView::whole(Chunk::new(space, GPU, 4 * n), DType::F32, &[n]).unwrap()
}

fn values(space: &ArraySpace, view: &ArrayView) -> Vec<f32> {
    floats(&fetch(space, &COPY, view).unwrap())
}

static COPY: OpName = OpName::from_static("copy");
static PLAN: OpName = OpName::from_static("plan");

fn whole(context: &Arc<Mutex<Context>>, states: usize) -> PlannedRun {
    PlannedRun { context: context.clone(), phase: None, states, outputs: 1 }
}

/// `y = t + s`, and `s` becomes `t`, which is `scale(x)`.
fn stateful() -> Plan {
    let mut plan = empty_plan();
    let x = buffer(&mut plan, "x", &[N], StorageClass::Input(0));
    let s = buffer(&mut plan, "s", &[N], StorageClass::State(0));
    let s_next = buffer(&mut plan, "s_next", &[N], StorageClass::State(0));
    let t = buffer(&mut plan, "t", &[N], StorageClass::Arena(0));
    let y = buffer(&mut plan, "y", &[N], StorageClass::Output(0));
    launch(&mut plan, "t", SCALE, &[read(x), write(t)], N, false);
    launch(&mut plan, "y", ADD, &[read(t), read(s), write(y)], N, false);
    step(&mut plan, "s", tensorc_abi::StepOp::Copy { src: t, dst: s_next }, false);
    plan.arena_bytes = (4 * N).next_multiple_of(Plan::ALIGN);
    plan
}

#[test]
fn states_stay_on_the_device_between_runs() {
    let pool = Pool::new(1).unwrap();
    for seed in 0..10 {
        let driver = driver(seed);
        let space = space(&driver);
        let context = Context::new(on_device(&driver, stateful(), N, vec![]), &pool).unwrap();
        let context = Arc::new(Mutex::new(context));
        let (x, state, y) = (empty(&space, N), there(&space, &[0.0; N as usize]), empty(&space, N));
        let mut last = vec![0f32; N as usize];
        for k in 0..6 {
            fill(&space, &x, &input(k));
            let targets = vec![LaunchOutput::update(state.clone()), LaunchOutput::write(y.clone())];
            run(&space, request(&PLAN, vec![ArrayOperand::View(x.clone())], targets), whole(&context, 1)).unwrap();
            let scaled: Vec<f32> = input(k).iter().enumerate().map(|(i, v)| v * 1.5 + i as f32).collect();
            let sum: Vec<f32> = scaled.iter().zip(&last).map(|(a, b)| a + b).collect();
            assert_eq!(values(&space, &y), sum, "seed {seed}, run {k}");
            last = scaled;
        }
        assert_eq!(values(&space, &state), last);
        assert!(context.lock().unwrap().replays(), "the input stayed where it was");
        let outside = there(&space, &[1.0; 3]);
        let wrong = vec![LaunchOutput::update(state.clone()), LaunchOutput::write(y.clone())];
        run(&space, request(&PLAN, vec![ArrayOperand::View(outside)], wrong), whole(&context, 1)).unwrap();
        let error = fetch(&space, &COPY, &y).unwrap_err().to_string();
        assert!(error.contains("input `x` has shape [40]"), "{error}");
        let bad = vec![LaunchOutput::update(state.clone()), LaunchOutput::write(y.clone())];
        run(&space, request(&PLAN, vec![host(&[99.0; N as usize])], bad), whole(&context, 1)).unwrap();
        let error = fetch(&space, &COPY, &y).unwrap_err().to_string();
        assert!(error.contains("input `x` has shape"), "the state holds an error, so nothing ran: {error}");
    }
}

#[test]
fn errors_of_kernels_stay_with_what_they_should_have_written() {
    let (pool, driver) = (Pool::new(1).unwrap(), driver(5));
    let space = space(&driver);
    let context = Arc::new(Mutex::new(Context::new(on_device(&driver, chain(N, false), N, vec![]), &pool).unwrap()));
    let (y, z) = (empty(&space, N), empty(&space, N));
    let bad = request(&PLAN, vec![host(&[99.0; N as usize])], vec![LaunchOutput::write(y.clone())]);
    run(&space, bad, whole(&context, 0)).unwrap();
    let good = request(&PLAN, vec![host(&input(3))], vec![LaunchOutput::write(z.clone())]);
    run(&space, good, whole(&context, 0)).unwrap();
    assert_eq!(values(&space, &z), chained(&input(3)));
    let error = fetch(&space, &COPY, &y).unwrap_err().to_string();
    assert!(error.contains("`plan`, on gpu:0") && error.contains("kernel `scale`: 99 is too much"), "{error}");
}

#[test]
fn views_that_kernels_cannot_take_are_moved() {
    let (pool, driver) = (Pool::new(1).unwrap(), driver(6));
    // Memory that is given back too early is gone at once.
    let space = space_with(&driver, Pooling::Unpooled);
    let context = Arc::new(Mutex::new(Context::new(on_device(&driver, chain(N, false), N, vec![]), &pool).unwrap()));
    let (long, into) = (there(&space, &[2.0; N as usize + 1]), there(&space, &[7.0; N as usize + 1]));
    let (from, to) = (long.rows(1, N + 1).unwrap(), into.rows(1, N + 1).unwrap());
    run(&space, request(&PLAN, vec![ArrayOperand::View(from)], vec![LaunchOutput::write(to)]), whole(&context, 0))
        .unwrap();
    let found = values(&space, &into);
    assert_eq!((found[0], &found[1..]), (7.0, &chained(&[2.0; N as usize])[..]));
    // A result in the place of its operand, and one that is never written.
    let x = there(&space, &input(1));
    run(
        &space,
        request(&PLAN, vec![ArrayOperand::View(x.clone())], vec![LaunchOutput::write(x.clone())]),
        whole(&context, 0),
    )
    .unwrap();
    assert_eq!(values(&space, &x), chained(&input(1)));
    let y = empty(&space, N);
    let unwritten = ArrayOperand::View(empty(&space, N));
    run(&space, request(&PLAN, vec![unwritten], vec![LaunchOutput::write(y.clone())]), whole(&context, 0)).unwrap();
    assert_eq!(values(&space, &y), chained(&[0.0; N as usize]));
}

#[test]
fn contexts_take_turns_in_an_arena_on_the_device() {
    let driver = driver(7);
    let (arena, large) = (SharedArena::default(), 3 * N);
    let space = space(&driver);
    let context = |n: u64| {
        let executable = on_device(&driver, chain(n, false), n, vec![]);
        Arc::new(Mutex::new(Context::in_arena(executable, &arena).unwrap()))
    };
    let (small, big) = (context(N), context(large));
    let wide: Vec<f32> = (0..large).map(|i| i as f32 + 0.25).collect();
    let mut results = vec![];
    for k in 0..4 {
        let (y, z) = (empty(&space, N), empty(&space, large));
        run(&space, request(&PLAN, vec![host(&input(k))], vec![LaunchOutput::write(y.clone())]), whole(&small, 0))
            .unwrap();
        run(&space, request(&PLAN, vec![host(&wide)], vec![LaunchOutput::write(z.clone())]), whole(&big, 0)).unwrap();
        results.push((k, y, z));
    }
    for (k, y, z) in results {
        assert_eq!((values(&space, &y), values(&space, &z)), (chained(&input(k)), chained(&wide)));
    }
    assert_eq!(arena.bytes() as u64, chain(large, false).arena_bytes, "as much as the largest needs, on the device");
}

#[test]
fn tensors_on_the_device_are_checked() {
    let (pool, driver) = (Pool::new(1).unwrap(), driver(8));
    let mut context = Context::new(on_device(&driver, chain(N, false), N, vec![]), &pool).unwrap();
    let storage = Storage::with_drivers(StorageConfig::default(), vec![driver.clone()]);
    let stream = driver.stream().unwrap();
    let memory = StreamMemory::default();
    let mut queue = KeepAliveQueue::new(&*stream, &storage, &memory);
    let address = queue.scratch(4 * N).unwrap();
    let tensor = |address| DeviceTensor { dtype: DType::F32, dims: &[N], address };
    let mut refused = |inputs: &[DeviceTensor<'_>], phase| {
        let bindings = DeviceBindings { inputs, states: &[], outputs: &[tensor(address)] };
        // SAFETY: nothing is launched, as every call is refused.
        unsafe { context.enqueue(phase, &mut queue, bindings) }.unwrap_err()
    };
    assert!(matches!(refused(&[], None), RunError::Count { .. }));
    assert!(matches!(refused(&[tensor(address.wrapping_add(4))], None), RunError::Alignment { align: 16, .. }));
    assert!(matches!(refused(&[tensor(address)], Some(Phase::First)), RunError::Phase { .. }));
    let mut here = Context::new(executable(chain(N, false), vec![]), &pool).unwrap();
    let bindings = DeviceBindings { inputs: &[tensor(address)], states: &[], outputs: &[tensor(address)] };
    // SAFETY: as above.
    let error = unsafe { here.enqueue(None, &mut queue, bindings) }.unwrap_err();
    assert_eq!(error.to_string(), "plan `test` was not made for gpu:0");
    let Finished { end, kept, number, .. } = queue.finish();
    end.synchronize().unwrap();
    drop(kept);
    assert_eq!(storage.stats(GPU).in_use, storage.size(GPU, 4 * N).unwrap(), "for what follows on the stream");
    memory.passed(number);
    assert_eq!(storage.stats(GPU).in_use, 0);
}

#[test]
fn pools_give_memory_of_the_driver() {
    let config = PoolConfig { limit: Some(8192), reserve: 0, ..PoolConfig::default() };
    let storage = Storage::with_drivers(config.into(), vec![driver(0)]);
    let block = storage.alloc(GPU, 1000).unwrap();
    assert!(!block.is_addressable() && block.as_slice().is_empty() && block.len() == 1000);
    let (address, pinned) = (block.as_ptr(), storage.alloc(Device::pinned(0), 1000).unwrap());
    assert!(pinned.is_addressable() && pinned.as_slice().len() == 1000);
    assert!(storage.alloc(GPU, 8000).is_err(), "the limit holds for memory of drivers");
    drop(block);
    assert_eq!(storage.alloc(GPU, 1010).unwrap().as_ptr(), address, "of the same class");
    assert_eq!(storage.stats(GPU).reuses, 1);
    let missing = storage.alloc(Device::accelerator(1), 8).unwrap_err();
    assert_eq!(missing.cause, AllocCause::NoDriver, "another device");
}

#[test]
fn weights_lie_on_a_device_once() {
    let cache = WeightCache::default();
    let drivers: [Arc<dyn Driver>; 2] =
        [0, 1].map(|seed| Arc::new(HostDriver::with_seed(GPU, seed)) as Arc<dyn Driver>);
    let weight = |first: f32| WeightStorage::Shared(Bytes::from(bytes_of(&[first, 2.0, 3.0])));
    // Equal weights of different plans are in the host's memory twice.
    let (a, b) = ([weight(1.0), weight(4.0), weight(1.0)], [weight(4.0), weight(5.0)]);
    let first = cache.load(&drivers[0], &a).unwrap();
    let second = cache.load(&drivers[0], &b).unwrap();
    let addresses = |there: &[Arc<dyn tensorc_runtime::gpu::Memory>]| -> Vec<_> {
        there.iter().map(|memory| memory.address()).collect()
    };
    let (at, other) = (addresses(&first), addresses(&second));
    assert!(at[0] == at[2] && at[1] == other[0]);
    assert!(at[0] != at[1] && other[0] != other[1]);
    let elsewhere = cache.load(&drivers[1], &a).unwrap();
    assert!(!Arc::ptr_eq(&elsewhere[0], &first[0]), "another driver has memory of its own");

    // What is loaded again after it went is copied again.
    drop((first, second));
    let again = cache.load(&drivers[0], &b).unwrap();
    let stream = drivers[0].stream().unwrap();
    let mut found = vec![0u8; 12];
    let transfer = tensorc_runtime::device::stream::Transfer {
        source: again[1].address(),
        from: GPU,
        target: found.as_mut_ptr(),
        to: Device::cpu(0),
        bytes: 12,
    };
    // SAFETY: both ranges live until the stream is done.
    unsafe { stream.copy(transfer) };
    stream.synchronize().unwrap();
    assert_eq!(found, bytes_of(&[5.0, 2.0, 3.0]));
}
