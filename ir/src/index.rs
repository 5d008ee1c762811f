//! Quasi-affine index expressions in a normal form: the currency of views, fusion, kernels and
//! bounds checks.
//!
//! An index is `constant + Σ coefficient·atom`; an atom is a variable, or a floor division, modulo,
//! minimum or maximum over indices. Variables are plain numbers: in a view they count output axes,
//! in KIR they are [`crate::kir::Var`]s.

mod formula;
mod text;

use smallvec::SmallVec;

use crate::extent::{Axes, Extent, Extents};

/// An inclusive interval.
pub type Interval = (Extent, Extent);

/// A non-linear leaf of an [`Index`].
#[derive(Clone, Debug)]
pub enum Atom {
    /// A variable, by number.
    Var(u32),
    /// Floor division by a positive number.
    Div(Box<Index>, Extent),
    /// Euclidean remainder by a positive number.
    Mod(Box<Index>, Extent),
    /// The smaller of two indices.
    Min(Box<Index>, Box<Index>),
    /// The larger of two indices.
    Max(Box<Index>, Box<Index>),
}

/// A quasi-affine expression. Terms are sorted by atom, unique, with non-zero coefficients.
///
/// Coefficients may depend on symbols. A simplification must hold for all values of these, and two indices are equal if they
/// have the same terms: neither makes conditions of a trace.
#[derive(Clone, Debug, Default)]
pub struct Index {
    /// Atoms with their factors, in a canonical order.
    pub terms: SmallVec<[(Atom, Extent); 2]>,
    /// The constant that is added.
    pub constant: Extent,
}

/// The interval of every variable.
pub trait Ranges {
    /// The values that a variable may have.
    fn range(&self, var: u32) -> Interval;
}

/// Variables `0..n` that count the axes of a shape.
impl Ranges for [u64] {
    fn range(&self, var: u32) -> Interval {
        let last = self.get(var as usize).map_or(i64::MAX / 4, |&n| (n as i64 - 1).max(0));
        (Extent::ZERO, last.into())
    }
}

impl Ranges for Vec<u64> {
    fn range(&self, var: u32) -> Interval {
        self[..].range(var)
    }
}

impl Ranges for Extents {
    fn range(&self, var: u32) -> Interval {
        let last = |axis: usize| self.at(axis).last_position();
        let known = Some(var as usize).filter(|axis| *axis < self.len());
        (Extent::ZERO, known.map_or(Extent::of(i64::MAX / 4), last))
    }
}

impl<const N: usize> Ranges for [u64; N] {
    fn range(&self, var: u32) -> Interval {
        self[..].range(var)
    }
}

impl<F: Fn(u32) -> (A, B), A: Into<Extent>, B: Into<Extent>> Ranges for F {
    fn range(&self, var: u32) -> Interval {
        let (lo, hi) = self(var);
        (lo.into(), hi.into())
    }
}

impl Index {
    /// A constant index.
    pub fn constant(c: impl Into<Extent>) -> Index {
        Index { terms: SmallVec::new(), constant: c.into() }
    }

    /// The value of a variable.
    pub fn var(v: u32) -> Index {
        Index::of(Atom::Var(v))
    }

    /// An atom alone.
    pub fn of(a: Atom) -> Index {
        Index { terms: SmallVec::from_iter([(a, Extent::ONE)]), constant: Extent::ZERO }
    }

    /// The value of an index without atoms.
    pub fn as_extent(&self) -> Option<Extent> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The value of an index without atoms and symbols.
    pub fn as_constant(&self) -> Option<i64> {
        self.as_extent().and_then(Extent::known)
    }

    /// The variable this index is, if it is exactly one.
    pub fn as_var(&self) -> Option<u32> {
        match &self.terms[..] {
            [(Atom::Var(v), c)] if c.is_surely(1) && self.constant.is_surely(0) => Some(*v),
            _ => None,
        }
    }

