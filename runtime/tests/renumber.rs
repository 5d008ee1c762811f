//! A plan takes the numbers of another shape in the memory that it has: nothing that grows with it is allocated, and everything is
//! verified.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/allocations.rs"]
mod allocations;
mod common;

use common::*;
use tensorc_abi::{DType, KernelFn, KernelSignature, Parameter, Plan, StepOp, StorageClass};
use tensorc_runtime::plan::{LoadError, PlanError, RenumberRoom};
use tensorc_runtime::{Bindings, Context, Pool, TensorMut, TensorRef, WeightStorage};

/// Of the kernels of [`chain`] and [`fork`], for so many elements.
fn signatures(n: u64) -> Vec<KernelSignature> {
    let of = |count: usize| {
        let parameter = |i: usize| Parameter { name: "p".into(), dtype: DType::F32, span: n, writes: i + 1 == count };
        KernelSignature { parameters: (0..count).map(parameter).collect(), extent: n, on_blocks: false, sizes: vec![] }
    };
    [3, 2, 0, 0].map(of).to_vec()
}

/// Gives a plan the numbers of another, in the memory that it has.
fn put_numbers(own: &mut Plan, other: &Plan) {
    for (own, other) in own.buffers.iter_mut().zip(&other.buffers) {
        own.dims.copy_from_slice(&other.dims);
        (own.storage, own.part) = (other.storage, other.part);
    }
    for (own, other) in own.steps.iter_mut().zip(&other.steps) {
        (own.flops, own.bytes) = (other.flops, other.bytes);
        if let (StepOp::Launch { extent, .. }, StepOp::Launch { extent: other, .. }) = (&mut own.op, &other.op) {
            *extent = *other;
        }
    }
    (own.arena_bytes, own.lower_bound_bytes) = (other.arena_bytes, other.lower_bound_bytes);
    own.scratch.clone_from(&other.scratch);
}

/// Gives the plan of a context the numbers of another.
fn renumbered(
    context: Context,
    plan: &Plan,
    (kernels, own_signatures, signatures): (&[KernelFn], &mut [KernelSignature], &[KernelSignature]),
    room: &mut RenumberRoom,
) -> Result<Option<Context>, LoadError> {
    context.renumbered(|executable| {
        let change = |own: &mut Plan, own_signatures: &mut [KernelSignature], _: &mut [WeightStorage]| {
            put_numbers(own, plan);
            own_signatures.iter_mut().zip(signatures).for_each(|(own, other)| {
                own.extent = other.extent;
                own.parameters.iter_mut().zip(&other.parameters).for_each(|(own, other)| own.span = other.span);
            });
            Ok(())
        };
        // SAFETY: the kernels stay inside the buffers of these plans.
        unsafe { executable.renumber(kernels, own_signatures, room, change) }
    })
}

fn check(context: &mut Context, pool: &Pool, expected: fn(&[f32]) -> Vec<f32>, x: &[f32], y: &mut [f32]) {
    let dims = [x.len() as u64];
    let (inputs, outputs) = (&[TensorRef::from_slice(&dims, x)], &mut [TensorMut::from_slice(&dims, y)]);
    context.run(pool, Bindings::new(inputs, outputs)).unwrap();
    assert_eq!(y, expected(x));
}

#[test]
fn other_numbers_take_the_memory_of_the_last_and_are_verified() {
    const N: usize = 4096;
    /// Of the list of what steps side by side touch, which grows as they do.
    const MOST: u64 = 3;
    type Case = (fn(u64, bool) -> Plan, fn(&[f32]) -> Vec<f32>);
    let cases: [Case; 2] = [(chain, chain_expected), (fork, fork_expected)];
    for ((plan, expected), threads) in cases.into_iter().flat_map(|case| [(case, 1), (case, 2)]) {
        let (pool, kernels, mut room) = (Pool::new(threads).unwrap(), kernels(), RenumberRoom::default());
        let mut context = Context::new(executable(plan(N as u64, true), vec![]), &pool).unwrap();
        let (x, mut y, mut own) = (vec![1f32; N], vec![0f32; N], signatures(N as u64));
        check(&mut context, &pool, expected, &x, &mut y);
        // Where there are no elements, no step has anything to do.
        let mut rounds = vec![];
        for n in [N, 7, 0, 300, 1000, 15, 4000, N - 1, 1, 2, 3] {
            let (plan, signatures) = (plan(n as u64, true), signatures(n as u64));
            let before = allocations::count();
            context = renumbered(context, &plan, (&kernels, &mut own, &signatures), &mut room).unwrap().unwrap();
            rounds.push(allocations::count() - before);
            check(&mut context, &pool, expected, &x[..n], &mut y[..n]);
        }
        // The test harness has a thread of its own, which may allocate at any time.
        let few = rounds[4..].iter().filter(|count| **count <= MOST).count();
        assert!(few >= 5, "{threads} threads: {rounds:?}");
        let held = context.executable().clone();
        let (same, signatures) = (plan(64, true), signatures(64));
        assert!(
            renumbered(context, &same, (&kernels, &mut own, &signatures), &mut room).unwrap().is_none(),
            "it is held"
        );
        drop(held);
        let start = || Context::new(executable(plan(N as u64, true), vec![]), &pool).unwrap();
        let mut wrong = same.clone();
        let upper = wrong.buffers.iter_mut().filter(|b| matches!(b.storage, StorageClass::Arena(at) if at > 0));
        upper.for_each(|buffer| buffer.storage = StorageClass::Arena(64));
        let error = renumbered(start(), &wrong, (&kernels, &mut own, &signatures), &mut room).err().unwrap();
        assert!(matches!(error, LoadError::Plan(ref e) if matches!(e.error, PlanError::Overlap { .. })), "{error}");
        let error = renumbered(start(), &plan(9, true), (&kernels, &mut own, &signatures), &mut room).err().unwrap();
        assert!(matches!(error, LoadError::Plan(ref e) if matches!(e.error, PlanError::KernelCall { .. })), "{error}");
    }
}
