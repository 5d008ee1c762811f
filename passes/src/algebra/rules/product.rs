//! Associativity and distributivity of contractions.

use std::sync::Arc;

use egg::Id;
use tensorc_ir::extent::{Extent, Extents, advice};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, Prim};
use tensorc_ir::scalar::ScalarOp;
use tensorc_schedule::recognise::contract::as_image_convolution;

use super::scale::elements;
use super::view::permutation;
use super::{RuleSite, sum_or_difference};
use crate::algebra::space::TensorSpace;

/// What each axis of an operand is called; `None` for an axis of extent 1 without a name.
type AxisNames = Vec<Option<usize>>;

/// The names of an operand's axes, if each is a whole iteration axis of its own.
fn names(map: &[Index], dims: &Extents, extents: &Extents) -> Option<AxisNames> {
    let mut seen = vec![false; extents.len()];
    let name = |(index, n): (&Index, Extent)| match (index.as_var().map(|v| v as usize), index.as_constant()) {
        (Some(v), _) if extents.at(v).is_surely(n) && !std::mem::replace(&mut seen[v], true) => Some(Some(v)),
        (_, Some(0)) if n.is_surely(1) => Some(None),
        _ => None,
    };
    map.iter().zip(dims.all()).map(name).collect()
}

/// A product of two operands by names, summed over all names that are not in the result. Every name has an extent.
fn named_product(
    space: &mut TensorSpace,
    lhs: (Id, &AxisNames),
    rhs: (Id, &AxisNames),
    out: &[usize],
    extents: &[Extent],
) -> Id {
    let mut order = out.to_vec();
    for name in lhs.1.iter().chain(rhs.1).flatten() {
        if !order.contains(name) {
            order.push(*name);
        }
    }
    let at = |name: &Option<usize>| {
        let position = name.and_then(|n| order.iter().position(|o| *o == n));
        position.map_or(Index::default(), |p| Index::var(p as u32))
    };
    let extents: Extents = order.iter().map(|n| extents[*n]).collect();
    let reads = |names: &[Option<usize>]| names.iter().map(at).collect();
    space.contract(Contraction::new(extents, out.len(), reads(lhs.1), reads(rhs.1)), lhs.0, rhs.0)
}

/// `(x·y)·z = x·(y·z)`, and the same with the operands of a product exchanged.
pub(super) fn reassociate(space: &mut TensorSpace, site: &RuleSite<'_>) -> Vec<Id> {
    let Prim::Contract(c) = site.prim else { return vec![] };
    let mut found = vec![];
    for side in [0, 1] {
        for (inner, operands) in space.contractions(site.args[side]) {
            found.extend(rotations(space, c, side, site.args, &inner, operands));
        }
    }
    found
}

fn rotations(
    space: &mut TensorSpace,
    c: &Contraction,
    side: usize,
    args: &[Id],
    inner: &Contraction,
    operands: [Id; 2],
) -> Vec<Id> {
    let maps = [&c.lhs, &c.rhs];
    let named = |space: &TensorSpace, i: usize| names(maps[i], space.dims(args[i]), &c.extents);
    let (Some(through), Some(z)) = (named(space, side), named(space, 1 - side)) else { return vec![] };
    let mut extents: Vec<Extent> = c.extents.all().collect();
    // The inner product's axes under the outer names; sums of its own get new ones.
    let mut called: Vec<Option<usize>> = through.clone();
    for n in inner.extents.all().skip(inner.out_rank) {
        extents.push(n);
        called.push(Some(extents.len() - 1));
    }
    let inner_names = |space: &TensorSpace, map: &[Index], v: Id| -> Option<AxisNames> {
        let own = names(map, space.dims(v), &inner.extents)?;
        Some(own.into_iter().map(|name| name.and_then(|n| called[n])).collect())
    };
    let (Some(x), Some(y)) = (inner_names(space, &inner.lhs, operands[0]), inner_names(space, &inner.rhs, operands[1]))
    else {
        return vec![];
    };
    let out: Vec<usize> = (0..c.out_rank).collect();
    let everywhere: Vec<usize> = x.iter().chain(&y).chain(&z).flatten().copied().collect();
    if (0..extents.len()).any(|n| extents[n] != 1 && !everywhere.contains(&n)) {
        return vec![];
    }
    let mut found = vec![];
    let both = [(operands[0], &x), (operands[1], &y)];
    for (i, (u, u_names)) in both.into_iter().enumerate().rev() {
        let (w, w_names) = both[1 - i];
        if !u_names.iter().flatten().any(|n| *n >= c.out_rank && z.contains(&Some(*n))) {
            continue;
        }
        // The order of operands stays where it can, as in products of matrices.
        let (a, b) = if side == 0 { ((u, u_names), (args[1], &z)) } else { ((args[0], &z), (u, u_names)) };
        let mut kept: Vec<usize> = vec![];
        for n in a.1.iter().chain(b.1).flatten() {
            if !kept.contains(n) && (*n < c.out_rank || w_names.contains(&Some(*n))) {
                kept.push(*n);
            }
        }
        let pair = named_product(space, a, b, &kept, &extents);
        let pair_names: AxisNames = kept.into_iter().map(Some).collect();
        let (pair, w) = ((pair, &pair_names), (w, w_names));
        let (l, r) = if side == 0 && i == 1 { (w, pair) } else { (pair, w) };
        found.push(named_product(space, l, r, &out, &extents));
    }
    found
}

