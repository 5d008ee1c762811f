//! Sampling at computed positions: grids, transformers, regions of interest, correlation.

mod correlation;
mod grid;
mod position;
mod region;

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    let (first, last) = (vec![correlation::correlation()], vec![position::psroi_pooling()]);
    [first, grid::ops(), region::ops(), last].into_iter().flatten().collect()
}
