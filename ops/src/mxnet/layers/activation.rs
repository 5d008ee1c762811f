//! Activations chosen by a parameter.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![activation(), leaky_relu()]
}

fn activation() -> OpDef {
    let compute = composite_of(|b, cx, [x]| {
        let name = match cx.params.str("act_type") {
            Some("softrelu") => "softplus",
            Some(other @ ("relu" | "sigmoid" | "tanh" | "softsign" | "log_sigmoid" | "mish")) => other,
            other => {
                return Err(b.fail(format!("parameter `act_type`: unknown function `{}`", other.unwrap_or_default())));
            }
        };
        b.call(name, &[x])
    });
    const TYPES: &[&str] = &["relu", "sigmoid", "softrelu", "softsign", "tanh"];
    define("mx_activation", "One of relu, sigmoid, tanh, softrelu = ln(1 + eˣ), softsign.", compute, rule(agree))
        .group("data", FLOATS)
        .required("act_type", ParamKind::Choice(TYPES), "The function.")
        .named(&["Activation"])
        .ulp(4.0)
}

/// The slope shaped to broadcast with the operand: along axis 1 unless it has one element.
fn slope(b: &mut Builder<'_>, x: Value, slope: Value) -> Result<Value> {
    let (rank, len) = (b.dims(x)?.len(), b.ty(slope)?.len());
    let mut dims = vec![1; rank];
    if len != 1 && rank > 1 {
        dims[1] = len;
    } else if rank == 1 {
        dims[0] = len;
    }
    reshape(b, slope, &dims)
}

/// Whether slopes are drawn at random.
fn random(params: &Params) -> bool {
    params.str("act_type") == Some("rrelu") && params.flag(OpDef::TRAINING)
}

fn fixed_slope(params: &Params) -> f64 {
    let float = |name: &str| params.float(name).unwrap_or(0.0);
    match params.str("act_type") {
        Some("rrelu") => (float("lower_bound") + float("upper_bound")) / 2.0,
        _ => float("slope"),
    }
}

fn leaky_body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>]) -> Result<Vec<Value>> {
    let x = operand(b, args, 0)?;
    let alpha = |value: f64| Params::new().with("alpha", value);
    if random(cx.params) {
        let bound = |name: &str| ParamValue::Float(cx.params.float(name).unwrap_or(0.0));
        let range = Params::new().with("low", bound("lower_bound")).with("high", bound("upper_bound"));
        let slopes = b.op_multi("random_uniform_like", &[Some(x), maybe(args, 2)], range, 1)?[0];
        return Ok(vec![b.call("prelu", &[x, slopes])?, slopes]);
    }
    let out = match cx.params.str("act_type") {
        Some("prelu") => {
            let gamma = operand(b, args, 1)?;
            let gamma = slope(b, x, gamma)?;
            b.call("prelu", &[x, gamma])?
        }
        Some("elu") => b.op("elu", &[x], alpha(fixed_slope(cx.params)))?,
        Some("selu") => b.call("selu", &[x])?,
        Some("gelu") => b.call("gelu", &[x])?,
        _ => b.op("leaky_relu", &[x], alpha(fixed_slope(cx.params)))?,
    };
    if cx.outputs.len() == 1 {
        return Ok(vec![out]);
    }
    let mask = &cx.outputs[1];
    Ok(vec![out, b.filled(mask, fixed_slope(cx.params))?])
}

/// The slopes are constants of the derivative.
fn leaky_gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> Result<Vec<Option<Value>>> {
    let (x, head) = (cx.input(0)?, cx.head(b, 0)?);
    let ty = b.ty(x)?;
    let slope_of = |name: &str| cx.node.params.str("act_type") == Some(name);
    if slope_of("prelu") {
        return prelu_gradient(b, cx, x, head);
    }
    if slope_of("elu") || slope_of("selu") {
        let gamma = if slope_of("selu") { 1.050_700_902_938_842_8 } else { 1.0 };
        let alpha = if slope_of("selu") { 1.673_263_192_176_818_8 } else { fixed_slope(cx.node.params) };
        let y = cx.outputs[0];
        let gradient = b.map_as(&[head, x, y], ty.dtype, &ty.dims, |_, a| {
            let below = &a[2] + gamma * alpha;
            &a[0] * a[1].gt(&a[1].lit(0.0)).select(&a[1].lit(gamma), &below)
        })?;
        return Ok(vec![Some(gradient), None, None]);
    }
    if slope_of("gelu") {
        let gradient = b.map_as(&[head, x], ty.dtype, &ty.dims, |_, a| {
            let x = &a[1];
            let distribution = ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5;
            let density = (x * x * -0.5).exp() * (1.0 / (2.0 * std::f64::consts::PI).sqrt());
            &a[0] * (distribution + x * density)
        })?;
        return Ok(vec![Some(gradient), None, None]);
    }
    let slopes = match (random(cx.node.params), cx.outputs.get(1)) {
        (true, Some(mask)) => *mask,
        (true, None) => return Err(b.fail("rrelu in training needs its second result for the gradient")),
        (false, _) => b.filled(&ty, fixed_slope(cx.node.params))?,
    };
    let gradient = b.map_as(&[head, x, slopes], ty.dtype, &ty.dims, |_, a| {
        &a[0] * a[1].gt(&a[1].lit(0.0)).select(&a[1].lit(1.0), &a[2])
    })?;
    Ok(vec![Some(gradient), None, None])
}

