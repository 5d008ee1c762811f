//! The compiled schedule of one graph, for one shape or, with numbers that depend on symbols, for many.

use crate::check::ValueCheck;
use crate::conv::ConvPass;
use crate::dtype::DType;
use crate::fields::Visitor;
use crate::flow::FlowPlan;
use crate::library::{Attention, BatchedGemm, ContractionRef, Conv2d, Packing};
use crate::number::Number;
use crate::operand::{Arg, BufferId, Epilogue, KernelId, LeftOperand, Prologue};
use crate::part::SubBuffer;
use crate::vendor::VendorCall;

/// A straight-line schedule of kernel launches over planned memory.
///
/// A buffer may be a [`SubBuffer`] of another, which is then written part by part. Steps address it from its
/// first element; library calls and kernels know its strides.
///
/// Invariants (checked by the plan verifier): every buffer is written before it is read, buffers
/// in the arena that are live at the same time do not overlap unless one step reads and writes
/// them in place, working memory lies behind every buffer that is live during its step, and offsets
/// are multiples of [`Plan::ALIGN`].
///
/// A *state* is memory of the caller's that the plan reads and may change. Its buffer in
/// [`Plan::states`] is the value before the run and is never written; another buffer with the same
/// storage class, where there is one, is the value after it, written once nobody reads the old value any
/// more, or in place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan<N: Number = u64> {
    /// The name of the graph.
    pub name: String,
    /// Every tensor that steps use, indexed by [`BufferId`].
    pub buffers: Vec<Buffer<N>>,
    /// The constants that steps read, indexed by [`StorageClass::Weight`].
    pub weights: Vec<Weight>,
    /// Names of the generated kernels; their code is linked separately, in the same order.
    pub kernels: Vec<String>,
    /// The schedule, in the order of execution.
    pub steps: Vec<Step<N>>,
    /// Buffers with [`StorageClass::Input`], in the order of the graph's inputs that are not updated.
    pub inputs: Vec<BufferId>,
    /// Buffers with [`StorageClass::State`] as they are before the run, in the order of the graph's inputs.
    pub states: Vec<BufferId>,
    /// Buffers with [`StorageClass::Output`], in the order of the graph's outputs.
    pub outputs: Vec<BufferId>,
    /// Parts of values of states after the run that hold what they held before it. No step writes them.
    pub kept: Vec<BufferId>,
    /// Number of steps of the first of two phases; `None`: there is one phase. A phase uses only
    /// outputs of its own, the second alone changes states, and what both use lies in the arena.
    pub boundary: Option<u32>,
    /// Bytes of the one arena that intermediate tensors take; working memory may lie behind.
    pub arena_bytes: u64,
    /// Largest number of bytes of arena buffers live at once: no plan in this order needs less.
    pub lower_bound_bytes: u64,
    /// Working memory of calls of the kernel library and of nested plans, in the order of their steps, of which each has
    /// one at most.
    pub scratch: Vec<Scratch>,
    /// What the host looks at when the steps that write it have run. Their buffers live to the end of the plan.
    pub checks: Vec<ValueCheck>,
}

/// Working memory of a step in the arena: from `offset` on there is what all workers share, then memory for one worker
/// after the other. It holds nothing before or after the step, so whatever is not live then may lie there, too. Steps that
/// are to run side by side have the same, because a worker executes a part of one of them at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// Position in [`Plan::steps`].
    pub step: u32,
    /// Where it begins in the arena, behind every buffer that is live during the step.
    pub offset: u64,
    /// Bytes that all workers share, for the arena of nested plans.
    pub shared: u64,
    /// Bytes for each worker.
    pub bytes: u64,
    /// Bytes of arena buffers that are live during the step: no place in this order is below.
    pub live: u64,
}

/// Working memory that a step needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkingBytes {
    /// Bytes that all workers share.
    pub shared: u64,
    /// Bytes for each worker.
    pub each: u64,
}

impl WorkingBytes {
    /// Whether none is needed.
    pub fn is_none(self) -> bool {
        self == WorkingBytes::default()
    }

    /// Bytes for so many workers.
    pub fn of(self, workers: u64) -> u64 {
        self.each.saturating_mul(workers).saturating_add(self.shared)
    }

