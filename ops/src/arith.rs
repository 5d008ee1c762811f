//! Element-wise arithmetic and mathematical functions.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    [binary(), variadic(), rounding(), functions(), inverse_functions(), compositions()].into_iter().flatten().collect()
}

fn binary() -> Vec<OpDef> {
    vec![
        elementwise("add", "lhs + rhs; integers wrap.", NUMBERS, &["lhs", "rhs"], |_, a| &a[0] + &a[1])
            .onnx("Add", 7)
            .named(&["broadcast_add", "broadcast_plus"]),
        elementwise("sub", "lhs - rhs; integers wrap.", NUMBERS, &["lhs", "rhs"], |_, a| &a[0] - &a[1])
            .onnx("Sub", 7)
            .named(&["broadcast_sub", "broadcast_minus"]),
        elementwise("mul", "lhs · rhs; integers wrap.", NUMBERS, &["lhs", "rhs"], |_, a| &a[0] * &a[1])
            .onnx("Mul", 7)
            .mxnet("broadcast_mul"),
        elementwise("div", "lhs / rhs; integers truncate, and x / 0 is an error.", NUMBERS, &["lhs", "rhs"], |_, a| {
            &a[0] / &a[1]
        })
        .demand(1, integers_divide)
        .onnx("Div", 7)
        .mxnet("broadcast_div"),
        elementwise(
            "mod",
            "Remainder with the sign of rhs, or of lhs if `fmod`.",
            NUMBERS,
            &["lhs", "rhs"],
            |cx, a| match cx.params.bool("fmod") {
                Some(true) => &a[0] % &a[1],
                _ => floor_mod(&a[0], &a[1]),
            },
        )
        .param("fmod", false, "C's `fmod` instead of Python's `%`")
        .demand(1, integers_divide)
        .onnx("Mod", 10),
        pow(),
        elementwise("hypot", "√(lhs² + rhs²), without overflow.", FLOATS, &["lhs", "rhs"], |_, a| {
            hypotenuse(&a[0], &a[1])
        })
        .mxnet("broadcast_hypot")
        .ulp(3.0),
    ]
}

/// The divisor of integers is not zero.
fn integers_divide(cx: &NodeCtx<'_>) -> Result<Option<Allowed>, OpError> {
    Ok(cx.input(1)?.dtype.is_int().then_some(Allowed::NonZero))
}

/// `√(x² + y²)` of floats.
pub(crate) fn hypotenuse(x: &Ex, y: &Ex) -> Ex {
    let (x, y) = (x.abs(), y.abs());
    let (big, small) = (x.max(&y), x.min(&y));
    let ratio = big.eq(&small).select(&big.lit(1.0), &(&small / &big));
    let length = &big * (&ratio * &ratio + 1.0).sqrt();
    big.eq(&big.lit(0.0)).select(&big, &length)
}

/// `a - b·floor(a / b)`, exact.
pub(crate) fn floor_mod(a: &Ex, b: &Ex) -> Ex {
    let zero = a.lit(0.0);
    let r = a % b;
    let opposite = r.lt(&zero).ne(&b.lt(&zero));
    (r.ne(&zero) & opposite).select(&(&r + b), &r)
}

/// The exponent's type is independent of the base's, which is the result's.
fn pow() -> OpDef {
    let body = scalar(|_, _, args| {
        let [Some(base), Some(exponent)] = args else { return Err(OpError::from("two operands expected")) };
        let stored = base.dtype();
        let (x, y) = (widen(base), widen(exponent));
        let out = match (x.dtype().is_float(), y.dtype().is_float()) {
            (true, _) => x.pow(&y.cast(x.dtype())),
            (false, true) => x.cast(DType::F64).pow(&y.cast(DType::F64)),
            (false, false) => integer_pow(&x, &y),
        };
        Ok(out.cast(stored))
    });
    define("pow", "xʸ as in C; an integer base to an integer power wraps.", body, Infer::Derived)
        .operands(&["base", "exponent"], NUMBERS)
        .onnx("Pow", 7)
        .ulp(4.0)
}

/// By repeated squaring. Negative powers truncate: zero, unless the base is 1 or -1.
pub(crate) fn integer_pow(x: &Ex, n: &Ex) -> Ex {
    let (zero, one) = (n.lit(0.0), n.lit(1.0));
    let mut result = x.lit(1.0);
    let mut square = x.clone();
    let bits = n.dtype().size() * 8;
    for bit in 0..bits {
        let set = (n.shr(&n.lit(bit as f64)) & &one).ne(&zero);
        result = set.select(&(&result * &square), &result);
        square = &square * &square;
    }
    let odd = (n & &one).ne(&zero);
    let unit = x.eq(&x.lit(1.0)).select(&x.lit(1.0), &x.lit(0.0));
    let below = match x.dtype().is_signed_int() {
        true => x.eq(&x.lit(-1.0)).select(&odd.select(&x.lit(-1.0), &x.lit(1.0)), &unit),
        false => unit,
    };
    n.lt(&zero).select(&below, &result)
}

