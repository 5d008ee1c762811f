//! The rules, their constants, and how MXNet's settings are read.

use serde::{Deserialize, Serialize};
use tensorc_ir::params::{ParamValue, Params};

use super::Optimizer;
use crate::train::{Schedule, TrainError};

/// How a gradient moves a parameter. The formulas are those of the `update_…` entries of the registry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Rule {
    Sgd {
        #[serde(default)]
        momentum: f64,
    },
    /// Nesterov's accelerated gradient.
    Nag {
        #[serde(default)]
        momentum: f64,
    },
    Adam {
        #[serde(default = "nine_tenths")]
        beta1: f64,
        #[serde(default = "slow")]
        beta2: f64,
        #[serde(default = "tiny")]
        epsilon: f64,
    },
    /// Adam whose weight decay does not pass through the averages: the step is the learning rate times the
    /// bias-corrected direction plus `wd` times the weight.
    AdamW {
        #[serde(default = "nine_tenths")]
        beta1: f64,
        #[serde(default = "slow")]
        beta2: f64,
        #[serde(default = "tiny")]
        epsilon: f64,
    },
    RmsProp {
        #[serde(default = "nine_tenths")]
        gamma1: f64,
        /// Momentum; only if `centered`.
        #[serde(default = "nine_tenths")]
        gamma2: f64,
        #[serde(default = "tiny")]
        epsilon: f64,
        /// Subtract the squared mean of the gradients.
        #[serde(default)]
        centered: bool,
        #[serde(default)]
        clip_weights: Option<f64>,
    },
    AdaGrad {
        #[serde(default = "stable", alias = "eps")]
        epsilon: f64,
    },
    Ftrl {
        #[serde(default = "hundredth")]
        lamda1: f64,
        #[serde(default = "one")]
        beta: f64,
    },
    Ftml {
        #[serde(default = "six_tenths")]
        beta1: f64,
        #[serde(default = "slow")]
        beta2: f64,
        #[serde(default = "tiny")]
        epsilon: f64,
    },
    Signum {
        #[serde(default = "nine_tenths")]
        momentum: f64,
        /// Weight decay apart from the gradient.
        #[serde(default)]
        wd_lh: f64,
    },
    Lamb {
        #[serde(default = "nine_tenths")]
        beta1: f64,
        #[serde(default = "slow")]
        beta2: f64,
        #[serde(default = "millionth")]
        epsilon: f64,
        #[serde(default)]
        lower_bound: Option<f64>,
        #[serde(default)]
        upper_bound: Option<f64>,
        #[serde(default = "yes")]
        bias_correction: bool,
    },
}

fn nine_tenths() -> f64 {
    0.9
}
fn slow() -> f64 {
    0.999
}
fn six_tenths() -> f64 {
    0.6
}
fn tiny() -> f64 {
    1e-8
}
fn stable() -> f64 {
    1e-7
}
fn millionth() -> f64 {
    1e-6
}
fn hundredth() -> f64 {
    0.01
}
fn one() -> f64 {
    1.0
}
fn yes() -> bool {
    true
}

impl Rule {
    pub(super) fn default_rate(&self) -> f64 {
        match self {
            Rule::Adam { .. } | Rule::AdamW { .. } | Rule::RmsProp { .. } | Rule::Lamb { .. } => 0.001,
            Rule::Ftrl { .. } => 0.1,
            _ => 0.01,
        }
    }

    /// The entries of the registry that apply the rule: to weights as they are, and to 16-bit weights with a
    /// copy in f32. Without momentum there is no state for it.
    pub(super) fn entries(&self) -> (&'static str, &'static str) {
        match self {
            Rule::Sgd { momentum } | Rule::Nag { momentum } if *momentum == 0.0 => ("update_sgd", "update_mp_sgd"),
            Rule::Sgd { .. } => ("update_sgd_mom", "update_mp_sgd_mom"),
            Rule::Nag { .. } => ("update_nag", "update_mp_nag"),
            Rule::Adam { .. } => ("update_adam", "update_mp_adam"),
            Rule::AdamW { .. } => ("update_adamw", "update_mp_adamw"),
            Rule::RmsProp { centered: false, .. } => ("update_rmsprop", "update_mp_rmsprop"),
            Rule::RmsProp { .. } => ("update_rmspropalex", "update_mp_rmspropalex"),
            Rule::AdaGrad { .. } => ("update_adagrad", "update_mp_adagrad"),
            Rule::Ftrl { .. } => ("update_ftrl", "update_mp_ftrl"),
            Rule::Ftml { .. } => ("update_ftml", "update_mp_ftml"),
            Rule::Signum { momentum, .. } if *momentum == 0.0 => ("update_signsgd", "update_mp_signsgd"),
            Rule::Signum { .. } => ("update_signum", "update_mp_signum"),
            Rule::Lamb { .. } => ("update_lamb", "update_mp_lamb"),
        }
    }

