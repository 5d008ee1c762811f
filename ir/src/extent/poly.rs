//! Polynomials with whole coefficients over numbered atoms, in a normal form.

use std::cmp::Ordering;

use smallvec::SmallVec;

/// A product of atoms, by number, ascending; none for the constant term.
pub(super) type Monomial = SmallVec<[u32; 4]>;

/// Terms by ascending degree, with coefficients other than 0. The order of monomials is kept by multiplication.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Poly(pub SmallVec<[(Monomial, i64); 2]>);

impl Poly {
    pub fn constant(c: i64) -> Poly {
        Poly::term(Monomial::new(), c)
    }

    pub fn atom(atom: u32) -> Poly {
        Poly::term(Monomial::from_slice(&[atom]), 1)
    }

    fn term(monomial: Monomial, c: i64) -> Poly {
        Poly(if c == 0 { SmallVec::new() } else { SmallVec::from_iter([(monomial, c)]) })
    }

    pub fn as_constant(&self) -> Option<i64> {
        match &self.0[..] {
            [] => Some(0),
            [(monomial, c)] if monomial.is_empty() => Some(*c),
            _ => None,
        }
    }

    /// The sum with a multiple; `None` if a coefficient does not fit.
    pub fn add(&self, other: &Poly, factor: i64) -> Option<Poly> {
        let mut out = self.clone();
        for (monomial, c) in &other.0 {
            let c = c.checked_mul(factor)?;
            match out.0.binary_search_by(|(m, _)| order(m, monomial)) {
                Ok(i) => {
                    out.0[i].1 = out.0[i].1.checked_add(c)?;
                    if out.0[i].1 == 0 {
                        out.0.remove(i);
                    }
                }
                Err(i) if c != 0 => out.0.insert(i, (monomial.clone(), c)),
                Err(_) => {}
            }
        }
        Some(out)
    }

    /// The product; `None` if a coefficient does not fit.
    pub fn mul(&self, other: &Poly) -> Option<Poly> {
        let mut out = Poly::default();
        for (a, c) in &self.0 {
            for (b, d) in &other.0 {
                let mut monomial: Monomial = a.iter().chain(b).copied().collect();
                monomial.sort_unstable();
                out = out.add(&Poly::term(monomial, c.checked_mul(*d)?), 1)?;
            }
        }
        Some(out)
    }

    /// `quotient` and `rest` with `self = quotient · by + rest`; `None` if `by` is 0 or a coefficient does not fit. Terms that `by`
    /// does not divide are in the rest; by a constant, coefficients of the rest lie in `0..by`.
    pub fn divide(&self, by: &Poly) -> Option<(Poly, Poly)> {
        let (lead, factor) = by.0.last()?;
        let (mut quotient, mut rest, mut open) = (Poly::default(), Poly::default(), self.clone());
        while let Some((monomial, c)) = open.0.last().cloned() {
            let whole = lead.is_empty() || c % factor == 0;
            let term = without(&monomial, lead).filter(|_| whole).map(|m| Poly::term(m, c.div_euclid(*factor)));
            if let Some(term) = term {
                open = open.add(&term.mul(by)?, -1)?;
                quotient = quotient.add(&term, 1)?;
            }
            if open.0.last().is_some_and(|(m, _)| *m == monomial)
                && let Some((_, c)) = open.0.pop()
            {
                rest = rest.add(&Poly::term(monomial, c), 1)?;
            }
        }
        Some((quotient, rest))
    }

    /// The value where the atoms have the given ones; `None` if it does not fit.
    pub fn value(&self, atoms: &[i64]) -> Option<i64> {
        self.0.iter().try_fold(0i64, |sum, (monomial, c)| {
            let product = monomial.iter().try_fold(*c, |p, atom| p.checked_mul(atoms[*atom as usize]))?;
            sum.checked_add(product)
        })
    }

    /// An interval around all values where the atoms, none of them negative, lie in the given ones.
    pub fn interval(&self, atoms: &[(i128, i128)]) -> (i128, i128) {
        self.0.iter().fold((0, 0), |(lo, hi): (i128, i128), (monomial, c)| {
            let c = i128::from(*c);
            let (a, b) = monomial.iter().fold((1i128, 1i128), |(a, b), atom| {
                let (lo, hi) = atoms[*atom as usize];
                (a.saturating_mul(lo), b.saturating_mul(hi))
            });
            let (a, b) = (a.saturating_mul(c), b.saturating_mul(c));
            (lo.saturating_add(a.min(b)), hi.saturating_add(a.max(b)))
        })
    }
}

fn order(a: &Monomial, b: &Monomial) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

/// The monomial divided by another one, if it is a multiple.
fn without(monomial: &Monomial, divisor: &Monomial) -> Option<Monomial> {
    let mut left = monomial.clone();
    for atom in divisor {
        let at = left.iter().position(|a| a == atom)?;
        left.remove(at);
    }
    Some(left)
}
