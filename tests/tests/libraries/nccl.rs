//! Exchanges between two GPUs by NCCL, called as on GPUs, where there are none: `nccl.c` is in its place.

use std::sync::Arc;

use tensorc::runtime::gpu::{CollectiveError, Driver, join};
use tensorc::runtime::half::{bf16, f16};
use tensorc::runtime::{Device, Element};
use tensorc::{Compiler, DType, Options};
use tensorc_nd::{JoinedGpus, NDArray, Runtime, RuntimeOptions};
use tensorc_train::{Initializer, Module, ModuleBuilder, Optimizer, Sums};

use super::cuda::imaginary;
use crate::kvstore::modules::{self, BATCH};
use tensorc_tests::cache::visible;
use tensorc_tests::imaginary::{call_driver, connect_ptx, take_away};

const GPUS: [Device; 2] = [Device::accelerator(0), Device::accelerator(1)];

/// Kinds of calls that the imaginary library counts, for one device.
const ALL_REDUCE: i32 = 0;
const REDUCE: i32 = 1;
const BROADCAST: i32 = 2;
const ABORTED: i32 = 3;
/// What it is to fail next.
const INIT: i32 = 1;
const CALL: i32 = 2;
const END: i32 = 3;
const LATER: i32 = 4;

fn made(kind: i32) -> i32 {
    call_driver("imaginary_nccl_made", kind)
}

fn fail(what: i32) {
    call_driver("imaginary_nccl_fail", what);
}

/// Runs a test with imaginary libraries, if this build has calls of NCCL; true in that run.
fn nccl(test: &str) -> bool {
    let drivers = GPUS.map(|device| tensorc_simulator::interpreted(device) as Arc<dyn Driver>);
    if join(&drivers).err() == Some(CollectiveError::NotBuilt) {
        visible("libraries: skipped, the calls of NCCL need a build with the feature `nccl`");
        return false;
    }
    imaginary(&format!("nccl::{test}"), (8, 0))
}

/// A runtime with both GPUs.
fn runtime() -> Runtime {
    let gpus = (0..2).map(|id| tensorc::gpu::cuda(id).unwrap()).collect();
    let compiler = Compiler::new(Options { gpus, threads: Some(1), ..Options::default() }).unwrap();
    Runtime::with_compiler(compiler, RuntimeOptions { device: GPUS[0], ..RuntimeOptions::default() }).unwrap()
}

/// A small whole number for an element of a GPU's array.
fn number(gpu: usize, at: usize) -> f64 {
    ((at * 7 + gpu * 5) % 23) as f64
}

const LEN: usize = 300;

/// An array of each GPU.
fn arrays<T: Element>(rt: &Runtime, of: impl Fn(f64) -> T) -> [NDArray; 2] {
    [0, 1].map(|gpu| {
        let values: Vec<T> = (0..LEN).map(|at| of(number(gpu, at))).collect();
        rt.array(&[LEN as u64], &values).unwrap().copy_to(GPUS[gpu]).unwrap()
    })
}

/// All exchanges of arrays of a type.
fn exchanges<T: Element + PartialEq + std::fmt::Debug>(rt: &Runtime, joined: &JoinedGpus, of: fn(f64) -> T) {
    let own = |gpu: usize| (0..LEN).map(move |at| of(number(gpu, at))).collect::<Vec<T>>();
    let sums: Vec<T> = (0..LEN).map(|at| of(number(0, at) + number(1, at))).collect();
    let values = |array: &NDArray| array.to_vec::<T>().unwrap();
    let [a, b] = arrays(rt, of);
    joined.reduce(&[&a, &b], 1).unwrap();
    assert_eq!((values(&a), values(&b)), (own(0), sums.clone()));
    joined.broadcast(&[&a, &b], 1).unwrap();
    assert_eq!((values(&a), values(&b)), (sums.clone(), sums.clone()));
    let [a, b] = arrays(rt, of);
    joined.broadcast(&[&a, &b], 0).unwrap();
    assert_eq!((values(&a), values(&b)), (own(0), own(0)));
    let [a, b] = arrays(rt, of);
    joined.all_reduce(&[&a, &b]).unwrap();
    assert_eq!((values(&a), values(&b)), (sums.clone(), sums));
}

