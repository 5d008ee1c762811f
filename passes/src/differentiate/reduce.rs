//! Derivatives of reductions: sums of any contribution, products, and extremes, where every element that is
//! extreme receives the whole gradient.

use std::sync::Arc;

use tensorc_ir::build::Builder;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::{Prim, Reduction};
use tensorc_ir::scalar::{Ex, Scalar, ScalarBuilder, ScalarFn};
use tensorc_ir::{DenseType, Extent, Extents};

use super::emit;
use super::visit::Visit;

use crate::results::results;

/// How contributions join.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReductionKind {
    Sum,
    Product,
    Extreme,
}

fn kind(r: &Reduction) -> Option<ReductionKind> {
    let types = r.map.output_dtypes();
    let n = types.len();
    let both = [&types[..], &types].concat();
    let is = |join: &dyn Fn(&Ex, &Ex) -> Ex| {
        let f = ScalarFn::build(&both, |_, a| (0..n).map(|i| join(&a[i], &a[n + i])).collect());
        f.is_ok_and(|f| f == r.combine)
    };
    match () {
        _ if is(&|a, x| a + x) => Some(ReductionKind::Sum),
        _ if n > 1 => None,
        _ if is(&|a, x| a * x) => Some(ReductionKind::Product),
        _ if is(&Ex::max) || is(&Ex::min) || is(&|a, x| x.gt(a).select(x, a)) => Some(ReductionKind::Extreme),
        _ => None,
    }
}

/// Whether the result is the accumulator: as it is, or rounded back to the type that all elements have.
fn shows_accumulator(r: &Reduction) -> bool {
    if r.finish.is_identity() {
        return true;
    }
    let [operand] = r.map.inputs[..] else { return false };
    let wide = emit::computed_in(operand);
    let widening = ScalarFn::build(&[operand], |_, a| vec![a[0].cast(wide)]);
    let rounding = ScalarFn::build(&[wide], |_, a| vec![a[0].cast(operand)]);
    widening.is_ok_and(|f| f == r.map) && rounding.is_ok_and(|f| f == r.finish)
}

/// Whether the derivative needs accumulators that the reduction does not deliver.
pub(super) fn must_split(graph: &Graph, node: NodeId) -> bool {
    let Some(r) = reduction(graph, node) else { return false };
    let (n, heads) = (r.init.len(), vec![true; r.finish.outputs.len()]);
    match kind(r) {
        Some(ReductionKind::Sum) => (0..n).any(|i| {
            let slope = r.finish.vjp(i, &heads, true, false).ok().flatten();
            slope.is_some_and(|f| f.without_unused().1.iter().any(|used| *used < n))
        }),
        Some(ReductionKind::Extreme) => !shows_accumulator(r),
        Some(ReductionKind::Product) => !r.finish.is_identity(),
        None => false,
    }
}

/// Adds the reduction that delivers its accumulators, and the map that finishes them.
pub(super) fn split(graph: &mut Graph, node: NodeId) -> Result<Vec<Value>> {
    let name = graph.node(node).name.clone();
    let Some(r) = reduction(graph, node).cloned() else {
        return Err(Diagnostic::new(DiagnosticCode::Internal, "only reductions are split").at(&name));
    };
    let args = graph.args(node);
    let types: Vec<DenseType> =
        (0..r.finish.outputs.len() as u16).map(|port| graph.dense(Value { node, port })).collect::<Result<_>>()?;
    let wide = r.map.output_dtypes();
    let sums: Vec<DenseType> = wide.iter().map(|d| DenseType::new(*d, &types[0].dims)).collect();
    let keep = ScalarFn::build(&wide, |_, a| a.to_vec());
    let keep = keep.map_err(|why| Diagnostic::new(DiagnosticCode::Internal, why).at(&name))?;
    let bare = Reduction { finish: keep, ..r.clone() };
    let sum = graph.add_prim(name.clone(), Prim::Reduce(Arc::new(bare)), &args, &sums);
    let sums: Vec<Value> = results(graph, sum).collect();
    let end = graph.add_prim(name, Prim::Map(Arc::new(r.finish)), &sums, &types);
    Ok(results(graph, end).collect())
}

/// A reduction with the gradients of its accumulators, shaped to broadcast with its operands.
struct Back<'a> {
    r: &'a Reduction,
    args: &'a [Value],
    /// The shape of the operands, and that of the result with reduced axes kept.
    dims: Extents,
    kept: Extents,
    adjoints: Vec<Option<Value>>,
}

pub(super) fn gradients(b: &mut Builder<'_>, r: &Reduction, v: &Visit<'_>) -> Result<Vec<Option<Value>>> {
    let Some(kind) = kind(r) else {
        let why = "a reduction that neither adds, multiplies nor picks an extreme has no derivative";
        return Err(Diagnostic::new(DiagnosticCode::Unsupported, why));
    };
    let (dims, out) = (b.ty(v.args[0])?.dims, b.ty(v.results[0])?.dims);
    let kept: Extents = (0..dims.len()).map(|i| if r.axes.contains(&i) { Extent::ONE } else { dims.at(i) }).collect();
    let given: Vec<bool> = v.heads.iter().map(Option::is_some).collect();
    let n = r.init.len();
    let known = std::iter::repeat_n(None, n).chain(v.results.iter().map(|v| Some(*v)));
    let known: Vec<Option<Value>> = known.chain(v.heads.iter().copied()).collect();
    let mut adjoints = vec![None; n];
    for (i, adjoint) in adjoints.iter_mut().enumerate() {
        let slope = r.finish.vjp(i, &given, true, false).map_err(|why| b.error(DiagnosticCode::Unsupported, why))?;
        if let Some(slope) = slope {
            let flat = emit::map(b, &slope, &known, &out)?;
            *adjoint = Some(emit::reshape(b, flat, &kept)?);
        }
    }
    if adjoints.iter().all(Option::is_none) {
        return Ok(vec![None; v.args.len()]);
    }
    let back = Back { r, args: v.args, dims, kept, adjoints };
    let mut parts = vec![None; v.args.len()];
    for i in (0..v.args.len()).filter(|i| v.wanted[*i]) {
        parts[i] = match kind {
            ReductionKind::Sum => back.of_sum(b, i)?,
            ReductionKind::Extreme => back.of_extreme(b, i, v.results[0])?,
            ReductionKind::Product => back.of_product(b, i)?,
        };
    }
    Ok(parts)
}

