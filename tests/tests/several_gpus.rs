//! Arrays, executors and training on several GPUs of the interpreter.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tensorc::runtime::Device;
use tensorc::runtime::gpu::Driver;
use tensorc::runtime::storage::{PoolConfig, StorageConfig};
use tensorc::symbol::{Symbol, attr_scope, op};
use tensorc::{Compiler, DType, Error, Options};
use tensorc_nd::executor::{Executor, GradReq};
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};
use tensorc_simulator::Counts;

use crate::gpu_arrays::{descend, numbers, set_arguments, values};
use crate::support::counted;

pub const FIRST: Device = Device::accelerator(0);
pub const SECOND: Device = Device::accelerator(1);

/// A runtime with two GPUs. Arrays are made on the first unless another device is given.
pub fn on_two(seed: u64) -> (Runtime, [Arc<Counts>; 2]) {
    let drivers = [FIRST, SECOND].map(|device| counted(device, seed + u64::from(device.id)));
    let counts = drivers.each_ref().map(|driver| driver.counts.clone());
    let gpus = drivers.into_iter().map(|driver| Arc::new(driver) as Arc<dyn Driver>).collect();
    let compiler = Compiler::new(Options { gpus, ..Options::default() }).unwrap();
    let options = RuntimeOptions { device: FIRST, ..RuntimeOptions::default() };
    (Runtime::with_compiler(compiler, options).unwrap(), counts)
}

/// The same on either GPU, and a result of each brought to the other.
#[test]
fn arrays_go_from_gpu_to_gpu() {
    for seed in 0..5 {
        let (rt, counts) = on_two(seed);
        let x = rt.array(&[6, 33], &numbers(198, 1)).unwrap();
        let expected: Vec<f32> = numbers(198, 1).iter().map(|v| (v + v) * (v + v)).collect();
        let empty = rt.empty(SECOND, DType::F32, &[6, 33]).unwrap();
        rt.wait_all().unwrap();
        let host_bytes = || counts.iter().map(|c| c.host_bytes.load(Ordering::Relaxed)).sum::<u64>();
        let before = host_bytes();
        let double = (&x + &x).unwrap();
        let there = double.copy_to(SECOND).unwrap();
        let square = (&there * &there).unwrap();
        let back = square.copy_to(FIRST).unwrap();
        // A part to a part, and what no one wrote.
        back.row(5).unwrap().copy_into(&there.row(0).unwrap()).unwrap();
        let zeros = empty.copy_to(FIRST).unwrap();
        rt.wait_all().unwrap();
        assert_eq!(host_bytes(), before, "nothing passes through the host");
        assert_eq!((square.device(), back.device()), (SECOND, FIRST));
        assert_eq!(values(&square), expected);
        assert_eq!(values(&back), expected);
        assert_eq!(values(&there)[..33], expected[165..]);
        assert_eq!(values(&zeros), [0.0; 198]);
        let error = (&x + &square).unwrap_err().to_string();
        assert!(error.contains("gpu:0") && error.contains("gpu:1"), "{error}");
    }
}

/// A chain of operations over both GPUs is enqueued while the host hears of no end.
#[test]
fn gpus_wait_for_each_other_without_the_host() {
    let (rt, counts) = on_two(3);
    let chain = |x: &NDArray| {
        let mut x = x.clone();
        for round in 0..6 {
            let device = if round % 2 == 0 { SECOND } else { FIRST };
            x = (&x.copy_to(device).unwrap() * 1.5).unwrap();
        }
        x
    };
    let x = rt.array(&[5, 8], &numbers(40, 2)).unwrap();
    chain(&x).wait_to_read().unwrap();
    let now = || counts.iter().map(|c| c.operations.load(Ordering::SeqCst)).sum::<u64>();
    rt.wait_all().unwrap();
    let before = now();
    counts.iter().for_each(|c| c.hold());
    let y = chain(&x);
    // What the calls deferred is pushed when somebody wants it.
    let waits = std::thread::spawn({
        let y = y.clone();
        move || y.wait_to_read()
    });
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while now() < before + 12 && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let enqueued = now() - before;
    counts.iter().for_each(|c| c.release());
    waits.join().unwrap().unwrap();
    assert_eq!(enqueued, 12, "operations enqueued before the host heard of an end");
    let scale = 1.5f32.powi(6);
    assert!(
        values(&y).iter().zip(numbers(40, 2)).all(|(y, x)| (y - x * scale).abs() <= 1e-5 * (1.0 + x.abs() * scale))
    );
}

