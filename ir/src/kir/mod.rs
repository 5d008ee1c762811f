//! KIR: explicit structured loop nests over typed buffers, already scheduled.
//!
//! Scalar values are in SSA form: every [`Var`] is bound once, by a loop, a `let`, a load or the
//! kernel's parameter list, and is visible in the rest of its block. State lives in buffers; a
//! buffer in [`MemorySpace::Register`] is a small array that back ends keep in registers.
//!
//! A kernel for a GPU is a [`LoopKind::Grid`] loop around a [`LoopKind::Threads`] loop; what stands in the latter is
//! the program of one thread (`docs/gpu.md`).

mod build;
mod gpu;
mod group;
mod renumber;
mod sizes;

use smallvec::SmallVec;
use tensorc_abi::{DType, KernelSignature, Parameter};

pub use build::{KernelBuilder, LoopRange};
pub use gpu::{BufferPlace, LaunchShape, MAX_BLOCKS, Mma, WARP, warp_matrix};
pub use group::{
    BatchAxis, GROUP, GROUP_ROWS, GroupMma, TILE_ALIGNMENT, TensorMap, TileCopy, TileOperand, WarpRole, group_acc,
    panel, swizzled, tf32,
};

pub use sizes::SizedKernel;

use crate::extent::{Extent, advice};
use crate::index::Index;
use crate::scalar::{MathFn, Scalar, ScalarOp};

/// A scalar or index variable: position in [`Kernel::vars`]. As an index variable it is
/// `Index::var(var.0)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Var(pub u32);

/// Position in [`Kernel::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Buf(pub u32);

/// A loop nest callable as [`tensorc_abi::KernelFn`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The name of the kernel.
    pub name: String,
    /// Name and type of every variable. Index variables (loops, scalar parameters) are i64.
    pub vars: Vec<VarInfo>,
    /// Parameters first, then local buffers.
    pub buffers: Vec<BufInfo>,
    /// How many of `buffers` are parameters.
    pub params: usize,
    /// Index parameters. A kernel with a parallel loop has exactly two, the range of that loop the
    /// call executes, supplied by the launcher and not visible in the body. Those of a kernel for a GPU are passed with a launch.
    pub scalars: Vec<Var>,
    /// The statements.
    pub body: Vec<Stmt>,
}

/// A variable of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VarInfo {
    /// Its name in the text form.
    pub name: String,
    /// Its type.
    pub dtype: DType,
}

/// A buffer of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BufInfo {
    /// Its name in the text form.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// Number of elements; indices are flat.
    pub len: Extent,
    /// Where it lives.
    pub space: MemorySpace,
    /// Whether the kernel stores to it.
    pub writable: bool,
}

/// Where a buffer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemorySpace {
    /// A parameter.
    Global,
    /// Memory of a block of GPU threads, allocated in the grid loop.
    Shared,
    /// Shared memory that the copy engine writes and matrix units read, aligned to [`TILE_ALIGNMENT`]. Threads do not access
    /// it.
    Tile,
    /// Barriers in shared memory, i64 each, on which threads wait for threads or for the copy engine.
    Barrier,
    /// Thread-private memory, for arrays indexed by loop variables.
    Stack,
    /// Accessed only at constant indices (after unrolling) or at a constant plus the variable of
    /// the enclosing vector loop.
    Register,
}

/// How the iterations of a loop are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoopKind {
    /// One after the other.
    Serial,
    /// Expanded completely; constant extent.
    Unroll,
    /// Iterations run as the lanes of one vector; constant extent `lanes`, no nested vector loop.
    /// Iterations are independent but for register buffers indexed by lane.
    Vector,
    /// Iterations are independent and may run on any thread. At most one, outermost, and then the
    /// only statement of the kernel. Its range must start at 0 and be constant.
    Parallel,
    /// The blocks of a launch on a GPU, in any order or at once: the only statement of the kernel, over
    /// `0..constant`. In it stand allocations of shared memory, indices, and the loop of threads.
    Grid,
    /// The threads of a block, at once: the last statement of the grid loop, over `0..constant`, a multiple of
    /// [`WARP`]. Statements in it run as on a GPU: threads of a block meet at a [`Stmt::Barrier`].
    Threads,
}

