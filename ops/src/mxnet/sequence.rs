//! Operators on sequences of different lengths.

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    vec![]
}
