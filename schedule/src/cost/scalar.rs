//! What scalar operations cost: half cycles of a vector core for one element, in 128-bit vectors.
//!
//! Additions and products take a slot of a port; divisions and roots keep their unit busy for many cycles; library
//! functions cost what the operations of their bodies do (the table in `docs/numerics.md`).

use tensorc_ir::DType;
use tensorc_ir::scalar::{MathFn, ScalarFn, ScalarNode, ScalarOp};

/// The cost of one operation whose first operand (`select`: result) has the type.
pub fn of(op: ScalarOp, dtype: DType) -> u64 {
    let wide = if dtype.size() == 8 { 2 } else { 1 };
    let int = !dtype.is_float();
    wide * match op {
        ScalarOp::Mul if int => 6,
        ScalarOp::Div | ScalarOp::Rem if int => 80,
        ScalarOp::Rem => 200,
        ScalarOp::Div | ScalarOp::Sqrt => 20,
        ScalarOp::Add | ScalarOp::Sub | ScalarOp::Mul if !int => 4,
        // Between an addition and two: it saves a rounding and a slot, and never splits a shared product.
        ScalarOp::Fma => 5,
        ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Trunc | ScalarOp::Round => 6,
        ScalarOp::Cast(_) => 4,
        ScalarOp::Bitcast(_) => 1,
        ScalarOp::Math(f) => 4 * operations(f),
        _ => 3,
    }
}

/// The cost of a body, each node once.
pub fn of_body(f: &ScalarFn) -> u64 {
    let node = |(i, n): (usize, &ScalarNode)| match n {
        ScalarNode::Op(op, args) => {
            let first = if *op == ScalarOp::Select { i } else { args[0].0 as usize };
            of(*op, f.dtypes[first])
        }
        _ => 0,
    };
    f.nodes.iter().enumerate().map(node).sum()
}

/// Operations of the f32 body of a function; that of f64 has more.
fn operations(f: MathFn) -> u64 {
    match f {
        MathFn::Exp | MathFn::Exp2 | MathFn::Cosh | MathFn::Expm1 | MathFn::Asin | MathFn::Atan => 25,
        MathFn::Log1p | MathFn::Asinh | MathFn::Acosh | MathFn::Atanh => 50,
        MathFn::Ndtr | MathFn::Acos | MathFn::Erf | MathFn::Log | MathFn::Log2 | MathFn::Sinh | MathFn::Tanh => 33,
        MathFn::Sin | MathFn::Cos | MathFn::Tan | MathFn::Pow => 180,
    }
}
