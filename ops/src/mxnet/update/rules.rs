//! The formulas of optimizers, as MXNet 1.9.1 computes them: where the weight decay joins the gradient, before or
//! after clipping, differs from one to the next.

use super::entry::{CLIP, LR, RuleEntry, STEP, StepNumber, UpdateNames, UpdateStep, WD, bounded};
use crate::prelude::*;

macro_rules! names {
    ($name:literal, $($mxnet:literal)?, $($mp:literal)?) => {
        UpdateNames {
            own: concat!("update_", $name),
            own_mp: concat!("update_mp_", $name),
            mxnet: [$([concat!("mx_", $mxnet), $mxnet])?].into_iter().next(),
            mxnet_mp: [$([concat!("mx_", $mp), $mp])?].into_iter().next(),
        }
    };
}

const NO_STATES: &[&str] = &[];

fn plain(def: OpDef) -> OpDef {
    def
}

fn momentum(def: OpDef) -> OpDef {
    def.param("momentum", 0.0, "share of the last step that is repeated")
}

/// Decays of the averages of the gradient and of its square, and what keeps divisors from zero.
fn betas(def: OpDef, beta1: f64, epsilon: f64) -> OpDef {
    def.share("beta1", beta1, "decay of the mean of gradients")
        .share("beta2", 0.999, "decay of the mean of squared gradients")
        .param("epsilon", epsilon, "keeps divisors from zero")
}

pub(super) fn adam_params(def: OpDef) -> OpDef {
    betas(def, 0.9, 1e-8)
}

pub(super) fn lamb_params(def: OpDef) -> OpDef {
    betas(def, 0.9, 1e-6).param("bias_correction", true, "whether averages are divided by 1 - βᵗ")
}

fn sgd(s: &UpdateStep<'_>) -> Vec<Ex> {
    let g = s.decayed(&s.clipped(&s.grad));
    vec![&s.weight - s.lr() * g]
}

fn sgd_mom(s: &UpdateStep<'_>) -> Vec<Ex> {
    let g = s.decayed(&s.clipped(&s.grad));
    let mom = &s.states[0] * s.param("momentum") - s.lr() * g;
    vec![&s.weight + &mom, mom]
}

fn nag(s: &UpdateStep<'_>) -> Vec<Ex> {
    let g = s.decayed(&s.clipped(&s.grad));
    let step = s.lr() * g;
    let mom = &s.states[0] * s.param("momentum") - &step;
    vec![&s.weight + (&mom * s.param("momentum") - &step), mom]
}

fn adam(s: &UpdateStep<'_>) -> Vec<Ex> {
    let g = s.clipped(&s.decayed(&s.grad));
    let (mean, var) = moments(s, &g);
    vec![&s.weight - s.lr() * &mean / (var.sqrt() + s.param("epsilon")), mean, var]
}

fn moments(s: &UpdateStep<'_>, g: &Ex) -> (Ex, Ex) {
    (s.average("beta1", &s.states[0], g), s.average("beta2", &s.states[1], &(g * g)))
}

/// The gradient is already clipped.
pub(super) fn adamw(s: &UpdateStep<'_>) -> Vec<Ex> {
    let (mean, var) = moments(s, &s.clipped(&s.grad));
    let direction = s.lr() * &mean / (var.sqrt() + s.param("epsilon")) + s.wd() * &s.weight;
    vec![&s.weight - &s.numbers[2] * direction, mean, var]
}

fn rmsprop(s: &UpdateStep<'_>) -> Vec<Ex> {
    let g = s.clipped(&s.decayed(&s.grad));
    let n = s.average("gamma1", &s.states[0], &(&g * &g));
    let weight = &s.weight - s.lr() * (&g / (&n + s.param("epsilon")).sqrt());
    vec![bounded(&weight, s.params.float("clip_weights")), n]
}

fn rmspropalex(s: &UpdateStep<'_>) -> Vec<Ex> {
    let grad = s.clipped(&s.decayed(&s.grad));
    let n = s.average("gamma1", &s.states[0], &(&grad * &grad));
    let g = s.average("gamma1", &s.states[1], &grad);
    let spread = (&n - &g * &g + s.param("epsilon")).sqrt();
    let delta = &s.states[2] * s.param("gamma2") - s.lr() * (&grad / spread);
    vec![bounded(&(&s.weight + &delta), s.params.float("clip_weights")), n, g, delta]
}

