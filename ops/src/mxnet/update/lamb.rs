//! LAMB, whose steps are scaled by norms of whole weights, and AdamW with the scale of the loss as an operand.

use super::entry::{CLIP, HALVES, LR, STEP, UpdateStep, WD};
use super::entry::{computed, finished, number, shapes, stored_results, tensor_shapes, tensors};
use super::rules::{ETA, adam_params, adamw, lamb_params};
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    [scaled_step, lamb, phase2, adamw_scaled].into_iter().flat_map(|entry| [entry(false), entry(true)]).collect()
}

fn bounds(def: OpDef) -> OpDef {
    let def = def.param("lower_bound", -1.0, "least norm of the weight counted, none if negative");
    def.param("upper_bound", -1.0, "greatest norm of the weight counted, none if negative")
}

/// `w - lr·(r1 / r2)·g`, with r1 bounded; a norm of zero scales by 1.
fn scaled(params: &Params, [w, g, r1, r2, lr]: [&Ex; 5]) -> Ex {
    let bound = |name: &str| params.float(name).filter(|x| *x >= 0.0);
    let r1 = bound("lower_bound").map_or(r1.clone(), |low| r1.max(&r1.lit(low)));
    let r1 = bound("upper_bound").map_or(r1.clone(), |high| r1.min(&r1.lit(high)));
    let zero = r1.lit(0.0);
    let lr = (r1.eq(&zero) | r2.eq(&zero)).select(lr, &(lr * &r1 / r2));
    w - lr * g
}

/// Weight, direction, the two norms, the master copy if there is one, the learning rate.
fn scaled_step(mp: bool) -> OpDef {
    let body = move |_: &ScalarBuilder, cx: &ScalarCtx<'_>, args: &[Option<Ex>]| {
        let (x, stored) = computed(args, 5 + usize::from(mp), mp)?;
        let weight = if mp { &x[4] } else { &x[0] };
        let out = scaled(cx.params, [weight, &x[1], &x[2], &x[3], &x[x.len() - 1]]);
        Ok(stored_results(vec![out], stored, mp, true))
    };
    let infer = rule(move |cx| {
        phase2_shapes(cx, mp)?;
        // Norms and the learning rate: more axes than the weight has would broadcast it.
        [2, 3, 4 + usize::from(mp)].into_iter().try_for_each(|i| cx.set_input_dims(i, []))
    });
    let name = if mp { "update_mp_lamb_phase2" } else { "update_lamb_phase2" };
    let def = define(name, PHASE2, Compute::Scalar(Box::new(body)), infer);
    bounds(phase2_operands(def, mp).operand("lr", FLOATS).state(0, 0))
}

const PHASE2: &str = "A step along the direction of LAMB, scaled by norms.";

fn phase2_operands(def: OpDef, mp: bool) -> OpDef {
    let def = match mp {
        false => def.groups(&["weight", "g", "r1", "r2"], FLOATS),
        true => def.operand("weight", HALVES).operands(&["g", "r1", "r2", "weight32"], &[DType::F32]),
    };
    let results = 1 + usize::from(mp);
    let def = def.outputs(results, results).not_differentiable("it is a step of an optimizer").ulp(16.0);
    if mp { def.state(4, 1) } else { def }
}

fn phase2_shapes(cx: &mut InferCtx<'_>, mp: bool) -> Result<(), OpError> {
    agree_shapes(cx, if mp { &[0, 1, 4] } else { &[0, 1] }, &[])?;
    one_element(cx, 2)?;
    one_element(cx, 3)?;
    cx.copy_shape(0, 0)?;
    cx.same_dtype(0, 0)?;
    if mp {
        cx.copy_shape(1, 0)?;
        cx.set_output_dtype(1, DType::F32)?;
    }
    Ok(())
}

fn phase2(mp: bool) -> OpDef {
    let body = Compute::Composite(Box::new(move |b, cx, args| {
        let own = if mp { "update_mp_lamb_phase2" } else { "update_lamb_phase2" };
        let mut operands = args.to_vec();
        for i in [2, 3] {
            // A norm of shape (1,) would add an axis to a weight of rank 0.
            let norm = operand(b, args, i)?;
            operands[i] = Some(reshape(b, norm, [])?);
        }
        let wide = compute_type(cx.outputs[0].dtype);
        operands.push(Some(number(b, cx.params, "lr", wide)?));
        let params = ["lower_bound", "upper_bound"]
            .into_iter()
            .fold(Params::new(), |p, name| p.with(name, cx.params.float(name).unwrap_or(-1.0)));
        Ok(b.op_multi(own, &operands, params, cx.outputs.len())?.to_vec())
    }));
    let infer = rule(move |cx| phase2_shapes(cx, mp));
    let (own, mxnet) = match mp {
        true => ("mx_mp_lamb_update_phase2", "mp_lamb_update_phase2"),
        false => ("mx_lamb_update_phase2", "lamb_update_phase2"),
    };
    let def = phase2_operands(define(own, PHASE2, body, infer), mp);
    let def = bounds(def.required("lr", ParamKind::Float, "learning rate")).mxnet(mxnet);
    def.results(|_| ResultCount { visible: 1, listed: 1 })
}