    /// The atom this index is, if it is exactly one.
    pub fn as_atom(&self) -> Option<&Atom> {
        match &self.terms[..] {
            [(atom, c)] if c.is_surely(1) && self.constant.is_surely(0) => Some(atom),
            _ => None,
        }
    }

    /// The sum of two indices.
    pub fn add(&self, other: &Index) -> Index {
        let mut out = self.clone();
        out.constant = out.constant + other.constant;
        for (atom, c) in &other.terms {
            match out.terms.binary_search_by(|(a, _)| a.cmp(atom)) {
                Ok(i) => {
                    out.terms[i].1 = out.terms[i].1 + *c;
                    if out.terms[i].1.is_surely(0) {
                        out.terms.remove(i);
                    }
                }
                Err(i) => out.terms.insert(i, (atom.clone(), *c)),
            }
        }
        out
    }

    /// The sum with a constant.
    pub fn offset(&self, c: impl Into<Extent>) -> Index {
        Index { terms: self.terms.clone(), constant: self.constant + c.into() }
    }

    /// The product with a constant.
    pub fn scale(&self, c: impl Into<Extent>) -> Index {
        let c = c.into();
        if c.is_surely(0) {
            return Index::constant(0);
        }
        let terms = self.terms.iter().map(|(a, k)| (a.clone(), *k * c)).collect();
        Index { terms, constant: self.constant * c }
    }

    /// The difference of two indices.
    pub fn sub(&self, other: &Index) -> Index {
        self.add(&other.scale(-1))
    }

    /// The terms that are multiples of `d`, divided by it, and the others. So with the constant, whose rest lies in `0..d` where it
    /// can be told.
    fn multiples(&self, d: Extent) -> (Index, Index) {
        let (mut whole, mut rest) = (Index::default(), Index::default());
        for (atom, c) in &self.terms {
            match c.sure_quotient(d) {
                Some(quotient) => whole.terms.push((atom.clone(), quotient)),
                None => rest.terms.push((atom.clone(), *c)),
            }
        }
        whole.constant = self.constant.sure_div_floor(d).unwrap_or_default();
        rest.constant = self.constant - whole.constant * d;
        (whole, rest)
    }

    /// The quotient by `d`, and a rest whose interval lies in `0..d`, if the terms allow.
    fn split(&self, d: Extent, ranges: &(impl Ranges + ?Sized)) -> Option<(Index, Index)> {
        let (mut whole, mut rest) = self.multiples(d);
        let (lo, hi) = rest.interval(ranges);
        if lo.is_surely_from(0) && hi.is_surely_below(d) {
            return Some((whole, rest));
        }
        // Of intervals that are wider, no multiple of the divisor makes one that fits.
        if !hi.saturating_sub(lo).is_surely_below(d) {
            return None;
        }
        let shift = lo.sure_div_floor(d)?;
        if !hi.saturating_sub(shift * d).is_surely_below(d) {
            return None;
        }
        whole.constant = whole.constant + shift;
        rest.constant = rest.constant - shift * d;
        Some((whole, rest))
    }

    /// Divides by the greatest common divisor of all factors and of `d`, if that is above 1. Numbers of symbols have none.
    fn common(&self, d: Extent) -> Option<i64> {
        let first = d.known()?;
        let g = self.terms.iter().try_fold(first, |g, (_, c)| c.known().map(|c| gcd(g, c)))?;
        (g > 1).then_some(g)
    }

