//! Hand-written kernels in the calling convention of generated ones, and a way to put plans together.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::Arc;

use tensorc_abi::{
    Arg, Buffer, BufferId, DType, Epilogue, KernelFn, KernelId, Packing, Plan, Scratch, Step, StepOp, StorageClass,
    Weight,
};
use tensorc_runtime::plan::LoadError;
use tensorc_runtime::{Executable, WeightStorage};

pub const ADD: KernelId = KernelId(0);
pub const SCALE: KernelId = KernelId(1);
pub const BIAS_RELU: KernelId = KernelId(2);
pub const NOTHING: KernelId = KernelId(3);

/// The arguments of one kernel call; the buffers hold f32 elements.
struct Call(*const *mut u8, *const i64);

impl Call {
    fn scalar(&self, index: usize) -> usize {
        // SAFETY: the kernels below ask for the scalars their calling convention has.
        unsafe { *self.1.add(index) as usize }
    }

    fn get(&self, buffer: usize, index: usize) -> f32 {
        // SAFETY: the plans give each kernel its arguments, with elements for every iteration.
        unsafe { *(*self.0.add(buffer)).cast::<f32>().add(index) }
    }

    fn set(&self, buffer: usize, index: usize, value: f32) {
        // SAFETY: as for `get`; iterations write different elements.
        unsafe { *(*self.0.add(buffer)).cast::<f32>().add(index) = value }
    }
}

/// `out[i] = a[i] + b[i]`.
unsafe extern "C" fn add(buffers: *const *mut u8, scalars: *const i64) {
    let call = Call(buffers, scalars);
    (call.scalar(0)..call.scalar(1)).for_each(|i| call.set(2, i, call.get(0, i) + call.get(1, i)));
}

/// `out[i] = 1.5·a[i] + i`.
unsafe extern "C" fn scale(buffers: *const *mut u8, scalars: *const i64) {
    let call = Call(buffers, scalars);
    (call.scalar(0)..call.scalar(1)).for_each(|i| call.set(1, i, call.get(0, i) * 1.5 + i as f32));
}

/// Epilogue over a result with [`BIAS_COLUMNS`] columns: `c[m, n] = max(c[m, n] + bias[n], 0)`.
unsafe extern "C" fn bias_relu(buffers: *const *mut u8, scalars: *const i64) {
    let call = Call(buffers, scalars);
    for row in call.scalar(3)..call.scalar(4) {
        for col in call.scalar(5)..call.scalar(6) {
            let at = row * BIAS_COLUMNS + col;
            call.set(0, at, (call.get(0, at) + call.get(1, col)).max(0.0));
        }
    }
}

/// Row length of the result that [`BIAS_RELU`] works on.
pub const BIAS_COLUMNS: usize = 33;

unsafe extern "C" fn nothing(_: *const *mut u8, _: *const i64) {}

pub fn kernels() -> Vec<KernelFn> {
    vec![add, scale, bias_relu, nothing]
}

pub fn read(buffer: BufferId) -> Arg {
    Arg { buffer, writes: false }
}

pub fn write(buffer: BufferId) -> Arg {
    Arg { buffer, writes: true }
}

/// A plan without buffers and steps that knows the kernels above.
pub fn empty_plan() -> Plan {
    let kernels = ["add", "scale", "bias_relu", "nothing"].map(String::from).to_vec();
    Plan { name: "test".into(), kernels, ..Plan::default() }
}

pub fn buffer(plan: &mut Plan, name: &str, dims: &[u64], storage: StorageClass) -> BufferId {
    let id = BufferId(plan.buffers.len() as u32);
    match storage {
        StorageClass::Input(_) => plan.inputs.push(id),
        StorageClass::Output(_) => plan.outputs.push(id),
        // The second buffer of a state is its next value.
        StorageClass::State(i) if plan.states.len() == i as usize => plan.states.push(id),
        StorageClass::State(_) => {}
        StorageClass::Weight(_) | StorageClass::Arena(_) => {}
    }
    plan.buffers.push(Buffer { name: name.into(), dtype: DType::F32, dims: dims.to_vec(), storage, part: None });
    id
}

pub fn weight(plan: &mut Plan, name: &str, dims: &[u64], packing: Packing) -> BufferId {
    let index = plan.weights.len() as u32;
    plan.weights.push(Weight { name: name.into(), constant: index, packing });
    buffer(plan, name, dims, StorageClass::Weight(index))
}

