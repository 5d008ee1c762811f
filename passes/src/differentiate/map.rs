//! Derivatives of element-wise maps: the derivative of the expression, summed over broadcast axes.

use tensorc_ir::Extent;
use tensorc_ir::build::Builder;
use tensorc_ir::diag::{DiagnosticCode, Result};
use tensorc_ir::graph::Value;
use tensorc_ir::scalar::ScalarFn;

use super::emit;
use super::visit::Visit;

pub(super) fn gradients(b: &mut Builder<'_>, f: &ScalarFn, v: &Visit<'_>) -> Result<Vec<Option<Value>>> {
    let (f, distinct) = once_each(b, f, v.args)?;
    let given: Vec<bool> = v.heads.iter().map(Option::is_some).collect();
    let dims = b.ty(v.results[0])?.dims;
    let known = distinct.iter().map(|i| Some(v.args[*i])).chain(v.results.iter().map(|v| Some(*v)));
    let known: Vec<Option<Value>> = known.chain(v.heads.iter().copied()).collect();
    let mut parts = vec![None; v.args.len()];
    for (i, arg) in distinct.into_iter().enumerate().filter(|(_, arg)| v.wanted[*arg]) {
        let ty = b.ty(v.args[arg])?;
        let repeated = |(own, other): (Extent, Extent)| own.is_repeated_along(other) && !other.is_surely(1);
        let summed = ty.rank() != dims.len() || ty.dims.all().zip(dims.all()).any(repeated);
        let slope = f.vjp(i, &given, true, summed).map_err(|why| b.error(DiagnosticCode::Unsupported, why))?;
        if let Some(slope) = slope {
            let (slope, used) = slope.without_unused();
            let known: Vec<Option<Value>> = used.iter().map(|i| known[*i]).collect();
            let whole = emit::map(b, &slope, &known, &dims)?;
            parts[arg] = Some(emit::unbroadcast(b, whole, &ty.dims, ty.dtype)?);
        }
    }
    Ok(parts)
}

/// The function of distinct operands, and the positions of their first occurrences.
fn once_each(b: &Builder<'_>, f: &ScalarFn, args: &[Value]) -> Result<(ScalarFn, Vec<usize>)> {
    let mut distinct: Vec<usize> = vec![];
    // For each operand, its position among the distinct ones.
    let mut places = vec![];
    for (i, arg) in args.iter().enumerate() {
        let place = distinct.iter().position(|of| args[*of] == *arg).unwrap_or(distinct.len());
        if place == distinct.len() {
            distinct.push(i);
        }
        places.push(place);
    }
    if distinct.len() == args.len() {
        return Ok((f.clone(), distinct));
    }
    let types: Vec<_> = distinct.iter().map(|i| f.inputs[*i]).collect();
    let merged = ScalarFn::build(&types, |s, given| {
        let all: Vec<_> = places.iter().map(|place| given[*place].clone()).collect();
        s.call(f, &all, &[])
    });
    Ok((merged.map_err(|why| b.error(DiagnosticCode::Internal, why))?, distinct))
}