fn variadic() -> Vec<OpDef> {
    let fold = |args: &[Ex], f: fn(&Ex, &Ex) -> Ex| args[1..].iter().fold(args[0].clone(), |acc, x| f(&acc, x));
    vec![
        elementwise("min", "The least operand; NaN if any is.", NUMBERS, &["data"], move |_, a| fold(a, Ex::min))
            .variadic()
            .onnx("Min", 8),
        elementwise("max", "The greatest operand; NaN if any is.", NUMBERS, &["data"], move |_, a| fold(a, Ex::max))
            .variadic()
            .onnx("Max", 8),
        elementwise("sum", "Σ operands, left to right.", NUMBERS, &["data"], move |_, a| fold(a, |x, y| x + y))
            .variadic()
            .onnx("Sum", 8),
        elementwise("mean", "(Σ operands) / count.", FLOATS, &["data"], move |_, a| {
            fold(a, |x, y| x + y) / a.len() as f64
        })
        .variadic()
        .onnx("Mean", 8)
        .ulp(1.0),
    ]
}

/// The identity on integers, `op` on floats.
fn on_floats(x: &Ex, op: ScalarOp) -> Ex {
    if x.dtype().is_float() { x.builder().op(op, &[x]) } else { x.clone() }
}

fn rounding() -> Vec<OpDef> {
    vec![
        elementwise("neg", "-x; integers wrap.", NUMBERS, &["data"], |_, a| -&a[0]).onnx("Neg", 1).mxnet("negative"),
        elementwise("abs", "|x|; |MIN| = MIN.", NUMBERS, &["data"], |_, a| a[0].abs()).onnx("Abs", 1).mxnet("abs"),
        elementwise("sign", "1, -1, or x itself where it is zero or NaN.", NUMBERS, &["data"], |_, a| {
            let (x, zero) = (&a[0], a[0].lit(0.0));
            let below = if x.dtype().is_unsigned_int() { x.clone() } else { x.lt(&zero).select(&x.lit(-1.0), x) };
            x.gt(&zero).select(&x.lit(1.0), &below)
        })
        .no_gradient()
        .onnx("Sign", 9)
        .mxnet("sign"),
        elementwise("floor", "The greatest integer at most x.", NUMBERS, &["data"], |_, a| {
            on_floats(&a[0], ScalarOp::Floor)
        })
        .onnx("Floor", 1)
        .mxnet("floor"),
        elementwise("ceil", "The least integer at least x.", NUMBERS, &["data"], |_, a| {
            on_floats(&a[0], ScalarOp::Ceil)
        })
        .onnx("Ceil", 1)
        .mxnet("ceil"),
        elementwise("trunc", "x without its fraction.", NUMBERS, &["data"], |_, a| on_floats(&a[0], ScalarOp::Trunc))
            .named(&["trunc", "fix"]),
        elementwise("round", "The nearest integer, halves to even.", NUMBERS, &["data"], |_, a| {
            on_floats(&a[0], ScalarOp::Round)
        })
        .onnx("Round", 11),
        clip(),
    ]
}

fn clip() -> OpDef {
    let body = scalar(|_, _, args| {
        let Some(Some(stored)) = args.first() else { return Err(OpError::from("operand `x` is missing")) };
        let bound = |i: usize| args.get(i).and_then(Option::as_ref).map(widen);
        let x = widen(stored);
        let x = bound(1).map_or(x.clone(), |lo| x.lt(&lo).select(&lo, &x));
        let x = bound(2).map_or(x.clone(), |hi| x.gt(&hi).select(&hi, &x));
        Ok(x.cast(stored.dtype()))
    });
    define("clip", "min(max(x, min), max); NaN stays NaN.", body, Infer::Derived)
        .group("x", NUMBERS)
        .optional("min", TypeRule::Group(0, NUMBERS))
        .optional("max", TypeRule::Group(0, NUMBERS))
        .onnx("Clip", 11)
}

/// An entry for one function of the math library.
fn function(name: &'static str, doc: &'static str, onnx: &'static str, since: u32, f: MathFn, ulp: f64) -> OpDef {
    elementwise(name, doc, FLOATS, &["data"], move |_, a| a[0].math(f)).onnx(onnx, since).ulp(ulp)
}

