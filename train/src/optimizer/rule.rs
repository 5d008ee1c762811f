//! The rules, their constants, and how MXNet's settings are read.

use serde::{Deserialize, Serialize};
use tensorc_ir::params::Params;

use super::Optimizer;
use crate::error::TrainError;
use crate::schedule::LrSchedule;

/// How a gradient moves a parameter. The formulas are those of the `update_…` entries of the registry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum OptimizerRule {
    /// Stochastic gradient descent.
    Sgd {
        /// Share of the last step that is repeated; 0, the default, keeps no state.
        #[serde(default)]
        momentum: f64,
    },
    /// Nesterov's accelerated gradient.
    Nag {
        /// Share of the last step that is repeated; 0, the default, is plain gradient descent.
        #[serde(default)]
        momentum: f64,
    },
    /// Adam, with bias correction.
    Adam {
        /// Decay of the mean of gradients; 0.9 by default.
        #[serde(default = "default_momentum")]
        beta1: f64,
        /// Decay of the mean of squared gradients; 0.999 by default.
        #[serde(default = "default_square_decay")]
        beta2: f64,
        /// Added to the root of the mean square; 1e-8 by default.
        #[serde(default = "default_epsilon")]
        epsilon: f64,
    },
    /// Adam whose weight decay does not pass through the averages: the step is the learning rate times the
    /// bias-corrected direction plus `wd` times the weight.
    AdamW {
        /// Decay of the mean of gradients; 0.9 by default.
        #[serde(default = "default_momentum")]
        beta1: f64,
        /// Decay of the mean of squared gradients; 0.999 by default.
        #[serde(default = "default_square_decay")]
        beta2: f64,
        /// Added to the root of the mean square; 1e-8 by default.
        #[serde(default = "default_epsilon")]
        epsilon: f64,
    },
    /// RMSProp: gradients divided by the root of their mean square.
    RmsProp {
        /// Decay of the mean of squared gradients and, if `centered`, of gradients; 0.9 by default.
        #[serde(default = "default_momentum")]
        gamma1: f64,
        /// Momentum; only if `centered`.
        #[serde(default = "default_momentum")]
        gamma2: f64,
        /// Added to the mean square before its root; 1e-8 by default.
        #[serde(default = "default_epsilon")]
        epsilon: f64,
        /// Subtract the squared mean of the gradients.
        #[serde(default)]
        centered: bool,
        /// Bound of the magnitude of new weights; none by default.
        #[serde(default)]
        clip_weights: Option<f64>,
    },
    /// AdaGrad: gradients divided by the root of the sum of their squares.
    AdaGrad {
        /// Added to the sum of squares before its root; 1e-7 by default.
        #[serde(default = "default_adagrad_epsilon", alias = "eps")]
        epsilon: f64,
    },
    /// Follow the regularised leader (McMahan 2013).
    Ftrl {
        /// Factor of the L1 regularisation; 0.01 by default.
        #[serde(default = "default_l1")]
        lamda1: f64,
        /// Added to the root of the sum of squares; 1 by default.
        #[serde(default = "default_ftrl_beta")]
        beta: f64,
    },
    /// Follow the moving leader (Zheng and Kwok 2017).
    Ftml {
        /// Decay of the mean of gradients; 0.6 by default.
        #[serde(default = "default_ftml_decay")]
        beta1: f64,
        /// Decay of the mean of squared gradients; 0.999 by default.
        #[serde(default = "default_square_decay")]
        beta2: f64,
        /// Added to the root of the mean square; 1e-8 by default.
        #[serde(default = "default_epsilon")]
        epsilon: f64,
    },
    /// Steps by the signs of a momentum; without momentum, by the signs of the gradient.
    Signum {
        /// Decay of the mean of gradients; 0.9 by default.
        #[serde(default = "default_momentum")]
        momentum: f64,
        /// Weight decay apart from the gradient.
        #[serde(default)]
        wd_lh: f64,
    },
    /// Adam whose step is scaled by the norms of weight and direction, layer by layer.
    Lamb {
        /// Decay of the mean of gradients; 0.9 by default.
        #[serde(default = "default_momentum")]
        beta1: f64,
        /// Decay of the mean of squared gradients; 0.999 by default.
        #[serde(default = "default_square_decay")]
        beta2: f64,
        /// Added to the root of the mean square; 1e-6 by default.
        #[serde(default = "default_lamb_epsilon")]
        epsilon: f64,
        /// Least norm of the weight that counts; none by default.
        #[serde(default)]
        lower_bound: Option<f64>,
        /// Greatest norm of the weight that counts; none by default.
        #[serde(default)]
        upper_bound: Option<f64>,
        /// Whether means are divided by `1 - βᵗ`; true by default.
        #[serde(default = "default_bias_correction")]
        bias_correction: bool,
    },
}

fn default_momentum() -> f64 {
    0.9
}
fn default_square_decay() -> f64 {
    0.999
}
fn default_ftml_decay() -> f64 {
    0.6
}
fn default_epsilon() -> f64 {
    1e-8
}
fn default_adagrad_epsilon() -> f64 {
    1e-7
}
fn default_lamb_epsilon() -> f64 {
    1e-6
}
fn default_l1() -> f64 {
    0.01
}
fn default_ftrl_beta() -> f64 {
    1.0
}
fn default_bias_correction() -> bool {
    true
}