/// Appends a step that claims enough work to be split over threads if `big`.
pub fn step(plan: &mut Plan, name: &str, op: StepOp, big: bool) {
    let flops = if big { 1 << 40 } else { 0 };
    let bytes = tensorc_exec::working_bytes(&op).each;
    if bytes > 0 {
        let step = plan.steps.len() as u32;
        plan.scratch.push(Scratch { step, offset: SCRATCH_OFFSET, shared: 0, bytes, live: 0 });
        let most = plan.scratch.iter().map(|scratch| scratch.bytes).max().unwrap();
        plan.scratch.iter_mut().for_each(|scratch| scratch.bytes = most);
    }
    plan.steps.push(Step { name: name.into(), op, flops, bytes: 0 });
}

/// Where the steps of these plans have working memory: behind all buffers, all of them the same.
pub const SCRATCH_OFFSET: u64 = 1 << 20;

pub fn launch(plan: &mut Plan, name: &str, kernel: KernelId, args: &[Arg], extent: u64, big: bool) {
    step(plan, name, StepOp::Launch { kernel, args: args.to_vec(), extent }, big);
}

pub fn epilogue(kernel: KernelId, args: &[Arg]) -> Option<Epilogue> {
    Some(Epilogue { kernel, args: args.to_vec(), apart: false })
}

pub fn load(plan: Plan, kernels: Vec<KernelFn>, weights: Vec<WeightStorage>) -> Result<Executable, LoadError> {
    // SAFETY: the kernels above are static functions that stay inside the buffers of these plans.
    unsafe { Executable::new(plan, kernels, Arc::new(()), weights) }
}

pub fn executable(plan: Plan, weights: Vec<WeightStorage>) -> Arc<Executable> {
    Arc::new(load(plan, kernels(), weights).unwrap())
}

/// `x → t0 = scale(x) → t1 = scale(t0) in place → t2 = t0' + t1 → y` over `n` elements:
///
/// | buffer | arena range |
/// |---|---|
/// | t0, then t1 in its place | first n elements |
/// | t2 | next n elements |
pub fn chain(n: u64, big: bool) -> Plan {
    let mut plan = empty_plan();
    let stride = (4 * n).next_multiple_of(Plan::ALIGN);
    let x = buffer(&mut plan, "x", &[n], StorageClass::Input(0));
    let t0 = buffer(&mut plan, "t0", &[n], StorageClass::Arena(0));
    let t1 = buffer(&mut plan, "t1", &[n], StorageClass::Arena(0));
    let t2 = buffer(&mut plan, "t2", &[n], StorageClass::Arena(stride));
    let y = buffer(&mut plan, "y", &[n], StorageClass::Output(0));
    launch(&mut plan, "s0", SCALE, &[read(x), write(t0)], n, big);
    launch(&mut plan, "s1", SCALE, &[read(t0), write(t1)], n, big);
    launch(&mut plan, "s2", ADD, &[read(x), read(t1), write(t2)], n, big);
    step(&mut plan, "s3", StepOp::Copy { src: t2, dst: y }, big);
    plan.arena_bytes = 2 * stride;
    plan.lower_bound_bytes = 2 * 4 * n;
    plan
}

/// What [`chain`] computes.
pub fn chain_expected(x: &[f32]) -> Vec<f32> {
    let scale = |(i, v): (usize, f32)| v * 1.5 + i as f32;
    x.iter().enumerate().map(|(i, &v)| v + scale((i, scale((i, v))))).collect()
}

/// `y = scale(x) + scale(x)`, the two products computed by steps that do not depend on each other.
pub fn fork(n: u64, big: bool) -> Plan {
    let mut plan = empty_plan();
    let stride = (4 * n).next_multiple_of(Plan::ALIGN);
    let x = buffer(&mut plan, "x", &[n], StorageClass::Input(0));
    let left = buffer(&mut plan, "left", &[n], StorageClass::Arena(0));
    let right = buffer(&mut plan, "right", &[n], StorageClass::Arena(stride));
    let y = buffer(&mut plan, "y", &[n], StorageClass::Output(0));
    launch(&mut plan, "left", SCALE, &[read(x), write(left)], n, big);
    launch(&mut plan, "right", SCALE, &[read(x), write(right)], n, big);
    launch(&mut plan, "join", ADD, &[read(left), read(right), write(y)], n, big);
    plan.arena_bytes = 2 * stride;
    plan
}

/// What [`fork`] computes.
pub fn fork_expected(x: &[f32]) -> Vec<f32> {
    x.iter().enumerate().map(|(i, v)| 2.0 * (v * 1.5 + i as f32)).collect()
}
