//! Quasi-affine index expressions in a normal form: the currency of views, fusion, kernels and
//! bounds checks.
//!
//! An index is `constant + Σ coefficient·atom`; an atom is a variable, or a floor division, modulo,
//! minimum or maximum over indices. Variables are plain numbers: in a view they count output axes,
//! in KIR they are [`crate::kir::Var`]s.

use smallvec::SmallVec;

/// An inclusive interval.
pub type Interval = (i64, i64);

/// A non-linear leaf of an [`Index`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Atom {
    /// A variable, by number.
    Var(u32),
    /// Floor division by a positive constant.
    Div(Box<Index>, i64),
    /// Euclidean remainder by a positive constant.
    Mod(Box<Index>, i64),
    /// The smaller of two indices.
    Min(Box<Index>, Box<Index>),
    /// The larger of two indices.
    Max(Box<Index>, Box<Index>),
}

/// A quasi-affine expression. Terms are sorted by atom, unique, with non-zero coefficients.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Index {
    /// Atoms with their factors, in a canonical order.
    pub terms: SmallVec<[(Atom, i64); 2]>,
    /// The constant that is added.
    pub constant: i64,
}

/// The interval of every variable.
pub trait Ranges {
    /// The values that a variable may have.
    fn range(&self, var: u32) -> Interval;
}

/// Variables `0..n` that count the axes of a shape.
impl Ranges for [u64] {
    fn range(&self, var: u32) -> Interval {
        (0, self.get(var as usize).map_or(i64::MAX / 4, |&n| (n as i64 - 1).max(0)))
    }
}

impl<F: Fn(u32) -> Interval> Ranges for F {
    fn range(&self, var: u32) -> Interval {
        self(var)
    }
}

impl Index {
    /// A constant index.
    pub fn constant(c: i64) -> Index {
        Index { terms: SmallVec::new(), constant: c }
    }

    /// The value of a variable.
    pub fn var(v: u32) -> Index {
        Index::atom(Atom::Var(v))
    }

    fn atom(a: Atom) -> Index {
        Index { terms: SmallVec::from_iter([(a, 1)]), constant: 0 }
    }

