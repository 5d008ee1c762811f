//! Element-wise functions, with a tensor or a number on the other side, and casts.

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    vec![]
}
