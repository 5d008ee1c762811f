//! The math library: every [`MathFn`] on f32 and f64 as a branch-free expression, on f32 of cheap operations, and what
//! devices without a run-time library compute in place of a call (`wide`): remainders, and roundings to 16 bits.
//!
//! Most formulas serve f32 and f64, with constants by the type of their argument.
//!
//! Polynomials are near-minimax on the reduced range (Chebyshev interpolation in 200-bit arithmetic,
//! or Lawson's reweighted least squares), rounded to the working type. Budgets and measured errors are in `docs/numerics.md`.

mod erf;
mod exp;
mod format;
mod hyper;
mod inverse;
mod log;
mod normal;
mod pow;
mod trig;
mod wide;

use std::sync::OnceLock;

use exp::Scaling;
use tensorc_ir::scalar::MathLibrary;

use crate::prelude::*;

/// The bodies of all functions, in the order of [`MathFn::ALL`].
pub struct MathBodies {
    bodies: Vec<ScalarFn>,
    /// Those of [`MathFn::Exp`] and [`MathFn::Exp2`] with [`tensorc_ir::scalar::ScalarOp::Scale`].
    scaling: [ScalarFn; 2],
    /// Built when first asked for.
    wide: OnceLock<wide::Expansions>,
}

impl MathBodies {
    /// # Errors
    /// A message naming the function whose body is ill-typed.
    pub fn new() -> Result<MathBodies, String> {
        let body = |f: MathFn, scaling: Scaling| {
            let inputs = vec![DType::F32; f.arity()];
            let body = ScalarFn::build(&inputs, |_, args| vec![expression(f, args, scaling)]);
            body.map_err(|why| format!("{}: {why}", f.name()))
        };
        let bodies = MathFn::ALL.into_iter().map(|f| body(f, Scaling::Products)).collect::<Result<_, _>>()?;
        let scaling = [body(MathFn::Exp, Scaling::Instruction)?, body(MathFn::Exp2, Scaling::Instruction)?];
        Ok(MathBodies { bodies, scaling, wide: OnceLock::new() })
    }
}

impl MathLibrary for MathBodies {
    fn body(&self, f: MathFn) -> &ScalarFn {
        &self.bodies[f as usize]
    }

    fn scaling_body(&self, f: MathFn) -> &ScalarFn {
        match f {
            MathFn::Exp => &self.scaling[0],
            MathFn::Exp2 => &self.scaling[1],
            _ => self.body(f),
        }
    }

    fn expansion(&self, op: ScalarOp, from: DType) -> Option<&ScalarFn> {
        self.wide.get_or_init(wide::expansions).get(&(op, from))
    }
}

/// The largest error the f64 expansion of `f` may have, in units in the last place.
pub const fn wide_budget(f: MathFn) -> f64 {
    match f {
        MathFn::Ndtr => 8.0,
        MathFn::Tan | MathFn::Pow => 2.0,
        _ => budget(f),
    }
}

/// The largest error the f32 body of `f` may have, in units in the last place.
pub const fn budget(f: MathFn) -> f64 {
    match f {
        MathFn::Exp | MathFn::Exp2 | MathFn::Log | MathFn::Sin | MathFn::Cos | MathFn::Tan | MathFn::Pow => 1.0,
        MathFn::Asinh | MathFn::Acosh | MathFn::Atanh => 3.0,
        MathFn::Ndtr => 7.0,
        _ => 2.0,
    }
}

fn expression(f: MathFn, args: &[Ex], scaling: Scaling) -> Ex {
    let x = &args[0];
    match f {
        MathFn::Exp => exp::exp(x, scaling),
        MathFn::Exp2 => exp::exp2(x, scaling),
        MathFn::Expm1 => exp::expm1(x),
        MathFn::Log => log::log(x),
        MathFn::Log2 => log::log2(x),
        MathFn::Log1p => log::log1p(x),
        MathFn::Sin => trig::sin(x),
        MathFn::Cos => trig::cos(x),
        MathFn::Tan => trig::tan(x),
        MathFn::Asin => inverse::asin(x),
        MathFn::Acos => inverse::acos(x),
        MathFn::Atan => inverse::atan(x),
        MathFn::Sinh => hyper::sinh(x),
        MathFn::Cosh => hyper::cosh(x),
        MathFn::Tanh => hyper::tanh(x),
        MathFn::Asinh => hyper::asinh(x),
        MathFn::Acosh => hyper::acosh(x),
        MathFn::Atanh => hyper::atanh(x),
        MathFn::Erf => erf::erf(x),
        MathFn::Ndtr => normal::ndtr(x),
        MathFn::Pow => pow::pow(x, &args[1]),
    }
}
