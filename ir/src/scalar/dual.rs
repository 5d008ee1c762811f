//! Forward-mode differentiation by dual numbers: the oracle for symbolic gradients.

use super::expr::{ScalarFn, ScalarNode};
use super::op::{CmpOp, MathFn, ScalarOp};

/// A value with its derivative in one direction, both in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dual {
    /// The value.
    pub value: f64,
    /// The derivative.
    pub tangent: f64,
}

impl Dual {
    /// A value that does not vary.
    pub const fn constant(value: f64) -> Dual {
        Dual { value, tangent: 0.0 }
    }

    /// The variable that is differentiated by.
    pub const fn variable(value: f64) -> Dual {
        Dual { value, tangent: 1.0 }
    }

    /// `f(value)` with slope `f'(value)`.
    fn chain(self, value: f64, slope: f64) -> Dual {
        // A constant stays one even where the slope is infinite.
        let tangent = if self.tangent == 0.0 { 0.0 } else { self.tangent * slope };
        Dual { value, tangent }
    }
}

impl ScalarFn {
    /// Evaluates with dual numbers in f64: library functions are those of `libm`, conversions
    /// between floats are exact, whatever is integer or piecewise constant has derivative 0, and a
    /// reinterpretation of bits has none (NaN).
    pub fn eval_dual(&self, inputs: &[Dual], coords: &[i64]) -> Vec<Dual> {
        let mut values: Vec<Dual> = Vec::with_capacity(self.nodes.len());
        for (i, node) in self.nodes.iter().enumerate() {
            let value = match node {
                ScalarNode::Input(i) => inputs[*i as usize],
                ScalarNode::Const(c) => Dual::constant(c.as_f64()),
                ScalarNode::Coord(axis) => Dual::constant(coords[*axis as usize] as f64),
                ScalarNode::Op(op, args) => {
                    let args: Vec<Dual> = args.iter().map(|a| values[a.0 as usize]).collect();
                    let result = apply(*op, &args);
                    if self.dtypes[i].is_float() { result } else { Dual::constant(result.value.trunc()) }
                }
            };
            values.push(value);
        }
        self.outputs.iter().map(|o| values[o.0 as usize]).collect()
    }
}

fn apply(op: ScalarOp, a: &[Dual]) -> Dual {
    let (x, y) = (a[0], a.get(1).copied().unwrap_or(a[0]));
    let pick = |first: bool| if first { x } else { y };
    let truth = |c: bool| Dual::constant(f64::from(c));
    match op {
        ScalarOp::Neg => x.chain(-x.value, -1.0),
        ScalarOp::Abs => x.chain(x.value.abs(), if x.value == 0.0 { 0.0 } else { x.value.signum() }),
        ScalarOp::Sqrt => x.chain(x.value.sqrt(), 0.5 / x.value.sqrt()),
        ScalarOp::Floor => Dual::constant(x.value.floor()),
        ScalarOp::Ceil => Dual::constant(x.value.ceil()),
        ScalarOp::Trunc => Dual::constant(x.value.trunc()),
        ScalarOp::Round => Dual::constant(x.value.round_ties_even()),
        ScalarOp::Not => truth(x.value == 0.0),
        ScalarOp::Add => Dual { value: x.value + y.value, tangent: x.tangent + y.tangent },
        ScalarOp::Sub => Dual { value: x.value - y.value, tangent: x.tangent - y.tangent },
        ScalarOp::Mul => product(x, y),
        ScalarOp::Div => product(x, y.chain(1.0 / y.value, -1.0 / (y.value * y.value))),
        ScalarOp::Rem => {
            let quotient = (x.value / y.value).trunc();
            Dual { value: x.value % y.value, tangent: x.tangent - quotient * y.tangent }
        }
        ScalarOp::Scale => {
            let power = libm::exp2(y.value.floor());
            x.chain(x.value * power, power)
        }
        ScalarOp::Min => pick(x.value <= y.value),
        ScalarOp::Max => pick(x.value >= y.value),
        ScalarOp::And => truth(x.value != 0.0 && y.value != 0.0),
        ScalarOp::Or => truth(x.value != 0.0 || y.value != 0.0),
        ScalarOp::Xor => truth((x.value != 0.0) != (y.value != 0.0)),
        ScalarOp::Cmp(op) => truth(match op {
            CmpOp::Eq => x.value == y.value,
            CmpOp::Ne => x.value != y.value,
            CmpOp::Lt => x.value < y.value,
            CmpOp::Le => x.value <= y.value,
            CmpOp::Gt => x.value > y.value,
            CmpOp::Ge => x.value >= y.value,
        }),
        ScalarOp::Fma => {
            let p = product(x, y);
            Dual { value: x.value.mul_add(y.value, a[2].value), tangent: p.tangent + a[2].tangent }
        }
        ScalarOp::Select => {
            if x.value != 0.0 {
                y
            } else {
                a[2]
            }
        }
        ScalarOp::Cast(_) => x,
        ScalarOp::Math(MathFn::Pow) => power(x, y),
        ScalarOp::Math(f) => {
            let (value, slope) = math(f, x.value);
            x.chain(value, slope)
        }
        ScalarOp::Shl | ScalarOp::Shr | ScalarOp::Bitcast(_) => Dual::constant(f64::NAN),
    }
}

