//! Pooling by windows, to a given size, and resampling of images.

mod patches;
mod resample;
mod window;

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    [window::ops(), patches::ops(), resample::ops()].into_iter().flatten().collect()
}
