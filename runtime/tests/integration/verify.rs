//! The plan checker accepts a correct plan and rejects each way of breaking it.

use crate::common::*;
use tensorc_abi::{
    BatchedGemm, BufferId, Conv2d, ConvAlgorithm, ConvPass, DType, GemmElements, ImageLayout, KernelId, LeftOperand,
    MatrixLayout, PackedElements, Packing, Plan, Prologue, Scratch, StepOp, StorageClass, SubBuffer, VendorCall,
    VendorContraction,
};
use tensorc_runtime::plan::{PlanEdge, PlanError, PlanReport};

const N: u64 = 100;
const STRIDE: u64 = 448;

/// What the verifier says; its error names the plan.
fn verify(plan: &Plan) -> Result<PlanReport, PlanError> {
    tensorc_runtime::plan::verify(plan).map_err(|invalid| {
        assert_eq!(invalid.plan, plan.name);
        invalid.error
    })
}

/// The error after a change to the correct chain.
fn broken(change: impl FnOnce(&mut Plan)) -> PlanError {
    let mut plan = chain(N, false);
    verify(&plan).unwrap();
    change(&mut plan);
    verify(&plan).unwrap_err()
}

fn buffer_id(plan: &Plan, name: &str) -> usize {
    plan.buffers.iter().position(|b| b.name == name).unwrap()
}

fn set_storage(plan: &mut Plan, name: &str, storage: StorageClass) {
    let id = buffer_id(plan, name);
    plan.buffers[id].storage = storage;
}

fn args(plan: &mut Plan, step: usize) -> &mut Vec<tensorc_abi::Arg> {
    match &mut plan.steps[step].op {
        StepOp::Launch { args, .. } => args,
        _ => panic!("step {step} is no launch"),
    }
}

#[test]
fn a_correct_plan_reports_its_memory() {
    let report = verify(&chain(N, false)).unwrap();
    assert_eq!((report.arena_bytes, report.lower_bound_bytes), (2 * STRIDE, 8 * N));
    assert!((report.ratio() - 1.12).abs() < 1e-9);
    assert_eq!(verify(&Plan::default()).unwrap().ratio(), 1.0);
    assert_eq!(verify(&chain(0, false)).unwrap().lower_bound_bytes, 0);
}

#[test]
fn inputs_and_weights_are_never_written() {
    let error = broken(|plan| args(plan, 0)[1] = write(BufferId(0)));
    assert_eq!(error, PlanError::WritesReadOnly { step: "s0".into(), buffer: "x".into() });
    let error = broken(|plan| {
        let w = weight(plan, "w", &[N], Packing::Plain);
        args(plan, 2).push(write(w));
    });
    assert_eq!(error, PlanError::WritesReadOnly { step: "s2".into(), buffer: "w".into() });
}

#[test]
fn memory_is_inside_the_arena_and_aligned() {
    let error = broken(|plan| set_storage(plan, "t2", StorageClass::Arena(STRIDE + 4)));
    assert_eq!(error, PlanError::Misaligned { buffer: "t2".into(), offset: STRIDE + 4, align: 64 });
    let error = broken(|plan| set_storage(plan, "t2", StorageClass::Arena(2 * STRIDE)));
    assert_eq!(error, PlanError::OutsideArena { buffer: "t2".into(), end: 2 * STRIDE + 400, arena: 2 * STRIDE });
    let error = broken(|plan| set_storage(plan, "t2", StorageClass::Arena(u64::MAX - 63)));
    assert!(matches!(error, PlanError::OutsideArena { .. }));
    let error = broken(|plan| plan.arena_bytes = STRIDE);
    assert!(matches!(error, PlanError::OutsideArena { .. }));
    let error = broken(|plan| plan.lower_bound_bytes = 2 * STRIDE + 1);
    assert_eq!(error, PlanError::LowerBound { declared: 2 * STRIDE + 1, arena: 2 * STRIDE });
}

