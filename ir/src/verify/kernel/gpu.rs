//! Rules of kernels for a GPU: the loops of a launch, and what threads do together.

use tensorc_abi::DType;

use super::state::{KernelCheck, KnownVar, LaunchLevel, Spread, Verifier};
use crate::extent::Extent;
use crate::index::{Atom, Index};
use crate::kir::{
    Buf, BufferPlace, GROUP, LoopKind, MAX_BLOCKS, MemorySpace, Mma, Operand, Stmt, Var, WARP, warp_matrix,
};

/// Most shared memory of a block, in bytes: what compute capability 9.0 has.
pub const MAX_SHARED: u64 = 227 << 10;
/// Most threads of a block.
pub const MAX_THREADS: i64 = 1024;

impl Verifier<'_> {
    /// A kernel whose first statement is a grid loop.
    pub(super) fn grid(&mut self) -> KernelCheck {
        let k = self.k;
        let [Stmt::For { var, lo, hi, step, body, .. }] = &k.body[..] else {
            return Err("a grid loop must be the only statement".into());
        };
        let blocks = launch_extent(lo, hi, *step).filter(|n| *n as u64 <= MAX_BLOCKS);
        let blocks = blocks.ok_or("the grid loop must run over 0..constant by 1")?;
        self.bind_loop(*var, blocks, LoopKind::Grid, Spread::Block)?;
        let Some((Stmt::For { var, lo, hi, step, kind: LoopKind::Threads, body: program }, before)) = body.split_last()
        else {
            return Err("a grid loop must end with a loop of threads".into());
        };
        self.level = LaunchLevel::Grid;
        for stmt in before {
            match stmt {
                Stmt::Alloc { .. } | Stmt::LetIndex { .. } => self.stmt(stmt, false)?,
                _ => return Err("a grid loop holds shared memory, indices and a loop of threads".into()),
            }
        }
        let shared = k.launch().map_or(0, |launch| launch.shared_bytes);
        if shared > MAX_SHARED {
            return Err(format!("{shared} bytes of shared memory, more than {MAX_SHARED}"));
        }
        let threads = launch_extent(lo, hi, *step).filter(|n| (WARP as i64..=MAX_THREADS).contains(n));
        let threads = threads.filter(|n| n % WARP as i64 == 0);
        let threads = threads.ok_or("a loop of threads must run over a multiple of 32, up to 1024, by 1")?;
        self.bind_loop(*var, threads, LoopKind::Threads, Spread::Thread)?;
        self.level = LaunchLevel::Threads;
        self.program(program)
    }

    fn bind_loop(&mut self, var: Var, extent: i64, kind: LoopKind, spread: Spread) -> KernelCheck {
        self.certain &= extent > 0;
        self.bind(
            var,
            DType::I64,
            KnownVar { range: (Extent::ZERO, (extent - 1).max(0).into()), kind: Some(kind), spread },
        )
    }

    /// Makes what follows depend on a condition; returns what to restore.
    pub(super) fn narrow(&mut self, spread: Spread) -> Spread {
        let before = self.control;
        self.control = before.max(spread);
        before
    }

    pub(super) fn operand_spread(&self, operand: Operand) -> Spread {
        match operand {
            Operand::Var(v) => self.var_spread(v.0),
            Operand::Const(_) => Spread::Block,
        }
    }

    fn var_spread(&self, v: u32) -> Spread {
        self.vars.get(v as usize).copied().flatten().map_or(Spread::Thread, |known| known.spread)
    }

    pub(super) fn index_spread(&self, index: &Index) -> Spread {
        index.terms.iter().map(|(atom, _)| self.atom_spread(atom)).max().unwrap_or(Spread::Block)
    }

    fn atom_spread(&self, atom: &Atom) -> Spread {
        match atom {
            Atom::Var(v) => self.var_spread(*v),
            Atom::Div(x, d) if Extent::from(GROUP as i64).divides(*d) && self.is_thread_number(x) => Spread::Group,
            Atom::Div(x, d) if Extent::from(WARP as i64).divides(*d) && self.is_thread_number(x) => Spread::Warp,
            Atom::Div(x, _) | Atom::Mod(x, _) => self.index_spread(x),
            Atom::Min(a, b) | Atom::Max(a, b) => self.index_spread(a).max(self.index_spread(b)),
        }
    }

    /// Whether an index is the number of the thread in its block.
    fn is_thread_number(&self, index: &Index) -> bool {
        let kind = |v: u32| self.vars.get(v as usize).copied().flatten().and_then(|known| known.kind);
        index.as_var().is_some_and(|v| kind(v) == Some(LoopKind::Threads))
    }

    pub(super) fn load_spread(&self, buf: Buf, index: &Index, cond: Option<Operand>) -> Spread {
        let at = self.index_spread(index).max(cond.map_or(Spread::Block, |c| self.operand_spread(c)));
        match self.k.buf(buf).space {
            MemorySpace::Global | MemorySpace::Shared => at,
            MemorySpace::Register | MemorySpace::Stack | MemorySpace::Tile | MemorySpace::Barrier => Spread::Thread,
        }
    }

    /// Statements of kernels for a GPU alone.
    pub(super) fn gpu_stmt(&mut self, stmt: &Stmt) -> KernelCheck {
        if !matches!(self.level, LaunchLevel::Threads | LaunchLevel::Role) || self.vector.is_some() {
            return Err("a collective statement must be in a loop of threads, outside of vector loops".into());
        }
        match stmt {
            Stmt::Barrier => match self.control {
                Spread::Block => Ok(()),
                _ => Err("a barrier that some threads of a block may not reach".into()),
            },
            Stmt::Shuffle { var, value, mask } => {
                self.together("a shuffle")?;
                if !(1..WARP as u32).contains(mask) {
                    return Err(format!("a shuffle over distance {mask}"));
                }
                let dtype = self.operand(*value)?;
                self.bind(*var, dtype, KnownVar::plain(Spread::Thread))
            }
            Stmt::Mma(mma) => self.mma(mma),
            Stmt::LoadMatrix { into, from, count, transposed } => {
                self.together("a load of matrices")?;
                if ![1, 2, 4].contains(count) {
                    return Err(format!("a load of {count} matrices"));
                }
                let size = self.k.buffers.get(into.buf.0 as usize).map_or(4, |b| b.dtype.size() as u64);
                let dtype = self.at(into, MemorySpace::Register, (4 / size).max(1) * u64::from(*count))?;
                let source = self.at(from, MemorySpace::Shared, 16 / size)?;
                match (dtype == source, size) {
                    (true, 2) => Ok(()),
                    (true, 4) if !transposed => Ok(()),
                    (true, 4) => Err(format!("matrices of {dtype} cannot be transposed")),
                    _ => Err(format!("matrices of {source} loaded as {dtype}")),
                }
            }
            Stmt::CopyAsync { into, from, len, cond } => {
                if let Some(cond) = cond {
                    self.condition(*cond)?;
                }
                let len = u64::from(*len);
                let dtype = self.at(into, MemorySpace::Shared, len)?;
                let source = self.place(from.buf, &from.index, cond.is_some())?;
                let bytes = len * dtype.size() as u64;
                match () {
                    () if self.k.buf(from.buf).space != MemorySpace::Global => {
                        Err("the source of the copy is not a parameter".into())
                    }
                    () if source != dtype => Err(format!("a copy of {source} to {dtype}")),
                    () if ![4, 8, 16].contains(&bytes) => Err(format!("a copy of {bytes} bytes")),
                    () => Ok(()),
                }
            }
            Stmt::CommitCopies | Stmt::AwaitCopies { .. } => Ok(()),
            _ => self.group_stmt(stmt),
        }
    }

    /// What all threads of a warp do at once.
    pub(super) fn together(&self, what: &str) -> KernelCheck {
        match self.control {
            Spread::Block | Spread::Group | Spread::Warp => Ok(()),
            Spread::Thread => Err(format!("{what} that some threads of a warp may not reach")),
        }
    }

    fn mma(&mut self, mma: &Mma) -> KernelCheck {
        self.together("a product of matrices")?;
        let dtype = self.k.buffers.get(mma.a.buf.0 as usize).map_or(DType::F32, |b| b.dtype);
        if Mma::depth(dtype).is_none() {
            return Err(format!("a product of matrices of {dtype}"));
        }
        let (a, b, acc) = warp_matrix::elements(dtype);
        let found = [(&mma.a, a, dtype), (&mma.b, b, dtype), (&mma.acc, acc, DType::F32)];
        for (place, len, wanted) in found {
            let dtype = self.at(place, MemorySpace::Register, len as u64)?;
            if dtype != wanted {
                return Err(format!("a matrix of {dtype} where one of {wanted} is wanted"));
            }
        }
        Ok(())
    }

    /// A place with `len` elements from it on in memory of one kind.
    pub(super) fn at(&self, place: &BufferPlace, space: MemorySpace, len: u64) -> KernelCheck<DType> {
        let dtype = self.place(place.buf, &place.index, false)?;
        let last = place.index.offset(len as i64 - 1);
        self.place(place.buf, &last, false)?;
        let info = self.k.buf(place.buf);
        match info.space == space {
            true => Ok(dtype),
            false => Err(format!("`{}` is in the wrong memory space", info.name)),
        }
    }
}

/// The extent of a loop of a launch.
fn launch_extent(lo: &Index, hi: &Index, step: i64) -> Option<i64> {
    hi.as_constant().filter(|n| *n >= 0 && lo.as_constant() == Some(0) && step == 1)
}
