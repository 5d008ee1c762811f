//! The numbers of a plan for many shapes that depend on symbols, and the field of each. To bind a plan to another shape, these
//! fields are overwritten; all others keep their values.

use tensorc_abi::{ContractionRef, FlowKind, KernelSignature, Plan, StepOp};
use tensorc_ir::Extent;
use tensorc_ir::extent::Binding;

use crate::lowered::Lowered;

/// Numbers of a lowered graph that depend on symbols.
#[derive(Clone, Debug, Default)]
pub struct OpenNumbers {
    plan: PlanNumbers,
    signatures: Vec<OpenNumber<SignaturePlace>>,
}

/// Numbers of a plan.
#[derive(Clone, Debug, Default)]
struct PlanNumbers {
    buffers: Vec<OpenNumber<BufferPlace>>,
    steps: Vec<OpenNumber<StepPlace>>,
    /// Of each step with nested plans.
    nested: Vec<(usize, Vec<PlanNumbers>)>,
}

/// A number in an entry of a table.
#[derive(Clone, Copy, Debug)]
struct OpenNumber<P> {
    entry: u32,
    place: P,
    number: Extent,
}

#[derive(Clone, Copy, Debug)]
enum BufferPlace {
    Dim(u32),
    PartOffset,
    PartRun,
    PartStride,
}

#[derive(Clone, Copy, Debug)]
enum StepPlace {
    /// A word of a library call, or the number of iterations of a kernel or of a loop.
    Call(u32),
    Flops,
    Bytes,
}

#[derive(Clone, Copy, Debug)]
enum SignaturePlace {
    Span(u32),
    Extent,
    Size(u32),
}

impl OpenNumbers {
    /// Those of a graph that is lowered for many shapes.
    pub fn of(lowered: &Lowered<Extent>) -> OpenNumbers {
        let mut signatures = vec![];
        for (entry, signature) in lowered.signatures.iter().enumerate() {
            let spans = signature.parameters.iter().enumerate().map(|(i, p)| (SignaturePlace::Span(i as u32), p.span));
            let sizes = signature.sizes.iter().enumerate().map(|(i, n)| (SignaturePlace::Size(i as u32), *n));
            push(&mut signatures, entry, spans.chain(sizes).chain([(SignaturePlace::Extent, signature.extent)]));
        }
        OpenNumbers { plan: PlanNumbers::of(&lowered.plan), signatures }
    }

    /// Gives a plan and the signatures of its kernels, which [`Lowered::bound`] made for some shape, the numbers of another.
    pub fn put(&self, binding: &Binding, plan: &mut Plan, signatures: &mut [KernelSignature]) {
        self.plan.put(binding, plan);
        for OpenNumber { entry, place, number } in &self.signatures {
            let (signature, value) = (&mut signatures[*entry as usize], binding.value(*number));
            match place {
                SignaturePlace::Span(i) => signature.parameters[*i as usize].span = unsigned(value),
                SignaturePlace::Extent => signature.extent = unsigned(value),
                SignaturePlace::Size(i) => signature.sizes[*i as usize] = value,
            }
        }
    }
}

impl PlanNumbers {
    fn of(plan: &Plan<Extent>) -> PlanNumbers {
        let mut all = PlanNumbers::default();
        for (entry, buffer) in plan.buffers.iter().enumerate() {
            let dims = buffer.dims.iter().enumerate().map(|(i, n)| (BufferPlace::Dim(i as u32), *n));
            let part = buffer.part.iter().flat_map(|part| {
                let [offset, run, stride] = [BufferPlace::PartOffset, BufferPlace::PartRun, BufferPlace::PartStride];
                [(offset, part.offset), (run, part.run), (stride, part.stride)]
            });
            push(&mut all.buffers, entry, dims.chain(part));
        }
        for (entry, step) in plan.steps.iter().enumerate() {
            let calls = call_numbers(&step.op).into_iter().enumerate().map(|(i, n)| (StepPlace::Call(i as u32), n));
            push(&mut all.steps, entry, calls.chain([(StepPlace::Flops, step.flops), (StepPlace::Bytes, step.bytes)]));
            if let Some(flow) = step.op.flow() {
                all.nested.push((entry, flow.bodies.iter().map(PlanNumbers::of).collect()));
            }
        }
        all
    }

