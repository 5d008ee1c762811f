//! From statements of a kernel to a [`VectorLoop`]: what a loop over vectors reads, computes and writes, if it is
//! straight-line code whose accesses lie at fixed distances.

use std::collections::HashMap;

use smallvec::SmallVec;
use tensorc_abi::DType;
use tensorc_ir::Extent;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, LoopKind, MemorySpace, Operand, Stmt, Var};
use tensorc_ir::scalar::{Scalar, ScalarOp};
use tensorc_schedule::target::VectorLevel;

use super::{
    Accumulator, Count, InnerLoop, Instruction, LoopForm, Offset, Op, Place, Pointer, UniformValue, ValueId,
    VectorLoop, fold, reduce, rows, tail,
};

/// Instructions of a loop beyond which nothing is gained.
const MAX_INSTRUCTIONS: usize = 2048;

/// Instructions of a single iteration, for all lanes together, that are too few for a call.
const FEW_ALONE: i64 = 256;

/// The counter of a loop that has none.
const NO_COUNTER: Var = Var(u32::MAX);

/// What a variable of the loop is.
enum Known {
    Value(ValueId),
    Index(Index),
}

/// The forms of the loop that begins with a statement of a block, the best one first.
pub(crate) fn find(kernel: &Kernel, block: &[Stmt], level: VectorLevel) -> Vec<VectorLoop> {
    if let Some(rows) = block.first().and_then(|stmt| rows::rows(kernel, stmt, level)) {
        return vec![rows];
    }
    if let Some(reduction) = reduce::reduction(kernel, block, level) {
        return vec![reduction];
    }
    let first = block.first().and_then(|stmt| vectors(kernel, stmt).or_else(|| independent(kernel, stmt)));
    let Some(first) = first else { return vec![] };
    let merged = tail::with_rest(kernel, &first, &block[1..]);
    merged.into_iter().chain([first]).collect()
}

/// A serial loop over elements of which none needs what is computed for another.
fn independent(kernel: &Kernel, stmt: &Stmt) -> Option<VectorLoop> {
    let Stmt::For { step: 1, .. } = stmt else { return None };
    let l = elements(kernel, stmt).filter(|l| l.form == LoopForm::Elements)?;
    let place = |op: &Op| match op {
        Op::Load { place, .. } | Op::LoadHalf { place, .. } | Op::Store { place, .. } | Op::StoreHalf { place, .. } => {
            Some(*place)
        }
        _ => None,
    };
    let accessed = || l.code.iter().filter_map(|i| Some((place(&i.op)?, i.op.acts())));
    let buf = |p: &Place| l.pointers[p.pointer as usize].buf;
    let written = |p: &Place| accessed().any(|(q, acts)| acts && buf(&q) == buf(p));
    // An element of a buffer that is written is accessed in one iteration alone.
    let alone = |p: &Place| p.moving.is_none() && accessed().all(|(q, _)| buf(&q) != buf(p) || q == *p);
    let all = accessed().all(|(p, _)| !written(&p) || alone(&p));
    all.then_some(VectorLoop { form: LoopForm::ElementsTo, ..l })
}

/// A serial loop around one over lanes, or the latter alone.
pub(super) fn vectors(kernel: &Kernel, stmt: &Stmt) -> Option<VectorLoop> {
    let Stmt::For { var, lo, hi, step, kind, body } = stmt else { return None };
    if *kind == LoopKind::Vector {
        let few = |l: &VectorLoop| (l.code.len() as i64) * i64::from(l.lanes) < FEW_ALONE;
        return lone(kernel, stmt).filter(|l| !few(l));
    }
    if *kind != LoopKind::Serial {
        return None;
    }
    let inner = body.iter().position(|s| matches!(s, Stmt::For { .. }))?;
    let Stmt::For { var: lane, lo: first, hi: lanes, step: 1, kind: LoopKind::Vector, body: vector } = &body[inner]
    else {
        return None;
    };
    let lanes = lane_count(first, lanes).filter(|_| inner + 1 == body.len())?;
    let mut finder = Finder::new(kernel, stmt, (*var, lo), Some(*lane));
    body[..inner].iter().chain(vector).try_for_each(|s| finder.stmt(s))?;
    finder.finish((hi, *step), lanes as u32)
}

/// A loop over lanes as the only iteration of a loop.
pub(super) fn lone(kernel: &Kernel, stmt: &Stmt) -> Option<VectorLoop> {
    let Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Vector, body } = stmt else { return None };
    let lanes = lane_count(lo, hi)?;
    let mut finder = Finder::new(kernel, stmt, (NO_COUNTER, lo), Some(*var));
    body.iter().try_for_each(|s| finder.stmt(s))?;
    finder.finish((&Index::constant(1), 1), lanes as u32)
}

