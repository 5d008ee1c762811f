//! Operators that rearrange, cut, join, repeat and make arrays, with MXNet's parameters.

mod fill;
mod join;
mod reshape;
mod slice;
mod spread;

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    let families = [fill::ops(), join::ops(), reshape::ops(), slice::ops(), spread::ops()];
    families.into_iter().flatten().collect()
}
