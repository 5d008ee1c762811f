//! Index expressions: substitution of what is known, and their values.

use smallvec::{SmallVec, smallvec};
use tensorc_abi::DType;
use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::index::{Atom, Index};
use tensorc_ir::kir::Buf;

use super::{Bind, KernelEmitter, KernelWalker, internal};

/// The least and the greatest value of an index.
pub(super) type Interval = (i64, i64);

/// One step of index arithmetic on i64 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum IndexOp<V> {
    Const(i64),
    Add(V, V),
    /// What is left of a value when the greatest multiple of a divisor in it is taken away.
    Rest(V, V),
    AddConst(V, i64),
    Scale(V, i64),
    /// Keeps the sign.
    ShiftRight(V, u32),
    Mask(V, i64),
    /// The quotient of a value in the interval and a positive constant, rounded toward zero.
    Divide(V, i64, Interval),
    Min(V, V),
    Max(V, V),
}

/// The values of the atoms of an index with their factors, the outermost first: every prefix of their sum can be computed
/// before the loop it does not depend on.
type ScaledAtoms<V> = SmallVec<[(V, i64); 4]>;

/// The greatest common divisor; of 0 and `n` it is `n`.
pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// `start + scale·Σ factor·value + constant`.
pub(crate) fn sum<C: KernelEmitter>(
    code: &mut C,
    start: Option<C::Value>,
    parts: &[(C::Value, i64)],
    scale: i64,
    constant: i64,
) -> Result<C::Value> {
    let mut total = start;
    for (value, factor) in parts {
        let term = match factor.wrapping_mul(scale) {
            1 => *value,
            c => code.index(IndexOp::Scale(*value, c))?,
        };
        total = Some(match total {
            None => term,
            Some(sum) => code.index(IndexOp::Add(sum, term))?,
        });
    }
    match (total, constant) {
        (None, c) => code.index(IndexOp::Const(c)),
        (Some(sum), 0) => Ok(sum),
        (Some(sum), c) => code.index(IndexOp::AddConst(sum, c)),
    }
}

