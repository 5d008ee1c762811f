//! Floating-point types of the library: representations, constants of reductions, and what all functions build on.

use tensorc_ir::DType;
use tensorc_ir::scalar::Ex;

/// `Σ cᵢ·xⁱ` by fused multiply-adds; coefficients in ascending order.
pub(super) fn horner(x: &Ex, coefficients: &[f64]) -> Ex {
    let mut terms = coefficients.iter().rev().map(|&c| x.lit(c));
    let first = terms.next().unwrap_or_else(|| x.lit(0.0));
    terms.fold(first, |sum, c| sum.fma(x, &c))
}

/// `|magnitude|` given non-negative, with the sign of `sign`; works on the representation, so NaN
/// and zeros keep their nature.
pub(super) fn with_sign_of(magnitude: &Ex, sign: &Ex) -> Ex {
    let minus_zero = sign.lit(-0.0).bitcast(FloatFormat::of(sign).int);
    let bit = sign.bitcast(minus_zero.dtype()) & &minus_zero;
    (magnitude.bitcast(minus_zero.dtype()) | bit).bitcast(sign.dtype())
}

/// A floating-point type: its representation, and constants of reductions in it.
pub(super) struct FloatFormat {
    /// The integer of its size.
    pub int: DType,
    /// Bits of the fraction.
    pub fraction: i32,
    pub bias: i32,
    pub least_normal: f64,
    /// Adding 1.5·2ⁿ, `n` the bits of the fraction, leaves the nearest integer in the low bits of the representation.
    pub rounder: f64,
    /// `ln 2` in two parts; multiples of the first by an exponent are exact.
    pub ln2: (f64, f64),
}

pub(super) const F32: FloatFormat = FloatFormat {
    int: DType::I32,
    fraction: 23,
    bias: 127,
    least_normal: f32::MIN_POSITIVE as f64,
    rounder: 12_582_912.0,
    ln2: (0.693_359_375, -0.000_212_194_441_701_285_54),
};

pub(super) const F64: FloatFormat = FloatFormat {
    int: DType::I64,
    fraction: 52,
    bias: 1023,
    least_normal: f64::MIN_POSITIVE,
    rounder: 6_755_399_441_055_744.0,
    ln2: (0.693_147_180_559_208_2, 7.371_002_565_167_799e-13),
};

impl FloatFormat {
    /// That of `x`, f32 or f64.
    pub fn of(x: &Ex) -> &'static FloatFormat {
        by_type(x, &F32, &F64)
    }

    /// [`FloatFormat::rounder`] biased so that the low bits hold the integer plus the exponents' bias of two factors.
    pub fn biased_rounder(&self) -> f64 {
        self.rounder + f64::from(2 * self.bias)
    }
}

/// One of two values, by whether `x` is f32 or f64.
pub(super) fn by_type<T>(x: &Ex, narrow: T, wide: T) -> T {
    if x.dtype() == DType::F64 { wide } else { narrow }
}
