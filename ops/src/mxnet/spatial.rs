//! Sampling at computed positions: grids, transformers, correlation.

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    vec![]
}