    /// What suffices for both.
    #[must_use]
    pub fn max(self, other: WorkingBytes) -> WorkingBytes {
        WorkingBytes { shared: self.shared.max(other.shared), each: self.each.max(other.each) }
    }
}

impl Scratch {
    /// Working memory begins at a multiple of this, so that workers share no pair of cache lines with each other or a buffer.
    pub const ALIGN: u64 = 128;

    /// Bytes of the arena up to its end, for so many workers.
    pub fn end(&self, workers: usize) -> u64 {
        self.offset.saturating_add(self.working().of(workers as u64))
    }

    /// Its size.
    pub fn working(&self) -> WorkingBytes {
        WorkingBytes { shared: self.shared, each: self.bytes }
    }
}

/// Working memory of steps that are looked at in their order.
#[derive(Clone, Debug)]
pub struct ScratchOfSteps<'p>(&'p [Scratch]);

impl<'p> ScratchOfSteps<'p> {
    /// That of a step, by a position that is not below earlier ones.
    pub fn of(&mut self, step: usize) -> Option<&'p Scratch> {
        while let [first, rest @ ..] = self.0
            && (first.step as usize) < step
        {
            self.0 = rest;
        }
        self.0.first().filter(|scratch| scratch.step as usize == step)
    }
}

impl<N: Number> Plan<N> {
    /// A buffer of this plan.
    pub fn buffer(&self, id: BufferId) -> &Buffer<N> {
        &self.buffers[id.0 as usize]
    }

    /// The working memory of a step, by its position.
    pub fn scratch_of(&self, step: usize) -> Option<&Scratch> {
        let at = self.scratch.binary_search_by_key(&step, |scratch| scratch.step as usize).ok()?;
        self.scratch.get(at)
    }

    /// The working memory of all steps, in order.
    pub fn scratch_of_steps(&self) -> ScratchOfSteps<'_> {
        ScratchOfSteps(&self.scratch)
    }

    /// The buffer in whose memory a buffer lies: itself, or the whole that it is a part of.
    pub fn whole(&self, id: BufferId) -> BufferId {
        self.buffer(id).part.map_or(id, |part| part.of)
    }

    /// Bytes from the start of the whole to the first element.
    pub fn byte_offset(&self, id: BufferId) -> N {
        let buffer = self.buffer(id);
        buffer.part.map_or(N::from(0), |part| part.offset * N::from(buffer.dtype.size() as u64))
    }

    /// Gives every part the storage class of its whole.
    pub fn settle_parts(&mut self) {
        for i in 0..self.buffers.len() {
            if let Some(part) = self.buffers[i].part {
                self.buffers[i].storage = self.buffers[part.of.0 as usize].storage;
            }
        }
    }

    /// Places buffers and working memory as a plan does that has other numbers alone.
    pub fn place_like<M: Number>(&mut self, other: &Plan<M>) {
        self.buffers.iter_mut().zip(&other.buffers).for_each(|(buffer, other)| buffer.storage = other.storage);
        (self.arena_bytes, self.lower_bound_bytes) = (other.arena_bytes, other.lower_bound_bytes);
        self.scratch.clone_from(&other.scratch);
    }

    /// Gives every launch the extent of its kernel's parallel loop, in nested plans, too.
    pub fn set_extents(&mut self, of: &dyn Fn(KernelId) -> N) {
        for step in &mut self.steps {
            match &mut step.op {
                StepOp::Launch { kernel, extent, .. } => *extent = of(*kernel),
                StepOp::Flow { flow, .. } => flow.bodies.iter_mut().for_each(|body| body.set_extents(of)),
                _ => {}
            }
        }
    }

    /// All steps, depth first: the steps of nested plans follow the step that holds them.
    pub fn all_steps(&self) -> Vec<&Step<N>> {
        let mut all = vec![];
        for step in &self.steps {
            all.push(step);
            let bodies = step.op.flow().into_iter().flat_map(|flow| &flow.bodies);
            all.extend(bodies.flat_map(Plan::all_steps));
        }
        all
    }

    /// Whether two buffers, parts of the same whole or wholes, have memory in common by that.
    pub fn overlap(&self, a: BufferId, b: BufferId) -> bool {
        let (x, y) = (self.buffer(a), self.buffer(b));
        match (x.part, y.part) {
            _ if self.whole(a) != self.whole(b) => false,
            (Some(p), Some(q)) => p.overlaps(x.len(), &q, y.len()),
            _ => true,
        }
    }

    /// Whether a check looks at a buffer or a part of it after the run.
    pub fn is_checked(&self, id: BufferId) -> bool {
        self.checks.iter().any(|check| self.whole(check.buffer) == self.whole(id))
    }

    /// Whether a step, by its position, belongs to the second phase.
    pub fn in_second_phase(&self, step: usize) -> bool {
        self.boundary.is_some_and(|first| step >= first as usize)
    }
}