#[test]
fn references_exist_and_sizes_are_finite() {
    let error = broken(|plan| args(plan, 0)[0] = read(BufferId(5)));
    assert_eq!(error, PlanError::UnknownBuffer { step: "s0".into(), buffer: 5, count: 5 });
    let error = broken(|plan| {
        plan.steps[0].op = StepOp::Launch { kernel: KernelId(4), args: vec![], extent: 1 };
    });
    assert_eq!(error, PlanError::UnknownKernel { step: "s0".into(), kernel: 4, count: 4 });
    let error = broken(|plan| set_storage(plan, "t0", StorageClass::Weight(0)));
    assert_eq!(error, PlanError::StorageClass { buffer: "t0".into(), storage: "weight", index: 0, count: 0 });
    let error = broken(|plan| plan.buffers[1].dims = vec![1 << 40, 1 << 40]);
    assert_eq!(error, PlanError::Size { buffer: "t0".into() });
    let error = broken(|plan| {
        plan.steps[0].op = StepOp::Launch { kernel: NOTHING, args: vec![], extent: u64::MAX };
    });
    assert_eq!(error, PlanError::Extent { step: "s0".into() });
    let error = broken(|plan| {
        let t2 = buffer_id(plan, "t2");
        plan.buffers[t2].dims = vec![N - 1];
    });
    assert_eq!(error, PlanError::CopySize { step: "s3".into(), from: 396, to: 400 });
}

#[test]
fn edges_are_the_buffers_they_claim_to_be() {
    let error = broken(|plan| plan.inputs[0] = BufferId(1));
    assert_eq!(error, PlanError::Edge { side: PlanEdge::Input, index: 0 });
    let error = broken(|plan| plan.outputs[0] = BufferId(9));
    assert_eq!(error, PlanError::Edge { side: PlanEdge::Output, index: 0 });
    // Something that is needed until the output is there, or is not as large, is not in its memory.
    let error = broken(|plan| set_storage(plan, "t2", StorageClass::Output(0)));
    assert_eq!(error, PlanError::Overlap { step: "s3".into(), first: "t2".into(), second: "y".into() });
    let error = broken(|plan| {
        set_storage(plan, "t2", StorageClass::Output(0));
        plan.buffers[3].dims = vec![N - 1];
    });
    assert_eq!(error, PlanError::Alias { buffer: "t2".into(), side: PlanEdge::Output, index: 0 });
    let mut plan = chain(N, false);
    set_storage(&mut plan, "t0", StorageClass::Output(0));
    verify(&plan).unwrap();
    let error = broken(|plan| {
        set_storage(plan, "t2", StorageClass::Input(0));
        plan.buffers[3].dims = vec![N + 1];
    });
    assert_eq!(error, PlanError::Alias { buffer: "t2".into(), side: PlanEdge::Input, index: 0 });
}

const fn row_major(rows: u64, cols: u64) -> MatrixLayout {
    let batch = (rows * cols) as i64;
    MatrixLayout { offset: 0, batch_strides: [0, 0, batch], row_stride: cols as i64, col_stride: 1 }
}

/// `c[2, 3, 5] = a[2, 3, 4] · b[2, 4, 5]`.
fn product() -> Plan {
    let mut plan = empty_plan();
    let a = buffer(&mut plan, "a", &[2, 3, 4], StorageClass::Input(0));
    let b = buffer(&mut plan, "b", &[2, 4, 5], StorageClass::Input(1));
    let c = buffer(&mut plan, "c", &[2, 3, 5], StorageClass::Output(0));
    let call = BatchedGemm {
        batch: [1, 1, 2],
        m: 3,
        n: 5,
        k: 4,
        a: row_major(3, 4),
        b: row_major(4, 5),
        c: row_major(3, 5),
        b_packed: false,
        elements: GemmElements::F32,
    };
    step(&mut plan, "dot", StepOp::Gemm { call, a: a.into(), b, c, epilogue: None }, false);
    plan
}

fn broken_product(change: impl FnOnce(&mut Plan, &mut BatchedGemm)) -> PlanError {
    let mut plan = product();
    verify(&plan).unwrap();
    let StepOp::Gemm { mut call, a, b, c, epilogue } = plan.steps[0].op.clone() else { unreachable!() };
    change(&mut plan, &mut call);
    plan.steps[0].op = StepOp::Gemm { call, a, b, c, epilogue };
    verify(&plan).unwrap_err()
}

#[test]
fn products_stay_inside_their_operands() {
    let bounds = |buffer: &str, len| PlanError::Bounds { step: "dot".into(), buffer: buffer.into(), len };
    assert_eq!(broken_product(|_, call| call.a.offset = 1), bounds("a", 24));
    assert_eq!(broken_product(|_, call| call.a.offset = -1), bounds("a", 24));
    assert_eq!(broken_product(|_, call| call.b.row_stride = -5), bounds("b", 40));
    assert_eq!(broken_product(|_, call| call.c.batch_strides[2] = 16), bounds("c", 30));
    assert_eq!(broken_product(|_, call| call.m = 4), bounds("a", 24));
    assert_eq!(broken_product(|_, call| call.batch[0] = u64::MAX), shared_result());
    assert_eq!(broken_product(|_, call| (call.a.col_stride, call.k) = (i64::MIN, u64::MAX)), bounds("a", 24));
}