fn product(x: Dual, y: Dual) -> Dual {
    let part = |t: f64, v: f64| if t == 0.0 { 0.0 } else { t * v };
    Dual { value: x.value * y.value, tangent: part(x.tangent, y.value) + part(y.tangent, x.value) }
}

fn power(x: Dual, y: Dual) -> Dual {
    let value = libm::pow(x.value, y.value);
    let by_base = x.chain(value, y.value * libm::pow(x.value, y.value - 1.0));
    let by_exponent = y.chain(value, value * libm::log(x.value));
    Dual { value, tangent: by_base.tangent + by_exponent.tangent }
}

/// Value and derivative of a function of one argument.
fn math(f: MathFn, x: f64) -> (f64, f64) {
    let ln2 = std::f64::consts::LN_2;
    match f {
        MathFn::Exp => (libm::exp(x), libm::exp(x)),
        MathFn::Exp2 => (libm::exp2(x), libm::exp2(x) * ln2),
        MathFn::Expm1 => (libm::expm1(x), libm::exp(x)),
        MathFn::Log => (libm::log(x), 1.0 / x),
        MathFn::Log2 => (libm::log2(x), 1.0 / (x * ln2)),
        MathFn::Log1p => (libm::log1p(x), 1.0 / (1.0 + x)),
        MathFn::Sin => (libm::sin(x), libm::cos(x)),
        MathFn::Cos => (libm::cos(x), -libm::sin(x)),
        MathFn::Tan => (libm::tan(x), 1.0 + libm::tan(x) * libm::tan(x)),
        MathFn::Asin => (libm::asin(x), 1.0 / (1.0 - x * x).sqrt()),
        MathFn::Acos => (libm::acos(x), -1.0 / (1.0 - x * x).sqrt()),
        MathFn::Atan => (libm::atan(x), 1.0 / (1.0 + x * x)),
        MathFn::Sinh => (libm::sinh(x), libm::cosh(x)),
        MathFn::Cosh => (libm::cosh(x), libm::sinh(x)),
        MathFn::Tanh => (libm::tanh(x), 1.0 / (libm::cosh(x) * libm::cosh(x))),
        MathFn::Asinh => (libm::asinh(x), 1.0 / (x * x + 1.0).sqrt()),
        MathFn::Acosh => (libm::acosh(x), 1.0 / (x * x - 1.0).sqrt()),
        MathFn::Atanh => (libm::atanh(x), 1.0 / (1.0 - x * x)),
        MathFn::Erf => (libm::erf(x), std::f64::consts::FRAC_2_SQRT_PI * libm::exp(-x * x)),
        MathFn::Ndtr => (
            libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2) * 0.5,
            libm::exp(-x * x * 0.5) / std::f64::consts::TAU.sqrt(),
        ),
        MathFn::Pow => (f64::NAN, f64::NAN),
    }
}
