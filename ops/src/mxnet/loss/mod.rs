//! Losses: results are predictions, and gradients those of a loss between them and the labels.

mod made;
mod output;
mod softmax;

use tensorc_ir::op::OpDef;

/// What the gradient of a loss may be divided by.
const NORMALIZATIONS: &[&str] = &["batch", "null", "valid"];

pub fn ops() -> Vec<OpDef> {
    [softmax::ops(), output::ops(), made::ops()].into_iter().flatten().collect()
}
