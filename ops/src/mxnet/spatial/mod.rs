//! Sampling at computed positions: grids, transformers, regions of interest, correlation.

mod correlation;
mod grid;
mod position;
mod region;

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    [correlation::ops(), grid::ops(), region::ops(), vec![position::psroi_pooling()]].into_iter().flatten().collect()
}
