//! Activation functions.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    [rectifiers(), exponentials(), sigmoids(), smooth()].into_iter().flatten().collect()
}

/// `x` where it is not below `bound`, else `bound`; NaN stays NaN.
fn at_least(x: &Ex, bound: f64) -> Ex {
    let bound = x.lit(bound);
    x.lt(&bound).select(&bound, x)
}

/// `x` where it is not above `bound`, else `bound`; NaN stays NaN.
fn at_most(x: &Ex, bound: f64) -> Ex {
    let bound = x.lit(bound);
    x.gt(&bound).select(&bound, x)
}

/// `1 / (1 + e⁻ˣ)` from `e^-|x|`, which neither overflows nor loses the small results.
pub(crate) fn sigmoid(x: &Ex) -> Ex {
    let e = (-x.abs()).exp();
    x.lt(&x.lit(0.0)).select(&e, &x.lit(1.0)) / (&e + 1.0)
}

fn rectifiers() -> Vec<OpDef> {
    vec![
        elementwise("relu", "max(x, 0).", NUMBERS, &["data"], |_, a| at_least(&a[0], 0.0))
            .slope(|y, g| y.gt(&y.lit(0.0)).select(g, &g.lit(0.0)))
            .onnx("Relu", 1)
            .mxnet("relu"),
        elementwise("leaky_relu", "x, below 0 alpha·x.", FLOATS, &["x"], |cx, a| {
            let x = &a[0];
            x.lt(&x.lit(0.0)).select(&(x * float_param(cx, "alpha")), x)
        })
        .param("alpha", 0.01, "slope below 0")
        .onnx("LeakyRelu", 1)
        .ulp(1.0),
        elementwise("prelu", "x, below 0 slope·x.", NUMBERS, &["x", "slope"], |_, a| {
            a[0].lt(&a[0].lit(0.0)).select(&(&a[0] * &a[1]), &a[0])
        })
        .onnx("PRelu", 7),
        elementwise("thresholded_relu", "x where it exceeds alpha, else 0.", FLOATS, &["x"], |cx, a| {
            a[0].gt(&a[0].lit(float_param(cx, "alpha"))).select(&a[0], &a[0].lit(0.0))
        })
        .param("alpha", 1.0, "threshold")
        .onnx("ThresholdedRelu", 10),
        elementwise("shrink", "x + bias below -lambd, x - bias above lambd, else 0.", NUMBERS, &["x"], |cx, a| {
            // Parameters with a fraction or a sign need not be values of the operand's type.
            let x = if a[0].dtype().is_float() { a[0].clone() } else { a[0].cast(DType::F64) };
            let (lambda, bias) = (float_param(cx, "lambd"), float_param(cx, "bias"));
            let above = x.gt(&x.lit(lambda)).select(&(&x - bias), &x.lit(0.0));
            x.lt(&x.lit(-lambda)).select(&(&x + bias), &above).cast(a[0].dtype())
        })
        .param("bias", 0.0, "distance moved toward 0")
        .param("lambd", 0.5, "threshold")
        .onnx("Shrink", 9),
    ]
}

fn exponentials() -> Vec<OpDef> {
    vec![
        elementwise("elu", "x, below 0 alpha·(eˣ - 1).", FLOATS, &["x"], |cx, a| {
            let x = &a[0];
            x.lt(&x.lit(0.0)).select(&(at_most(x, 0.0).expm1() * float_param(cx, "alpha")), x)
        })
        .param("alpha", 1.0, "limit below 0")
        .onnx("Elu", 1)
        .ulp(3.0),
        elementwise("selu", "gamma·x, below 0 gamma·alpha·(eˣ - 1).", FLOATS, &["x"], |cx, a| {
            let (x, gamma) = (&a[0], float_param(cx, "gamma"));
            let below = at_most(x, 0.0).expm1() * (gamma * float_param(cx, "alpha"));
            x.lt(&x.lit(0.0)).select(&below, &(x * gamma))
        })
        .param("alpha", 1.673_263_192_176_818_8, "limit below 0, before scaling")
        .param("gamma", 1.050_700_902_938_842_8, "scale")
        .onnx("Selu", 1)
        .ulp(3.0),
        elementwise("celu", "x, below 0 alpha·(e^(x/alpha) - 1).", FLOATS, &["x"], |cx, a| {
            let (x, alpha) = (&a[0], float_param(cx, "alpha"));
            x.lt(&x.lit(0.0)).select(&((at_most(x, 0.0) / alpha).expm1() * alpha), x)
        })
        .param("alpha", 1.0, "limit below 0 and inner scale")
        .onnx("Celu", 12)
        .ulp(4.0),
        elementwise("softplus", "ln(1 + eˣ), without overflow.", FLOATS, &["x"], |_, a| {
            at_least(&a[0], 0.0) + (-a[0].abs()).exp().log1p()
        })
        .onnx("Softplus", 1)
        .ulp(4.0),
    ]
}

