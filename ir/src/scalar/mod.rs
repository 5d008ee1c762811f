//! Scalar expressions: the one description of element-wise mathematics that operator bodies,
//! fusion, gradients and code generation share.

mod build;
mod diff;
mod dual;
mod eval;
mod expr;
mod narrow;
mod op;
mod value;

pub use build::{Ex, ScalarBuilder};
pub use dual::Dual;
pub use expr::{MathLibrary, ScalarFn, ScalarId, ScalarNode, Scaling};
pub use narrow::{NarrowRounding, ScaleRounding};
pub use op::{CmpOp, MathFn, ScalarOp};
pub use value::Scalar;