    fn put(&self, binding: &Binding, plan: &mut Plan) {
        for OpenNumber { entry, place, number } in &self.buffers {
            let (buffer, value) = (&mut plan.buffers[*entry as usize], unsigned(binding.value(*number)));
            match (place, &mut buffer.part) {
                (BufferPlace::Dim(axis), _) => buffer.dims[*axis as usize] = value,
                (BufferPlace::PartOffset, Some(part)) => part.offset = value,
                (BufferPlace::PartRun, Some(part)) => part.run = value,
                (BufferPlace::PartStride, Some(part)) => part.stride = value,
                (_, None) => {}
            }
        }
        for OpenNumber { entry, place, number } in &self.steps {
            let (step, value) = (&mut plan.steps[*entry as usize], binding.value(*number));
            match place {
                StepPlace::Flops => step.flops = unsigned(value),
                StepPlace::Bytes => step.bytes = unsigned(value),
                StepPlace::Call(word) => put_in_call(&mut step.op, *word as usize, value),
            }
        }
        for (step, bodies) in &self.nested {
            if let StepOp::Flow { flow, .. } = &mut plan.steps[*step].op {
                flow.bodies.iter_mut().zip(bodies).for_each(|(body, numbers)| numbers.put(binding, body));
            }
        }
    }
}

/// Adds those numbers of an entry that depend on symbols.
fn push<P>(all: &mut Vec<OpenNumber<P>>, entry: usize, numbers: impl Iterator<Item = (P, Extent)>) {
    let open = numbers.filter(|(_, number)| number.is_open());
    all.extend(open.map(|(place, number)| OpenNumber { entry: entry as u32, place, number }));
}

/// The numbers that say how a step is computed, in the order in which [`put_in_call`] counts them.
fn call_numbers(op: &StepOp<Extent>) -> Vec<Extent> {
    match (op, op.library().map(|call| call.contraction)) {
        (StepOp::Launch { extent, .. }, _) => vec![*extent],
        (StepOp::Flow { flow, .. }, _) => match &flow.kind {
            FlowKind::Loop(repeat) => repeat.trips.into_iter().collect(),
            FlowKind::If => vec![],
        },
        (_, Some(ContractionRef::Gemm(call))) => call.to_words().to_vec(),
        (_, Some(ContractionRef::Conv(call))) => call.to_words().to_vec(),
        (_, Some(ContractionRef::Attention(call))) => call.to_words().to_vec(),
        (_, None) => vec![],
    }
}

fn put_in_call(op: &mut StepOp, at: usize, value: i64) {
    match op {
        StepOp::Launch { extent, .. } => *extent = unsigned(value),
        StepOp::Gemm { call, .. } => call.set_number(at, value),
        StepOp::Conv { call, .. } => call.set_number(at, value),
        StepOp::Attention { call, .. } => call.set_number(at, value),
        StepOp::Flow { flow, .. } => {
            if let FlowKind::Loop(repeat) = &mut flow.kind {
                repeat.trips = Some(unsigned(value));
            }
        }
        StepOp::Vendor { .. } | StepOp::Copy { .. } | StepOp::Extern { .. } => {}
    }
}

/// Sizes are not negative: a shape for which one would be is empty.
fn unsigned(value: i64) -> u64 {
    value.max(0) as u64
}

#[cfg(test)]
mod tests {
    use tensorc_abi::library::MatrixLayout;
    use tensorc_abi::{
        Attention, BatchedGemm, Buffer, BufferId, Conv2d, DType, FlowPlan, GemmElements, KernelId, LeftOperand, Loop,
        Parameter, Step, StorageClass, SubBuffer,
    };
    use tensorc_ir::extent::{Symbol, Trace};

    use super::*;

    /// Numbers of which no two are equal for all values of a symbol.
    struct Numbers {
        symbol: Extent,
        next: u64,
    }

    impl Numbers {
        fn next(&mut self) -> Extent {
            self.next += 1;
            self.symbol * self.next
        }