impl Plan {
    /// Alignment of every arena offset, in bytes.
    pub const ALIGN: u64 = 64;

    /// Bytes of the arena for a run by so many workers, with their working memory: all that a run takes besides the
    /// caller's tensors and weights.
    pub fn run_bytes(&self, workers: usize) -> u64 {
        self.scratch.iter().map(|scratch| scratch.end(workers)).fold(self.arena_bytes, u64::max)
    }

    /// The least that [`Plan::run_bytes`] could be in this order of steps.
    pub fn run_lower_bound_bytes(&self, workers: usize) -> u64 {
        let least = |scratch: &Scratch| Scratch { offset: scratch.live, ..*scratch }.end(workers);
        self.scratch.iter().map(least).fold(self.lower_bound_bytes, u64::max)
    }

    /// The nested plans of its steps, in order, without those that are nested in them.
    pub fn nested(&self) -> impl Iterator<Item = &Plan> {
        let flows = self.steps.iter().filter_map(|step| step.op.flow());
        flows.flat_map(|flow| &flow.bodies)
    }

    /// Bytes of all weights as the model stores them, including the weights of nested plans.
    pub fn weight_bytes(&self) -> u64 {
        let own = self.buffers.iter().filter(|buffer| matches!(buffer.storage, StorageClass::Weight(_)));
        own.map(Buffer::bytes).chain(self.nested().map(Plan::weight_bytes)).fold(0, u64::saturating_add)
    }
}

/// A row-major tensor known to the plan, dense unless it is a part of another.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer<N: Number = u64> {
    /// The name of the value, for messages and dumps.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Extents, outermost first; none for a scalar.
    pub dims: Vec<N>,
    /// That of the whole, if it is a part.
    pub storage: StorageClass,
    /// Where it lies in its whole, if it is a part.
    pub part: Option<SubBuffer<N>>,
}

impl<N: Number> Buffer<N> {
    /// Number of elements.
    pub fn len(&self) -> N {
        self.dims.iter().fold(N::from(1), |product, n| product * *n)
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == N::from(0)
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> N {
        self.len() * N::from(self.dtype.size() as u64)
    }

    /// Elements from the first to one past the last: more than there are if it is a strided part.
    pub fn span(&self) -> N {
        self.part.map_or(self.len(), |part| part.span(self.len()))
    }

    /// Whether its elements lie side by side.
    pub fn is_dense(&self) -> bool {
        self.part.is_none_or(|part| part.is_dense(self.len()))
    }
}

/// Where a buffer's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageClass {
    /// The caller's i-th input; never written.
    Input(u32),
    /// The caller's i-th output.
    Output(u32),
    /// The caller's i-th state.
    State(u32),
    /// Position in [`Plan::weights`]; never written.
    Weight(u32),
    /// Byte offset in the arena.
    Arena(u64),
}

/// A constant of the graph in the form its kernel wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// The name of the constant in the graph.
    pub name: String,
    /// Position of the constant in the module's constant table.
    pub constant: u32,
    /// The form that kernels read.
    pub packing: Packing,
}

/// One entry of the schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<N: Number = u64> {
    /// Name of the graph node it came from, for profiles and errors.
    pub name: String,
    /// What it does.
    pub op: StepOp<N>,
    /// Floating-point operations of one execution.
    pub flops: N,
    /// Bytes read and written by one execution, each operand counted once.
    pub bytes: N,
}

