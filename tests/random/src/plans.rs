//! Random plans that obey the structural rules; their memory is not laid out sensibly.

use tensorc_abi::{
    Arg, BatchedGemm, Buffer, BufferId, Conv2d, ConvAlgorithm, ConvPass, DType, Epilogue, GemmElements, ImageLayout,
    KernelId, LeftOperand, MatrixLayout, PackedElements, Packing, Plan, Prologue, Scratch, Step, StepOp, StorageClass,
    Weight,
};
use tensorc_ir::Rng;

/// A chain of steps from one input through arena buffers to one output, with every kind of step,
/// weight, epilogue and prologue.
pub fn random_plan(rng: &mut Rng) -> Plan {
    let steps = 1 + rng.below(6);
    let mut plan = Plan { name: "main".into(), ..Plan::default() };
    plan.kernels = vec!["relu".into(), "odd name".into()];
    let gemm = Packing::GemmB {
        k: 64,
        n: 64,
        offset: 3,
        row_stride: -1,
        col_stride: 64,
        elements: *rng.pick(&PackedElements::ALL),
    };
    for (i, packing) in [Packing::Plain, gemm, Packing::Conv(conv(rng))].into_iter().enumerate() {
        plan.weights.push(Weight { name: format!("w/{}", i / 2), constant: i as u32, packing });
        plan.buffers.push(buffer("w", StorageClass::Weight(i as u32)));
    }
    let mut current = push(&mut plan, "x", StorageClass::Input(0));
    plan.inputs.push(current);
    for i in 0..steps {
        let last = i + 1 == steps;
        let storage = if last { StorageClass::Output(0) } else { StorageClass::Arena(i * 16384) };
        let next = push(&mut plan, if rng.one_in(2) { "h" } else { "t.1" }, storage);
        let op = step(rng, current, next);
        let name = if rng.one_in(2) { format!("layer/{i}") } else { format!("n{i}") };
        if rng.one_in(3) {
            let (offset, bytes) = (rng.below(64) * 128, rng.below(3) * 128);
            plan.scratch.push(Scratch { step: i as u32, offset, shared: 0, bytes, live: rng.below(offset + 1) });
        }
        plan.steps.push(Step { name, op, flops: rng.below(1 << 40), bytes: rng.below(1 << 40) });
        current = next;
    }
    plan.outputs.push(current);
    plan.arena_bytes = steps * 16384;
    plan.lower_bound_bytes = 32768;
    plan
}

fn buffer(name: &str, storage: StorageClass) -> Buffer {
    Buffer { name: name.into(), dtype: DType::F32, dims: vec![64, 64], storage, part: None }
}

fn push(plan: &mut Plan, name: &str, storage: StorageClass) -> BufferId {
    plan.buffers.push(buffer(name, storage));
    BufferId(plan.buffers.len() as u32 - 1)
}

fn conv(rng: &mut Rng) -> Conv2d {
    Conv2d {
        batch: 1,
        groups: 1,
        in_channels: 16 * (1 + rng.below(8)),
        out_channels: 16 * (1 + rng.below(8)),
        input: [8, 8],
        output: [8, 8],
        kernel: [3, 3],
        strides: [1, 1],
        dilations: [1, 1],
        pads: [1, 1],
        pass: ConvPass::Packed(ConvAlgorithm::Direct),
        images: if rng.one_in(2) { [0; 2] } else { [4096, 4096] },
        layouts: [0; 2].map(|_| ImageLayout::ALL[rng.below(3) as usize]),
    }
}

fn step(rng: &mut Rng, from: BufferId, to: BufferId) -> StepOp {
    let read = Arg { buffer: from, writes: false };
    let write = Arg { buffer: to, writes: true };
    let epilogue =
        rng.one_in(2).then(|| Epilogue { kernel: KernelId(1), args: vec![write, read], apart: rng.one_in(4) });
    let left = match rng.one_in(3) {
        true => LeftOperand::Computed(Prologue { kernel: KernelId(0), args: vec![read] }),
        false => from.into(),
    };
    let layout = MatrixLayout { offset: 0, batch_strides: [0, 0, 4096], row_stride: 64, col_stride: 1 };
    match rng.below(4) {
        0 => StepOp::Launch { kernel: KernelId(0), args: vec![read, write], extent: 1 + rng.below(64) },
        1 => {
            let packed = rng.one_in(2);
            let call = BatchedGemm {
                batch: [1; 3],
                m: 64,
                n: 64,
                k: 64,
                a: layout,
                b: layout,
                c: layout,
                b_packed: packed,
                elements: GemmElements::F32,
            };
            StepOp::Gemm { call, a: left, b: BufferId(packed.into()), c: to, epilogue }
        }
        2 => {
            let pass = ConvPass::ALL[rng.below(ConvPass::ALL.len() as u64) as usize];
            let filters = if pass.is_packed() { 2 } else { 0 };
            let mut call = Conv2d { pass, ..conv(rng) };
            if !pass.is_packed() {
                call.layouts = [ImageLayout::Nchw; 2];
            }
            let a = if call.takes_computed() { left } else { from.into() };
            StepOp::Conv { call, a, b: BufferId(filters), c: to, epilogue }
        }
        _ => StepOp::Copy { src: from, dst: to },
    }
}
