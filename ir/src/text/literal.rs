//! Exact scalar literals.

use tensorc_abi::DType;

use crate::scalar::Scalar;

/// The literal of a value, without its type: the shortest decimal that reads back to the same bits,
/// or the bits in hexadecimal where there is none (NaNs other than the canonical one).
pub(super) fn print(s: Scalar) -> String {
    let text = match s.dtype {
        DType::Bool if s.bits <= 1 => return (s.bits == 1).to_string(),
        DType::F64 => float(format!("{:?}", f64::from_bits(s.bits))),
        DType::F32 | DType::F16 | DType::BF16 => float(format!("{:?}", s.as_f32())),
        d if d.is_narrow_float() => float(format!("{:?}", s.as_f32())),
        DType::U64 => s.bits.to_string(),
        _ => s.as_i64().to_string(),
    };
    match parse(s.dtype, &text) {
        Some(back) if back == s => text,
        _ => format!("{:#x}", s.bits),
    }
}

fn float(text: String) -> String {
    match text.as_str() {
        "NaN" => "nan".into(),
        _ => text,
    }
}

/// The NaN written `nan`; `None` for types without one.
fn canonical_nan(dtype: DType) -> Option<Scalar> {
    let bits = match dtype {
        DType::F64 => 0x7ff8_0000_0000_0000,
        DType::F32 => 0x7fc0_0000,
        DType::F16 => 0x7e00,
        DType::BF16 => 0x7fc0,
        _ => Scalar::from_f64(dtype, f64::NAN).bits,
    };
    Some(Scalar { dtype, bits }).filter(|s| s.is_nan())
}

/// Reads a literal of a type: `true`/`false`, a decimal with optional sign, `inf`, `-inf`, `nan`, or
/// `0x` and the bits. `None` if it does not denote a value of the type.
pub(super) fn parse(dtype: DType, text: &str) -> Option<Scalar> {
    if let Some(hex) = text.strip_prefix("0x") {
        let bits = u64::from_str_radix(hex, 16).ok()?;
        let fits = dtype.size() == 8 || bits >> (8 * dtype.size()) == 0 && dtype.holds(bits as u8);
        return (fits && hex.bytes().all(|b| b.is_ascii_hexdigit())).then_some(Scalar { dtype, bits });
    }
    if text == "nan" {
        return canonical_nan(dtype);
    }
    match dtype {
        DType::Bool => match text {
            "true" => Some(Scalar::bool(true)),
            "false" => Some(Scalar::bool(false)),
            _ => None,
        },
        DType::F32 => text.parse::<f32>().ok().map(Scalar::f32),
        _ if dtype.is_float() || dtype.is_narrow_float() => {
            text.parse::<f64>().ok().map(|x| Scalar::from_f64(dtype, x))
        }
        DType::U64 => text.parse::<u64>().ok().map(|bits| Scalar { dtype, bits }),
        _ => {
            let s = text.parse::<i64>().ok().map(|x| (x, Scalar::from_i64(dtype, x)))?;
            (s.1.as_i64() == s.0).then_some(s.1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_pattern_survives() {
        let mut state = 1u64;
        for i in 0..200_000u64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let raw = state ^ (state >> 29);
            for dtype in DType::ALL {
                let bits = match dtype.size() {
                    8 => raw,
                    2 => i & 0xffff,
                    n => raw >> 13 & ((1 << (8 * n)) - 1),
                };
                let s = Scalar { dtype, bits };
                if !dtype.holds(bits as u8) {
                    continue;
                }
                assert_eq!(parse(dtype, &print(s)), Some(s), "{}", print(s));
            }
        }
    }

    #[test]
    fn spelling() {
        assert_eq!(print(Scalar::f32(0.1)), "0.1");
        assert_eq!(print(Scalar::f32(-0.0)), "-0.0");
        assert_eq!(print(Scalar::f32(f32::NEG_INFINITY)), "-inf");
        assert_eq!(print(Scalar { dtype: DType::F32, bits: 0x7fc0_0001 }), "0x7fc00001");
        assert_eq!(print(Scalar::f32(f32::from_bits(0x7fc0_0000))), "nan");
        assert_eq!(parse(DType::I8, "128"), None);
        assert_eq!(parse(DType::U8, "-1"), None);
        assert_eq!(parse(DType::I32, "1.5"), None);
    }
}