    /// The constants of the entry.
    pub(super) fn params(&self, rescale: f64, clip: Option<f64>) -> Params {
        let mut params = Params::new();
        let mut set = |name: &'static str, value: f64| params.set(name, ParamValue::Float(value));
        set("rescale_grad", rescale);
        if let Some(bound) = clip {
            set(if matches!(self, Rule::Ftml { .. }) { "clip_grad" } else { "clip_gradient" }, bound);
        }
        match self {
            Rule::Sgd { momentum } | Rule::Nag { momentum } if *momentum == 0.0 => {}
            Rule::Signum { momentum, .. } if *momentum == 0.0 => {}
            Rule::Sgd { momentum } | Rule::Nag { momentum } => set("momentum", *momentum),
            Rule::Adam { beta1, beta2, epsilon }
            | Rule::AdamW { beta1, beta2, epsilon }
            | Rule::Ftml { beta1, beta2, epsilon } => {
                [("beta1", beta1), ("beta2", beta2), ("epsilon", epsilon)].iter().for_each(|(name, x)| set(name, **x))
            }
            Rule::RmsProp { gamma1, gamma2, epsilon, centered, clip_weights } => {
                [("gamma1", gamma1), ("epsilon", epsilon)].iter().for_each(|(name, x)| set(name, **x));
                clip_weights.iter().for_each(|x| set("clip_weights", *x));
                if *centered {
                    set("gamma2", *gamma2);
                }
            }
            Rule::AdaGrad { epsilon } => set("epsilon", *epsilon),
            Rule::Ftrl { lamda1, beta } => {
                [("lamda1", lamda1), ("beta", beta)].iter().for_each(|(name, x)| set(name, **x))
            }
            Rule::Signum { momentum, wd_lh } => {
                [("momentum", momentum), ("wd_lh", wd_lh)].iter().for_each(|(name, x)| set(name, **x))
            }
            Rule::Lamb { beta1, beta2, epsilon, lower_bound, upper_bound, bias_correction } => {
                [("beta1", beta1), ("beta2", beta2), ("epsilon", epsilon)].iter().for_each(|(name, x)| set(name, **x));
                lower_bound.iter().for_each(|x| set("lower_bound", *x));
                upper_bound.iter().for_each(|x| set("upper_bound", *x));
                params.set("bias_correction", ParamValue::Bool(*bias_correction));
            }
        }
        params
    }

    /// The numbers of an update, by the name of their operand: from the learning rate, the weight decay and
    /// the number of the update. They are computed in f64.
    pub(super) fn number(&self, name: &str, rate: f64, decay: f64, update: u64) -> Option<f64> {
        let t = update.min(i32::MAX as u64) as i32;
        // The correction of averages that begin at zero.
        let corrected = |beta1: f64, beta2: f64| (1.0 - beta2.powi(t)).sqrt() / (1.0 - beta1.powi(t));
        match (name, self) {
            ("lr", Rule::Adam { beta1, beta2, .. }) => Some(rate * corrected(*beta1, *beta2)),
            ("lr", Rule::AdamW { beta1, beta2, .. }) => Some(corrected(*beta1, *beta2)),
            ("lr", _) | ("eta", Rule::AdamW { .. }) => Some(rate),
            ("wd", _) => Some(decay),
            ("t", _) => Some(update as f64),
            _ => None,
        }
    }
}

/// Settings that every rule has.
#[derive(Deserialize)]
struct Common {
    learning_rate: Option<f64>,
    #[serde(default)]
    wd: f64,
    rescale_grad: Option<f64>,
    clip_gradient: Option<f64>,
    #[serde(default)]
    multi_precision: bool,
    #[serde(default)]
    begin_num_update: u64,
}

const COMMON: [&str; 6] =
    ["learning_rate", "wd", "rescale_grad", "clip_gradient", "multi_precision", "begin_num_update"];

/// It says how MXNet treats sparse gradients.
const WITHOUT_EFFECT: &str = "lazy_update";

pub(super) fn from_settings(name: &str, settings: &serde_json::Value) -> Result<Optimizer, TrainError> {
    let wrong = |why: String| TrainError::Optimizer { why: format!("`{name}`: {why}") };
    let map = match settings {
        serde_json::Value::Object(map) => map.clone(),
        serde_json::Value::Null => serde_json::Map::new(),
        other => return Err(wrong(format!("settings are `{other}`, not names and values"))),
    };
    let of = |common: bool| {
        let chosen = map.iter().filter(|(k, _)| COMMON.contains(&k.as_str()) == common && *k != WITHOUT_EFFECT);
        serde_json::Value::Object(chosen.map(|(k, v)| (k.clone(), v.clone())).collect())
    };
    let mut tagged = serde_json::Map::new();
    tagged.insert(name.to_ascii_lowercase(), of(false));
    let rule: Rule = serde_json::from_value(serde_json::Value::Object(tagged)).map_err(|e| wrong(e.to_string()))?;
    let common: Common = serde_json::from_value(of(true)).map_err(|e| wrong(e.to_string()))?;
    let usual = Optimizer::new(rule);
    Ok(Optimizer {
        schedule: common.learning_rate.map_or(usual.schedule.clone(), Schedule::constant),
        weight_decay: common.wd,
        rescale_grad: common.rescale_grad,
        clip_gradient: common.clip_gradient,
        multi_precision: common.multi_precision,
        begin_update: common.begin_num_update,
        ..usual
    })
}
