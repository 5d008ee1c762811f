//! What a run tells of outputs that it does not touch any more.

use std::sync::Arc;

use crate::common::*;
use tensorc_abi::{ExternFn, Plan, StepOp, StorageClass, SubBuffer};
use tensorc_runtime::plan::Phase;
use tensorc_runtime::{Bindings, Context, Device, Executable, Pool, Profiler, RunError, TensorMut, TensorRef};

const N: u64 = 1000;

/// | step | reads | writes |
/// |---|---|---|
/// | 0 | x | third |
/// | 1 | x | first |
/// | 2 | x | second, lower half |
/// | 3 | first | t |
/// | 4 | t | second, upper half |
/// | 5 | x, second | fourth |
///
/// The fifth output has no elements.
fn outputs_used_again(big: bool) -> Plan {
    let mut plan = empty_plan();
    let x = buffer(&mut plan, "x", &[N], StorageClass::Input(0));
    let outputs: Vec<_> = (0..4).map(|i| buffer(&mut plan, &format!("y{i}"), &[N], StorageClass::Output(i))).collect();
    buffer(&mut plan, "empty", &[0], StorageClass::Output(4));
    let [first, second, third, fourth] = outputs[..] else { panic!() };
    let halves = [0, N / 2].map(|offset| {
        let half = buffer(&mut plan, "half", &[N / 2], StorageClass::Arena(0));
        plan.buffers[half.0 as usize].part = Some(SubBuffer { of: second, offset, run: N / 2, stride: N / 2 });
        half
    });
    plan.settle_parts();
    let t = buffer(&mut plan, "t", &[N], StorageClass::Arena(0));
    launch(&mut plan, "0", SCALE, &[read(x), write(third)], N, big);
    launch(&mut plan, "1", SCALE, &[read(x), write(first)], N, big);
    launch(&mut plan, "2", SCALE, &[read(x), write(halves[0])], N / 2, big);
    launch(&mut plan, "3", SCALE, &[read(first), write(t)], N, big);
    launch(&mut plan, "4", SCALE, &[read(t), write(halves[1])], N / 2, big);
    launch(&mut plan, "5", ADD, &[read(x), read(second), write(fourth)], N, big);
    plan.arena_bytes = (4 * N).next_multiple_of(Plan::ALIGN);
    plan
}

fn ramp() -> Vec<f32> {
    (0..N).map(|i| i as f32 / 7.0).collect()
}

/// What was told, in order, with the elements at that time; and the elements at the end.
#[derive(Debug, PartialEq)]
struct Seen {
    told: Vec<(usize, Vec<f32>)>,
    ended: Vec<Vec<f32>>,
    result: Result<(), String>,
}

fn observe(executable: &Arc<Executable>, threads: usize, sizes: &[u64], profiler: Option<&Profiler>) -> Seen {
    let pool = Pool::new(threads).unwrap();
    let mut context = Context::new(executable.clone(), &pool).unwrap();
    let (dims, x) = ([N], ramp());
    let mut ended: Vec<Vec<f32>> = sizes.iter().map(|n| vec![-1.0; *n as usize]).collect();
    let starts: Vec<(*const f32, usize)> = ended.iter().map(|y| (y.as_ptr(), y.len())).collect();
    let mut told = vec![];
    let mut outputs: Vec<TensorMut<'_>> =
        sizes.iter().zip(&mut ended).map(|(n, y)| TensorMut::from_slice(std::slice::from_ref(n), y)).collect();
    let inputs = [TensorRef::from_slice(&dims, &x)];
    let bindings = Bindings::new(&inputs, &mut outputs);
    let mut observer = |output: usize| {
        let (start, len) = starts[output];
        // SAFETY: the run does not touch the output any more, as it says.
        told.push((output, unsafe { std::slice::from_raw_parts(start, len) }.to_vec()));
    };
    let traced = profiler.map(|profiler| (profiler, Device::default()));
    let result = context.run_observed(None, &pool, bindings, traced, &mut observer);
    Seen { told, ended, result: result.map_err(|error| error.to_string()) }
}

