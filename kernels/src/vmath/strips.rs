//! Functions of the math library applied to strips of memory, and the table that finds them by name.

use super::generated;
use crate::isa::{Isa, isa};

/// A function applied in place to `len` consecutive elements.
///
/// # Safety
/// `data` must be valid for reads and writes of `len` elements, and the machine must have the ISA level
/// the function was asked for.
pub type VectorMathFn = unsafe extern "C" fn(data: *mut f32, len: i64);

/// Elements of one turn of the main loop: several vectors of any ISA level, to overlap their latencies.
const TURN: usize = 64;
/// Elements of the widest vector.
const VECTOR: usize = 16;

/// Applies `f` to every element.
///
/// # Safety
/// As [`VectorMathFn`].
#[inline(always)]
unsafe fn strip(data: *mut f32, len: i64, f: impl Fn(f32) -> f32) {
    // SAFETY: the caller's promise.
    let data = unsafe { core::slice::from_raw_parts_mut(data, len.max(0) as usize) };
    let (whole, tail) = data.split_at_mut(data.len() / TURN * TURN);
    for x in whole {
        *x = f(*x);
    }
    if !tail.is_empty() {
        let mut padded = [0.0; TURN];
        padded[..tail.len()].copy_from_slice(tail);
        let vectors = tail.len().div_ceil(VECTOR);
        for x in &mut padded[..vectors * VECTOR] {
            *x = f(*x);
        }
        tail.copy_from_slice(&padded[..tail.len()]);
    }
}

/// Defines the strips of each function and the table that finds them.
macro_rules! strips {
    ($($f:ident = $symbol:literal),* $(,)?) => {
        $(
            mod $f {
                use super::{generated, strip};
                use crate::fused::Baseline;
                #[cfg(target_arch = "x86_64")]
                use crate::fused::Fma;

                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx512f,avx2,fma")]
                pub(super) unsafe extern "C" fn avx512(data: *mut f32, len: i64) {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let fused = Fma::new();
                        strip(data, len, |x| generated::$f(fused, x))
                    }
                }

                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx2,fma")]
                pub(super) unsafe extern "C" fn avx2(data: *mut f32, len: i64) {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let fused = Fma::new();
                        strip(data, len, |x| generated::$f(fused, x))
                    }
                }

                pub(super) unsafe extern "C" fn portable(data: *mut f32, len: i64) {
                    // SAFETY: the caller's promise.
                    unsafe { strip(data, len, |x| generated::$f(Baseline, x)) }
                }

                /// The strip for this machine, under its name.
                #[cfg(feature = "c-names")]
                #[unsafe(export_name = $symbol)]
                unsafe extern "C" fn best(data: *mut f32, len: i64) {
                    // SAFETY: the caller's promise; the ISA level is this machine's.
                    match super::isa() {
                        #[cfg(target_arch = "x86_64")]
                        super::Isa::Amx | super::Isa::Avx512 => unsafe { avx512(data, len) },
                        #[cfg(target_arch = "x86_64")]
                        super::Isa::Avx2 => unsafe { avx2(data, len) },
                        _ => unsafe { portable(data, len) },
                    }
                }
            }
        )*

        /// Names of the functions, without prefix and suffix.
        pub const NAMES: &[&str] = &[$(stringify!($f)),*];

        /// The strip called `name`, e.g. `tc_vexp_f32`, for a ISA level.
        pub fn vector_math_for(isa: Isa, name: &str) -> Option<VectorMathFn> {
            let strip: VectorMathFn = match (name, isa) {
                $(
                    #[cfg(target_arch = "x86_64")]
                    ($symbol, Isa::Amx | Isa::Avx512) => $f::avx512,
                    #[cfg(target_arch = "x86_64")]
                    ($symbol, Isa::Avx2) => $f::avx2,
                    ($symbol, _) => $f::portable,
                )*
                _ => return None,
            };
            Some(strip)
        }
    };
}

strips! {
    exp = "tc_vexp_f32",
    exp2 = "tc_vexp2_f32",
    expm1 = "tc_vexpm1_f32",
    log = "tc_vlog_f32",
    log2 = "tc_vlog2_f32",
    log1p = "tc_vlog1p_f32",
    asin = "tc_vasin_f32",
    acos = "tc_vacos_f32",
    atan = "tc_vatan_f32",
    sinh = "tc_vsinh_f32",
    cosh = "tc_vcosh_f32",
    tanh = "tc_vtanh_f32",
    asinh = "tc_vasinh_f32",
    acosh = "tc_vacosh_f32",
    atanh = "tc_vatanh_f32",
    erf = "tc_verf_f32",
    ndtr = "tc_vndtr_f32",
}

/// Address of the [`VectorMathFn`] called `name` for this machine.
pub fn symbol(name: &str) -> Option<*const u8> {
    vector_math_for(isa(), name).map(|f| f as *const u8)
}
