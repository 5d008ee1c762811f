//! Operators that rearrange, cut, join, repeat and make arrays, with MXNet's parameters.

mod join;
mod reshape;

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    [join::ops(), reshape::ops()].into_iter().flatten().collect()
}
