//! From the formula of an optimizer to its entries.

use crate::prelude::*;

/// Types of weights that have a master copy.
pub const HALVES: &[DType] = &[DType::F16, DType::BF16, DType::F32];
const F32: &[DType] = &[DType::F32];

/// A number that may differ at every step.
#[derive(Clone, Copy)]
pub struct StepNumber {
    pub name: &'static str,
    /// Where it is a parameter and may be left out.
    pub default: Option<f64>,
    /// Where it is a parameter, it is an integer.
    pub integer: bool,
    pub doc: &'static str,
}

pub const LR: StepNumber = StepNumber { name: "lr", default: None, integer: false, doc: "learning rate" };
pub const WD: StepNumber = StepNumber { name: "wd", default: Some(0.0), integer: false, doc: "weight decay" };
pub const STEP: StepNumber = StepNumber { name: "t", default: None, integer: true, doc: "number of this step, from 1" };

/// Names of the entries of a rule.
#[derive(Clone, Copy)]
pub struct UpdateNames {
    pub own: &'static str,
    pub own_mp: &'static str,
    /// Own name of MXNet's operator, and its name there.
    pub mxnet: Option<[&'static str; 2]>,
    pub mxnet_mp: Option<[&'static str; 2]>,
}

#[derive(Clone, Copy)]
pub struct RuleEntry {
    pub names: UpdateNames,
    pub doc: &'static str,
    pub states: &'static [&'static str],
    pub numbers: &'static [StepNumber],
    /// Adds the constants of the formula as parameters.
    pub params: fn(OpDef) -> OpDef,
    /// The first result is the next weight; else a direction, and the weight stays.
    pub moves_weight: bool,
    /// The first result and the next states.
    pub step: fn(&UpdateStep<'_>) -> Vec<Ex>,
}

impl RuleEntry {
    fn own(&self, mp: bool) -> &'static str {
        if mp { self.names.own_mp } else { self.names.own }
    }
}

/// What a formula is written in, all in the type arithmetic is done in.
pub struct UpdateStep<'a> {
    pub params: &'a Params,
    pub weight: Ex,
    /// The gradient, times `rescale_grad`.
    pub grad: Ex,
    pub states: Vec<Ex>,
    pub numbers: Vec<Ex>,
}

impl UpdateStep<'_> {
    /// The learning rate, of formulas that have one: the first number.
    pub fn lr(&self) -> &Ex {
        &self.numbers[0]
    }

    /// The weight decay, of formulas that have a learning rate: the second number.
    pub fn wd(&self) -> &Ex {
        &self.numbers[1]
    }

    /// A float parameter that is declared with a default; NaN if it is not, which no test overlooks.
    pub fn param(&self, name: &str) -> f64 {
        self.params.float(name).unwrap_or(f64::NAN)
    }

    /// `1 - x` of a parameter, rounded as a difference of numbers of the type computed in.
    pub fn complement(&self, name: &str) -> f64 {
        let x = self.param(name);
        match self.weight.dtype() {
            DType::F32 => f64::from(1.0 - x as f32),
            _ => 1.0 - x,
        }
    }

    /// `x` bounded by ± `clip_gradient`, if that is not negative.
    pub fn clipped(&self, x: &Ex) -> Ex {
        bounded(x, self.params.float("clip_gradient").or_else(|| self.params.float("clip_grad")))
    }

    pub fn decayed(&self, x: &Ex) -> Ex {
        x + self.wd() * &self.weight
    }

    /// `old·decay + (1 - decay)·new`, the second product first as in MXNet.
    pub fn average(&self, decay: &str, old: &Ex, new: &Ex) -> Ex {
        old * self.param(decay) + new * self.complement(decay)
    }
}

/// `x` bounded by ± `limit`; NaN stays NaN. No or a negative limit does nothing.
pub fn bounded(x: &Ex, limit: Option<f64>) -> Ex {
    match limit {
        Some(limit) if limit >= 0.0 => {
            let (low, high) = (x.lit(-limit), x.lit(limit));
            x.gt(&high).select(&high, &x.lt(&low).select(&low, x))
        }
        _ => x.clone(),
    }
}

