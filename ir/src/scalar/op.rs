//! The scalar operations: the one vocabulary of operator bodies, fusion bodies and KIR.

use tensorc_abi::DType;

/// Comparison predicates. With a NaN operand only `Ne` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CmpOp {
    /// Equal.
    Eq,
    /// Not equal, or one is NaN.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

/// Mathematical functions. On f32 they stand for an expression of the math library and are
/// expanded before code generation; on f64 they are calls of the run-time library, and expanded for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MathFn {
    /// `eˣ`.
    Exp,
    /// `2ˣ`.
    Exp2,
    /// `eˣ - 1`.
    Expm1,
    /// The natural logarithm.
    Log,
    /// The logarithm to base 2.
    Log2,
    /// `ln(1 + x)`.
    Log1p,
    /// The sine of an angle in radians.
    Sin,
    /// The cosine of an angle in radians.
    Cos,
    /// The tangent of an angle in radians.
    Tan,
    /// The inverse sine.
    Asin,
    /// The inverse cosine.
    Acos,
    /// The inverse tangent.
    Atan,
    /// The hyperbolic sine.
    Sinh,
    /// The hyperbolic cosine.
    Cosh,
    /// The hyperbolic tangent.
    Tanh,
    /// The inverse hyperbolic sine.
    Asinh,
    /// The inverse hyperbolic cosine.
    Acosh,
    /// The inverse hyperbolic tangent.
    Atanh,
    /// The error function.
    Erf,
    /// The distribution function of the normal distribution, `Φ(x) = erfc(-x/√2)/2`.
    Ndtr,
    /// `xʸ`.
    Pow,
}

impl MathFn {
    /// All functions.
    pub const ALL: [MathFn; 21] = [
        MathFn::Exp,
        MathFn::Exp2,
        MathFn::Expm1,
        MathFn::Log,
        MathFn::Log2,
        MathFn::Log1p,
        MathFn::Sin,
        MathFn::Cos,
        MathFn::Tan,
        MathFn::Asin,
        MathFn::Acos,
        MathFn::Atan,
        MathFn::Sinh,
        MathFn::Cosh,
        MathFn::Tanh,
        MathFn::Asinh,
        MathFn::Acosh,
        MathFn::Atanh,
        MathFn::Erf,
        MathFn::Ndtr,
        MathFn::Pow,
    ];

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            MathFn::Exp => "exp",
            MathFn::Exp2 => "exp2",
            MathFn::Expm1 => "expm1",
            MathFn::Log => "log",
            MathFn::Log2 => "log2",
            MathFn::Log1p => "log1p",
            MathFn::Sin => "sin",
            MathFn::Cos => "cos",
            MathFn::Tan => "tan",
            MathFn::Asin => "asin",
            MathFn::Acos => "acos",
            MathFn::Atan => "atan",
            MathFn::Sinh => "sinh",
            MathFn::Cosh => "cosh",
            MathFn::Tanh => "tanh",
            MathFn::Asinh => "asinh",
            MathFn::Acosh => "acosh",
            MathFn::Atanh => "atanh",
            MathFn::Erf => "erf",
            MathFn::Ndtr => "ndtr",
            MathFn::Pow => "pow",
        }
    }

    /// Number of operands.
    pub const fn arity(self) -> usize {
        match self {
            MathFn::Pow => 2,
            _ => 1,
        }
    }
}

/// One scalar operation.
///
/// Arithmetic is IEEE 754 with round to nearest even on f32 and f64, and wraps modulo 2ⁿ on
/// integers. f16, bf16 and bool are storage types: only `Cast`, `Bitcast`, `Select`, and for bool
/// the logical operations, comparisons `Eq`/`Ne` apply to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScalarOp {
    /// `-x`.
    Neg,
    /// Integers wrap: `abs(MIN) = MIN`.
    Abs,
    /// The square root.
    Sqrt,
    /// Rounds down.
    Floor,
    /// Rounds up.
    Ceil,
    /// Rounds towards 0.
    Trunc,
    /// To the nearest integer, halves to even.
    Round,
    /// Bitwise complement; logical negation on bool.
    Not,
    /// `x + y`; integers wrap.
    Add,
    /// `x - y`; integers wrap.
    Sub,
    /// `x · y`; integers wrap.
    Mul,
    /// Integers truncate toward zero; `x / 0 = 0` and `MIN / -1 = MIN`.
    Div,
    /// Remainder with the sign of the dividend; integer `x % 0 = 0`. On floats the exact C `fmod`.
    Rem,
    /// `x·2^⌊n⌋` of f32, rounded once, with the instruction of AVX-512 for a model: at infinite `n` the product of `x`
    /// with ∞ or 0, which is NaN for 0·∞ and ∞·0; a NaN operand gives NaN, but a quiet one as `x` with infinite `n`
    /// gives ∞ or 0.
    Scale,
    /// IEEE 754-2019 minimum: NaN if either is, and -0 < +0.
    Min,
    /// IEEE 754-2019 maximum.
    Max,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Shifts by the width or more give 0 (`Shr` of a negative signed integer: -1).
    Shl,
    /// Arithmetic on signed, logical on unsigned integers.
    Shr,
    /// A comparison, of type bool.
    Cmp(CmpOp),
    /// `a·b + c` with one rounding.
    Fma,
    /// `Select(c, a, b)` is `a` where the bool `c` holds, else `b`.
    Select,
    /// A conversion to a type.
    Cast(DType),
    /// Same-size reinterpretation.
    Bitcast(DType),
    /// A library function.
    Math(MathFn),
}

