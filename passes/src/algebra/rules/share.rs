//! Products that share an operand become one, and maps of its parts one map.

use egg::Id;
use rustc_hash::FxHashMap;
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, Prim};
use tensorc_ir::scalar::ScalarFn;
use tensorc_ir::{DType, Extent, Extents};

use super::view::{slice, slices};
use super::{Domain, Equal};
use crate::algebra::space::{Args, TensorSpace, TensorTerm};

/// Most products that become one.
const MAX_PRODUCTS: usize = 16;

/// What products must have in common: the shared operand and its side, the contraction and the shape of the weights
/// with the merged axis taken out, and that axis of both.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ProductKind {
    shared: Id,
    side: usize,
    contraction: Contraction,
    weights: Vec<u64>,
    dtype: DType,
    axes: (usize, usize),
}

struct SharedProduct {
    class: Id,
    term: TensorTerm,
    weights: Id,
    extent: Extent,
}

/// `x·V, x·W = slices of x·concat(V, W)`.
pub(super) fn products(space: &mut TensorSpace) -> Vec<Equal> {
    merge_products(space, Domain::Float)
}

pub(super) fn products_int(space: &mut TensorSpace) -> Vec<Equal> {
    merge_products(space, Domain::Integer)
}

fn merge_products(space: &mut TensorSpace, domain: Domain) -> Vec<Equal> {
    let mut kinds: FxHashMap<ProductKind, usize> = FxHashMap::default();
    let mut groups: Vec<(ProductKind, Vec<SharedProduct>)> = vec![];
    for (class, terms) in space.snapshot() {
        for term in terms {
            let Some((Prim::Contract(c), ty)) = space.of(&term) else { continue };
            if !domain.holds(ty) || space.is_constant(class) {
                continue;
            }
            let args = [0, 1].map(|i| space.find(term.args()[i]));
            for side in [0, 1] {
                let (shared, weights) = (args[side], args[1 - side]);
                if space.is_constant(shared) || !space.is_constant(weights) {
                    continue;
                }
                let Some((v, axis)) = merged_axis(c, side, space.dims(weights)) else { continue };
                let mut kind = ProductKind {
                    shared,
                    side,
                    contraction: (**c).clone(),
                    weights: space.dims(weights).to_vec(),
                    dtype: ty.dtype,
                    axes: (v, axis),
                };
                kind.contraction.extents.set(v, 0);
                kind.weights[axis] = 0;
                let at = *kinds.entry(kind.clone()).or_insert(groups.len());
                if at == groups.len() {
                    groups.push((kind, vec![]));
                }
                let product = SharedProduct { class, term: term.clone(), weights, extent: c.extents.at(v) };
                let members = &mut groups[at].1;
                if members.len() < MAX_PRODUCTS && members.iter().all(|m| m.weights != weights && m.class != class) {
                    members.push(product);
                }
            }
        }
    }
    let several = groups.into_iter().filter(|(_, members)| members.len() > 1);
    several.flat_map(|(kind, members)| merged(space, kind, members)).collect()
}

/// The axis of the result and that of the weights along which products can be put side by side.
fn merged_axis(c: &Contraction, side: usize, weights: &Extents) -> Option<(usize, usize)> {
    let (shared, own) = if side == 0 { (&c.lhs, &c.rhs) } else { (&c.rhs, &c.lhs) };
    (0..c.out_rank).rev().find_map(|v| {
        let var = v as u32;
        let mut axes = (0..own.len()).filter(|a| own[*a].mentions(var));
        let axis = axes.next()?;
        let step = own[axis].coefficient(var)?;
        let (lo, hi) = own[axis].sub(&Index::var(var).scale(step)).interval(&c.extents);
        let inside = lo.is_surely_from(0) && hi.is_surely_below(step);
        let outermost = step.is_surely_from(1) && inside && weights.at(axis).is_surely(step * c.extents.at(v));
        let free = axes.next().is_none() && !shared.iter().any(|m| m.mentions(var));
        (outermost && free && c.extents.at(v) > 0).then_some((v, axis))
    })
}

fn merged(space: &mut TensorSpace, kind: ProductKind, members: Vec<SharedProduct>) -> Vec<Equal> {
    let ProductKind { shared, side, contraction: mut c, axes: (v, axis), .. } = kind;
    space.look_at(members[0].class);
    let weights: Args = members.iter().map(|m| m.weights).collect();
    let Some(weights) = space.concat(&weights, axis).filter(|w| space.is_constant(*w)) else { return vec![] };
    c.extents.set(v, members.iter().map(|m| m.extent).sum::<Extent>());
    let (l, r) = if side == 0 { (shared, weights) } else { (weights, shared) };
    let product = space.contract(c, l, r);
    let mut start = Extent::ZERO;
    let part = |m: SharedProduct| {
        let new = slice(space, product, v, start, m.extent);
        start = start + m.extent;
        Equal { class: m.class, term: m.term, new }
    };
    members.into_iter().map(part).collect()
}