    /// `floor(self / d)` for `d > 0`, simplified with the variables' intervals.
    pub fn floor_div(&self, d: impl Into<Extent>, ranges: &(impl Ranges + ?Sized)) -> Index {
        let d = d.into();
        if d.is_surely(1) {
            return self.clone();
        }
        if let Some((whole, _)) = self.split(d, ranges) {
            return whole;
        }
        let (whole, mut rest) = self.multiples(d);
        // floor((g·x) / (g·e)) = floor(x / e)
        if let Some(g) = rest.common(d)
            && let Some(constant) = rest.constant.sure_div_floor(g)
        {
            rest = Index { terms: rest.terms.into_iter().map(|(a, c)| (a, c.div_floor(g))).collect(), constant };
            return whole.add(&rest.floor_div(d.div_floor(g), ranges));
        }
        if let Some(Atom::Div(inner, e)) = rest.as_atom() {
            return whole.add(&inner.clone().floor_div(d * *e, ranges));
        }
        whole.add(&Index::of(Atom::Div(Box::new(rest), d)))
    }

    /// `self / d` where that is exact. Where it is not, or the quotient lies outside `0..n`, the value is outside
    /// `0..n`: a coordinate that a masked read skips.
    pub fn exact_quotient(&self, d: impl Into<Extent>, n: impl Into<Extent>, ranges: &(impl Ranges + ?Sized)) -> Index {
        let d = d.into();
        let quotient = self.floor_div(d, ranges);
        let lowest = quotient.interval(ranges).0.least(0);
        quotient.add(&self.modulo(d, ranges).scale(n.into() - lowest))
    }

    /// The remainder in `0..d` for `d > 0`, simplified with the variables' intervals.
    pub fn modulo(&self, d: impl Into<Extent>, ranges: &(impl Ranges + ?Sized)) -> Index {
        let d = d.into();
        if d.is_surely(1) {
            return Index::constant(0);
        }
        if let Some((_, rest)) = self.split(d, ranges) {
            return rest;
        }
        let (_, rest) = self.multiples(d);
        if let Some(g) = rest.common(d)
            && let Some(constant) = rest.constant.sure_quotient(g)
        {
            let scaled = Index { terms: rest.terms.into_iter().map(|(a, c)| (a, c.div_floor(g))).collect(), constant };
            return scaled.modulo(d.div_floor(g), ranges).scale(g);
        }
        if let Some(Atom::Mod(inner, e)) = rest.as_atom()
            && e.sure_quotient(d).is_some()
        {
            return inner.clone().modulo(d, ranges);
        }
        Index::of(Atom::Mod(Box::new(rest), d))
    }

    /// The smaller of two indices, simplified by the ranges of variables.
    pub fn minimum(&self, other: &Index, ranges: &(impl Ranges + ?Sized)) -> Index {
        let (lo, hi) = self.sub(other).interval(ranges);
        match () {
            _ if Extent::ZERO.is_surely_from(hi) => self.clone(),
            _ if lo.is_surely_from(0) => other.clone(),
            _ => Index::of(Atom::Min(Box::new(self.clone()), Box::new(other.clone()))),
        }
    }

    /// The larger of two indices, simplified by the ranges of variables.
    pub fn maximum(&self, other: &Index, ranges: &(impl Ranges + ?Sized)) -> Index {
        let (lo, hi) = self.sub(other).interval(ranges);
        match () {
            _ if lo.is_surely_from(0) => self.clone(),
            _ if Extent::ZERO.is_surely_from(hi) => other.clone(),
            _ => Index::of(Atom::Max(Box::new(self.clone()), Box::new(other.clone()))),
        }
    }