/// How many lanes a loop over them has, if there is a form for so many.
fn lane_count(lo: &Index, hi: &Index) -> Option<i64> {
    hi.as_constant().filter(|n| lo.as_constant() == Some(0) && (4..=64).contains(n) && n.count_ones() == 1)
}

/// A serial loop over elements, as if all of them were lanes.
pub(super) fn elements(kernel: &Kernel, stmt: &Stmt) -> Option<VectorLoop> {
    match stmt {
        Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Serial, body } => {
            let mut finder = Finder::new(kernel, stmt, (*var, lo), None);
            finder.by_element = true;
            body.iter().try_for_each(|s| finder.stmt(s))?;
            finder.finish((hi, 1), 1)
        }
        _ => vectors(kernel, stmt),
    }
}

struct Finder<'k> {
    kernel: &'k Kernel,
    counter: u32,
    /// The first value of the counter, from which pointers and positions count.
    lo: &'k Index,
    lane: Option<u32>,
    /// Each iteration is a lane.
    by_element: bool,
    known: HashMap<u32, Known>,
    code: Vec<Instruction>,
    pointers: Vec<Pointer>,
    uniforms: Vec<UniformValue>,
    accumulators: Vec<Accumulator>,
    /// Whether every access moves as far from one iteration to the next as from one lane to the next.
    regular: bool,
    loops: Vec<InnerLoop>,
    offsets: Vec<Offset>,
    /// Inner loops around the current statement: their variables, and the values that these begin with.
    open: Vec<(u32, Index, u32)>,
    /// The statements of the loop.
    statement: &'k Stmt,
}

/// An index as a sum: multiples of the counter of the loop and of the lane, and the rest.
struct Linear {
    per_count: i64,
    per_lane: i64,
    /// By inner loop.
    inner: SmallVec<[(u32, i64); 2]>,
    rest: Index,
}

pub(super) fn unbounded(_: u32) -> (i64, i64) {
    (i64::MIN / 4, i64::MAX / 4)
}