#[test]
fn arrays_of_every_type_are_exchanged() {
    if !nccl("arrays_of_every_type_are_exchanged") {
        return;
    }
    let rt = runtime();
    let joined = rt.join(&GPUS).unwrap();
    assert_eq!(joined.devices(), GPUS);
    exchanges(&rt, &joined, |x| x as f32);
    exchanges(&rt, &joined, |x| x);
    exchanges(&rt, &joined, f16::from_f64);
    exchanges(&rt, &joined, bf16::from_f64);
    exchanges(&rt, &joined, |x| x as i8);
    exchanges(&rt, &joined, |x| x as u8);
    exchanges(&rt, &joined, |x| x as i32 * -3);
    exchanges(&rt, &joined, |x| x as i64 * -5_000_000_000);
    assert_eq!([ALL_REDUCE, REDUCE, BROADCAST, ABORTED].map(made), [16, 16, 32, 0]);
    // Parts of arrays, and arrays that no one wrote.
    let whole = GPUS.map(|gpu| rt.full(gpu, DType::F32, &[4, 5], 1.5).unwrap());
    let rows = whole.each_ref().map(|array| array.rows(1, 3).unwrap());
    let empty = rt.empty(GPUS[1], DType::F32, &[2, 5]).unwrap();
    joined.all_reduce(&[&rows[0], &empty]).unwrap();
    joined.all_reduce(&[&rows[0], &rows[1]]).unwrap();
    let expected: Vec<f32> = (0..20).map(|at| if (5..15).contains(&at) { 3.0 } else { 1.5 }).collect();
    assert_eq!(whole.each_ref().map(|array| array.to_vec::<f32>().unwrap()), [expected.clone(), expected]);
    assert_eq!(empty.to_vec::<f32>().unwrap(), [1.5; 10]);
    let unwritten = rt.empty(GPUS[1], DType::F32, &[2, 5]).unwrap();
    joined.reduce(&[&rows[0], &unwritten], 0).unwrap();
    assert_eq!(rows[0].to_vec::<f32>().unwrap(), [3.0; 10]);
    let nothing = GPUS.map(|gpu| rt.empty(gpu, DType::F32, &[0]).unwrap());
    joined.all_reduce(&[&nothing[0], &nothing[1]]).unwrap();
    rt.wait_all().unwrap();
}

/// A chain over both GPUs: what comes before and behind an exchange is ordered with it on either of them, and nothing is awaited by
/// the host before the end.
#[test]
fn exchanges_are_ordered_with_what_surrounds_them() {
    if !nccl("exchanges_are_ordered_with_what_surrounds_them") {
        return;
    }
    let rt = runtime();
    let joined = rt.join(&GPUS).unwrap();
    let [a, b] = GPUS.map(|gpu| rt.full(gpu, DType::I64, &[64], 1.0).unwrap());
    rt.wait_all().unwrap();
    call_driver("imaginary_hold", 1);
    for round in 1..=5 {
        joined.all_reduce(&[&a, &b]).unwrap();
        // Over the row that the other one's sum is to have.
        b.rows(0, 1).unwrap().fill(f64::from(round)).unwrap();
        let there = a.rows(1, 2).unwrap().copy_to(GPUS[1]).unwrap();
        there.copy_into(&b.rows(2, 3).unwrap()).unwrap();
        joined.reduce(&[&a, &b], 0).unwrap();
        a.rows(0, 1).unwrap().copy_into(&b.rows(3, 4).unwrap()).unwrap();
    }
    call_driver("imaginary_hold", 0);
    let (mut x, mut y) = ([1i64; 64], [1i64; 64]);
    for round in 1..=5 {
        let sums: Vec<i64> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
        x.copy_from_slice(&sums);
        y.copy_from_slice(&sums);
        (y[0], y[2]) = (round, x[1]);
        x.iter_mut().zip(&y).for_each(|(x, y)| *x += y);
        y[3] = x[0];
    }
    assert_eq!([a.to_vec::<i64>().unwrap(), b.to_vec::<i64>().unwrap()], [x.to_vec(), y.to_vec()]);
}

