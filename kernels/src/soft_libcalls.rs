//! Functions in place of instructions that processors lack, with the C calling convention, for generated code to
//! call: fused multiply-adds, roundings to integers, conversions to half precision, permutations of bytes.

#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::__m128i;

/// Defines functions and the table that finds them by name.
macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $t:ty),*) -> $r:ty $body:block)*) => {
        $(
            $(#[$doc])*
            #[cfg_attr(feature = "c-names", unsafe(no_mangle))]
            pub extern "C" fn $name($($arg: $t),*) -> $r $body
        )*

        /// Address of the function called `name`, e.g. `tc_fma_f32`.
        pub fn symbol(name: &str) -> Option<*const u8> {
            $(
                if name == stringify!($name) {
                    return Some($name as *const u8);
                }
            )*
            #[cfg(target_arch = "x86_64")]
            if name == "tc_x86_pshufb" {
                return Some(tc_x86_pshufb as *const u8);
            }
            None
        }

        /// Names of all functions that every machine has.
        #[cfg(test)]
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

functions! {
    /// `x·y + z`, rounded once.
    fn tc_fma_f32(x: f32, y: f32, z: f32) -> f32 { libm::fmaf(x, y, z) }
    /// `x·y + z`, rounded once.
    fn tc_fma_f64(x: f64, y: f64, z: f64) -> f64 { libm::fma(x, y, z) }
    /// The integer not below.
    fn tc_ceil_f32(x: f32) -> f32 { libm::ceilf(x) }
    /// The integer not below.
    fn tc_ceil_f64(x: f64) -> f64 { libm::ceil(x) }
    /// The integer not above.
    fn tc_floor_f32(x: f32) -> f32 { libm::floorf(x) }
    /// The integer not above.
    fn tc_floor_f64(x: f64) -> f64 { libm::floor(x) }
    /// The integer towards zero.
    fn tc_trunc_f32(x: f32) -> f32 { libm::truncf(x) }
    /// The integer towards zero.
    fn tc_trunc_f64(x: f64) -> f64 { libm::trunc(x) }
    /// The nearest integer, the even one of two.
    fn tc_round_f32(x: f32) -> f32 { libm::roundevenf(x) }
    /// The nearest integer, the even one of two.
    fn tc_round_f64(x: f64) -> f64 { libm::roundeven(x) }
    /// The bits of the nearest value of half precision.
    fn tc_f64_to_f16(x: f64) -> u32 { f32_to_f16(rounded_to_odd(x)) }
    /// The bits of the nearest bfloat16.
    fn tc_f64_to_bf16(x: f64) -> u32 { f32_to_bf16(rounded_to_odd(x)) }
    /// The bits of the value of half precision nearest to the f64 nearest to the integer.
    fn tc_i64_to_f16(x: i64) -> u32 { tc_f64_to_f16(x as f64) }
    /// The bits of the bfloat16 nearest to the f64 nearest to the integer.
    fn tc_i64_to_bf16(x: i64) -> u32 { tc_f64_to_bf16(x as f64) }
    /// The bits of the value of half precision nearest to the f64 nearest to the integer.
    fn tc_u64_to_f16(x: u64) -> u32 { tc_f64_to_f16(x as f64) }
    /// The bits of the bfloat16 nearest to the f64 nearest to the integer.
    fn tc_u64_to_bf16(x: u64) -> u32 { tc_f64_to_bf16(x as f64) }
}

/// Byte i is that of `x` which the low bits of byte i of `lanes` name, or zero if its highest bit is set.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(feature = "c-names", unsafe(no_mangle))]
#[allow(improper_ctypes_definitions, reason = "vectors are passed in registers, as the caller expects")]
pub extern "C" fn tc_x86_pshufb(x: __m128i, lanes: __m128i) -> __m128i {
    // SAFETY: both types are sixteen bytes, and all of these are values.
    let [x, lanes] = [x, lanes].map(|v| unsafe { core::mem::transmute::<__m128i, [u8; 16]>(v) });
    let bytes = lanes.map(|lane| if lane < 128 { x[usize::from(lane % 16)] } else { 0 });
    // SAFETY: as above.
    unsafe { core::mem::transmute::<[u8; 16], __m128i>(bytes) }
}

/// The f32 towards zero, or if that is even and not exact, its odd neighbour: rounded to fewer bits, it gives what
/// `x` gives (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
fn rounded_to_odd(x: f64) -> f32 {
    let near = x as f32;
    let error = f64::from(near) - x;
    if error == 0.0 || near.to_bits() & 1 == 1 || !near.is_finite() {
        return near;
    }
    // Magnitudes are ordered as their bits.
    let outwards = (error > 0.0) == x.is_sign_positive();
    f32::from_bits(if outwards { near.to_bits() - 1 } else { near.to_bits() + 1 })
}

fn f32_to_f16(x: f32) -> u32 {
    let sign = x.to_bits() >> 16 & 0x8000;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    sign | match magnitude {
        0x7f80_0001.. => 0x7e00,
        0x4780_0000.. => 0x7c00,
        // The exponent is rebiased; the carry of the rounding may reach it.
        0x3880_0000.. => (magnitude + 0xc800_0fff_u32.wrapping_add(magnitude >> 13 & 1)) >> 13,
        // The last place of the sum is that of subnormal numbers.
        _ => (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits(),
    }
}

fn f32_to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_nan() { bits >> 16 | 0x40 } else { (bits + 0x7fff + (bits >> 16 & 1)) >> 16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found() {
        assert!(NAMES.iter().all(|name| symbol(name).is_some()));
        assert!(symbol("fma").is_none());
    }

    #[test]
    fn roundings_to_integers() {
        assert_eq!([tc_round_f32(2.5), tc_round_f32(-0.5), tc_round_f32(1.5)], [2.0, -0.0, 2.0]);
        assert_eq!([tc_ceil_f64(-0.5), tc_floor_f64(-0.5), tc_trunc_f64(-1.5)], [0.0, -1.0, -1.0]);
        assert_eq!(tc_fma_f32(1.0 + f32::EPSILON, 1.0 - f32::EPSILON, -1.0), -f32::EPSILON * f32::EPSILON);
    }

    /// The value of half precision with these bits.
    fn half(bits: u32) -> f64 {
        let (exponent, fraction) = ((bits >> 10 & 31) as i32, f64::from(bits & 1023));
        let power = |n: i32| f64::from_bits(((1023 + n) as u64) << 52);
        match exponent {
            0 => fraction * power(-24),
            _ => (1024.0 + fraction) * power(exponent - 25),
        }
    }

    #[test]
    fn conversions_round_to_the_nearest_once() {
        for bits in 0..0x7c00 {
            let (x, next) = (half(bits), half(bits + 1));
            assert_eq!(tc_f64_to_f16(x), bits);
            assert_eq!(tc_f64_to_f16(-x), bits | 0x8000);
            // For the largest number, as if there were no limit to the exponent.
            let middle = x + (next - x) / 2.0;
            let after = |x: f64| f64::from_bits(x.to_bits() + 1);
            let before = |x: f64| f64::from_bits(x.to_bits() - 1);
            assert_eq!(tc_f64_to_f16(middle), bits + (bits & 1), "{middle:e}");
            assert_eq!(tc_f64_to_f16(after(middle)), bits + 1, "{middle:e}");
            assert_eq!(tc_f64_to_f16(before(middle)), bits, "{middle:e}");
        }
        for x in [f64::INFINITY, 1e300, 65520.0] {
            assert_eq!(tc_f64_to_f16(x), 0x7c00);
        }
        assert_eq!(tc_f64_to_f16(f64::NAN) & 0x7fff, 0x7e00);
        assert_eq!(tc_f64_to_f16(1e-300), 0);
        assert_eq!(tc_i64_to_f16(-65519), 0xfbff);
        for bits in (0..0x7f7f).step_by(5) {
            let (x, next) = (f64::from(f32::from_bits(bits << 16)), f64::from(f32::from_bits((bits + 1) << 16)));
            let middle = (x + next) / 2.0;
            assert_eq!(tc_f64_to_bf16(x), bits);
            assert_eq!(tc_f64_to_bf16(middle), bits + (bits & 1), "{middle:e}");
            assert_eq!(tc_f64_to_bf16(f64::from_bits(middle.to_bits() + 1)), bits + 1, "{middle:e}");
            assert_eq!(tc_f64_to_bf16(f64::from_bits(middle.to_bits() - 1)), bits, "{middle:e}");
        }
        assert_eq!(tc_u64_to_bf16(u64::MAX), 0x5f80);
        assert_ne!(tc_f64_to_bf16(f64::NAN) & 0x7f, 0);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn bytes_are_permuted() {
        let order: [u8; 16] = core::array::from_fn(|i| if i == 3 { 0x80 } else { 15 - i as u8 });
        let x: [u8; 16] = core::array::from_fn(|i| i as u8 + 1);
        // SAFETY: sixteen bytes each way.
        let [a, b] = [x, order].map(|v| unsafe { core::mem::transmute::<[u8; 16], __m128i>(v) });
        // SAFETY: as above.
        let found = unsafe { core::mem::transmute::<__m128i, [u8; 16]>(tc_x86_pshufb(a, b)) };
        assert_eq!(found, core::array::from_fn(|i| if i == 3 { 0 } else { 16 - i as u8 }));
    }
}