/// A value in an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operand {
    /// The value of a variable.
    Var(Var),
    /// A constant.
    Const(Scalar),
}

/// A statement of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stmt {
    /// `for var in lo..hi by step`; `step > 0`.
    For {
        /// The loop variable, of type i64.
        var: Var,
        /// The first value.
        lo: Index,
        /// The limit, exclusive.
        hi: Index,
        /// The step, above 0.
        step: i64,
        /// How iterations are executed.
        kind: LoopKind,
        /// The statements of an iteration.
        body: Vec<Stmt>,
    },
    /// Binds the result of a scalar operation.
    Let {
        /// The variable that is bound.
        var: Var,
        /// The operation.
        op: ScalarOp,
        /// Its operands.
        args: SmallVec<[Operand; 3]>,
    },
    /// Binds the value of an index expression, as i64.
    LetIndex {
        /// The variable that is bound, of type i64.
        var: Var,
        /// Its value.
        index: Index,
    },
    /// Binds `buf[index]`; with a guard `(cond, fill)`, reads only where the bool `cond` holds and
    /// gives `fill` elsewhere.
    Load {
        /// The variable that is bound.
        var: Var,
        /// The buffer.
        buf: Buf,
        /// The index of the element.
        index: Index,
        /// Where the condition does not hold, nothing is read and the value is the scalar.
        guard: Option<(Operand, Scalar)>,
    },
    /// Writes an element.
    Store {
        /// The buffer.
        buf: Buf,
        /// The index of the element.
        index: Index,
        /// The value written.
        value: Operand,
    },
    /// Replaces `buf[start..start + len]`, f32 in memory, by the function of one argument of each
    /// element; nothing happens for `len <= 0`.
    VectorMath {
        /// The function.
        f: MathFn,
        /// The buffer, of f32 in memory.
        buf: Buf,
        /// The first element.
        start: Index,
        /// Number of elements.
        len: Index,
    },
    /// Begins the life of a local buffer, contents undefined.
    Alloc {
        /// The buffer.
        buf: Buf,
    },
    /// Statements under a condition.
    If {
        /// The condition, of type bool.
        cond: Operand,
        /// What is executed where it holds.
        then: Vec<Stmt>,
        /// What is executed where it does not hold.
        otherwise: Vec<Stmt>,
    },
    /// Waits until all threads of the block are here; what they wrote before is seen by all after it.
    Barrier,
    /// Binds what `value` is in the thread of the same warp whose number differs in the bits of `mask`, below
    /// [`WARP`]. All threads of the warp are here.
    Shuffle {
        /// The variable that is bound.
        var: Var,
        /// The value that lanes exchange.
        value: Operand,
        /// Exclusive-or of the number of a lane and that of its partner.
        mask: u32,
    },
    /// Adds a product of two small matrices, spread over the registers of a warp.
    Mma(Box<Mma>),
    /// Loads `count` (1, 2 or 4) matrices of 8 rows of 16 bytes from shared memory into registers as operands of
    /// [`Stmt::Mma`], 4 neighbouring bytes of each matrix to a thread: two elements of 16 bits, or one of 32.
    /// Transposed ones, of 16 bits alone, come by columns. Thread `8m + r` gives the place of row `r` of matrix `m`,
    /// aligned to 16 bytes.
    LoadMatrix {
        /// The registers that receive the matrices.
        into: BufferPlace,
        /// The rows in shared memory.
        from: BufferPlace,
        /// Number of 8×8 matrices: 1, 2 or 4.
        count: u8,
        /// Whether matrices are transposed.
        transposed: bool,
    },
    /// Begins to copy `len` elements (4, 8 or 16 bytes, aligned to them) from a parameter to shared memory; zeros where the bool
    /// `cond` does not hold. They may be read after an [`Stmt::AwaitCopies`] of this thread that covers the
    /// copy, by other threads after a barrier that follows it.
    CopyAsync {
        /// The first element in shared memory.
        into: BufferPlace,
        /// The first element in global memory.
        from: BufferPlace,
        /// Number of elements.
        len: u8,
        /// Zeros are written where the condition does not hold.
        cond: Option<Operand>,
    },
    /// Ends a group of asynchronous copies of this thread.
    CommitCopies,
    /// Waits until at most the `pending` groups ended last are unfinished.
    AwaitCopies {
        /// The newest groups that need not be complete.
        pending: u8,
    },
    /// Begins the life of all barriers of a buffer in phase 0; a phase is over when as many warps have arrived and all bytes have
    /// come that they announced. They may be used after a [`Stmt::Barrier`].
    InitBarriers {
        /// The barriers, in shared memory.
        buf: Buf,
        /// Arrivals that end a phase.
        arrivals: u32,
    },
    /// Every warp that executes it arrives, once, after everything its threads did, stores to tiles among them, and announces bytes
    /// that the copy engine brings in this phase.
    Arrive {
        /// The barrier.
        barrier: BufferPlace,
        /// Bytes of copies that the phase waits for; 0 for none.
        bytes: u32,
    },
    /// Waits until the phase of this number is over, as phase -1 always is. The next one must not be over.
    AwaitBarrier {
        /// The barrier.
        barrier: BufferPlace,
        /// The phase whose end is awaited.
        phase: Index,
    },
    /// Every warp that executes it has the copy engine begin to copy a box of a matrix. It has come when the phase of the barrier is
    /// over that counts its bytes.
    CopyTile(Box<TileCopy>),
    /// Begins a product of two tiles, spread over the registers of a group of warps.
    GroupMma(Box<GroupMma>),
    /// Waits until at most the `pending` products begun last are unfinished. Until a product is finished only further ones
    /// may use its sums, and nothing may write its tiles.
    AwaitProducts {
        /// The sums of the products.
        sums: Buf,
        /// The newest groups that need not be complete.
        pending: u8,
    },
    /// Warps part for the rest of the kernel, which it ends.
    Roles(Vec<WarpRole>),
}

