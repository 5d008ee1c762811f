//! Inverting index maps: which iteration points touch a given element of an operand.
//!
//! `map(v) = x` is solved for the variables `v` of an iteration space. Along each axis an affine index is a
//! number in mixed radix whose digits are variables; where digits overlap, as in sliding windows, variables
//! are left free until the others can be read off.

use tensorc_ir::index::{Atom, Index};
use tensorc_ir::{Extent, Extents};

/// The points that touch element `x`: over the free variables, those where every variable lies in its range
/// and every residual is zero.
pub(super) struct Solution {
    /// Each variable of the iteration space as an index over the axes of the operand, then the free variables,
    /// which keep their order.
    pub vars: Vec<Index>,
    /// Indices that must be zero.
    pub residuals: Vec<Index>,
    /// Extents of the operand's axes, then those of the free variables: the space of the indices above.
    pub extents: Extents,
}

/// How one axis is read: known variables are subtracted, the others are digits, most significant first.
struct SolvedAxis {
    axis: usize,
    digits: Vec<Digit>,
}

/// A variable and its coefficient.
type Digit = (usize, Extent);

/// Solves an affine map of an operand with extents `dims` from an iteration space. `None` if an index is not
/// affine.
///
/// `shared` says which variables other operands of a contraction are read by, too: the forms of convolutions
/// depend on it, see [`plan`].
pub(super) fn solve(
    map: &[Index],
    dims: &Extents,
    extents: &Extents,
    shared: &dyn Fn(usize) -> bool,
) -> Option<Solution> {
    let terms = map.iter().map(variables).collect::<Option<Vec<_>>>()?;
    let (plan, free) = plan(&terms, extents, shared);
    let place = |v: usize| free.iter().position(|f| *f == v);
    let space: Extents = dims.all().chain(free.iter().map(|v| extents.at(*v))).collect();
    let mut vars: Vec<Index> = (0..extents.len())
        .map(|v| match place(v) {
            Some(at) if !extents.at(v).is_surely(1) => Index::var((dims.len() + at) as u32),
            _ => Index::constant(0),
        })
        .collect();
    let mut residuals = vec![];
    for SolvedAxis { axis, digits } in plan {
        let position = if dims.at(axis).is_surely(1) { Index::constant(0) } else { Index::var(axis as u32) };
        let known = terms[axis].iter().filter(|(v, _)| digits.iter().all(|(d, _)| d != v));
        let mut rest = known.fold(position.offset(-map[axis].constant), |rest, (v, c)| rest.sub(&vars[*v].scale(*c)));
        // A digit with a negative coefficient is counted from the other end.
        let from_end = |v: usize| extents.at(v) - 1;
        let shift: Extent = digits.iter().filter(|(_, c)| *c < 0).map(|(v, c)| -*c * from_end(*v)).sum();
        rest = rest.offset(shift);
        for (i, (v, c)) in digits.iter().enumerate() {
            let unit = c.magnitude();
            let last = i + 1 == digits.len();
            let digit =
                if last { rest.exact_quotient(unit, extents.at(*v), &space) } else { rest.floor_div(unit, &space) };
            rest = rest.modulo(unit, &space);
            vars[*v] = if *c < 0 { digit.scale(-1).offset(from_end(*v)) } else { digit };
        }
        if digits.is_empty() && rest.interval(&space) != (Extent::ZERO, Extent::ZERO) {
            residuals.push(rest);
        }
    }
    Some(Solution { vars, residuals, extents: space })
}

/// The variables of an affine index with their coefficients.
fn variables(index: &Index) -> Option<Vec<Digit>> {
    let term = |(atom, c): &(Atom, Extent)| match atom {
        Atom::Var(v) => Some((*v as usize, *c)),
        _ => None,
    };
    index.terms.iter().map(term).collect()
}

/// In which order axes are read, and which variables none can give.
fn plan(terms: &[Vec<Digit>], extents: &Extents, shared: &dyn Fn(usize) -> bool) -> (Vec<SolvedAxis>, Vec<usize>) {
    let mentioned = |v: &usize| terms.iter().any(|t| t.iter().any(|(u, _)| u == v));
    let mut known: Vec<usize> = vec![];
    let mut free: Vec<usize> = (0..extents.len()).filter(|v| !mentioned(v)).collect();
    // A variable of one value is known. But the taps of a window, which lie beside a position that no other
    // operand is read by, stay free, so that the forms of convolutions do not depend on extents.
    let single = |v: &usize| extents.at(*v).is_surely(1);
    for axis in terms {
        let vars = axis.iter().map(|(v, _)| *v);
        let first = vars.clone().next().filter(|_| vars.clone().all(|v| single(&v)));
        let beside = |v: usize| vars.clone().any(|u| u != v && shared(u));
        let (taps, sure): (Vec<usize>, Vec<usize>) =
            vars.clone().filter(single).partition(|v| Some(*v) != first && !beside(*v));
        known.extend(sure);
        free.extend(taps);
    }
    free.retain(|v| !known.contains(v));
    let mut open: Vec<usize> = (0..terms.len()).collect();
    let mut plan = vec![];
    loop {
        let digits = |axis: usize| -> Vec<Digit> {
            terms[axis].iter().copied().filter(|(v, _)| !known.contains(v) && !free.contains(v)).collect()
        };
        let Some(axis) = open.iter().copied().min_by_key(|axis| digits(*axis).len()) else { break };
        let mut digits = digits(axis);
        open.retain(|a| *a != axis);
        digits.sort_by_key(|(v, c)| (std::cmp::Reverse(c.magnitude()), *v));
        while let Some(overlap) = overlap(&digits, extents) {
            // The fewest points are tried if the shortest of the overlapping variables is free.
            let shortest = (overlap..digits.len()).min_by_key(|i| (extents.example()[digits[*i].0], usize::MAX - i));
            let Some(at) = shortest else { break };
            free.push(digits.remove(at).0);
        }
        known.extend(digits.iter().map(|(v, _)| *v));
        plan.push(SolvedAxis { axis, digits });
    }
    free.sort_unstable();
    free.dedup();
    (plan, free)
}

/// The first digit whose unit is not beyond what the digits after it can add up to.
fn overlap(digits: &[Digit], extents: &Extents) -> Option<usize> {
    let reach = |digits: &[Digit]| -> Extent {
        digits.iter().map(|(v, c)| c.magnitude().saturating_mul(extents.at(*v).last_position())).sum()
    };
    (0..digits.len()).find(|i| !reach(&digits[i + 1..]).is_surely_below(digits[*i].1.magnitude()))
}
