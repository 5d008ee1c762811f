//! Operators and names that are used without looking them up.

use tensorc_ir::op::{OpRef, Registry};
use tensorc_runtime::engine::OpName;

use crate::error::Error;

/// Operators and names that are used without looking them up.
pub(super) struct Common {
    pub add: OpRef,
    pub sub: OpRef,
    pub mul: OpRef,
    pub div: OpRef,
    pub rem: OpRef,
    pub neg: OpRef,
    pub copy: OpName,
    pub fill: OpName,
    pub read: OpName,
    pub assign: OpName,
    pub slice: OpName,
}

impl Common {
    pub fn new(registry: &Registry) -> Result<Common, Error> {
        let op =
            |name: &str| registry.get(name).cloned().ok_or_else(|| Error::UnknownOperator { name: name.to_owned() });
        Ok(Common {
            add: op("add")?,
            sub: op("sub")?,
            mul: op("mul")?,
            div: op("div")?,
            rem: op("mod")?,
            neg: op("neg")?,
            copy: OpName::from("copy"),
            fill: OpName::from("fill"),
            read: OpName::from("read"),
            assign: OpName::from("assign"),
            slice: OpName::from("slice"),
        })
    }
}