impl<C: KernelEmitter> KernelWalker<'_, C> {
    fn bound(&self, v: u32) -> &Bind<C> {
        &self.vars[v as usize]
    }

    /// Replaces variables that are constants or index expressions.
    pub fn resolve(&self, index: &Index) -> Index {
        let mut stands = false;
        index.visit_vars(&mut |v| stands |= matches!(self.bound(v), Bind::Const(_) | Bind::Index(_)));
        if !stands {
            return index.clone();
        }
        let with = |v: u32| match self.bound(v) {
            Bind::Const(c) => Index::constant(c.as_i64()),
            Bind::Index(index) => index.clone(),
            _ => Index::var(v),
        };
        index.substitute(&with, &|v: u32| self.ranges[v as usize])
    }

    pub(super) fn interval(&self, index: &Index) -> Interval {
        let (lo, hi) = index.interval(&|v: u32| self.ranges[v as usize]);
        (lo.fixed(), hi.fixed())
    }

    /// What the value of a resolved index is certainly a multiple of, in the first lane of a vector loop; 0 for the
    /// index 0.
    pub(super) fn multiple(&self, index: &Index) -> u64 {
        let of =
            |(atom, factor): &(Atom, Extent)| self.multiple_of_atom(atom).saturating_mul(factor.fixed().unsigned_abs());
        index.terms.iter().map(of).fold(index.constant.fixed().unsigned_abs(), gcd)
    }

    fn multiple_of_atom(&self, atom: &Atom) -> u64 {
        match atom {
            Atom::Var(v) => match (self.bound(*v), &self.lanes) {
                (Bind::Lane, Some(lanes)) => self.multiple(&lanes.lo),
                (Bind::Lanes(_), _) => 1,
                _ => self.multiples[*v as usize],
            },
            Atom::Div(x, d) => {
                let (whole, d) = (self.multiple(x), d.fixed().unsigned_abs());
                if whole.is_multiple_of(d) { whole / d } else { 1 }
            }
            Atom::Mod(x, d) => gcd(self.multiple(x), d.fixed().unsigned_abs()),
            Atom::Min(a, b) | Atom::Max(a, b) => gcd(self.multiple(a), self.multiple(b)),
        }
    }

    /// Whether the resolved index differs by lane.
    pub fn varies(&self, index: &Index) -> bool {
        let mut varies = false;
        index.visit_vars(&mut |v| varies |= matches!(self.bound(v), Bind::Lane | Bind::Lanes(_)));
        varies
    }

    /// The distance between the values in neighbouring lanes, if it is fixed.
    pub fn lane_stride(&self, index: &Index) -> Option<i64> {
        let current = self.lanes.as_ref()?;
        let mut other = false;
        index.visit_vars(&mut |v| other |= matches!(self.bound(v), Bind::Lanes(_)));
        if other { None } else { index.step(current.var) }
    }

    /// A variable of its own for a value in the interval of another variable.
    pub fn name(&mut self, value: C::Value, like: u32) -> Index {
        self.vars.push(Bind::Uniform(value));
        self.ranges.push(self.ranges[like as usize]);
        self.multiples.push(1);
        Index::var(self.vars.len() as u32 - 1)
    }

    /// The index with `lane` for the variable of the vector loop, and what `of` gives for other values that differ by
    /// lane.
    pub fn without_lanes(
        &mut self,
        index: &Index,
        (var, lane): (u32, Index),
        mut of: impl FnMut(&mut C, &C::Lanes) -> Result<C::Value>,
    ) -> Result<Index> {
        let mut varying: SmallVec<[u32; 4]> = smallvec![];
        index.visit_vars(&mut |v| {
            if matches!(self.bound(v), Bind::Lanes(_)) && !varying.contains(&v) {
                varying.push(v);
            }
        });
        let mut with: SmallVec<[(u32, Index); 4]> = smallvec![(var, lane)];
        for v in varying {
            let Bind::Lanes(lanes) = &self.vars[v as usize] else { continue };
            let value = of(&mut self.code, lanes)?;
            let name = self.name(value, v);
            with.push((v, name));
        }
        let find = |v: u32| with.iter().find(|(w, _)| *w == v).map_or_else(|| Index::var(v), |(_, i)| i.clone());
        Ok(index.substitute(&find, &|v: u32| self.ranges[v as usize]))
    }

    /// The index in lane `lane` of the current vector loop.
    pub fn at_lane(&mut self, index: &Index, lane: usize) -> Result<Index> {
        let Some(current) = &self.lanes else { return Ok(index.clone()) };
        let lane_variable = (current.var, current.lo.offset(lane as i64));
        self.without_lanes(index, lane_variable, |code, lanes| code.extract(DType::I64, lanes, lane))
    }

    fn parts(&mut self, index: &Index) -> Result<ScaledAtoms<C::Value>> {
        let mut parts: ScaledAtoms<C::Value> = smallvec![];
        for (atom, factor) in &index.terms {
            parts.push((self.atom(atom)?, factor.fixed()));
        }
        parts.sort_by_key(|(value, _)| self.code.depth(*value));
        Ok(parts)
    }

    /// The value of a resolved index that does not differ by lane.
    pub fn index_value(&mut self, index: &Index) -> Result<C::Value> {
        let parts = self.parts(index)?;
        sum(&mut self.code, None, &parts, 1, index.constant.fixed())
    }

    fn atom(&mut self, atom: &Atom) -> Result<C::Value> {
        match atom {
            Atom::Var(v) => match self.bound(*v) {
                Bind::Uniform(value) => Ok(*value),
                Bind::Unset => Err(internal(format!("index variable {v} is not bound"))),
                _ => Err(internal(format!("index variable {v} is not one value"))),
            },
            Atom::Div(x, d) => {
                let value = self.index_value(x)?;
                self.divide(value, x, d.fixed())
            }
            Atom::Mod(x, d) => {
                let (value, d) = (self.index_value(x)?, d.fixed());
                if d > 0 && d & (d - 1) == 0 {
                    return self.code.index(IndexOp::Mask(value, d - 1));
                }
                let quotient = self.divide(value, x, d)?;
                self.rest(value, quotient, d)
            }
            Atom::Min(a, b) => {
                let (a, b) = (self.index_value(a)?, self.index_value(b)?);
                self.code.index(IndexOp::Min(a, b))
            }
            Atom::Max(a, b) => {
                let (a, b) = (self.index_value(a)?, self.index_value(b)?);
                self.code.index(IndexOp::Max(a, b))
            }
        }
    }

    /// Floor division of the value of `x` by a positive constant.
    fn divide(&mut self, value: C::Value, x: &Index, d: i64) -> Result<C::Value> {
        if d & (d - 1) == 0 {
            return self.code.index(IndexOp::ShiftRight(value, d.trailing_zeros()));
        }
        let interval = self.interval(x);
        let truncated = self.code.index(IndexOp::Divide(value, d, interval))?;
        if interval.0 >= 0 {
            return Ok(truncated);
        }
        let rest = self.rest(value, truncated, d)?;
        let borrow = self.code.index(IndexOp::ShiftRight(rest, 63))?;
        self.code.index(IndexOp::Add(truncated, borrow))
    }

    fn rest(&mut self, value: C::Value, quotient: C::Value, d: i64) -> Result<C::Value> {
        let multiple = self.code.index(IndexOp::Scale(quotient, d))?;
        self.code.index(IndexOp::Rest(value, multiple))
    }

    /// The address of an element of a buffer in memory.
    pub fn address(&mut self, buf: Buf, index: &Index) -> Result<C::Address> {
        let parts = self.parts(index)?;
        self.code.address(buf, &parts, index.constant.fixed())
    }

    /// The value of a resolved index that differs by lane.
    pub(super) fn index_lanes(&mut self, index: &Index) -> Result<C::Lanes> {
        let Some(stride) = self.lane_stride(index) else { return C::index_lanes(self, index) };
        let first = self.at_lane(index, 0)?;
        let first = self.index_value(&first)?;
        let lanes = self.lane_count()?;
        self.code.steps(first, stride, lanes)
    }

    /// A value of the index for each lane, computed one after the other.
    pub fn lane_after_lane(&mut self, index: &Index) -> Result<C::Lanes> {
        let mut values = vec![];
        for lane in 0..self.lane_count()? {
            let index = self.at_lane(index, lane)?;
            values.push(self.index_value(&index)?);
        }
        self.code.assemble(DType::I64, &values)
    }
}