impl OptimizerRule {
    pub(super) fn default_rate(&self) -> f64 {
        match self {
            OptimizerRule::Adam { .. }
            | OptimizerRule::AdamW { .. }
            | OptimizerRule::RmsProp { .. }
            | OptimizerRule::Lamb { .. } => 0.001,
            OptimizerRule::Ftrl { .. } => 0.1,
            _ => 0.01,
        }
    }

    /// The entries of the registry that apply the rule: to weights as they are, and to 16-bit weights with a
    /// copy in f32. Without momentum there is no state for it.
    pub(super) fn entries(&self) -> (&'static str, &'static str) {
        match self {
            OptimizerRule::Sgd { momentum } | OptimizerRule::Nag { momentum } if *momentum == 0.0 => {
                ("update_sgd", "update_mp_sgd")
            }
            OptimizerRule::Sgd { .. } => ("update_sgd_mom", "update_mp_sgd_mom"),
            OptimizerRule::Nag { .. } => ("update_nag", "update_mp_nag"),
            OptimizerRule::Adam { .. } => ("update_adam", "update_mp_adam"),
            OptimizerRule::AdamW { .. } => ("update_adamw", "update_mp_adamw"),
            OptimizerRule::RmsProp { centered: false, .. } => ("update_rmsprop", "update_mp_rmsprop"),
            OptimizerRule::RmsProp { .. } => ("update_rmspropalex", "update_mp_rmspropalex"),
            OptimizerRule::AdaGrad { .. } => ("update_adagrad", "update_mp_adagrad"),
            OptimizerRule::Ftrl { .. } => ("update_ftrl", "update_mp_ftrl"),
            OptimizerRule::Ftml { .. } => ("update_ftml", "update_mp_ftml"),
            OptimizerRule::Signum { momentum, .. } if *momentum == 0.0 => ("update_signsgd", "update_mp_signsgd"),
            OptimizerRule::Signum { .. } => ("update_signum", "update_mp_signum"),
            OptimizerRule::Lamb { .. } => ("update_lamb", "update_mp_lamb"),
        }
    }

    /// The constants of the entry.
    pub(super) fn params(&self, rescale: f64, clip: Option<f64>) -> Params {
        let given = |params: Params, name, value: Option<f64>| match value {
            Some(value) => params.with(name, value),
            None => params,
        };
        let clipped = if matches!(self, OptimizerRule::Ftml { .. }) { "clip_grad" } else { "clip_gradient" };
        let params = given(Params::new().with("rescale_grad", rescale), clipped, clip);
        match *self {
            OptimizerRule::Sgd { momentum }
            | OptimizerRule::Nag { momentum }
            | OptimizerRule::Signum { momentum, .. }
                if momentum == 0.0 =>
            {
                params
            }
            OptimizerRule::Sgd { momentum } | OptimizerRule::Nag { momentum } => params.with("momentum", momentum),
            OptimizerRule::Adam { beta1, beta2, epsilon }
            | OptimizerRule::AdamW { beta1, beta2, epsilon }
            | OptimizerRule::Ftml { beta1, beta2, epsilon } => {
                params.with("beta1", beta1).with("beta2", beta2).with("epsilon", epsilon)
            }
            OptimizerRule::RmsProp { gamma1, gamma2, epsilon, centered, clip_weights } => {
                let params = params.with("gamma1", gamma1).with("epsilon", epsilon);
                given(given(params, "clip_weights", clip_weights), "gamma2", centered.then_some(gamma2))
            }
            OptimizerRule::AdaGrad { epsilon } => params.with("epsilon", epsilon),
            OptimizerRule::Ftrl { lamda1, beta } => params.with("lamda1", lamda1).with("beta", beta),
            OptimizerRule::Signum { momentum, wd_lh } => params.with("momentum", momentum).with("wd_lh", wd_lh),
            OptimizerRule::Lamb { beta1, beta2, epsilon, lower_bound, upper_bound, bias_correction } => {
                let params = params.with("beta1", beta1).with("beta2", beta2).with("epsilon", epsilon);
                let params = params.with("bias_correction", bias_correction);
                given(given(params, "lower_bound", lower_bound), "upper_bound", upper_bound)
            }
        }
    }

    /// The numbers of an update, by the name of their operand: from the learning rate, the weight decay and
    /// the number of the update. They are computed in f64.
    pub(super) fn number(&self, name: &str, rate: f64, decay: f64, update: u64) -> Option<f64> {
        let t = update.min(i32::MAX as u64) as i32;
        // The correction of averages that begin at zero.
        let corrected = |beta1: f64, beta2: f64| (1.0 - beta2.powi(t)).sqrt() / (1.0 - beta1.powi(t));
        match (name, self) {
            ("lr", OptimizerRule::Adam { beta1, beta2, .. }) => Some(rate * corrected(*beta1, *beta2)),
            ("lr", OptimizerRule::AdamW { beta1, beta2, .. }) => Some(corrected(*beta1, *beta2)),
            ("lr", _) | ("eta", OptimizerRule::AdamW { .. }) => Some(rate),
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
    let rule: OptimizerRule =
        serde_json::from_value(serde_json::Value::Object(tagged)).map_err(|e| wrong(e.to_string()))?;
    let common: Common = serde_json::from_value(of(true)).map_err(|e| wrong(e.to_string()))?;
    let usual = Optimizer::new(rule);
    Ok(Optimizer {
        schedule: common.learning_rate.map_or(usual.schedule.clone(), LrSchedule::constant),
        weight_decay: common.wd,
        rescale_grad: common.rescale_grad,
        clip_gradient: common.clip_gradient,
        multi_precision: common.multi_precision,
        begin_update: common.begin_num_update,
        ..usual
    })
}
