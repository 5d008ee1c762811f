//! Views, concatenations and element-wise functions change places.

use egg::Id;
use tensorc_ir::extent::{Axes, Extent, Extents};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::scalar::ScalarFn;
use tensorc_ir::views::in_bounds;

use super::RuleSite;
use crate::algebra::space::{Args, TensorSpace};

/// For each axis of the operand, the axis of the result that it becomes, if the view only reorders axes.
pub(super) fn permutation(view: &View, from: &Extents, dims: &Extents) -> Option<Vec<usize>> {
    let axes: Vec<usize> = view.map.iter().map(|m| m.as_var().map(|v| v as usize)).collect::<Option<_>>()?;
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    let whole = axes.iter().zip(from.all()).all(|(to, n)| *to < dims.len() && dims.at(*to).is_surely(n));
    (whole && sorted.iter().copied().eq(0..dims.len())).then_some(axes)
}

/// A view of a concatenation that reads one part only is a view of that part.
pub(super) fn of_concat(space: &mut TensorSpace, site: &RuleSite<'_>) -> Vec<Id> {
    let Prim::View(view) = site.prim else { return vec![] };
    let dims = &site.ty.dims;
    let inside = in_bounds(&view.map, space.dims(site.args[0]), dims);
    if !inside || dims.has_none() {
        return vec![];
    }
    let mut found = vec![];
    for (prim, parts) in space.forms(site.args[0]) {
        let Prim::Concat { axis } = prim else { continue };
        let (lo, hi) = view.map[axis].interval(dims);
        let mut start = Extent::ZERO;
        for part in parts {
            let end = start + space.dims(part).at(axis);
            if lo.is_surely_from(start) && hi.is_surely_below(end) {
                let mut map = view.map.clone();
                map[axis] = map[axis].offset(-start);
                found.push(space.view(part, map, None, dims));
            }
            start = end;
        }
    }
    found
}

/// A slice along one axis: its source, the axis, where it begins.
pub(super) struct Slice {
    pub source: Id,
    pub axis: usize,
    pub start: Extent,
}

/// The forms of a tensor that are slices along one axis.
pub(super) fn slices(space: &TensorSpace, v: Id) -> Vec<Slice> {
    let dims = space.dims(v);
    let slice = |(view, source): (std::sync::Arc<View>, Id)| {
        let from = space.dims(source);
        if view.fill.is_some() || from.len() != dims.len() || dims.has_none() {
            return None;
        }
        let mut at = None;
        for (i, m) in view.map.iter().enumerate() {
            let moved = m.sub(&Index::var(i as u32)).as_extent();
            let start = moved.or_else(|| m.as_extent().filter(|_| dims.at(i).is_surely(1)))?;
            let whole = start.is_surely(0) && from.at(i).is_surely(dims.at(i));
            if !whole && at.replace((i, start)).is_some() {
                return None;
            }
        }
        at.map(|(axis, start)| Slice { source, axis, start })
    };
    space.views(v).into_iter().filter_map(slice).collect()
}

/// A slice of `n` from `start` on.
pub(super) fn slice(space: &mut TensorSpace, source: Id, axis: usize, start: Extent, n: Extent) -> Id {
    let mut dims = space.dims(source).clone();
    dims.set(axis, n);
    let at = |i: usize| Index::var(i as u32).offset(if i == axis { start } else { Extent::ZERO });
    space.view(source, (0..dims.len()).map(at).collect(), None, dims)
}

/// Neighbouring slices that are put together again are one slice, or all.
pub(super) fn concat_of_slices(space: &mut TensorSpace, site: &RuleSite<'_>) -> Vec<Id> {
    let Prim::Concat { axis } = site.prim else { return vec![] };
    let mut found = vec![];
    for first in slices(space, site.args[0]).into_iter().filter(|s| s.axis == *axis) {
        let mut next = first.start;
        let fits = site.args.iter().all(|part| {
            let own = slices(space, *part);
            let here = own.iter().any(|s| {
                (space.find(s.source), s.axis) == (space.find(first.source), *axis) && s.start.is_surely(next)
            });
            next = next + space.dims(*part).at(*axis);
            here
        });
        if fits {
            found.push(slice(space, first.source, *axis, first.start, next - first.start));
        }
    }
    found
}