    /// The value of an index without atoms.
    pub fn as_constant(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The variable this index is, if it is exactly one.
    pub fn as_var(&self) -> Option<u32> {
        match (&self.terms[..], self.constant) {
            ([(Atom::Var(v), 1)], 0) => Some(*v),
            _ => None,
        }
    }

    /// The sum of two indices.
    pub fn add(&self, other: &Index) -> Index {
        let mut out = self.clone();
        out.constant = out.constant.wrapping_add(other.constant);
        for (atom, c) in &other.terms {
            match out.terms.binary_search_by(|(a, _)| a.cmp(atom)) {
                Ok(i) => {
                    out.terms[i].1 += c;
                    if out.terms[i].1 == 0 {
                        out.terms.remove(i);
                    }
                }
                Err(i) => out.terms.insert(i, (atom.clone(), *c)),
            }
        }
        out
    }

    /// The sum with a constant.
    pub fn offset(&self, c: i64) -> Index {
        Index { terms: self.terms.clone(), constant: self.constant.wrapping_add(c) }
    }

    /// The product with a constant.
    pub fn scale(&self, c: i64) -> Index {
        if c == 0 {
            return Index::constant(0);
        }
        let terms = self.terms.iter().map(|(a, k)| (a.clone(), k * c)).collect();
        Index { terms, constant: self.constant * c }
    }

    /// The difference of two indices.
    pub fn sub(&self, other: &Index) -> Index {
        self.add(&other.scale(-1))
    }

    /// Splits into a multiple of `d` and a rest whose interval lies in `0..d`, if the terms allow.
    fn split(&self, d: i64, ranges: &(impl Ranges + ?Sized)) -> Option<(Index, Index)> {
        let (mut whole, mut rest) = (Index::default(), Index::default());
        for (atom, c) in &self.terms {
            let part = if c % d == 0 { &mut whole } else { &mut rest };
            part.terms.push((atom.clone(), *c));
        }
        whole.constant = self.constant.div_euclid(d) * d;
        rest.constant = self.constant.rem_euclid(d);
        let (lo, hi) = rest.interval(ranges);
        let shift = lo.div_euclid(d).saturating_mul(d);
        if hi.saturating_sub(shift) >= d {
            return None;
        }
        whole.constant += shift;
        rest.constant -= shift;
        Some((whole, rest))
    }

    /// `floor(self / d)` for `d > 0`, simplified with the variables' intervals.
    pub fn floor_div(&self, d: i64, ranges: &(impl Ranges + ?Sized)) -> Index {
        if d == 1 {
            return self.clone();
        }
        if let Some((whole, _)) = self.split(d, ranges) {
            let terms = whole.terms.into_iter().map(|(a, c)| (a, c / d)).collect();
            return Index { terms, constant: whole.constant / d };
        }
        let (mut whole, mut rest) = (Index::default(), Index::default());
        for (atom, c) in &self.terms {
            match c % d {
                0 => whole.terms.push((atom.clone(), c / d)),
                _ => rest.terms.push((atom.clone(), *c)),
            }
        }
        whole.constant = self.constant.div_euclid(d);
        rest.constant = self.constant.rem_euclid(d);
        // floor((g·x) / (g·e)) = floor(x / e)
        let g = rest.terms.iter().fold(d, |g, (_, c)| gcd(g, *c));
        if g > 1 {
            rest = Index {
                terms: rest.terms.into_iter().map(|(a, c)| (a, c / g)).collect(),
                constant: rest.constant.div_euclid(g),
            };
            return whole.add(&rest.floor_div(d / g, ranges));
        }
        if let ([(Atom::Div(inner, e), 1)], 0) = (&rest.terms[..], rest.constant) {
            return whole.add(&inner.clone().floor_div(d * e, ranges));
        }
        whole.add(&Index::atom(Atom::Div(Box::new(rest), d)))
    }

    /// `self / d` where that is exact. Where it is not, or the quotient lies outside `0..n`, the value is outside
    /// `0..n`: a coordinate that a masked read skips.
    pub fn exact_quotient(&self, d: i64, n: u64, ranges: &(impl Ranges + ?Sized)) -> Index {
        let quotient = self.floor_div(d, ranges);
        let lowest = quotient.interval(ranges).0.min(0);
        quotient.add(&self.modulo(d, ranges).scale(n as i64 - lowest))
    }

    /// The remainder in `0..d` for `d > 0`, simplified with the variables' intervals.
    pub fn modulo(&self, d: i64, ranges: &(impl Ranges + ?Sized)) -> Index {
        if d == 1 {
            return Index::constant(0);
        }
        if let Some((_, rest)) = self.split(d, ranges) {
            return rest;
        }
        let mut rest = Index::constant(self.constant.rem_euclid(d));
        rest.terms = self.terms.iter().filter(|(_, c)| c % d != 0).cloned().collect();
        let g = rest.terms.iter().fold(d, |g, (_, c)| gcd(g, *c));
        if g > 1 && rest.constant % g == 0 {
            let scaled =
                Index { terms: rest.terms.into_iter().map(|(a, c)| (a, c / g)).collect(), constant: rest.constant / g };
            return scaled.modulo(d / g, ranges).scale(g);
        }
        if let ([(Atom::Mod(inner, e), 1)], 0) = (&rest.terms[..], rest.constant)
            && e % d == 0
        {
            return inner.clone().modulo(d, ranges);
        }
        Index::atom(Atom::Mod(Box::new(rest), d))
    }

    /// The smaller of two indices, simplified by the ranges of variables.
    pub fn minimum(&self, other: &Index, ranges: &(impl Ranges + ?Sized)) -> Index {
        let (lo, hi) = self.sub(other).interval(ranges);
        match () {
            _ if hi <= 0 => self.clone(),
            _ if lo >= 0 => other.clone(),
            _ => Index::atom(Atom::Min(Box::new(self.clone()), Box::new(other.clone()))),
        }
    }

    /// The larger of two indices, simplified by the ranges of variables.
    pub fn maximum(&self, other: &Index, ranges: &(impl Ranges + ?Sized)) -> Index {
        let (lo, hi) = self.sub(other).interval(ranges);
        match () {
            _ if lo >= 0 => self.clone(),
            _ if hi <= 0 => other.clone(),
            _ => Index::atom(Atom::Max(Box::new(self.clone()), Box::new(other.clone()))),
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
                let [(atom, 1)] = &quotient.terms[..] else { continue };
                let Some((_, c)) = index.terms.iter().find(|(a, _)| a == atom) else { continue };
                if quotient.constant == 0 && *c == k * d {
                    let pair = Index { terms: [(atom.clone(), *c)].into_iter().collect(), constant: 0 };
                    let rest = Index { terms: [(Atom::Mod(x.clone(), *d), *k)].into_iter().collect(), constant: 0 };
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
            lo = lo.saturating_add(x.min(y));
            hi = hi.saturating_add(x.max(y));
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
        self.terms.iter().fold(self.constant, |sum, (atom, c)| {
            let value = match atom {
                Atom::Var(v) => vars(*v),
                Atom::Div(x, d) => x.eval(vars).div_euclid(*d),
                Atom::Mod(x, d) => x.eval(vars).rem_euclid(*d),
                Atom::Min(a, b) => a.eval(vars).min(b.eval(vars)),
                Atom::Max(a, b) => a.eval(vars).max(b.eval(vars)),
            };
            sum.wrapping_add(value.wrapping_mul(*c))
        })
    }

    /// Whether no atom is other than a variable.
    pub fn is_affine(&self) -> bool {
        self.terms.iter().all(|(a, _)| matches!(a, Atom::Var(_)))
    }

    /// The coefficient of `var` if the index is linear in it: `None` when it occurs inside a
    /// division, remainder, minimum or maximum.
    pub fn coefficient(&self, var: u32) -> Option<i64> {
        let mut coefficient = 0;
        for (atom, c) in &self.terms {
            match atom {
                Atom::Var(v) if *v == var => coefficient = *c,
                other if other.mentions(var) => return None,
                _ => {}
            }
        }
        Some(coefficient)
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
                (lo.div_euclid(*d), hi.div_euclid(*d))
            }
            Atom::Mod(x, d) => {
                let (lo, hi) = x.interval(ranges);
                match lo.div_euclid(*d) == hi.div_euclid(*d) {
                    true => (lo.rem_euclid(*d), hi.rem_euclid(*d)),
                    false => (0, d - 1),
                }
            }
            Atom::Min(a, b) => {
                let ((al, ah), (bl, bh)) = (a.interval(ranges), b.interval(ranges));
                (al.min(bl), ah.min(bh))
            }
            Atom::Max(a, b) => {
                let ((al, ah), (bl, bh)) = (a.interval(ranges), b.interval(ranges));
                (al.max(bl), ah.max(bh))
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

fn gcd(a: i64, b: i64) -> i64 {
    match b {
        0 => a.abs(),
        _ => gcd(b, a % b),
    }
}

/// Intervals for variables of which nothing is known.
pub fn unbounded(_: u32) -> Interval {
    (i64::MIN / 8, i64::MAX / 8)
}

/// Row-major offset of `coords` in a tensor with the given extents.
pub fn linearize(coords: &[Index], dims: &[u64]) -> Index {
    coords.iter().zip(dims).fold(Index::default(), |sum, (c, &n)| sum.scale(n as i64).add(c)).recombine(&unbounded)
}

/// Coordinates of a row-major offset; the inverse of [`linearize`].
pub fn delinearize(offset: &Index, dims: &[u64], ranges: &(impl Ranges + ?Sized)) -> Vec<Index> {
    let mut coords = vec![Index::default(); dims.len()];
    let mut rest = offset.clone();
    for i in (1..dims.len()).rev() {
        let n = (dims[i] as i64).max(1);
        coords[i] = rest.modulo(n, ranges);
        rest = rest.floor_div(n, ranges);
    }
    if let Some(first) = coords.first_mut() {
        *first = rest;
    }
    coords
}

impl std::fmt::Display for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.display(&|v| format!("d{v}")).fmt(f)
    }
}

impl Index {
    /// The text form, with variables named by `name`.
    pub fn display(&self, name: &dyn Fn(u32) -> String) -> String {
        let mut out = String::new();
        for (atom, c) in &self.terms {
            let body = match atom {
                Atom::Var(v) => name(*v),
                Atom::Div(x, d) => format!("floordiv({}, {d})", x.display(name)),
                Atom::Mod(x, d) => format!("mod({}, {d})", x.display(name)),
                Atom::Min(a, b) => format!("min({}, {})", a.display(name), b.display(name)),
                Atom::Max(a, b) => format!("max({}, {})", a.display(name), b.display(name)),
            };
            let (sign, size) = if *c < 0 { ("-", c.unsigned_abs()) } else { ("+", c.unsigned_abs()) };
            match (out.is_empty(), sign) {
                (true, "+") => {}
                (true, _) => out.push('-'),
                _ => out.push_str(&format!(" {sign} ")),
            }
            match size {
                1 => out.push_str(&body),
                _ => out.push_str(&format!("{body} * {size}")),
            }
        }
        match (out.is_empty(), self.constant) {
            (true, c) => out.push_str(&c.to_string()),
            (false, 0) => {}
            (false, c) if c < 0 => out.push_str(&format!(" - {}", c.unsigned_abs())),
            (false, c) => out.push_str(&format!(" + {c}")),
        }
        out
    }
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
                assert!((lo..=hi).contains(&z.eval(&at)));
            }
        }
    }
}