/// The product with a bias, in f16, as a library of a GPU's maker computes it.
fn broken_call(change: impl FnOnce(&mut Plan, &mut VendorCall)) -> PlanError {
    let mut plan = product();
    let StepOp::Gemm { call, a, b, c, .. } = plan.steps[0].op.clone() else { unreachable!() };
    plan.buffers.iter_mut().for_each(|b| b.dtype = DType::F16);
    plan.buffers[b.0 as usize].storage = StorageClass::Input(1);
    let bias = buffer(&mut plan, "bias", &[5], StorageClass::Input(2));
    let memory = buffer(&mut plan, "memory", &[256], StorageClass::Arena(0));
    plan.buffers[bias.0 as usize].dtype = DType::F16;
    plan.buffers[memory.0 as usize].dtype = DType::U8;
    plan.arena_bytes = 256;
    plan.lower_bound_bytes = 256;
    let contraction = VendorContraction::Product { call, bias: true };
    let mut call = VendorCall { contraction, dtype: DType::F16, tf32: false, workspace: 256 };
    let args = vec![read(a.buffer().unwrap()), read(b), read(bias), write(c), write(memory)];
    plan.steps[0].op = StepOp::Vendor { call, args: args.clone() };
    verify(&plan).unwrap();
    change(&mut plan, &mut call);
    if let StepOp::Vendor { args, .. } = &plan.steps[0].op {
        plan.steps[0].op = StepOp::Vendor { call, args: args.clone() };
    }
    verify(&plan).unwrap_err()
}

#[test]
fn calls_of_a_gpus_libraries_stay_inside_their_operands() {
    let step = || "dot".to_owned();
    let bounds = |buffer: &str, len| PlanError::Bounds { step: step(), buffer: buffer.into(), len };
    let parameters = |what| PlanError::Parameters { step: step(), what };
    let product = |call: &mut VendorCall, change: fn(&mut BatchedGemm)| match &mut call.contraction {
        VendorContraction::Product { call, .. } => change(call),
        VendorContraction::Convolution(_) => unreachable!(),
    };
    assert_eq!(broken_call(|_, call| product(call, |c| c.a.offset = 1)), bounds("a", 24));
    assert_eq!(broken_call(|_, call| call.workspace = 257), bounds("memory", 256));
    let form = "a library does not compute a contraction of this form";
    assert_eq!(broken_call(|_, call| product(call, |c| c.a.col_stride = 2)), parameters(form));
    assert_eq!(broken_call(|_, call| product(call, |c| c.b_packed = true)), parameters(form));
    assert_eq!(broken_call(|_, call| call.tf32 = true), parameters(form));
    let other = "a call of a library has other arguments";
    assert_eq!(broken_call(|_, call| call.workspace = 0), parameters(other));
    let args = |plan: &mut Plan, change: fn(&mut Vec<tensorc_abi::Arg>)| match &mut plan.steps[0].op {
        StepOp::Vendor { args, .. } => change(args),
        _ => unreachable!(),
    };
    let error = broken_call(|plan, _| args(plan, |a| a[2].writes = true));
    assert_eq!(error, PlanError::WritesReadOnly { step: step(), buffer: "bias".into() });
    assert_eq!(broken_call(|plan, _| args(plan, |a| a[2] = a[0])), bounds("a", 24));
    let expected = DType::F32;
    let dtype = DType::F16;
    let error = broken_call(|_, call| call.dtype = expected);
    assert_eq!(error, PlanError::OperandType { step: step(), buffer: "a".into(), dtype, expected });
}

/// A batch axis with stride 0 stays inside the operands, but all its products are written to one place.
fn shared_result() -> PlanError {
    PlanError::Parameters { step: "dot".into(), what: "blocks of its result overlap" }
}

