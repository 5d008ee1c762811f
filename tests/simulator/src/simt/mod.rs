//! Execution of kernels for a GPU, threads of a block in step, with every access checked.
//!
//! A block is interpreted statement by statement for all threads that execute it, so no result depends on the order of
//! threads unless they race; and whether they do does not depend on the order either (`shadow`). Blocks
//! run one after the other. `counts` says what memory would have to do, `warp` what threads do together, `tiles` what groups of
//! warps and the copy engine do; when warps part (`roles`), each group goes on by itself until it waits.

mod counts;
mod machine;
mod roles;
mod shadow;
mod tiles;
mod values;
mod warp;

use std::collections::VecDeque;

use smallvec::SmallVec;
use tensorc_abi::DType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::index::{Atom, Index};
use tensorc_ir::kir::{Buf, BufInfo, GROUP, Kernel, LoopKind, MemorySpace, Operand, Stmt, Var, WARP, swizzled};
use tensorc_ir::scalar::{Scalar, ScalarOp};

use machine::{Local, SharedArray, SimtMachine, VectorLoop};
use shadow::{Cell, Clocks, Moment};
use values::{Mask, ThreadIndices, ThreadValues};

pub use counts::{BufferTraffic, LaunchCounts, Traffic};

/// Runs a kernel for a GPU on the bytes of its buffer parameters.
///
/// # Errors
/// A kernel that is not for a GPU, a buffer of the wrong size, an access out of bounds, a read of a local or shared
/// element that was never written or whose copy is not awaited, a store to a read-only buffer, two threads
/// that race, threads of a block or warp that part before they do something together, an access of matrix
/// units or asynchronous copies that is not aligned, a use of sums or tiles before what makes them is awaited, a wait for a phase
/// that is long over, warps that wait for ever.
pub fn run_launch(kernel: &Kernel, buffers: &mut [Vec<u8>]) -> Result<LaunchCounts> {
    let fail = |why: String| Err(Diagnostic::new(DiagnosticCode::Verify, format!("kernel {}: {why}", kernel.name)));
    let Some(launch) = kernel.launch() else { return fail("is not for a GPU".into()) };
    if buffers.len() != kernel.params {
        return fail(format!("takes {} buffers, given {}", kernel.params, buffers.len()));
    }
    for (info, bytes) in kernel.buffers.iter().zip(buffers.iter()) {
        if info.elements() * info.dtype.size() as u64 != bytes.len() as u64 {
            return fail(format!("buffer `{}` has {} bytes, expected {} elements", info.name, bytes.len(), info.len));
        }
    }
    let threads = launch.threads as usize;
    let cells = |info: &BufInfo| vec![Cell::default(); if info.writable { info.elements() as usize } else { 0 }];
    let mut machine = SimtMachine {
        kernel,
        threads,
        vars: vec![ThreadValues::One(Scalar::i64(0)); kernel.vars.len()],
        params: buffers,
        cells: kernel.buffers[..kernel.params].iter().map(cells).collect(),
        shared: vec![SharedArray::default(); kernel.buffers.len()],
        locals: vec![Local::default(); kernel.buffers.len()],
        groups: vec![],
        barriers: vec![vec![]; kernel.buffers.len()],
        products: vec![VecDeque::new(); threads.div_ceil(GROUP)],
        busy: vec![0; kernel.buffers.len()],
        block: 0,
        clocks: Clocks::new(),
        vector: None,
        counts: LaunchCounts::default(),
    };
    let [Stmt::For { var, body, .. }] = &kernel.body[..] else { return fail("is not for a GPU".into()) };
    for block in 0..launch.blocks {
        machine.bind(*var, ThreadValues::One(Scalar::i64(block as i64)));
        machine.run_block(block as u32, body)?;
    }
    Ok(machine.counts)
}