fn adagrad(s: &UpdateStep<'_>) -> Vec<Ex> {
    let g = s.clipped(&s.grad);
    let history = &s.states[0] + &g * &g;
    let direction = &g / (&history + s.param("epsilon")).sqrt() + &s.weight * s.wd();
    vec![&s.weight - direction * s.lr(), history]
}

fn ftrl(s: &UpdateStep<'_>) -> Vec<Ex> {
    let g = s.clipped(&s.grad);
    let n = &s.states[1] + &g * &g;
    let z = &s.states[0] + &g - (n.sqrt() - s.states[1].sqrt()) * &s.weight / s.lr();
    let lamda = z.lit(s.param("lamda1"));
    let weight = (sign(&z) * &lamda - &z) / ((n.sqrt() + s.param("beta")) / s.lr() + s.wd());
    vec![z.abs().gt(&lamda).select(&weight, &z.lit(0.0)), z, n]
}

fn ftml(s: &UpdateStep<'_>) -> Vec<Ex> {
    let (lr, t) = (s.lr(), &s.numbers[2]);
    let g = s.clipped(&s.decayed(&s.grad));
    let [d, v, z] = [0, 1, 2].map(|i| &s.states[i]);
    let unbiased = |name: &str| t.lit(1.0) - t.lit(s.param(name)).pow(t);
    let v = s.average("beta2", v, &(&g * &g));
    let next = unbiased("beta1") / lr * ((&v / unbiased("beta2")).sqrt() + s.param("epsilon"));
    let moved = &next - d * s.param("beta1");
    let z = s.average("beta1", z, &g) - moved * &s.weight;
    vec![-&z / &next, next, v, z]
}

fn sign(x: &Ex) -> Ex {
    let zero = x.lit(0.0);
    x.gt(&zero).select(&x.lit(1.0), &x.lt(&zero).select(&x.lit(-1.0), &zero))
}

fn signsgd(s: &UpdateStep<'_>) -> Vec<Ex> {
    let keep = s.lr().lit(1.0) - s.lr() * s.wd();
    vec![keep * &s.weight - s.lr() * sign(&s.grad)]
}

fn signum(s: &UpdateStep<'_>) -> Vec<Ex> {
    let g = s.clipped(&s.grad) + s.wd() * &s.weight;
    let mom = &s.states[0] * s.param("momentum") - g * s.complement("momentum");
    let keep = s.lr().lit(1.0) - s.lr() * s.param("wd_lh");
    vec![keep * &s.weight + s.lr() * sign(&mom), mom]
}

/// The direction of LAMB before it is scaled by the norms.
fn lamb_direction(s: &UpdateStep<'_>) -> Vec<Ex> {
    let (wd, t) = (&s.numbers[0], &s.numbers[1]);
    let (mean, var) = moments(s, &s.clipped(&s.grad));
    let (m, v) = match s.params.bool("bias_correction") {
        Some(false) => (mean.clone(), var.clone()),
        _ => {
            let unbiased = |name: &str| t.lit(1.0) - t.lit(s.param(name)).pow(t);
            (&mean / unbiased("beta1"), &var / unbiased("beta2"))
        }
    };
    vec![m / (v.sqrt() + s.param("epsilon")) + wd * &s.weight, mean, var]
}

fn rms_params(def: OpDef) -> OpDef {
    def.share("gamma1", 0.95, "decay of the mean of squared gradients")
        .param("epsilon", 1e-8, "keeps divisors from zero")
        .param("clip_weights", -1.0, "bound of the weight's magnitude, none if negative")
}

pub const ETA: StepNumber = StepNumber { name: "eta", default: None, integer: false, doc: "factor of the whole step" };

fn rule_of(
    names: UpdateNames,
    doc: &'static str,
    states: &'static [&'static str],
    params: fn(OpDef) -> OpDef,
    step: fn(&UpdateStep<'_>) -> Vec<Ex>,
) -> RuleEntry {
    RuleEntry { names, doc, states, numbers: &[LR, WD], params, moves_weight: true, step }
}

pub fn all() -> Vec<RuleEntry> {
    [gradient_steps(), adaptive_steps(), proximal_steps()].into_iter().flatten().collect()
}

