//! Resampling of images.

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    vec![]
}