impl ScalarOp {
    /// Number of operands.
    pub const fn arity(self) -> usize {
        match self {
            ScalarOp::Neg
            | ScalarOp::Abs
            | ScalarOp::Sqrt
            | ScalarOp::Floor
            | ScalarOp::Ceil
            | ScalarOp::Trunc
            | ScalarOp::Round
            | ScalarOp::Not
            | ScalarOp::Cast(_)
            | ScalarOp::Bitcast(_) => 1,
            ScalarOp::Fma | ScalarOp::Select => 3,
            ScalarOp::Math(f) => f.arity(),
            _ => 2,
        }
    }

    /// The mnemonic of the text format, without the target type of casts.
    pub const fn name(self) -> &'static str {
        match self {
            ScalarOp::Neg => "neg",
            ScalarOp::Abs => "abs",
            ScalarOp::Sqrt => "sqrt",
            ScalarOp::Floor => "floor",
            ScalarOp::Ceil => "ceil",
            ScalarOp::Trunc => "trunc",
            ScalarOp::Round => "round",
            ScalarOp::Not => "not",
            ScalarOp::Add => "add",
            ScalarOp::Sub => "sub",
            ScalarOp::Mul => "mul",
            ScalarOp::Div => "div",
            ScalarOp::Rem => "rem",
            ScalarOp::Scale => "scale",
            ScalarOp::Min => "min",
            ScalarOp::Max => "max",
            ScalarOp::And => "and",
            ScalarOp::Or => "or",
            ScalarOp::Xor => "xor",
            ScalarOp::Shl => "shl",
            ScalarOp::Shr => "shr",
            ScalarOp::Cmp(CmpOp::Eq) => "eq",
            ScalarOp::Cmp(CmpOp::Ne) => "ne",
            ScalarOp::Cmp(CmpOp::Lt) => "lt",
            ScalarOp::Cmp(CmpOp::Le) => "le",
            ScalarOp::Cmp(CmpOp::Gt) => "gt",
            ScalarOp::Cmp(CmpOp::Ge) => "ge",
            ScalarOp::Fma => "fma",
            ScalarOp::Select => "select",
            ScalarOp::Cast(_) => "cast",
            ScalarOp::Bitcast(_) => "bitcast",
            ScalarOp::Math(f) => f.name(),
        }
    }

    /// The inverse of [`ScalarOp::name`], except for the two casts.
    pub fn from_name(name: &str) -> Option<ScalarOp> {
        use ScalarOp::*;
        const PLAIN: [ScalarOp; 29] = [
            Neg,
            Abs,
            Sqrt,
            Floor,
            Ceil,
            Trunc,
            Round,
            Not,
            Add,
            Sub,
            Mul,
            Div,
            Rem,
            Scale,
            Min,
            Max,
            And,
            Or,
            Xor,
            Shl,
            Shr,
            Cmp(CmpOp::Eq),
            Cmp(CmpOp::Ne),
            Cmp(CmpOp::Lt),
            Cmp(CmpOp::Le),
            Cmp(CmpOp::Gt),
            Cmp(CmpOp::Ge),
            Fma,
            Select,
        ];
        let plain = PLAIN.into_iter().find(|op| op.name() == name);
        plain.or_else(|| MathFn::ALL.into_iter().find(|f| f.name() == name).map(Math))
    }

    /// The result type for the given operand types, or what is wrong with them.
    pub fn result(self, args: &[DType]) -> Result<DType, String> {
        let fail = |why: &str| {
            let args: Vec<_> = args.iter().map(|d| d.name()).collect();
            Err(format!("{} on ({}): {why}", self.name(), args.join(", ")))
        };
        if args.len() != self.arity() {
            return fail("wrong number of operands");
        }
        let same = |from: usize| args[from..].windows(2).all(|w| w[0] == w[1]);
        let (arith, real) = (args[0].is_int() || real_float(args[0]), real_float(args[0]));
        match self {
            ScalarOp::Select if args[0] != DType::Bool => fail("the condition must be bool"),
            ScalarOp::Select => {
                if same(1) {
                    Ok(args[1])
                } else {
                    fail("branches differ in type")
                }
            }
            ScalarOp::Cast(to) => Ok(to),
            ScalarOp::Bitcast(to) if to.size() == args[0].size() => Ok(to),
            ScalarOp::Bitcast(_) => fail("sizes differ"),
            _ if !same(0) => fail("operands differ in type"),
            ScalarOp::Cmp(CmpOp::Eq | CmpOp::Ne) if arith || args[0] == DType::Bool => Ok(DType::Bool),
            ScalarOp::Cmp(_) if arith => Ok(DType::Bool),
            ScalarOp::Not | ScalarOp::And | ScalarOp::Or | ScalarOp::Xor
                if args[0].is_int() || args[0] == DType::Bool =>
            {
                Ok(args[0])
            }
            ScalarOp::Shl | ScalarOp::Shr if args[0].is_int() => Ok(args[0]),
            ScalarOp::Sqrt
            | ScalarOp::Floor
            | ScalarOp::Ceil
            | ScalarOp::Trunc
            | ScalarOp::Round
            | ScalarOp::Fma
            | ScalarOp::Math(_)
                if real =>
            {
                Ok(args[0])
            }
            ScalarOp::Scale if args[0] == DType::F32 => Ok(DType::F32),
            ScalarOp::Neg
            | ScalarOp::Abs
            | ScalarOp::Add
            | ScalarOp::Sub
            | ScalarOp::Mul
            | ScalarOp::Div
            | ScalarOp::Rem
            | ScalarOp::Min
            | ScalarOp::Max
                if arith =>
            {
                Ok(args[0])
            }
            _ => fail("not defined for this type"),
        }
    }
}

/// The float types arithmetic is defined on.
const fn real_float(d: DType) -> bool {
    matches!(d, DType::F32 | DType::F64)
}
