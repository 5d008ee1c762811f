//! Learning rates that follow the number of updates.
//!
//! The rate is a function of the number of updates alone, so a training run that is taken up again goes on with
//! the rate it would have had.

use serde::{Deserialize, Serialize};

use crate::error::TrainError;

/// The learning rate by number of updates: warm-up, then decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LrSchedule {
    /// The rate before any decay, and at the end of warm-up.
    pub base_rate: f64,
    /// How the rate falls after warm-up.
    #[serde(default)]
    pub decay: Decay,
    /// How the rate begins; at the base rate if there is none.
    #[serde(default)]
    pub warm_up: Option<WarmUp>,
}

/// How the rate falls. Counts are of updates since the first, warm-up included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Decay {
    /// The base rate throughout.
    #[default]
    None,
    /// Times `factor` after every `step` updates, until `stop` is reached.
    Factor {
        /// Updates between two decays, at least 1.
        step: u64,
        /// Factor of the rate, at most 1.
        factor: f64,
        /// The least rate after the first decay.
        stop: f64,
    },
    /// Times `factor` after each of these numbers of updates, which increase.
    MultiFactor {
        /// Numbers of updates, increasing from at least 1.
        steps: Vec<u64>,
        /// Factor of the rate, at most 1.
        factor: f64,
    },
    /// `final_rate + (base_rate - final_rate)·(1 - p)^power`, `p` rising from 0 after warm-up to 1 at `max_update`.
    Poly {
        /// The update at which `final_rate` is reached, after warm-up.
        max_update: u64,
        /// Exponent of the share that is left; 1 is linear.
        power: f64,
        /// The rate from `max_update` on.
        final_rate: f64,
    },
    /// Half a cosine from the base rate to `final_rate`, which is reached at `max_update`.
    Cosine {
        /// The update at which `final_rate` is reached, after warm-up.
        max_update: u64,
        /// The rate from `max_update` on.
        final_rate: f64,
    },
}

/// The first updates of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WarmUp {
    /// Updates with smaller numbers than this are warm-up.
    pub steps: u64,
    /// The first rate, at most the base rate.
    pub begin_rate: f64,
    /// How the rate gets to the base rate.
    pub mode: WarmUpMode,
}

/// How the rate changes during warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmUpMode {
    /// In equal steps from `begin_rate` to the base rate.
    Linear,
    /// At `begin_rate` throughout.
    Constant,
}

impl LrSchedule {
    /// The same rate for every update.
    pub fn constant(rate: f64) -> LrSchedule {
        LrSchedule { base_rate: rate, decay: Decay::None, warm_up: None }
    }

    /// Times `factor` after every `step` updates.
    pub fn factor(base_rate: f64, step: u64, factor: f64) -> LrSchedule {
        LrSchedule { base_rate, decay: Decay::Factor { step, factor, stop: 1e-8 }, warm_up: None }
    }

    /// Times `factor` after each of these numbers of updates.
    pub fn multi_factor(base_rate: f64, steps: impl Into<Vec<u64>>, factor: f64) -> LrSchedule {
        LrSchedule { base_rate, decay: Decay::MultiFactor { steps: steps.into(), factor }, warm_up: None }
    }

    /// To zero with the given power of what is left.
    pub fn poly(base_rate: f64, max_update: u64, power: f64) -> LrSchedule {
        LrSchedule { base_rate, decay: Decay::Poly { max_update, power, final_rate: 0.0 }, warm_up: None }
    }

    /// To zero in half a cosine.
    pub fn cosine(base_rate: f64, max_update: u64) -> LrSchedule {
        LrSchedule { base_rate, decay: Decay::Cosine { max_update, final_rate: 0.0 }, warm_up: None }
    }

    /// Rises linearly from `begin_rate` during the first `steps` updates.
    pub fn warm_up(self, steps: u64, begin_rate: f64) -> LrSchedule {
        LrSchedule { warm_up: Some(WarmUp { steps, begin_rate, mode: WarmUpMode::Linear }), ..self }
    }

    /// Whether the settings make sense together.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), TrainError> {
        let warm = self.warm_up.map_or(0, |w| w.steps);
        let why = match &self.decay {
            _ if self.warm_up.is_some_and(|w| w.begin_rate > self.base_rate) => {
                "warm-up begins above the base rate".to_owned()
            }
            Decay::Factor { step: 0, .. } => "a step of 0 updates".to_owned(),
            Decay::Factor { factor, .. } | Decay::MultiFactor { factor, .. } if *factor > 1.0 => {
                format!("factor {factor} is above 1")
            }
            Decay::MultiFactor { steps, .. }
                if steps.is_empty() || steps[0] == 0 || steps.windows(2).any(|s| s[0] >= s[1]) =>
            {
                format!("steps {steps:?} do not increase from 1")
            }
            Decay::Poly { max_update, .. } | Decay::Cosine { max_update, .. } if *max_update <= warm => {
                format!("it ends at update {max_update}, warm-up at {warm}")
            }
            _ => return Ok(()),
        };
        Err(TrainError::Schedule { why })
    }

    /// The rate of an update; the first is number 1.
    pub fn rate(&self, update: u64) -> f64 {
        let warm = self.warm_up.map_or(0, |w| w.steps);
        if let Some(warm_up) = self.warm_up.filter(|w| update < w.steps) {
            return match warm_up.mode {
                WarmUpMode::Constant => warm_up.begin_rate,
                WarmUpMode::Linear => {
                    let share = update as f64 / warm_up.steps as f64;
                    warm_up.begin_rate + (self.base_rate - warm_up.begin_rate) * share
                }
            };
        }
        let progress = |end: u64| (update.min(end) - warm.min(end)) as f64 / end.saturating_sub(warm).max(1) as f64;
        let between = |end: f64, share: f64| end + (self.base_rate - end) * share;
        match &self.decay {
            Decay::None => self.base_rate,
            Decay::Factor { step, factor, stop } => {
                let times = update.saturating_sub(1) / (*step).max(1);
                let rate = self.base_rate * power(*factor, times);
                if times > 0 { rate.max(*stop) } else { rate }
            }
            Decay::MultiFactor { steps, factor } => {
                self.base_rate * power(*factor, steps.iter().filter(|step| update > **step).count() as u64)
            }
            Decay::Poly { max_update, power, final_rate } => {
                between(*final_rate, (1.0 - progress(*max_update)).powf(*power))
            }
            Decay::Cosine { max_update, final_rate } => {
                between(*final_rate, (1.0 + (std::f64::consts::PI * progress(*max_update)).cos()) / 2.0)
            }
        }
    }
}

fn power(factor: f64, times: u64) -> f64 {
    factor.powi(i32::try_from(times).unwrap_or(i32::MAX))
}