    /// Undoes the splitting of an index into quotient and remainder:
    /// `k·d·floordiv(x, d) + k·mod(x, d) = k·x`, also where `x` is itself a quotient.
    pub fn recombine(&self, ranges: &(impl Ranges + ?Sized)) -> Index {
        let mut index = self.clone();
        'again: loop {
            for (atom, k) in &index.terms {
                let Atom::Mod(x, d) = atom else { continue };
                let quotient = x.floor_div(*d, ranges);
                let Some(atom) = quotient.as_atom() else { continue };
                let Some((_, c)) = index.terms.iter().find(|(a, _)| a == atom) else { continue };
                if c.is_surely(*k * *d) {
                    let pair = quotient.scale(*c);
                    let rest = Index::of(Atom::Mod(x.clone(), *d)).scale(*k);
                    index = index.sub(&pair).sub(&rest).add(&x.scale(*k));
                    continue 'again;
                }
            }
            return index;
        }
    }

    /// A sound enclosure of the values taken over the variables' intervals.
    pub fn interval(&self, ranges: &(impl Ranges + ?Sized)) -> Interval {
        let (mut lo, mut hi) = (self.constant, self.constant);
        for (atom, c) in &self.terms {
            let (a, b) = atom.interval(ranges);
            let (x, y) = (a.saturating_mul(*c), b.saturating_mul(*c));
            let ordered = c.is_surely_from(0) || !Extent::ZERO.is_surely_from(*c) && x <= y;
            let (x, y) = if ordered { (x, y) } else { (y, x) };
            (lo, hi) = (lo.saturating_add(x), hi.saturating_add(y));
        }
        (lo, hi)
    }

    /// Replaces every variable, simplifying with the intervals of the new variables.
    pub fn substitute(&self, with: &dyn Fn(u32) -> Index, ranges: &(impl Ranges + ?Sized)) -> Index {
        let mut out = Index::constant(self.constant);
        for (atom, c) in &self.terms {
            let value = match atom {
                Atom::Var(v) => with(*v),
                Atom::Div(x, d) => x.substitute(with, ranges).floor_div(*d, ranges),
                Atom::Mod(x, d) => x.substitute(with, ranges).modulo(*d, ranges),
                Atom::Min(a, b) => a.substitute(with, ranges).minimum(&b.substitute(with, ranges), ranges),
                Atom::Max(a, b) => a.substitute(with, ranges).maximum(&b.substitute(with, ranges), ranges),
            };
            out = out.add(&value.scale(*c));
        }
        out
    }

    /// Replaces variable `i` by `map[i]`; `None` if `map` has no such element.
    pub fn mapped(&self, map: &[Index], ranges: &(impl Ranges + ?Sized)) -> Option<Index> {
        self.try_substitute(&|v| map.get(v as usize).cloned(), ranges)
    }

    /// As [`Index::substitute`]; `None` if a variable that occurs has no replacement.
    pub fn try_substitute(
        &self,
        with: &dyn Fn(u32) -> Option<Index>,
        ranges: &(impl Ranges + ?Sized),
    ) -> Option<Index> {
        let missing = std::cell::Cell::new(false);
        let replaced = self.substitute(
            &|v| {
                with(v).unwrap_or_else(|| {
                    missing.set(true);
                    Index::default()
                })
            },
            ranges,
        );
        (!missing.get()).then_some(replaced)
    }

    /// The value under an assignment of the variables.
    pub fn eval(&self, vars: &dyn Fn(u32) -> i64) -> i64 {
        self.terms.iter().fold(self.constant.fixed(), |sum, (atom, c)| {
            let value = match atom {
                Atom::Var(v) => vars(*v),
                Atom::Div(x, d) => x.eval(vars).div_euclid(d.fixed()),
                Atom::Mod(x, d) => x.eval(vars).rem_euclid(d.fixed()),
                Atom::Min(a, b) => a.eval(vars).min(b.eval(vars)),
                Atom::Max(a, b) => a.eval(vars).max(b.eval(vars)),
            };
            sum.wrapping_add(value.wrapping_mul(c.fixed()))
        })
    }

    /// Whether a number of it depends on symbols.
    pub fn is_open(&self) -> bool {
        let of = |(atom, c): &(Atom, Extent)| {
            c.is_open()
                || match atom {
                    Atom::Var(_) => false,
                    Atom::Div(x, d) | Atom::Mod(x, d) => d.is_open() || x.is_open(),
                    Atom::Min(a, b) | Atom::Max(a, b) => a.is_open() || b.is_open(),
                }
        };
        self.constant.is_open() || self.terms.iter().any(of)
    }

    /// The index with other numbers.
    pub fn renumbered(&self, number: &dyn Fn(Extent) -> Extent) -> Index {
        if !self.is_open() {
            return self.clone();
        }
        let of = |x: &Index| Box::new(x.renumbered(number));
        let term = |(atom, c): &(Atom, Extent)| {
            let atom = match atom {
                Atom::Var(v) => Atom::Var(*v),
                Atom::Div(x, d) => Atom::Div(of(x), number(*d).as_divisor()),
                Atom::Mod(x, d) => Atom::Mod(of(x), number(*d).as_divisor()),
                Atom::Min(a, b) => Atom::Min(of(a), of(b)),
                Atom::Max(a, b) => Atom::Max(of(a), of(b)),
            };
            Index::of(atom).scale(number(*c))
        };
        self.terms.iter().map(term).fold(Index::constant(number(self.constant)), |sum, term| sum.add(&term))
    }

    /// Whether no atom is other than a variable.
    pub fn is_affine(&self) -> bool {
        self.terms.iter().all(|(a, _)| matches!(a, Atom::Var(_)))
    }

    /// The coefficient of `var` if the index is linear in it: `None` when it occurs inside a
    /// division, remainder, minimum or maximum.
    pub fn coefficient(&self, var: u32) -> Option<Extent> {
        let mut coefficient = Extent::ZERO;
        for (atom, c) in &self.terms {
            match atom {
                Atom::Var(v) if *v == var => coefficient = *c,
                other if other.mentions(var) => return None,
                _ => {}
            }
        }
        Some(coefficient)
    }

    /// [`Index::coefficient`] as a number ([`Extent::fixed`]).
    pub fn step(&self, var: u32) -> Option<i64> {
        self.coefficient(var).map(Extent::fixed)
    }

    /// Whether the variable occurs.
    pub fn mentions(&self, var: u32) -> bool {
        self.terms.iter().any(|(a, _)| a.mentions(var))
    }

    /// Calls `f` for every occurrence of a variable.
    pub fn visit_vars(&self, f: &mut dyn FnMut(u32)) {
        for (atom, _) in &self.terms {
            match atom {
                Atom::Var(v) => f(*v),
                Atom::Div(x, _) | Atom::Mod(x, _) => x.visit_vars(f),
                Atom::Min(a, b) | Atom::Max(a, b) => {
                    a.visit_vars(f);
                    b.visit_vars(f);
                }
            }
        }
    }
}

