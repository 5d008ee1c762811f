//! Exact evaluation of scalar operations: the definition that every back end must match bit by bit.

use tensorc_abi::DType;

use super::op::{CmpOp, MathFn, ScalarOp};
use super::value::{Scalar, mask};

impl ScalarOp {
    /// Applies the operation. Operand types must satisfy [`ScalarOp::result`].
    pub fn eval(self, args: &[Scalar]) -> Scalar {
        match self {
            ScalarOp::Cast(to) => args[0].cast(to),
            ScalarOp::Bitcast(to) => Scalar { dtype: to, bits: args[0].bits },
            ScalarOp::Select => args[if args[0].as_bool() { 1 } else { 2 }],
            ScalarOp::Cmp(op) => Scalar::bool(compare(op, args[0], args[1])),
            _ => match args[0].dtype {
                DType::F32 => Scalar::f32(float32(self, args)),
                DType::F64 => Scalar { dtype: DType::F64, bits: float64(self, args).to_bits() },
                _ => integer(self, args),
            },
        }
    }
}

impl CmpOp {
    /// Whether the comparison of two numbers holds.
    pub(crate) fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            CmpOp::Eq => a == b,
            CmpOp::Ne => a != b,
            CmpOp::Lt => a < b,
            CmpOp::Le => a <= b,
            CmpOp::Gt => a > b,
            CmpOp::Ge => a >= b,
        }
    }
}

fn compare(op: CmpOp, a: Scalar, b: Scalar) -> bool {
    match a.dtype {
        d if d.is_float() => op.holds(a.as_f64(), b.as_f64()),
        DType::U64 => op.holds(a.bits, b.bits),
        _ => op.holds(a.as_i64(), b.as_i64()),
    }
}

macro_rules! float_ops {
    ($name:ident, $t:ty, $fma:path, $math:path) => {
        fn $name(op: ScalarOp, args: &[Scalar]) -> $t {
            let x = |i: usize| <$t>::from_bits(args[i].bits as _);
            match op {
                ScalarOp::Neg => -x(0),
                ScalarOp::Abs => x(0).abs(),
                ScalarOp::Sqrt => x(0).sqrt(),
                ScalarOp::Floor => x(0).floor(),
                ScalarOp::Ceil => x(0).ceil(),
                ScalarOp::Trunc => x(0).trunc(),
                ScalarOp::Round => x(0).round_ties_even(),
                ScalarOp::Add => x(0) + x(1),
                ScalarOp::Sub => x(0) - x(1),
                ScalarOp::Mul => x(0) * x(1),
                ScalarOp::Div => x(0) / x(1),
                ScalarOp::Rem => x(0) % x(1),
                ScalarOp::Scale => scaled(x(0) as f32, x(1) as f32) as $t,
                ScalarOp::Min => minimum(x(0), x(1), x(0) < x(1), x(0).is_sign_negative()),
                ScalarOp::Max => minimum(x(0), x(1), x(0) > x(1), x(0).is_sign_positive()),
                ScalarOp::Fma => $fma(x(0), x(1), x(2)),
                ScalarOp::Math(f) => $math(f, args),
                _ => <$t>::NAN,
            }
        }
    };
}

float_ops!(float32, f32, f32::mul_add, math32);
float_ops!(float64, f64, f64::mul_add, math64);

/// [`ScalarOp::Scale`]. The product is exact in f64, where powers from 2^-300 to 2^300 stand for all.
fn scaled(x: f32, n: f32) -> f32 {
    let quiet = x.is_nan() && x.to_bits() & 0x0040_0000 != 0;
    let power = match n.is_finite() {
        true => libm::scalbn(1.0, n.floor().clamp(-300.0, 300.0) as i32),
        false => libm::exp2(f64::from(n)),
    };
    if quiet && n.is_infinite() { power as f32 } else { (f64::from(x) * power) as f32 }
}

