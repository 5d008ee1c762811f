//! The f32 math library on strips of memory, at the full vector width of the machine.
//!
//! The functions themselves are in `generated`, straight-line scalar code written out from the math
//! library's expressions where these are of 32-bit types only; `tests/integration/vmath.rs` generates it and checks that
//! it is up to date. `strips` puts them into loops, compiled once per instruction-set ISA level. Compilers keep the
//! order of every rounding, so all ISA levels give the bits the expressions define.

mod generated;
mod strips;

pub use strips::{NAMES, VectorMathFn, symbol, vector_math_for};

use crate::fused::FusedMultiplyAdd;

/// `exp` as the library defines it.
#[inline(always)]
pub(crate) fn exp(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    generated::exp(fused, x)
}
