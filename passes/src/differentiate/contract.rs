//! Derivatives of contractions: each operand's is a contraction over the same iteration space.
//!
//! For `out[p] = Σ_r lhs[L(p, r)] · rhs[R(p, r)]` the gradient of the right operand at `x` sums over the points
//! with `R(p, r) = x`: of a convolution, `dw[oc, ic, k] = Σ_{n, o} x[n, ic, o·s + k·d - pad] · dy[n, oc, o]`. That of
//! the left operand reads the gradient where the window reaches: `dx[n, ic, h] = Σ_{oc, k} dy[n, oc, (h + pad -
//! k·d) / s] · w[oc, ic, k]`, where the quotient is exact ([`Index::exact_quotient`]) and in range.

use tensorc_ir::Extents;
use tensorc_ir::build::Builder;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::Value;
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, View};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::views::{identity_map, in_bounds};

use super::solve::{Solution, solve};
use super::visit::Visit;
use super::{emit, view};

pub(super) fn gradients(b: &mut Builder<'_>, c: &Contraction, v: &Visit<'_>) -> Result<Vec<Option<Value>>> {
    let head = v.head()?;
    let (lhs, rhs) = (v.args[0], v.args[1]);
    let mut parts = vec![None; 2];
    if v.wanted[0] {
        parts[0] = Some(of_left(b, c, lhs, rhs, head)?);
    }
    if v.wanted[1] {
        parts[1] = Some(of_right(b, c, lhs, rhs, head)?);
    }
    Ok(parts)
}

/// The indices of `map` at the points of a solution.
fn at(map: &[Index], s: &Solution) -> Vec<Index> {
    map.iter().map(|m| m.substitute(&|v| s.vars[v as usize].clone(), &s.extents)).collect()
}

fn mentions(map: &[Index], var: usize) -> bool {
    map.iter().any(|m| m.mentions(var as u32))
}

/// Whether a variable certainly stays in its range.
fn inside(s: &Solution, var: usize, extents: &Extents) -> bool {
    in_bounds(std::slice::from_ref(&s.vars[var]), &extents.range(var..=var), &s.extents)
}

fn of_left(b: &mut Builder<'_>, c: &Contraction, lhs: Value, rhs: Value, head: Value) -> Result<Value> {
    let (ty, other) = (b.ty(lhs)?, b.ty(rhs)?.dims);
    let result = identity_map(c.out_rank);
    if let Some(s) = solve(&c.lhs, &ty.dims, &c.extents, &|v| mentions(&c.rhs, v)) {
        let right = at(&c.rhs, &s);
        // Where the position in the result is out of range, the read of the gradient gives zero.
        let summed_inside = (c.out_rank..c.extents.len()).all(|v| inside(&s, v, &c.extents));
        if s.residuals.is_empty() && summed_inside && in_bounds(&right, &other, &s.extents) {
            let left = at(&result, &s);
            return emit::contract(b, head, rhs, Contraction::new(s.extents, ty.rank(), left, right));
        }
    }
    through_view(b, (&c.lhs, &ty.dims), (head, &result), (rhs, &c.rhs), c)
}

fn of_right(b: &mut Builder<'_>, c: &Contraction, lhs: Value, rhs: Value, head: Value) -> Result<Value> {
    let ty = b.ty(rhs)?;
    let result = identity_map(c.out_rank);
    if let Some(s) = solve(&c.rhs, &ty.dims, &c.extents, &|v| mentions(&c.lhs, v)) {
        let inside = (0..c.extents.len()).all(|v| inside(&s, v, &c.extents));
        if s.residuals.is_empty() && inside {
            let (left, right) = (at(&c.lhs, &s), at(&result, &s));
            return emit::contract(b, lhs, head, Contraction::new(s.extents, ty.rank(), left, right));
        }
    }
    through_view(b, (&c.rhs, &ty.dims), (lhs, &c.lhs), (head, &result), c)
}

/// The gradient of the operand as read over the iteration space, and from there the adjoint of the reading.
fn through_view(
    b: &mut Builder<'_>,
    (map, dims): (&[Index], &Extents),
    (lhs, left): (Value, &[Index]),
    (rhs, right): (Value, &[Index]),
    c: &Contraction,
) -> Result<Value> {
    let mentioned = |v: &usize| mentions(map, *v);
    let (outer, summed): (Vec<usize>, Vec<usize>) = (0..c.extents.len()).partition(mentioned);
    let order: Vec<usize> = outer.iter().chain(&summed).copied().collect();
    let extents: Extents = order.iter().map(|v| c.extents.at(*v)).collect();
    let place =
        |v: u32| order.iter().position(|o| *o == v as usize).map_or(Index::default(), |at| Index::var(at as u32));
    let renamed = |map: &[Index]| -> Vec<Index> { map.iter().map(|m| m.substitute(&place, &extents)).collect() };
    let (left, right, map) = (renamed(left), renamed(right), renamed(map));
    let read = emit::contract(b, lhs, rhs, Contraction::new(extents, outer.len(), left, right))?;
    let fill = Some(Scalar::zero(b.ty(read)?.dtype));
    view::adjoint(b, &View { map, fill }, dims, read)
}
