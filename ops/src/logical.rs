//! Logical and bitwise operations.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![
        elementwise("and", "a ∧ b.", BOOLS, &["a", "b"], |_, a| &a[0] & &a[1]).onnx("And", 7),
        elementwise("or", "a ∨ b.", BOOLS, &["a", "b"], |_, a| &a[0] | &a[1]).onnx("Or", 7),
        elementwise("xor", "a ≠ b.", BOOLS, &["a", "b"], |_, a| &a[0] ^ &a[1]).onnx("Xor", 7),
        elementwise("not", "¬x.", BOOLS, &["x"], |_, a| !&a[0]).onnx("Not", 1),
        elementwise("bitwise_and", "a & b, bit by bit.", INTS, &["a", "b"], |_, a| &a[0] & &a[1])
            .onnx("BitwiseAnd", 18),
        elementwise("bitwise_or", "a | b, bit by bit.", INTS, &["a", "b"], |_, a| &a[0] | &a[1]).onnx("BitwiseOr", 18),
        elementwise("bitwise_xor", "a ^ b, bit by bit.", INTS, &["a", "b"], |_, a| &a[0] ^ &a[1])
            .onnx("BitwiseXor", 18),
        elementwise("bitwise_not", "The complement of x.", INTS, &["x"], |_, a| !&a[0]).onnx("BitwiseNot", 18),
        bit_shift(),
        bit_cast(),
    ]
}

fn bit_shift() -> OpDef {
    let body = scalar(|_, cx, args| {
        let [Some(x), Some(n)] = args else { return Err(OpError::from("two operands expected")) };
        // Of signed numbers, what lies outside of the width is what is left of the sign.
        let bits = x.dtype().size() as f64 * 8.0;
        let within = |shifted: Ex, beyond: Ex| match x.dtype().is_signed_int() {
            true => (n.ge(&n.lit(0.0)) & n.lt(&n.lit(bits))).select(&shifted, &beyond),
            false => shifted,
        };
        match cx.params.str("direction") {
            Some("LEFT") => Ok(within(x.shl(n), x.lit(0.0))),
            Some("RIGHT") => Ok(within(x.shr(n), x.shr(&x.lit(bits - 1.0)))),
            other => Err(OpError(format!("direction `{}` is neither LEFT nor RIGHT", other.unwrap_or_default()))),
        }
    });
    define(
        "bit_shift",
        "x · 2ⁿ or ⌊x / 2ⁿ⌋; from the width on, and for negative n, what is left of the sign.",
        body,
        Infer::Derived,
    )
    .groups(&["x", "n"], INTS)
    .required("direction", ParamKind::Str, "LEFT or RIGHT")
    .onnx("BitShift", 11)
}

/// The bits of an element as another type of as many. Above less than a byte are copies of the sign of integers, else zeros.
fn code_as(x: &Ex, to: DType) -> Ex {
    let (bits, unused) = (x.bitcast(if to.bits() < 8 { DType::U8 } else { to }), 8.0 - to.bits() as f64);
    match to {
        _ if to.bits() >= 8 => bits,
        DType::I4 | DType::I2 => {
            let bits = bits.bitcast(DType::I8);
            let unused = bits.lit(unused);
            bits.shl(&unused).shr(&unused).bitcast(to)
        }
        _ => (&bits & &bits.lit(f64::from((1u8 << to.bits()) - 1))).bitcast(to),
    }
}

fn bit_cast() -> OpDef {
    let body = scalar(|_, cx, args| match (args, cx.params.dtype("to")) {
        ([Some(x)], Some(to)) if x.dtype() == to => Ok(x.clone()),
        ([Some(x)], Some(to)) if x.dtype().bits() == to.bits() => Ok(code_as(x, to)),
        ([Some(x)], Some(to)) => Err(OpError(format!("{} and {to} differ in size", x.dtype()))),
        _ => Err(OpError::from("one operand expected")),
    });
    define("bit_cast", "The bits of x as another type of the same size.", body, Infer::Derived)
        .operand("x", &[])
        .required("to", ParamKind::DType, "the result's type")
        .no_gradient()
        .onnx("BitCast", 26)
}