#[test]
fn outputs_are_told_after_their_last_use() {
    let sizes = [N, N, N, N, 0];
    for (threads, big, order) in [(1, false, [2, 0, 1, 3]), (1, true, [2, 0, 1, 3]), (3, true, [2, 0, 1, 3])] {
        let executable = executable(outputs_used_again(big), vec![]);
        let seen = observe(&executable, threads, &sizes, None);
        seen.result.clone().unwrap();
        assert_eq!(seen.told.iter().map(|(output, _)| *output).collect::<Vec<_>>(), order, "{threads} threads");
        for (output, then) in &seen.told {
            assert_eq!(*then, seen.ended[*output], "output {output} is complete when it is told");
        }
        let profiler = Profiler::default();
        profiler.start();
        assert_eq!(observe(&executable, threads, &sizes, Some(&profiler)), seen, "traced");
        assert!(!profiler.recording().events().is_empty());
        let poisoned = Arc::new(load(outputs_used_again(big), kernels(), vec![]).unwrap().poisoning());
        assert_eq!(observe(&poisoned, threads, &sizes, None), seen, "dead memory filled");
    }
}

/// Where a step fails, what is complete was told, and nothing else.
#[test]
fn what_comes_after_a_failure_is_not_told() {
    let mut plan = empty_plan();
    let x = buffer(&mut plan, "x", &[N], StorageClass::Input(0));
    let outputs: Vec<_> = (0..3).map(|i| buffer(&mut plan, "y", &[N], StorageClass::Output(i))).collect();
    launch(&mut plan, "0", SCALE, &[read(x), write(outputs[1])], N, false);
    let call = |args| StepOp::Extern { operator: "broken".into(), function: 0, args };
    step(&mut plan, "1", call(vec![read(outputs[1]), write(outputs[0])]), false);
    launch(&mut plan, "2", SCALE, &[read(x), write(outputs[2])], N, false);
    for fails in [false, true] {
        let f = ExternFn::new("broken", vec![4 * N], vec![4 * N], 0, move |call| {
            call.outputs[0].copy_from_slice(call.inputs[0]);
            if fails { Err("out of paper".into()) } else { Ok(()) }
        });
        // SAFETY: the kernels are static functions that stay inside the buffers of the plan.
        let made = unsafe { Executable::with_externs(plan.clone(), kernels(), Arc::new(()), vec![], &[f]) };
        let seen = observe(&Arc::new(made.unwrap()), 1, &[N; 3], None);
        let told: Vec<usize> = seen.told.iter().map(|(output, _)| *output).collect();
        assert_eq!((seen.result.is_err(), told), (fails, if fails { vec![] } else { vec![0, 1, 2] }));
    }
}

/// Positions are those of the phase's tensors.
#[test]
fn phases_tell_of_their_own_outputs() {
    let mut plan = empty_plan();
    let x = buffer(&mut plan, "x", &[N], StorageClass::Input(0));
    let outputs: Vec<_> = (0..4).map(|i| buffer(&mut plan, "y", &[N], StorageClass::Output(i))).collect();
    launch(&mut plan, "0", SCALE, &[read(x), write(outputs[0])], N, false);
    launch(&mut plan, "1", SCALE, &[read(x), write(outputs[1])], N, false);
    launch(&mut plan, "2", SCALE, &[read(x), write(outputs[3])], N, false);
    launch(&mut plan, "3", ADD, &[read(x), read(x), write(outputs[2])], N, false);
    plan.boundary = Some(2);
    let executable = executable(plan, vec![]);
    let pool = Pool::new(1).unwrap();
    let mut context = Context::new(executable.clone(), &pool).unwrap();
    let (dims, x) = ([N], ramp());
    let mut memory = vec![vec![0f32; N as usize]; 4];
    let inputs = [TensorRef::from_slice(&dims, &x)];
    let mut run = |phase: Option<Phase>| -> Result<Vec<usize>, RunError> {
        let needed = |i: usize| phase.is_none_or(|phase| executable.needs(phase).unwrap().outputs.contains(&i));
        let some = memory.iter_mut().enumerate().filter(|(i, _)| needed(*i));
        let mut outputs: Vec<TensorMut<'_>> = some.map(|(_, y)| TensorMut::from_slice(&dims, y)).collect();
        let mut told = vec![];
        let bindings = Bindings::new(&inputs, &mut outputs);
        context.run_observed(phase, &pool, bindings, None, &mut |output| told.push(output))?;
        Ok(told)
    };
    assert_eq!(run(None).unwrap(), [0, 1, 3, 2]);
    assert_eq!(run(Some(Phase::First)).unwrap(), [0, 1]);
    assert_eq!(run(Some(Phase::Second)).unwrap(), [1, 0]);
}
