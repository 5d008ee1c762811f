//! What stands around a network for training it: initial values, learning rates, optimizers, metrics.
//!
//! Names, defaults and formulas are MXNet's, so that a training script can be carried over and gives
//! the same losses. Configurations ([`Initializer`], [`LrSchedule`], [`Optimizer`]) are plain values that
//! serde writes and reads.
//!
//! ```
//! use tensorc_train::{LrSchedule, Optimizer};
//!
//! let rates = LrSchedule::cosine(0.1, 100);
//! assert!(rates.rate(80) < rates.rate(20));
//! let _optimizer = Optimizer::sgd(0.1, 0.9).schedule(rates).weight_decay(1e-4);
//! ```

#![warn(missing_docs)]

mod error;
mod init;
pub mod kvstore;
pub mod metric;
mod module;
mod optimizer;
mod schedule;

pub use error::{Error, TrainError};
pub use init::{FanFactor, FusedRnn, InitValue, Initializer, RandomKind, RnnMode, Variable};
pub use metric::Metric;
pub use module::{Buckets, EpochReport, Fit, Module, ModuleBuilder, Network, Params, Sums, load_checkpoint};
pub use optimizer::{Clock, FusedUpdate, Optimizer, OptimizerRule, State, Update, Updater, scalar_at};
pub use schedule::{Decay, LrSchedule, WarmUp, WarmUpMode};