impl<'k> Finder<'k> {
    fn new(kernel: &'k Kernel, statement: &'k Stmt, (counter, lo): (Var, &'k Index), lane: Option<Var>) -> Finder<'k> {
        Finder {
            kernel,
            statement,
            loops: vec![],
            offsets: vec![],
            open: vec![],
            counter: counter.0,
            lo,
            lane: lane.map(|l| l.0),
            by_element: false,
            known: HashMap::new(),
            code: vec![],
            pointers: vec![],
            uniforms: vec![],
            accumulators: vec![],
            regular: true,
        }
    }

    fn push(&mut self, op: Op, dtype: DType) -> ValueId {
        self.code.push(Instruction { op, dtype });
        self.code.len() as ValueId - 1
    }

    /// An instruction whose result is the same wherever it stands, once.
    fn once(&mut self, op: Op, dtype: DType) -> ValueId {
        let same = self.code.iter().position(|i| i.op == op && i.dtype == dtype);
        same.map_or_else(|| self.push(op, dtype), |at| at as ValueId)
    }

    /// The index in variables from outside, the counter and the lane.
    fn resolve(&self, index: &Index) -> Option<Index> {
        let mut inside = false;
        let mut computed = false;
        index.visit_vars(&mut |v| match self.known.get(&v) {
            Some(Known::Index(_)) => inside = true,
            Some(Known::Value(_)) => computed = true,
            None => {}
        });
        match (computed, inside) {
            (true, _) => None,
            (_, false) => Some(index.clone()),
            _ => {
                let with = |v: u32| match self.known.get(&v) {
                    Some(Known::Index(index)) => index.clone(),
                    _ => Index::var(v),
                };
                Some(index.substitute(&with, &unbounded))
            }
        }
    }

    fn linear(&self, index: &Index) -> Option<Linear> {
        let index = self.resolve(index)?;
        let per_count = index.coefficient(self.counter)?.known()?;
        let per_lane = match self.lane {
            Some(lane) => index.coefficient(lane)?.known()?,
            None => 0,
        };
        let mut rest = index.sub(&Index::var(self.counter).scale(per_count));
        if let Some(lane) = self.lane {
            rest = rest.sub(&Index::var(lane).scale(per_lane));
        }
        let mut inner = SmallVec::new();
        for (var, from, number) in &self.open {
            let factor = rest.coefficient(*var)?.known()?;
            rest = rest.sub(&Index::var(*var).scale(factor)).add(&from.scale(factor));
            if factor != 0 {
                inner.push((*number, factor));
            }
        }
        // Each iteration is a lane.
        let per_lane = if self.by_element { per_count } else { per_lane };
        Some(Linear { per_count, per_lane, inner, rest })
    }

    fn stmt(&mut self, stmt: &Stmt) -> Option<()> {
        if self.code.len() > MAX_INSTRUCTIONS {
            return None;
        }
        match stmt {
            Stmt::LetIndex { var, index } => {
                let index = self.resolve(index)?;
                self.known.insert(var.0, Known::Index(index));
            }
            Stmt::Let { var, op, args } => {
                let args: SmallVec<[ValueId; 3]> = args.iter().map(|a| self.operand(*a)).collect::<Option<_>>()?;
                let value = self.apply(*op, args, self.kernel.var(*var).dtype);
                self.known.insert(var.0, Known::Value(value));
            }
            Stmt::Load { var, buf, index, guard } => {
                let value = self.load(*buf, index, guard)?;
                self.known.insert(var.0, Known::Value(value));
            }
            Stmt::Store { buf, index, value } => {
                let value = self.operand(*value)?;
                self.store(*buf, index, value)?;
            }
            Stmt::For { var, lo, hi, step, kind: LoopKind::Unroll, body } => {
                let (mut at, hi) = (lo.as_constant()?, hi.as_constant()?);
                while at < hi {
                    self.known.insert(var.0, Known::Index(Index::constant(at)));
                    body.iter().try_for_each(|s| self.stmt(s))?;
                    at += (*step).max(1);
                }
            }
            Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Serial, body } => {
                self.inner_loop(*var, (lo, hi), body)?
            }
            _ => return None,
        }
        Some(())
    }

    fn apply(&mut self, op: ScalarOp, mut args: SmallVec<[ValueId; 3]>, dtype: DType) -> ValueId {
        let half = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16);
        if let ScalarOp::Cast(to) = op {
            // By way of f32, which holds every number of the other type.
            let from = self.code[args[0] as usize].dtype;
            let exact = from.size() < 4 && !half(from) && half(to);
            if exact || half(from) && !matches!(to, DType::F32 | DType::Bool) && from != to {
                args[0] = self.push(Op::Apply(ScalarOp::Cast(DType::F32), args.clone()), DType::F32);
            }
        }
        self.push(Op::Apply(op, args), dtype)
    }

    fn inner_loop(&mut self, var: Var, (lo, hi): (&Index, &Index), body: &[Stmt]) -> Option<()> {
        let lo = self.fixed(lo)?;
        let count = self.fixed(hi)?.sub(&lo);
        let count = match count.as_extent().and_then(Extent::known) {
            Some(n) if n <= 0 => return Some(()),
            Some(n) => Count::Known(n),
            None => Count::Uniform(self.uniform(UniformValue::Index(count))),
        };
        let number = self.loops.len() as u32;
        self.loops.push(InnerLoop { count, depth: self.open.len() });
        self.open.push((var.0, lo, number));
        self.push(Op::Begin(number), DType::Bool);
        body.iter().try_for_each(|s| self.stmt(s))?;
        self.push(Op::End(number), DType::Bool);
        self.open.pop();
        Some(())
    }

    /// An index that is the same in all iterations.
    fn fixed(&self, index: &Index) -> Option<Index> {
        let Linear { per_count, per_lane, inner, rest } = self.linear(index)?;
        (per_count == 0 && per_lane == 0 && inner.is_empty()).then_some(rest)
    }

    fn operand(&mut self, operand: Operand) -> Option<ValueId> {
        let var = match operand {
            Operand::Const(c) => return Some(self.once(Op::Const(c), c.dtype)),
            Operand::Var(v) => v,
        };
        let dtype = self.kernel.var(var).dtype;
        match self.known.get(&var.0) {
            Some(Known::Value(v)) => return Some(*v),
            Some(Known::Index(_)) => {}
            None if var.0 == self.counter || Some(var.0) == self.lane => {}
            None if self.open.iter().any(|(inner, ..)| *inner == var.0) => {}
            None => {
                let uniform = self.uniform(UniformValue::Operand(operand, dtype));
                return Some(self.once(Op::Uniform(uniform), dtype));
            }
        }
        let Linear { per_count, per_lane, inner, rest } = self.linear(&Index::var(var.0))?;
        let turns = match inner[..] {
            [] => None,
            [turns] => Some(turns),
            _ => return None,
        };
        let uniform = self.uniform(UniformValue::Index(rest.add(&self.lo.scale(per_count))));
        self.regular &= per_count == per_lane;
        // `finish` multiplies by the step of the loop.
        let op = Op::Positions { uniform, per_iteration: per_count, per_lane, ahead: 0, turns };
        // What is computed in an inner loop is not there behind it.
        Some(if self.open.is_empty() { self.once(op, DType::I64) } else { self.push(op, DType::I64) })
    }

