//! Checks that an operator's gradient is the derivative of what it computes.

use tensorc_abi::DType;
use tensorc_ir::infer::scalar_fn;
use tensorc_ir::op::{Compute, OpDef, TypeRule};
use tensorc_ir::params::Params;
use tensorc_ir::scalar::{Dual, Scalar};

/// Values at which operands are tried: around zero and one on both sides, none of them a usual kink.
const POINTS: [f64; 10] = [-2.75, -1.3, -0.8, -0.35, -0.02, 0.03, 0.45, 0.9, 1.6, 3.1];
/// Distance allowed, relative to the larger of the two and one.
const TOLERANCE: f64 = 1e-9;

/// What [`check_gradient`] compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientCheck {
    /// Partial derivatives.
    pub compared: usize,
}

/// A gradient is not the derivative, or there is none to compare.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GradientError {
    #[error("`{op}` at {at:?}: its gradient by operand `{operand}` is {found}, its derivative {expected}")]
    Differs { op: String, operand: String, at: Vec<f64>, found: f64, expected: f64 },
    #[error("`{op}`: {why}")]
    Refused { op: String, why: String },
}

/// Compares the gradient of an element-wise operator with dual numbers, in f64, at every combination of a few
/// values of its operands (at most 10 000). Points where the operator is not finite are left out.
///
/// # Errors
/// They differ; or parameters do not fit, the operator is not element-wise, or does not take f64.
pub fn check_gradient(op: &OpDef, params: &Params) -> Result<GradientCheck, GradientError> {
    let refused = |why: String| GradientError::Refused { op: op.name.to_owned(), why };
    let mut params = params.clone();
    params.complete(&op.params).map_err(refused)?;
    let Compute::Scalar(_) = op.compute else { return Err(refused("it is not element-wise".into())) };
    let admits = |list: &[DType]| list.is_empty() || list.contains(&DType::F64);
    let takes_f64 = op.inputs.iter().all(|spec| match spec.ty {
        TypeRule::Any => true,
        TypeRule::Group(_, list) | TypeRule::OneOf(list) => admits(list),
    });
    if !takes_f64 {
        return Err(refused("it does not take f64".into()));
    }
    let types = vec![Some(DType::F64); op.inputs.len()];
    let value = scalar_fn(op, &params, &types, 1, Some(&[1])).map_err(|e| refused(e.0))?;
    let gradients = (0..op.inputs.len()).map(|i| value.vjp(i, &[true], true, false));
    let gradients = gradients.collect::<Result<Vec<_>, _>>().map_err(refused)?;
    let count = POINTS.len().saturating_pow(op.inputs.len() as u32).min(10_000);
    let mut compared = 0;
    for number in 0..count {
        let digit = |i: usize| number / POINTS.len().pow(i as u32) % POINTS.len();
        // Operands are never equal, so that minima and maxima are not tried at their kink.
        let at: Vec<f64> = (0..op.inputs.len()).map(|i| POINTS[digit(i)] + 0.001 * i as f64).collect();
        let head = 1.5;
        let mut operands: Vec<Scalar> = at.iter().map(|x| Scalar::from_f64(DType::F64, *x)).collect();
        operands.extend(value.eval(&operands, &[0]).into_iter().take(1));
        operands.push(Scalar::from_f64(DType::F64, head));
        for (i, spec) in op.inputs.iter().enumerate() {
            let seed = |(j, x): (usize, &f64)| if i == j { Dual::variable(*x) } else { Dual::constant(*x) };
            let duals: Vec<Dual> = at.iter().enumerate().map(seed).collect();
            let Some(dual) = value.eval_dual(&duals, &[0]).first().copied() else { continue };
            let found = gradients[i].as_ref().map_or(0.0, |gradient| gradient.eval(&operands, &[0])[0].as_f64());
            let expected = head * dual.tangent;
            if !dual.value.is_finite() || !expected.is_finite() {
                continue;
            }
            let scale = expected.abs().max(found.abs()).max(1.0);
            if !((found - expected).abs() <= TOLERANCE * scale) {
                let (op, operand) = (op.name.to_owned(), spec.name.to_owned());
                return Err(GradientError::Differs { op, operand, at, found, expected });
            }
            compared += 1;
        }
    }
    Ok(GradientCheck { compared })
}