impl Atom {
    fn interval(&self, ranges: &(impl Ranges + ?Sized)) -> Interval {
        match self {
            Atom::Var(v) => ranges.range(*v),
            Atom::Div(x, d) => {
                let (lo, hi) = x.interval(ranges);
                (quotient(lo, *d).unwrap_or(unbounded(0).0), quotient(hi, *d).unwrap_or(unbounded(0).1))
            }
            Atom::Mod(x, d) => {
                let (lo, hi) = x.interval(ranges);
                match (quotient(lo, *d), quotient(hi, *d)) {
                    (Some(a), Some(b)) if a.is_surely(b) => (lo - a * *d, hi - a * *d),
                    _ => (Extent::ZERO, *d - 1),
                }
            }
            Atom::Min(a, b) => {
                let ((al, ah), (bl, bh)) = (a.interval(ranges), b.interval(ranges));
                (below(al, bl), tighter(ah, bh, |a, b| b.is_surely_from(a)))
            }
            Atom::Max(a, b) => {
                let ((al, ah), (bl, bh)) = (a.interval(ranges), b.interval(ranges));
                (tighter(al, bl, |a, b| a.is_surely_from(b)), -below(-ah, -bh))
            }
        }
    }

    fn mentions(&self, var: u32) -> bool {
        match self {
            Atom::Var(v) => *v == var,
            Atom::Div(x, _) | Atom::Mod(x, _) => x.mentions(var),
            Atom::Min(a, b) | Atom::Max(a, b) => a.mentions(var) || b.mentions(var),
        }
    }
}