#[test]
fn products_need_one_float_type_and_matching_layouts() {
    let error = broken_product(|plan, _| plan.buffers[1].dtype = DType::I32);
    assert_eq!(
        error,
        PlanError::OperandType { step: "dot".into(), buffer: "b".into(), dtype: DType::I32, expected: DType::F32 }
    );
    let error = broken_product(|_, call| call.elements = GemmElements::F64);
    let (dtype, expected) = (DType::F32, DType::F64);
    assert_eq!(error, PlanError::OperandType { step: "dot".into(), buffer: "a".into(), dtype, expected });
    let error = broken_product(|plan, call| {
        plan.buffers.iter_mut().for_each(|buffer| buffer.dtype = DType::F64);
        (call.elements, call.b_packed) = (GemmElements::F64, true);
    });
    assert!(matches!(error, PlanError::Parameters { .. }), "{error}");
    let packing = PlanError::Packing { step: "dot".into(), buffer: "b".into() };
    assert_eq!(broken_product(|_, call| call.b_packed = true), packing);
    let error = broken_product(|_, call| call.c.col_stride = 2);
    assert!(matches!(error, PlanError::Parameters { .. }));

    let mut plan = product();
    let w = weight(
        &mut plan,
        "w",
        &[4, 5],
        Packing::GemmB { k: 4, n: 5, offset: 0, row_stride: 5, col_stride: 1, elements: PackedElements::F32 },
    );
    let StepOp::Gemm { call, b, .. } = &mut plan.steps[0].op else { unreachable!() };
    (call.b_packed, *b) = (true, w);
    verify(&plan).unwrap();
    let mut wrong = plan.clone();
    wrong.weights[0].packing =
        Packing::GemmB { k: 5, n: 4, offset: 0, row_stride: 4, col_stride: 1, elements: PackedElements::F32 };
    assert_eq!(verify(&wrong).unwrap_err(), PlanError::Packing { step: "dot".into(), buffer: "w".into() });
    let t = buffer(&mut plan, "t", &[20], StorageClass::Output(1));
    launch(&mut plan, "peek", SCALE, &[read(w), write(t)], 20, false);
    assert_eq!(verify(&plan).unwrap_err(), PlanError::Packing { step: "peek".into(), buffer: "w".into() });
}

#[test]
fn prologues_read_what_is_written_and_never_the_result() {
    let plan = product();
    let with = |kernel: KernelId, args: &[tensorc_abi::Arg]| {
        let mut plan = plan.clone();
        buffer(&mut plan, "t", &[2, 3, 4], StorageClass::Arena(0));
        (plan.arena_bytes, plan.lower_bound_bytes) = (128, 128);
        if let StepOp::Gemm { a, .. } = &mut plan.steps[0].op {
            *a = LeftOperand::Computed(Prologue { kernel, args: args.to_vec() });
        }
        let bytes = tensorc_exec::working_bytes(&plan.steps[0].op).each;
        plan.scratch = vec![Scratch { step: 0, offset: SCRATCH_OFFSET, shared: 0, bytes, live: 0 }];
        verify(&plan)
    };
    let [x, result, t] = [0, 2, 3].map(BufferId);
    with(SCALE, &[read(x)]).unwrap();
    let unwritten = PlanError::ReadBeforeWrite { step: "dot".into(), buffer: "t".into() };
    assert_eq!(with(SCALE, &[read(t)]).unwrap_err(), unwritten);
    assert!(with(SCALE, &[read(result)]).is_err());
    assert!(matches!(with(SCALE, &[write(t)]).unwrap_err(), PlanError::Parameters { .. }));
    assert!(matches!(with(KernelId(99), &[read(x)]).unwrap_err(), PlanError::UnknownKernel { kernel: 99, .. }));
}

