//! Plans of hand-written kernels: values, threads, refused inputs, failures.

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::*;
use tensorc_abi::{BufferId, DType, Home, KernelFn, Packing, Plan, StepOp};
use tensorc_runtime::plan::{LoadError, PlanError, Side};
use tensorc_runtime::{
    AllocError, Context, Executable, Pool, RunError, TensorMut, TensorRef, WeightError, WeightStorage, pack_weight,
};

fn ramp(n: u64) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37).sin()).collect()
}

/// Runs a plan of one input and one output of `n` elements each.
fn run(context: &mut Context, pool: &Pool, x: &[f32]) -> Result<Vec<f32>, RunError> {
    let dims = [x.len() as u64];
    let mut y = vec![f32::NAN; x.len()];
    context.run(pool, &[TensorRef::from_slice(&dims, x)], &mut [TensorMut::from_slice(&dims, &mut y)])?;
    Ok(y)
}

#[test]
fn a_chain_computes_the_same_bits_with_any_number_of_threads() {
    for n in [0, 1, 2, 31, 33, 1000, 20_011] {
        let x = ramp(n);
        let expected = chain_expected(&x);
        for (threads, big) in [(1, false), (1, true), (2, true), (3, true), (5, true)] {
            let pool = Pool::new(threads).unwrap();
            let mut context = Context::new(executable(chain(n, big), vec![]), &pool).unwrap();
            for _ in 0..3 {
                assert_eq!(run(&mut context, &pool, &x).unwrap(), expected, "n {n}, threads {threads}");
            }
        }
    }
}

#[test]
fn large_copies_are_split_and_complete() {
    let n = 200_003;
    let mut plan = empty_plan();
    let x = buffer(&mut plan, "x", &[n], Home::Input(0));
    let y = buffer(&mut plan, "y", &[n], Home::Output(0));
    step(&mut plan, "copy", StepOp::Copy { src: x, dst: y }, true);
    let pool = Pool::new(3).unwrap();
    let mut context = Context::new(executable(plan, vec![]), &pool).unwrap();
    let x = ramp(n);
    assert_eq!(run(&mut context, &pool, &x).unwrap(), x);
}

#[test]
fn contexts_of_one_executable_run_concurrently() {
    let executable = executable(chain(5000, true), vec![]);
    let pool = Pool::new(2).unwrap();
    std::thread::scope(|scope| {
        for shift in 0..4 {
            let (executable, pool) = (executable.clone(), &pool);
            scope.spawn(move || {
                let x: Vec<f32> = ramp(5000).iter().map(|v| v + shift as f32).collect();
                let expected = chain_expected(&x);
                let mut context = Context::new(executable, pool).unwrap();
                for _ in 0..50 {
                    assert_eq!(run(&mut context, pool, &x).unwrap(), expected);
                }
            });
        }
    });
}

#[test]
fn a_context_follows_the_executable_to_a_larger_pool() {
    let x = ramp(999);
    let small = Pool::new(1).unwrap();
    let mut context = Context::new(executable(chain(999, true), vec![]), &small).unwrap();
    for threads in [1, 4, 2] {
        assert_eq!(run(&mut context, &Pool::new(threads).unwrap(), &x).unwrap(), chain_expected(&x));
    }
}

#[test]
fn profiles_have_a_time_for_each_step() {
    let pool = Pool::new(1).unwrap();
    let mut context = Context::new(executable(chain(1 << 16, false), vec![]), &pool).unwrap();
    let (dims, x) = ([1 << 16], ramp(1 << 16));
    let mut y = vec![0.0; 1 << 16];
    let start = std::time::Instant::now();
    let times = context
        .run_profiled(&pool, &[TensorRef::from_slice(&dims, &x)], &mut [TensorMut::from_slice(&dims, &mut y)])
        .unwrap();
    let total = start.elapsed();
    assert_eq!(times.len(), 4);
    assert!(times.iter().all(|time| !time.is_zero()));
    assert!(times.iter().sum::<std::time::Duration>() <= total);
    assert_eq!(y, chain_expected(&x));
}

#[test]
fn wrong_tensors_are_refused_by_name() {
    let pool = Pool::new(1).unwrap();
    let mut context = Context::new(executable(chain(4, false), vec![]), &pool).unwrap();
    let (x, dims) = ([1.0f32; 5], [4u64]);
    let good = TensorRef::from_slice(&dims, &x[..4]);
    let refuse = |context: &mut Context, inputs: &[TensorRef<'_>]| {
        let mut y = [0f32; 4];
        context.run(&pool, inputs, &mut [TensorMut::from_slice(&[4], &mut y)]).unwrap_err()
    };
    let (side, name) = (Side::Input, || "x".to_string());
    let error = refuse(&mut context, &[]);
    assert_eq!(error, RunError::Count { plan: "test".into(), side, expected: 1, actual: 0 });
    assert_eq!(error.to_string(), "plan `test` takes 1 inputs, 0 were given");
    let error = refuse(&mut context, &[TensorRef { dtype: DType::I32, ..good }]);
    assert_eq!(error, RunError::DType { side, name: name(), expected: DType::F32, actual: DType::I32 });
    let error = refuse(&mut context, &[TensorRef { dims: &[2, 2], ..good }]);
    assert_eq!(error, RunError::Shape { side, name: name(), expected: vec![4], actual: vec![2, 2] });
    assert_eq!(error.to_string(), "input `x` has shape [4], a tensor of [2, 2] was given");
    let error = refuse(&mut context, &[TensorRef { data: &good.data[..12], ..good }]);
    assert_eq!(error, RunError::Bytes { side, name: name(), expected: 16, actual: 12 });
    let bytes = TensorRef::from_slice(&dims, &x).data;
    let error = refuse(&mut context, &[TensorRef { data: &bytes[2..18], ..good }]);
    assert_eq!(error, RunError::Alignment { side, name: name(), dtype: DType::F32, align: 4 });

    let (side, mut y) = (Side::Output, [0f32; 5]);
    let error = context.run(&pool, &[good], &mut []).unwrap_err();
    assert_eq!(error, RunError::Count { plan: "test".into(), side, expected: 1, actual: 0 });
    let error = context.run(&pool, &[good], &mut [TensorMut::from_slice(&[5], &mut y)]).unwrap_err();
    assert_eq!(error, RunError::Shape { side, name: "y".into(), expected: vec![4], actual: vec![5] });
    assert_eq!(y, [0.0; 5]);
    assert_eq!(run(&mut context, &pool, &x[..4]).unwrap(), chain_expected(&x[..4]));
}

