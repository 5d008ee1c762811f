//! Scales and shifts move through contractions into constant weights.

use std::sync::Arc;

use egg::Id;
use tensorc_ir::index::{Atom, Index};
use tensorc_ir::prim::{Contraction, Prim};
use tensorc_ir::scalar::{ScalarFn, ScalarOp};
use tensorc_ir::views::in_bounds;
use tensorc_ir::{Extent, Extents, TensorData};

use super::RuleSite;
use crate::algebra::affine::Affine;
use crate::algebra::space::{Args, TensorSpace, broadcast};

/// A map that is affine in its only operand that is not constant, which has the shape of its result.
struct AffineMap {
    variable: Id,
    parts: Arc<Affine>,
    constants: Args,
}

fn affine_map(space: &mut TensorSpace, f: &Arc<ScalarFn>, args: &[Id], dims: &Extents) -> Option<AffineMap> {
    let varies = |i: &usize| !space.is_constant(args[*i]);
    let at = (0..args.len()).find(varies)?;
    if (at + 1..args.len()).any(|i| varies(&i)) || space.dims(args[at]) != dims {
        return None;
    }
    let parts = space.affine(f, at)?;
    let constants = args.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, a)| *a).collect();
    Some(AffineMap { variable: args[at], parts, constants })
}

/// A function of constants as a tensor, as small as it can be.
fn coefficient(space: &mut TensorSpace, f: &ScalarFn, constants: &[Id]) -> Option<Id> {
    let (f, used) = f.without_unused();
    if used.is_empty() {
        let value = *f.eval(&[], &[]).first()?;
        return Some(space.constant(TensorData::scalar(value)));
    }
    let args: Args = used.iter().map(|i| constants[*i]).collect();
    let dims = broadcast(args.iter().map(|a| space.dims(*a)));
    space.map(f, &args, dims)
}

/// A binary operation of elements.
pub(super) fn elements(space: &mut TensorSpace, op: ScalarOp, x: Id, y: Id) -> Option<Id> {
    let types = [space.ty(x).dtype, space.ty(y).dtype];
    let f = ScalarFn::build(&types, |b, a| vec![b.op(op, &[&a[0], &a[1]])]).ok()?;
    let dims = broadcast([space.dims(x), space.dims(y)]);
    space.map(f, &[x, y], dims)
}

/// For each iteration variable, its value as a function of an operand's coordinates, where these tell it: the
/// variable must be a digit of one coordinate.
fn digits(map: &[Index], dims: &[u64], extents: &Extents) -> Vec<Option<Index>> {
    let mut known: Vec<Option<Index>> = extents.all().map(|n| n.is_surely(1).then(Index::default)).collect();
    for (axis, index) in map.iter().enumerate() {
        let mut terms: Vec<(usize, i64)> = vec![];
        let plain = index.terms.iter().all(|(atom, k)| match atom {
            Atom::Var(v) => k.known().map(|k| terms.push((*v as usize, k))).is_some(),
            _ => false,
        });
        terms.retain(|(v, _)| !extents.at(*v).is_surely(1));
        terms.sort_by_key(|(_, k)| *k);
        let mut next = Extent::ONE;
        let radix = terms.iter().all(|(v, k)| {
            let fits = next.is_surely(*k);
            next = next.saturating_mul(extents.at(*v));
            fits
        });
        if !(plain && radix && index.constant.is_surely(0) && next.is_surely(dims[axis])) {
            continue;
        }
        for (v, k) in terms {
            let value = Index::var(axis as u32).floor_div(k, dims).modulo(extents.at(v), dims);
            known[v].get_or_insert(value);
        }
    }
    known
}

