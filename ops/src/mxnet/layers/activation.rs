//! Activations chosen by a parameter.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![activation(), leaky_relu()]
}

fn activation() -> OpDef {
    let compute = formula(|g, cx| {
        let name = match cx.params.str("act_type") {
            Some("softrelu") => "softplus",
            Some(other @ ("relu" | "sigmoid" | "tanh" | "softsign" | "log_sigmoid" | "mish")) => other,
            other => {
                return Err(g.fail(format!("parameter `act_type`: unknown function `{}`", other.unwrap_or_default())));
            }
        };
        Ok(g.operand(0).call(name, &[]))
    });
    const TYPES: &[&str] = &["relu", "sigmoid", "softrelu", "softsign", "tanh"];
    define("mx_activation", "One of relu, sigmoid, tanh, softrelu = ln(1 + eˣ), softsign.", compute, rule(agree))
        .group("data", FLOATS)
        .required("act_type", ParamKind::Choice(TYPES), "The function.")
        .named(&["Activation"])
        .ulp(4.0)
}

/// The slope shaped to broadcast with the operand: along axis 1 unless it has one element.
fn slope<'g>(x: Tensor<'g>, slope: Tensor<'g>) -> Result<Tensor<'g>> {
    let (rank, len) = (x.dims()?.len(), slope.ty()?.len());
    let mut dims = vec![1; rank];
    if len != 1 && rank > 1 {
        dims[1] = len;
    } else if rank == 1 {
        dims[0] = len;
    }
    Ok(slope.reshaped(&dims))
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

fn leaky_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let x = g.operand(0);
    let with_alpha = |op: &str| g.op(op, &[x], Params::new().with("alpha", fixed_slope(cx.params)));
    if random(cx.params) {
        let bound = |name: &str| ParamValue::Float(cx.params.float(name).unwrap_or(0.0));
        let range = Params::new().with("low", bound("lower_bound")).with("high", bound("upper_bound"));
        let slopes = g.op_multi("random_uniform_like", &[Some(x), g.maybe(2)], range, 1)[0];
        return Ok(vec![x.call("prelu", &[slopes]), slopes]);
    }
    let out = match cx.params.str("act_type") {
        Some("prelu") => x.call("prelu", &[slope(x, g.operand(1))?]),
        Some("elu") => with_alpha("elu"),
        Some(own @ ("selu" | "gelu")) => x.call(own, &[]),
        _ => with_alpha("leaky_relu"),
    };
    let mask = cx.outputs.get(1).map(|mask| g.filled(mask, fixed_slope(cx.params)));
    Ok([out].into_iter().chain(mask).collect())
}

/// `head`, where `x` is not positive times a slope.
fn sloped<'g>(head: Tensor<'g>, x: Tensor<'g>, slope: Tensor<'g>) -> Tensor<'g> {
    head.map_with(&[x, slope], |_, a| &a[0] * a[1].gt(&a[1].lit(0.0)).select(&a[1].lit(1.0), &a[2]))
}

/// The slopes are constants of the derivative.
fn leaky_gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let (x, head) = (g.operand(0), g.head(cx, 0));
    let own = match cx.node.params.str("act_type") {
        Some("prelu") => return prelu_gradient(x, head),
        Some(name @ ("elu" | "selu")) => {
            let (gamma, alpha) = match name {
                "selu" => (1.050_700_902_938_842_8, 1.673_263_192_176_818_8),
                _ => (1.0, fixed_slope(cx.node.params)),
            };
            head.map_with(&[x, g.value(cx.outputs[0])], |_, a| {
                let below = &a[2] + gamma * alpha;
                &a[0] * a[1].gt(&a[1].lit(0.0)).select(&a[1].lit(gamma), &below)
            })
        }
        Some("gelu") => head.map_with(&[x], |_, a| {
            let x = &a[1];
            let distribution = ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5;
            let density = (x * x * -0.5).exp() * (1.0 / (2.0 * std::f64::consts::PI).sqrt());
            &a[0] * (distribution + x * density)
        }),
        _ => {
            let slopes = match (random(cx.node.params), cx.outputs.get(1)) {
                (true, Some(mask)) => g.value(*mask),
                (true, None) => return Err(g.fail("rrelu in training needs its second result for the gradient")),
                (false, _) => g.filled(&x.ty()?, fixed_slope(cx.node.params)),
            };
            sloped(head, x, slopes)
        }
    };
    Ok(vec![Some(own), None, None])
}

fn prelu_gradient<'g>(x: Tensor<'g>, head: Tensor<'g>) -> Gradients<'g> {
    let gamma = x.graph().operand(1);
    let shaped = slope(x, gamma)?;
    let gradient = sloped(head, x, shaped);
    let parts = head.map_with(&[x], |_, a| &a[0] * a[1].lt(&a[1].lit(0.0)).select(&a[1], &a[1].lit(0.0)));
    let kept = shaped.dims()?;
    let axes: Vec<usize> = (0..kept.len()).filter(|&axis| kept[axis] == 1).collect();
    let (sum, ty) = (parts.sum(&axes), gamma.ty()?);
    Ok(vec![Some(gradient), Some(sum.reshaped_to(&ty)), None])
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
        match (cx.open_dims(1), cx.open_dims(0)) {
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
    define("mx_leaky_relu", doc, formulas(leaky_body), infer)
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
        .gradient(derivative(leaky_gradient))
        .named(&["LeakyReLU"])
        .ulp(8.0)
}