fn load(plan: Plan, kernels: Vec<KernelFn>, weights: Vec<WeightStorage>) -> LoadError {
    // SAFETY: the test kernels stay inside the buffers of these plans, and none is run.
    unsafe { Executable::new(plan, kernels, Arc::new(()), weights) }.unwrap_err()
}

#[test]
fn what_does_not_belong_together_is_not_loaded() {
    let mut plan = chain(4, false);
    plan.arena_bytes = 64;
    let error = load(plan, kernels(), vec![]);
    assert!(matches!(error, LoadError::Plan { error: PlanError::OutsideArena { .. }, .. }));
    let error = load(chain(4, false), kernels()[1..].to_vec(), vec![]);
    assert_eq!(error, LoadError::KernelCount { plan: "test".into(), expected: 4, actual: 3 });
    let plain = |bytes: usize| pack_weight(&Packing::Plain, DType::F32, Bytes::from(vec![0u8; bytes])).unwrap();
    let error = load(chain(4, false), kernels(), vec![plain(16)]);
    assert_eq!(error, LoadError::WeightCount { plan: "test".into(), expected: 0, actual: 1 });
    let mut plan = chain(4, false);
    weight(&mut plan, "w", &[4], Packing::Plain);
    let error = load(plan, kernels(), vec![plain(12)]);
    let bytes = WeightError::Bytes { expected: 16, actual: 12 };
    assert_eq!(error, LoadError::Weight { weight: "w".into(), error: bytes });
}

#[test]
fn an_arena_that_cannot_be_allocated_is_an_error() {
    let mut plan = chain(4, false);
    plan.arena_bytes = 1 << 61;
    let executable = executable(plan, vec![]);
    let error = Context::new(executable, &Pool::new(1).unwrap()).unwrap_err();
    assert_eq!(error, AllocError { bytes: 1 << 61, purpose: "arena" });
}

#[test]
fn plain_weights_are_used_where_they_lie() {
    let mut plan = empty_plan();
    let x = buffer(&mut plan, "x", &[3], Home::Input(0));
    let w = weight(&mut plan, "w", &[3], Packing::Plain);
    let y = buffer(&mut plan, "y", &[3], Home::Output(0));
    launch(&mut plan, "add", ADD, &[read(x), read(w), write(y)], 3, false);
    let values: Vec<u8> = [0.5f32, 1.5, 2.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    for shift in [0, 1] {
        let mut memory = vec![0u8; 20];
        let start = memory.as_ptr().align_offset(4) + shift;
        memory[start..start + 12].copy_from_slice(&values);
        // A vector without spare capacity keeps its address.
        let view = Bytes::from(memory).slice(start..start + 12);
        let stored = pack_weight(&Packing::Plain, DType::F32, view).unwrap();
        assert_eq!(matches!(stored, WeightStorage::Shared(_)), shift == 0);
        let pool = Pool::new(1).unwrap();
        let mut context = Context::new(executable(plan.clone(), vec![stored]), &pool).unwrap();
        assert_eq!(run(&mut context, &pool, &[1.0, 1.0, 1.0]).unwrap(), [1.5, 2.5, 3.5]);
    }
}

#[test]
fn outputs_may_be_read_by_later_steps_and_inputs_given_twice() {
    let mut plan = empty_plan();
    let a = buffer(&mut plan, "a", &[2], Home::Input(0));
    let b = buffer(&mut plan, "b", &[2], Home::Input(1));
    let y = buffer(&mut plan, "y", &[2], Home::Output(0));
    let z = buffer(&mut plan, "z", &[2], Home::Output(1));
    launch(&mut plan, "y", ADD, &[read(a), read(b), write(y)], 2, false);
    launch(&mut plan, "z", ADD, &[read(y), read(BufferId(0)), write(z)], 2, false);
    let pool = Pool::new(1).unwrap();
    let mut context = Context::new(executable(plan, vec![]), &pool).unwrap();
    let (dims, x) = ([2], [1.0f32, 2.0]);
    let (mut y, mut z) = ([0f32; 2], [0f32; 2]);
    let x = TensorRef::from_slice(&dims, &x);
    let mut outputs = [TensorMut::from_slice(&dims, &mut y), TensorMut::from_slice(&dims, &mut z)];
    context.run(&pool, &[x, x], &mut outputs).unwrap();
    assert_eq!((y, z), ([2.0, 4.0], [3.0, 6.0]));
}
