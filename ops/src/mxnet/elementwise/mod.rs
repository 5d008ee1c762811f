//! Element-wise operators: of two operands of one shape, of two that broadcast, of one and a number, of one.
//!
//! Comparisons and logical operators give 1 and 0 in the type of their operands.

mod binary;
mod passing;
mod scalar;
mod special;
mod unary;

use crate::arith::{floor_mod, hypotenuse, integer_pow};
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    [binary::ops(), passing::ops(), scalar::ops(), unary::ops()].into_iter().flatten().collect()
}

/// A function of two elements of one type, in the type arithmetic is done in.
type BinaryFunction = fn(&Ex, &Ex) -> Ex;

/// `x` raised to `y`; usual constant exponents without a logarithm.
fn power(x: &Ex, y: &Ex) -> Ex {
    if !x.dtype().is_float() {
        return integer_pow(x, y);
    }
    match y.constant_value().map(|v| v.as_f64()) {
        Some(1.0) => x.clone(),
        Some(2.0) => x * x,
        Some(3.0) => x * x * x,
        Some(0.5) => x.sqrt(),
        Some(-0.5) => x.lit(1.0) / x.sqrt(),
        Some(-1.0) => x.lit(1.0) / x,
        _ => x.pow(y),
    }
}

/// The remainder with the sign of the divisor, 0 if that is 0.
fn modulo(x: &Ex, y: &Ex) -> Ex {
    let zero = y.lit(0.0);
    y.eq(&zero).select(&x.lit(0.0), &floor_mod(x, y))
}

/// The greater, NaN if either is. The derivative of equal ones is that of the first.
fn maximum(x: &Ex, y: &Ex) -> Ex {
    x.max(y)
}

/// The lesser, NaN if either is. The derivative of equal ones is that of the first.
fn minimum(x: &Ex, y: &Ex) -> Ex {
    x.min(y)
}

fn hypot(x: &Ex, y: &Ex) -> Ex {
    match x.dtype().is_float() {
        true => hypotenuse(x, y),
        false => {
            (x.cast(DType::F64) * x.cast(DType::F64) + y.cast(DType::F64) * y.cast(DType::F64)).sqrt().cast(x.dtype())
        }
    }
}

fn truth(x: &Ex) -> Ex {
    x.ne(&x.lit(0.0))
}

fn and(x: &Ex, y: &Ex) -> Ex {
    truth(x) & truth(y)
}

fn or(x: &Ex, y: &Ex) -> Ex {
    truth(x) | truth(y)
}

fn xor(x: &Ex, y: &Ex) -> Ex {
    truth(x).ne(&truth(y))
}
