//! Arrays, executors and training on a GPU: the interpreter's, with everything as late and in as unexpected an order as may be.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorc::runtime::storage::{PoolConfig, StorageConfig};
use tensorc::runtime::{Device, TensorMut, TensorRef};
use tensorc::symbol::{Symbol, op};
use tensorc::{Compiler, DType, Options};
use tensorc_nd::executor::{Executor, GradReq};
use tensorc_nd::{NDArray, Runtime, RuntimeOptions, Slice, autograd};
use tensorc_simulator::Counts;

use crate::support::counted;

const GPU: Device = Device::accelerator(0);

/// A runtime with a GPU, on which arrays are made unless another device is given.
pub fn on_gpu(seed: u64) -> (Runtime, Arc<Counts>) {
    let driver = counted(GPU, seed);
    let counts = driver.counts.clone();
    let compiler = Compiler::new(Options { gpus: vec![Arc::new(driver)], ..Options::default() }).unwrap();
    let options = RuntimeOptions { device: GPU, ..RuntimeOptions::default() };
    (Runtime::with_compiler(compiler, options).unwrap(), counts)
}

fn here() -> Runtime {
    Runtime::new(RuntimeOptions::default()).unwrap()
}

pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut rng = tensorc_random::Rng::new(seed);
    (0..count).map(|_| rng.below(401) as f32 / 100.0 - 2.0).collect()
}

pub fn values(array: &NDArray) -> Vec<f32> {
    array.to_vec::<f32>().unwrap()
}

fn close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance * (1.0 + e.abs()), "element {i}: {f}, expected {e}");
    }
}

