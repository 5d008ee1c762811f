//! Layers: activation, convolution and its transpose, embedding, dropout.

mod activation;
mod conv;
mod dropout;
mod embedding;

use tensorc_ir::op::OpDef;

pub use conv::{LAYOUTS, check_layout, kernel_of};

pub fn ops() -> Vec<OpDef> {
    let others = vec![dropout::dropout(), embedding::embedding()];
    [activation::ops(), conv::ops(), others].into_iter().flatten().collect()
}