#[test]
fn convolutions_match_their_tensors_and_weights() {
    let call = Conv2d {
        batch: 1,
        groups: 1,
        in_channels: 2,
        out_channels: 3,
        input: [5, 5],
        output: [3, 3],
        kernel: [3, 3],
        strides: [1, 1],
        dilations: [1, 1],
        pads: [0, 0],
        pass: ConvPass::Packed(ConvAlgorithm::Direct),
        images: [0; 2],
        layouts: [ImageLayout::Nchw; 2],
    };
    let mut plan = empty_plan();
    let x = buffer(&mut plan, "x", &[1, 2, 5, 5], StorageClass::Input(0));
    let w = weight(&mut plan, "w", &[3, 2, 3, 3], Packing::Conv(call.of_filters()));
    let y = buffer(&mut plan, "y", &[1, 3, 3, 3], StorageClass::Output(0));
    step(&mut plan, "conv", StepOp::Conv { call, a: x.into(), b: w, c: y, epilogue: None }, false);
    verify(&plan).unwrap();
    let with = |change: fn(&mut Conv2d)| {
        let (mut plan, mut call) = (plan.clone(), call);
        change(&mut call);
        plan.weights[0].packing = Packing::Conv(call.of_filters());
        plan.buffers[w.0 as usize].dims = vec![call.out_channels, 2, 3, 3];
        plan.steps[0].op = StepOp::Conv { call, a: x.into(), b: w, c: y, epilogue: None };
        verify(&plan).unwrap_err()
    };
    let bounds = |buffer: &str, len| PlanError::Bounds { step: "conv".into(), buffer: buffer.into(), len };
    assert_eq!(with(|call| call.input = [5, 6]), bounds("x", 50));
    assert_eq!(with(|call| call.out_channels = 4), bounds("y", 27));
    assert_eq!(with(|call| call.batch = u64::MAX), bounds("x", 50));
    assert!(matches!(with(|call| call.strides = [0, 1]), PlanError::Parameters { .. }));
    assert!(matches!(with(|call| call.dilations = [1 << 31, 1]), PlanError::Parameters { .. }));
    assert!(matches!(with(|call| call.pads = [0, u64::MAX]), PlanError::Parameters { .. }));
    let packing = PlanError::Packing { step: "conv".into(), buffer: "w".into() };
    assert_eq!(with(|call| call.kernel = [3, 2]), packing);
    let mut computed = plan.clone();
    let a = LeftOperand::Computed(Prologue { kernel: SCALE, args: vec![read(x)] });
    computed.steps[0].op = StepOp::Conv { call, a, b: w, c: y, epilogue: None };
    let what = "a convolution that reads its left operand in memory computes it";
    assert_eq!(verify(&computed).unwrap_err(), PlanError::Parameters { step: "conv".into(), what });
    plan.weights[0].packing = Packing::Plain;
    assert_eq!(verify(&plan).unwrap_err(), packing);
}

/// `left` and `right` are scaled into the halves of `both`, which lies in the arena; `y = scale(both)`.
/// Runs of `run` elements alternate if it is less than all.
fn halves(run: u64) -> Plan {
    let mut plan = empty_plan();
    let x = buffer(&mut plan, "x", &[N], StorageClass::Input(0));
    let both = buffer(&mut plan, "both", &[2 * N], StorageClass::Arena(0));
    for (i, name) in ["left", "right"].into_iter().enumerate() {
        let id = buffer(&mut plan, name, &[N], StorageClass::Arena(0));
        let part = SubBuffer { of: both, offset: i as u64 * run, run, stride: 2 * run };
        plan.buffers[id.0 as usize].part = Some(part);
        launch(&mut plan, name, SCALE, &[read(x), write(id)], N, false);
    }
    let y = buffer(&mut plan, "y", &[2 * N], StorageClass::Output(0));
    launch(&mut plan, "join", SCALE, &[read(both), write(y)], 2 * N, false);
    plan.arena_bytes = (8 * N).next_multiple_of(Plan::ALIGN);
    plan
}

#[test]
fn parts_lie_in_their_whole() {
    let is_refused = |change: &dyn Fn(&mut Plan)| {
        let mut plan = halves(N);
        change(&mut plan);
        match verify(&plan) {
            Err(PlanError::Part { buffer, .. }) => buffer == "left",
            _ => false,
        }
    };
    verify(&halves(N)).unwrap();
    verify(&halves(N / 4)).unwrap();
    let with = |change: fn(&mut SubBuffer)| move |plan: &mut Plan| change(plan.buffers[2].part.as_mut().unwrap());
    assert!(is_refused(&with(|p| p.offset = N + 1)));
    assert!(is_refused(&with(|p| p.offset = u64::MAX)));
    assert!(is_refused(&with(|p| p.run = 0)));
    assert!(is_refused(&with(|p| p.run = 3)));
    assert!(is_refused(&with(|p| p.stride = p.run - 1)));
    assert!(is_refused(&with(|p| p.of = BufferId(9))));
    assert!(is_refused(&with(|p| p.of = BufferId(3))));
    assert!(is_refused(&|plan| plan.buffers[2].dtype = DType::I32));
    assert!(is_refused(&|plan| plan.buffers[2].storage = StorageClass::Arena(64)));
}

