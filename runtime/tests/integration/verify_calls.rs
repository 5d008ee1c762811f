//! What the plan checker says of calls of kernels, of plans without offsets and of working memory.

use crate::common::*;
use tensorc_abi::{
    BatchedGemm, DType, GemmElements, KernelSignature, MatrixLayout, Parameter, Plan, Scratch, StepOp, StorageClass,
};
use tensorc_runtime::plan::{InvalidPlan, PlanError, verify, verify_kernels, verify_unplaced};

const N: u64 = 100;

/// The signatures of the kernels of the chain: a scale, and a sum.
fn signatures() -> Vec<KernelSignature> {
    let parameter =
        |writes| Parameter { name: if writes { "y" } else { "x" }.into(), dtype: DType::F32, span: N, writes };
    let kernel = |reads: usize| KernelSignature {
        parameters: (0..=reads).map(|i| parameter(i == reads)).collect(),
        extent: N,
        on_blocks: false,
        sizes: vec![],
    };
    chain(N, false).kernels.iter().map(|name| kernel(if name == "add" { 2 } else { 1 })).collect()
}

#[test]
fn calls_fit_their_kernels() {
    let plan = chain(N, false);
    let kernels = signatures();
    verify_kernels(&plan, &kernels).unwrap();
    let refused = |change: &dyn Fn(&mut KernelSignature)| {
        let mut kernels = kernels.clone();
        kernels.iter_mut().for_each(change);
        let InvalidPlan { plan, error: PlanError::KernelCall { step, why, .. } } =
            verify_kernels(&chain(N, false), &kernels).unwrap_err()
        else {
            panic!()
        };
        assert_eq!((plan.as_str(), step.as_str()), ("test", "s0"));
        why
    };
    assert_eq!(refused(&|k| k.extent += 1), format!("over {N} iterations, it has {}", N + 1));
    assert_eq!(refused(&|k| drop(k.parameters.pop())), "it takes 1 buffers, 2 are given");
    let misfit = "`x` does not fit its parameter `x`";
    assert_eq!(refused(&|k| k.parameters[0].span -= 1), misfit);
    assert_eq!(refused(&|k| k.parameters[0].dtype = DType::I32), misfit);
    assert_eq!(refused(&|k| k.parameters[0].writes = true), misfit);
    let count = verify_kernels(&plan, &kernels[1..]).unwrap_err().error;
    assert_eq!(count, PlanError::KernelCount { expected: plan.kernels.len(), actual: plan.kernels.len() - 1 });
}

#[test]
fn a_plan_without_offsets_obeys_all_other_rules() {
    let mut plan = chain(N, false);
    for buffer in &mut plan.buffers {
        if let StorageClass::Arena(offset) = &mut buffer.storage {
            *offset = 0;
        }
    }
    (plan.arena_bytes, plan.lower_bound_bytes) = (0, 0);
    assert!(verify(&plan).is_err());
    verify_unplaced(&plan).unwrap();
    plan.steps.swap(0, 2);
    assert!(matches!(verify_unplaced(&plan).unwrap_err().error, PlanError::ReadBeforeWrite { .. }));
}

#[test]
fn working_memory_of_library_calls_is_part_of_the_plan() {
    let (mut plan, call) = (empty_plan(), BatchedGemm { m: 40, n: 80, k: 30, ..matrices_side_by_side() });
    let a = buffer(&mut plan, "a", &[40, 30], StorageClass::Input(0));
    let b = buffer(&mut plan, "b", &[30, 80], StorageClass::Input(1));
    let c = buffer(&mut plan, "c", &[40, 80], StorageClass::Output(0));
    step(&mut plan, "dot", StepOp::Gemm { call, a: a.into(), b, c, epilogue: None }, false);
    let Scratch { offset, bytes: needed, .. } = plan.scratch[0];
    assert!(needed > 0 && needed.is_multiple_of(128));
    verify(&plan).unwrap();
    assert_eq!([0, 3].map(|workers| plan.run_bytes(workers)), [offset, offset + 3 * needed]);
    assert_eq!(plan.run_lower_bound_bytes(3), 3 * needed);
    plan.scratch[0].bytes -= 128;
    let declared = plan.scratch[0].bytes;
    assert_eq!(verify(&plan).unwrap_err().error, PlanError::Scratch { step: "dot".into(), needed, declared });
    verify_unplaced(&plan).unwrap();
    plan.scratch.clear();
    let none = PlanError::Scratch { step: "dot".into(), needed, declared: 0 };
    assert_eq!(verify(&plan).unwrap_err().error, none);
}

#[test]
fn working_memory_lies_behind_what_is_live() {
    let stride = (4 * N).next_multiple_of(Plan::ALIGN);
    let mut plan = chain(N, false);
    let at = |step, offset| Scratch { step, offset, shared: 0, bytes: 128, live: 0 };
    // t0 and t1 in its place are live in the first three steps, t2 behind them in the last two.
    let check = |plan: &mut Plan, scratch: &[Scratch]| {
        plan.scratch = scratch.to_vec();
        verify(plan).map(drop).map_err(|invalid| invalid.error)
    };
    let over = |step: &str, offset, buffer: &str| {
        Err(PlanError::ScratchOverlap { step: step.into(), offset, buffer: buffer.into() })
    };
    check(&mut plan, &[at(0, stride), at(1, stride), at(2, 2 * stride), at(3, 2 * stride)]).unwrap();
    assert_eq!(check(&mut plan, &[at(0, 0)]), over("s0", 0, "t0"));
    assert_eq!(check(&mut plan, &[at(0, stride - 64)]), over("s0", stride - 64, "t0"));
    assert_eq!(check(&mut plan, &[at(2, stride)]), over("s2", stride, "t2"));
    assert_eq!(check(&mut plan, &[at(3, stride)]), over("s3", stride, "t2"));
    let list = |step| Err(PlanError::ScratchList { step });
    assert_eq!(check(&mut plan, &[at(1, stride), at(0, stride)]), list(0), "out of order");
    assert_eq!(check(&mut plan, &[at(0, stride), at(0, stride)]), list(0), "twice");
    assert_eq!(check(&mut plan, &[at(4, stride)]), list(4), "of no step");
    assert_eq!(check(&mut plan, &[at(0, stride + 1)]), list(0), "not aligned");
    assert_eq!(check(&mut plan, &[Scratch { bytes: u64::MAX, ..at(0, stride) }]), list(0), "without an end");
    assert_eq!(check(&mut plan, &[Scratch { live: stride + 1, ..at(0, stride) }]), list(0), "more is live than fits");
}

fn matrices_side_by_side() -> BatchedGemm {
    let matrix = |row_stride| MatrixLayout { offset: 0, batch_strides: [0; 3], row_stride, col_stride: 1 };
    BatchedGemm {
        batch: [1; 3],
        m: 0,
        n: 0,
        k: 0,
        a: matrix(30),
        b: matrix(80),
        c: matrix(80),
        b_packed: false,
        elements: GemmElements::F32,
    }
}