        fn all<const N: usize>(&mut self) -> [Extent; N] {
            std::array::from_fn(|_| self.next())
        }

        fn layout(&mut self) -> MatrixLayout<Extent> {
            let [offset, row_stride, col_stride] = self.all();
            MatrixLayout { offset: -offset, batch_strides: self.all(), row_stride, col_stride }
        }

        fn buffer(&mut self, is_part: bool) -> Buffer<Extent> {
            let [offset, run, stride] = self.all();
            let part = is_part.then_some(SubBuffer { of: BufferId(0), offset, run, stride });
            let dims = self.all::<2>().to_vec();
            Buffer { name: "b".to_owned(), dtype: DType::F32, dims, storage: StorageClass::Arena(0), part }
        }
    }

    /// A plan with steps of all kinds that have numbers, which all depend on a symbol.
    fn lowered(symbol: Extent) -> Lowered<Extent> {
        let mut numbers = Numbers { symbol, next: 0 };
        let (a, b, c) = (LeftOperand::Buffer(BufferId(0)), BufferId(1), BufferId(2));
        let [m, n, k] = numbers.all();
        let (batch, [x, y, z]) = (numbers.all(), [(); 3].map(|()| numbers.layout()));
        let gemm = BatchedGemm { batch, m, n, k, a: x, b: y, c: z, b_packed: true, elements: GemmElements::F32 };
        let [batch, groups, in_channels, out_channels] = numbers.all();
        let mut conv = Conv2d { batch, groups, in_channels, out_channels, ..Conv2d::default() };
        [conv.input, conv.output, conv.kernel, conv.strides] = [(); 4].map(|()| numbers.all());
        [conv.dilations, conv.pads, conv.images] = [(); 3].map(|()| numbers.all());
        let [queries, keys, depth, size] = numbers.all();
        let (batch, [q, k, v, out]) = (numbers.all(), [(); 4].map(|()| numbers.layout()));
        let attention = Attention { batch, queries, keys, depth, size, q, k, v, out, ..Attention::default() };
        let body = Plan { buffers: vec![numbers.buffer(false)], ..Plan::default() };
        let kind = FlowKind::Loop(Loop { trips: Some(numbers.next()), ..Loop::default() });
        let ops = [
            StepOp::Launch { kernel: KernelId(0), args: vec![], extent: numbers.next() },
            StepOp::Gemm { call: gemm, a: a.clone(), b, c, epilogue: None },
            StepOp::Conv { call: conv, a, b, c, epilogue: None },
            StepOp::Attention { call: attention, q: c, k: c, v: c, out: c, epilogue: None },
            StepOp::Flow { flow: FlowPlan { kind, bodies: vec![body] }.into(), args: vec![] },
        ];
        let steps = ops.map(|op| Step { name: "s".to_owned(), op, flops: numbers.next(), bytes: numbers.next() });
        let plan =
            Plan { buffers: vec![numbers.buffer(false), numbers.buffer(true)], steps: steps.into(), ..Plan::default() };
        let parameter = Parameter { name: "p".to_owned(), dtype: DType::F32, span: numbers.next(), writes: true };
        let (extent, sizes) = (numbers.next(), numbers.all::<2>().to_vec());
        let signature = KernelSignature { parameters: vec![parameter], extent, on_blocks: false, sizes };
        Lowered { plan, signatures: vec![signature], ..Lowered::default() }
    }

    #[test]
    fn numbers_of_another_shape_make_the_plan_that_is_bound_to_it() {
        let trace = Trace::new(vec![Symbol { name: "n".into(), range: (1, 1000), example: 7 }]);
        trace.enter(|| {
            let open = lowered(trace.symbol(0));
            let [first, second] = [7, 3].map(|n| trace.bind(&[n]).expect("a value in range"));
            let (mut found, expected) = (open.bound(&first), open.bound(&second));
            assert_ne!((&found.plan, &found.signatures), (&expected.plan, &expected.signatures));
            OpenNumbers::of(&open).put(&second, &mut found.plan, &mut found.signatures);
            assert_eq!((found.plan, found.signatures), (expected.plan, expected.signatures));
        });
    }
}
