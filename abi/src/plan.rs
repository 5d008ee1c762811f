//! The compiled schedule of one graph at fixed shapes.

use serde::{Deserialize, Serialize};

use crate::{Attention, BatchedGemm, Conv2d, DType, Packing, Part, VendorCall};

/// Position of a buffer in [`Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BufferId(pub u32);

/// Position of a generated kernel in [`Plan::kernels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KernelId(pub u32);

/// A straight-line schedule of kernel launches over planned memory.
///
/// A buffer may be a [`Part`] of another, which is then written part by part. Steps address it from its
/// first element; library calls and kernels know its strides.
///
/// Invariants (checked by the plan verifier): every buffer is written before it is read, buffers
/// in the arena that are live at the same time do not overlap unless one step reads and writes
/// them in place, and offsets are multiples of [`Plan::ALIGN`].
///
/// A *state* is memory of the caller's that the plan reads and may change. Its buffer in
/// [`Plan::states`] is the value before the run and is never written; another buffer with the same
/// home, where there is one, is the value after it, written once nobody reads the old value any
/// more, or in place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub name: String,
    pub buffers: Vec<Buffer>,
    pub weights: Vec<Weight>,
    /// Names of the generated kernels; their code is linked separately, in the same order.
    pub kernels: Vec<String>,
    pub steps: Vec<Step>,
    /// Buffers with [`Home::Input`], in the order of the graph's inputs that are not updated.
    pub inputs: Vec<BufferId>,
    /// Buffers with [`Home::State`] as they are before the run, in the order of the graph's inputs.
    pub states: Vec<BufferId>,
    /// Buffers with [`Home::Output`], in the order of the graph's outputs.
    pub outputs: Vec<BufferId>,
    /// Number of steps of the first of two phases; `None`: there is one phase. A phase uses only
    /// outputs of its own, the second alone changes states, and what both use lies in the arena.
    pub boundary: Option<u32>,
    /// Bytes of the one arena that holds every intermediate tensor.
    pub arena_bytes: u64,
    /// Largest number of bytes of arena buffers live at once: no plan in this order needs less.
    pub lower_bound_bytes: u64,
}

impl Plan {
    /// Alignment of every arena offset, in bytes.
    pub const ALIGN: u64 = 64;

    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// The buffer in whose memory a buffer lies: itself, or the whole that it is a part of.
    pub fn whole(&self, id: BufferId) -> BufferId {
        self.buffer(id).part.map_or(id, |part| part.of)
    }

    /// Gives every part the home of its whole.
    pub fn settle_parts(&mut self) {
        for i in 0..self.buffers.len() {
            if let Some(part) = self.buffers[i].part {
                self.buffers[i].home = self.buffers[part.of.0 as usize].home;
            }
        }
    }

    /// Gives every launch the extent of its kernel's parallel loop.
    pub fn set_extents(&mut self, of: impl Fn(KernelId) -> u64) {
        for step in &mut self.steps {
            if let StepOp::Launch { kernel, extent, .. } = &mut step.op {
                *extent = of(*kernel);
            }
        }
    }

    /// Bytes from the start of the whole to the first element.
    pub fn byte_offset(&self, id: BufferId) -> u64 {
        let buffer = self.buffer(id);
        buffer.part.map_or(0, |part| part.offset * buffer.dtype.size() as u64)
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

    /// Whether a step, by its position, belongs to the second phase.
    pub fn in_second_phase(&self, step: usize) -> bool {
        self.boundary.is_some_and(|first| step >= first as usize)
    }
}

/// A row-major tensor known to the plan, dense unless it is a part of another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    pub name: String,
    pub dtype: DType,
    pub dims: Vec<u64>,
    /// That of the whole, if it is a part.
    pub home: Home,
    pub part: Option<Part>,
}

impl Buffer {
    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.dims.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn bytes(&self) -> u64 {
        self.len() * self.dtype.size() as u64
    }

    /// Elements from the first to one past the last: more than there are if it is a strided part.
    pub fn span(&self) -> u64 {
        self.part.map_or(self.len(), |part| part.span(self.len()))
    }

    /// Whether its elements lie side by side.
    pub fn is_dense(&self) -> bool {
        self.part.is_none_or(|part| part.is_dense(self.len()))
    }
}

/// Where a buffer's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Home {
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weight {
    pub name: String,
    /// Position of the constant in the module's constant table.
    pub constant: u32,
    pub packing: Packing,
}