#[test]
fn what_cannot_be_exchanged_is_refused() {
    if !nccl("what_cannot_be_exchanged_is_refused") {
        return;
    }
    let rt = runtime();
    let said = |outcome: Result<(), tensorc_nd::Error>| outcome.unwrap_err().to_string();
    let joining = |devices: &[Device]| said(rt.join(devices).map(drop));
    assert_eq!(joining(&GPUS[..1]), "NCCL sums over two or more GPUs, not over 1");
    assert_eq!(joining(&[GPUS[1], GPUS[1]]), "gpu:1 is named twice; NCCL takes a device once");
    let foreign = "cpu:0 is not a GPU of CUDA's driver, as NCCL needs it";
    assert_eq!(joining(&[GPUS[0], Device::cpu(0)]), foreign);
    fail(INIT);
    assert_eq!(joining(&GPUS), "ncclCommInitAll failed: unhandled system error (status 2)");
    let joined = rt.join(&[GPUS[1], GPUS[0]]).unwrap();
    let [a, b] = arrays(&rt, |x| x as f32);
    let expected = "f32[300] on gpu:0 in an exchange, where f32[300] on gpu:1 is expected";
    assert_eq!(said(joined.all_reduce(&[&a, &b])), expected);
    assert_eq!(said(joined.all_reduce(&[&b])), "1 arrays for an exchange between 2 devices");
    assert_eq!(said(joined.reduce(&[&b, &a], 2)), "position 2 among 2 devices");
    let other = a.rows(0, 3).unwrap();
    let expected = "f32[3] on gpu:0 in an exchange, where f32[300] on gpu:0 is expected";
    assert_eq!(said(joined.all_reduce(&[&b, &other])), expected);
    let bits = [GPUS[1], GPUS[0]].map(|gpu| rt.full(gpu, DType::Bool, &[3], 1.0).unwrap());
    assert_eq!(said(joined.all_reduce(&[&bits[0], &bits[1]])), "NCCL adds no elements of bool");
    assert!(!joined.takes(DType::I16) && joined.takes(DType::U64));
    joined.all_reduce(&[&b, &a]).unwrap();
    assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    // A runtime with GPUs that are not CUDA's.
    let gpus = GPUS.map(|device| tensorc_simulator::interpreted(device) as Arc<dyn Driver>).to_vec();
    let compiler = Compiler::new(Options { gpus, ..Options::default() }).unwrap();
    let simulated = Runtime::with_compiler(compiler, RuntimeOptions::default()).unwrap();
    let foreign = "gpu:0 is not a GPU of CUDA's driver, as NCCL needs it";
    assert_eq!(said(simulated.join(&GPUS).map(drop)), foreign);
}

