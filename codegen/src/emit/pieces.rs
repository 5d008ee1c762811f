//! Pieces of an axis: where the indices of an element-wise cluster take turns between forms, as at the borders of a padded
//! image, each form gets a loop of its own, in which it is linear.

use tensorc_ir::index::{Atom, Index};
use tensorc_ir::{Extent, Extents};
use tensorc_schedule::access::{ClusterAccesses, MergedAxes};

/// Most pieces of an axis.
const MAX_PIECES: usize = 5;
/// Elements of the longest piece from which on pieces are worth their loops.
const MIN_PIECE: i64 = 16;
/// Most scalar operations of a cluster of which each piece has a copy.
pub const MAX_OPS: usize = 24;

/// The pieces of an axis, each as its first position and the one behind its last; none where no form does for much of it. Longer ones
/// come first: they bring most of a result into the cache in the order of memory.
pub fn pieces(axis: &MergedAxes, extents: &Extents, uses: &ClusterAccesses) -> Vec<(i64, i64)> {
    // The counter of merged axes goes further than the axis does, and all indices are linear in it.
    let single = axis.extent.is_surely(extents.at(axis.axis));
    let Some(n) = axis.extent.known().filter(|_| single) else { return vec![] };
    let mut breaks = Breaks { var: axis.axis as u32, n, at: vec![0, n] };
    uses.flats.iter().for_each(|(_, index)| breaks.index(index));
    for (index, extent) in &uses.guards {
        breaks.index(index);
        breaks.sign(index);
        breaks.sign(&index.offset(Extent::ZERO - *extent));
    }
    let mut at = breaks.at;
    at.sort_unstable();
    at.dedup();
    let mut found: Vec<(i64, i64)> = at.windows(2).map(|w| (w[0], w[1])).collect();
    found.sort_by_key(|(from, to)| from - to);
    let longest = found.first().map_or(0, |(from, to)| to - from);
    let pays = longest >= MIN_PIECE && 2 * longest >= n;
    if pays && (2..=MAX_PIECES).contains(&found.len()) { found } else { vec![] }
}

/// Positions of an axis where something changes.
struct Breaks {
    var: u32,
    n: i64,
    at: Vec<i64>,
}

impl Breaks {
    fn index(&mut self, index: &Index) {
        for (atom, _) in &index.terms {
            match atom {
                Atom::Var(_) => {}
                Atom::Min(a, b) | Atom::Max(a, b) => {
                    self.index(a);
                    self.index(b);
                    for first in self.forms(a) {
                        self.forms(b).iter().for_each(|second| self.sign(&first.sub(second)));
                    }
                }
                Atom::Div(a, d) | Atom::Mod(a, d) => {
                    self.index(a);
                    self.multiples(a, *d);
                }
            }
        }
    }

    /// The factor of the axis in an index of nothing else, and the constant.
    fn line(&self, index: &Index) -> Option<(i64, i64)> {
        let factor = index.coefficient(self.var)?.known().filter(|factor| *factor != 0)?;
        Some((factor, index.sub(&Index::var(self.var).scale(factor)).as_constant()?))
    }

    /// The sums that an index may be at some position.
    fn forms(&self, index: &Index) -> Vec<Index> {
        let mut bent = index.terms.iter().filter(|(atom, _)| !matches!(atom, Atom::Var(_)));
        let (Some((atom, factor)), None) = (bent.next(), bent.next()) else { return vec![index.clone()] };
        let rest = index.sub(&Index::of(atom.clone()).scale(*factor));
        let forms = match atom {
            Atom::Min(a, b) | Atom::Max(a, b) => [self.forms(a), self.forms(b)].concat(),
            Atom::Mod(a, d) => match self.passed(a, *d) {
                Some((least, most)) => (least..=most).map(|m| a.sub(&Index::constant(*d).scale(m))).collect(),
                None => return vec![index.clone()],
            },
            _ => return vec![index.clone()],
        };
        forms.into_iter().map(|form| form.scale(*factor).add(&rest)).collect()
    }

    /// Where an index becomes negative or ceases to be.
    fn sign(&mut self, index: &Index) {
        let Some((factor, constant)) = self.line(index) else { return };
        // The first position of the form on the right.
        let first = if factor > 0 { -constant.div_euclid(factor) } else { constant.div_euclid(-factor) + 1 };
        if (1..self.n).contains(&first) {
            self.at.push(first);
        }
    }

    /// The quotients of an index by a number, from the least to the greatest, if there are few.
    fn passed(&self, index: &Index, d: Extent) -> Option<(i64, i64)> {
        let ((factor, constant), d) = (self.line(index)?, d.known()?);
        let ends = [constant, constant + factor * (self.n - 1)].map(|v| v.div_euclid(d));
        let (least, most) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
        (most - least <= MAX_PIECES as i64).then_some((least, most))
    }

    /// Where an index passes multiples of a number.
    fn multiples(&mut self, index: &Index, d: Extent) {
        match self.passed(index, d) {
            Some((least, most)) => {
                (least + 1..=most).for_each(|m| self.sign(&index.sub(&Index::constant(d).scale(m))));
            }
            // More pieces than there may be.
            None if self.line(index).is_some() => self.at.extend(1..=(MAX_PIECES as i64 + 1).min(self.n)),
            None => {}
        }
    }
}