fn gradient_steps() -> Vec<RuleEntry> {
    vec![
        rule_of(
            names!("sgd", "sgd_update", "mp_sgd_update"),
            "A step of gradient descent: w - lr·(clip(g) + wd·w).",
            NO_STATES,
            plain,
            sgd,
        ),
        rule_of(
            names!("sgd_mom", "sgd_mom_update", "mp_sgd_mom_update"),
            "Gradient descent with momentum: m ← momentum·m - lr·(clip(g) + wd·w), w + m.",
            &["mom"],
            momentum,
            sgd_mom,
        ),
        rule_of(
            names!("nag", "nag_mom_update", "mp_nag_mom_update"),
            "Nesterov's accelerated gradient: s = lr·(clip(g) + wd·w), m ← momentum·m - s, w + momentum·m - s.",
            &["mom"],
            momentum,
            nag,
        ),
        rule_of(
            names!("signsgd", "signsgd_update",),
            "Gradient descent by signs: (1 - lr·wd)·w - lr·sign(g).",
            NO_STATES,
            plain,
            signsgd,
        ),
        rule_of(
            names!("signum", "signum_update",),
            "Signs of a momentum: m ← momentum·m - (1 - momentum)·(clip(g) + wd·w), (1 - lr·wd_lh)·w + lr·sign(m).",
            &["mom"],
            |def| momentum(def).param("wd_lh", 0.0, "weight decay apart from the gradient"),
            signum,
        ),
    ]
}

fn adaptive_steps() -> Vec<RuleEntry> {
    vec![
        rule_of(
            names!("adam", "adam_update",),
            "Adam without bias correction, which is part of the learning rate: g' = clip(g + wd·w), m and v the \
             averages of g' and g'², w - lr·m / (√v + epsilon).",
            &["mean", "var"],
            adam_params,
            adam,
        ),
        RuleEntry {
            numbers: &[LR, WD, ETA],
            ..rule_of(
                names!("adamw", , ),
                "Adam with decoupled weight decay: w - eta·(lr·m / (√v + epsilon) + wd·w).",
                &["mean", "var"],
                adam_params,
                adamw,
            )
        },
        rule_of(
            names!("rmsprop", "rmsprop_update",),
            "RMSProp: n the average of the squared gradient, w - lr·g / √(n + epsilon).",
            &["n"],
            rms_params,
            rmsprop,
        ),
        rule_of(
            names!("rmspropalex", "rmspropalex_update",),
            "RMSProp with the mean taken out and momentum (Graves 2013, equations 38 to 45): \
             d ← gamma2·d - lr·g / √(n - ḡ² + epsilon), w + d.",
            &["n", "g", "delta"],
            |def| rms_params(def).param("gamma2", 0.9, "decay of the step").within(0.0, 1.0),
            rmspropalex,
        ),
        rule_of(
            names!("adagrad", "_sparse_adagrad_update",),
            "AdaGrad: h ← h + g², w - lr·(g / √(h + epsilon) + wd·w).",
            &["history"],
            |def| def.param("epsilon", 1e-7, "keeps divisors from zero"),
            adagrad,
        ),
        RuleEntry {
            numbers: &[StepNumber { default: None, ..WD }, STEP],
            moves_weight: false,
            ..rule_of(
                names!("lamb_phase1", "lamb_update_phase1", "mp_lamb_update_phase1"),
                "The direction of a step of LAMB: m / (√v + epsilon) + wd·w.",
                &["mean", "var"],
                lamb_params,
                lamb_direction,
            )
        },
    ]
}

fn proximal_steps() -> Vec<RuleEntry> {
    vec![
        rule_of(
            names!("ftrl", "ftrl_update",),
            "Follow the regularised leader (McMahan 2013): z ← z + g - (√(n + g²) - √n)·w / lr, n ← n + g², and \
             w = (sign(z)·lamda1 - z) / ((beta + √n) / lr + wd) where |z| > lamda1, else 0.",
            &["z", "n"],
            |def| def.param("lamda1", 0.01, "weight of the absolute values").param("beta", 1.0, "added to √n"),
            ftrl,
        ),
        RuleEntry {
            numbers: &[LR, WD, STEP],
            ..rule_of(
                names!("ftml", "ftml_update",),
                "Follow the moving leader (Zheng and Kwok 2017).",
                &["d", "v", "z"],
                |def| betas(def, 0.6, 1e-8).param("clip_grad", -1.0, CLIP),
                ftml,
            )
        },
    ]
}
