//! Optimizers: how gradients move parameters.
//!
//! An [`Optimizer`] is a plain value that says which [`OptimizerRule`] and which numbers. It is applied to arrays by an
//! [`Updater`], or appended to a training graph by [`Optimizer::emit`]; both use the same entries of the
//! registry (`update_…`), whose learning rate, weight decay and step are operands, so that no schedule
//! compiles anything again.

mod apply;
mod fused;
mod rule;
mod updater;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use apply::{State, Update, scalar_at};
pub use fused::FusedUpdate;
pub use rule::OptimizerRule;
pub use updater::Updater;

use crate::error::TrainError;
use crate::schedule::LrSchedule;

/// A rule with its learning rate and what else concerns every parameter.
///
/// Weight decay applies to parameters whose names end in `_weight` or `_gamma`, as in MXNet, unless
/// [`Optimizer::wd_mult`] says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct Optimizer {
    /// How a gradient moves a parameter.
    pub rule: OptimizerRule,
    /// Learning rate by number of updates.
    pub schedule: LrSchedule,
    /// Factor of the weight in the gradient, before the parameter's multiplier.
    pub weight_decay: f64,
    /// Factor of gradients; 1 if not given, and 1 / batch size in a module.
    pub rescale_grad: Option<f64>,
    /// Gradients are bounded by ± this after rescaling.
    pub clip_gradient: Option<f64>,
    /// Keep f32 copies of 16-bit parameters, and compute on those.
    pub multi_precision: bool,
    /// Updates that were made before, for schedules and bias corrections.
    pub begin_update: u64,
    /// Factors of the learning rate by parameter, 1 if not named.
    pub lr_mult: BTreeMap<String, f64>,
    /// Factors of the weight decay by parameter.
    pub wd_mult: BTreeMap<String, f64>,
}

/// How many updates were made. Every parameter has its own count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// By parameter, the first update being number 1.
    pub counts: BTreeMap<String, u64>,
    /// The largest count there was, which schedules follow.
    pub latest: u64,
}

impl Optimizer {
    /// A rule with MXNet's defaults.
    pub fn new(rule: OptimizerRule) -> Optimizer {
        Optimizer {
            schedule: LrSchedule::constant(rule.default_rate()),
            rule,
            weight_decay: 0.0,
            rescale_grad: None,
            clip_gradient: None,
            multi_precision: false,
            begin_update: 0,
            lr_mult: BTreeMap::new(),
            wd_mult: BTreeMap::new(),
        }
    }

    /// Stochastic gradient descent.
    pub fn sgd(rate: f64, momentum: f64) -> Optimizer {
        Optimizer::new(OptimizerRule::Sgd { momentum }).rate(rate)
    }

    /// Adam with its usual decays.
    pub fn adam(rate: f64) -> Optimizer {
        Optimizer::new(OptimizerRule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }).rate(rate)
    }

    /// By MXNet's name and settings, for example `"sgd"` with `{"learning_rate": 0.1, "momentum": 0.9}`.
    ///
    /// # Errors
    /// There is no such optimizer, or a setting of it is unknown or wrong.
    pub fn from_settings(name: &str, settings: &serde_json::Value) -> Result<Optimizer, TrainError> {
        rule::from_settings(name, settings)
    }

    /// Sets a constant learning rate in place of the schedule.
    pub fn rate(self, rate: f64) -> Optimizer {
        Optimizer { schedule: LrSchedule::constant(rate), ..self }
    }

    /// Sets the learning rate schedule.
    pub fn schedule(self, schedule: LrSchedule) -> Optimizer {
        Optimizer { schedule, ..self }
    }

    /// Sets the weight decay.
    pub fn weight_decay(self, wd: f64) -> Optimizer {
        Optimizer { weight_decay: wd, ..self }
    }

    /// Sets the factor of gradients.
    pub fn rescale_grad(self, factor: f64) -> Optimizer {
        Optimizer { rescale_grad: Some(factor), ..self }
    }

    /// Bounds each element of rescaled gradients by ± `bound`.
    pub fn clip_gradient(self, bound: f64) -> Optimizer {
        Optimizer { clip_gradient: Some(bound), ..self }
    }

    /// Keeps f32 copies of 16-bit parameters and computes on those.
    pub fn multi_precision(self) -> Optimizer {
        Optimizer { multi_precision: true, ..self }
    }

    /// Takes the factors that a symbol's variables state in `__lr_mult__` and `__wd_mult__`. Factors that are
    /// set already stay.
    ///
    /// # Errors
    /// An attribute is no number.
    pub fn read_multipliers<'a>(
        &mut self,
        attributes: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
    ) -> Result<(), TrainError> {
        for (parameter, key, text) in attributes {
            let factors = match key {
                "__lr_mult__" | "lr_mult" => &mut self.lr_mult,
                "__wd_mult__" | "wd_mult" => &mut self.wd_mult,
                _ => continue,
            };
            let factor = text.trim().parse().map_err(|_| TrainError::Update {
                parameter: parameter.to_owned(),
                why: format!("its attribute `{key}` is `{text}`, no number"),
            })?;
            factors.entry(parameter.to_owned()).or_insert(factor);
        }
        Ok(())
    }

    /// The learning rate of a parameter at the updates counted.
    pub fn rate_of(&self, parameter: &str, clock: &Clock) -> f64 {
        self.schedule.rate(clock.latest) * self.lr_mult.get(parameter).copied().unwrap_or(1.0)
    }

    /// The weight decay of a parameter.
    pub(super) fn decay_of(&self, parameter: &str) -> f64 {
        let usual = if parameter.ends_with("_weight") || parameter.ends_with("_gamma") { 1.0 } else { 0.0 };
        self.weight_decay * self.wd_mult.get(parameter).copied().unwrap_or(usual)
    }
}

impl Clock {
    /// Counts an update of a parameter, and returns its number.
    pub fn tick(&mut self, parameter: &str, begin: u64) -> u64 {
        let count = match self.counts.get_mut(parameter) {
            Some(count) => count,
            None => self.counts.entry(parameter.to_owned()).or_insert(begin),
        };
        *count += 1;
        self.latest = self.latest.max(*count);
        *count
    }
}