/// What a step of a plan does.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOp<N: Number = u64> {
    /// A generated kernel over the iterations `0..extent`, which may run in any order and split.
    Launch {
        /// The kernel.
        kernel: KernelId,
        /// Its arguments, in the order of its parameters.
        args: Vec<Arg>,
        /// Iterations of its parallel loop.
        extent: N,
    },
    /// Library matrix product.
    Gemm {
        /// Sizes and layouts.
        call: BatchedGemm<N>,
        /// The left operand.
        a: LeftOperand,
        /// The right operand.
        b: BufferId,
        /// The result.
        c: BufferId,
        /// What is applied to blocks of the result.
        epilogue: Option<Epilogue>,
    },
    /// Library convolution, or a gradient of one; `call.pass` says what the operands `a` and `b` and the
    /// result `c` are.
    Conv {
        /// Sizes, layouts and the pass.
        call: Conv2d<N>,
        /// The first operand of the pass.
        a: LeftOperand,
        /// The second operand of the pass.
        b: BufferId,
        /// The result.
        c: BufferId,
        /// What is applied to blocks of the result.
        epilogue: Option<Epilogue>,
    },
    /// Library attention. The epilogue is applied to tiles of scores: its kernel takes the tile, then `args`,
    /// all of them read.
    Attention {
        /// Sizes, layouts and the scale.
        call: Attention<N>,
        /// Queries.
        q: BufferId,
        /// Keys.
        k: BufferId,
        /// Values.
        v: BufferId,
        /// The result.
        out: BufferId,
        /// What is applied to scores.
        epilogue: Option<Epilogue>,
    },
    /// A call of a library of a GPU's maker: operands, result, working memory if it has any.
    Vendor {
        /// What is computed.
        call: VendorCall,
        /// As many arguments as [`VendorCall::arguments`] says.
        args: Vec<Arg>,
    },
    /// Byte copy of a whole buffer.
    Copy {
        /// The buffer that is read.
        src: BufferId,
        /// The buffer that is written, of the same size.
        dst: BufferId,
    },
    /// Nested plans that run more or less than once.
    Flow {
        /// The plans, and which of them run how often.
        flow: Box<FlowPlan<N>>,
        /// Operands, then results ([`crate::flow`]).
        args: Vec<Arg>,
    },
    /// A function of the host, by its position in the table that the plan is linked with: a plan with such a
    /// step cannot be run by another program. Operands, then results, then working memory if it asks for any.
    Extern {
        /// The operator that the function computes, for messages and profiles.
        operator: String,
        /// Position in the table of functions.
        function: u32,
        /// Operands, results, working memory.
        args: Vec<Arg>,
    },
}

/// What calls of a generated kernel must fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSignature<N: Number = u64> {
    /// Its buffer parameters, those for memory of the kernel library among them.
    pub parameters: Vec<Parameter<N>>,
    /// Iterations of its parallel loop.
    pub extent: N,
    /// Whether it takes the index parameters of a block of a library call ([`crate::library::epilogue_scalars`]).
    pub on_blocks: bool,
    /// Numbers that every launch on a GPU passes behind the addresses of buffers.
    pub sizes: Vec<N::Signed>,
}

/// A buffer parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter<N: Number = u64> {
    /// The name in the kernel's text.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Elements from the first to one past the last.
    pub span: N,
    /// Whether the kernel writes it.
    pub writes: bool,
}

/// A step that calls the kernel library.
#[derive(Clone, Copy, Debug)]
pub struct LibraryOp<'p, N: Number = u64> {
    /// What the library kernel computes.
    pub contraction: ContractionRef<'p, N>,
    /// What is applied to its result, or to the scores of attention.
    pub epilogue: Option<&'p Epilogue>,
    /// What computes its left operand, if that lies in no buffer.
    pub prologue: Option<&'p Prologue>,
}