/// A tensor that broadcasts to one read at `place`, as a tensor that broadcasts to the weights; `None` if one
/// element of the weights meets several of its elements.
fn onto_weights(
    space: &mut TensorSpace,
    a: Id,
    place: &[Index],
    c: &Contraction,
    weights: (Id, &[Index]),
) -> Option<Id> {
    let dims = space.dims(weights.0).to_vec();
    let known = digits(weights.1, &dims, &c.extents);
    let from = space.dims(a).to_vec();
    let lead = place.len().checked_sub(from.len())?;
    let mut map = vec![];
    for (i, n) in from.iter().enumerate() {
        let index = &place[lead + i];
        map.push(if *n == 1 {
            Index::default()
        } else {
            index.try_substitute(&|v| known.get(v as usize)?.clone(), &dims[..])?
        });
    }
    let mentioned = |axis: usize| map.iter().any(|m| m.mentions(axis as u32));
    let shape: Vec<u64> = dims.iter().enumerate().map(|(i, n)| if mentioned(i) { *n } else { 1 }).collect();
    let inside = in_bounds(&map, &from, &shape);
    inside.then(|| space.view(a, map, None, shape))
}

/// The weights times a tensor that broadcasts to them, if that is computed while compiling.
fn scaled(space: &mut TensorSpace, weights: Id, by: Id) -> Option<Id> {
    let new = elements(space, ScalarOp::Mul, weights, by)?;
    (space.is_constant(new) && space.dims(new) == space.dims(weights)).then_some(new)
}

/// `A*(x·W) + B = x·(A*W) + B`.
pub(super) fn after_product(space: &mut TensorSpace, site: &RuleSite<'_>) -> Vec<Id> {
    let Prim::Map(f) = site.prim else { return vec![] };
    let Some(map) = affine_map(space, f, site.args, &site.ty.dims) else { return vec![] };
    let Some(scale) = &map.parts.scale else { return vec![] };
    let mut found = vec![];
    for (c, args) in space.contractions(map.variable) {
        for port in [1, 0] {
            if !space.is_constant(args[port]) {
                continue;
            }
            let place: Vec<Index> = (0..c.out_rank as u32).map(Index::var).collect();
            let own = if port == 0 { &c.lhs } else { &c.rhs };
            let new = coefficient(space, scale, &map.constants)
                .and_then(|a| onto_weights(space, a, &place, &c, (args[port], own)))
                .and_then(|a| scaled(space, args[port], a));
            let Some(weights) = new else { continue };
            let mut operands = args;
            operands[port] = weights;
            let product = space.contract((*c).clone(), operands[0], operands[1]);
            found.extend(shifted(space, product, &map));
            break;
        }
    }
    found
}

fn shifted(space: &mut TensorSpace, x: Id, map: &AffineMap) -> Option<Id> {
    match &map.parts.shift {
        Some(shift) => {
            let b = coefficient(space, shift, &map.constants)?;
            elements(space, ScalarOp::Add, x, b)
        }
        None => Some(x),
    }
}

/// `(A*x + B)·W = x·(A*W) + B·W`.
pub(super) fn before_product(space: &mut TensorSpace, site: &RuleSite<'_>) -> Vec<Id> {
    let Prim::Contract(c) = site.prim else { return vec![] };
    let mut found = vec![];
    for port in [0, 1] {
        let (arg, weights) = (site.args[port], site.args[1 - port]);
        if !space.is_constant(weights) || space.is_constant(arg) {
            continue;
        }
        let dims = space.dims(arg).clone();
        for (f, args) in space.maps(arg) {
            if let Some(map) = affine_map(space, &f, &args, &dims) {
                found.extend(through(space, c, port, weights, &map, &dims));
            }
        }
    }
    found
}

