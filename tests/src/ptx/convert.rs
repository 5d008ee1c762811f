//! `cvt` (PTX ISA, "Data movement and conversion instructions: cvt").

use super::float::{BF16, F16, Half, NAN32, NAN64, flushed};
use super::types::{Type, low, signed};

/// How a result that is not exact is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// Only where nothing is to be rounded.
    None,
    Nearest,
    /// Of two equally near the one farther from zero.
    NearestAway,
    /// To an integer: the nearest, toward zero, down, up.
    Integer(Toward),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Toward {
    Nearest,
    Zero,
    Down,
    Up,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Conversion {
    pub to: Type,
    pub from: Type,
    round: Round,
    ftz: bool,
    sat: bool,
}

impl Conversion {
    /// What the qualifiers behind `cvt` say; `None` if that is nothing we know.
    pub fn parse(parts: &[&str]) -> Option<Conversion> {
        let [qualifiers @ .., to, from] = parts else { return None };
        let (to, from) = (Type::parse(to)?, Type::parse(from)?);
        let mut conversion = Conversion { to, from, round: Round::None, ftz: false, sat: false };
        for qualifier in qualifiers {
            match *qualifier {
                "rn" => conversion.round = Round::Nearest,
                "rna" => conversion.round = Round::NearestAway,
                "rni" => conversion.round = Round::Integer(Toward::Nearest),
                "rzi" => conversion.round = Round::Integer(Toward::Zero),
                "rmi" => conversion.round = Round::Integer(Toward::Down),
                "rpi" => conversion.round = Round::Integer(Toward::Up),
                "ftz" => conversion.ftz = true,
                "sat" => conversion.sat = true,
                _ => return None,
            }
        }
        conversion.is_known().then_some(conversion)
    }

    /// Rounding belongs exactly where a result may not be exact.
    fn is_known(&self) -> bool {
        let (to, from) = (self.to, self.from);
        match (from.is_int(), to.is_int()) {
            (true, true) => self.round == Round::None,
            (true, false) => {
                self.round == Round::Nearest && matches!(to, Type::F16 | Type::BF16 | Type::F32 | Type::F64)
            }
            (false, true) => matches!(self.round, Round::Integer(_)) && from.is_float() && !self.sat,
            (false, false) => match (from, to) {
                (Type::F32, Type::TF32) => self.round == Round::NearestAway,
                (Type::F32, Type::F16x2 | Type::BF16x2) => self.round == Round::Nearest && !self.sat,
                _ if !from.is_float() || !to.is_float() || from == Type::TF32 || to == Type::TF32 => false,
                _ if from == to => matches!(self.round, Round::Integer(_)),
                _ if to.bits() > from.bits() => self.round == Round::None,
                _ => self.round == Round::Nearest,
            },
        }
    }

    /// Whether two numbers become the halves of a register.
    pub fn packs(&self) -> bool {
        matches!(self.to, Type::F16x2 | Type::BF16x2)
    }

    /// The bits of the result, for a register of so many bits.
    pub fn apply(&self, bits: u32, x: u64) -> u64 {
        if !self.from.is_int() {
            let value = self.value(x);
            return match self.to.is_int() {
                true => low(bits, self.integer(value)),
                false => self.float(value, x),
            };
        }
        let wide = if self.from.is_signed() {
            i128::from(signed(self.from.bits(), x))
        } else {
            i128::from(low(self.from.bits(), x))
        };
        match self.to {
            Type::F32 => u64::from((wide as f32).to_bits()),
            Type::F64 => (wide as f64).to_bits(),
            // More than f64 holds exactly is infinite, either way.
            Type::F16 => F16.nearest(wide as f64),
            // Only numbers of up to 32 bits, which f64 holds.
            Type::BF16 => BF16.nearest(wide as f64),
            to => {
                let (least, most) = range(to);
                let kept = if self.sat { wide.clamp(least, most) } else { wide };
                let own = low(to.bits(), kept as u64);
                low(bits, if to.is_signed() { signed(to.bits(), own) as u64 } else { own })
            }
        }
    }

    /// The halves of a register: of `a` the upper one.
    pub fn pack(&self, a: u64, b: u64) -> u64 {
        let half = Half::of(self.to).unwrap_or(F16);
        half.nearest(self.value(a)) << 16 | half.nearest(self.value(b))
    }

    fn value(&self, x: u64) -> f64 {
        match self.from {
            Type::F64 => f64::from_bits(x),
            Type::F32 => {
                let x = f32::from_bits(x as u32);
                f64::from(if self.ftz { flushed(x) } else { x })
            }
            from => Half::of(from).unwrap_or(F16).value(x),
        }
    }

    fn integer(&self, x: f64) -> u64 {
        let bits = self.to.bits();
        if x.is_nan() {
            // "Zero if source is not .f64 and destination is not .s64 or .u64, otherwise 1 << (BitWidth(dst) - 1)."
            let wide = self.from == Type::F64 || bits == 64;
            return if wide { 1 << (bits - 1) } else { 0 };
        }
        let (least, most) = range(self.to);
        (rounded(self.round, x) as i128).clamp(least, most) as u64
    }

    fn float(&self, value: f64, bits: u64) -> u64 {
        let value = rounded(self.round, value);
        let value = match self.sat {
            true if value.is_nan() => 0.0,
            true => value.clamp(0.0, 1.0),
            false => value,
        };
        match self.to {
            Type::F64 => {
                if value.is_nan() {
                    NAN64
                } else {
                    value.to_bits()
                }
            }
            _ if self.to != Type::F32 && self.to != Type::TF32 => Half::of(self.to).unwrap_or(F16).nearest(value),
            _ if value.is_nan() => NAN32,
            // To 10 bits of fraction, ties away from zero: a carry out of the fraction is right, also into infinity.
            Type::TF32 if value.is_finite() => (bits + 0x1000) & 0xffff_e000,
            _ => {
                let narrow = value as f32;
                u64::from(if self.ftz { flushed(narrow) } else { narrow }.to_bits())
            }
        }
    }
}

fn rounded(round: Round, x: f64) -> f64 {
    match round {
        Round::Integer(Toward::Nearest) => x.round_ties_even(),
        Round::Integer(Toward::Zero) => x.trunc(),
        Round::Integer(Toward::Down) => x.floor(),
        Round::Integer(Toward::Up) => x.ceil(),
        _ => x,
    }
}

/// The least and greatest number of an integer type.
fn range(ty: Type) -> (i128, i128) {
    let bits = ty.bits();
    match ty.is_signed() {
        true => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        false => (0, (1 << bits) - 1),
    }
}
