//! Every operator of tensorc, one entry each, and the math library.
//!
//! Adding an operator means adding one entry to one family file here; inference, lowering, fusion,
//! code generation, import and documentation follow from the entry.

pub mod def;

mod activation;

use tensorc_ir::op::OpDef;

/// Every entry, family by family.
pub fn all() -> Vec<OpDef> {
    [activation::ops()].into_iter().flatten().collect()
}
