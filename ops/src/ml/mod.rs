//! Operators of classical machine learning, domain `ai.onnx.ml`: trees, linear models, support vectors, and what prepares their
//! features.

mod score;
mod tree;

use crate::prelude::*;
use tensorc_ir::op::OnnxName;

/// The domain of all of them.
const DOMAIN: &str = OnnxName::ML;

pub fn ops() -> Vec<OpDef> {
    tree::ops()
}
