//! Facts about many arrays at once, and steps of many weights in one operator.

use tensorc_ir::build::Builder;
use tensorc_ir::diag::Diagnostic;
use tensorc_ir::graph::Value;
use tensorc_ir::op::{Compute, OpDef, OpError, ResultCount};
use tensorc_ir::params::{ParamKind, ParamValue, Params};
use tensorc_ir::{DType, Dim};

use super::entry::clip_param;
use crate::compose::{cast, reshape};
use crate::def::{Define, FLOATS, composite, define, elementwise, operand, rule};
use crate::rules::same;

pub fn ops() -> Vec<OpDef> {
    vec![all_finite(false), all_finite(true), sum_sq(), lars(), multi_sgd()]
}

fn fold(b: &mut Builder<'_>, op: &str, x: Value) -> Result<Value, Diagnostic> {
    b.op(op, &[x], Params::new().with("keepdims", ParamValue::Bool(false)))
}

fn all_finite(many: bool) -> OpDef {
    let body = composite(|b, _, args| {
        let mut all = None;
        for &x in args.iter().flatten() {
            let zero = b.call("sub", &[x, x])?;
            let fine = b.call("equal", &[zero, zero])?;
            let fine = cast(b, fine, DType::F32)?;
            let least = fold(b, "reduce_min", fine)?;
            all = Some(match all {
                None => least,
                Some(others) => b.call("mul", &[others, least])?,
            });
        }
        match all {
            Some(all) => reshape(b, all, &[1]),
            None => operand(b, args, 0),
        }
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::F32)?;
        cx.set_output_dims(0, [Dim::Const(1)])
    });
    let (own, mxnet) = if many { ("mx_multi_all_finite", "multi_all_finite") } else { ("mx_all_finite", "all_finite") };
    let def = define(own, "1 if every element is finite, else 0, in an array of one element.", body, infer)
        .operand("data", FLOATS)
        .param("init_output", ParamValue::Bool(true), "No effect: the result is always written as a whole.")
        .no_gradient()
        .mxnet(mxnet);
    match many {
        true => def.variadic().param("num_arrays", ParamValue::Int(1), "number of operands"),
        false => def,
    }
}

fn sum_sq() -> OpDef {
    let body = composite(|b, _, args| {
        let mut sums = vec![];
        for &x in args.iter().flatten() {
            let x = cast(b, x, DType::F32)?;
            let sum = fold(b, "reduce_sum_square", x)?;
            sums.push(reshape(b, sum, &[1])?);
        }
        b.op("concat", &sums, Params::new().with("axis", ParamValue::Int(0)))
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
            let number = |name: &str| cx.params.float(name).unwrap_or(0.0);
            let (w, g) = (a[1].sqrt(), a[2].sqrt() * number("rescale_grad"));
            let zero = w.lit(0.0);
            let scaled = &a[0] * number("eta") * &w / (&g + &a[3] * &w + number("eps"));
            (w.gt(&zero) & a[2].sqrt().gt(&zero)).select(&scaled, &a[0])
        },
    )
    .required("eta", ParamKind::Float, "trust coefficient")
    .required("eps", ParamKind::Float, "keeps the divisor from zero")
    .param("rescale_grad", ParamValue::Float(1.0), "factor of the gradients")
    .no_gradient()
    .ulp(8.0)
    .mxnet("multi_lars")
}

fn multi_sgd() -> OpDef {
    let body = Compute::Composite(Box::new(|b, cx, args| {
        let (lrs, wds) = (cx.params.floats("lrs").unwrap_or_default(), cx.params.floats("wds").unwrap_or_default());
        let mut out = vec![];
        for (i, pair) in args.chunks(2).enumerate() {
            let mut params = Params::new();
            for name in ["rescale_grad", "clip_gradient"] {
                params.set(name, ParamValue::Float(cx.params.float(name).unwrap_or(1.0)));
            }
            params.set("lr", ParamValue::Float(lrs.get(i).copied().unwrap_or(0.0)));
            params.set("wd", ParamValue::Float(wds.get(i).copied().unwrap_or(0.0)));
            out.push(b.op_multi("mx_sgd_update", pair, params, 1)?[0]);
        }
        Ok(out)
    }));
    let infer = rule(|cx| {
        let n = cx.params.int("num_weights").unwrap_or(1).max(0) as usize;
        let lengths = ["lrs", "wds"].map(|name| cx.params.floats(name).map_or(0, |x| x.len()));
        if cx.input_count() != 2 * n || cx.output_count() != n || lengths != [n, n] {
            let why = format!("{n} weights need {} operands and {n} numbers in `lrs` and `wds`", 2 * n);
            return Err(OpError(why));
        }
        (0..n).try_for_each(|i| same(cx, i, 2 * i))
    });
    define("mx_multi_sgd_update", "Steps of gradient descent: weight and gradient by turns.", body, infer)
        .operand("data", FLOATS)
        .variadic()
        .required("lrs", ParamKind::Floats, "learning rates")
        .required("wds", ParamKind::Floats, "weight decays")
        .param("rescale_grad", ParamValue::Float(1.0), "factor of the gradients")
        .param("num_weights", ParamValue::Int(1), "number of weights")
        .edit(|d| d.params.push(clip_param()))
        .outputs(1, usize::from(u16::MAX))
        .results(|p| {
            let n = p.int("num_weights").unwrap_or(1).max(1) as usize;
            ResultCount { visible: n, listed: n }
        })
        .not_differentiable("it is a step of an optimizer")
        .mxnet("multi_sgd_update")
}
