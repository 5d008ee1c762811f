//! Sampling at computed positions: grids, transformers, regions of interest, correlation.

mod correlation;
mod grid;
mod region;

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    [correlation::ops(), grid::ops(), region::ops()].into_iter().flatten().collect()
}
