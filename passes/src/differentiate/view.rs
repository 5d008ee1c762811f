//! The adjoint of a view: every element of the operand gets the sum over the positions that read it.
//!
//! A view that is affine, or becomes so when axes are split or joined, has a view of the gradient as its
//! adjoint, summed over the variables that stay free: the axes it broadcasts along, the taps of overlapping
//! windows. What is left, such as edges that repeat, adds up by index.

use std::cell::RefCell;

use tensorc_ir::build::Builder;
use tensorc_ir::diag::{DiagnosticCode, Result};
use tensorc_ir::extent::Axes;
use tensorc_ir::graph::Value;
use tensorc_ir::index::{Atom, Index, linearize};
use tensorc_ir::prim::View;
use tensorc_ir::scalar::{Ex, Scalar, ScalarBuilder};
use tensorc_ir::views::{in_bounds, keeps_linear_order, without_unit_vars};
use tensorc_ir::{DType, DenseType, Extent, Extents};

use super::emit;
use super::solve::{Solution, solve};

/// Most axes that are split or joined before the general form is taken.
const MAX_REWRITES: usize = 8;

/// The gradient of the operand, of shape `dims`, from that of the view's result.
pub(super) fn adjoint(b: &mut Builder<'_>, view: &View, dims: &Extents, head: Value) -> Result<Value> {
    let ty = b.ty(head)?;
    let operand = DenseType::new(ty.dtype, dims);
    if ty.is_empty() || operand.is_empty() {
        return b.filled(&operand, 0.0);
    }
    if keeps_linear_order(view, &operand, &ty.dims) {
        return emit::reshape(b, head, dims);
    }
    let (mut map, mut head) = without_broadcast(b, view, head)?;
    let bounded = view.fill.is_none() || in_bounds(&view.map, dims, &ty.dims);
    for _ in 0..MAX_REWRITES {
        let out = b.ty(head)?.dims;
        if let Some(solution) = solve(&map, dims, &out, &|_| false) {
            return read_back(b, head, solution, dims.len());
        }
        let flat = linearize(&map, dims).recombine(&out);
        if bounded && flat.is_affine() {
            let len = [dims.count()].into_iter().collect();
            if let Some(solution) = solve(&[flat], &len, &out, &|_| false) {
                let flat = read_back(b, head, solution, 1)?;
                return emit::reshape(b, flat, dims);
            }
        }
        match rewrite(b, &map, head)? {
            Some((rewritten, reshaped)) => (map, head) = (rewritten, reshaped),
            None => break,
        }
    }
    by_index(b, &map, bounded, dims, head)
}

/// Sums over the axes that no index mentions, which are left out of the map's variables.
fn without_broadcast(b: &mut Builder<'_>, view: &View, head: Value) -> Result<(Vec<Index>, Value)> {
    let ty = b.ty(head)?;
    let map: Vec<Index> = view.map.iter().map(|m| without_unit_vars(m, &ty.dims)).collect();
    let mentioned = |v: &usize| map.iter().any(|m| m.mentions(*v as u32));
    let (kept, axes): (Vec<usize>, Vec<usize>) = (0..ty.rank()).partition(mentioned);
    let head = emit::sum_axes(b, head, &axes, ty.dtype)?;
    let extents: Extents = kept.iter().map(|v| ty.dims.at(*v)).collect();
    let place =
        |v: u32| kept.iter().position(|k| *k == v as usize).map_or(Index::default(), |at| Index::var(at as u32));
    Ok((map.iter().map(|m| m.substitute(&place, &extents)).collect(), head))
}

/// Reads the gradient at the points of a solution, summed over the free variables.
fn read_back(b: &mut Builder<'_>, head: Value, s: Solution, rank: usize) -> Result<Value> {
    let ty = b.ty(head)?;
    // An axis of one element is left wherever its residual is not zero.
    let dims: Extents = ty.dims.all().chain(s.residuals.iter().map(|_| Extent::ONE)).collect();
    let mut map = s.vars;
    map.extend(s.residuals);
    let head = emit::reshape(b, head, &dims)?;
    let fill = (!in_bounds(&map, &dims, &s.extents)).then(|| Scalar::zero(ty.dtype));
    let points = emit::view(b, head, View { map, fill }, &s.extents)?;
    let free: Vec<usize> = (rank..s.extents.len()).collect();
    emit::sum_axes(b, points, &free, ty.dtype)
}

/// Splits an axis whose quotient and remainder are used, or joins two axes that are used as one.
fn rewrite(b: &mut Builder<'_>, map: &[Index], head: Value) -> Result<Option<(Vec<Index>, Value)>> {
    let ty = b.ty(head)?;
    let Some((inner, divisor)) = map.iter().find_map(innermost) else { return Ok(None) };
    let mut dims: Vec<Extent> = ty.dims.all().collect();
    let with: Box<dyn Fn(u32) -> Index> = match &inner.terms[..] {
        _ if !inner.constant.is_surely(0) => return Ok(None),
        [(Atom::Var(v), one)] if one.is_surely(1) => {
            let (at, extent) = (*v as usize, dims[*v as usize]);
            dims.splice(at..=at, [extent.div_ceil(divisor), divisor]);
            let split = *v;
            Box::new(move |v| match v {
                v if v < split => Index::var(v),
                v if v > split => Index::var(v + 1),
                v => Index::var(v).scale(divisor).add(&Index::var(v + 1)),
            })
        }
        [(Atom::Var(v), c), (Atom::Var(w), one)]
            if *w == v + 1 && one.is_surely(1) && c.is_surely(dims[*w as usize]) =>
        {
            let (at, inner) = (*v as usize, *c);
            let joined = dims[at] * dims[at + 1];
            dims.splice(at..=at + 1, [joined]);
            let (join, extents) = (*v, Extents::from_iter(dims.clone()));
            Box::new(move |v| match v {
                v if v < join => Index::var(v),
                v if v > join + 1 => Index::var(v - 1),
                v if v == join => Index::var(join).floor_div(inner, &extents),
                _ => Index::var(join).modulo(inner, &extents),
            })
        }
        _ => return Ok(None),
    };
    let dims = Extents::from_iter(dims);
    let map = map.iter().map(|m| m.substitute(&*with, &dims).recombine(&dims)).collect();
    let whole = dims.count() == ty.dims.count();
    let head = if whole { emit::reshape(b, head, &dims)? } else { padded(b, head, &dims)? };
    Ok(Some((map, head)))
}