/// Weight, gradient and states: what an entry has besides numbers.
pub fn tensors(def: OpDef, states: &[&'static str], mp: bool) -> OpDef {
    let types = if mp { HALVES } else { FLOATS };
    let def = def.groups(&["weight", "grad"], types);
    let def = states.iter().fold(def, |def, s| if mp { def.operand(s, F32) } else { def.group(s, types) });
    if mp { def.operand("weight32", F32) } else { def }
}

/// The types of an entry: `count` tensors of one shape, then numbers.
pub fn shapes(cx: &mut InferCtx<'_>, count: usize, mp: bool, moves_weight: bool) -> Result<(), OpError> {
    tensor_shapes(cx, count, mp, moves_weight)?;
    (count..cx.input_count()).try_for_each(|i| cx.set_input_dims(i, []))
}

/// The types of results, all of the shape of the `count` tensors.
pub fn tensor_shapes(cx: &mut InferCtx<'_>, count: usize, mp: bool, moves_weight: bool) -> Result<(), OpError> {
    let tensors: Vec<usize> = (0..count).collect();
    agree_shapes(cx, &tensors, &[])?;
    for i in 0..cx.output_count() {
        cx.copy_shape(i, 0)?;
        if mp && (i > 0 || !moves_weight) { cx.set_output_dtype(i, DType::F32)? } else { cx.same_dtype(i, 0)? }
    }
    Ok(())
}

/// The parameters of a formula that are the same for every entry.
fn constants(def: OpDef, rule: &RuleEntry) -> OpDef {
    let def = (rule.params)(def).param("rescale_grad", 1.0, "factor of the gradient");
    let named_otherwise = def.params.iter().any(|p| p.name == "clip_grad");
    if named_otherwise { def } else { def.param("clip_gradient", -1.0, CLIP) }
}

/// What `clip_gradient` is, -1 by default.
pub const CLIP: &str = "bound of the gradient's magnitude, none if negative";

/// Completes an entry with `tensors` tensor operands: every state's next value is a result.
pub fn finished(def: OpDef, tensors: usize, mp: bool, own_weight: bool, moves_weight: bool) -> OpDef {
    let states: Vec<(usize, usize)> = (2..tensors).map(|i| (i, i - 1)).collect();
    // The master copy is a state only if it moves.
    let states = if mp && !moves_weight { states[..states.len() - 1].to_vec() } else { states };
    let results = 1 + states.len();
    let def = def.outputs(results, results).not_differentiable("it is a step of an optimizer").ulp(16.0);
    let weight = (own_weight && moves_weight).then_some((0, 0));
    let def = weight.into_iter().chain(states).fold(def, |def, (operand, result)| def.state(operand, result));
    if own_weight { def } else { def.results(|_| ResultCount { visible: 1, listed: 1 }) }
}

/// The operands of a formula in the type computed in, and the type of the weight as it is stored.
pub fn computed(args: &[Option<Ex>], count: usize, mp: bool) -> Result<(Vec<Ex>, DType), OpError> {
    let given: Vec<&Ex> = args.iter().flatten().collect();
    reject_if(given.len() != count, || "an operand is missing")?;
    let stored = given[0].dtype();
    let wide = if mp { DType::F32 } else { compute_type(stored) };
    Ok((given.into_iter().map(|x| x.cast(wide)).collect(), stored))
}

/// The entry whose numbers are operands.
fn with_operands(r: RuleEntry, mp: bool) -> OpDef {
    let count = 2 + r.states.len() + usize::from(mp);
    let body = move |_: &ScalarBuilder, cx: &ScalarCtx<'_>, args: &[Option<Ex>]| {
        let (x, stored) = computed(args, count + r.numbers.len(), mp)?;
        let rescale = cx.params.float("rescale_grad").unwrap_or(1.0);
        let step = UpdateStep {
            params: cx.params,
            weight: x[if mp { count - 1 } else { 0 }].clone(),
            grad: if rescale == 1.0 { x[1].clone() } else { &x[1] * rescale },
            states: x[2..2 + r.states.len()].to_vec(),
            numbers: x[count..].to_vec(),
        };
        let out = (r.step)(&step);
        Ok(stored_results(out, stored, mp, r.moves_weight))
    };
    let infer = rule(move |cx| shapes(cx, count, mp, r.moves_weight));
    let def = tensors(define(r.own(mp), r.doc, Compute::Scalar(Box::new(body)), infer), r.states, mp);
    let def = r.numbers.iter().fold(def, |def, n| def.operand(n.name, FLOATS));
    finished(constants(def, &r), count, mp, true, r.moves_weight)
}

