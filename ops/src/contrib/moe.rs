//! Mixture of experts: networks of two layers, of which each row takes some.

use super::only;
use crate::prelude::*;
use crate::rules::open_rank_in;

pub fn ops() -> Vec<OpDef> {
    vec![mixture()]
}

/// The share of each expert in each row, [rows, experts]: probabilities of the `k` likeliest, 0 for the others.
fn shares<'g>(scores: Tensor<'g>, k: i64, normalised: bool) -> Result<Tensor<'g>> {
    let g = scores.graph();
    let all = g.op("softmax", &[scores.widened()], Params::new().with("axis", -1));
    let ty = all.ty()?;
    let (rows, experts) = (ty.dims[0], ty.dims[1]);
    // How many are likelier; of equals the last is the likeliest.
    let (each, other) = (all.reshape([rows, experts, 1]), all.reshape([rows, 1, experts]));
    let above = g.map(&[each, other], DType::F32, [rows, experts, experts], |s, a| {
        let later = s.coord(2).gt(&s.coord(1));
        let equal = a[1].eq(&a[0]).select(&later, &s.constant(Scalar::bool(false)));
        let [one, zero] = [1.0, 0.0].map(|x| s.number(DType::F32, x));
        a[1].gt(&a[0]).select(&one, &equal.select(&one, &zero))
    });
    let rank = above.sum(&[2]).reshape([rows, experts]);
    let chosen = all.map_with(&[rank], |_, a| a[1].lt(&a[1].lit(k as f64)).select(&a[0], &a[0].lit(0.0)));
    Ok(if normalised { chosen / chosen.sum(&[1]) } else { chosen })
}

/// The activation of [rows, experts, features]; `swiglu` gates pairs of neighbours.
fn activated<'g>(x: Tensor<'g>, params: &Params) -> Result<Tensor<'g>> {
    let g = x.graph();
    match params.str("activation_type").unwrap_or("relu") {
        "identity" => Ok(x),
        "relu" => Ok(x.call("relu", &[])),
        "gelu" => Ok(g.op("gelu", &[x], Params::new().with("approximate", "tanh"))),
        "silu" => Ok(x.call("swish", &[])),
        _ => {
            let number = |name: &str, default: f64| params.float(name).unwrap_or(default);
            let (alpha, beta) = (number("activation_alpha", 1.0), number("activation_beta", 0.0));
            let d = x.dims()?;
            let pairs = x.reshape([d[0], d[1], d[2] / 2, 2]);
            let part = |at: u64| pairs.slice(3, at, 1u64).reshape([d[0], d[1], d[2] / 2]);
            let (mut gate, mut linear) = (part(0), part(1));
            if let Some(limit) = params.float("swiglu_limit") {
                gate = gate.with_number("min", limit);
                linear = linear.with_number("min", limit).with_number("max", -limit);
            }
            Ok(g.op("swish", &[gate], Params::new().with("alpha", alpha)) * (linear + beta))
        }
    }
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let (x, out) = (g.operand(0).widened(), &cx.outputs[0]);
    let (first, second) = (g.operand(2).widened(), g.operand(4).widened());
    let (d, inner) = (first.dims()?, second.dims()?[2]);
    let (experts, wide, hidden) = (d[0], d[1], d[2]);
    let rows = out.dims[..].iter().product::<u64>() / hidden.max(1);
    let x = x.reshape([rows, hidden]);
    let shares = shares(g.operand(1), cx.params.int("k").unwrap_or(1), cx.params.flag("normalize_routing_weights"))?;
    let product = x.call("matmul", &[first.reshape([experts * wide, hidden]).permute(&[1, 0])]);
    let product = product.reshape([rows, experts, wide]);
    let product = g.maybe(3).map_or(product, |bias| product + bias.widened());
    let active = activated(product, cx.params)?;
    let weighted = (active * shares.reshape([rows, experts, 1])).reshape([rows, experts * inner]);
    let y = weighted.call("matmul", &[second.permute(&[0, 2, 1]).reshape([experts * inner, hidden])]);
    let y = g.maybe(5).map_or(y, |bias| y + shares.call("matmul", &[bias.widened()]));
    Ok(y.reshape(&out.dims).cast(out.dtype))
}

fn shapes(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    only(cx, "use_sparse_mixer", 0)?;
    reject_if(cx.has_input(6) || cx.has_input(7), || "operands `fc3_experts_weights` and `_bias` are not supported")?;
    let gated = cx.params.str("activation_type") == Some("swiglu");
    reject_if(
        gated && cx.params.int("swiglu_fusion") != Some(1),
        || "parameter `swiglu_fusion`: only 1 is supported with `swiglu`",
    )?;
    same(cx, 0, 0)?;
    let (Some(x), Some(scores)) = (open_rank_in(cx, 0, 2..=3)?, open_rank_in(cx, 1, 2..=2)?) else { return Ok(()) };
    let (Some(first), Some(second)) = (open_rank_in(cx, 2, 3..=3)?, open_rank_in(cx, 4, 3..=3)?) else {
        return Ok(());
    };
    let hidden = x[x.len() - 1];
    let wide = match second[2].as_const() {
        Some(n) if gated => Dim::Const(2 * n),
        _ if gated => first[1],
        _ => second[2],
    };
    shaped(cx, 2, &[scores[1], wide, hidden])?;
    shaped(cx, 4, &[scores[1], hidden, second[2]])?;
    for (i, columns) in [(3, wide), (5, hidden)] {
        if cx.has_input(i) {
            shaped(cx, i, &[scores[1], columns])?;
        }
    }
    let rows = x[..x.len() - 1].iter().map(|d| d.as_const()).product::<Option<u64>>();
    if let Some(rows) = rows {
        cx.unify_dims(Dim::Const(rows), scores[0], "operand `router_probs`, axis 0")?;
    }
    let k = cx.params.int("k").unwrap_or(1);
    reject_if(k < 1 || scores[1].as_const().is_some_and(|experts| k as u64 > experts), || {
        format!("parameter `k` is {k}, which is no number of experts")
    })
}

fn mixture() -> OpDef {
    let doc = "The sum of what the `k` likeliest experts make of each row, by their probabilities. All are computed.";
    let float = || TypeRule::Group(0, FLOATS);
    define("mixture_of_experts", doc, formula(body), rule(shapes))
        .groups(&["input", "router_probs", "fc1_experts_weights"], FLOATS)
        .optional("fc1_experts_bias", float())
        .group("fc2_experts_weights", FLOATS)
        .optional("fc2_experts_bias", float())
        .optional("fc3_experts_weights", float())
        .optional("fc3_experts_bias", float())
        .choice(
            "activation_type",
            &["relu", "gelu", "silu", "swiglu", "identity"],
            "relu",
            "between the layers; `swiglu` gates pairs of features",
        )
        .param("k", 1, "how many experts each row takes")
        .param("normalize_routing_weights", false, "Shares of the experts taken add up to 1.")
        .param("activation_alpha", 1.0, "inner scale of `swiglu`")
        .param("activation_beta", 0.0, "added to what `swiglu` multiplies by")
        .maybe("swiglu_limit", ParamKind::Float, "bound of the operands of `swiglu`")
        .param("swiglu_fusion", 0, "Only 1 is supported with `swiglu`.")
        .param("use_sparse_mixer", 0, "Only 0 is supported.")
        .contrib("MoE")
        .ulp(16.0)
}
