//! Plans for many shapes become plans for one: every number is replaced, the rest stays.

use crate::flow::{FlowKind, FlowPlan, Loop};
use crate::library::{Attention, BatchedGemm, Conv2d, MatrixLayout};
use crate::number::Number;
use crate::part::SubBuffer;
use crate::plan::{Buffer, KernelSignature, Parameter, Plan, Step, StepOp};

/// Maps the numbers of a plan, for example from expressions to integers.
pub trait Convert<N: Number, M: Number> {
    /// For an extent, a size or a position.
    fn number(&self, n: N) -> M;

    /// For a distance.
    fn signed(&self, n: N::Signed) -> M::Signed;
}

/// Several numbers of one name. (As a loop: `array::map` is kept from being unrolled by its guard against panics.)
fn all<N: Number, M: Number, const COUNT: usize>(from: &[N; COUNT], to: &impl Convert<N, M>) -> [M; COUNT] {
    let mut numbers = [M::default(); COUNT];
    numbers.iter_mut().zip(from).for_each(|(number, from)| *number = to.number(*from));
    numbers
}

impl<N: Number> MatrixLayout<N> {
    /// The layout with other numbers.
    pub fn convert<M: Number>(&self, to: &impl Convert<N, M>) -> MatrixLayout<M> {
        let MatrixLayout { offset, batch_strides: [b0, b1, b2], row_stride, col_stride } = *self;
        MatrixLayout {
            offset: to.signed(offset),
            batch_strides: [to.signed(b0), to.signed(b1), to.signed(b2)],
            row_stride: to.signed(row_stride),
            col_stride: to.signed(col_stride),
        }
    }
}

impl<N: Number> BatchedGemm<N> {
    /// The product with other numbers.
    pub fn convert<M: Number>(&self, to: &impl Convert<N, M>) -> BatchedGemm<M> {
        let BatchedGemm { batch, m, n, k, a, b, c, b_packed, elements } = *self;
        let ([m, n, k], batch) = (all(&[m, n, k], to), all(&batch, to));
        BatchedGemm { batch, m, n, k, a: a.convert(to), b: b.convert(to), c: c.convert(to), b_packed, elements }
    }
}

impl<N: Number> Conv2d<N> {
    /// The convolution with other numbers.
    pub fn convert<M: Number>(&self, to: &impl Convert<N, M>) -> Conv2d<M> {
        let [batch, groups, in_channels, out_channels] =
            all(&[self.batch, self.groups, self.in_channels, self.out_channels], to);
        let pair = |pair: [N; 2]| all(&pair, to);
        Conv2d {
            batch,
            groups,
            in_channels,
            out_channels,
            input: pair(self.input),
            output: pair(self.output),
            kernel: pair(self.kernel),
            strides: pair(self.strides),
            dilations: pair(self.dilations),
            pads: pair(self.pads),
            pass: self.pass,
            images: pair(self.images),
            layouts: self.layouts,
        }
    }
}

impl<N: Number> Attention<N> {
    /// The attention with other numbers.
    pub fn convert<M: Number>(&self, to: &impl Convert<N, M>) -> Attention<M> {
        let Attention { batch, queries, keys, depth, size, q, k, v, out, scale, shifted, empty_is_zero, rounded } =
            *self;
        let ([queries, keys, depth, size], batch) = (all(&[queries, keys, depth, size], to), all(&batch, to));
        let (q, k, v, out) = (q.convert(to), k.convert(to), v.convert(to), out.convert(to));
        Attention { batch, queries, keys, depth, size, q, k, v, out, scale, shifted, empty_is_zero, rounded }
    }
}

impl<N: Number> SubBuffer<N> {
    /// The part with other numbers.
    pub fn convert<M: Number>(&self, to: &impl Convert<N, M>) -> SubBuffer<M> {
        let [offset, run, stride] = all(&[self.offset, self.run, self.stride], to);
        SubBuffer { of: self.of, offset, run, stride }
    }
}

impl<N: Number> Buffer<N> {
    /// The buffer with other numbers.
    pub fn convert<M: Number>(&self, to: &impl Convert<N, M>) -> Buffer<M> {
        let part = self.part.map(|part| part.convert(to));
        let dims = self.dims.iter().map(|n| to.number(*n)).collect();
        Buffer { name: self.name.clone(), dtype: self.dtype, dims, storage: self.storage, part }
    }
}