/// Results of a formula as they are stored: with a master copy, the weight is a rounding of it.
pub fn stored_results(out: Vec<Ex>, stored: DType, mp: bool, moves_weight: bool) -> Vec<Ex> {
    match (mp, moves_weight) {
        (false, _) => out.iter().map(|x| x.cast(stored)).collect(),
        (true, false) => out,
        (true, true) => {
            let master = out[0].clone();
            let rounded = master.cast(stored);
            [rounded].into_iter().chain(out.into_iter().skip(1)).chain([master]).collect()
        }
    }
}

/// MXNet's operator: the numbers are parameters.
fn with_parameters(r: RuleEntry, mp: bool, [own, mxnet]: [&'static str; 2]) -> OpDef {
    let count = 2 + r.states.len() + usize::from(mp);
    let infer = rule(move |cx| shapes(cx, count, mp, r.moves_weight));
    let body = Compute::Composite(Box::new(move |b, cx, args| over_operands(b, cx, args, &r, mp)));
    let def = tensors(define(own, r.doc, body, infer), r.states, mp);
    let def = constants(r.numbers.iter().fold(def, number_param), &r).mxnet(mxnet);
    let lazy = matches!(r.names.own, "update_sgd" | "update_sgd_mom" | "update_adam");
    let def = if lazy { def.param("lazy_update", true, "No effect: gradients are dense.") } else { def };
    finished(def, count, mp, false, r.moves_weight)
}

fn number_param(def: OpDef, n: &StepNumber) -> OpDef {
    match (n.default, n.integer) {
        (Some(x), _) => def.param(n.name, ParamValue::Float(x), n.doc),
        (None, true) => def.required(n.name, ParamKind::Int, n.doc).within(1.0, f64::from(i32::MAX)),
        (None, false) => def.required(n.name, ParamKind::Float, n.doc),
    }
}

/// A number given as a parameter, as a constant of the type computed in.
pub fn number(b: &mut Builder<'_>, params: &Params, name: &str, dtype: DType) -> Result<Value, Diagnostic> {
    let value = params.float(name).or_else(|| params.int(name).map(|i| i as f64));
    let missing = || b.error(DiagnosticCode::Operands, format!("parameter `{name}` is not a number"));
    let value = value.ok_or_else(missing)?;
    Ok(b.scalar(Scalar::from_f64(dtype, value)))
}

fn over_operands(
    b: &mut Builder<'_>,
    cx: &NodeCtx<'_>,
    args: &[Option<Value>],
    r: &RuleEntry,
    mp: bool,
) -> Result<Vec<Value>, Diagnostic> {
    let weight = operand(b, args, 0)?;
    let wide = compute_type(b.ty(weight)?.dtype);
    let mut operands = args.to_vec();
    for n in r.numbers {
        operands.push(Some(number(b, cx.params, n.name, wide)?));
    }
    let own = r.own(mp);
    let known: Vec<&str> = match b.registry().get(own) {
        Some(def) => def.params.iter().map(|p| p.name).collect(),
        None => vec![],
    };
    let given = cx.params.iter().filter(|(name, _)| known.contains(name));
    let params = given.fold(Params::new(), |all, (name, value)| all.with(name, value.clone()));
    Ok(b.op_multi(own, &operands, params, cx.outputs.len())?.to_vec())
}

/// All entries of a rule.
pub fn entries(r: RuleEntry) -> Vec<OpDef> {
    let own = [false, true].map(|mp| with_operands(r, mp));
    let mxnet = r.names.mxnet.map(|names| with_parameters(r, false, names));
    let mxnet_mp = r.names.mxnet_mp.map(|names| with_parameters(r, true, names));
    own.into_iter().chain(mxnet).chain(mxnet_mp).collect()
}
