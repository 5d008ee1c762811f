//! Sums of products.

use egg::Id;
use tensorc_ir::extent::{Axes, Extent, Extents};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, Prim, Reduction};
use tensorc_ir::scalar::{ScalarFn, ScalarOp};

use super::{RuleSite, binary, is_sum};
use crate::algebra::space::TensorSpace;

/// A sum of one operand's elements, up to a function of the result.
fn plain_sum<'a>(site: &RuleSite<'a>) -> Option<(&'a Reduction, Id)> {
    let (Prim::Reduce(r), [arg]) = (site.prim, site.args) else { return None };
    let single = r.finish.outputs.len() == 1 && r.finish.inputs.len() == 1;
    (r.map.is_identity() && is_sum(&r.combine, &r.init) && single).then_some((r, *arg))
}

/// Gives a sum with all axes the shape and the last step of a reduction.
fn finished(space: &mut TensorSpace, r: &Reduction, sum: Id, site: &RuleSite<'_>) -> Option<Id> {
    let kept = (0..space.dims(sum).len()).scan(0, |next, axis| {
        let folded = r.axes.contains(&axis);
        let index = if folded { Index::default() } else { Index::var(*next) };
        *next += u32::from(!folded);
        Some(index)
    });
    let map: Vec<Index> = kept.collect();
    let shaped = if r.keep_dims { sum } else { space.view(sum, map, None, &site.ty.dims) };
    match r.finish.is_identity() {
        true => Some(shaped),
        false => space.map(r.finish.clone(), &[shaped], &site.ty.dims),
    }
}

/// `sum(x·y) = x·sum(y)` over axes that only `y` has.
pub(super) fn of_product(space: &mut TensorSpace, site: &RuleSite<'_>) -> Vec<Id> {
    let Some((r, arg)) = plain_sum(site) else { return vec![] };
    let mut found = vec![];
    for (c, args) in space.contractions(arg) {
        for port in [0, 1] {
            found.extend(summed(space, r, &c, args, port).and_then(|sum| finished(space, r, sum, site)));
        }
    }
    found
}

fn summed(space: &mut TensorSpace, r: &Reduction, c: &Contraction, args: [Id; 2], port: usize) -> Option<Id> {
    let (own, other) = if port == 0 { (&c.lhs, &c.rhs) } else { (&c.rhs, &c.lhs) };
    let dims = space.dims(args[port]).clone();
    let mut axes = vec![];
    for v in &r.axes {
        let whole = |(i, m): (usize, &Index)| {
            (m.as_var() == Some(*v as u32) && dims.at(i).is_surely(c.extents.at(*v))).then_some(i)
        };
        let mentions = own.iter().chain(other).filter(|m| m.mentions(*v as u32)).count();
        axes.push(own.iter().enumerate().find_map(whole).filter(|_| mentions == 1)?);
    }
    axes.sort_unstable();
    if axes.is_empty() {
        return None;
    }
    let dtype = space.ty(args[port]).dtype;
    let identity = ScalarFn::identity(dtype);
    let sum = Reduction { axes: axes.clone(), keep_dims: true, map: identity.clone(), finish: identity, ..r.clone() };
    let sum = space.reduce(sum, &[args[port]])?;
    let mut new = c.clone();
    r.axes.iter().for_each(|v| new.extents.set(*v, 1));
    let map = if port == 0 { &mut new.lhs } else { &mut new.rhs };
    axes.iter().for_each(|axis| map[*axis] = Index::default());
    let mut operands = args;
    operands[port] = sum;
    Some(space.contract(new, operands[0], operands[1]))
}

/// `sum(x*y) = x·y`, where each of the two is repeated along axes of the other: what is written with broadcasting
/// is a product of matrices.
pub(super) fn to_product(space: &mut TensorSpace, site: &RuleSite<'_>) -> Vec<Id> {
    let Some((r, arg)) = plain_sum(site) else { return vec![] };
    let dims = space.dims(arg).clone();
    let kept: Vec<usize> = (0..dims.len()).filter(|axis| !r.axes.contains(axis)).collect();
    let order: Vec<usize> = kept.iter().chain(&r.axes).copied().collect();
    let mut found = vec![];
    for (f, args) in space.maps(arg) {
        let (Some(ScalarOp::Mul), &[x, y]) = (binary(&f), &args[..]) else { continue };
        let repeated = |v: Id| {
            let own = space.dims(v);
            (0..dims.len())
                .any(|i| dims.at(i) != 1 && (i + own.len()).checked_sub(dims.len()).is_none_or(|j| own.at(j) == 1))
        };
        if !repeated(x) || !repeated(y) || dims.has_none() {
            continue;
        }
        let access = |v: Id| -> Vec<Index> {
            let own = space.dims(v);
            let lead = dims.len() - own.len();
            let at = |i: usize| order.iter().position(|axis| *axis == lead + i).map_or(0, |p| p as u32);
            (0..own.len()).map(|i| if own.at(i) == 1 { Index::default() } else { Index::var(at(i)) }).collect()
        };
        let extents: Extents = order.iter().map(|axis| dims.at(*axis)).collect();
        let product = space.contract(Contraction::new(extents, kept.len(), access(x), access(y)), x, y);
        // With the folded axes again, of extent 1.
        let kept_dim = |(i, n): (usize, Extent)| if r.axes.contains(&i) { Extent::ONE } else { n };
        let with_all: Extents = dims.all().enumerate().map(kept_dim).collect();
        let map = kept.iter().map(|axis| Index::var(*axis as u32)).collect();
        let sum = space.view(product, map, None, with_all);
        found.extend(finished(space, r, sum, site));
    }
    found
}
