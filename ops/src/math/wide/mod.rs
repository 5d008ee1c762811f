//! The functions on f64, and what else is a call of the run-time library on processors, as expressions of operations that
//! a GPU has: the remainder of C, and conversions to f16 and bf16 that must not round twice.

mod half;
mod normal;
mod pow;
mod remainder;
mod trig;

use std::collections::BTreeMap;

use super::exp::Scaling;
use super::{exp, hyper, inverse, log};
use crate::prelude::*;

/// Expansions by operation and type of its operands.
pub type Expansions = BTreeMap<(ScalarOp, DType), ScalarFn>;

pub fn expansions() -> Expansions {
    let mut out = Expansions::new();
    let mut add = |op: ScalarOp, from: DType, body: &dyn Fn(&[Ex]) -> Ex| {
        // An ill-typed body would be missing, which the tests of all expansions notice.
        if let Ok(f) = ScalarFn::build(&vec![from; op.arity()], |_, args| vec![body(args)]) {
            out.insert((op, from), f);
        }
    };
    for f in MathFn::ALL {
        add(ScalarOp::Math(f), DType::F64, &|args| function(f, args));
    }
    for from in [DType::F32, DType::F64] {
        add(ScalarOp::Rem, from, &|args| remainder::remainder(&args[0], &args[1]));
    }
    add(ScalarOp::Scale, DType::F32, &|args| exp::scale_any(&args[0], &args[1]));
    for to in [DType::F16, DType::BF16] {
        for from in [DType::F64, DType::I32, DType::U32, DType::I64, DType::U64] {
            add(ScalarOp::Cast(to), from, &|args| half::rounded(&args[0], to));
        }
    }
    out
}

fn function(f: MathFn, args: &[Ex]) -> Ex {
    let x = &args[0];
    match f {
        MathFn::Exp => exp::exp(x, Scaling::Products),
        MathFn::Exp2 => exp::exp2(x, Scaling::Products),
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
        MathFn::Erf => normal::erf(x),
        MathFn::Ndtr => normal::ndtr(x),
        MathFn::Pow => pow::pow(x, &args[1]),
    }
}

/// `a + b` and what its rounding lost, for `|a| ≥ |b|` or `a = 0`.
fn fast_sum(a: &Ex, b: &Ex) -> (Ex, Ex) {
    let sum = a + b;
    let lost = b - &(&sum - a);
    (sum, lost)
}

/// `a·b` and what its rounding lost.
fn product(a: &Ex, b: &Ex) -> (Ex, Ex) {
    let product = a * b;
    let lost = a.fma(b, &-&product);
    (product, lost)
}
