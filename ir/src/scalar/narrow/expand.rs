//! Conversions of narrow types as expressions on f32 and i32, which every back end has.

use tensorc_abi::DType;

use super::super::build::Ex;
use super::super::value::Scalar;
use super::{Format, NarrowRounding, ScaleRounding};

/// Bits of the fraction of f32, and what is subtracted from its exponent.
const FRACTION: u32 = 23;
const BIAS: i32 = 127;
const INFINITY: i32 = 0x7f80_0000;
const NAN: i32 = 0x7fc0_0000;
/// All bits of an f32 but the sign.
const MAGNITUDE: i32 = i32::MAX;

impl Ex {
    /// The f32 next to `self`, f64, toward 0; with its last bit set if it is another number. Rounded again it is what one
    /// rounding would have made (Boldo and Melquiond, "When double rounding is odd", 2005).
    pub fn to_odd(&self) -> Ex {
        let y = self.cast(DType::F32);
        let bits = y.bitcast(DType::I32);
        let one = int(&bits, 1);
        let beyond = y.cast(DType::F64).abs().gt(&self.abs());
        let toward_zero = beyond.select(&(&bits - &one), &bits);
        let inexact = y.cast(DType::F64).ne(self);
        inexact.select(&(&toward_zero | &one), &toward_zero).bitcast(DType::F32)
    }

    /// Converts to another type; `how` matters for narrow floats.
    pub fn convert(&self, to: DType, how: NarrowRounding) -> Ex {
        let from = self.dtype();
        if from == to {
            return self.clone();
        }
        match (from.is_narrow(), to) {
            (false, _) if !to.is_narrow() => self.cast(to),
            (true, _) => widened(self).convert(to, how),
            (false, _) if to.is_narrow_float() => Format::of(to).map_or_else(
                || scale(&self.cast(DType::F32), how).cast(DType::U8).bitcast(to),
                |format| encoded(&in_f32(self), &format, how).cast(DType::U8).bitcast(to),
            ),
            (false, _) => wrapped(self, to),
        }
    }
}

/// An i32 constant.
fn int(like: &Ex, value: i32) -> Ex {
    like.builder().constant(Scalar::i64(value.into()).cast(DType::I32))
}

/// An f32 constant.
fn power(like: &Ex, exponent: i32) -> Ex {
    like.builder().constant(Scalar::f32(2f32.powi(exponent)))
}

/// A narrow value in a type that is computed with: floats in f32, which has all of them, integers in 8 bits.
fn widened(x: &Ex) -> Ex {
    match x.dtype() {
        DType::I4 | DType::I2 => x.bitcast(DType::I8),
        DType::U4 | DType::U2 => x.bitcast(DType::U8),
        from => {
            let code = x.bitcast(DType::U8).cast(DType::I32);
            Format::of(from).map_or_else(|| power_of(&code), |format| decoded(&code, &format)).bitcast(DType::F32)
        }
    }
}

/// A value in f32, from f64 so that another rounding makes what one would have made. Integers that f32 does not hold
/// are beyond every narrow type with a fraction.
fn in_f32(x: &Ex) -> Ex {
    if x.dtype() == DType::F64 { x.to_odd() } else { x.cast(DType::F32) }
}

/// The bits of f32 for a code.
fn decoded(code: &Ex, format: &Format) -> Ex {
    let (sign, quiet) = (i32::from(format.sign()), int(code, NAN));
    let rest = code & &int(code, sign - 1);
    let rebias = int(code, (BIAS - format.bias) << FRACTION);
    let normal = rest.shl(&int(code, (FRACTION - format.fraction) as i32)) + rebias;
    let least = power(code, format.least_exponent() - format.fraction as i32);
    let small = (rest.cast(DType::F32) * least).bitcast(DType::I32);
    let mut value = rest.lt(&int(code, 1 << format.fraction)).select(&small, &normal);
    if format.greatest < format.sign() - 1 {
        let beyond = match format.beyond == format.nan {
            true => quiet.clone(),
            false => rest.eq(&int(code, format.beyond.into())).select(&int(code, INFINITY), &quiet),
        };
        value = rest.gt(&int(code, format.greatest.into())).select(&beyond, &value);
    }
    let signed = value | code.shl(&int(code, 32 - format.bits as i32)) & &int(code, i32::MIN);
    if format.unsigned_zero { code.eq(&int(code, sign)).select(&quiet, &signed) } else { signed }
}

