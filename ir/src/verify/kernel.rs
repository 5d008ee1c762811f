//! Rules of kernels.

mod gpu;
mod group;
mod state;

use smallvec::SmallVec;
use tensorc_abi::DType;

use crate::diag::{Diagnostic, DiagnosticCode, Result};
use crate::extent::Extent;
use crate::index::{Index, Interval};
use crate::kir::{Buf, GroupMma, Kernel, LoopKind, MemorySpace, Operand, Stmt, Var};
use crate::scalar::{Scalar, ScalarOp};

use state::{KernelCheck, KnownVar, LaunchLevel, Spread, UNKNOWN, Verifier};

/// Checks a kernel. Where numbers depend on symbols, rules are broken by what breaks them for all values of these.
///
/// - Every variable is bound once, before its uses, and used only in the rest of its block; so is
///   every local buffer by its allocation. The range parameters of a parallel kernel are not visible.
/// - Operation, load, store, guard and condition types fit; no function of [`ScalarOp::Math`] on f32.
/// - Library functions are applied to strips of f32 in memory, outside of vector loops.
/// - Indices mention i64 variables only; stores go to writable buffers.
/// - Steps are positive. A parallel loop is the kernel's only statement, over `0..extent` by 1. A
///   vector loop has a constant extent and holds neither another one, nor an `if`, nor an
///   allocation. An unrolled loop has a constant extent.
/// - A register buffer is indexed by a constant, by variables of unrolled loops, and at most once by
///   the variable of the enclosing vector loop.
/// - No access that certainly happens is certainly out of bounds.
/// - A kernel for a GPU is one grid loop over `0..constant` by 1, which holds allocations of shared memory (at most
///   [`gpu::MAX_SHARED`] bytes together), indices, and as its last statement a loop of threads over
///   `0..constant`, a multiple of [`WARP`](crate::kir::WARP) up to [`gpu::MAX_THREADS`]. No other loop of these
///   kinds, no parallel loop and no strip is in it.
/// - Threads reach a barrier all or none: no condition or loop bound around it depends on the thread. Around what
///   a warp does together (shuffles and matrices) they may depend on the number of the warp.
/// - Operands of matrix units and of asynchronous copies have the types and lie in the memory their statements name.
/// - Barriers are initialised once, in the loop of threads itself, with a barrier of the block between that and their use. Roles
///   end the program of a thread; they divide the warps of a block in whole groups of four, with a multiple of 8 registers from
///   24 to 256, as many as a block has together. Arrivals, waits and copies of tiles are the same for a warp, products of
///   tiles for a group. Tiles are copied from parameters that are only read, by rows of a multiple of 16 bytes; threads of a role
///   store to them, and nothing else accesses tiles or barriers.
pub fn verify_kernel(kernel: &Kernel) -> Result<()> {
    let mut v = Verifier {
        k: kernel,
        vars: vec![None; kernel.vars.len()],
        bound: vec![false; kernel.vars.len()],
        buffers: vec![false; kernel.buffers.len()],
        allocated: vec![false; kernel.buffers.len()],
        vector: None,
        certain: true,
        level: LaunchLevel::Host,
        control: Spread::Block,
    };
    v.kernel().map_err(|why| Diagnostic::new(DiagnosticCode::Verify, format!("kernel {}: {why}", kernel.name)))
}

