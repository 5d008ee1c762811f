//! Comparisons. With a NaN operand only `not_equal` holds.

use crate::prelude::*;

fn comparison(name: &'static str, doc: &'static str, op: CmpOp) -> OpDef {
    elementwise(name, doc, NUMBERS, &["a", "b"], move |_, a| Ex::cmp(&a[0], op, &a[1]))
}

/// Equality is also defined on bool.
fn equality(name: &'static str, doc: &'static str, op: CmpOp) -> OpDef {
    elementwise(name, doc, &[], &["a", "b"], move |_, a| Ex::cmp(&a[0], op, &a[1]))
}

pub fn ops() -> Vec<OpDef> {
    vec![
        equality("equal", "a = b.", CmpOp::Eq).onnx("Equal", 7),
        equality("not_equal", "a ≠ b.", CmpOp::Ne),
        comparison("less", "a < b.", CmpOp::Lt).onnx("Less", 7),
        comparison("less_or_equal", "a ≤ b.", CmpOp::Le).onnx("LessOrEqual", 12),
        comparison("greater", "a > b.", CmpOp::Gt).onnx("Greater", 7),
        comparison("greater_or_equal", "a ≥ b.", CmpOp::Ge).onnx("GreaterOrEqual", 12),
    ]
}