/// The code of an f32, as i32.
fn encoded(x: &Ex, format: &Format, how: NarrowRounding) -> Ex {
    let bits = x.bitcast(DType::I32);
    let size = &bits & &int(x, MAGNITUDE);
    // The bits that stay, plus just under half a unit of them, plus the last of them: halves to even.
    let dropped = (FRACTION - format.fraction) as i32;
    let last = size.shr(&int(x, dropped)) & &int(x, 1);
    let rounded = (&size + &last + &int(x, (1 << (dropped - 1)) - 1)).shr(&int(x, dropped));
    let normal = rounded - int(x, (BIAS - format.bias) << format.fraction);
    let magnitude = size.bitcast(DType::F32);
    let units = power(x, format.fraction as i32 - format.least_exponent());
    let small = (&magnitude * &units).round().cast(DType::I32);
    let code = magnitude.lt(&power(x, format.least_exponent())).select(&small, &normal);
    let greatest = int(x, format.greatest.into());
    let code = match how.saturate || format.beyond == format.greatest {
        true => code.min(&greatest),
        false => code.gt(&greatest).select(&int(x, format.beyond.into()), &code),
    };
    let nan = int(x, format.nan.into());
    let is_nan = size.gt(&int(x, INFINITY));
    let sign = bits.shr(&int(x, 31)) & &int(x, format.sign().into());
    if !format.has_nan() {
        return is_nan.select(&nan, &(code | sign));
    }
    let code = is_nan.select(&nan, &code);
    match format.unsigned_zero {
        true => code.eq(&int(x, 0)).select(&code, &(&code | &sign)),
        false => code | sign,
    }
}

/// The bits of f32 for a code of `F8E8M0`. The least power has no exponent there.
fn power_of(code: &Ex) -> Ex {
    let bits = code.shl(&int(code, FRACTION as i32));
    let bits = code.eq(&int(code, 0)).select(&int(code, 1 << (FRACTION - 1)), &bits);
    code.eq(&int(code, 255)).select(&int(code, NAN), &bits)
}

/// The code of `F8E8M0` for the size of an f32, as i32.
fn scale(x: &Ex, how: NarrowRounding) -> Ex {
    let size = x.bitcast(DType::I32) & &int(x, MAGNITUDE);
    let exponent = size.shr(&int(x, FRACTION as i32));
    let fraction = &size & &int(x, (1 << FRACTION) - 1);
    let (none, half) = (int(x, 0), int(x, 1 << (FRACTION - 1)));
    let up = match how.scale {
        ScaleRounding::Up => Some(fraction.gt(&none)),
        ScaleRounding::Down => None,
        ScaleRounding::Nearest => {
            let middle = exponent.gt(&none).select(&half, &(&half + &int(x, 1)));
            Some(fraction.ge(&middle))
        }
    };
    let code = up.map_or_else(|| exponent.clone(), |up| &exponent + &up.cast(DType::I32));
    let code = if how.saturate { code.min(&int(x, 254)) } else { code };
    exponent.eq(&int(x, 255)).select(&exponent, &code)
}

/// A value as a narrow integer: the bits that stay of an integer, or of the whole part of a number below 2³¹.
fn wrapped(x: &Ex, to: DType) -> Ex {
    let real = match x.dtype() {
        DType::F16 | DType::BF16 => Some(x.cast(DType::F32)),
        DType::F32 | DType::F64 => Some(x.clone()),
        _ => None,
    };
    let whole = real.map_or_else(
        || x.cast(DType::I32),
        |x| x.abs().lt(&x.lit(2f64.powi(31))).select(&x.cast(DType::I32), &int(&x, 0)),
    );
    let unused = int(x, 32 - to.bits() as i32);
    match to {
        DType::I4 | DType::I2 => whole.shl(&unused).shr(&unused).cast(DType::I8),
        _ => (whole & int(x, (1 << to.bits()) - 1)).cast(DType::U8),
    }
    .bitcast(to)
}