impl<N: Number> KernelSignature<N> {
    /// The signature with other numbers.
    pub fn convert<M: Number>(&self, to: &impl Convert<N, M>) -> KernelSignature<M> {
        let parameter = |p: &Parameter<N>| {
            let Parameter { name, dtype, span, writes } = p;
            Parameter { name: name.clone(), dtype: *dtype, span: to.number(*span), writes: *writes }
        };
        let parameters = self.parameters.iter().map(parameter).collect();
        let sizes = self.sizes.iter().map(|n| to.signed(*n)).collect();
        KernelSignature { parameters, extent: to.number(self.extent), on_blocks: self.on_blocks, sizes }
    }
}

impl<N: Number> StepOp<N> {
    /// The operation with other numbers.
    pub fn convert<M: Number>(&self, to: &impl Convert<N, M>) -> StepOp<M> {
        match self {
            StepOp::Launch { kernel, args, extent } => {
                StepOp::Launch { kernel: *kernel, args: args.clone(), extent: to.number(*extent) }
            }
            StepOp::Gemm { call, a, b, c, epilogue } => {
                StepOp::Gemm { call: call.convert(to), a: a.clone(), b: *b, c: *c, epilogue: epilogue.clone() }
            }
            StepOp::Conv { call, a, b, c, epilogue } => {
                StepOp::Conv { call: call.convert(to), a: a.clone(), b: *b, c: *c, epilogue: epilogue.clone() }
            }
            StepOp::Attention { call, q, k, v, out, epilogue } => {
                let (call, epilogue) = (call.convert(to), epilogue.clone());
                StepOp::Attention { call, q: *q, k: *k, v: *v, out: *out, epilogue }
            }
            StepOp::Vendor { call, args } => StepOp::Vendor { call: *call, args: args.clone() },
            StepOp::Copy { src, dst } => StepOp::Copy { src: *src, dst: *dst },
            StepOp::Flow { flow, args } => {
                let bodies = flow.bodies.iter().map(|body| body.convert(to)).collect();
                StepOp::Flow { flow: FlowPlan { kind: flow.kind.convert(to), bodies }.into(), args: args.clone() }
            }
            StepOp::Extern { operator, function, args } => {
                StepOp::Extern { operator: operator.clone(), function: *function, args: args.clone() }
            }
        }
    }
}

impl<N: Number> FlowKind<N> {
    /// The kind with other numbers.
    pub fn convert<M: Number>(&self, to: &impl Convert<N, M>) -> FlowKind<M> {
        match self {
            FlowKind::If => FlowKind::If,
            FlowKind::Loop(repeat) => FlowKind::Loop(repeat.convert(to)),
        }
    }
}

impl<N: Number> Loop<N> {
    /// The loop with other numbers.
    pub fn convert<M: Number>(&self, to: &impl Convert<N, M>) -> Loop<M> {
        let Loop { trips, conditional, carried, ref scanned, ref stacked } = *self;
        let trips = trips.map(|n| to.number(n));
        Loop { trips, conditional, carried, scanned: scanned.clone(), stacked: stacked.clone() }
    }
}

impl<N: Number> Plan<N> {
    /// The plan with other numbers.
    pub fn convert<M: Number>(&self, to: &impl Convert<N, M>) -> Plan<M> {
        let step = |step: &Step<N>| Step {
            name: step.name.clone(),
            op: step.op.convert(to),
            flops: to.number(step.flops),
            bytes: to.number(step.bytes),
        };
        Plan {
            name: self.name.clone(),
            buffers: self.buffers.iter().map(|buffer| buffer.convert(to)).collect(),
            weights: self.weights.clone(),
            kernels: self.kernels.clone(),
            steps: self.steps.iter().map(step).collect(),
            inputs: self.inputs.clone(),
            states: self.states.clone(),
            outputs: self.outputs.clone(),
            kept: self.kept.clone(),
            boundary: self.boundary,
            arena_bytes: self.arena_bytes,
            lower_bound_bytes: self.lower_bound_bytes,
            scratch: self.scratch.clone(),
            checks: self.checks.clone(),
        }
    }
}
