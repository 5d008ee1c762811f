//! Loops over vectors, written by an assembler of our own at the full width of a processor.
//!
//! Cranelift's vectors have 128 bits. A loop of a kernel whose body is straight-line code over vectors becomes a
//! [`VectorLoop`] (`find`) and from that a function (`x86`), which stands behind the code of the kernel and is called
//! from it (`cranelift::vector_loop`). Everything else of a kernel, and every loop that has no such form, stays with
//! Cranelift. Results have the same bits.

mod cover;
mod find;
mod fold;
mod reduce;
mod rows;
mod tail;
mod text;
mod unroll;
mod x86;

use smallvec::SmallVec;
use tensorc_abi::DType;
use tensorc_ir::Extent;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, Operand, Stmt};
use tensorc_ir::scalar::{Scalar, ScalarOp};
use tensorc_schedule::target::VectorLevel;

pub(crate) use cover::covers;
use find::find;

/// The result of an instruction, by its position.
pub(crate) type ValueId = u32;

/// A loop over vectors as a list of instructions. Each one of the loop's iterations computes `lanes` elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VectorLoop {
    pub lo: Index,
    pub hi: Index,
    /// By how much the loop counts.
    pub step: i64,
    /// Elements of an iteration.
    pub lanes: u32,
    /// Lanes of the vector loop in the kernel.
    pub kernel_lanes: u32,
    pub form: LoopForm,
    /// A loop around it.
    pub rows: Option<Rows>,
    pub pointers: Vec<Pointer>,
    pub uniforms: Vec<UniformValue>,
    pub accumulators: Vec<Accumulator>,
    /// Loops within an iteration.
    pub loops: Vec<InnerLoop>,
    pub offsets: Vec<Offset>,
    pub code: Vec<Instruction>,
    /// What is done with accumulators behind the loop.
    pub joins: Vec<VectorLoop>,
    /// The loop is done with so many statements of the block, of which the second computes what is left over.
    pub statements: usize,
}

/// A loop whose every turn goes over elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rows {
    pub lo: Index,
    pub hi: Index,
}

/// How a loop goes over its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopForm {
    /// From `lo` to the first multiple of the step at or behind `hi`, by any number of them at a time.
    Elements,
    /// From `lo` to `hi`, the last vector cut off there.
    ElementsTo,
    /// Iteration by iteration: what is behind an element in memory is not the next one of the loop, or there are
    /// accumulators.
    Iterations,
}

/// Where accesses of the loop begin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pointer {
    pub buf: Buf,
    /// The element that the first lane of the first iteration accesses, in variables from outside of the loop.
    pub start: Index,
    /// Bytes of an element in memory.
    pub bytes: i64,
    /// Elements from one lane to the next: none, where all lanes access the same, one, or, where they are read, two, or
    /// any number if four neighbours are read.
    pub per_lane: i64,
    /// Elements from one iteration to the next.
    pub advance: i64,
    /// Elements from one row to the next.
    pub per_row: i64,
}

/// The greatest factor of a register in an address.
const MAX_INDEX_SCALE: i64 = 8;

impl Pointer {
    /// Whether each lane accesses an element of its own.
    pub fn by_lane(&self) -> bool {
        self.per_lane != 0
    }
}

/// A value that is the same in all lanes and iterations, of outside of the loop.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum UniformValue {
    Operand(Operand, DType),
    /// The value of an index, i64.
    Index(Index),
}

/// A part of a register buffer that iterations read and write, an element for each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accumulator {
    pub buf: Buf,
    /// The element of the first lane.
    pub first: i64,
    pub dtype: DType,
    /// Whether no other statement needs it, and each iteration writes it before it reads it.
    pub local: bool,
    /// What its elements are before the loop, if they are not in memory.
    pub initial: Option<Scalar>,
    /// How many of its elements are needed behind the loop.
    pub needed: u32,
}

/// A loop within an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InnerLoop {
    pub count: Count,
    /// How many others stand around it.
    pub depth: usize,
}

/// How often an inner loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Known(i64),
    /// As a uniform value says.
    Uniform(u32),
}

/// A distance from a pointer that grows in inner loops: by how many bytes in which, the outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offset {
    pub strides: SmallVec<[(u32, i64); 2]>,
}

/// One instruction: what it computes, and the type of the result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Instruction {
    pub op: Op,
    pub dtype: DType,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Op {
    Const(Scalar),
    Uniform(u32),
    /// `uniform + iteration·per_iteration + (ahead + lane)·per_lane`, i64 or the low half, i32. In an inner loop with
    /// `turns`, so much for each of its turns that are done is added.
    Positions {
        uniform: u32,
        per_iteration: i64,
        per_lane: i64,
        ahead: i64,
        turns: Option<(u32, i64)>,
    },
    /// Reads so many elements behind a pointer. With a guard, a mask, only where it holds; the scalar elsewhere.
    Load {
        place: Place,
        guard: Option<(ValueId, Scalar)>,
    },
    /// As [`Op::Load`] of f16, or bf16, with the conversion to f32.
    LoadHalf {
        place: Place,
        from: DType,
    },
    /// Reads an element of 256 bytes from a pointer on, at the position that a u8 says.
    Lookup {
        pointer: u32,
        from: DType,
        position: ValueId,
    },
    Store {
        place: Place,
        value: ValueId,
    },
    /// As [`Op::Store`] of a value that is converted from f32 to f16.
    StoreHalf {
        place: Place,
        value: ValueId,
    },
    Accumulator(u32),
    SetAccumulator(u32, ValueId),
    Apply(ScalarOp, SmallVec<[ValueId; 3]>),
    /// The first operand where it is less (or greater), else the second.
    Lesser(ValueId, ValueId),
    Greater(ValueId, ValueId),
    /// The beginning and the end of an inner loop.
    Begin(u32),
    End(u32),
}