/// Number of index parameters of kernels that a library calls on blocks.
const BLOCK_SCALARS: usize = 7;

/// See [`Kernel::operations`].
fn operations(body: &[Stmt]) -> Extent {
    let of = |stmt: &Stmt| match stmt {
        Stmt::Let { .. } => Extent::ONE,
        Stmt::For { lo, hi, step, body, .. } => {
            let extent = lo.as_extent().zip(hi.as_extent()).map(|(lo, hi)| (hi - lo).greatest(0));
            extent.map_or(Extent::ONE, |extent| extent.div_ceil((*step).max(1))).saturating_mul(operations(body))
        }
        Stmt::If { then, otherwise, .. } => operations(then).greatest(operations(otherwise)),
        _ => Extent::ZERO,
    };
    body.iter().map(of).fold(Extent::ZERO, Extent::saturating_add)
}

impl Kernel {
    /// The kernel without names, which do not change what it does: equal ones get equal code.
    pub fn canonical(&self) -> Kernel {
        let mut kernel = self.clone();
        kernel.name.clear();
        kernel.vars.iter_mut().for_each(|v| v.name.clear());
        kernel.buffers.iter_mut().for_each(|b| b.name.clear());
        kernel
    }

    /// The extent of the parallel loop, or of the grid, whose binding is not below 0; 1 for a kernel without either.
    pub fn parallel_extent(&self) -> Extent {
        match self.body.first() {
            Some(Stmt::For { kind: LoopKind::Parallel | LoopKind::Grid, hi, .. }) => {
                hi.as_extent().map_or(Extent::ZERO, |n| if n.is_open() { n } else { n.greatest(0) })
            }
            _ => Extent::ONE,
        }
    }

    /// Scalar operations of all iterations. A loop whose extent is not constant counts once.
    pub fn operations(&self) -> Extent {
        advice(|| operations(&self.body))
    }

