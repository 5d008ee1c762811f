//! Every operator of tensorc, one entry each, and the math library.
//!
//! Adding an operator means adding one entry to one family file here; inference, lowering, fusion,
//! code generation, import and documentation follow from the entry.

pub mod compose;
pub mod def;
pub mod math;

mod activation;
mod arith;
mod cast;
mod compare;
mod logical;
mod loss;
mod norm;
mod random;
mod reduce;

use tensorc_ir::op::{OpDef, Registry};

/// Every entry, family by family.
pub fn all() -> Vec<OpDef> {
    [activation::ops(), arith::ops(), cast::ops(), compare::ops(), logical::ops(), loss::ops(), norm::ops(), random::ops(), reduce::ops()]
        .into_iter()
        .flatten()
        .collect()
}

/// A registry of every operator, with the math library.
///
/// # Errors
/// If two entries share a name or a function of the math library is ill-typed; both would be
/// mistakes in this crate.
pub fn registry() -> Result<Registry, String> {
    Registry::new(all(), Box::new(math::Library::new()?))
}