/// A map of one slice and constants.
struct SlicePart {
    class: Id,
    term: TensorTerm,
    start: Extent,
    extent: Extent,
    constants: Vec<Id>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct MapKind {
    source: Id,
    axis: usize,
    body: ScalarFn,
    /// Which operand the slice is.
    variable: usize,
    /// Shapes of the others, 0 where they follow the slice.
    shapes: Vec<Vec<u64>>,
}

/// `f(slice x, V), f(slice x, W) = slices of f(x, concat(V, W))`, if the slices make up all of `x`.
pub(super) fn maps(space: &mut TensorSpace) -> Vec<Equal> {
    let mut kinds: FxHashMap<MapKind, usize> = FxHashMap::default();
    let mut groups: Vec<(MapKind, Vec<SlicePart>)> = vec![];
    for (class, terms) in space.snapshot() {
        for term in terms {
            let Some((kind, part)) = map_of_slice(space, class, &term) else { continue };
            let at = *kinds.entry(kind.clone()).or_insert(groups.len());
            if at == groups.len() {
                groups.push((kind, vec![]));
            }
            groups[at].1.push(part);
        }
    }
    let mut found = vec![];
    for (kind, mut parts) in groups {
        parts.sort_by_key(|p| p.start);
        parts.dedup_by_key(|p| p.start);
        let mut next = Extent::ZERO;
        let whole = parts.iter().all(|p| std::mem::replace(&mut next, p.start + p.extent) == p.start);
        if whole && next == space.dims(kind.source).at(kind.axis) && parts.len() > 1 {
            found.extend(one_map(space, kind, parts).unwrap_or_default());
        }
    }
    found
}

fn map_of_slice(space: &TensorSpace, class: Id, term: &TensorTerm) -> Option<(MapKind, SlicePart)> {
    let (Prim::Map(f), ty) = space.of(term)? else { return None };
    let args = term.args();
    let mut varying = (0..args.len()).filter(|i| !space.is_constant(args[*i]));
    let variable = varying.next().filter(|_| varying.next().is_none())?;
    if f.outputs.len() != 1 || f.uses_coord() || *space.dims(args[variable]) != ty.dims {
        return None;
    }
    let own = slices(space, args[variable]).into_iter().next()?;
    let extent = ty.dims.at(own.axis);
    let constants: Vec<Id> =
        args.iter().enumerate().filter(|(i, _)| *i != variable).map(|(_, a)| space.find(*a)).collect();
    let shape = |c: &Id| {
        let mut dims = space.dims(*c).to_vec();
        let lead = ty.rank() - dims.len();
        if let Some(n) =
            own.axis.checked_sub(lead).and_then(|i| dims.get_mut(i)).filter(|n| extent == **n && extent != 1)
        {
            *n = 0;
        }
        dims
    };
    let shapes = constants.iter().map(shape).collect();
    let kind = MapKind { source: space.find(own.source), axis: own.axis, body: (**f).clone(), variable, shapes };
    Some((kind, SlicePart { class, term: term.clone(), start: own.start, extent, constants }))
}

fn one_map(space: &mut TensorSpace, kind: MapKind, parts: Vec<SlicePart>) -> Option<Vec<Equal>> {
    let MapKind { source, axis, body, variable, .. } = kind;
    space.look_at(parts[0].class);
    let dims = space.dims(source).clone();
    let mut args: Args = Args::new();
    for i in 0..parts[0].constants.len() {
        let each: Args = parts.iter().map(|p| p.constants[i]).collect();
        let rank = space.dims(each[0]).len();
        let along = axis.checked_sub(dims.len() - rank).filter(|at| space.dims(each[0]).at(*at) != 1);
        args.push(match along {
            Some(at) => space.concat(&each, at)?,
            None if each.iter().all(|c| *c == each[0]) => each[0],
            None => return None,
        });
    }
    if !args.iter().all(|a| space.is_constant(*a)) {
        return None;
    }
    args.insert(variable, source);
    let whole = space.map(body, &args, dims)?;
    let part = |p: SlicePart| Equal { class: p.class, term: p.term, new: slice(space, whole, axis, p.start, p.extent) };
    Some(parts.into_iter().map(part).collect())
}