/// Arithmetic, a product, a fold, slices and results in the place of operands.
fn program(rt: &Runtime) -> Vec<Vec<f32>> {
    let a = rt.array(&[6, 8], &numbers(48, 1)).unwrap();
    let b = rt.array(&[8], &numbers(8, 2)).unwrap();
    let mut c = ((&a + &b).unwrap() * 2.0).unwrap();
    c += 1.0;
    let p = c.matmul(&a.transpose(&[1, 0]).unwrap()).unwrap();
    let s = rt.op("softmax").unwrap().arg(&p).param("axis", -1).invoke().unwrap();
    let part = s.slice(&[Slice::ALL, Slice::new(Some(1), None, 2)]).unwrap();
    // Rows that do not begin where kernels can read, and a view that is written.
    let odd = rt.array(&[5, 3], &numbers(15, 3)).unwrap();
    let row = odd.rows(1, 2).unwrap();
    let twice = (&row + &row).unwrap();
    rt.op("neg").unwrap().arg(&odd.row(0).unwrap()).into(&[&odd.row(3).unwrap()]).unwrap();
    odd.set(&[Slice::from(4..), Slice::from(1..)], 7.0).unwrap();
    let m = rt.array(&[2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap();
    rt.op("matmul").unwrap().arg(&m).arg(&m).into(&[&m]).unwrap();
    let full = rt.full(rt.options().device, DType::F32, &[3], 0.1).unwrap();
    let sum = s.sum(&[0], false).unwrap();
    let copy = twice.copy().unwrap();
    [c, p, s, part, odd, m, full, sum, copy].iter().map(values).collect()
}

#[test]
fn operators_run_where_their_arrays_are() {
    let expected = program(&here());
    for seed in 0..3 {
        let (rt, _) = on_gpu(seed);
        let found = program(&rt);
        for (f, e) in found.iter().zip(&expected) {
            close(f, e, 1e-5);
        }
        assert_eq!(rt.memory(Device::cpu(0)).allocations, 0, "no array is on the host");
        // Doubles, which no single word fills.
        let wide = rt.full(GPU, DType::F64, &[5], 0.1).unwrap();
        assert_eq!(wide.to_vec::<f64>().unwrap(), [0.1; 5]);
        // Shapes that depend on values.
        let x = rt.array(&[4], &[0f32, 3.0, 0.0, 5.0]).unwrap();
        let at = rt.op("nonzero").unwrap().arg(&x).invoke().unwrap();
        assert_eq!((at.device(), at.to_vec::<i64>().unwrap()), (GPU, vec![1, 3]));
    }
}

#[test]
fn arrays_of_host_and_device_live_side_by_side() {
    let (rt, counts) = on_gpu(4);
    let there = rt.array(&[3, 40], &numbers(120, 5)).unwrap();
    let back = there.copy_to(Device::cpu(0)).unwrap();
    let sum = (&back + &back).unwrap();
    assert_eq!(values(&sum), numbers(120, 5).iter().map(|x| x + x).collect::<Vec<_>>());
    let error = (&there + &back).unwrap_err().to_string();
    assert!(error.contains("gpu:0") && error.contains("cpu:0"), "{error}");
    let again = sum.copy_to(GPU).unwrap();
    rt.wait_all().unwrap();
    let before = counts.host_bytes.load(Ordering::Relaxed);
    let double = (&again + &again).unwrap();
    let moved = double.copy().unwrap();
    double.copy_into(&there).unwrap();
    rt.wait_all().unwrap();
    assert_eq!(counts.host_bytes.load(Ordering::Relaxed), before, "nothing passes through the host");
    assert_eq!(values(&moved), values(&there));
    assert!(there.to_dlpack().is_err(), "the memory is not the host's");
}

#[test]
fn gradients_are_taken_on_the_device() {
    let gradient = |rt: &Runtime| {
        let mut x = rt.array(&[3, 4], &numbers(12, 6)).unwrap();
        x.attach_grad(autograd::GradReq::Write).unwrap();
        let scope = autograd::record();
        let loss = x.apply("sigmoid").unwrap().sum(&[], false).unwrap();
        drop(scope);
        loss.backward().unwrap();
        let gradient = x.grad().unwrap();
        assert_eq!(gradient.device(), x.device());
        values(&gradient)
    };
    close(&gradient(&on_gpu(5).0), &gradient(&here()), 1e-5);
}

#[test]
fn memory_that_is_short_is_an_error_of_what_needed_it() {
    let limited = PoolConfig { limit: Some(1 << 16), ..PoolConfig::default() };
    let storage = StorageConfig { devices: [(GPU, limited)].into(), ..StorageConfig::default() };
    let gpu: Arc<dyn tensorc::runtime::gpu::Driver> = Arc::new(counted(GPU, 6));
    let compiler = Compiler::new(Options { gpus: vec![gpu], ..Options::default() }).unwrap();
    let rt = Runtime::with_compiler(compiler, RuntimeOptions { device: GPU, storage, ..RuntimeOptions::default() });
    let rt = rt.unwrap();
    let large = rt.ones(&[1 << 20], DType::F32).unwrap();
    let after = (&large + 1.0).unwrap();
    let error = after.wait_to_read().unwrap_err().to_string();
    assert!(error.contains("cannot allocate 4194304 bytes on gpu:0"), "{error}");
    assert_eq!(values(&rt.ones(&[4], DType::F32).unwrap()), [1.0; 4]);
}

#[test]
fn sessions_keep_two_runs_under_way() {
    let driver: Arc<dyn tensorc::runtime::gpu::Driver> = Arc::new(counted(GPU, 7));
    let compiler = Compiler::new(Options { gpus: vec![driver], ..Options::default() }).unwrap();
    let text = "tensorc-ir 1\ngraph @main(%x: f32[4, 8]) {\n  %y = softmax(%x)\n  return %y\n}\n";
    let graph = tensorc::ir::text::parse_module(text, compiler.registry()).unwrap().graphs.remove(0);
    let types = [tensorc::ir::DenseType::new(DType::F32, [4, 8])];
    let mut on_gpu = compiler.model(graph.clone()).compile(&types).unwrap();
    let host = Compiler::new(Options::default()).unwrap();
    let mut here = host.model(graph).compile(&types).unwrap();
    let dims = [4, 8];
    let begin =
        |session: &mut tensorc::Session, k: u64| session.begin(&[TensorRef::from_slice(&dims, &numbers(32, k))]);
    begin(&mut on_gpu, 0).unwrap();
    for k in 0..6 {
        begin(&mut on_gpu, k + 1).unwrap();
        let (mut found, mut expected) = (vec![0f32; 32], vec![0f32; 32]);
        on_gpu.finish(&mut [TensorMut::from_slice(&dims, &mut found)]).unwrap();
        let given = numbers(32, k);
        let inputs = &[TensorRef::from_slice(&dims, &given)];
        here.run_into(inputs, &mut [TensorMut::from_slice(&dims, &mut expected)]).unwrap();
        close(&found, &expected, 1e-5);
    }
    assert!(begin(&mut here, 0).unwrap_err().to_string().contains("it runs here, not on a device"));
}

#[test]
fn equal_kernels_are_loaded_once() {
    let driver = counted(GPU, 8);
    let counts = driver.counts.clone();
    let compiler = Compiler::new(Options { gpus: vec![Arc::new(driver)], ..Options::default() }).unwrap();
    let text = "tensorc-ir 1\ngraph @main(%x: f32[8, 8], %w: f32[8, 8]) {
  %a = matmul(%x, %w)\n  %b = matmul(%a, %w)\n  %y = matmul(%b, %w)\n  return %y\n}\n";
    let graph = tensorc::ir::text::parse_module(text, compiler.registry()).unwrap().graphs.remove(0);
    let square = tensorc::ir::DenseType::new(DType::F32, [8, 8]);
    let session = compiler.model(graph).compile(&[square.clone(), square]).unwrap();
    assert_eq!((session.plan().kernels.len(), counts.loads.load(Ordering::Relaxed)), (3, 1));
}

fn network() -> Symbol {
    let data = Symbol::variable("data");
    let layer = |x: &Symbol, n: i64, name: &str| {
        op("FullyConnected").input(x).param("num_hidden", n).name(name).build().unwrap()
    };
    let hidden = op("BatchNorm").input(&layer(&data, 16, "fc1")).param("fix_gamma", false).name("bn").build().unwrap();
    let hidden = op("Activation").input(&hidden).param("act_type", "tanh").build().unwrap();
    let out = layer(&hidden, 5, "fc2");
    op("SoftmaxOutput").inputs([&out, &Symbol::variable("label")]).name("softmax").build().unwrap()
}

/// Labels from 0 to 4 for eight rows, and small numbers for what is not `label`.
pub fn set_arguments(rt: &Runtime, executor: &Executor) {
    for (i, (name, array)) in executor.arguments().iter().enumerate() {
        let given = match name.as_str() {
            "label" => vec![0.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0],
            _ => numbers(array.len() as usize, 10 + i as u64).iter().map(|x| x / 4.0).collect(),
        };
        rt.array(array.dims(), &given).unwrap().copy_into(array).unwrap();
    }
}

/// A step of gradient descent, an operation for each parameter.
pub fn descend(rt: &Runtime, executor: &mut Executor) {
    executor.forward(true).unwrap();
    executor.backward(&[]).unwrap();
    for (name, gradient) in executor.gradients() {
        let weight = executor.argument(name).unwrap();
        let change = (gradient * 0.05).unwrap();
        rt.op("sub").unwrap().arg(weight).arg(&change).into(&[weight]).unwrap();
    }
}

fn bind(rt: &Runtime) -> Executor {
    let binder = Executor::simple_bind(rt, &network()).shape("data", &[8, 12]);
    let executor = binder.grad_req_of("data", GradReq::Null).grad_req_of("label", GradReq::Null).build().unwrap();
    set_arguments(rt, &executor);
    executor.auxiliary("bn_moving_var").unwrap().fill(1.0).unwrap();
    executor
}

/// Outputs, parameters and auxiliary states after some passes and steps. After each step `between` is called.
fn train(rt: &Runtime, mut between: impl FnMut(usize)) -> Vec<Vec<f32>> {
    let mut executor = bind(rt);
    let device = rt.options().device;
    assert!(executor.arguments().iter().all(|(_, array)| array.device() == device));
    executor.forward(true).unwrap();
    executor.backward(&[]).unwrap();
    let mut found: Vec<Vec<f32>> = executor.gradients().map(|(_, gradient)| values(gradient)).collect();
    let step = executor.fuse(&crate::executor::steps::Momentum, None).unwrap();
    let rows = step.parameters().len();
    for round in 0..6 {
        executor.step(&step, &vec![0.05; rows]).unwrap();
        rt.wait_all().unwrap();
        between(round);
    }
    let arrays = executor.arguments().iter().chain(executor.auxiliaries());
    found.extend(arrays.map(|(_, array)| values(array)));
    found.extend(executor.outputs().iter().map(values));
    found
}

#[test]
fn training_stays_on_the_device() {
    let expected = train(&here(), |_| {});
    for seed in 0..2 {
        let (rt, counts) = on_gpu(seed);
        let (mut before, mut replays) = (0, vec![]);
        let found = train(&rt, |round| {
            let bytes = counts.host_bytes.swap(0, Ordering::Relaxed);
            // A number for each argument and what names it; every parameter alone is larger.
            assert!(round == 0 || bytes <= 64, "{bytes} bytes passed between host and device in a step");
            let total = counts.replays.load(Ordering::Relaxed);
            replays.push(total - before);
            before = total;
        });
        assert_eq!(replays, [0, 0, 1, 1, 1, 1], "the third step is recorded");
        for (f, e) in found.iter().zip(&expected) {
            close(f, e, 1e-4);
        }
        assert_eq!(rt.memory(Device::cpu(0)).allocations, 0, "neither arrays nor arenas are on the host");
    }
}

/// LeCun and others' network for digits, with few filters.
fn lenet() -> Symbol {
    let relu = |x: &Symbol| op("Activation").input(x).param("act_type", "relu").build().unwrap();
    let mut x = Symbol::variable("data");
    for (i, filters) in [3, 4].into_iter().enumerate() {
        let conv = op("Convolution").input(&x).param("kernel", [5, 5]).param("num_filter", filters);
        let pool = op("Pooling").input(&relu(&conv.name(&format!("conv{i}")).build().unwrap()));
        x = pool.param("pool_type", "max").param("kernel", [2, 2]).param("stride", [2, 2]).build().unwrap();
    }
    let dense = |x: &Symbol, n: i64| op("FullyConnected").input(x).param("num_hidden", n).build().unwrap();
    op("SoftmaxOutput").input(&dense(&relu(&dense(&x, 8)), 5)).name("softmax").build().unwrap()
}

/// A batch goes to the device, forwards, backwards and through an update of each parameter, and results come back, while the host
/// hears of no end.
#[test]
fn a_training_step_never_waits_for_the_host() {
    let dims = [2, 1, 20, 20];
    let run = |rt: &Runtime, counts: Option<&Counts>| {
        let binder = Executor::simple_bind(rt, &lenet()).shape("data", &dims);
        let binder = binder.grad_req_of("data", GradReq::Null).grad_req_of("softmax_label", GradReq::Null);
        let mut executor = binder.build().unwrap();
        for (i, (_, array)) in executor.arguments().iter().enumerate() {
            let given: Vec<f32> = numbers(array.len() as usize, i as u64).iter().map(|x| x / 8.0).collect();
            rt.array(array.dims(), &given).unwrap().copy_into(array).unwrap();
        }
        let label = executor.argument("softmax_label").unwrap().clone();
        rt.array(&[2], &[1f32, 4.0]).unwrap().copy_into(&label).unwrap();
        let mut outputs = vec![];
        let mut step = |k: u64| {
            let data = executor.argument("data").unwrap().clone();
            rt.array(&dims, &numbers(800, 40 + k)).unwrap().copy_into(&data).unwrap();
            descend(rt, &mut executor);
            for (name, _) in executor.gradients() {
                outputs.push(executor.argument(name).unwrap().copy_to(Device::cpu(0)).unwrap());
            }
            outputs.push(executor.outputs()[0].copy_to(Device::cpu(0)).unwrap());
        };
        step(0);
        rt.wait_all().unwrap();
        let before = counts.map(|counts| counts.operations.load(Ordering::SeqCst));
        step(1);
        rt.wait_all().unwrap();
        if let Some((counts, before)) = counts.zip(before) {
            let now = counts.operations.load(Ordering::SeqCst);
            counts.hold();
            step(2);
            let waits = counts.host_waits(now + (now - before), Duration::from_secs(10), 100);
            counts.release();
            assert_eq!(waits, Some(0), "times that {} operations of a step waited for the host", now - before);
        } else {
            step(2);
        }
        step(3);
        outputs.iter().map(values).collect::<Vec<_>>()
    };
    let expected = run(&here(), None);
    let (rt, counts) = on_gpu(11);
    for (f, e) in run(&rt, Some(&counts)).iter().zip(&expected) {
        close(f, e, 1e-4);
    }
}

/// Strided parts of an array, read and written by copies of rows and by operators.
#[test]
fn slices_stay_on_the_device() {
    let run = |rt: &Runtime, counts: Option<&Counts>| {
        let x = rt.array(&[5, 4, 33], &numbers(660, 1)).unwrap();
        let y = rt.array(&[4, 70], &(0..280).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        let row = rt.array(&[33], &numbers(33, 2)).unwrap();
        let one = rt.array(&[1], &[7.5f32]).unwrap();
        rt.wait_all().unwrap();
        let before = counts.map(|counts| counts.host_bytes.load(Ordering::Relaxed));
        let (all, back) = (Slice::ALL, Slice::ALL.step(-1));
        let mut found = vec![
            x.slice(&[Slice::from(1..4).step(2), Slice::from(1..3), Slice::from(2..9)]).unwrap(),
            x.slice(&[all, Slice::from(2)]).unwrap(),
            x.slice(&[back, all, Slice::from(-3..)]).unwrap(),
            // More pieces than copies are made for.
            x.slice(&[back, all, back]).unwrap(),
            y.slice(&[all, Slice::new(Some(60), None, -2)]).unwrap(),
        ];
        x.set(&[Slice::from(1), Slice::from(1..3)], &row).unwrap();
        x.set(&[all, Slice::from(3), Slice::from(..8).step(3)], 2.5).unwrap();
        x.set(&[Slice::from(4..), all, Slice::from(5..9)], &one).unwrap();
        x.set(&[Slice::from(2..2)], 1.0).unwrap();
        x.set(&[back, Slice::from(0), Slice::from(30..)], &x.slice(&[all, Slice::from(1), Slice::from(..3)]).unwrap())
            .unwrap();
        let part = y.slice(&[all, Slice::from(..35)]).unwrap();
        y.set(&[all, Slice::new(None, None, -2)], &part).unwrap();
        y.rows(1, 3).unwrap().set(&[all, Slice::new(Some(68), Some(1), -2)], -1.0).unwrap();
        found.extend([x.copy().unwrap(), y.copy().unwrap()]);
        rt.wait_all().unwrap();
        if let Some((counts, before)) = counts.zip(before) {
            let moved = counts.host_bytes.load(Ordering::Relaxed) - before;
            assert_eq!(moved, 0, "bytes passed through the host");
        }
        found.iter().map(|array| (array.dims().to_vec(), values(array))).collect::<Vec<_>>()
    };
    let expected = run(&here(), None);
    for seed in 0..3 {
        let (rt, counts) = on_gpu(seed);
        assert_eq!(run(&rt, Some(&counts)), expected);
    }
}