    fn uniform(&mut self, value: UniformValue) -> u32 {
        let same = self.uniforms.iter().position(|u| *u == value);
        same.unwrap_or_else(|| {
            self.uniforms.push(value);
            self.uniforms.len() - 1
        }) as u32
    }

    /// Where an index of a buffer in memory leads.
    fn place(&mut self, buf: Buf, index: &Index) -> Option<Place> {
        let Linear { per_count, per_lane, inner, rest } = self.linear(index)?;
        if per_lane < 0 {
            return None;
        }
        let size = self.kernel.buf(buf).dtype.size() as i64;
        let moving = self.offset(inner.into_iter().map(|(number, factor)| (number, factor * size)).collect());
        self.regular &= per_count == per_lane;
        // `finish` multiplies by the step of the loop.
        let (start, advance) = (rest.add(&self.lo.scale(per_count)), per_count);
        let near = |p: &Pointer| {
            let alike = p.buf == buf && p.per_lane == per_lane && p.advance == advance;
            start.sub(&p.start).as_constant().filter(|d| alike && d.unsigned_abs() < 1 << 20)
        };
        let dtype = self.kernel.buf(buf).dtype;
        let found = self.pointers.iter().enumerate().find_map(|(i, p)| near(p).map(|offset| (i, offset)));
        let (pointer, offset) = found.unwrap_or_else(|| {
            self.pointers.push(Pointer { buf, start, bytes: size, per_lane, advance, per_row: 0 });
            (self.pointers.len() - 1, 0)
        });
        Some(Place { pointer: pointer as u32, offset, moving, dtype })
    }

    /// What grows by these bytes in inner loops.
    fn offset(&mut self, strides: SmallVec<[(u32, i64); 2]>) -> Option<u32> {
        if strides.is_empty() {
            return None;
        }
        // What is the same without the innermost loop is needed to begin that one.
        self.offset(strides[..strides.len() - 1].into());
        let offset = Offset { strides };
        let same = self.offsets.iter().position(|o| *o == offset);
        let same = same.unwrap_or_else(|| {
            self.offsets.push(offset);
            self.offsets.len() - 1
        });
        Some(same as u32)
    }

    /// The accumulators that an index of a register buffer means.
    fn accumulator(&mut self, buf: Buf, index: &Index) -> Option<u32> {
        let Linear { per_count, per_lane, inner, rest } = self.linear(index)?;
        let each = if self.by_element { per_lane == 0 } else { per_lane == 1 };
        let first = rest.as_constant().filter(|_| per_count == 0 && each && inner.is_empty())?;
        let local = only_here(self.kernel, self.statement, buf);
        // One element for all iterations is for one alone.
        if self.by_element && !local {
            return None;
        }
        let dtype = self.kernel.buf(buf).dtype;
        let found = Accumulator { buf, first, dtype, local, initial: None, needed: u32::MAX };
        let same = self.accumulators.iter().position(|a| *a == found);
        let same = same.unwrap_or_else(|| {
            self.accumulators.push(found);
            self.accumulators.len() - 1
        });
        Some(same as u32)
    }

    fn load(&mut self, buf: Buf, index: &Index, guard: &Option<(Operand, Scalar)>) -> Option<ValueId> {
        let dtype = self.kernel.buf(buf).dtype;
        let guard = match guard {
            Some((cond, fill)) => Some((self.operand(*cond)?, *fill)),
            None => None,
        };
        if self.kernel.buf(buf).space == MemorySpace::Register {
            let accumulator = self.accumulator(buf, index).filter(|_| guard.is_none())?;
            return Some(self.push(Op::Accumulator(accumulator), dtype));
        }
        if let Some(lookup) = self.lookup(buf, index).filter(|_| guard.is_none()) {
            return Some(self.push(lookup, dtype));
        }
        let place = self.place(buf, index)?;
        // One element, in lanes of which some do not read it, is another matter, and so is every second one.
        if guard.is_some() && self.pointers[place.pointer as usize].per_lane != 1 {
            return None;
        }
        Some(self.push(Op::Load { place, guard }, dtype))
    }

