//! Bodies of maps that are affine in one operand: `f(y, c…) = a(c…)·y + b(c…)`, with `a` and `b` as functions of
//! their own. They compute in f64, so that a chain of scales and shifts is rounded once.

use tensorc_ir::DType;
use tensorc_ir::scalar::{Ex, ScalarBuilder, ScalarFn, ScalarNode, ScalarOp};

/// `a·y + b`. Both functions take the operands of the body other than `y`, in order.
pub(super) struct Affine {
    /// `None`: it is 1.
    pub scale: Option<ScalarFn>,
    /// `None`: it is 0.
    pub shift: Option<ScalarFn>,
}

/// A coefficient and what is added; `None` stands for 0.
type ScaleShift = (Option<Ex>, Option<Ex>);

/// The coefficients of a body with one result in operand `variable`, if it is affine in it and all is of one
/// floating-point type. A coefficient of exactly 0 does not count: the operand may be infinite.
pub(super) fn affine(f: &ScalarFn, variable: usize) -> Option<Affine> {
    let [output] = f.outputs[..] else { return None };
    let dtype = f.dtype(output);
    let arithmetic = matches!(dtype, DType::F32 | DType::F64) && f.inputs.iter().all(|d| *d == dtype);
    if !arithmetic || f.dtypes.iter().any(|d| *d != dtype) {
        return None;
    }
    let b = ScalarBuilder::new();
    let inputs: Vec<Ex> = (0..f.inputs.len().saturating_sub(1)).map(|_| b.input(dtype).cast(DType::F64)).collect();
    let mut known: Vec<ScaleShift> = vec![];
    for node in &f.nodes {
        known.push(match node {
            ScalarNode::Input(i) if *i as usize == variable => (Some(b.number(DType::F64, 1.0)), None),
            ScalarNode::Input(i) => (None, Some(inputs[*i as usize - usize::from(*i as usize > variable)].clone())),
            ScalarNode::Const(c) => (None, Some(b.number(DType::F64, c.as_f64()))),
            ScalarNode::Coord(_) => return None,
            ScalarNode::Op(op, args) => {
                let args: Vec<ScaleShift> = args.iter().map(|a| known[a.0 as usize].clone()).collect();
                apply(*op, &args)?
            }
        });
    }
    let (scale, shift) = known.get(output.0 as usize)?.clone();
    let is = |e: &Ex, x: f64| e.constant_value().is_some_and(|c| c.as_f64() == x);
    let scale = scale.filter(|a| !is(a, 0.0))?;
    let finite = |e: &Ex| e.constant_value().is_none_or(|c| c.as_f64().is_finite());
    if !finite(&scale) || !shift.as_ref().is_none_or(finite) {
        return None;
    }
    let function = |e: Ex| b.finish(&[&e.cast(dtype)]).ok();
    let scale = if is(&scale, 1.0) { None } else { Some(function(scale)?) };
    let shift = match shift.filter(|s| !is(s, 0.0)) {
        Some(s) => Some(function(s)?),
        None => None,
    };
    Some(Affine { scale, shift })
}

fn apply(op: ScalarOp, args: &[ScaleShift]) -> Option<ScaleShift> {
    let free = |i: usize| args[i].0.is_none();
    match op {
        ScalarOp::Add => Some(add(&args[0], &args[1])),
        ScalarOp::Sub => Some(add(&args[0], &each(&args[1], |x| -x))),
        ScalarOp::Neg => Some(each(&args[0], |x| -x)),
        ScalarOp::Mul => product(&args[0], &args[1]),
        ScalarOp::Div if free(1) => {
            let by = args[1].1.clone()?;
            Some(each(&args[0], |x| x / &by))
        }
        ScalarOp::Fma => Some(add(&product(&args[0], &args[1])?, &args[2])),
        ScalarOp::Sqrt if free(0) => Some(each(&args[0], |x| x.sqrt())),
        ScalarOp::Abs if free(0) => Some(each(&args[0], |x| x.abs())),
        ScalarOp::Max | ScalarOp::Min if free(0) && free(1) => {
            let (x, y) = (args[0].1.clone()?, args[1].1.clone()?);
            Some((None, Some(if op == ScalarOp::Max { x.max(&y) } else { x.min(&y) })))
        }
        _ => None,
    }
}

fn each(x: &ScaleShift, f: impl Fn(&Ex) -> Ex) -> ScaleShift {
    (x.0.as_ref().map(&f), x.1.as_ref().map(&f))
}

fn add(x: &ScaleShift, y: &ScaleShift) -> ScaleShift {
    let sum = |a: &Option<Ex>, b: &Option<Ex>| match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.clone().or_else(|| b.clone()),
    };
    (sum(&x.0, &y.0), sum(&x.1, &y.1))
}

fn product(x: &ScaleShift, y: &ScaleShift) -> Option<ScaleShift> {
    let (x, y) = if x.0.is_none() { (y, x) } else { (x, y) };
    if y.0.is_some() {
        return None;
    }
    let by = y.1.clone()?;
    Some(each(x, |e| e * &by))
}

#[cfg(test)]
mod tests {
    use tensorc_ir::scalar::Scalar;

    use super::*;

    #[test]
    fn coefficients_of_a_normalisation() {
        let f = ScalarFn::build(&[DType::F32; 4], |_, x| {
            vec![(&x[0] - &x[1]) / (&x[2] + 1e-5).sqrt() * &x[3] - &(&x[0] * 2.0)]
        });
        let parts = affine(&f.unwrap(), 0).unwrap();
        let at = |f: &Option<ScalarFn>| f.as_ref().unwrap().eval(&[3.0, 4.0, 0.5].map(Scalar::f32), &[])[0].as_f64();
        let scale = 0.5 / 4.00001f64.sqrt();
        assert!((at(&parts.scale) - (scale - 2.0)).abs() < 1e-6 && (at(&parts.shift) + 3.0 * scale).abs() < 1e-6);
    }

    #[test]
    fn what_is_not_affine() {
        let body = |f: fn(&[Ex]) -> Ex| ScalarFn::build(&[DType::F32; 2], |_, x| vec![f(x)]).unwrap();
        assert!(affine(&body(|x| &x[0] * &x[0]), 0).is_none());
        assert!(affine(&body(|x| &x[1] / &x[0]), 0).is_none());
        assert!(affine(&body(|x| x[0].max(&x[1])), 0).is_none());
        assert!(affine(&body(|x| &x[0] - &x[0]), 0).is_none());
        let neutral = affine(&body(|x| &x[0] + &x[1]), 0).unwrap();
        assert!(neutral.scale.is_none() && neutral.shift.is_some());
    }
}