/// What fails is an error of all arrays that would have been written, and of every exchange that follows; joined anew, the GPUs
/// go on.
#[test]
fn failures_reach_the_arrays() {
    if !nccl("failures_reach_the_arrays") {
        return;
    }
    let rt = runtime();
    for (round, (what, why)) in [
        (CALL, "ncclAllReduce failed: unhandled system error (status 2)"),
        (END, "ncclGroupEnd failed: internal error (status 3)"),
        (
            LATER,
            "NCCL's communicator of gpu:1 has failed: remote process exited or there was a network error (status 6)",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let joined = rt.join(&GPUS).unwrap();
        let [a, b] = arrays(&rt, |x| x as f32);
        joined.all_reduce(&[&a, &b]).unwrap();
        rt.wait_all().unwrap();
        fail(what);
        joined.all_reduce(&[&a, &b]).unwrap();
        for array in [&a, &b] {
            let error = array.to_vec::<f32>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let [c, d] = arrays(&rt, |x| x as f32);
        joined.all_reduce(&[&c, &d]).unwrap();
        let error = d.to_vec::<f32>().unwrap_err().to_string();
        assert!(error.contains(&format!("NCCL is not used any more, since {why}")), "{error}");
        assert_eq!(made(ABORTED), 2 * (round as i32 + 1), "both communicators");
        let _ = rt.wait_all();
    }
    let joined = rt.join(&GPUS).unwrap();
    // What fails before an exchange keeps it from being enqueued anywhere, and breaks nothing: the driver has no kernels.
    let [a, b] = arrays(&rt, |x| x as f32);
    let before = made(ALL_REDUCE);
    let failed = (&a + &a).unwrap();
    joined.all_reduce(&[&failed, &b]).unwrap();
    for array in [&failed, &b] {
        let error = array.to_vec::<f32>().unwrap_err().to_string();
        assert!(error.contains("named symbol not found"), "{error}");
    }
    assert_eq!(made(ALL_REDUCE), before);
    let _ = rt.wait_all();
    let [a, b] = arrays(&rt, |x| x as f32);
    joined.all_reduce(&[&a, &b]).unwrap();
    assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    assert_eq!(made(ALL_REDUCE), before + 2);
}

#[test]
fn a_missing_nccl_is_an_error() {
    if !nccl("a_missing_nccl_is_an_error") {
        return;
    }
    take_away("libnccl.so.2");
    let rt = runtime();
    let missing = "NCCL is not installed here (libnccl.so.2 was not found)";
    assert_eq!(rt.join(&GPUS).unwrap_err().to_string(), missing);
    let bound = layer(&rt, |module| module.devices(&GPUS).sums(Sums::Nccl));
    assert_eq!(bound.map(drop).unwrap_err().to_string(), missing);
}

/// Where the build has no calls of NCCL, asking for it is an error that says so; where it has, of GPUs that are not CUDA's.
#[test]
fn modules_say_what_nccl_lacks() {
    let gpus = GPUS.map(|device| tensorc_simulator::interpreted(device) as Arc<dyn Driver>);
    let lacks = join(&gpus).unwrap_err();
    let compiler = Compiler::new(Options { gpus: gpus.to_vec(), ..Options::default() }).unwrap();
    let rt = Runtime::with_compiler(compiler, RuntimeOptions { device: GPUS[0], ..RuntimeOptions::default() }).unwrap();
    let bound = layer(&rt, |module| module.devices(&GPUS).sums(Sums::Nccl)).map(drop).unwrap_err();
    assert!(
        matches!(&bound, tensorc_train::Error::Arrays(tensorc_nd::Error::Collective(found)) if *found == lacks),
        "{bound}"
    );
    let few = layer(&rt, |module| module.device(GPUS[0]).sums(Sums::Nccl)).map(drop).unwrap_err();
    assert_eq!(few.to_string(), "NCCL sums over two or more GPUs, not over 1");
}

/// A module of one layer.
fn layer(rt: &Runtime, prepare: fn(ModuleBuilder) -> ModuleBuilder) -> Result<Module, tensorc_train::Error> {
    use tensorc::symbol::{Symbol, name_scope, op};
    use tensorc_data::DataDesc;
    let _names = name_scope();
    let data = Symbol::variable("data");
    let hidden = op("FullyConnected").input(&data).param("num_hidden", 5).name("fc").build()?;
    let scores = op("SoftmaxOutput").input(&hidden).name("softmax").build()?;
    let data = vec![DataDesc::new("data", DType::F32, &[BATCH, 1, 6, 6])];
    let labels = vec![DataDesc::new("softmax_label", DType::F32, &[BATCH])];
    prepare(Module::of(rt, &scores).inputs(data, labels)).bind()
}

/// A module on two GPUs whose gradients NCCL sums learns what one does that sums in the order of the tree.
#[test]
fn modules_sum_their_gradients() {
    if !nccl("modules_sum_their_gradients") {
        return;
    }
    connect_ptx();
    const STEPS: u64 = 2;
    let train = |prepare: fn(ModuleBuilder) -> ModuleBuilder| {
        let rt = runtime();
        rt.seed(3);
        let mut module = layer(&rt, prepare).unwrap();
        module.init_params(&Initializer::xavier(3.0)).unwrap();
        module.init_optimizer(Optimizer::sgd(0.1, 0.9)).unwrap();
        let (params, outputs) = modules::trained(&mut module, STEPS, 0, 1);
        let values = ["fc_weight", "fc_bias"].map(|name| params.arguments[name].to_f32().unwrap());
        (values.concat(), outputs)
    };
    let close = |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    for (nccl, tree) in [
        (
            (|module| module.devices(&GPUS).sums(Sums::Nccl)) as fn(ModuleBuilder) -> ModuleBuilder,
            (|module| module.devices(&GPUS)) as fn(ModuleBuilder) -> ModuleBuilder,
        ),
        (
            |module| module.devices(&GPUS).micro_batches(4).sums(Sums::Nccl),
            |module| module.devices(&GPUS).micro_batches(4).sums(Sums::Tree),
        ),
    ] {
        let before = [REDUCE, BROADCAST].map(made);
        let expected = train(tree);
        assert_eq!([REDUCE, BROADCAST].map(made), before, "the tree needs no library");
        let found = train(nccl);
        // Two parameters on two devices; they are passed on after each step and when they are set.
        let calls = [before[0] + 2 * 2 * STEPS as i32, before[1] + 2 * 2 * (STEPS as i32 + 1)];
        assert_eq!([REDUCE, BROADCAST].map(made), calls);
        assert!(close(&found.0, &expected.0), "{:?}\n{:?}", found.0, expected.0);
        assert!(close(&found.1, &expected.1), "{:?}\n{:?}", found.1, expected.1);
    }
}
