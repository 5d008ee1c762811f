//! Index expressions: substitution of what is known, and emission at the outermost loop whose
//! variables they use.
//!
//! An affine sum is added up from the outermost variable to the innermost, so that every prefix is
//! computed before the loop it does not depend on. Equal computations of one scope are shared.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use smallvec::{SmallVec, smallvec};
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::{Atom, Index};
use tensorc_ir::kir::Buf;

use super::kernel::{Bind, Gen, internal};

/// One instruction of index arithmetic, on i64 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum IndexOp {
    Const(i64),
    Add(Value, Value),
    Sub(Value, Value),
    AddConst(Value, i64),
    Scale(Value, i64),
    ShiftRight(Value, u32),
    Mask(Value, i64),
    Divide(Value, i64),
    Min(Value, Value),
    Max(Value, Value),
}

fn instruction<'f>(ins: impl InstBuilder<'f>, op: IndexOp) -> Value {
    match op {
        IndexOp::Const(c) => ins.iconst(types::I64, c),
        IndexOp::Add(a, b) => ins.iadd(a, b),
        IndexOp::Sub(a, b) => ins.isub(a, b),
        IndexOp::AddConst(a, c) => ins.iadd_imm_s(a, c),
        IndexOp::Scale(a, c) if c > 0 && c & (c - 1) == 0 => ins.ishl_imm_u(a, i64::from(c.trailing_zeros())),
        IndexOp::Scale(a, c) => ins.imul_imm_s(a, c),
        IndexOp::ShiftRight(a, c) => ins.sshr_imm_u(a, i64::from(c)),
        IndexOp::Mask(a, c) => ins.band_imm_s(a, c),
        IndexOp::Divide(a, c) => ins.sdiv_imm_s(a, c),
        IndexOp::Min(a, b) => ins.smin(a, b),
        IndexOp::Max(a, b) => ins.smax(a, b),
    }
}

/// A value and the depth of nesting it belongs to.
type Placed = (Value, usize);

impl Gen<'_, '_> {
    /// Replaces variables that are constants or index expressions.
    pub(super) fn resolve(&self, index: &Index) -> Index {
        let mut out = Index::constant(index.constant);
        for (atom, c) in &index.terms {
            out = out.add(&self.resolve_atom(atom).scale(*c));
        }
        out
    }

    fn resolve_atom(&self, atom: &Atom) -> Index {
        let two = |a: &Index, b: &Index| (self.resolve(a), self.resolve(b));
        let atom = match atom {
            Atom::Var(v) => match &self.vars[*v as usize] {
                Bind::Const(c) => return Index::constant(c.as_i64()),
                Bind::Index(index) => return index.clone(),
                _ => Atom::Var(*v),
            },
            Atom::Div(x, d) => {
                let x = self.resolve(x);
                if let Some(c) = x.as_constant() {
                    return Index::constant(c.div_euclid(*d));
                }
                Atom::Div(Box::new(x), *d)
            }
            Atom::Mod(x, d) => {
                let x = self.resolve(x);
                if let Some(c) = x.as_constant() {
                    return Index::constant(c.rem_euclid(*d));
                }
                Atom::Mod(Box::new(x), *d)
            }
            Atom::Min(a, b) => match two(a, b) {
                (a, b) if a.as_constant().is_some() && b.as_constant().is_some() => {
                    return Index::constant(a.constant.min(b.constant));
                }
                (a, b) => Atom::Min(Box::new(a), Box::new(b)),
            },
            Atom::Max(a, b) => match two(a, b) {
                (a, b) if a.as_constant().is_some() && b.as_constant().is_some() => {
                    return Index::constant(a.constant.max(b.constant));
                }
                (a, b) => Atom::Max(Box::new(a), Box::new(b)),
            },
        };
        Index { terms: smallvec![(atom, 1)], constant: 0 }
    }

    /// Whether the resolved index differs by lane.
    pub(super) fn varies(&self, index: &Index) -> bool {
        let mut varies = false;
        index.visit_vars(&mut |v| varies |= matches!(self.vars[v as usize], Bind::Lane | Bind::Lanes(_)));
        varies
    }

