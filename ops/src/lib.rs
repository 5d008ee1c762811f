//! Every operator of tensorc, one entry each, and the math library.
//!
//! Adding an operator means adding one entry to one family file here; inference, lowering, fusion,
//! code generation, import and documentation follow from the entry.

pub mod def;

mod activation;
mod attention;
mod contract;
mod conv;
mod einsum;
mod fill;
mod index;
mod nest;
mod pool;
mod resize;
mod rules;
mod shape;
mod slicing;
mod sort;
mod views;
mod window;

use tensorc_ir::op::OpDef;

/// Every entry, family by family.
pub fn all() -> Vec<OpDef> {
    [
        activation::ops(),
        attention::ops(),
        einsum::ops(),
        contract::ops(),
        pool::ops(),
        resize::ops(),
        fill::ops(),
        index::ops(),
        sort::ops(),
        conv::ops(),
        shape::ops(),
        slicing::ops(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