fn functions() -> Vec<OpDef> {
    vec![
        function("exp", "eˣ.", "Exp", 1, MathFn::Exp, 1.0).mxnet("exp"),
        function("log", "ln x.", "Log", 1, MathFn::Log, 1.0).mxnet("log"),
        function("sin", "sin x.", "Sin", 7, MathFn::Sin, 1.0).mxnet("sin"),
        function("cos", "cos x.", "Cos", 7, MathFn::Cos, 1.0).mxnet("cos"),
        function("tan", "tan x.", "Tan", 7, MathFn::Tan, 1.0).mxnet("tan"),
        function("sinh", "(eˣ - e⁻ˣ) / 2.", "Sinh", 9, MathFn::Sinh, 2.0).mxnet("sinh"),
        function("cosh", "(eˣ + e⁻ˣ) / 2.", "Cosh", 9, MathFn::Cosh, 2.0).mxnet("cosh"),
        function("tanh", "(eˣ - e⁻ˣ) / (eˣ + e⁻ˣ).", "Tanh", 1, MathFn::Tanh, 2.0)
            .slope(|y, g| g * (y.lit(1.0) - y * y))
            .mxnet("tanh"),
        function("erf", "2/√π ∫₀ˣ e^(-t²) dt.", "Erf", 9, MathFn::Erf, 2.0).mxnet("erf"),
        elementwise("expm1", "eˣ - 1, without cancellation.", FLOATS, &["data"], |_, a| a[0].expm1())
            .mxnet("expm1")
            .ulp(2.0),
        elementwise("exp2", "2ˣ.", FLOATS, &["data"], |_, a| a[0].exp2()).ulp(1.0),
        elementwise("log1p", "ln(1 + x), without cancellation.", FLOATS, &["data"], |_, a| a[0].log1p())
            .mxnet("log1p")
            .ulp(2.0),
        elementwise("log2", "log₂ x.", FLOATS, &["data"], |_, a| a[0].log2()).mxnet("log2").ulp(2.0),
    ]
}

fn inverse_functions() -> Vec<OpDef> {
    vec![
        function("asin", "arcsin x in [-π/2, π/2].", "Asin", 7, MathFn::Asin, 2.0).mxnet("arcsin"),
        function("acos", "arccos x in [0, π].", "Acos", 7, MathFn::Acos, 2.0).mxnet("arccos"),
        function("atan", "arctan x in [-π/2, π/2].", "Atan", 7, MathFn::Atan, 2.0).mxnet("arctan"),
        function("asinh", "ln(x + √(x² + 1)).", "Asinh", 9, MathFn::Asinh, 3.0).mxnet("arcsinh"),
        function("acosh", "ln(x + √(x² - 1)).", "Acosh", 9, MathFn::Acosh, 3.0).mxnet("arccosh"),
        function("atanh", "½ ln((1 + x) / (1 - x)).", "Atanh", 9, MathFn::Atanh, 3.0).mxnet("arctanh"),
    ]
}

fn compositions() -> Vec<OpDef> {
    vec![
        elementwise("sqrt", "√x.", FLOATS, &["data"], |_, a| a[0].sqrt()).onnx("Sqrt", 1).mxnet("sqrt"),
        elementwise("rsqrt", "1 / √x.", FLOATS, &["data"], |_, a| a[0].lit(1.0) / a[0].sqrt()).mxnet("rsqrt").ulp(1.5),
        elementwise("reciprocal", "1 / x.", FLOATS, &["data"], |_, a| a[0].lit(1.0) / &a[0])
            .onnx("Reciprocal", 1)
            .mxnet("reciprocal"),
        elementwise("square", "x².", NUMBERS, &["data"], |_, a| &a[0] * &a[0]).mxnet("square"),
        elementwise("isnan", "Whether x is NaN.", FLOATS, &["data"], |_, a| a[0].ne(&a[0])).onnx("IsNaN", 9),
        elementwise("isinf", "Whether x is infinite, of a sign asked for.", FLOATS, &["data"], |cx, a| {
            let (x, infinity) = (&a[0], a[0].lit(f64::INFINITY));
            let wanted = |name| cx.params.bool(name).unwrap_or(true);
            match (wanted("detect_negative"), wanted("detect_positive")) {
                (true, true) => x.abs().eq(&infinity),
                (true, false) => x.eq(&-infinity),
                (false, true) => x.eq(&infinity),
                (false, false) => x.ne(x) & x.eq(x),
            }
        })
        .param("detect_negative", true, "report -∞")
        .param("detect_positive", true, "report +∞")
        .onnx("IsInf", 10),
        where_(),
    ]
}

fn where_() -> OpDef {
    let body = scalar(|_, _, args| match args {
        [Some(c), Some(x), Some(y)] => Ok(c.select(x, y)),
        _ => Err(OpError::from("three operands expected")),
    });
    define("where", "x where the condition holds, else y.", body, Infer::Derived)
        .operand("condition", BOOLS)
        .groups(&["x", "y"], &[])
        .onnx("Where", 9)
}