fn through(
    space: &mut TensorSpace,
    c: &Contraction,
    port: usize,
    weights: Id,
    map: &AffineMap,
    dims: &Extents,
) -> Option<Id> {
    let (place, own) = if port == 0 { (&c.lhs, &c.rhs) } else { (&c.rhs, &c.lhs) };
    let mut new = weights;
    if let Some(scale) = &map.parts.scale {
        let a = coefficient(space, scale, &map.constants)?;
        let a = onto_weights(space, a, place, c, (weights, own))?;
        new = scaled(space, weights, a)?;
    }
    let ordered = |x: Id, w: Id| if port == 0 { (x, w) } else { (w, x) };
    let (lhs, rhs) = ordered(map.variable, new);
    let Some(shift) = &map.parts.shift else { return Some(space.contract(c.clone(), lhs, rhs)) };
    // Outside the left operand nothing is added.
    if !in_bounds(place, dims, &c.extents) || !in_bounds(own, space.dims(weights), &c.extents) {
        return None;
    }
    let b = coefficient(space, shift, &map.constants)?;
    let from = space.dims(b).to_vec();
    let lead = place.len() - from.len();
    let reads: Vec<Index> = from
        .iter()
        .enumerate()
        .map(|(i, n)| if *n == 1 { Index::default() } else { place[lead + i].clone() })
        .collect();
    let needed = |v: usize| v >= c.out_rank || reads.iter().chain(own).any(|m| m.mentions(v as u32));
    let extent = |v: usize| if needed(v) { c.extents.at(v) } else { Extent::ONE };
    let extents: Extents = (0..c.extents.len()).map(extent).collect();
    let (b_map, w_map) = (reads, own.clone());
    let (l, r) = if port == 0 { (b_map, w_map) } else { (w_map, b_map) };
    let sum = Contraction::new(extents, c.out_rank, l, r);
    let (bl, br) = ordered(b, weights);
    let constant = space.contract(sum, bl, br);
    if !space.is_constant(constant) {
        return None;
    }
    let product = space.contract(c.clone(), lhs, rhs);
    elements(space, ScalarOp::Add, product, constant)
}

/// `A*(C*x + D) + B = (A*C)*x + (A*D + B)`.
pub(super) fn meet(space: &mut TensorSpace, site: &RuleSite<'_>) -> Vec<Id> {
    let Prim::Map(f) = site.prim else { return vec![] };
    let Some(outer) = affine_map(space, f, site.args, &site.ty.dims) else { return vec![] };
    let mut found = vec![];
    for (g, args) in space.maps(outer.variable) {
        let Some(inner) = affine_map(space, &g, &args, &site.ty.dims) else { continue };
        if inner.constants.is_empty() && outer.constants.is_empty() {
            continue;
        }
        found.extend(composed(space, &outer, &inner));
    }
    found
}

fn composed(space: &mut TensorSpace, outer: &AffineMap, inner: &AffineMap) -> Option<Id> {
    let mut parts: [Option<Id>; 4] = [None; 4];
    let given = [
        (&outer.parts.scale, outer),
        (&outer.parts.shift, outer),
        (&inner.parts.scale, inner),
        (&inner.parts.shift, inner),
    ];
    for (slot, (f, map)) in parts.iter_mut().zip(given) {
        if let Some(f) = f {
            *slot = Some(coefficient(space, f, &map.constants)?);
        }
    }
    let [a, b, c, d] = parts;
    let scale = match (a, c) {
        (Some(a), Some(c)) => Some(elements(space, ScalarOp::Mul, a, c)?),
        (a, c) => a.or(c),
    };
    let moved = match (a, d) {
        (Some(a), Some(d)) => Some(elements(space, ScalarOp::Mul, a, d)?),
        (_, d) => d,
    };
    let shift = match (moved, b) {
        (Some(m), Some(b)) => Some(elements(space, ScalarOp::Add, m, b)?),
        (m, b) => m.or(b),
    };
    if ![scale, shift].into_iter().flatten().all(|v| space.is_constant(v)) {
        return None;
    }
    let mut x = inner.variable;
    let f = match (scale, shift) {
        (Some(_), Some(_)) => |t| ScalarFn::build(&[t; 3], |_, a| vec![&(&a[0] * &a[1]) + &a[2]]),
        (Some(_), None) => |t| ScalarFn::build(&[t; 2], |_, a| vec![&a[0] * &a[1]]),
        _ => |t| ScalarFn::build(&[t; 2], |_, a| vec![&a[0] + &a[1]]),
    };
    let dims = space.dims(x).clone();
    let args: Args = [Some(x), scale, shift].into_iter().flatten().collect();
    if args.len() > 1 {
        x = space.map(f(space.ty(x).dtype).ok()?, &args, &dims)?;
    }
    Some(x)
}