/// IEEE minimum, or maximum with the predicates reversed: NaN wins, equal operands go by sign.
fn minimum<T: PartialOrd + Copy>(a: T, b: T, a_first: bool, a_on_tie: bool) -> T {
    match () {
        _ if a.partial_cmp(&a).is_none() => a,
        _ if b.partial_cmp(&b).is_none() => b,
        _ if a_first || (a == b && a_on_tie) => a,
        _ => b,
    }
}

/// Unexpanded f32 functions are evaluated in f64 and rounded: a reference, not the library's bits.
fn math32(f: MathFn, args: &[Scalar]) -> f32 {
    let wide: Vec<Scalar> = args.iter().map(|a| a.cast(DType::F64)).collect();
    math64(f, &wide) as f32
}

/// The f64 functions as the run-time library computes them (crate `libm`).
fn math64(f: MathFn, args: &[Scalar]) -> f64 {
    let x = f64::from_bits(args[0].bits);
    match f {
        MathFn::Exp => libm::exp(x),
        MathFn::Exp2 => libm::exp2(x),
        MathFn::Expm1 => libm::expm1(x),
        MathFn::Log => libm::log(x),
        MathFn::Log2 => libm::log2(x),
        MathFn::Log1p => libm::log1p(x),
        MathFn::Sin => libm::sin(x),
        MathFn::Cos => libm::cos(x),
        MathFn::Tan => libm::tan(x),
        MathFn::Asin => libm::asin(x),
        MathFn::Acos => libm::acos(x),
        MathFn::Atan => libm::atan(x),
        MathFn::Sinh => libm::sinh(x),
        MathFn::Cosh => libm::cosh(x),
        MathFn::Tanh => libm::tanh(x),
        MathFn::Asinh => libm::asinh(x),
        MathFn::Acosh => libm::acosh(x),
        MathFn::Atanh => libm::atanh(x),
        MathFn::Erf => libm::erf(x),
        MathFn::Ndtr => libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2) * 0.5,
        MathFn::Pow => libm::pow(x, f64::from_bits(args[1].bits)),
    }
}

fn integer(op: ScalarOp, args: &[Scalar]) -> Scalar {
    let dtype = args[0].dtype;
    let signed = dtype.is_signed_int();
    let width = dtype.size() as u32 * 8;
    let (a, b) = (args[0].as_i64(), args.get(1).map_or(0, |s| s.as_i64()));
    let (ua, ub) = (a as u64, b as u64);
    let r = match op {
        ScalarOp::Neg => a.wrapping_neg(),
        ScalarOp::Abs => {
            if signed {
                a.wrapping_abs()
            } else {
                a
            }
        }
        ScalarOp::Not if dtype == DType::Bool => a ^ 1,
        ScalarOp::Not => !a,
        ScalarOp::Add => a.wrapping_add(b),
        ScalarOp::Sub => a.wrapping_sub(b),
        ScalarOp::Mul => a.wrapping_mul(b),
        ScalarOp::Div if b == 0 => 0,
        ScalarOp::Div => {
            if signed {
                a.wrapping_div(b)
            } else {
                (ua / ub) as i64
            }
        }
        ScalarOp::Rem if b == 0 => 0,
        ScalarOp::Rem => {
            if signed {
                a.wrapping_rem(b)
            } else {
                (ua % ub) as i64
            }
        }
        ScalarOp::Min => {
            if signed {
                a.min(b)
            } else {
                ua.min(ub) as i64
            }
        }
        ScalarOp::Max => {
            if signed {
                a.max(b)
            } else {
                ua.max(ub) as i64
            }
        }
        ScalarOp::And => a & b,
        ScalarOp::Or => a | b,
        ScalarOp::Xor => a ^ b,
        ScalarOp::Shl => ua.checked_shl(ub.min(64) as u32).filter(|_| ub < u64::from(width)).unwrap_or(0) as i64,
        ScalarOp::Shr if signed => a >> ub.min(u64::from(width) - 1),
        ScalarOp::Shr => ua.checked_shr(ub.min(64) as u32).filter(|_| ub < u64::from(width)).unwrap_or(0) as i64,
        _ => 0,
    };
    Scalar { dtype, bits: (r as u64) & mask(dtype) }
}
