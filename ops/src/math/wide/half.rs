//! Conversions to f16 and bf16 of types that f32 does not hold exactly: by way of an f32 rounded to odd, of which the
//! second rounding makes what one rounding would have made (Boldo and Melquiond, "When double rounding is odd", 2005).

use tensorc_ir::DType;
use tensorc_ir::scalar::Ex;

/// `x`, f64 or an integer of 32 or 64 bits, in f64 and then rounded to 16 bits.
pub fn rounded(x: &Ex, to: DType) -> Ex {
    to_odd(&x.cast(DType::F64)).cast(to)
}

/// The f32 next to `x`, f64, toward 0; with its last bit set if it is another number.
fn to_odd(x: &Ex) -> Ex {
    let y = x.cast(DType::F32);
    let bits = y.bitcast(DType::I32);
    let one = bits.lit(1.0);
    let beyond = y.cast(DType::F64).abs().gt(&x.abs());
    let toward_zero = beyond.select(&(&bits - &one), &bits);
    let inexact = y.cast(DType::F64).ne(x);
    inexact.select(&(&toward_zero | &one), &toward_zero).bitcast(DType::F32)
}