fn prelu_gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>, x: Value, head: Value) -> Result<Vec<Option<Value>>> {
    let (ty, gamma) = (b.ty(x)?, cx.input(1)?);
    let gamma_ty = b.ty(gamma)?;
    let shaped = slope(b, x, gamma)?;
    let gradient = b.map_as(&[head, x, shaped], ty.dtype, &ty.dims, |_, a| {
        &a[0] * a[1].gt(&a[1].lit(0.0)).select(&a[1].lit(1.0), &a[2])
    })?;
    let parts =
        b.map_as(&[head, x], ty.dtype, &ty.dims, |_, a| &a[0] * a[1].lt(&a[1].lit(0.0)).select(&a[1], &a[1].lit(0.0)))?;
    let kept = b.dims(shaped)?;
    let axes: Vec<usize> = (0..ty.rank()).filter(|&axis| kept[axis] == 1).collect();
    let sum = reduce(b, "reduce_sum", parts, &axes)?;
    let sum = reshape(b, sum, &gamma_ty.dims)?;
    Ok(vec![Some(gradient), Some(cast(b, sum, gamma_ty.dtype)?), None])
}

fn leaky_relu() -> OpDef {
    let infer = rule(|cx| {
        let outputs: Vec<usize> = (0..cx.output_count()).collect();
        agree_dtypes(cx, &[0], &outputs)?;
        agree_shapes(cx, &[0], &outputs)?;
        if !cx.has_input(1) {
            return Ok(());
        }
        default_dtype(cx, 1, 0)?;
        match (cx.input_dims(1), cx.input_dims(0)) {
            (None, Some(x)) => cx.set_input_dims(1, [*x.get(1).or(x.first()).unwrap_or(&Dim::Const(1))]),
            (Some(gamma), _) if gamma.len() != 1 => {
                Err(OpError(format!("operand `gamma`: expected rank 1, found rank {}", gamma.len())))
            }
            (Some(gamma), Some(x)) if gamma[0] != Dim::Const(1) => {
                let channels = *x.get(1).or(x.first()).unwrap_or(&Dim::Const(1));
                cx.unify_dims(channels, gamma[0], "operand `gamma`, axis 0")
            }
            _ => Ok(()),
        }
    });
    const TYPES: &[&str] = &["elu", "gelu", "leaky", "prelu", "rrelu", "selu"];
    let doc = "x, below 0: slope·x (leaky), gamma·x (prelu), slope·(eˣ - 1) (elu), u·x with u uniform in training, \
               its mean otherwise (rrelu); and selu, gelu. The second result of rrelu is u.";
    define("mx_leaky_relu", doc, Compute::Composite(Box::new(leaky_body)), infer)
        .operand("data", FLOATS)
        .optional("gamma", TypeRule::OneOf(FLOATS))
        .optional("key", TypeRule::OneOf(&[DType::U32]))
        .edit(|d| d.key_input = Some(2))
        .present(|params, i| i == 1 && params.str("act_type") == Some("prelu"))
        .outputs(1, 2)
        .results(|params| {
            let n = if params.str("act_type") == Some("rrelu") { 2 } else { 1 };
            ResultCount { visible: n, listed: n }
        })
        .result_names(&["output", "mask"])
        .choice("act_type", TYPES, "leaky", "The function.")
        .param("slope", 0.25, "Of leaky and elu.")
        .param("lower_bound", 0.125, "Least slope of rrelu.")
        .param("upper_bound", 0.334, "Greatest slope of rrelu.")
        .param(OpDef::TRAINING, false, "Draw the slopes of rrelu.")
        .gradient(leaky_gradient)
        .named(&["LeakyReLU"])
        .ulp(8.0)
}