/// Whether a body is the same at every position.
fn moves(f: &ScalarFn) -> bool {
    f.outputs.len() == 1 && !f.uses_coord()
}

/// `f(view x, view y) = view f(x, y)`.
pub(super) fn through_map(space: &mut TensorSpace, site: &RuleSite<'_>) -> Vec<Id> {
    let Prim::Map(f) = site.prim else { return vec![] };
    let dims = &site.ty.dims;
    let Some(seen) = site.args.iter().find(|a| *space.dims(**a) == *dims && !space.is_constant(**a)) else {
        return vec![];
    };
    if !moves(f) || dims.has_none() {
        return vec![];
    }
    let mut found = vec![];
    for (view, source) in space.views(*seen) {
        let from = space.dims(source).clone();
        if view.fill.is_some() {
            continue;
        }
        let operands: Option<Args> = site.args.iter().map(|a| behind(space, *a, &view, &from, dims)).collect();
        let moved = operands.and_then(|args| space.map((**f).clone(), &args, from));
        found.extend(moved.map(|m| space.view(m, view.map.clone(), None, dims)));
    }
    found
}

/// The tensor that becomes `v` by a view from shape `from` to `dims`, or that broadcasts to it.
fn behind(space: &mut TensorSpace, v: Id, view: &View, from: &Extents, dims: &Extents) -> Option<Id> {
    let own = space.dims(v).clone();
    if own.all().all(|n| n.is_surely(1)) && own.len() <= from.len() {
        return Some(v);
    }
    let same = |(w, source): &(std::sync::Arc<View>, Id)| **w == *view && *space.dims(*source) == *from;
    if let (true, Some((_, source))) = (own == *dims, space.views(v).into_iter().find(same)) {
        return Some(source);
    }
    // Along reordered axes, a constant can be reordered back.
    let axes = permutation(view, from, dims).filter(|_| space.is_constant(v))?;
    let lead = dims.len() - own.len();
    let extent = |axis: &usize| axis.checked_sub(lead).map_or(Extent::ONE, |i| own.at(i));
    let shape: Extents = axes.iter().map(extent).collect();
    let at = |i: usize| axes.iter().position(|to| *to == lead + i).map_or(0, |p| p as u32);
    let map =
        (0..own.len()).map(|i| if own.at(i).is_surely(1) { Index::default() } else { Index::var(at(i)) }).collect();
    Some(space.view(v, map, None, shape))
}

/// `view f(x, y) = f(view x, view y)`.
pub(super) fn into_map(space: &mut TensorSpace, site: &RuleSite<'_>) -> Vec<Id> {
    let Prim::View(view) = site.prim else { return vec![] };
    let (from, dims) = (space.dims(site.args[0]).clone(), &site.ty.dims);
    if !in_bounds(&view.map, &from, dims) || dims.has_none() {
        return vec![];
    }
    let mut found = vec![];
    for (f, args) in space.maps(site.args[0]) {
        if !moves(&f) {
            continue;
        }
        let operands: Option<Args> = args.iter().map(|a| before(space, *a, view, &from, dims)).collect();
        found.extend(operands.and_then(|args| space.map((*f).clone(), &args, dims)));
    }
    found
}

/// An operand of a map, viewed as its result is.
fn before(space: &mut TensorSpace, v: Id, view: &View, from: &Extents, dims: &Extents) -> Option<Id> {
    let own = space.dims(v).clone();
    if own.all().all(|n| n.is_surely(1)) && own.len() <= dims.len() {
        return Some(v);
    }
    if own == *from {
        return Some(space.view(v, view.map.clone(), None, dims));
    }
    let axes = permutation(view, from, dims)?;
    let lead = from.len() - own.len();
    let mut shape = vec![Extent::ONE; dims.len()];
    own.all().enumerate().for_each(|(i, n)| shape[axes[lead + i]] = n);
    let coordinate = |i: usize| match own.at(i).is_repeated_along(from.at(lead + i)) {
        true => Index::default(),
        false => Index::var(axes[lead + i] as u32),
    };
    let map = (0..own.len()).map(coordinate).collect();
    Some(space.view(v, map, None, Extents::from_iter(shape)))
}
