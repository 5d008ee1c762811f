//! Layers: activation, convolution and its transpose, embedding, dropout.

mod activation;
mod conv;
mod dropout;
mod embedding;

use tensorc_ir::op::OpDef;

pub use conv::{LAYOUTS, check_layout, kernel_of};

pub fn ops() -> Vec<OpDef> {
    [activation::ops(), conv::ops(), dropout::ops(), embedding::ops()].into_iter().flatten().collect()
}