/// Splits one axis into two that do not divide it, with zeros beyond its end.
fn padded(b: &mut Builder<'_>, head: Value, dims: &Extents) -> Result<Value> {
    let ty = b.ty(head)?;
    let Some(at) = (0..ty.rank()).find(|i| ty.dims.at(*i) != dims.at(*i)) else {
        return Err(b.error(DiagnosticCode::Internal, "no axis of the gradient is split"));
    };
    let place = |i: usize| match i {
        i if i < at => Index::var(i as u32),
        i if i > at => Index::var(i as u32 + 1),
        i => Index::var(i as u32).scale(dims.at(at + 1)).add(&Index::var(i as u32 + 1)),
    };
    let map = (0..ty.rank()).map(place).collect();
    emit::view(b, head, View { map, fill: Some(Scalar::zero(ty.dtype)) }, dims)
}

/// What is divided, and by what, in the first quotient or remainder of an affine index.
fn innermost(index: &Index) -> Option<(Index, Extent)> {
    index.terms.iter().find_map(|(atom, _)| match atom {
        Atom::Div(x, d) | Atom::Mod(x, d) => {
            if x.is_affine() {
                Some(((**x).clone(), *d))
            } else {
                innermost(x)
            }
        }
        _ => None,
    })
}

/// Adds every element of the gradient to the place its index names; those outside go to a place of their own.
fn by_index(b: &mut Builder<'_>, map: &[Index], bounded: bool, dims: &Extents, head: Value) -> Result<Value> {
    let (ty, len) = (b.ty(head)?, dims.count());
    let s = ScalarBuilder::new();
    let numbers = Numbers { s: &s, open: RefCell::default() };
    let int = |n: Extent| numbers.of(n);
    let at: Vec<Ex> = map.iter().map(|m| numbers.index(m)).collect();
    let flat = at.iter().zip(dims.all()).fold(int(Extent::ZERO), |sum, (i, n)| sum * int(n) + i);
    let within = |i: &Ex, n: Extent| i.ge(&int(Extent::ZERO)) & i.lt(&int(n));
    let inside = at.iter().zip(dims.all()).map(|(i, n)| within(i, n)).reduce(|all, one| all & one);
    let place = match inside.filter(|_| !bounded) {
        Some(inside) => inside.select(&flat, &int(len)),
        None => flat,
    };
    let place = s.finish(&[&place]).map_err(|why| b.error(DiagnosticCode::Internal, why))?;
    let open = numbers.open.take().into_iter().map(|n| emit::extent(b, n).map(Some)).collect::<Result<Vec<_>>>()?;
    let indices = emit::map(b, &place, &open, &ty.dims)?;
    let flat = [ty.dims.count()].into_iter().collect();
    let (indices, updates) = (emit::reshape(b, indices, &flat)?, emit::reshape(b, head, &flat)?);
    let extent = if bounded { len } else { len + 1 };
    let sums = emit::gather_adjoint(b, [updates, indices], 0, extent)?;
    let sums = emit::slice(b, sums, 0, Extent::ZERO, len)?;
    emit::reshape(b, sums, dims)
}

/// Extents in an expression: those that depend on symbols are operands.
struct Numbers<'a> {
    s: &'a ScalarBuilder,
    open: RefCell<Vec<Extent>>,
}

impl Numbers<'_> {
    fn of(&self, n: Extent) -> Ex {
        match n.known() {
            Some(n) => self.s.constant(Scalar::i64(n)),
            None => {
                self.open.borrow_mut().push(n);
                self.s.input(DType::I64)
            }
        }
    }

    /// An index as an expression over coordinates.
    fn index(&self, index: &Index) -> Ex {
        index.terms.iter().fold(self.of(index.constant), |sum, (atom, c)| {
            let value = match atom {
                Atom::Var(v) => self.s.coord(*v as usize),
                Atom::Div(x, d) => {
                    let (x, d) = (self.index(x), self.of(*d));
                    let rest = euclid(&x, &d);
                    (x - rest) / d
                }
                Atom::Mod(x, d) => euclid(&self.index(x), &self.of(*d)),
                Atom::Min(x, y) => self.index(x).min(&self.index(y)),
                Atom::Max(x, y) => self.index(x).max(&self.index(y)),
            };
            sum + value * self.of(*c)
        })
    }
}

/// The remainder that is not negative.
fn euclid(x: &Ex, d: &Ex) -> Ex {
    let rest = x % d;
    rest.lt(&rest.builder().constant(Scalar::zero(DType::I64))).select(&(&rest + d), &rest)
}
