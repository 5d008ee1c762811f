//! What runs, where and when: the decisions between a fused graph and its kernels.
//!
//! [`target`] says what kernels are made for. [`recognise`] finds the contractions and the attention that library kernels compute, [`cost`] says what kernels cost,
//! [`order`] brings steps into an order that needs little memory, and [`memory`] gives buffers their places.
//!
//! ```
//! use tensorc_schedule::Target;
//! use tensorc_schedule::cost::CostModel;
//!
//! let costs = Target::default().machine();
//! assert_eq!(CostModel::from_text(&costs.to_text())?, costs);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

pub mod access;
pub mod cost;
pub mod flash;
pub mod kernel;
pub mod layout;
pub mod lowered;
mod memory;
mod open_numbers;
pub mod plan;
pub mod recipe;
pub mod recognise;
pub mod target;
mod tasks;
pub mod verify;

pub use memory::{PlacedRange, PlacementOrder, PlacementRoom, plan_memory};
pub use open_numbers::OpenNumbers;
pub use target::Target;
