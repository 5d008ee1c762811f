//! Products of quantised matrices.

use super::{BYTES, ROUNDS, SCALE, scalars};
use crate::byte_products::{ByteOperand, byte_matmul};
use crate::contract::matmul_shape;
use crate::prelude::*;
use crate::quantize::{quantised_type, rounded, shaped_by, unless_zero};
use crate::rules::{one_element, open_rank_in};

pub fn ops() -> Vec<OpDef> {
    vec![to_float(), dynamic(), integer16(), gemm()]
}

/// A row for each column of a product, or a scalar.
fn row(x: Tensor<'_>) -> Result<Tensor<'_>> {
    shaped_by(x, |columns| vec![columns])
}

/// An operand of a product has one element, or one for each column.
fn per_column(cx: &InferCtx<'_>, i: usize, columns: Dim) -> Result<(), OpError> {
    let Some(dims) = open_rank_in(cx, i, 0..=1)? else { return Ok(()) };
    match (dims.first().and_then(|d| d.as_const()), columns.as_const()) {
        (Some(found), Some(columns)) if found != 1 && found != columns => {
            Err(OpError(format!("{}: expected 1 or {columns} elements, found {found}", cx.input_name(i))))
        }
        _ => Ok(()),
    }
}

/// The shape of the product of two operands, the second of which has scales and zero points at `columns`.
fn scaled_product(cx: &mut InferCtx<'_>, columns: &[usize], bias: usize) -> Result<(), OpError> {
    matmul_shape(cx, [0, 1])?;
    let Some(last) = cx.open_dims(1).and_then(|dims| dims.last().copied()) else { return Ok(()) };
    columns.iter().try_for_each(|&i| per_column(cx, i, last))?;
    if cx.has_input(bias) { shaped(cx, bias, &[last]) } else { Ok(()) }
}

/// An i32 product times scales, and a bias.
fn scaled<'g>(sum: Tensor<'g>, scale: Tensor<'g>, bias: Option<Tensor<'g>>) -> Tensor<'g> {
    let y = sum.cast(DType::F32) * scale;
    bias.map_or(y, |bias| y + bias)
}

fn to_float() -> OpDef {
    let compute = formula(|g, cx| {
        let a = ByteOperand::of(g, [0, 4], |rows| vec![rows, 1])?;
        let b = ByteOperand::of(g, [1, 5], |columns| vec![columns])?;
        let scale = g.operand(2).reshape([]) * row(g.operand(3))?;
        Ok(scaled(byte_matmul(a, b, &cx.outputs[0].dims)?, scale, g.maybe(6)))
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::F32)?;
        scalars(cx, &[2, 4])?;
        scaled_product(cx, &[3, 5], 6)
    });
    define("matmul_integer_to_float", "The product of quantised matrices, in f32.", compute, infer)
        .operands(&["A", "B"], BYTES)
        .operands(&["a_scale", "b_scale"], SCALE)
        .optional("a_zero_point", TypeRule::OneOf(BYTES))
        .optional("b_zero_point", TypeRule::OneOf(BYTES))
        .optional("bias", TypeRule::OneOf(SCALE))
        .contrib("MatMulIntegerToFloat")
        .not_differentiable(ROUNDS)
}

fn dynamic() -> OpDef {
    let compute = formula(|g, cx| {
        let made = g.op_multi("dynamic_quantize_linear", &[Some(g.operand(0))], Params::new(), 3);
        let a = ByteOperand { x: made[0], zero: Some(made[2].cast(DType::I32)) };
        let b = ByteOperand::of(g, [1, 3], |columns| vec![columns])?;
        let scale = made[1] * row(g.operand(2))?;
        Ok(scaled(byte_matmul(a, b, &cx.outputs[0].dims)?, scale, g.maybe(4)))
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::F32)?;
        scaled_product(cx, &[2, 3], 4)
    });
    let doc = "The product of a matrix, quantised by its range, with a quantised one, in f32.";
    define("dynamic_quantize_matmul", doc, compute, infer)
        .operand("A", SCALE)
        .operand("B", BYTES)
        .operand("b_scale", SCALE)
        .optional("b_zero_point", TypeRule::OneOf(BYTES))
        .optional("bias", TypeRule::OneOf(SCALE))
        .contrib("DynamicQuantizeMatMul")
        .not_differentiable(ROUNDS)
}

