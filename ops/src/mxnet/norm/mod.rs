//! Normalisations with MXNet's parameters and results, and softmax in its forms.

mod batch;
mod layer;
mod local;
mod softmax;

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    [batch::ops(), layer::ops(), local::ops(), softmax::ops()].into_iter().flatten().collect()
}