#[test]
fn parts_are_all_written_and_each_once() {
    // One half is missing, for the whole and for a part of it that reaches into it.
    for run in [N, N / 4] {
        let mut plan = halves(run);
        plan.steps.remove(1);
        let error = verify(&plan).unwrap_err();
        assert_eq!(error, PlanError::ReadBeforeWrite { step: "join".into(), buffer: "both".into() });
        plan.steps.insert(0, plan.steps[1].clone());
        let error = verify(&plan).unwrap_err();
        assert_eq!(error, PlanError::ReadBeforeWrite { step: "join".into(), buffer: "both".into() });
    }
    let overlap = |first: &str, second: &str| PlanError::PartsOverlap {
        step: first.into(),
        first: first.into(),
        second: second.into(),
    };
    for (run, offset) in [(N, N - 1), (N, 0), (N / 4, 0), (N / 4, N / 4 - 1)] {
        let mut plan = halves(run);
        plan.buffers[3].part.as_mut().unwrap().offset = offset;
        assert_eq!(verify(&plan).unwrap_err(), overlap("right", "left"), "{run} {offset}");
    }
    // The whole is not written besides its parts.
    let mut plan = halves(N);
    *args(&mut plan, 1) = vec![read(BufferId(0)), write(BufferId(1))];
    assert!(matches!(verify(&plan).unwrap_err(), PlanError::PartsOverlap { .. }));
}

#[test]
fn parts_keep_their_whole_alive_and_apart_from_what_a_step_writes() {
    // Something in the place of the first half, while only the second is read later.
    let mut plan = halves(N);
    let other = buffer(&mut plan, "other", &[16], StorageClass::Arena(0));
    launch(&mut plan, "other", SCALE, &[read(BufferId(0)), write(other)], 16, false);
    args(&mut plan, 2)[0] = read(BufferId(3));
    plan.steps.swap(2, 3);
    let error = verify(&plan).unwrap_err();
    assert_eq!(error, PlanError::Overlap { step: "other".into(), first: "both".into(), second: "other".into() });
    // A step that reads the half it writes, as the whole or as a part at another place.
    let mut plan = halves(N);
    let again = buffer(&mut plan, "again", &[N], StorageClass::Arena(0));
    plan.buffers[again.0 as usize].part = Some(SubBuffer { of: BufferId(1), offset: 0, run: N, stride: N });
    args(&mut plan, 1).insert(0, read(again));
    verify(&plan).unwrap();
    plan.buffers[again.0 as usize].part.as_mut().unwrap().offset = 1;
    args(&mut plan, 1)[0] = read(again);
    assert!(verify(&plan).is_err());
    // A copy takes whole blocks.
    let mut plan = halves(N / 4);
    plan.steps[2].op = StepOp::Copy { src: BufferId(2), dst: BufferId(4) };
    plan.buffers[4].dims = vec![N];
    let error = verify(&plan).unwrap_err();
    assert_eq!(error, PlanError::Strided { step: "join".into(), buffer: "left".into() });
}

#[test]
fn library_calls_keep_to_the_runs_of_parts() {
    let mut plan = empty_plan();
    let [a, b] = ["a", "b"].map(|name| buffer(&mut plan, name, &[4, 4], StorageClass::Input(u32::from(name == "b"))));
    let y = buffer(&mut plan, "y", &[4, 8], StorageClass::Output(0));
    for i in 0..2 {
        let part = buffer(&mut plan, "part", &[4, 4], StorageClass::Arena(0));
        plan.buffers[part.0 as usize].storage = StorageClass::Output(0);
        plan.buffers[part.0 as usize].part = Some(SubBuffer { of: y, offset: 4 * i, run: 4, stride: 8 });
        let plain = MatrixLayout { offset: 0, batch_strides: [0; 3], row_stride: 4, col_stride: 1 };
        let c = MatrixLayout { row_stride: 8, ..plain };
        let call = BatchedGemm {
            batch: [1; 3],
            m: 4,
            n: 4,
            k: 4,
            a: plain,
            b: plain,
            c,
            b_packed: false,
            elements: GemmElements::F32,
        };
        step(&mut plan, "gemm", StepOp::Gemm { call, a: a.into(), b, c: part, epilogue: None }, false);
    }
    verify(&plan).unwrap();
    let refused = |change: &dyn Fn(&mut MatrixLayout)| {
        let mut plan = plan.clone();
        let StepOp::Gemm { call, .. } = &mut plan.steps[0].op else { panic!("a product") };
        change(&mut call.c);
        matches!(verify(&plan), Err(PlanError::Bounds { buffer, .. }) if buffer == "part")
    };
    assert!(refused(&|c| c.row_stride = 4));
    assert!(refused(&|c| c.offset = 1));
    assert!(refused(&|c| c.offset = 8));
    assert!(refused(&|c| c.row_stride = 16));
}
