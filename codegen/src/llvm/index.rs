//! Index expressions as i64 values. LLVM moves them out of loops; what it cannot know is that a dividend is
//! not negative, which the intervals of variables say.

use inkwell::values::{InstructionOpcode as Op, IntValue, PointerValue};
use tensorc_ir::diag::Result;
use tensorc_ir::index::{Atom, Index};
use tensorc_ir::kir::Buf;

use super::ir::{Value, internal};
use super::kernel::{Bind, Gen};
use super::memory::Storage;

/// The greatest common divisor; of 0 and `n` it is `n`.
pub(super) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl<'c> Gen<'c, '_, '_> {
    /// Replaces variables that are constants or index expressions.
    pub(super) fn resolve(&self, index: &Index) -> Index {
        let mut stands = false;
        index.visit_vars(&mut |v| stands |= matches!(self.vars[v as usize], Bind::Const(_) | Bind::Index(_)));
        if !stands {
            return index.clone();
        }
        let with = |v: u32| match &self.vars[v as usize] {
            Bind::Const(c) => Index::constant(c.as_i64()),
            Bind::Index(index) => index.clone(),
            _ => Index::var(v),
        };
        index.substitute(&with, &|v: u32| self.ranges[v as usize])
    }

    /// What the value of a resolved index is certainly a multiple of, in the first lane of a vector loop; 0 for the
    /// index 0.
    pub(super) fn multiple(&self, index: &Index) -> u64 {
        let terms =
            index.terms.iter().map(|(atom, factor)| self.multiple_of_atom(atom).saturating_mul(factor.unsigned_abs()));
        terms.fold(index.constant.unsigned_abs(), gcd)
    }

    fn multiple_of_atom(&self, atom: &Atom) -> u64 {
        match atom {
            Atom::Var(v) => match (&self.vars[*v as usize], &self.lanes) {
                (Bind::Lane, Some(lanes)) => self.multiple(&lanes.lo),
                (Bind::Lanes(_), _) => 1,
                _ => self.multiples[*v as usize],
            },
            Atom::Div(x, d) => {
                let whole = self.multiple(x);
                if whole.is_multiple_of(d.unsigned_abs()) { whole / d.unsigned_abs() } else { 1 }
            }
            Atom::Mod(x, d) => gcd(self.multiple(x), d.unsigned_abs()),
            Atom::Min(a, b) | Atom::Max(a, b) => gcd(self.multiple(a), self.multiple(b)),
        }
    }

    /// Whether the resolved index differs by lane.
    pub(super) fn varies(&self, index: &Index) -> bool {
        let mut varies = false;
        index.visit_vars(&mut |v| varies |= matches!(self.vars[v as usize], Bind::Lane | Bind::Lanes(_)));
        varies
    }

    /// The distance, in elements, between what neighbouring lanes access, if it is fixed.
    pub(super) fn lane_stride(&self, index: &Index) -> Option<i64> {
        let current = self.lanes.as_ref()?;
        let mut other = false;
        index.visit_vars(&mut |v| other |= matches!(self.vars[v as usize], Bind::Lanes(_)));
        if other { None } else { index.coefficient(current.var) }
    }

    /// The value of a resolved index: a vector if it differs by lane.
    pub(super) fn index_value(&mut self, index: &Index) -> Result<Value<'c>> {
        match self.lane_stride(index) {
            Some(stride) if stride != 0 => {
                let first = self.index_at(index, Some(0))?;
                let lanes = self.lane_count()?;
                let steps: Vec<Value<'c>> =
                    (0..i64::from(lanes)).map(|l| self.ir.i64(l.wrapping_mul(stride)).into()).collect();
                let first = self.ir.splat(first, lanes)?;
                self.ir.add(first, super::ir::constant_vector(&steps).into())
            }
            _ => self.index_at(index, None),
        }
    }

    /// The value of a resolved index, in one lane or in all.
    pub(super) fn index_at(&mut self, index: &Index, lane: Option<u32>) -> Result<Value<'c>> {
        let mut sum: Option<Value<'c>> = None;
        for (atom, factor) in &index.terms {
            let value = self.atom(atom, lane)?;
            let term = if *factor == 1 { value } else { self.ir.mul(value, self.constant_like(value, *factor)?)? };
            sum = Some(match sum {
                None => term,
                Some(sum) => self.two(sum, term, |g, a, b| g.ir.add(a, b))?,
            });
        }
        match sum {
            None => Ok(self.ir.i64(index.constant).into()),
            Some(sum) if index.constant == 0 => Ok(sum),
            Some(sum) => self.ir.add(sum, self.constant_like(sum, index.constant)?),
        }
    }

    fn constant_like(&self, v: Value<'c>, c: i64) -> Result<Value<'c>> {
        self.ir.bits_like(v, c as u64)
    }

    /// An operation on values of which one may be a vector.
    fn two(
        &self,
        a: Value<'c>,
        b: Value<'c>,
        f: impl FnOnce(&Self, Value<'c>, Value<'c>) -> Result<Value<'c>>,
    ) -> Result<Value<'c>> {
        if a.is_vector_value() == b.is_vector_value() {
            return f(self, a, b);
        }
        let lanes = self.lane_count()?;
        f(self, self.ir.splat(a, lanes)?, self.ir.splat(b, lanes)?)
    }

    fn variable(&mut self, v: u32, lane: Option<u32>) -> Result<Value<'c>> {
        match (self.vars[v as usize].clone(), lane) {
            (Bind::Uniform(value), _) | (Bind::Lanes(value), None) => Ok(value),
            (Bind::Lanes(value), Some(lane)) => self.ir.extract(value, lane as usize),
            (Bind::Lane, None) => self.index_value(&Index::var(v)),
            (Bind::Lane, Some(lane)) => {
                let lo = self.lanes.as_ref().map(|l| l.lo.offset(i64::from(lane)));
                self.index_at(&lo.ok_or_else(|| internal("a lane outside of its loop"))?, None)
            }
            (Bind::Const(c), _) => Ok(self.ir.i64(c.as_i64()).into()),
            (Bind::Index(index), lane) => self.index_at(&index, lane),
            (Bind::Unset, _) => Err(internal(format!("index variable {v} is not bound"))),
        }
    }

    fn atom(&mut self, atom: &Atom, lane: Option<u32>) -> Result<Value<'c>> {
        match atom {
            Atom::Var(v) => self.variable(*v, lane),
            Atom::Div(x, d) => {
                let value = self.index_at(x, lane)?;
                self.divide(value, x, *d)
            }
            Atom::Mod(x, d) if *d > 0 && d & (d - 1) == 0 => {
                let value = self.index_at(x, lane)?;
                self.ir.and_bits(value, *d as u64 - 1)
            }
            Atom::Mod(x, d) => {
                let value = self.index_at(x, lane)?;
                let quotient = self.divide(value, x, *d)?;
                let multiple = self.ir.mul(quotient, self.constant_like(quotient, *d)?)?;
                self.ir.sub(value, multiple)
            }
            Atom::Min(a, b) | Atom::Max(a, b) => {
                let name = if matches!(atom, Atom::Min(..)) { "llvm.smin" } else { "llvm.smax" };
                let (a, b) = (self.index_at(a, lane)?, self.index_at(b, lane)?);
                self.two(a, b, |g, a, b| g.ir.intrinsic(name, &[a.get_type()], &[a, b]))
            }
        }
    }

    /// Floor division of the value of `x` by a positive constant.
    fn divide(&self, value: Value<'c>, x: &Index, d: i64) -> Result<Value<'c>> {
        if d & (d - 1) == 0 {
            return self.ir.shift(Op::AShr, value, d.trailing_zeros());
        }
        let (lo, hi) = self.interval(x);
        let by = |v: Value<'c>| self.constant_like(v, d);
        if lo >= 0 && hi <= i64::from(u32::MAX) && d <= i64::from(u32::MAX) {
            let narrow = self.ir.cast(Op::Trunc, value, self.ir.ints_like(value, 32)?)?;
            let quotient = self.ir.binary(Op::UDiv, narrow, by(narrow)?)?;
            return self.ir.cast(Op::ZExt, quotient, value.get_type());
        }
        let truncated = self.ir.binary(if lo >= 0 { Op::UDiv } else { Op::SDiv }, value, by(value)?)?;
        if lo >= 0 {
            return Ok(truncated);
        }
        let rest = self.ir.sub(value, self.ir.mul(truncated, by(value)?)?)?;
        self.ir.add(truncated, self.ir.shift(Op::AShr, rest, 63)?)
    }

    /// The address of an element in memory, in one lane or in all.
    pub(super) fn address(&mut self, buf: Buf, index: &Index, lane: Option<u32>) -> Result<PointerValue<'c>> {
        let Storage::Memory(base) = self.storage[buf.0 as usize] else { return Err(self.not_live(buf)) };
        let at = self.scalar_index(index, lane)?;
        self.ir.element(self.ir.memory_type(self.kernel.buf(buf).dtype), base, at)
    }

    pub(super) fn scalar_index(&mut self, index: &Index, lane: Option<u32>) -> Result<IntValue<'c>> {
        match self.index_at(index, lane)? {
            Value::IntValue(at) => Ok(at),
            _ => Err(internal("an address that differs by lane")),
        }
    }
}