impl<N: Number> StepOp<N> {
    /// What a step asks of the kernel library, if it does.
    pub fn library(&self) -> Option<LibraryOp<'_, N>> {
        let (contraction, left, epilogue) = match self {
            StepOp::Gemm { call, a, epilogue, .. } => (ContractionRef::Gemm(call), Some(a), epilogue),
            StepOp::Conv { call, a, epilogue, .. } => (ContractionRef::Conv(call), Some(a), epilogue),
            StepOp::Attention { call, epilogue, .. } => (ContractionRef::Attention(call), None, epilogue),
            StepOp::Launch { .. }
            | StepOp::Vendor { .. }
            | StepOp::Copy { .. }
            | StepOp::Flow { .. }
            | StepOp::Extern { .. } => return None,
        };
        let prologue = left.and_then(LeftOperand::prologue);
        Some(LibraryOp { contraction, epilogue: epilogue.as_ref(), prologue })
    }

    /// The nested plans of a step, if it has any.
    pub fn flow(&self) -> Option<&FlowPlan<N>> {
        if let StepOp::Flow { flow, .. } = self { Some(flow) } else { None }
    }

    /// What computes the left operand of a library kernel.
    pub fn prologue(&self) -> Option<&Prologue> {
        self.library().and_then(|call| call.prologue)
    }

    /// The generated kernels that it calls.
    pub fn kernels(&self) -> impl Iterator<Item = KernelId> {
        let launched = if let StepOp::Launch { kernel, .. } = self { Some(*kernel) } else { None };
        let call = self.library();
        let epilogue = call.and_then(|call| call.epilogue).map(|e| e.kernel);
        launched.into_iter().chain(epilogue).chain(call.and_then(|call| call.prologue).map(|p| p.kernel))
    }
}

/// No buffer.
const NOTHING: BufferId = BufferId(u32::MAX);

impl<N: Number> StepOp<N> {
    /// The word for steps of such a kind; `None` for those that call code by its name (launches, vendor libraries,
    /// functions of the host) and for nested plans.
    pub fn word(&self) -> Option<&'static str> {
        Some(match self {
            StepOp::Gemm { .. } => "gemm",
            StepOp::Conv { call, .. } => call.pass.step_word(),
            StepOp::Attention { .. } => "attention",
            StepOp::Copy { .. } => "copy",
            StepOp::Launch { .. } | StepOp::Vendor { .. } | StepOp::Flow { .. } | StepOp::Extern { .. } => return None,
        })
    }

    /// Goes over the parts of a step that has a word, in their order.
    ///
    /// # Errors
    /// Those of the visitor.
    pub fn parts<P: Visitor<N>>(&mut self, p: &mut P) -> Result<(), P::Error> {
        match self {
            StepOp::Gemm { call, a, b, c, epilogue } => contraction(p, (a, b, c), epilogue, |p| call.fields(p)),
            StepOp::Conv { call, a, b, c, epilogue } => contraction(p, (a, b, c), epilogue, |p| call.fields(p)),
            StepOp::Attention { call, q, k, v, out, epilogue } => {
                [q, k, v].into_iter().try_for_each(|id| p.read(id))?;
                p.written(out)?;
                p.begin_numbers()?;
                call.fields(p)?;
                p.end_numbers()?;
                p.epilogue(epilogue)
            }
            StepOp::Copy { src, dst } => {
                p.read(src)?;
                p.written(dst)
            }
            StepOp::Launch { .. } | StepOp::Vendor { .. } | StepOp::Flow { .. } | StepOp::Extern { .. } => Ok(()),
        }
    }
}

impl StepOp {
    /// A step of every kind that has a word, without meaning until its parts are set.
    pub fn blanks() -> Vec<StepOp> {
        let (a, b, c) = (LeftOperand::Buffer(NOTHING), NOTHING, NOTHING);
        let [q, k, v, out] = [NOTHING; 4];
        let conv = |pass| {
            let call = Conv2d { pass, ..Conv2d::default() };
            StepOp::Conv { call, a: a.clone(), b, c, epilogue: None }
        };
        let mut all: Vec<StepOp> = ConvPass::ALL.into_iter().map(conv).collect();
        all.extend([
            StepOp::Gemm { call: BatchedGemm::default(), a, b, c, epilogue: None },
            StepOp::Attention { call: Attention::default(), q, k, v, out, epilogue: None },
            StepOp::Copy { src: NOTHING, dst: NOTHING },
        ]);
        all
    }
}

/// The parts of a product or a convolution.
fn contraction<N: Number, P: Visitor<N>>(
    p: &mut P,
    (a, b, c): (&mut LeftOperand, &mut BufferId, &mut BufferId),
    epilogue: &mut Option<Epilogue>,
    fields: impl FnOnce(&mut P) -> Result<(), P::Error>,
) -> Result<(), P::Error> {
    p.left(a)?;
    p.read(b)?;
    p.written(c)?;
    p.begin_numbers()?;
    fields(p)?;
    p.end_numbers()?;
    p.prologue(a)?;
    p.epilogue(epilogue)
}