/// `x·y ± x·z = x·(y ± z)`, on either side.
pub(super) fn factor(space: &mut TensorSpace, site: &RuleSite<'_>) -> Vec<Id> {
    let Prim::Map(f) = site.prim else { return vec![] };
    let (Some(op), [p, q]) = (sum_or_difference(f), site.args) else { return vec![] };
    let mut found = vec![];
    for (c, [x, y]) in space.contractions(*p) {
        for (d, [v, w]) in space.contractions(*q) {
            if c != d || space.ty(*p) != site.ty || space.ty(*q) != site.ty {
                continue;
            }
            let same = |a: Id, b: Id| space.find(a) == space.find(b);
            if same(x, v) && space.ty(y) == space.ty(w) {
                found.extend(elements(space, op, y, w).map(|sum| space.contract((*c).clone(), x, sum)));
            } else if same(y, w) && space.ty(x) == space.ty(v) {
                found.extend(elements(space, op, x, v).map(|sum| space.contract((*c).clone(), sum, y)));
            }
        }
    }
    found
}

/// `x·(y ± z) = x·y ± x·z`, if one of the products is there anyway.
pub(super) fn distribute(space: &mut TensorSpace, site: &RuleSite<'_>) -> Vec<Id> {
    let Prim::Contract(c) = site.prim else { return vec![] };
    let mut found = vec![];
    for side in [0, 1] {
        for (f, args) in space.maps(site.args[side]) {
            let (Some(op), &[p, q]) = (sum_or_difference(&f), &args[..]) else { continue };
            let ty = space.ty(site.args[side]).clone();
            if *space.ty(p) == ty && *space.ty(q) == ty {
                found.extend(distributed(space, c, op, side, site.args, [p, q]));
            }
        }
    }
    found
}

fn distributed(
    space: &mut TensorSpace,
    c: &Arc<Contraction>,
    op: ScalarOp,
    side: usize,
    args: &[Id],
    parts: [Id; 2],
) -> Option<Id> {
    let with = |v: Id| if side == 0 { [v, args[1]] } else { [args[0], v] };
    let known = parts.iter().any(|v| {
        let [l, r] = with(*v);
        space.known_contract(c, l, r).is_some()
    });
    if !known {
        return None;
    }
    let [p, q] = parts.map(|v| {
        let [l, r] = with(v);
        space.contract((**c).clone(), l, r)
    });
    elements(space, op, p, q)
}

/// A transposition of a product is the product in another order.
pub(super) fn transpose(space: &mut TensorSpace, site: &RuleSite<'_>) -> Vec<Id> {
    let Prim::View(view) = site.prim else { return vec![] };
    let Some(axes) = permutation(view, space.dims(site.args[0]), &site.ty.dims) else { return vec![] };
    let mut found = vec![];
    for (c, [l, r]) in space.contractions(site.args[0]) {
        // Axis `i` of the product is axis `axes[i]` of the result.
        let at = |v: u32| match axes.get(v as usize) {
            Some(to) => Index::var(*to as u32),
            None => Index::var(v),
        };
        let extents: Extents = site.ty.dims.all().chain(c.extents.all().skip(c.out_rank)).collect();
        let through = |map: &[Index]| map.iter().map(|m| m.substitute(&at, &extents)).collect();
        let (lhs, rhs) = (through(&c.lhs), through(&c.rhs));
        let moved = Contraction::new(extents, c.out_rank, lhs, rhs);
        // In which layouts a convolution computes is chosen elsewhere, and with others around it.
        if advice(|| as_image_convolution(&moved, space.ty(l), space.ty(r))).is_none() {
            found.push(space.contract(moved, l, r));
        }
    }
    found
}
