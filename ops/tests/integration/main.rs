//! Definitions of operators against values known otherwise.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod blocks;
mod conv;
mod distance;
mod math;
mod mxnet;
mod random;
mod registry;
mod stored;
mod structural;
mod transforms;
mod updates;
mod wide;