/// A use of a buffer by a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arg {
    pub buffer: BufferId,
    /// Whether the step writes it.
    pub writes: bool,
}

/// One entry of the schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Name of the graph node it came from, for profiles and errors.
    pub name: String,
    pub op: StepOp,
    /// Floating-point operations of one execution.
    pub flops: u64,
    /// Bytes read and written by one execution, each operand counted once.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StepOp {
    /// A generated kernel over the iterations `0..extent`, which may run in any order and split.
    Launch { kernel: KernelId, args: Vec<Arg>, extent: u64 },
    /// Library matrix product.
    Gemm { call: BatchedGemm, a: LeftOperand, b: BufferId, c: BufferId, epilogue: Option<Epilogue> },
    /// Library convolution, or a gradient of one; `call.pass` says what the operands `a` and `b` and the
    /// result `c` are.
    Conv { call: Conv2d, a: LeftOperand, b: BufferId, c: BufferId, epilogue: Option<Epilogue> },
    /// Library attention. The epilogue is applied to tiles of scores: its kernel takes the tile, then `args`,
    /// all of them read.
    Attention { call: Attention, q: BufferId, k: BufferId, v: BufferId, out: BufferId, epilogue: Option<Epilogue> },
    /// A call of a library of a GPU's maker: operands, result, working memory if it has any.
    Vendor { call: VendorCall, args: Vec<Arg> },
    /// Byte copy of a whole buffer.
    Copy { src: BufferId, dst: BufferId },
    /// A function of the host, by its position in the table that the plan is linked with: a plan with such a
    /// step cannot be run by another program. Operands, then results, then working memory if it asks for any.
    Extern { operator: String, function: u32, args: Vec<Arg> },
}

/// A generated kernel applied to each finished block of a library kernel's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epilogue {
    pub kernel: KernelId,
    pub args: Vec<Arg>,
}

/// A generated kernel that computes blocks of the left operand of a library kernel where that reads them, so that
/// the operand lies in no buffer. Its kernel takes memory of the library's, then `args`, all of them read
/// ([`crate::library::epilogue_scalars`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prologue {
    pub kernel: KernelId,
    pub args: Vec<Arg>,
}

/// The left operand of a library kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LeftOperand {
    Buffer(BufferId),
    Computed(Prologue),
}

impl From<BufferId> for LeftOperand {
    fn from(id: BufferId) -> LeftOperand {
        LeftOperand::Buffer(id)
    }
}

impl LeftOperand {
    pub fn buffer(&self) -> Option<BufferId> {
        match self {
            LeftOperand::Buffer(id) => Some(*id),
            LeftOperand::Computed(_) => None,
        }
    }

    pub fn prologue(&self) -> Option<&Prologue> {
        match self {
            LeftOperand::Buffer(_) => None,
            LeftOperand::Computed(prologue) => Some(prologue),
        }
    }
}

impl StepOp {
    /// What computes the left operand of a library kernel.
    pub fn prologue(&self) -> Option<&Prologue> {
        match self {
            StepOp::Gemm { a, .. } | StepOp::Conv { a, .. } => a.prologue(),
            _ => None,
        }
    }

    /// Every buffer use of this step, reads before writes for library calls: the operands in buffers, the result,
    /// arguments of the epilogue, arguments of the prologue.
    pub fn args(&self) -> Vec<Arg> {
        let read = |buffer| Arg { buffer, writes: false };
        let write = |buffer| Arg { buffer, writes: true };
        let (mut args, epilogue) = match self {
            StepOp::Launch { args, .. } => (args.clone(), None),
            StepOp::Gemm { a, b, c, epilogue, .. } | StepOp::Conv { a, b, c, epilogue, .. } => {
                let operands = a.buffer().into_iter().chain([*b]).map(read);
                (operands.chain([write(*c)]).collect(), epilogue.as_ref())
            }
            StepOp::Attention { q, k, v, out, epilogue, .. } => {
                (vec![read(*q), read(*k), read(*v), write(*out)], epilogue.as_ref())
            }
            StepOp::Copy { src, dst } => (vec![read(*src), write(*dst)], None),
            StepOp::Extern { args, .. } | StepOp::Vendor { args, .. } => (args.clone(), None),
        };
        if let Some(epilogue) = epilogue {
            args.extend(epilogue.args.iter().copied());
        }
        if let Some(prologue) = self.prologue() {
            args.extend(prologue.args.iter().copied());
        }
        args
    }
}
