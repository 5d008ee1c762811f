//! Conversions to f16 and bf16 of types that f32 does not hold exactly.

use tensorc_ir::DType;
use tensorc_ir::scalar::Ex;

/// `x`, f64 or an integer of 32 or 64 bits, in f64 and then rounded to 16 bits.
pub fn rounded(x: &Ex, to: DType) -> Ex {
    x.cast(DType::F64).to_odd().cast(to)
}
