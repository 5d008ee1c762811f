//! Plans with states and two phases: what they compute, what each phase takes, and what the
//! verifier refuses.

use crate::common::*;
use tensorc_abi::{Plan, Scratch, StepOp, StorageClass, SubBuffer};
use tensorc_runtime::plan::{Needs, Phase, PlanEdge, PlanError, PlanReport};
use tensorc_runtime::{Bindings, Context, Pool, RunError, TensorMut, TensorRef};

const N: u64 = 1000;

/// `t = scale(s)`, `y = t + x`; then `s = s + t` in place, `k = t` by a copy, `z = scale(s)`.
///
/// | phase | reads | writes |
/// |---|---|---|
/// | first | x, s | y |
/// | second | s, t | s, k, z |
fn two_phases(big: bool) -> Plan {
    let mut plan = empty_plan();
    let x = buffer(&mut plan, "x", &[N], StorageClass::Input(0));
    let s = buffer(&mut plan, "s", &[N], StorageClass::State(0));
    let s_next = buffer(&mut plan, "s_next", &[N], StorageClass::State(0));
    buffer(&mut plan, "k", &[N], StorageClass::State(1));
    let k_next = buffer(&mut plan, "k_next", &[10, N / 10], StorageClass::State(1));
    let t = buffer(&mut plan, "t", &[N], StorageClass::Arena(0));
    let y = buffer(&mut plan, "y", &[N], StorageClass::Output(0));
    let z = buffer(&mut plan, "z", &[N], StorageClass::Output(1));
    launch(&mut plan, "t", SCALE, &[read(s), write(t)], N, big);
    launch(&mut plan, "y", ADD, &[read(t), read(x), write(y)], N, big);
    launch(&mut plan, "s", ADD, &[read(s), read(t), write(s_next)], N, big);
    step(&mut plan, "k", StepOp::Copy { src: t, dst: k_next }, big);
    launch(&mut plan, "z", SCALE, &[read(s_next), write(z)], N, big);
    plan.boundary = Some(2);
    plan.arena_bytes = (4 * N).next_multiple_of(Plan::ALIGN);
    plan
}

fn scaled(values: &[f32]) -> Vec<f32> {
    values.iter().enumerate().map(|(i, v)| v * 1.5 + i as f32).collect()
}

