//! Facts about views: composition, whether linear order survives, where each element lands.

use crate::extent::{Axes, Extent};
use crate::index::{Atom, Index, Ranges, linearize};
use crate::prim::View;
use crate::types::DenseType;

/// The identity on a shape of rank `rank`.
pub fn identity_map(rank: usize) -> Vec<Index> {
    (0..rank as u32).map(Index::var).collect()
}

/// The index with variables of extent 1 replaced by 0.
pub fn without_unit_vars(index: &Index, extents: &(impl Axes + Ranges + ?Sized)) -> Index {
    let with = |v: u32| match (v as usize) < extents.rank() && extents.extent(v as usize).is_surely(1) {
        true => Index::constant(0),
        false => Index::var(v),
    };
    index.substitute(&with, extents)
}

/// Whether every coordinate surely stays inside `dims` for all points of `extents`.
pub fn in_bounds(map: &[Index], dims: &(impl Axes + ?Sized), extents: &(impl Axes + Ranges + ?Sized)) -> bool {
    extents.each().any(|n| n.is_surely(0))
        || map.iter().zip(dims.each()).all(|(m, n)| {
            let (lo, hi) = m.interval(extents);
            lo.is_surely_from(0) && hi.is_surely_below(n)
        })
}

/// Whether the view surely only renames positions: element `i` of the result in row-major order is element
/// `i` of the operand. Such a view needs no code.
pub fn keeps_linear_order(view: &View, input: &DenseType, output: &(impl Axes + Ranges + ?Sized)) -> bool {
    if view.fill.is_some() && !in_bounds(&view.map, &input.dims, output) {
        return false;
    }
    let elements = input.dims.count();
    if !elements.is_surely(output.count()) {
        return false;
    }
    elements.is_surely_below(2) || distance(view, input, output).as_extent().is_some_and(|d| d.is_surely(0))
}

/// The distance in memory between an element of the operand and that of the result that it becomes, in elements.
fn distance(view: &View, input: &DenseType, output: &(impl Axes + Ranges + ?Sized)) -> Index {
    let map: Vec<Index> = view.map.iter().map(|m| without_unit_vars(m, output)).collect();
    let source = linearize(&map, &input.dims).recombine(output);
    let target: Vec<Index> = identity_map(output.rank()).iter().map(|m| without_unit_vars(m, output)).collect();
    source.sub(&linearize(&target, output))
}

/// The first element of the operand, if the view surely takes consecutive ones from there: element `i` of the
/// result in row-major order is element `offset + i` of the operand.
pub fn run_offset(view: &View, input: &DenseType, output: &(impl Axes + Ranges + ?Sized)) -> Option<Extent> {
    if output.each().any(|n| n.is_surely(0)) || !in_bounds(&view.map, &input.dims, output) {
        return None;
    }
    distance(view, input, output).as_extent().filter(|offset| *offset >= 0)
}

/// For a view that is a permutation of its operand's elements: the distance in the result, in
/// elements, of a step along each operand axis. `None` if the position in the result is not such a
/// sum of strides.
///
/// Every operand axis must be a mixed-radix digit of the result's row-major position.
pub fn strides_in_result(
    view: &View,
    input: &(impl Axes + ?Sized),
    output: &(impl Axes + Ranges + ?Sized),
) -> Option<Vec<Extent>> {
    let len = output.count();
    if output.has_none() || !input.count().is_surely(len) || !in_bounds(&view.map, input, output) {
        return None;
    }
    let mut out_strides = vec![Extent::ONE; output.rank()];
    for axis in (1..output.rank()).rev() {
        out_strides[axis - 1] = out_strides[axis] * output.extent(axis);
    }
    let axes: Vec<usize> = (0..input.rank()).filter(|axis| !input.extent(*axis).is_surely(1)).collect();
    let mut strides = vec![Extent::ZERO; input.rank()];
    for &axis in &axes {
        let map = without_unit_vars(&view.map[axis], output);
        let (digit, modulus) = match map.as_atom()? {
            Atom::Mod(x, d) => (x.as_ref().clone(), Some(*d)),
            other => (Index::of(other.clone()), None),
        };
        let (source, divisor) = match digit.as_atom() {
            Some(Atom::Div(x, d)) => (x.as_ref().clone(), *d),
            _ => (digit, Extent::ONE),
        };
        let var = source.as_var()? as usize;
        let extent = output.extent(var);
        let count = match modulus {
            Some(m) => extent.sure_quotient(m * divisor).map(|_| m)?,
            None => extent.sure_quotient(divisor)?,
        };
        if !count.is_surely(input.extent(axis)) {
            return None;
        }
        strides[axis] = out_strides[var] * divisor;
    }
    // Every stride is the product of the extents of the axes below.
    let mut left = axes;
    let mut expected = Extent::ONE;
    while let Some(at) = left.iter().position(|axis| strides[*axis].is_surely(expected)) {
        expected = expected * input.extent(left.remove(at));
    }
    left.is_empty().then_some(strides)
}

/// The view that applies `first`, then `second`; `None` if their fills cannot be merged.
///
/// `middle` is the shape between them and `output` the result's.
pub fn compose(
    first: &View,
    first_input: &(impl Axes + ?Sized),
    second: &View,
    middle: &(impl Axes + Ranges + ?Sized),
    output: &(impl Axes + Ranges + ?Sized),
) -> Option<View> {
    let map: Vec<Index> = first.map.iter().map(|m| m.mapped(&second.map, output)).collect::<Option<_>>()?;
    let second_inside = second.fill.is_none() || in_bounds(&second.map, middle, output);
    let first_inside = first.fill.is_none() || in_bounds(&first.map, first_input, middle);
    let fill = match (first_inside, second_inside) {
        (true, true) => None,
        (false, true) => first.fill,
        // A coordinate outside the middle shape must also be outside the operand.
        (first_inside, false) => {
            let same = first_inside || first.fill == second.fill;
            if !same || !outside_stays_outside(first, first_input, second, middle, output) {
                return None;
            }
            second.fill
        }
    };
    Some(View { map, fill })
}