/// An element behind a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub pointer: u32,
    /// Elements.
    pub offset: i64,
    /// What is added in inner loops.
    pub moving: Option<u32>,
    pub dtype: DType,
}

impl Op {
    pub fn operands(&self) -> SmallVec<[ValueId; 3]> {
        self.clone().operands_mut().into_iter().map(|v| *v).collect()
    }

    pub fn operands_mut(&mut self) -> SmallVec<[&mut ValueId; 3]> {
        let mut all = SmallVec::new();
        match self {
            Op::Apply(_, args) => all.extend(args.iter_mut()),
            Op::Lesser(a, b) | Op::Greater(a, b) => all.extend([a, b]),
            Op::Load { guard: Some((value, _)), .. }
            | Op::Lookup { position: value, .. }
            | Op::Store { value, .. }
            | Op::StoreHalf { value, .. }
            | Op::SetAccumulator(_, value) => all.push(value),
            Op::Const(_)
            | Op::Uniform(_)
            | Op::Positions { .. }
            | Op::Load { guard: None, .. }
            | Op::LoadHalf { .. }
            | Op::Begin(_)
            | Op::End(_)
            | Op::Accumulator(_) => {}
        }
        all
    }

    /// Whether it does something beyond its result.
    pub fn acts(&self) -> bool {
        let loops = matches!(self, Op::Begin(_) | Op::End(_));
        loops || matches!(self, Op::Store { .. } | Op::StoreHalf { .. } | Op::SetAccumulator(..))
    }
}

/// A loop and its code.
pub(crate) struct CompiledLoop {
    pub source: VectorLoop,
    pub code: VectorCode,
}

/// The function of a loop.
pub(crate) struct VectorCode {
    /// To be placed at a multiple of 16 bytes.
    pub bytes: Vec<u8>,
    /// Where the function begins.
    pub entry: usize,
}

/// The arguments of a loop's function are words of 64 bits: the number of elements, or of iterations; that of rows; the pointers; the
/// uniform values, the bits of a carrier each; the addresses of accumulators.
pub(crate) struct ArgumentWords;

impl ArgumentWords {
    pub const COUNT: usize = 0;
    pub const ROWS: usize = 1;

    pub fn pointer(i: usize) -> usize {
        2 + i
    }

    pub fn uniform(l: &VectorLoop, i: usize) -> usize {
        ArgumentWords::pointer(l.pointers.len()) + i
    }

    pub fn accumulator(l: &VectorLoop, i: usize) -> usize {
        ArgumentWords::uniform(l, l.uniforms.len()) + i
    }

    pub fn len(l: &VectorLoop) -> usize {
        ArgumentWords::accumulator(l, l.accumulators.len())
    }
}

/// Elements of the vectors that code computes with.
pub(crate) fn vector_lanes(code: &[Instruction], level: VectorLevel) -> u32 {
    let bytes = match level {
        VectorLevel::Avx2 => 32,
        VectorLevel::Avx512 => 64,
    };
    let widest = code.iter().filter(|i| i.dtype != DType::Bool).map(|i| carrier_bytes(i.dtype)).max();
    bytes / widest.unwrap_or(4)
}

/// Bytes of an element in a vector register; a bool has none of its own.
pub(crate) fn carrier_bytes(dtype: DType) -> u32 {
    match dtype {
        DType::F64 | DType::I64 | DType::U64 => 8,
        _ => 4,
    }
}

/// Instructions, for all elements together, that are too few for a call.
const FEW_INSTRUCTIONS: i64 = 128;

/// The loop that begins with a statement of a block, and its code.
pub(crate) fn loop_at(kernel: &Kernel, block: &[Stmt], level: VectorLevel) -> Option<CompiledLoop> {
    let compiled = |source| x86::compile(&source, level).map(|code| CompiledLoop { source, code });
    find(kernel, block, level).into_iter().filter(|l| pays(kernel, l)).find_map(compiled)
}

/// Instructions of a loop over blocks in place that are too few, unless blocks have whole vectors of so many elements: a
/// processor reads what a mask has just written no earlier than when memory has it.
const FEW_IN_PLACE: usize = 12;
const WHOLE: u32 = 16;

/// Whether a loop is worth a call, as far as its length is known.
fn pays(kernel: &Kernel, l: &VectorLoop) -> bool {
    if kernel.is_in_place_on_blocks() && l.code.len() <= FEW_IN_PLACE && l.kernel_lanes < WHOLE {
        return false;
    }
    let known = |lo: &Index, hi: &Index| hi.sub(lo).as_extent().and_then(Extent::known);
    let rows = l.rows.as_ref().map_or(Some(1), |rows| known(&rows.lo, &rows.hi));
    let elements = known(&l.lo, &l.hi).zip(rows).map(|(n, rows)| n / l.step * i64::from(l.lanes) * rows);
    elements.is_none_or(|n| n.saturating_mul(l.code.len() as i64) >= FEW_INSTRUCTIONS)
}
