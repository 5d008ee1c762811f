//! f64 elementary functions with the C calling convention, for generated code to call.
//!
//! They wrap the `libm` crate rather than the system's library, so that results are the same on
//! every machine.

/// Defines `extern "C"` wrappers and the table that finds them by name.
macro_rules! wrappers {
    (unary: $($one:ident = $f:path),* ; binary: $($two:ident = $g:path),* $(;)?) => {
        $(
            #[doc = concat!("`", stringify!($f), "`.")]
            #[cfg_attr(feature = "c-names", unsafe(no_mangle))]
            pub extern "C" fn $one(x: f64) -> f64 {
                $f(x)
            }
        )*
        $(
            #[doc = concat!("`", stringify!($g), "`.")]
            #[cfg_attr(feature = "c-names", unsafe(no_mangle))]
            pub extern "C" fn $two(x: f64, y: f64) -> f64 {
                $g(x, y)
            }
        )*

        /// Address of the function called `name`, e.g. `tc_exp_f64`.
        pub fn symbol(name: &str) -> Option<*const u8> {
            $(
                if name == stringify!($one) {
                    return Some($one as *const u8);
                }
            )*
            $(
                if name == stringify!($two) {
                    return Some($two as *const u8);
                }
            )*
            match name {
                "tc_fmod_f32" => Some(tc_fmod_f32 as *const u8),
                "tc_scale_f32" => Some(tc_scale_f32 as *const u8),
                _ => None,
            }
        }

        /// Names of all functions of one argument, then of two.
        #[cfg(test)]
        pub const NAMES: (&[&str], &[&str]) = (&[$(stringify!($one)),*], &[$(stringify!($two)),*]);
    };
}

wrappers! {
    unary:
        tc_exp_f64 = libm::exp,
        tc_exp2_f64 = libm::exp2,
        tc_expm1_f64 = libm::expm1,
        tc_log_f64 = libm::log,
        tc_log2_f64 = libm::log2,
        tc_log10_f64 = libm::log10,
        tc_log1p_f64 = libm::log1p,
        tc_sin_f64 = libm::sin,
        tc_cos_f64 = libm::cos,
        tc_tan_f64 = libm::tan,
        tc_asin_f64 = libm::asin,
        tc_acos_f64 = libm::acos,
        tc_atan_f64 = libm::atan,
        tc_sinh_f64 = libm::sinh,
        tc_cosh_f64 = libm::cosh,
        tc_tanh_f64 = libm::tanh,
        tc_asinh_f64 = libm::asinh,
        tc_acosh_f64 = libm::acosh,
        tc_atanh_f64 = libm::atanh,
        tc_erf_f64 = libm::erf,
        tc_erfc_f64 = libm::erfc,
        tc_ndtr_f64 = ndtr,
        tc_cbrt_f64 = libm::cbrt,
        tc_lgamma_f64 = libm::lgamma,
        tc_tgamma_f64 = libm::tgamma;
    binary:
        tc_pow_f64 = libm::pow,
        tc_atan2_f64 = libm::atan2,
        tc_fmod_f64 = libm::fmod;
}

/// The distribution function of the normal distribution, `erfc(-x/√2)/2`.
fn ndtr(x: f64) -> f64 {
    libm::erfc(-x * core::f64::consts::FRAC_1_SQRT_2) * 0.5
}

/// The exact remainder of C's `fmodf`.
#[cfg_attr(feature = "c-names", unsafe(no_mangle))]
pub extern "C" fn tc_fmod_f32(x: f32, y: f32) -> f32 {
    libm::fmodf(x, y)
}

/// `x·2^⌊n⌋`, rounded once: the product is exact in f64, where powers from 2^-300 to 2^300 stand for all. A quiet NaN with
/// infinite `n` gives ∞ or 0, as the instruction of AVX-512 does.
#[cfg_attr(feature = "c-names", unsafe(no_mangle))]
pub extern "C" fn tc_scale_f32(x: f32, n: f32) -> f32 {
    let quiet = x.is_nan() && x.to_bits() & 0x0040_0000 != 0;
    let power = match n.is_finite() {
        true => libm::scalbn(1.0, libm::floorf(n).clamp(-300.0, 300.0) as i32),
        false => libm::exp2(f64::from(n)),
    };
    if quiet && n.is_infinite() { power as f32 } else { (f64::from(x) * power) as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_compute_their_function() {
        for name in NAMES.0.iter().chain(NAMES.1) {
            assert!(symbol(name).is_some(), "{name}");
        }
        assert_eq!(symbol("tc_exp_f64"), Some(tc_exp_f64 as *const u8));
        assert!(symbol("exp").is_none());
        assert!((tc_erf_f64(0.5) - 0.520_499_877_813_046_5).abs() < 1e-15);
        assert_eq!(tc_fmod_f64(-7.5, 2.0), -1.5);
        assert_eq!(tc_pow_f64(2.0, 10.0), 1024.0);
        assert_eq!(tc_scale_f32(1.5, -148.5), 3e-45, "between two subnormal numbers, to the even one");
        assert_eq!(tc_scale_f32(1e-45, 200.0), 2_251_799_813_685_248.0, "2⁵¹");
        assert_eq!(tc_scale_f32(-1.0, f32::INFINITY), f32::NEG_INFINITY);
    }
}
