//! Facts about many arrays at once.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![all_finite(false), all_finite(true), sum_sq(), lars()]
}

fn fold<'g>(x: Tensor<'g>, op: &str) -> Tensor<'g> {
    x.graph().op(op, &[x], Params::new().with("keepdims", false))
}

fn all_finite(many: bool) -> OpDef {
    let body = formula(|g, _| {
        let finite = g.given().into_iter().map(|x| {
            let zero = x.call("sub", &[x]);
            fold(zero.call("equal", &[zero]).cast(DType::F32), "reduce_min")
        });
        let all = finite.reduce(|all, one| all * one);
        Ok(all.map_or_else(|| g.operand(0), |all| all.reshaped([1])))
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::F32)?;
        cx.set_output_dims(0, [Dim::Const(1)])
    });
    let (own, mxnet) = if many { ("mx_multi_all_finite", "multi_all_finite") } else { ("mx_all_finite", "all_finite") };
    let def = define(own, "1 if every element is finite, else 0, in an array of one element.", body, infer)
        .operand("data", FLOATS)
        .param("init_output", true, "No effect: the result is always written as a whole.")
        .no_gradient()
        .mxnet(mxnet);
    if many { def.variadic().param("num_arrays", 1, "number of operands") } else { def }
}

fn sum_sq() -> OpDef {
    let body = formula(|g, _| {
        let sums = g.given().into_iter().map(|x| fold(x.cast(DType::F32), "reduce_sum_square").reshaped([1]));
        let sums: Vec<_> = sums.collect();
        Ok(g.op("concat", &sums, Params::new().with("axis", 0)))
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::F32)?;
        let n = cx.input_count() as u64;
        cx.set_output_dims(0, [Dim::Const(n)])
    });
    define("mx_multi_sum_sq", "The sum of squares of every operand, as a vector.", body, infer)
        .operand("data", FLOATS)
        .variadic()
        .required("num_arrays", ParamKind::Int, "number of operands")
        .ulp(1.0)
        .mxnet("multi_sum_sq")
}

fn lars() -> OpDef {
    let operands = ["lrs", "weights_sum_sq", "grads_sum_sq", "wds"];
    elementwise(
        "mx_multi_lars",
        "Learning rates scaled layer by layer: lr·eta·‖w‖ / (‖g‖ + wd·‖w‖ + eps) where both norms are positive.",
        FLOATS,
        &operands,
        |cx, a| {
            let number = |name: &str| float_param(cx, name);
            let (w, g) = (a[1].sqrt(), a[2].sqrt() * number("rescale_grad"));
            let zero = w.lit(0.0);
            let scaled = &a[0] * number("eta") * &w / (&g + &a[3] * &w + number("eps"));
            (w.gt(&zero) & a[2].sqrt().gt(&zero)).select(&scaled, &a[0])
        },
    )
    .required("eta", ParamKind::Float, "trust coefficient")
    .required("eps", ParamKind::Float, "keeps the divisor from zero")
    .param("rescale_grad", 1.0, "factor of the gradients")
    .no_gradient()
    .ulp(8.0)
    .mxnet("multi_lars")
}
