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

tensorc_abi::named! {
    /// Mathematical functions. On f32 they stand for an expression of the math library and are
    /// expanded before code generation; on f64 they are calls of the run-time library, and expanded for a GPU.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum MathFn {
        /// `eˣ`.
        Exp = "exp",
        /// `2ˣ`.
        Exp2 = "exp2",
        /// `eˣ - 1`.
        Expm1 = "expm1",
        /// The natural logarithm.
        Log = "log",
        /// The logarithm to base 2.
        Log2 = "log2",
        /// `ln(1 + x)`.
        Log1p = "log1p",
        /// The sine of an angle in radians.
        Sin = "sin",
        /// The cosine of an angle in radians.
        Cos = "cos",
        /// The tangent of an angle in radians.
        Tan = "tan",
        /// The inverse sine.
        Asin = "asin",
        /// The inverse cosine.
        Acos = "acos",
        /// The inverse tangent.
        Atan = "atan",
        /// The hyperbolic sine.
        Sinh = "sinh",
        /// The hyperbolic cosine.
        Cosh = "cosh",
        /// The hyperbolic tangent.
        Tanh = "tanh",
        /// The inverse hyperbolic sine.
        Asinh = "asinh",
        /// The inverse hyperbolic cosine.
        Acosh = "acosh",
        /// The inverse hyperbolic tangent.
        Atanh = "atanh",
        /// The error function.
        Erf = "erf",
        /// The distribution function of the normal distribution, `Φ(x) = erfc(-x/√2)/2`.
        Ndtr = "ndtr",
        /// `xʸ`.
        Pow = "pow",
    }
}

impl MathFn {
    /// Whether the f64 expression takes many more operations than a function with branches.
    const fn is_long_in_f64(self) -> bool {
        matches!(self, MathFn::Sin | MathFn::Cos | MathFn::Tan)
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
/// the logical operations, comparisons `Eq`/`Ne` apply to them; to narrow types only `Bitcast` and `Select`.
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

/// Defines the names of operations that are one word.
macro_rules! mnemonics {
    ($($op:ident $(($of:path))? = $name:literal,)*) => {
        impl ScalarOp {
            /// The mnemonic of the text format, without the target type of casts.
            pub const fn name(self) -> &'static str {
                match self {
                    $(ScalarOp::$op $(($of))? => $name,)*
                    ScalarOp::Cast(_) => "cast",
                    ScalarOp::Bitcast(_) => "bitcast",
                    ScalarOp::Math(f) => f.name(),
                }
            }

            /// The inverse of [`ScalarOp::name`], except for the two casts.
            pub fn from_name(name: &str) -> Option<ScalarOp> {
                match name {
                    $($name => Some(ScalarOp::$op $(($of))?),)*
                    _ => MathFn::from_name(name).map(ScalarOp::Math),
                }
            }
        }
    };
}

mnemonics! {
    Neg = "neg",
    Abs = "abs",
    Sqrt = "sqrt",
    Floor = "floor",
    Ceil = "ceil",
    Trunc = "trunc",
    Round = "round",
    Not = "not",
    Add = "add",
    Sub = "sub",
    Mul = "mul",
    Div = "div",
    Rem = "rem",
    Scale = "scale",
    Min = "min",
    Max = "max",
    And = "and",
    Or = "or",
    Xor = "xor",
    Shl = "shl",
    Shr = "shr",
    Cmp(CmpOp::Eq) = "eq",
    Cmp(CmpOp::Ne) = "ne",
    Cmp(CmpOp::Lt) = "lt",
    Cmp(CmpOp::Le) = "le",
    Cmp(CmpOp::Gt) = "gt",
    Cmp(CmpOp::Ge) = "ge",
    Fma = "fma",
    Select = "select",
}

impl ScalarOp {
    /// Whether it is a library function of a type that graphs compute by an expression, on every device. Others of f64
    /// are calls of the run-time library on processors.
    pub const fn has_body(self, dtype: DType) -> bool {
        match (self, dtype) {
            (ScalarOp::Math(_), DType::F32) => true,
            (ScalarOp::Math(f), DType::F64) => !f.is_long_in_f64(),
            _ => false,
        }
    }

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
            ScalarOp::Cast(to) if to.is_narrow() || args[0].is_narrow() => {
                fail("narrow types are converted by expressions")
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