    /// What calls of the kernel must fit.
    pub fn signature(&self) -> KernelSignature<Extent> {
        let parameter =
            |b: &BufInfo| Parameter { name: b.name.clone(), dtype: b.dtype, span: b.len, writes: b.writable };
        KernelSignature {
            parameters: self.buffers[..self.params].iter().map(parameter).collect(),
            extent: self.parallel_extent(),
            on_blocks: self.is_on_blocks(),
            sizes: vec![],
        }
    }

    /// Whether the kernel is for a GPU.
    pub fn is_launch(&self) -> bool {
        matches!(self.body.first(), Some(Stmt::For { kind: LoopKind::Grid, .. }))
    }

    /// The grid of a kernel for a GPU. If it takes scalars, the number of blocks is that of a launch.
    pub fn launch(&self) -> Option<LaunchShape> {
        let [Stmt::For { kind: LoopKind::Grid, hi: blocks, body, .. }] = &self.body[..] else { return None };
        let Some(Stmt::For { kind: LoopKind::Threads, hi: threads, .. }) = body.last() else { return None };
        let extent = |i: &Index| i.as_constant().and_then(|n| u64::try_from(n).ok());
        let shared_bytes = self.shared_before(self.buffers.len());
        Some(LaunchShape { blocks: extent(blocks)?, threads: u32::try_from(extent(threads)?).ok()?, shared_bytes })
    }

    /// The first byte of a buffer in shared memory: they lie one behind the other in the shared memory of a block, each
    /// aligned to 16 bytes, tiles to [`TILE_ALIGNMENT`].
    pub fn shared_offset(&self, buf: Buf) -> u64 {
        let before = self.shared_before(buf.0 as usize);
        self.buffers.get(buf.0 as usize).map_or(before, |info| before.next_multiple_of(info.shared_alignment()))
    }

    /// Bytes of those of the first `count` buffers that lie in shared memory.
    fn shared_before(&self, count: usize) -> u64 {
        let shared = self.buffers.iter().take(count).filter(|b| b.space.is_shared());
        shared.fold(0, |end, b| {
            let bytes = b.elements() * b.dtype.size() as u64;
            (end.next_multiple_of(b.shared_alignment()) + bytes).next_multiple_of(16)
        })
    }

    /// Whether the kernel is one parallel loop, called with a range of its iterations.
    pub fn is_parallel(&self) -> bool {
        matches!(self.body.first(), Some(Stmt::For { kind: LoopKind::Parallel, .. }))
    }

    /// Whether a library calls the kernel on blocks, with the index parameters of
    /// [`tensorc_abi::library::epilogue_scalars`]. It writes one buffer, in which nothing else that it reads lies: its first, or its
    /// second where the first has sums that lie apart.
    pub fn is_on_blocks(&self) -> bool {
        !self.is_parallel() && !self.is_launch() && self.scalars.len() == BLOCK_SCALARS
    }

    /// Whether it is called on blocks ([`Kernel::is_on_blocks`]) that it reads and writes.
    pub fn is_in_place_on_blocks(&self) -> bool {
        self.is_on_blocks() && self.buffers.first().is_some_and(|first| first.writable)
    }

    /// A variable of the kernel.
    pub fn var(&self, v: Var) -> &VarInfo {
        &self.vars[v.0 as usize]
    }

    /// A buffer of the kernel.
    pub fn buf(&self, b: Buf) -> &BufInfo {
        &self.buffers[b.0 as usize]
    }
}

impl BufInfo {
    /// Number of elements, as a number ([`Extent::fixed`]).
    pub fn elements(&self) -> u64 {
        self.len.fixed().max(0) as u64
    }

    /// Bytes at whose multiples it begins, in shared memory.
    fn shared_alignment(&self) -> u64 {
        if self.space == MemorySpace::Tile { TILE_ALIGNMENT } else { 16 }
    }
}

impl MemorySpace {
    /// Whether it is part of the memory of a block.
    pub const fn is_shared(self) -> bool {
        matches!(self, MemorySpace::Shared | MemorySpace::Tile | MemorySpace::Barrier)
    }
}