    /// The index in lane `lane` of the current vector loop.
    pub(super) fn at_lane(&mut self, index: &Index, lane: usize) -> Result<Index> {
        let Some(current) = self.lanes.clone() else { return Ok(index.clone()) };
        let mut varying: SmallVec<[u32; 4]> = smallvec![];
        index.visit_vars(&mut |v| {
            if matches!(self.vars[v as usize], Bind::Lanes(_)) && !varying.contains(&v) {
                varying.push(v);
            }
        });
        let mut with: SmallVec<[(u32, Index); 4]> = smallvec![(current.var, current.lo.offset(lane as i64))];
        for v in varying {
            let Bind::Lanes(chunks) = self.vars[v as usize].clone() else { continue };
            let value = self.extract(DType::I64, &chunks, lane);
            let fresh = self.vars.len() as u32;
            self.vars.push(self.uniform(value));
            self.ranges.push(self.ranges[v as usize]);
            with.push((v, Index::var(fresh)));
        }
        let find = |v: u32| with.iter().find(|(w, _)| *w == v).map_or_else(|| Index::var(v), |(_, i)| i.clone());
        let ranges = |v: u32| self.ranges.get(v as usize).copied().unwrap_or((i64::MIN / 4, i64::MAX / 4));
        Ok(index.substitute(&find, &ranges))
    }

    /// Emits one operation at the depth `level`, or finds it there.
    fn place(&mut self, op: IndexOp, level: usize) -> Value {
        if let Some(v) = self.scopes[level].known.get(&op) {
            return *v;
        }
        let value = match self.hoist_point(level) {
            Some(inst) => instruction(FuncCursor::new(self.b.func).at_inst(inst).ins(), op),
            None => instruction(self.b.ins(), op),
        };
        self.scopes[level].known.insert(op, value);
        value
    }

    /// The value of a resolved index that does not differ by lane.
    pub(super) fn index_value(&mut self, index: &Index) -> Result<Placed> {
        if let Some(c) = index.as_constant() {
            let level = self.depth();
            return Ok((self.place(IndexOp::Const(c), level), level));
        }
        let (sum, level) = self.sum(None, &index.terms, 1)?;
        match index.constant {
            0 => Ok((sum, level)),
            c => Ok((self.place(IndexOp::AddConst(sum, c), level), level)),
        }
    }

    /// `base + Σ scale·terms`, hoisted prefix by prefix.
    fn sum(&mut self, base: Option<Value>, terms: &[(Atom, i64)], scale: i64) -> Result<Placed> {
        let mut parts: SmallVec<[(usize, Value, i64); 4]> = smallvec![];
        for (atom, c) in terms {
            let (value, level) = self.atom(atom)?;
            parts.push((level, value, c.wrapping_mul(scale)));
        }
        parts.sort_by_key(|(level, _, _)| *level);
        let mut total: Option<Placed> = base.map(|b| (b, 0));
        for (level, value, c) in parts {
            let term = match c {
                1 => value,
                c => self.place(IndexOp::Scale(value, c), level),
            };
            total = Some(match total {
                None => (term, level),
                Some((sum, _)) => (self.place(IndexOp::Add(sum, term), level), level),
            });
        }
        total.ok_or_else(|| internal("an empty index sum"))
    }

    fn atom(&mut self, atom: &Atom) -> Result<Placed> {
        match atom {
            Atom::Var(v) => match &self.vars[*v as usize] {
                Bind::Uniform(value, level) => Ok((*value, *level)),
                other => Err(internal(format!("index variable {v} is {other:?}"))),
            },
            Atom::Div(x, d) => self.divide(x, *d),
            Atom::Mod(x, d) if *d > 0 && d & (d - 1) == 0 => {
                let (value, level) = self.index_value(x)?;
                Ok((self.place(IndexOp::Mask(value, d - 1), level), level))
            }
            Atom::Mod(x, d) => {
                let (value, level) = self.index_value(x)?;
                let (quotient, _) = self.divide(x, *d)?;
                let multiple = self.place(IndexOp::Scale(quotient, *d), level);
                Ok((self.place(IndexOp::Sub(value, multiple), level), level))
            }
            Atom::Min(a, b) | Atom::Max(a, b) => {
                let ((a, la), (b, lb)) = (self.index_value(a)?, self.index_value(b)?);
                let level = la.max(lb);
                let op = if matches!(atom, Atom::Min(..)) { IndexOp::Min(a, b) } else { IndexOp::Max(a, b) };
                Ok((self.place(op, level), level))
            }
        }
    }

