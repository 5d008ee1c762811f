//! What every use of e-graphs shares: choosing the cheapest terms an e-graph holds.
//!
//! The rules and languages belong to the passes that use them. egg's own extractor charges the cost of a tree,
//! in which a shared term is paid at every use; graphs need [`extract`], in which it is paid once.

mod extract;
mod improve;
mod problem;

#[cfg(test)]
mod tests;

pub use extract::{Extraction, extract};
