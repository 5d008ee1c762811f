//! The exact remainder of C's `fmod`, without loops: `mx·2ᵈ mod my` of integers `mx` and `my`, the power by squaring.

use super::super::format::{FloatFormat, by_type, with_sign_of};
use crate::prelude::*;

fn integer(x: &Ex, n: i64) -> Ex {
    x.builder().constant(Scalar::i64(n))
}

/// `m` and `e` with `m·2ᵉ` the positive number `a`, `m` as i64 with as many bits as its type has.
fn decode(a: &Ex) -> (Ex, Ex) {
    let format = FloatFormat::of(a);
    let small = a.lt(&a.lit(format.least_normal));
    let bits = small.select(&(a * 2f64.powi(format.fraction)), a).bitcast(format.int).cast(DType::I64);
    let width = integer(a, i64::from(format.fraction));
    let exponent = bits.shr(&width) - small.select(&(&width * 2.0), &width) - f64::from(format.bias);
    let mantissa = bits & integer(a, (1 << format.fraction) - 1);
    (mantissa | integer(a, 1 << format.fraction), exponent)
}

/// `r`, less `by` if that is not negative.
fn less(r: &Ex, by: &Ex) -> Ex {
    r.ge(by).select(&(r - by), r)
}

/// A modulus of at most 53 bits, with its reciprocal.
struct Modulus {
    m: Ex,
    inverse: Ex,
}

impl Modulus {
    fn new(m: Ex) -> Modulus {
        let wide = m.cast(DType::F64);
        Modulus { inverse: wide.lit(1.0) / wide, m }
    }

    /// `a·b mod m` for `a` and `b` less than `m`. The quotient in f64 is off by at most 4, and the difference of two
    /// products modulo 2⁶⁴ is small.
    fn product(&self, a: &Ex, b: &Ex) -> Ex {
        let quotient = a.cast(DType::F64) * b.cast(DType::F64) * &self.inverse;
        let r = a * b - quotient.cast(DType::I64) * &self.m;
        let four = &self.m * 4.0;
        let r = r.lt(&r.lit(0.0)).select(&(&r + &four), &r);
        less(&less(&less(&r, &four), &(&self.m * 2.0)), &self.m)
    }
}

/// `2ᵈ mod m` for `d` from 0 to what two exponents may differ by: the upper bits of `d` give a power less than `m`, each
/// of the lower ones a square and perhaps a doubling.
fn power(m: &Modulus, d: &Ex, low_bits: i64) -> Ex {
    let one = integer(d, 1);
    let mut p = one.shl(&d.shr(&integer(d, low_bits)));
    for bit in (0..low_bits).rev() {
        let square = m.product(&p, &p);
        let is_set = (d & &integer(d, 1 << bit)).ne(&integer(d, 0));
        p = is_set.select(&less(&(&square * 2.0), &m.m), &square);
    }
    p
}

pub fn remainder(x: &Ex, y: &Ex) -> Ex {
    let (a, b) = (x.abs(), y.abs());
    let ((mx, ex), (my, ey)) = (decode(&a), decode(&b));
    let modulus = Modulus::new(my);
    let d = &ex - &ey;
    let zero = integer(x, 0);
    // Differences are below 280 and 2100.
    let d = d.lt(&zero).select(&zero, &d);
    let power = power(&modulus, &d, by_type(x, 4, 6));
    let r = modulus.product(&less(&mx, &modulus.m), &power).cast(DType::F64);
    // The remainder is a number of the type, so both products are exact.
    let half = ey.shr(&integer(x, 1));
    let factor = |e: &Ex| (e + 1023.0).shl(&integer(x, 52)).bitcast(DType::F64);
    let r = (r * factor(&half) * factor(&(&ey - &half))).cast(x.dtype());
    let r = a.lt(&b).select(&a, &r);
    let defined = b.gt(&b.lit(0.0)) & a.lt(&a.lit(f64::INFINITY));
    defined.select(&with_sign_of(&r, x), &x.lit(f64::NAN))
}