fn sum(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

#[derive(Clone, Debug, PartialEq)]
struct Memory {
    s: Vec<f32>,
    k: Vec<f32>,
    y: Vec<f32>,
    z: Vec<f32>,
}

impl Memory {
    fn new() -> Memory {
        let s = (0..N).map(|i| i as f32 / 7.0 - 3.0).collect();
        Memory { s, k: vec![5.0; N as usize], y: vec![0.0; N as usize], z: vec![0.0; N as usize] }
    }
}

#[test]
fn phases_together_do_what_the_run_does() {
    let x: Vec<f32> = (0..N).map(|i| (i % 11) as f32).collect();
    let dims = [N];
    for (threads, big) in [(1, false), (2, true), (3, true)] {
        let pool = Pool::new(threads).unwrap();
        let executable = executable(two_phases(big), vec![]);
        let mut context = Context::new(executable.clone(), &pool).unwrap();
        let mut at_once = Memory::new();
        let t = scaled(&at_once.s);
        let (s, y) = (sum(&at_once.s, &t), sum(&t, &x));
        let expected = Memory { z: scaled(&s), s, k: t, y: y.clone() };
        let input = TensorRef::from_slice(&dims, &x);
        let Memory { s, k, y: out, z } = &mut at_once;
        let mut states = [TensorMut::from_slice(&dims, s), TensorMut::from_slice(&dims, k)];
        let mut outputs = [TensorMut::from_slice(&dims, out), TensorMut::from_slice(&dims, z)];
        context.run(&pool, Bindings { inputs: &[input], states: &mut states, outputs: &mut outputs }).unwrap();
        assert_eq!(at_once, expected, "{threads} threads");

        let needs = |inputs: &[usize], read_states: &[usize], states: &[usize], outputs: &[usize]| Needs {
            inputs: inputs.to_vec(),
            read_states: read_states.to_vec(),
            states: states.to_vec(),
            outputs: outputs.to_vec(),
        };
        assert_eq!(executable.needs(Phase::First), Some(&needs(&[0], &[0], &[], &[0])));
        assert_eq!(executable.needs(Phase::Second), Some(&needs(&[], &[], &[0, 1], &[1])));
        // More workers than ever before come between the phases, and with them more working memory.
        let mut plan = two_phases(big);
        let offset = plan.arena_bytes.next_multiple_of(Plan::ALIGN);
        plan.scratch = vec![Scratch { step: 2, offset, shared: 0, bytes: 1 << 16, live: 0 }];
        let mut context = Context::new(load(plan, kernels(), vec![]).unwrap().into(), &Pool::new(1).unwrap()).unwrap();
        let more = Pool::new(threads + 3).unwrap();
        let mut apart = Memory::new();
        let Memory { s, k, y: out, z } = &mut apart;
        let read = [input, TensorRef::from_slice(&dims, s)];
        let outputs = &mut [TensorMut::from_slice(&dims, out)];
        context.run_phase(Phase::First, &pool, Bindings::new(&read, outputs)).unwrap();
        assert_eq!(*out, y);
        let mut states = [TensorMut::from_slice(&dims, s), TensorMut::from_slice(&dims, k)];
        let mut outputs = [TensorMut::from_slice(&dims, z)];
        let second = Bindings { inputs: &[], states: &mut states, outputs: &mut outputs };
        context.run_phase(Phase::Second, &more, second).unwrap();
        assert_eq!(apart, expected, "{threads} threads, phase by phase");
    }
}

#[test]
fn the_second_phase_follows_the_first_once() {
    let pool = Pool::new(1).unwrap();
    let (dims, x) = ([N], vec![1.0f32; N as usize]);
    let input = TensorRef::from_slice(&dims, &x);
    let mut memory = Memory::new();
    let mut context = Context::new(executable(two_phases(false), vec![]), &pool).unwrap();
    let mut second = |context: &mut Context| {
        let Memory { s, k, z, .. } = &mut memory;
        let mut states = [TensorMut::from_slice(&dims, s), TensorMut::from_slice(&dims, k)];
        let mut outputs = [TensorMut::from_slice(&dims, z)];
        context.run_phase(Phase::Second, &pool, Bindings { inputs: &[], states: &mut states, outputs: &mut outputs })
    };
    let first = |context: &mut Context| {
        let (s, mut y) = (vec![1.0f32; N as usize], vec![0.0f32; N as usize]);
        let read = [input, TensorRef::from_slice(&dims, &s)];
        let outputs = &mut [TensorMut::from_slice(&dims, &mut y)];
        context.run_phase(Phase::First, &pool, Bindings::new(&read, outputs))
    };
    let refused = |result| matches!(result, Err(RunError::Phase { .. }));
    assert!(refused(second(&mut context)));
    first(&mut context).unwrap();
    first(&mut context).unwrap();
    second(&mut context).unwrap();
    assert!(refused(second(&mut context)));
    let mut context = Context::new(executable(chain(4, false), vec![]), &pool).unwrap();
    assert!(refused(first(&mut context)), "a plan without a boundary");
    let mut context = Context::new(executable(two_phases(false), vec![]), &pool).unwrap();
    let error = context.run_phase(Phase::First, &pool, Bindings::new(&[input], &mut [])).unwrap_err();
    assert!(matches!(error, RunError::Count { side: PlanEdge::Input, expected: 2, actual: 1, .. }), "{error}");
}

/// What the verifier says; its error names the plan.
fn verify(plan: &Plan) -> Result<PlanReport, PlanError> {
    tensorc_runtime::plan::verify(plan).map_err(|invalid| {
        assert_eq!(invalid.plan, plan.name);
        invalid.error
    })
}

fn broken(change: impl FnOnce(&mut Plan)) -> PlanError {
    let mut plan = two_phases(false);
    assert!(verify(&plan).is_ok());
    change(&mut plan);
    verify(&plan).unwrap_err()
}

fn id(plan: &Plan, name: &str) -> tensorc_abi::BufferId {
    tensorc_abi::BufferId(plan.buffers.iter().position(|b| b.name == name).unwrap() as u32)
}

#[test]
fn the_listed_states_are_buffers_of_that_home() {
    let error = broken(|plan| plan.states[1] = id(plan, "x"));
    assert!(matches!(error, PlanError::Edge { side: PlanEdge::State, index: 1 }), "{error}");
    let error = broken(|plan| plan.states.truncate(1));
    assert!(matches!(error, PlanError::StorageClass { storage: "state", .. }), "{error}");
    let error = broken(|plan| plan.boundary = Some(6));
    assert!(matches!(error, PlanError::Boundary { boundary: 6, steps: 5 }), "{error}");
    let error = broken(|plan| {
        let at = id(plan, "k_next").0 as usize;
        plan.buffers[at].dims = vec![N + 1];
    });
    assert!(matches!(error, PlanError::Alias { side: PlanEdge::State, index: 1, .. }), "{error}");
}

/// `a` stays in the state; `b`, the rest, is written.
#[test]
fn parts_that_stay_are_parts_of_a_later_value_and_not_written() {
    let plan = || {
        let mut plan = empty_plan();
        let x = buffer(&mut plan, "x", &[N], StorageClass::Input(0));
        buffer(&mut plan, "s", &[2 * N], StorageClass::State(0));
        let next = buffer(&mut plan, "s_next", &[2 * N], StorageClass::State(0));
        let a = buffer(&mut plan, "a", &[N], StorageClass::State(0));
        let b = buffer(&mut plan, "b", &[N], StorageClass::State(0));
        let part = |offset| Some(SubBuffer { of: next, offset, run: N, stride: N });
        (plan.buffers[a.0 as usize].part, plan.buffers[b.0 as usize].part) = (part(0), part(N));
        plan.kept = vec![a];
        launch(&mut plan, "b", SCALE, &[read(x), write(b)], N, false);
        plan
    };
    verify(&plan()).unwrap();
    let refused = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan();
        change(&mut plan);
        verify(&plan).unwrap_err()
    };
    let error = refused(&|plan| plan.kept.push(plan.kept[0]));
    assert!(matches!(error, PlanError::Kept { .. }), "{error}");
    // A part without elements overlaps nothing, not even itself.
    let error = refused(&|plan| {
        plan.buffers[3].dims = vec![0];
        plan.kept.push(plan.kept[0]);
    });
    assert!(matches!(error, PlanError::Kept { .. }), "{error}");
    let error = refused(&|plan| plan.kept = vec![id(plan, "s")]);
    assert!(matches!(error, PlanError::Kept { .. }), "{error}");
    let error = refused(&|plan| plan.kept = vec![tensorc_abi::BufferId(99)]);
    assert!(matches!(error, PlanError::UnknownKept { buffer: 99 }), "{error}");
    let error = refused(&|plan| plan.kept = vec![id(plan, "a"), id(plan, "b")]);
    assert!(matches!(error, PlanError::PartsOverlap { .. }), "{error}");
}