/// A number that is at most each of two.
fn below(a: Extent, b: Extent) -> Extent {
    match () {
        _ if b.is_surely_from(a) => a,
        _ if a.is_surely_from(b) => b,
        _ => unbounded(0).0,
    }
}

/// Of two limits the one that is tighter, if it is known which.
fn tighter(a: Extent, b: Extent, is_tighter: impl Fn(Extent, Extent) -> bool) -> Extent {
    if is_tighter(b, a) || b.known().is_some() && !is_tighter(a, b) { b } else { a }
}

/// The quotient rounded down of a limit of an interval, which may be one of what is unbounded.
fn quotient(limit: Extent, d: Extent) -> Option<Extent> {
    if limit.is_limit() && d.is_open() { Some(limit) } else { limit.sure_div_floor(d) }
}

fn gcd(a: i64, b: i64) -> i64 {
    match b {
        0 => a.abs(),
        _ => gcd(b, a % b),
    }
}

/// Intervals for variables of which nothing is known.
pub fn unbounded(_: u32) -> Interval {
    ((i64::MIN / 8).into(), (i64::MAX / 8).into())
}

/// Row-major offset of `coords` in a tensor with the given extents.
pub fn linearize(coords: &[Index], dims: &(impl Axes + ?Sized)) -> Index {
    let sum = coords.iter().zip(dims.each()).fold(Index::default(), |sum, (c, n)| sum.scale(n).add(c));
    sum.recombine(&unbounded)
}

/// Coordinates of a row-major offset; the inverse of [`linearize`].
pub fn delinearize(offset: &Index, dims: &(impl Axes + ?Sized), ranges: &(impl Ranges + ?Sized)) -> Vec<Index> {
    let mut coords = vec![Index::default(); dims.rank()];
    let mut rest = offset.clone();
    for i in (1..dims.rank()).rev() {
        let n = dims.extent(i).as_divisor();
        coords[i] = rest.modulo(n, ranges);
        rest = rest.floor_div(n, ranges);
    }
    if let Some(first) = coords.first_mut() {
        *first = rest;
    }
    coords
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reshape_round_trip_simplifies_to_variables() {
        let dims = [2u64, 12, 128, 64];
        let coords: Vec<Index> = (0..4).map(Index::var).collect();
        let offset = linearize(&coords, &dims);
        assert_eq!(delinearize(&offset, &dims, &dims[..]), coords);
        let merged = delinearize(&offset, &[24, 8192], &dims[..]);
        assert_eq!(merged[0].to_string(), "d0 * 12 + d1");
        assert_eq!(merged[1].to_string(), "d2 * 64 + d3");
    }

    #[test]
    fn simplification_preserves_values() {
        let dims = [3u64, 5, 7];
        let mut seed = 7u64;
        let mut next = |n: i64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as i64 % n
        };
        for _ in 0..2000 {
            let mut x = Index::constant(next(11) - 5);
            for v in 0..3 {
                x = x.add(&Index::var(v).scale(next(21) - 10));
            }
            let (d, e) = (next(12) + 1, next(6) + 1);
            let y = x.floor_div(d, &dims[..]);
            let z = x.modulo(d, &dims[..]).floor_div(e, &dims[..]).add(&y.modulo(e, &dims[..]));
            for p in 0..105i64 {
                let at = |v: u32| [p / 35, p / 7 % 5, p % 7][v as usize];
                let value = x.eval(&at);
                assert_eq!(y.eval(&at), value.div_euclid(d), "{x} / {d} = {y}");
                let expected = value.rem_euclid(d).div_euclid(e) + value.div_euclid(d).rem_euclid(e);
                assert_eq!(z.eval(&at), expected, "{x}, {d}, {e}: {z}");
                let (lo, hi) = z.interval(&dims[..]);
                assert!(lo <= z.eval(&at) && hi >= z.eval(&at));
            }
        }
    }
}
