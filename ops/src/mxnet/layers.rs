//! Layers with parameters: fully connected, convolution, embedding, activation, dropout.

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    vec![]
}