/// Whether leaving `middle` along any axis leaves the operand too: each middle axis that `second`
/// can leave must be, up to a shift that does not shrink the range, an operand axis of its own.
fn outside_stays_outside(
    first: &View,
    first_input: &(impl Axes + ?Sized),
    second: &View,
    middle: &(impl Axes + Ranges + ?Sized),
    output: &(impl Axes + Ranges + ?Sized),
) -> bool {
    (0..middle.rank()).all(|axis| {
        let (lo, hi) = second.map[axis].interval(output);
        let (starts, ends) = (lo.is_surely_from(0), hi.is_surely_below(middle.extent(axis)));
        if starts && ends {
            return true;
        }
        first.map.iter().zip(first_input.each()).any(|(m, n)| {
            let shifted = m.offset(-m.constant).as_var() == Some(axis as u32);
            let (low, high) = (m.constant, m.constant + middle.extent(axis));
            // Positions below 0 and from `middle` on must map outside `0..n`.
            shifted && (Extent::ZERO.is_surely_from(low) || starts) && (high.is_surely_from(n) || ends)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::delinearize;

    fn reshape(from: &[u64], to: &[u64]) -> View {
        let offset = linearize(&identity_map(to.len()), to);
        View { map: delinearize(&offset, from, to), fill: None }
    }

    fn transpose(perm: &[u32]) -> View {
        let mut map = vec![Index::default(); perm.len()];
        perm.iter().enumerate().for_each(|(out, axis)| map[*axis as usize] = Index::var(out as u32));
        View { map, fill: None }
    }

    fn ty(dims: &[u64]) -> DenseType {
        DenseType::new(tensorc_abi::DType::F32, dims)
    }

    #[test]
    fn reshapes_keep_linear_order_and_transposes_do_not() {
        for (from, to) in [
            (vec![24, 8192], vec![2, 12, 128, 64]),
            (vec![2, 12, 128, 64], vec![24, 8192]),
            (vec![6, 10], vec![4, 15]),
            (vec![6, 1, 10], vec![1, 60]),
            (vec![30, 7], vec![6, 35]),
        ] {
            assert!(keeps_linear_order(&reshape(&from, &to), &ty(&from), &to), "{from:?} to {to:?}");
        }
        assert!(!keeps_linear_order(&transpose(&[1, 0]), &ty(&[3, 4]), &[4, 3]));
        assert!(keeps_linear_order(&transpose(&[1, 0, 2]), &ty(&[3, 1, 4]), &[1, 3, 4]));
    }

    #[test]
    fn runs_start_where_the_first_element_lies() {
        let slice = |axis: usize, begin: i64, rank: usize| View {
            map: (0..rank).map(|a| Index::var(a as u32).offset(if a == axis { begin } else { 0 })).collect(),
            fill: None,
        };
        assert_eq!(run_offset(&slice(0, 2, 3), &ty(&[5, 3, 4]), &[2, 3, 4]), Some(24.into()));
        assert_eq!(run_offset(&slice(1, 1, 3), &ty(&[1, 3, 4]), &[1, 2, 4]), Some(4.into()));
        assert_eq!(run_offset(&slice(1, 1, 3), &ty(&[2, 3, 4]), &[2, 2, 4]), None);
        assert_eq!(run_offset(&slice(0, 4, 3), &ty(&[5, 3, 4]), &[2, 3, 4]), None);
        assert_eq!(run_offset(&reshape(&[6, 10], &[4, 15]), &ty(&[6, 10]), &[4, 15]), Some(0.into()));
        assert_eq!(run_offset(&transpose(&[1, 0]), &ty(&[3, 4]), &[4, 3]), None);
    }

    #[test]
    fn merging_heads_has_strides_in_the_result() {
        let (b, h, s, d) = (2, 12, 128, 64);
        let merge = compose(
            &transpose(&[0, 2, 1, 3]),
            &[b, h, s, d],
            &reshape(&[b, s, h, d], &[b, s, h * d]),
            &[b, s, h, d],
            &[b, s, h * d],
        )
        .unwrap();
        let strides = strides_in_result(&merge, &[b, h, s, d], &[b, s, h * d]).unwrap();
        assert_eq!(strides, [s * h * d, d, h * d, 1].map(Extent::from));
        assert_eq!(strides_in_result(&reshape(&[4, 15], &[6, 10]), &[4, 15], &[6, 10]), None);
    }

    #[test]
    fn fills_compose_only_when_nothing_inside_becomes_fill() {
        let zero = Some(crate::scalar::Scalar::f32(0.0));
        let shift = |by: i64, fill| View { map: vec![Index::var(0).offset(by)], fill };
        // pad 2 in front, then pad 1 more: one pad of 3.
        let padded = compose(&shift(-2, zero), &[4], &shift(-1, zero), &[8], &[10]).unwrap();
        assert_eq!(padded, shift(-3, zero));
        // Slice, then pad: the sliced-away elements must not come back.
        assert_eq!(compose(&shift(2, None), &[6], &shift(-1, zero), &[3], &[5]), None);
        let one = Some(crate::scalar::Scalar::f32(1.0));
        assert_eq!(compose(&shift(-2, one), &[4], &shift(-1, zero), &[8], &[10]), None);
    }
}