impl SimtMachine<'_> {
    fn fail<T>(&self, why: String) -> Result<T> {
        Err(Diagnostic::new(DiagnosticCode::Verify, format!("kernel {}: {why}", self.kernel.name)))
    }

    fn run_block(&mut self, block: u32, body: &[Stmt]) -> Result<()> {
        (self.block, self.clocks) = (block, Clocks::new());
        self.groups = vec![VecDeque::from([vec![]]); self.threads];
        let all = Mask::all(self.threads);
        for stmt in body {
            match stmt {
                Stmt::For { var, kind: LoopKind::Threads, body, .. } => {
                    self.bind(*var, ThreadValues::Each((0..self.threads as i64).map(Scalar::i64).collect()));
                    self.statements(body, &all)?;
                }
                other => self.stmt(other, &all)?,
            }
        }
        Ok(())
    }

    fn bind(&mut self, var: Var, value: ThreadValues) {
        self.vars[var.0 as usize] = value;
    }

    fn operand(&self, o: Operand, thread: usize) -> Scalar {
        match o {
            Operand::Var(v) => self.vars[v.0 as usize].of(thread),
            Operand::Const(c) => c,
        }
    }

    fn is_one(&self, o: Operand) -> bool {
        matches!(o, Operand::Const(_))
            || matches!(o, Operand::Var(v) if matches!(self.vars[v.0 as usize], ThreadValues::One(_)))
    }

    /// The value of an index in every thread; what it is in those that do not execute is of no meaning.
    fn places(&self, index: &Index) -> ThreadIndices {
        let terms = index.terms.iter().map(|(atom, factor)| self.atom(atom).map(|x| x.wrapping_mul(factor.fixed())));
        terms.fold(ThreadIndices::One(index.constant.fixed()), |sum, term| sum.join(term, i64::wrapping_add))
    }

    fn atom(&self, atom: &Atom) -> ThreadIndices {
        match atom {
            Atom::Var(v) => match &self.vars[*v as usize] {
                ThreadValues::One(value) => ThreadIndices::One(value.as_i64()),
                ThreadValues::Each(values) => {
                    ThreadIndices::Each(values.iter().map(|value| value.bits as i64).collect())
                }
            },
            Atom::Div(x, d) => self.places(x).map(|x| x.div_euclid(d.fixed())),
            Atom::Mod(x, d) => self.places(x).map(|x| x.rem_euclid(d.fixed())),
            Atom::Min(a, b) => self.places(a).join(self.places(b), i64::min),
            Atom::Max(a, b) => self.places(a).join(self.places(b), i64::max),
        }
    }

    /// A value for every thread of a mask, computed once if it is the same for all.
    fn each(&self, one: bool, mask: &Mask, f: impl Fn(usize) -> Scalar) -> ThreadValues {
        match (one, mask.threads().next()) {
            (true, Some(thread)) => ThreadValues::One(f(thread)),
            _ => {
                let mut values = vec![Scalar::i64(0); self.threads];
                mask.threads().for_each(|t| values[t] = f(t));
                ThreadValues::Each(values)
            }
        }
    }

    fn statements(&mut self, body: &[Stmt], mask: &Mask) -> Result<()> {
        if mask.is_empty() {
            return Ok(());
        }
        body.iter().try_for_each(|s| self.stmt(s, mask))
    }

    fn stmt(&mut self, stmt: &Stmt, mask: &Mask) -> Result<()> {
        match stmt {
            Stmt::For { var, lo, hi, step, kind, body } => self.for_loop(*var, (lo, hi, *step), *kind, body, mask),
            Stmt::Let { var, op, args } => self.operation(*var, *op, args, mask),
            Stmt::LetIndex { var, index } => {
                let value = match self.places(index) {
                    ThreadIndices::One(place) => ThreadValues::One(Scalar::i64(place)),
                    ThreadIndices::Each(places) => ThreadValues::Each(places.into_iter().map(Scalar::i64).collect()),
                };
                self.bind(*var, value);
                Ok(())
            }
            Stmt::Load { var, buf, index, guard } => self.load(*var, *buf, index, *guard, mask),
            Stmt::Store { buf, index, value } => self.store(*buf, index, *value, mask),
            Stmt::VectorMath { .. } => self.fail("a strip in a kernel for a GPU".into()),
            Stmt::Alloc { buf } => {
                self.alloc(*buf, mask);
                Ok(())
            }
            Stmt::If { cond, then, otherwise } => {
                let yes = mask.only(|t| self.operand(*cond, t).as_bool());
                let no = mask.only(|t| !self.operand(*cond, t).as_bool());
                self.statements(then, &yes)?;
                self.statements(otherwise, &no)
            }
            Stmt::Barrier => self.barrier(mask),
            Stmt::Shuffle { var, value, mask: distance } => self.shuffle(*var, *value, *distance, mask),
            Stmt::Mma(mma) => self.mma(mma, mask),
            Stmt::LoadMatrix { into, from, count, transposed } => {
                self.load_matrix(into, from, usize::from(*count), *transposed, mask)
            }
            Stmt::CopyAsync { into, from, len, cond } => self.copy_async(into, from, usize::from(*len), *cond, mask),
            Stmt::CommitCopies => {
                mask.threads().for_each(|t| self.groups[t].push_back(vec![]));
                Ok(())
            }
            Stmt::AwaitCopies { pending } => self.await_copies(usize::from(*pending), mask),
            Stmt::InitBarriers { buf, arrivals } => self.init_barriers(*buf, *arrivals, mask),
            Stmt::Arrive { barrier, bytes } => self.arrive(barrier, *bytes, mask),
            Stmt::AwaitBarrier { .. } => self.fail("a wait for a barrier outside of a role".into()),
            Stmt::CopyTile(copy) => self.copy_tile(copy, mask),
            Stmt::GroupMma(mma) => self.group_mma(mma, mask),
            Stmt::AwaitProducts { sums, pending } => self.await_products(*sums, usize::from(*pending), mask),
            Stmt::Roles(roles) => self.roles(roles, mask),
        }
    }

    fn barrier(&mut self, mask: &Mask) -> Result<()> {
        if !mask.is_full() {
            return self.fail("a barrier that some threads of a block do not reach".into());
        }
        self.clocks.meet();
        self.counts.barriers += 1;
        Ok(())
    }

    fn for_loop(
        &mut self,
        var: Var,
        (lo, hi, step): (&Index, &Index, i64),
        kind: LoopKind,
        body: &[Stmt],
        mask: &Mask,
    ) -> Result<()> {
        if matches!(kind, LoopKind::Parallel | LoopKind::Grid | LoopKind::Threads) {
            return self.fail("a loop of a launch inside a kernel".into());
        }
        let (lo, hi) = (self.places(lo), self.places(hi));
        if let (ThreadIndices::One(lo), ThreadIndices::One(hi)) = (&lo, &hi) {
            let (lo, hi) = (*lo, *hi);
            let mut i = lo;
            while i < hi {
                if kind == LoopKind::Vector {
                    self.vector = Some(VectorLoop { var: var.0, lo, lanes: hi - lo, at: i });
                }
                self.bind(var, ThreadValues::One(Scalar::i64(i)));
                self.statements(body, mask)?;
                i += step;
            }
            if kind == LoopKind::Vector {
                self.vector = None;
            }
            return Ok(());
        }
        let bounds: Vec<(i64, i64)> = (0..self.threads).map(|t| (lo.of(t), hi.of(t))).collect();
        let mut done = 0;
        loop {
            let at = |t: usize| bounds[t].0 + done * step;
            let active = mask.only(|t| at(t) < bounds[t].1);
            if active.is_empty() {
                return Ok(());
            }
            self.bind(var, ThreadValues::Each((0..self.threads).map(|t| Scalar::i64(at(t))).collect()));
            self.statements(body, &active)?;
            done += 1;
        }
    }

    fn operation(&mut self, var: Var, op: ScalarOp, args: &[Operand], mask: &Mask) -> Result<()> {
        let dtype = |o: &Operand| match o {
            Operand::Var(v) => self.kernel.var(*v).dtype,
            Operand::Const(c) => c.dtype,
        };
        let dtypes: SmallVec<[DType; 3]> = args.iter().map(dtype).collect();
        match (op, op.result(&dtypes)) {
            (_, Err(why)) => return self.fail(why),
            (ScalarOp::Math(f), Ok(DType::F32)) => return self.fail(format!("{} on f32 is not expanded", f.name())),
            _ => {}
        }
        if dtypes.iter().all(|d| *d == DType::F32)
            && let Some(value) = self.floats(op, args)
        {
            self.bind(var, value);
            return Ok(());
        }
        let one = args.iter().all(|a| self.is_one(*a));
        let value = self.each(one, mask, |t| {
            let args: SmallVec<[Scalar; 3]> = args.iter().map(|a| self.operand(*a, t)).collect();
            op.eval(&args)
        });
        self.bind(var, value);
        Ok(())
    }

    /// The commonest operations on f32, without a step for each thread.
    fn floats(&self, op: ScalarOp, args: &[Operand]) -> Option<ThreadValues> {
        fn all(args: [&ThreadValues; 3], f: impl Fn(f32, f32, f32) -> f32) -> Option<ThreadValues> {
            let len = args.iter().find_map(|a| if let ThreadValues::Each(v) = a { Some(v.len()) } else { None })?;
            let x = |a: &ThreadValues, t: usize| f32::from_bits(a.of(t).bits as u32);
            let one = |t| Scalar::f32(f(x(args[0], t), x(args[1], t), x(args[2], t)));
            Some(ThreadValues::Each((0..len).map(one).collect()))
        }
        let constants: SmallVec<[Option<ThreadValues>; 3]> =
            args.iter().map(|a| if let Operand::Const(c) = a { Some(ThreadValues::One(*c)) } else { None }).collect();
        let zero = ThreadValues::One(Scalar::f32(0.0));
        let lanes = |i: usize| match (args.get(i), constants.get(i)) {
            (Some(Operand::Var(v)), _) => &self.vars[v.0 as usize],
            (_, Some(Some(constant))) => constant,
            _ => &zero,
        };
        let args = [lanes(0), lanes(1), lanes(2)];
        match op {
            ScalarOp::Add => all(args, |a, b, _| a + b),
            ScalarOp::Sub => all(args, |a, b, _| a - b),
            ScalarOp::Mul => all(args, |a, b, _| a * b),
            ScalarOp::Fma => all(args, f32::mul_add),
            _ => None,
        }
    }

    fn alloc(&mut self, buf: Buf, mask: &Mask) {
        let info = self.kernel.buf(buf);
        let (len, zero) = (info.elements() as usize, Scalar::zero(info.dtype));
        if info.space == MemorySpace::Barrier {
            self.barriers[buf.0 as usize].clear();
            return;
        }
        if info.space.is_shared() {
            let base = self.kernel.shared_offset(buf);
            let (cells, pending) = (vec![Cell::default(); len], vec![false; len]);
            self.shared[buf.0 as usize] = SharedArray { base, values: vec![zero; len], cells, pending };
            return;
        }
        let (threads, local) = (self.threads, &mut self.locals[buf.0 as usize]);
        if mask.is_full() || local.values.is_empty() {
            *local = Local { values: vec![zero; len * threads], written: vec![false; len * threads] };
            return;
        }
        for at in 0..len {
            mask.threads().for_each(|t| local.written[at * threads + t] = false);
        }
    }

    /// A position, within the buffer with `len` elements from it on.
    fn element(&self, buf: Buf, at: i64, len: usize, thread: usize) -> Result<usize> {
        let info = self.kernel.buf(buf);
        match at >= 0 && at.saturating_add(len as i64) <= info.elements() as i64 {
            true => Ok(at as usize),
            false => self.fail(format!(
                "index {at} is out of bounds of `{}` ({} elements) in thread {thread} of block {}",
                info.name, info.len, self.block
            )),
        }
    }

    fn race<T>(&self, buf: Buf, at: usize, thread: usize) -> Result<T> {
        let name = &self.kernel.buf(buf).name;
        self.fail(format!("thread {thread} of block {} races with another for element {at} of `{name}`", self.block))
    }

    /// Reads an element as one thread does.
    fn read(&mut self, buf: Buf, at: usize, thread: usize) -> Result<Scalar> {
        let (info, i) = (self.kernel.buf(buf), buf.0 as usize);
        let moment = self.clocks.moment(self.block, thread);
        let (value, written, raced) = match info.space {
            MemorySpace::Global => {
                let value = Scalar::read(info.dtype, &self.params[i][at * info.dtype.size()..]);
                (value, true, self.cells[i].get_mut(at).is_some_and(|cell| !cell.read(moment)))
            }
            MemorySpace::Shared | MemorySpace::Tile | MemorySpace::Barrier => {
                let shared = &mut self.shared[i];
                if shared.pending.get(at) == Some(&true) {
                    return self.fail(format!("element {at} of `{}` is read before its copy is awaited", info.name));
                }
                match shared.cells.get_mut(at) {
                    None => (Scalar::zero(info.dtype), false, false),
                    Some(cell) => (shared.values[at], cell.is_written(), !cell.read(moment)),
                }
            }
            MemorySpace::Stack | MemorySpace::Register if self.is_busy(buf, thread) => return self.busy_error(buf),
            MemorySpace::Stack | MemorySpace::Register => {
                let (local, at) = (&self.locals[i], at * self.threads + thread);
                let written = local.written.get(at).copied().unwrap_or(false);
                (if written { local.values[at] } else { Scalar::zero(info.dtype) }, written, false)
            }
        };
        match (raced, written) {
            (true, _) => self.race(buf, at, thread),
            (_, false) => self.fail(format!("element {at} of `{}` is read before it is written", info.name)),
            _ => Ok(value),
        }
    }

    /// Writes an element as one thread does.
    fn write(&mut self, buf: Buf, at: usize, value: Scalar, thread: usize) -> Result<()> {
        let (info, i) = (self.kernel.buf(buf), buf.0 as usize);
        let moment: Moment<'_> = self.clocks.moment(self.block, thread);
        if !info.writable {
            return self.fail(format!("`{}` is read-only", info.name));
        }
        let raced = match info.space {
            MemorySpace::Global => {
                value.write(&mut self.params[i][at * info.dtype.size()..]);
                self.cells[i].get_mut(at).is_some_and(|cell| !cell.write(moment))
            }
            MemorySpace::Shared | MemorySpace::Tile | MemorySpace::Barrier => {
                let shared = &mut self.shared[i];
                let Some(cell) = shared.cells.get_mut(at) else {
                    return self.fail(format!("`{}` is used before its alloc", info.name));
                };
                shared.values[at] = value;
                !cell.write(moment) || shared.pending[at]
            }
            MemorySpace::Stack | MemorySpace::Register if self.is_busy(buf, thread) => return self.busy_error(buf),
            MemorySpace::Stack | MemorySpace::Register => {
                let (local, at) = (&mut self.locals[i], at * self.threads + thread);
                if at >= local.values.len() {
                    return self.fail(format!("`{}` is used before its alloc", info.name));
                }
                local.values[at] = value;
                local.written[at] = true;
                false
            }
        };
        if raced { self.race(buf, at, thread) } else { Ok(()) }
    }

    fn load(&mut self, var: Var, buf: Buf, index: &Index, guard: Option<(Operand, Scalar)>, mask: &Mask) -> Result<()> {
        let reading = match guard {
            Some((cond, _)) => mask.only(|t| self.operand(cond, t).as_bool()),
            None => mask.clone(),
        };
        let fill = guard.map_or(Scalar::zero(self.kernel.buf(buf).dtype), |(_, fill)| fill);
        let places = self.places(index);
        if let (Some(values), true) = (self.private(buf, &places), reading.is_full()) {
            self.bind(var, ThreadValues::Each(values.to_vec()));
            return Ok(());
        }
        let mut values = vec![fill; self.threads];
        for t in reading.threads() {
            let at = self.element(buf, places.of(t), 1, t)?;
            values[t] = self.read(buf, at, t)?;
        }
        self.count(buf, index, &places, BufferTraffic::Load, &reading);
        self.bind(var, ThreadValues::Each(values));
        Ok(())
    }

    /// One element of an array of the threads' own, of all of them, if all have written it.
    fn private(&self, buf: Buf, places: &ThreadIndices) -> Option<&[Scalar]> {
        let (info, local) = (self.kernel.buf(buf), &self.locals[buf.0 as usize]);
        let ThreadIndices::One(at) = places else { return None };
        if self.busy[buf.0 as usize] > 0 {
            return None;
        }
        let at = usize::try_from(*at).ok().filter(|at| (*at as u64) < info.elements())?;
        let range = at * self.threads..(at + 1) * self.threads;
        local.written.get(range.clone())?.iter().all(|w| *w).then(|| &local.values[range])
    }

    fn store(&mut self, buf: Buf, index: &Index, value: Operand, mask: &Mask) -> Result<()> {
        let places = self.places(index);
        for t in mask.threads() {
            let mut at = self.element(buf, places.of(t), 1, t)?;
            if self.kernel.buf(buf).space == MemorySpace::Tile {
                at = swizzled(self.kernel.buf(buf).dtype, at);
            }
            self.write(buf, at, self.operand(value, t), t)?;
        }
        self.count(buf, index, &places, BufferTraffic::Store, mask);
        Ok(())
    }

    /// Counts a load or store. The iterations of a vector loop over neighbouring elements are one access if it is
    /// aligned, counted with the first.
    fn count(&mut self, buf: Buf, index: &Index, places: &ThreadIndices, access: BufferTraffic, mask: &Mask) {
        let info = self.kernel.buf(buf);
        if !matches!(info.space, MemorySpace::Global | MemorySpace::Shared) {
            return;
        }
        let size = info.dtype.size() as u64;
        let mut width = size;
        if let Some(v) = self.vector.filter(|v| index.step(v.var) == Some(1)) {
            let whole = v.lanes as u64 * size;
            let first = |t: usize| (places.of(t) - (v.at - v.lo)) as u64 * size;
            if whole <= 16 && mask.threads().all(|t| first(t).is_multiple_of(whole)) {
                if v.at != v.lo {
                    return;
                }
                width = whole;
            }
        }
        let address = |t: usize| places.of(t) as u64 * size;
        let accesses: Vec<(usize, (u64, u64))> = mask.threads().map(|t| (t / WARP, (address(t), width))).collect();
        self.count_warps(buf, access, &accesses);
    }

    /// Counts accesses of threads by warp: the number of the warp, the first byte in the buffer, the number of bytes.
    fn count_warps(&mut self, buf: Buf, access: BufferTraffic, accesses: &[(usize, (u64, u64))]) {
        let shared = self.kernel.buf(buf).space == MemorySpace::Shared;
        let base = self.shared[buf.0 as usize].base;
        for warp in accesses.chunk_by(|a, b| a.0 == b.0) {
            let places: Vec<(u64, u64)> = warp.iter().map(|(_, (first, bytes))| (base + first, *bytes)).collect();
            match shared {
                true => self.counts.shared((buf, access), &places),
                false => self.counts.global((buf, access), &places),
            }
        }
    }
}