impl Back<'_> {
    fn slope(&self, b: &Builder<'_>, operand: usize) -> Result<Option<ScalarFn>> {
        let given: Vec<bool> = self.adjoints.iter().map(Option::is_some).collect();
        self.r.map.vjp(operand, &given, false, false).map_err(|why| b.error(DiagnosticCode::Unsupported, why))
    }

    fn of_sum(&self, b: &mut Builder<'_>, operand: usize) -> Result<Option<Value>> {
        let Some(slope) = self.slope(b, operand)? else { return Ok(None) };
        let known = self.args.iter().map(|v| Some(*v)).chain(self.adjoints.iter().map(|_| None));
        let known: Vec<Option<Value>> = known.chain(self.adjoints.iter().copied()).collect();
        emit::map(b, &slope, &known, &self.dims).map(Some)
    }

    /// The gradient of the only contribution is `share(contribution, extra values, gradient)`.
    fn shared(
        &self,
        b: &mut Builder<'_>,
        operand: usize,
        extra: &[Value],
        share: impl FnOnce(&Ex, &[Ex], &Ex) -> Ex,
    ) -> Result<Option<Value>> {
        let Some(slope) = self.slope(b, operand)? else { return Ok(None) };
        let n = self.args.len();
        let known: Vec<Value> =
            self.args.iter().chain(extra).copied().chain(self.adjoints.iter().flatten().copied()).collect();
        let types = known.iter().map(|v| b.ty(*v).map(|t| t.dtype)).collect::<Result<Vec<_>>>()?;
        let f = ScalarFn::build(&types, |s, a| {
            let contribution = s.call(&self.r.map, &a[..n], &[]).swap_remove(0);
            let gradient = share(&contribution, &a[n..a.len() - 1], &a[a.len() - 1]);
            s.call(&slope, &[&a[..n], &[contribution, gradient]].concat(), &[])
        });
        let f = f.map_err(|why| b.error(DiagnosticCode::Internal, why))?;
        emit::map(b, &f, &known.into_iter().map(Some).collect::<Vec<_>>(), &self.dims).map(Some)
    }

    fn of_extreme(&self, b: &mut Builder<'_>, operand: usize, result: Value) -> Result<Option<Value>> {
        let best = emit::reshape(b, result, &self.kept)?;
        self.shared(b, operand, &[best], |x, extra, g| x.eq(&extra[0].cast(x.dtype())).select(g, &g.lit(0.0)))
    }

    /// The product of the others: with the zeros left out of the product and counted, one zero is the only
    /// element with a gradient, and more leave none.
    fn of_product(&self, b: &mut Builder<'_>, operand: usize) -> Result<Option<Value>> {
        let product = self.fold(b, |s, x| x.eq(&s.number(x.dtype(), 0.0)).select(&x.lit(1.0), x), false)?;
        let zeros = self.fold(b, |_, x| x.eq(&x.lit(0.0)).select(&x.lit(1.0), &x.lit(0.0)), true)?;
        self.shared(b, operand, &[product, zeros], |x, extra, g| {
            let (zero, one) = (g.lit(0.0), g.lit(1.0));
            let only = extra[1].eq(&one).select(&extra[0], &zero);
            let others = extra[1].eq(&zero).select(&(&extra[0] / x), &zero);
            g * x.eq(&zero).select(&only, &others)
        })
    }

    /// Another reduction of the same contribution, by sum or product.
    fn fold(&self, b: &mut Builder<'_>, map: impl FnOnce(&ScalarBuilder, &Ex) -> Ex, add: bool) -> Result<Value> {
        let wide = self.r.map.output_dtypes()[0];
        let contribution = ScalarFn::build(&self.r.map.inputs, |s, a| {
            let x = s.call(&self.r.map, a, &[]).swap_remove(0);
            vec![map(s, &x)]
        });
        let combine = ScalarFn::build(&[wide, wide], |_, a| vec![if add { &a[0] + &a[1] } else { &a[0] * &a[1] }]);
        let (contribution, combine) = (
            contribution.map_err(|w| b.error(DiagnosticCode::Internal, w))?,
            combine.map_err(|w| b.error(DiagnosticCode::Internal, w))?,
        );
        let reduction = Reduction {
            axes: self.r.axes.clone(),
            keep_dims: true,
            init: vec![Scalar::from_f64(wide, if add { 0.0 } else { 1.0 })],
            map: contribution,
            combine,
            finish: ScalarFn::identity(wide),
        };
        let ty = DenseType::new(wide, &self.kept);
        Ok(b.prim(Prim::Reduce(Arc::new(reduction)), self.args, &[ty])?[0])
    }
}

/// The reduction a node is.
pub(super) fn reduction(graph: &Graph, node: NodeId) -> Option<&tensorc_ir::prim::Reduction> {
    match &graph.node(node).kind {
        NodeKind::Prim(Prim::Reduce(r)) => Some(r),
        _ => None,
    }
}