fn sigmoids() -> Vec<OpDef> {
    vec![
        elementwise("sigmoid", "1 / (1 + e⁻ˣ).", FLOATS, &["data"], |_, a| sigmoid(&a[0]))
            .slope(|y, g| g * (y * (y.lit(1.0) - y)))
            .onnx("Sigmoid", 1)
            .mxnet("sigmoid")
            .ulp(4.0),
        elementwise("log_sigmoid", "-ln(1 + e⁻ˣ).", FLOATS, &["x"], |_, a| {
            at_most(&a[0], 0.0) - (-a[0].abs()).exp().log1p()
        })
        .mxnet("log_sigmoid")
        .ulp(4.0),
        elementwise("hard_sigmoid", "alpha·x + beta, clipped to [0, 1].", FLOATS, &["data"], |cx, a| {
            let y = a[0].fma(&a[0].lit(float_param(cx, "alpha")), &a[0].lit(float_param(cx, "beta")));
            at_most(&at_least(&y, 0.0), 1.0)
        })
        .param("alpha", 0.2, "slope")
        .param("beta", 0.5, "value at 0")
        .onnx("HardSigmoid", 1)
        .mxnet("hard_sigmoid"),
        elementwise("hard_swish", "x·min(max(x + 3, 0), 6) / 6.", FLOATS, &["x"], |_, a| {
            &a[0] * (at_most(&at_least(&(&a[0] + 3.0), 0.0), 6.0) * (1.0 / 6.0))
        })
        .onnx("HardSwish", 14)
        .ulp(2.0),
        swish("swish", 1.0).onnx("Swish", 24).mxnet("_npx_silu"),
        swish("quick_gelu", 1.702).contrib("QuickGelu"),
        swiglu(),
        elementwise("softsign", "x / (1 + |x|).", FLOATS, &["data"], |_, a| &a[0] / (a[0].abs() + 1.0))
            .onnx("Softsign", 1)
            .mxnet("softsign")
            .ulp(2.0),
    ]
}

fn swish(name: &'static str, alpha: f64) -> OpDef {
    elementwise(name, "x / (1 + e^(-alpha·x)).", FLOATS, &["x"], |cx, a| {
        &a[0] * sigmoid(&(&a[0] * float_param(cx, "alpha")))
    })
    .param("alpha", alpha, "inner scale")
    .ulp(6.0)
}

fn swiglu() -> OpDef {
    let compute = formula(|g, cx| {
        let alpha = Params::new().with("alpha", cx.params.float("alpha").unwrap_or(1.0));
        Ok(g.op("swish", &[g.operand(0)], alpha) * g.operand(1))
    });
    let infer = shape_rule(|cx| agree_shapes(cx, &[0, 1], &[0]));
    define("swiglu", "a / (1 + e^(-alpha·a)) · b, of operands of one shape.", compute, infer)
        .groups(&["a", "b"], FLOATS)
        .param("alpha", 1.0, "inner scale")
        .onnx("SwiGLU", 28)
        .ulp(8.0)
}

fn smooth() -> Vec<OpDef> {
    vec![
        elementwise("mish", "x·tanh(ln(1 + eˣ)).", FLOATS, &["x"], |_, a| {
            // tanh(ln(1 + e)) = n / (n + 2) with n = e·(e + 2), which is 1 in f32 from e²⁰ on.
            let e = at_most(&a[0], 20.0).exp();
            let n = &e * (&e + 2.0);
            &a[0] * (&n / (&n + 2.0))
        })
        .onnx("Mish", 18)
        .ulp(6.0),
        define("gelu", "x·Φ(x), Φ the normal distribution function.", gelu(), Infer::Derived)
            .group("x", FLOATS)
            .param("approximate", "none", "`tanh` for the formula x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2")
            .onnx("Gelu", 20)
            .contrib("Gelu")
            .ulp(8.0),
    ]
}

fn gelu() -> Compute {
    scalar(|_, cx, args| {
        let Some(Some(stored)) = args.first() else { return Err(OpError::from("operand `x` is missing")) };
        let x = widen(stored);
        let y = match cx.params.str("approximate") {
            Some("tanh") => {
                let cubic = (&x * &x).fma(&x.lit(0.044715), &x.lit(1.0));
                &x * sigmoid(&(&x * cubic * (8.0 / std::f64::consts::PI).sqrt()))
            }
            Some("none") | None => &x * x.ndtr(),
            Some(other) => return Err(OpError(format!("approximation `{other}` is neither none nor tanh"))),
        };
        Ok(y.cast(stored.dtype()))
    })
}
