//! Reading and writing at positions that are data.

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    vec![]
}