    /// An index of a table that is a byte.
    fn lookup(&mut self, buf: Buf, index: &Index) -> Option<Op> {
        let Some(Known::Value(v)) = self.known.get(&index.as_var()?) else { return None };
        let Op::Apply(ScalarOp::Cast(DType::I64), args) = &self.code[*v as usize].op else { return None };
        let (position, of) = (args[0], self.kernel.buf(buf));
        let table = of.len.known() == Some(1 << u8::BITS) && matches!(of.dtype, DType::U8 | DType::I8);
        if !table || self.code[position as usize].dtype != DType::U8 {
            return None;
        }
        let from = of.dtype;
        let place = self.place(buf, &Index::default())?;
        (place.offset == 0).then_some(Op::Lookup { pointer: place.pointer, from, position })
    }

    fn store(&mut self, buf: Buf, index: &Index, value: ValueId) -> Option<()> {
        let op = match self.kernel.buf(buf).space {
            MemorySpace::Register => Op::SetAccumulator(self.accumulator(buf, index)?, value),
            _ => {
                let place = self.place(buf, index)?;
                if self.pointers[place.pointer as usize].per_lane != 1 {
                    return None;
                }
                Op::Store { place, value }
            }
        };
        self.push(op, self.kernel.buf(buf).dtype);
        Some(())
    }

    /// Whether all accumulators are for one iteration each: written at its beginning, and nowhere else needed.
    fn all_local(&mut self) -> bool {
        for (i, a) in self.accumulators.iter_mut().enumerate() {
            let mut depth = 0;
            let first = self.code.iter().find_map(|instruction| match instruction.op {
                Op::Begin(_) => {
                    depth += 1;
                    None
                }
                Op::End(_) => {
                    depth -= 1;
                    None
                }
                Op::Accumulator(j) if j as usize == i => Some(false),
                Op::SetAccumulator(j, _) if j as usize == i => Some(depth == 0),
                _ => None,
            });
            a.local &= first == Some(true);
        }
        self.accumulators.iter().all(|a| a.local)
    }

    fn finish(mut self, (hi, step): (&Index, i64), lanes: u32) -> Option<VectorLoop> {
        let local = self.all_local();
        let mut code = fold::fold(self.code, &self.pointers);
        let regular = self.regular && local && step == i64::from(lanes);
        let form = if regular { LoopForm::Elements } else { LoopForm::Iterations };
        for i in &mut code {
            if let Op::Positions { per_iteration, .. } = &mut i.op {
                *per_iteration = per_iteration.checked_mul(step)?;
            }
        }
        for p in &mut self.pointers {
            p.advance = p.advance.checked_mul(step)?;
        }
        let overlap = |(i, a): (usize, &Accumulator)| {
            let meets = |b: &Accumulator| a.buf == b.buf && (a.first - b.first).abs() < i64::from(lanes);
            self.accumulators[..i].iter().any(meets)
        };
        if self.accumulators.iter().enumerate().any(overlap) {
            return None;
        }
        // Single elements have no accumulators of other iterations.
        if self.by_element && !local {
            return None;
        }
        let used = code.iter().any(|i| i.op.acts());
        used.then_some(VectorLoop {
            lo: self.lo.clone(),
            hi: hi.clone(),
            step,
            lanes,
            kernel_lanes: lanes,
            form,
            rows: None,
            pointers: self.pointers,
            uniforms: self.uniforms,
            accumulators: self.accumulators,
            loops: self.loops,
            offsets: self.offsets,
            code,
            joins: vec![],
            statements: 1,
        })
    }
}

/// Whether no other statement of a kernel accesses a buffer.
fn only_here(kernel: &Kernel, statement: &Stmt, buf: Buf) -> bool {
    accesses(&kernel.body, buf) == accesses(std::slice::from_ref(statement), buf)
}

pub(super) fn accesses(body: &[Stmt], buf: Buf) -> usize {
    let of = |stmt: &Stmt| match stmt {
        Stmt::Load { buf: b, .. } | Stmt::Store { buf: b, .. } | Stmt::VectorMath { buf: b, .. } => {
            usize::from(*b == buf)
        }
        Stmt::For { body, .. } => accesses(body, buf),
        Stmt::If { then, otherwise, .. } => accesses(then, buf) + accesses(otherwise, buf),
        _ => 0,
    };
    body.iter().map(of).sum()
}
