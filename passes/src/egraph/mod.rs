//! What every use of e-graphs shares: restoring its invariants, and choosing the cheapest terms it holds.
//!
//! The rules and languages belong to the passes that use them. egg's own extractor charges the cost of a tree,
//! in which a shared term is paid at every use; graphs need [`extract`], in which it is paid once.

mod extract;
mod improve;
mod problem;

#[cfg(test)]
mod tests;

use egg::{Analysis, EGraph, Language};
use quanta::{Clock, with_clock};

pub use extract::{Extraction, extract};

/// Restores the invariants of an e-graph ([`EGraph::rebuild`]).
///
/// egg measures how long that takes. The first read of its clock in a process calibrates the clock, which takes 10 to 200 ms; a clock
/// that stands still needs no calibration.
pub fn rebuild<L: Language, N: Analysis<L>>(egraph: &mut EGraph<L, N>) {
    let (still, _) = Clock::mock();
    with_clock(&still, || egraph.rebuild());
}
