//! Activation functions.

use tensorc_ir::op::OpDef;

use crate::def::{Define, FLOATS, elementwise};

pub fn ops() -> Vec<OpDef> {
    vec![
        elementwise("softplus", "ln(1 + eˣ), without overflow.", FLOATS, &["x"], |_, a| {
            let x = &a[0];
            x.max(&x.lit(0.0)) + (-x.abs()).exp().log1p()
        })
        .onnx("Softplus", 1)
        .mxnet("softrelu")
        .ulp(4.0),
    ]
}
