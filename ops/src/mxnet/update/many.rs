//! Steps of gradient descent of many weights in one operator.
//!
//! Operands go weight by weight: the weight, its gradient, and what the rule keeps for it. The next weights are the
//! results that users see; those of the states follow.

use super::entry::{CLIP, HALVES};
use crate::prelude::*;

/// One of the entries.
#[derive(Clone, Copy)]
struct MultiUpdate {
    own: &'static str,
    name: &'static str,
    momentum: bool,
    /// With a master copy of 16-bit weights.
    mp: bool,
    /// Learning rates and weight decays are two more operands.
    preloaded: bool,
}

impl MultiUpdate {
    /// The entry that steps one weight.
    fn single(self) -> &'static str {
        match (self.mp, self.momentum) {
            (false, false) => "update_sgd",
            (false, true) => "update_sgd_mom",
            (true, false) => "update_mp_sgd",
            (true, true) => "update_mp_sgd_mom",
        }
    }

    /// What is kept for one weight.
    fn states(self) -> usize {
        usize::from(self.momentum) + usize::from(self.mp)
    }

    /// Operands of one weight.
    fn group(self) -> usize {
        2 + self.states()
    }

    /// States by operand, with the results that are their next values.
    fn pairs(self, n: usize) -> Vec<(usize, usize)> {
        let state = |i: usize| (i / self.states() * self.group() + 2 + i % self.states(), n + i);
        (0..n * self.states()).map(state).collect()
    }

    fn shapes(self, cx: &mut InferCtx<'_>) -> Result<(), OpError> {
        let n = weights(cx.params);
        let needed = n * self.group() + if self.preloaded { 2 } else { 0 };
        if cx.input_count() != needed || !(n..=n * (1 + self.states())).contains(&cx.output_count()) {
            return Err(OpError(format!("{n} weights need {needed} operands, {} are given", cx.input_count())));
        }
        if !self.preloaded {
            for name in ["lrs", "wds"] {
                let given = cx.params.floats(name).map_or(0, <[f64]>::len);
                reject_if(given != n, || format!("parameter `{name}` has {given} numbers, expected {n}"))?;
            }
        }
        let results = cx.output_count();
        let pairs = self.pairs(n);
        for i in 0..n {
            let first = i * self.group();
            let operands: Vec<usize> = (first..first + self.group()).collect();
            let next = pairs.iter().filter(|(o, r)| operands.contains(o) && *r < results).map(|(_, r)| *r);
            let next: Vec<usize> = [i].into_iter().chain(next).collect();
            agree_shapes(cx, &operands, &next)?;
            if let Some(dtype) = cx.input_dtype(first).or(cx.input_dtype(first + 1)) {
                if !(if self.mp { HALVES } else { FLOATS }).contains(&dtype) {
                    return Err(OpError(format!("weight {i} is {dtype}, which this operator does not step")));
                }
                let kept = if self.mp { DType::F32 } else { dtype };
                let of = |at: usize| if at < 2 { dtype } else { kept };
                (0..self.group()).try_for_each(|at| cx.set_input_dtype(first + at, of(at)))?;
                next.iter().try_for_each(|&r| cx.set_output_dtype(r, if r < n { dtype } else { kept }))?;
            }
        }
        for i in n * self.group()..needed {
            cx.set_input_dtype(i, DType::F32)?;
            cx.set_input_dims(i, [Dim::Const(n as u64)])?;
        }
        Ok(())
    }

    /// Learning rate and weight decay of a weight, in the type computed in.
    fn numbers<'g>(self, params: &Params, args: &[Tensor<'g>], i: usize, dtype: DType) -> [Tensor<'g>; 2] {
        [(0, "lrs"), (1, "wds")].map(|(nth, name)| {
            if self.preloaded {
                let list = args[weights(params) * self.group() + nth];
                return list.view(vec![Index::constant(i as i64)], None, []).cast(dtype);
            }
            let value = params.floats(name).and_then(|list| list.get(i)).copied().unwrap_or(0.0);
            args[0].graph().scalar(Scalar::from_f64(dtype, value))
        })
    }

    fn expand<'g>(self, g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
        let (args, n) = (g.given(), weights(cx.params));
        let mut params = Params::new();
        for name in ["rescale_grad", "clip_gradient", "momentum"] {
            if let Some(value) = cx.params.float(name) {
                params.set(name, ParamValue::Float(value));
            }
        }
        let (mut next, mut kept) = (vec![], vec![]);
        for i in 0..n {
            let group = &args[i * self.group()..(i + 1) * self.group()];
            let numbers = self.numbers(cx.params, &args, i, compute_type(group[0].ty()?.dtype));
            let operands: Vec<_> = group.iter().chain(&numbers).copied().map(Some).collect();
            let made = g.op_multi(self.single(), &operands, params.clone(), 1 + self.states());
            next.push(made[0]);
            kept.extend_from_slice(&made[1..]);
        }
        next.append(&mut kept);
        next.truncate(cx.outputs.len());
        Ok(next)
    }

    fn entry(self) -> OpDef {
        let doc = match (self.momentum, self.mp) {
            (false, false) => "Steps of gradient descent: weight and gradient by turns.",
            (true, false) => "Steps of gradient descent with momentum: weight, gradient and momentum by turns.",
            (false, true) => "Steps of gradient descent of 16-bit weights: weight, gradient and f32 weight by turns.",
            (true, true) => {
                "Steps of gradient descent with momentum of 16-bit weights: weight, gradient, momentum and f32 weight \
                 by turns."
            }
        };
        let body = formulas(move |g, cx| self.expand(g, cx));
        let def = define(self.own, doc, body, rule(move |cx| self.shapes(cx))).operand("data", FLOATS).variadic();
        let def = match self.preloaded {
            true => def,
            false => [("lrs", "learning rates"), ("wds", "weight decays")]
                .into_iter()
                .fold(def, |def, (name, doc)| def.required(name, ParamKind::Floats, doc)),
        };
        let def = match self.momentum {
            true => def.param("momentum", 0.0, "share of the last step that is repeated"),
            false => def,
        };
        def.param("rescale_grad", 1.0, "factor of the gradients")
            .param("clip_gradient", -1.0, CLIP)
            .param("num_weights", 1, "number of weights")
            .within(1.0, 1e4)
            .outputs(1, usize::from(u16::MAX))
            .results(|p| ResultCount { visible: weights(p), listed: weights(p) })
            .states_by(move |p| self.pairs(weights(p)))
            .not_differentiable("it is a step of an optimizer")
            .named(&[self.name])
    }
}

fn weights(params: &Params) -> usize {
    params.int("num_weights").unwrap_or(1).clamp(1, 10_000) as usize
}

pub fn ops() -> Vec<OpDef> {
    let form = |name: [&'static str; 2], momentum: bool, mp: bool, preloaded: bool| {
        MultiUpdate { own: name[0], name: name[1], momentum, mp, preloaded }.entry()
    };
    macro_rules! named {
        ($name:literal) => {
            [concat!("mx_", $name), $name]
        };
    }
    vec![
        form(named!("multi_sgd_update"), false, false, false),
        form(named!("multi_sgd_mom_update"), true, false, false),
        form(named!("multi_mp_sgd_update"), false, true, false),
        form(named!("multi_mp_sgd_mom_update"), true, true, false),
        form(named!("preloaded_multi_sgd_update"), false, false, true),
        form(named!("preloaded_multi_sgd_mom_update"), true, false, true),
        form(named!("preloaded_multi_mp_sgd_update"), false, true, true),
        form(named!("preloaded_multi_mp_sgd_mom_update"), true, true, true),
    ]
}