fn norm(b: &mut Builder<'_>, x: Value) -> Result<Value, Diagnostic> {
    b.op("reduce_l2", &[x], Params::new().with("keepdims", false))
}

fn lamb_body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>], mp: bool) -> Result<Vec<Value>> {
    let count = 4 + usize::from(mp);
    let [lr, wd, t] = [0, 1, 2].map(|i| args.get(count + i).copied().flatten());
    let of = |names: &[&'static str]| {
        let given = names.iter().filter_map(|n| cx.params.get(n).map(|v| (*n, v.clone())));
        given.fold(Params::new(), |p, (name, value)| p.with(name, value))
    };
    let phase1 = [&args[..count], &[wd, t]].concat();
    let params = of(&["beta1", "beta2", "epsilon", "bias_correction", "rescale_grad", "clip_gradient"]);
    let (first, second) = match mp {
        true => ("update_mp_lamb_phase1", "update_mp_lamb_phase2"),
        false => ("update_lamb_phase1", "update_lamb_phase2"),
    };
    let made = b.op_multi(first, &phase1, params, 3)?;
    let weight = operand(b, args, if mp { 4 } else { 0 })?;
    let (r1, r2) = (norm(b, weight)?, norm(b, made[0])?);
    let mut operands = vec![args[0], Some(made[0]), Some(r1), Some(r2)];
    operands.extend(mp.then_some(Some(weight)));
    operands.push(lr);
    let moved = b.op_multi(second, &operands, of(&["lower_bound", "upper_bound"]), 1 + usize::from(mp))?;
    Ok([moved[0], made[1], made[2]].into_iter().chain(moved.get(1).copied()).collect())
}

fn lamb(mp: bool) -> OpDef {
    let count = 4 + usize::from(mp);
    let body = Compute::Composite(Box::new(move |b, cx, args| lamb_body(b, cx, args, mp)));
    let infer = rule(move |cx| shapes(cx, count, mp, true));
    let name = if mp { "update_mp_lamb" } else { "update_lamb" };
    let doc = "LAMB (You and others 2020): the direction of Adam with weight decay, scaled by the norm of the weight \
               over its own.";
    let def = tensors(define(name, doc, body, infer), &["mean", "var"], mp);
    let def = [LR, WD, STEP].iter().fold(def, |def, n| def.operand(n.name, FLOATS));
    let def = bounds(lamb_params(def)).param("rescale_grad", 1.0, "factor of the gradient");
    finished(def.param("clip_gradient", -1.0, CLIP), count, mp, true, true)
}

/// AdamW as MXNet has it: the gradient is multiplied by an operand, and nothing moves where that is zero or not
/// finite, as after an overflow of a scaled loss.
fn adamw_scaled(mp: bool) -> OpDef {
    let count = 4 + usize::from(mp);
    let body = move |b: &ScalarBuilder, cx: &ScalarCtx<'_>, args: &[Option<Ex>]| {
        let (x, stored) = computed(args, count + 1, mp)?;
        let scale = &x[count];
        let given = |name: &str| {
            let value = cx.params.float(name);
            let value = value.ok_or_else(|| OpError(format!("parameter `{name}` is not a number")))?;
            Ok::<Ex, OpError>(b.number(scale.dtype(), value))
        };
        let weight = &x[if mp { 4 } else { 0 }];
        let step = UpdateStep {
            params: cx.params,
            weight: weight.clone(),
            grad: &x[1] * scale,
            states: vec![x[2].clone(), x[3].clone()],
            numbers: ["lr", "wd", "eta"].into_iter().map(given).collect::<Result<_, _>>()?,
        };
        let usable = scale.abs().lt(&scale.lit(f64::INFINITY)) & scale.ne(&scale.lit(0.0));
        let moved = adamw(&step);
        let out = moved.iter().zip([weight, &x[2], &x[3]]).map(|(new, old)| usable.select(new, old)).collect();
        Ok(stored_results(out, stored, mp, true))
    };
    let infer = rule(move |cx| {
        if let Some(dims) = cx.input_dims(count)
            && (dims.len() > 1 || dims.first().is_some_and(|d| matches!(d, Dim::Const(n) if *n != 1)))
        {
            return Err("operand `rescale_grad`: expected one element".into());
        }
        let rank = cx.input_dims(count).map_or(0, |d| d.len());
        if rank > 0 && cx.input_dims(0).is_some_and(|d| d.is_empty()) {
            return Err("operand `rescale_grad`: a weight of rank 0 needs one of rank 0".into());
        }
        tensor_shapes(cx, count, mp, true)
    });
    let (own, mxnet) = match mp {
        true => ("mx_mp_adamw_update", "_mp_adamw_update"),
        false => ("mx_adamw_update", "_adamw_update"),
    };
    let doc = "Adam with decoupled weight decay and a gradient scaled by an operand; nothing moves where that is zero \
               or not finite.";
    let def = tensors(define(own, doc, Compute::Scalar(Box::new(body)), infer), &["mean", "var"], mp);
    let def = adam_params(def.operand("rescale_grad", FLOATS))
        .required("lr", ParamKind::Float, "learning rate")
        .required("eta", ParamKind::Float, ETA.doc)
        .param("wd", 0.0, "weight decay")
        .mxnet(mxnet)
        .param("clip_gradient", -1.0, CLIP);
    finished(def, count, mp, false, true)
}