impl Verifier<'_> {
    fn kernel(&mut self) -> KernelCheck {
        let k = self.k;
        if k.params > k.buffers.len() {
            return Err("fewer buffers than parameters".into());
        }
        for (i, info) in k.buffers.iter().enumerate() {
            if (i < k.params) != (info.space == MemorySpace::Global) {
                return Err(format!("buffer `{}`: exactly parameters are global", info.name));
            }
            if info.dtype.is_narrow() {
                return Err(format!("buffer `{}` is of {}, which is u8 in kernels", info.name, info.dtype));
            }
            if i >= k.params && !info.writable {
                return Err(format!("local buffer `{}` is read-only", info.name));
            }
            self.buffers[i] = i < k.params;
        }
        for &v in &k.scalars {
            self.bind(v, DType::I64, KnownVar::plain(Spread::Block))?;
            if k.is_parallel() {
                self.vars[v.0 as usize] = None;
            }
        }
        if k.is_parallel() && (k.body.len() != 1 || k.scalars.len() != 2) {
            return Err("a parallel loop must be the only statement, with two range parameters".into());
        }
        if let (true, Some(Stmt::For { lo, hi, step, .. })) = (k.is_parallel(), k.body.first())
            && (lo.as_constant() != Some(0) || hi.as_extent().is_none() || *step != 1)
        {
            return Err("the parallel loop must run over 0..extent by 1".into());
        }
        if k.is_launch() {
            return self.grid();
        }
        k.body.iter().try_for_each(|s| self.stmt(s, true))
    }

    fn bind(&mut self, v: Var, dtype: DType, known: KnownVar) -> KernelCheck {
        let Some(info) = self.k.vars.get(v.0 as usize) else { return Err(format!("variable {} is not declared", v.0)) };
        if dtype.is_narrow() {
            return Err(format!("`{}` is of {dtype}, which is u8 in kernels", info.name));
        }
        if info.dtype != dtype {
            return Err(format!("`{}` is declared {}, bound to {dtype}", info.name, info.dtype));
        }
        if std::mem::replace(&mut self.bound[v.0 as usize], true) {
            return Err(format!("`{}` is bound twice", info.name));
        }
        self.vars[v.0 as usize] = Some(known);
        Ok(())
    }

    fn known(&self, v: Var) -> KernelCheck<KnownVar> {
        match self.vars.get(v.0 as usize) {
            Some(Some(known)) => Ok(*known),
            Some(None) => Err(format!("`{}` is used where it is not visible", self.k.var(v).name)),
            None => Err(format!("variable {} is not declared", v.0)),
        }
    }

    fn operand(&self, o: Operand) -> KernelCheck<DType> {
        match o {
            Operand::Var(v) => self.known(v).map(|_| self.k.var(v).dtype),
            Operand::Const(c) => Ok(c.dtype),
        }
    }

    /// The interval of an index over visible i64 variables.
    fn index(&self, index: &Index) -> KernelCheck<Interval> {
        let mut result = Ok(());
        index.visit_vars(&mut |v| {
            let here = self.known(Var(v)).and_then(|_| match self.k.var(Var(v)).dtype {
                DType::I64 => Ok(()),
                d => Err(format!("`{}` of type {d} in an index", self.k.var(Var(v)).name)),
            });
            if result.is_ok() {
                result = here;
            }
        });
        result?;
        let range = |v: u32| self.vars[v as usize].map_or(UNKNOWN, |k| k.range);
        let (lo, hi) = index.interval(&range);
        let (lowest, highest) = UNKNOWN;
        Ok((if lo.is_surely_from(lowest) { lo } else { lowest }, if highest.is_surely_from(hi) { hi } else { highest }))
    }

    /// A visible buffer accessed at an index that may be in bounds.
    fn place(&self, buf: Buf, index: &Index, guarded: bool) -> KernelCheck<DType> {
        let Some(info) = self.k.buffers.get(buf.0 as usize) else { return Err("a buffer is not declared".into()) };
        if !self.buffers[buf.0 as usize] {
            return Err(format!("`{}` is used where it is not allocated", info.name));
        }
        let (lo, hi) = self.index(index)?;
        let len = info.len;
        if self.certain && !guarded && (hi.is_surely_below(0) || lo.is_surely_from(len)) {
            return Err(format!("`{}` of {len} elements is accessed at {lo} or above", info.name));
        }
        match info.space == MemorySpace::Register && !self.register_form(index) {
            true => Err(format!("register buffer `{}` is indexed by more than constants and the lane", info.name)),
            false => Ok(info.dtype),
        }
    }

    fn register_form(&self, index: &Index) -> bool {
        let mut fits = true;
        index.visit_vars(&mut |v| {
            let kind = self.vars[v as usize].and_then(|k| k.kind);
            fits &= match kind {
                Some(LoopKind::Unroll) => true,
                Some(LoopKind::Vector) => self.vector == Some(Var(v)) && index.coefficient(v) == Some(Extent::ONE),
                _ => false,
            };
        });
        fits
    }

    fn block(&mut self, block: &[Stmt]) -> KernelCheck {
        block.iter().try_for_each(|s| self.stmt(s, false))?;
        for stmt in block {
            match stmt {
                Stmt::Let { var, .. }
                | Stmt::LetIndex { var, .. }
                | Stmt::Load { var, .. }
                | Stmt::Shuffle { var, .. } => {
                    self.vars[var.0 as usize] = None;
                }
                Stmt::Alloc { buf } => self.buffers[buf.0 as usize] = false,
                _ => {}
            }
        }
        Ok(())
    }

    fn stmt(&mut self, stmt: &Stmt, outermost: bool) -> KernelCheck {
        match stmt {
            Stmt::For { .. } => self.for_loop(stmt, outermost),
            Stmt::Let { var, op, args } => {
                let dtypes = args.iter().map(|a| self.operand(*a)).collect::<KernelCheck<SmallVec<[DType; 3]>>>()?;
                let dtype = op.result(&dtypes)?;
                if let (ScalarOp::Math(f), DType::F32) = (op, dtype) {
                    return Err(format!("{} on f32 is not expanded", f.name()));
                }
                let spread = args.iter().map(|a| self.operand_spread(*a)).max().unwrap_or(Spread::Block);
                self.bind(*var, dtype, KnownVar::plain(spread))
            }
            Stmt::LetIndex { var, index } => {
                let range = self.index(index)?;
                self.bind(*var, DType::I64, KnownVar { range, kind: None, spread: self.index_spread(index) })
            }
            Stmt::Load { buf, .. } if group::is_opaque(self.k, *buf, true) => {
                Err(format!("threads do not read `{}`", self.k.buf(*buf).name))
            }
            Stmt::Store { buf, .. } if group::is_opaque(self.k, *buf, self.level != LaunchLevel::Role) => {
                Err(format!("threads do not write `{}` here", self.k.buf(*buf).name))
            }
            Stmt::Load { var, buf, index, guard } => {
                let dtype = self.place(*buf, index, guard.is_some())?;
                if let Some((cond, fill)) = guard {
                    self.condition(*cond)?;
                    self.same(dtype, fill)?;
                }
                let spread = self.load_spread(*buf, index, guard.map(|(cond, _)| cond));
                self.bind(*var, dtype, KnownVar::plain(spread))
            }
            Stmt::Store { buf, index, value } => {
                let dtype = self.place(*buf, index, false)?;
                let found = self.operand(*value)?;
                let info = self.k.buf(*buf);
                match () {
                    _ if !info.writable => Err(format!("a store to read-only `{}`", info.name)),
                    _ if found != dtype => Err(format!("a store of {found} to `{}` of {dtype}", info.name)),
                    _ => Ok(()),
                }
            }
            Stmt::VectorMath { f, buf, start, len } => {
                self.index(len)?;
                // Whether it reaches its first element depends on the length.
                let dtype = self.place(*buf, start, true)?;
                let info = self.k.buf(*buf);
                match () {
                    _ if f.arity() != 1 => Err(format!("{} takes more than the element", f.name())),
                    _ if dtype != DType::F32 => Err(format!("{} of a strip of {dtype}", f.name())),
                    _ if !info.writable => Err(format!("a store to read-only `{}`", info.name)),
                    _ if info.space == MemorySpace::Register => Err(format!("a strip of registers `{}`", info.name)),
                    _ if self.vector.is_some() => Err("a strip in a vector loop".into()),
                    _ if self.level != LaunchLevel::Host => Err("a strip in a kernel for a GPU".into()),
                    _ => Ok(()),
                }
            }
            Stmt::Alloc { buf } => self.alloc(*buf),
            Stmt::If { cond, then, otherwise } => {
                if self.vector.is_some() {
                    return Err("an `if` in a vector loop".into());
                }
                self.condition(*cond)?;
                let certain = std::mem::replace(&mut self.certain, false);
                let control = self.narrow(self.operand_spread(*cond));
                self.block(then)?;
                self.block(otherwise)?;
                (self.certain, self.control) = (certain, control);
                Ok(())
            }
            _ => self.gpu_stmt(stmt),
        }
    }

    fn same(&self, dtype: DType, fill: &Scalar) -> KernelCheck {
        match fill.dtype == dtype {
            true => Ok(()),
            false => Err(format!("a load of {dtype} is filled with {}", fill.dtype)),
        }
    }

    fn condition(&self, cond: Operand) -> KernelCheck {
        match self.operand(cond)? {
            DType::Bool => Ok(()),
            d => Err(format!("a condition of type {d}")),
        }
    }

    fn alloc(&mut self, buf: Buf) -> KernelCheck {
        let i = buf.0 as usize;
        let Some(info) = self.k.buffers.get(i) else { return Err("a buffer is not declared".into()) };
        if i < self.k.params || std::mem::replace(&mut self.allocated[i], true) {
            return Err(format!("`{}` is a parameter or allocated twice", info.name));
        }
        if self.vector.is_some() {
            return Err(format!("`{}` is allocated in a vector loop", info.name));
        }
        let wanted = match info.space {
            MemorySpace::Tile => GroupMma::takes(info.dtype),
            MemorySpace::Barrier => info.dtype == DType::I64,
            _ => true,
        };
        if !wanted {
            return Err(format!("`{}`: tiles hold f16, bf16 or f32, barriers are i64", info.name));
        }
        if info.space.is_shared() != (self.level == LaunchLevel::Grid) {
            return Err(format!("`{}`: exactly shared memory is allocated in the grid loop", info.name));
        }
        self.buffers[i] = true;
        Ok(())
    }

    fn for_loop(&mut self, stmt: &Stmt, outermost: bool) -> KernelCheck {
        let Stmt::For { var, lo, hi, step, kind, body } = stmt else { return Ok(()) };
        let ((lo_min, lo_max), (hi_min, hi_max)) = (self.index(lo)?, self.index(hi)?);
        let extent = hi.sub(lo).as_constant();
        match kind {
            _ if *step < 1 => return Err(format!("a loop has step {step}")),
            LoopKind::Parallel if !(outermost && self.k.is_parallel()) => {
                return Err("a parallel loop must be outermost".into());
            }
            LoopKind::Grid | LoopKind::Threads => return Err("a loop of a launch inside a kernel".into()),
            LoopKind::Unroll | LoopKind::Vector if extent.is_none() => {
                return Err("the extent of an unrolled or vector loop must be constant".into());
            }
            LoopKind::Vector if self.vector.is_some() => return Err("a vector loop in a vector loop".into()),
            _ => {}
        }
        let runs = lo_max.is_surely_below(hi_min) || extent.is_some_and(|n| n > 0);
        let last = hi_max - 1;
        let range = (lo_min, if last.is_surely_below(lo_min) { lo_min } else { last });
        let spread = self.index_spread(lo).max(self.index_spread(hi));
        self.bind(*var, DType::I64, KnownVar { range, kind: Some(*kind), spread })?;
        let control = self.narrow(spread);
        let certain = self.certain;
        self.certain &= runs;
        let vector = self.vector;
        if *kind == LoopKind::Vector {
            self.vector = Some(*var);
        }
        self.block(body)?;
        self.vector = vector;
        (self.certain, self.control) = (certain, control);
        self.vars[var.0 as usize] = None;
        Ok(())
    }
}