fn integer16() -> OpDef {
    const WORDS: &[DType] = &[DType::I16, DType::U16];
    let wide = |dtype: DType| if dtype == DType::U16 { DType::U32 } else { DType::I32 };
    let compute = formula(|g, cx| {
        let [a, b] = g.operands().map(|x: Tensor<'_>| x.cast(DType::I32));
        Ok(a.call("matmul", &[b]).cast(cx.outputs[0].dtype))
    });
    let infer = rule(move |cx| {
        if let Some(dtype) = cx.input_dtype(0) {
            cx.set_output_dtype(0, wide(dtype))?;
        }
        matmul_shape(cx, [0, 1])
    });
    define("matmul_integer16", "The product of matrices of 16-bit integers, in 32 bits.", compute, infer)
        .groups(&["A", "B"], WORDS)
        .contrib("MatMulInteger16")
        .no_gradient()
}

fn gemm() -> OpDef {
    let compute = formula(|g, cx| {
        let [mut a, mut b] =
            [ByteOperand::of(g, [0, 2], |n| vec![n])?, ByteOperand::of(g, [3, 5], |columns| vec![columns])?];
        for (operand, flag) in [(&mut a, "transA"), (&mut b, "transB")] {
            if cx.params.flag(flag) {
                operand.x = operand.x.permute(&[1, 0]);
            }
        }
        let sum = byte_matmul(a, b, &cx.outputs[0].dims)?;
        let sum = g.maybe(6).map_or(sum, |c| sum + c);
        let alpha = cx.params.float("alpha").unwrap_or(1.0);
        let scale = g.operand(1).reshape([]).map(|scale| scale * alpha) * row(g.operand(4))?;
        let Some(result) = g.maybe(7) else { return Ok(scaled(sum, scale, None)) };
        let steps = sum.cast(DType::F32) * (scale / result.reshape([]));
        let zero = g.maybe(8).map(unless_zero).transpose()?.flatten();
        Ok(rounded(steps, zero, cx.outputs[0].dtype))
    });
    let infer = rule(|cx| {
        match cx.has_input(8) {
            true => quantised_type(cx, 8, None)?,
            false => cx.set_output_dtype(0, DType::F32)?,
        }
        reject_if(
            cx.has_input(7) != cx.has_input(8),
            || "operands `y_scale` and `y_zero_point`: expected both or none",
        )?;
        scalars(cx, &[1, 2])?;
        [7, 8].into_iter().try_for_each(|i| one_element(cx, i))?;
        let (Some(a), Some(b)) = (open_rank_in(cx, 0, 2..=2)?, open_rank_in(cx, 3, 2..=2)?) else { return Ok(()) };
        let (ta, tb) = (cx.params.flag("transA"), cx.params.flag("transB"));
        let (m, k) = if ta { (a[1], a[0]) } else { (a[0], a[1]) };
        let (other, n) = if tb { (b[1], b[0]) } else { (b[0], b[1]) };
        cx.unify_dims(k, other, &format!("operand `B`, axis {}", usize::from(tb)))?;
        [4, 5].into_iter().try_for_each(|i| per_column(cx, i, n))?;
        broadcasts_to(cx, 6, &[m, n])?;
        cx.set_output_dims(0, [m, n])
    });
    let doc = "`alpha · A' · B' + C` of quantised matrices, quantised or in f32, with A' and B' transposed if asked.";
    define("qgemm", doc, compute, infer)
        .operand("A", BYTES)
        .operand("a_scale", SCALE)
        .operand("a_zero_point", BYTES)
        .operand("B", BYTES)
        .operand("b_scale", SCALE)
        .operand("b_zero_point", BYTES)
        .optional("C", TypeRule::OneOf(&[DType::I32]))
        .optional("y_scale", TypeRule::OneOf(SCALE))
        .optional("y_zero_point", TypeRule::OneOf(BYTES))
        .param("alpha", 1.0, "")
        .param("transA", false, "")
        .param("transB", false, "")
        .contrib("QGemm")
        .not_differentiable(ROUNDS)
}
