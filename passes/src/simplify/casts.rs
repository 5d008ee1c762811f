//! Facts about conversions between element types.

use tensorc_ir::DType;

/// Whether casting `from → middle → to` equals casting `from → to`.
pub(super) fn skips(from: DType, middle: DType, to: DType) -> bool {
    // Integers wrap into integers, but floats saturate into them.
    let saturates = middle.is_float() && !from.is_float() && !to.is_float() && !holds(to, from) && to != DType::Bool;
    // Half types round from f32 and from f64 by different conversions.
    let other_rounding = from == DType::F32 && middle == DType::F64 && to.is_float() && to.size() == 2;
    holds(middle, from) && !saturates && !other_rounding
}

/// Whether every value of `small` is a value of `large`.
fn holds(large: DType, small: DType) -> bool {
    let digits = |d: DType| match d {
        DType::F64 => 53,
        DType::F32 => 24,
        DType::F16 => 11,
        DType::BF16 => 8,
        DType::Bool => 1,
        d => d.size() * 8 - usize::from(d.is_signed_int()),
    };
    match (large.is_float(), small.is_float()) {
        _ if large == small => true,
        (true, true) => matches!((large, small), (DType::F64, _) | (DType::F32, DType::F16 | DType::BF16)),
        // bf16 and f32 share a range; f16 overflows at 65504.
        (true, false) => digits(small) <= digits(large),
        (false, true) => false,
        _ if large == DType::Bool => false,
        _ => digits(small) <= digits(large) && (large.is_signed_int() || !small.is_signed_int()),
    }
}

#[cfg(test)]
mod tests {
    use tensorc_ir::scalar::Scalar;

    use super::*;

    #[test]
    fn casts_that_skip_are_equal_on_many_values() {
        for from in DType::COMPUTED {
            for middle in DType::COMPUTED {
                for to in DType::COMPUTED.into_iter().filter(|to| skips(from, middle, *to)) {
                    for bits in 0..70_000u64 {
                        let mask = if from.size() == 8 { u64::MAX } else { (1 << (8 * from.size())) - 1 };
                        let spread = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(bits as u32 % 64) & mask;
                        let bits = if from == DType::Bool { bits & 1 } else { spread };
                        let x = Scalar { dtype: from, bits };
                        let (two, one) = (x.cast(middle).cast(to), x.cast(to));
                        assert!(two == one || two.is_nan() && one.is_nan(), "{from} {middle} {to} {x:?}");
                    }
                }
            }
        }
    }
}