    /// Floor division by a positive constant. Values known to lie in `0..2³¹` are multiplied by the
    /// rounded-up reciprocal (Granlund and Montgomery 1994, theorem 4.2 with N = 31).
    fn divide(&mut self, x: &Index, d: i64) -> Result<Placed> {
        let (lo, hi) = x.interval(&|v: u32| self.ranges[v as usize]);
        let (value, level) = self.index_value(x)?;
        if d & (d - 1) == 0 {
            return Ok((self.place(IndexOp::ShiftRight(value, d.trailing_zeros()), level), level));
        }
        if lo >= 0 && hi < 1 << 31 && d < 1 << 31 {
            let shift = 31 + (64 - (d - 1).leading_zeros());
            let reciprocal = ((1i128 << shift) + i128::from(d) - 1) / i128::from(d);
            let product = self.place(IndexOp::Scale(value, reciprocal as i64), level);
            return Ok((self.place(IndexOp::ShiftRight(product, shift), level), level));
        }
        let truncated = self.place(IndexOp::Divide(value, d), level);
        if lo >= 0 {
            return Ok((truncated, level));
        }
        let multiple = self.place(IndexOp::Scale(truncated, d), level);
        let rest = self.place(IndexOp::Sub(value, multiple), level);
        let borrow = self.place(IndexOp::ShiftRight(rest, 63), level);
        Ok((self.place(IndexOp::Add(truncated, borrow), level), level))
    }

    /// The address of an element as a value and a constant byte offset.
    pub(super) fn address(&mut self, base: Value, buf: Buf, index: &Index) -> Result<(Value, i32)> {
        let size = self.buf_dtype(buf).size() as i64;
        let (mut address, level) =
            if index.terms.is_empty() { (base, 0) } else { self.sum(Some(base), &index.terms, size)? };
        let offset = index.constant.wrapping_mul(size);
        // Room for the chunks of a vector access behind the element.
        if let Ok(offset) = i32::try_from(offset)
            && offset < i32::MAX - 4096
        {
            return Ok((address, offset));
        }
        address = self.place(IndexOp::AddConst(address, offset), level);
        Ok((address, 0))
    }

    /// The index as one i64 per lane.
    pub(super) fn index_lanes(&mut self, index: &Index) -> Result<super::kernel::Chunks> {
        let Some(current) = self.lanes.clone() else { return Err(internal("lanes outside of a vector loop")) };
        let only_lane = {
            let mut only = true;
            index.visit_vars(&mut |v| only &= !matches!(self.vars[v as usize], Bind::Lanes(_)));
            only
        };
        if let (Some(k), true) = (index.coefficient(current.var), only_lane) {
            let first = self.at_lane(index, 0)?;
            let (first, _) = self.index_value(&first)?;
            let first = self.b.ins().splat(types::I64X2, first);
            let mut chunks = super::kernel::Chunks::new();
            for lane in (0..current.lanes as i64).step_by(2) {
                let data = [lane * k, (lane + 1) * k].iter().flat_map(|x| x.to_le_bytes()).collect();
                let step = self.vector_const(types::I64X2, data);
                chunks.push(self.b.ins().iadd(first, step));
            }
            return Ok(chunks);
        }
        let mut values = Vec::with_capacity(current.lanes);
        for lane in 0..current.lanes {
            let index = self.at_lane(index, lane)?;
            values.push(self.index_value(&index)?.0);
        }
        Ok(self.assemble(DType::I64, &values))
    }

    /// A constant index, if the resolved index is one in the given lane.
    pub(super) fn constant_at(&mut self, index: &Index, lane: usize) -> Result<Option<i64>> {
        Ok(self.at_lane(index, lane)?.as_constant())
    }
}