#[test]
fn what_fails_on_one_gpu_reaches_the_other() {
    let gpus = [FIRST, SECOND].map(|device| Arc::new(counted(device, 4)) as Arc<dyn Driver>).to_vec();
    let compiler = Compiler::new(Options { gpus, ..Options::default() }).unwrap();
    let limited = PoolConfig { limit: Some(1 << 16), ..PoolConfig::default() };
    let storage = StorageConfig { devices: [(FIRST, limited)].into(), ..StorageConfig::default() };
    let options = RuntimeOptions { device: FIRST, storage, ..RuntimeOptions::default() };
    let rt = Runtime::with_compiler(compiler, options).unwrap();
    let large = rt.ones(&[1 << 20], DType::F32).unwrap();
    let after = (&large.copy_to(SECOND).unwrap() + 1.0).unwrap();
    let error = after.to_vec::<f32>().unwrap_err().to_string();
    assert!(error.contains("cannot allocate 4194304 bytes on gpu:0"), "{error}");
    let fits = rt.full(SECOND, DType::F32, &[1 << 20], 2.5).unwrap();
    assert!(values(&fits) == vec![2.5; 1 << 20], "the limit is the first one's");
}

#[test]
fn a_gpu_without_a_driver_is_an_error() {
    let (rt, _) = on_two(5);
    let missing = Device::accelerator(2);
    let text = "gpu:2: there is no driver for it, only for gpu:0, gpu:1";
    let error = rt.from_bytes(missing, DType::U8, &[3], &[1, 2, 3]).unwrap_err();
    assert!(error.to_string().contains(text), "{error}");
    let error = rt.full(missing, DType::F32, &[3], 0.0).unwrap_err();
    assert!(error.to_string().contains(text), "{error}");
    let error = rt.array(&[2], &[1f32, 2.0]).unwrap().copy_to(missing).unwrap_err();
    assert!(error.to_string().contains(text), "{error}");
    // Nothing is compiled for the processor instead.
    let compilers = [rt.compiler().clone(), Compiler::new(Options::default()).unwrap()];
    for error in compilers.map(|compiler| compiler.on(missing).err()) {
        assert!(matches!(&error, Some(Error::NoDriver { device }) if *device == missing), "{error:?}");
        assert!(error.unwrap().to_string().starts_with("gpu:2: there is no driver for it"));
    }
    for processor in [Device::cpu(1), Device::pinned(0)] {
        assert!(rt.compiler().on(processor).unwrap().gpu().is_none());
    }
}

fn network() -> Symbol {
    let layer = |x: &Symbol, n: i64, name: &str| {
        op("FullyConnected").input(x).param("num_hidden", n).name(name).build().unwrap()
    };
    let hidden = {
        let _scope = attr_scope([("ctx_group", "first")]);
        let hidden = layer(&Symbol::variable("data"), 16, "fc1");
        op("Activation").input(&hidden).param("act_type", "tanh").name("tanh").build().unwrap()
    };
    let _scope = attr_scope([("ctx_group", "second")]);
    let out = layer(&hidden, 5, "fc2");
    op("SoftmaxOutput").inputs([&out, &Symbol::variable("label")]).name("softmax").build().unwrap()
}

/// Outputs and parameters after steps of gradient descent.
fn train(rt: &Runtime, devices: [Device; 2]) -> Vec<Vec<f32>> {
    let binder = Executor::simple_bind(rt, &network()).shape("data", &[8, 12]);
    let binder = binder.group("first", devices[0]).group("second", devices[1]);
    let binder = binder.grad_req_of("data", GradReq::Null).grad_req_of("label", GradReq::Null);
    let mut executor = binder.build().unwrap();
    for (name, device) in [("fc1_weight", devices[0]), ("fc2_weight", devices[1])] {
        assert_eq!(executor.argument(name).unwrap().device(), device);
        assert_eq!(executor.gradient(name).unwrap().device(), device);
    }
    set_arguments(rt, &executor);
    for _ in 0..5 {
        descend(rt, &mut executor);
    }
    let arrays = executor.arguments().iter().map(|(_, array)| array);
    arrays.chain(executor.outputs()).map(values).collect()
}

/// A network whose halves are on two GPUs learns what it learns on one.
#[test]
fn a_network_is_divided_among_gpus() {
    let expected = train(&on_two(6).0, [FIRST; 2]);
    for seed in 0..3 {
        let (rt, _) = on_two(seed);
        assert!(train(&rt, [FIRST, SECOND]) == expected, "seed {seed}: the same kernels, so the same bits");
    }
    let (rt, _) = on_two(7);
    let mixed = train(&rt, [Device::cpu(0), SECOND]);
    for (found, expected) in mixed.iter().flatten().zip(expected.iter().flatten()) {
        assert!((found - expected).abs() <= 1e-4 * (1.0 + expected.abs()), "{found}, expected {expected}");
    }
}
