//! Narrow types: what their codes stand for, and conversions of single values (`docs/numerics.md`, "Narrow types").
//! Generated code converts by the expressions of [`expand`], which give the same codes.

mod expand;

use tensorc_abi::DType;

use super::value::Scalar;

/// Where a number between two powers of 2 goes in `F8E8M0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleRounding {
    /// To the greater one.
    #[default]
    Up,
    /// To the smaller one.
    Down,
    /// To the nearest, and in the middle to the greater one.
    Nearest,
}

/// What conversions to narrow floats do with numbers that these do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NarrowRounding {
    /// Whether what is too large becomes the greatest number, not an infinity or NaN. Types without either always saturate.
    pub saturate: bool,
    /// The direction, of `F8E8M0` alone; other types round to nearest even.
    pub scale: ScaleRounding,
}

impl Default for NarrowRounding {
    fn default() -> NarrowRounding {
        NarrowRounding { saturate: true, scale: ScaleRounding::Up }
    }
}

/// A narrow float with a sign, an exponent and a fraction, from its highest bit on.
struct Format {
    /// Bits of the whole.
    bits: u32,
    /// Bits of the fraction.
    fraction: u32,
    /// What is subtracted from the exponent.
    bias: i32,
    /// The code of the greatest number.
    greatest: u8,
    /// The positive code that larger numbers get without saturation.
    beyond: u8,
    /// The code of a NaN; of formats without one, what NaN becomes.
    nan: u8,
    /// Whether the sign bit alone is a NaN: there is no negative zero, and NaNs have no sign.
    unsigned_zero: bool,
}

impl Format {
    const fn of(dtype: DType) -> Option<Format> {
        let [bits, fraction, bias, greatest, beyond, nan] = match dtype {
            DType::F8E4M3FN => [8, 3, 7, 0x7e, 0x7f, 0x7f],
            DType::F8E4M3FNUZ => [8, 3, 8, 0x7f, 0x80, 0x80],
            DType::F8E5M2 => [8, 2, 15, 0x7b, 0x7c, 0x7e],
            DType::F8E5M2FNUZ => [8, 2, 16, 0x7f, 0x80, 0x80],
            DType::F6E2M3 => [6, 3, 1, 0x1f, 0x1f, 0x20],
            DType::F6E3M2 => [6, 2, 3, 0x1f, 0x1f, 0x20],
            DType::F4E2M1 => [4, 1, 1, 0x7, 0x7, 0x8],
            _ => return None,
        };
        let unsigned_zero = matches!(dtype, DType::F8E4M3FNUZ | DType::F8E5M2FNUZ);
        let bias = bias as i32;
        let [greatest, beyond, nan] = [greatest as u8, beyond as u8, nan as u8];
        Some(Format { bits, fraction, bias, greatest, beyond, nan, unsigned_zero })
    }

    /// The sign bit.
    const fn sign(&self) -> u8 {
        1 << (self.bits - 1)
    }

    /// Whether it has NaNs.
    const fn has_nan(&self) -> bool {
        self.nan != self.sign() || self.unsigned_zero
    }

    /// The least number with a full fraction is 2 to this power.
    const fn least_exponent(&self) -> i32 {
        1 - self.bias
    }

    /// The number that a code without its sign stands for; also that of the code behind the greatest one, if it were one.
    fn magnitude(&self, code: u8) -> f64 {
        let (exponent, fraction) = (i32::from(code >> self.fraction), code & ((1 << self.fraction) - 1));
        let whole = fraction | if exponent > 0 { 1 << self.fraction } else { 0 };
        f64::from(whole) * 2f64.powi(exponent.max(1) - self.bias - self.fraction as i32)
    }

    fn decode(&self, code: u8) -> f64 {
        let (sign, rest) = (code & self.sign(), code & !self.sign());
        let magnitude = match rest {
            0 if sign != 0 && self.unsigned_zero => f64::NAN,
            _ if rest <= self.greatest => self.magnitude(rest),
            _ if rest == self.beyond && self.beyond != self.nan => f64::INFINITY,
            _ => f64::NAN,
        };
        if sign != 0 { -magnitude } else { magnitude }
    }

    fn encode(&self, x: f64, saturate: bool) -> u8 {
        let sign = if x.is_sign_negative() { self.sign() } else { 0 };
        if x.is_nan() {
            return if self.has_nan() { self.nan | sign } else { self.nan };
        }
        let below = (0..=self.greatest).rev().find(|code| self.magnitude(*code) <= x.abs()).unwrap_or_default();
        let middle = (self.magnitude(below) + self.magnitude(below + 1)) / 2.0;
        let up = x.abs() > middle || x.abs() == middle && below & 1 == 1;
        match below + u8::from(up) {
            0 if self.unsigned_zero => 0,
            code if code > self.greatest => sign | if saturate { self.greatest } else { self.beyond },
            code => sign | code,
        }
    }
}

/// The number that a code of a narrow type stands for.
pub(super) fn decode(dtype: DType, code: u8) -> f64 {
    match (Format::of(dtype), dtype) {
        (Some(format), _) => format.decode(code),
        (None, DType::F8E8M0) if code == u8::MAX => f64::NAN,
        (None, DType::F8E8M0) => 2f64.powi(i32::from(code) - 127),
        (None, DType::U4 | DType::U2) => code.into(),
        (None, _) => f64::from(code as i8),
    }
}

/// The code of a narrow type for a number.
pub(super) fn encode(dtype: DType, x: f64, how: NarrowRounding) -> u8 {
    match (Format::of(dtype), dtype) {
        (Some(format), _) => format.encode(x, how.saturate),
        (None, DType::F8E8M0) => encode_scale(x as f32, how),
        // Numbers of f32 from 2³¹ on have zeros in the bits that are kept.
        (None, _) if x.abs() < 2f64.powi(31) => wrapped(dtype, x as i64),
        (None, _) => 0,
    }
}

/// The code of a narrow integer type for an integer.
pub(super) fn wrapped(dtype: DType, x: i64) -> u8 {
    let unused = 64 - dtype.bits() as u32;
    match dtype {
        DType::U4 | DType::U2 => ((x as u64) << unused >> unused) as u8,
        _ => (x << unused >> unused) as u8,
    }
}

/// The power of 2 next to the size of a number.
fn encode_scale(x: f32, how: NarrowRounding) -> u8 {
    let bits = x.abs().to_bits();
    let (exponent, fraction) = (bits >> 23, bits & 0x7f_ffff);
    let half = 0x40_0000;
    let up = match how.scale {
        ScaleRounding::Up => fraction > 0,
        ScaleRounding::Down => false,
        // Below the least power there is none to be in the middle of.
        ScaleRounding::Nearest => fraction > half || fraction == half && exponent > 0,
    };
    let most = if how.saturate { 254 } else { 255 };
    if x.is_finite() { (exponent + u32::from(up)).min(most) as u8 } else { u8::MAX }
}

impl Scalar {
    /// Conversion to a type, by the given rules if it is a narrow float.
    pub fn narrowed(self, to: DType, how: NarrowRounding) -> Scalar {
        let code = match to {
            _ if self.dtype == to => return self,
            _ if !to.is_narrow() => return self.cast(to),
            DType::F8E8M0 => encode(to, self.as_f32().into(), how),
            _ if to.is_narrow_float() || self.is_real() => encode(to, self.as_f64(), how),
            _ => wrapped(to, self.as_i64()),
        };
        Scalar { dtype: to, bits: code.into() }
    }
}
