//! Quantised tensors: integers `q` that stand for `(q - zero point) · scale`, with one scale for a tensor, for each
//! position of an axis, or for each block along one. The formulas are those of ONNX.
//!
//! Products and convolutions of bytes are computed from the bytes ([`crate::byte_products`]). Everything else is computed in
//! floats, so that it fuses; constants of integers become floats when the model is compiled.

use crate::byte_products::{ByteOperand, byte_conv, byte_matmul};
use crate::contract::matmul_shape;
use crate::conv::{conv_shape, window_params, with_geometry};
use crate::prelude::*;

const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16];
/// Types of scales of one tensor.
const SCALES: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::F8E8M0];
/// What is quantised: results of integer products too.
const REAL: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::I32];
pub(crate) const BYTES: &[DType] = &[DType::I8, DType::U8];
const STEPS: &[DType] = STORED.split_at(STORED.len() - 1).0;
const STORED: &[DType] = &[
    DType::I8,
    DType::U8,
    DType::I16,
    DType::U16,
    DType::I4,
    DType::U4,
    DType::I2,
    DType::U2,
    DType::F8E4M3FN,
    DType::F8E4M3FNUZ,
    DType::F8E5M2,
    DType::F8E5M2FNUZ,
    DType::F6E2M3,
    DType::F6E3M2,
    DType::F4E2M1,
    DType::I32,
];

pub(crate) const ROUNDS: &str = "it rounds to integers";

pub fn ops() -> Vec<OpDef> {
    vec![quantize(), dequantize(), dynamic(), matmul_integer(), qlinear_matmul(), conv_integer(), qlinear_conv()]
}

/// The type of a zero point, or else `given`.
pub(crate) fn quantised_type(cx: &mut InferCtx<'_>, zero: usize, given: Option<DType>) -> Result<(), OpError> {
    match given {
        Some(dtype) => cx.set_output_dtype(0, dtype),
        None if cx.has_input(zero) => cx.same_dtype(0, zero),
        None => cx.set_output_dtype(0, DType::U8),
    }
}

/// The result has the shape of an operand.
fn shaped_as(cx: &mut InferCtx<'_>, i: usize) -> Result<(), OpError> {
    cx.copy_shape(0, i)?;
    let output = cx.output_shape(0);
    cx.set_input_shape(i, output)
}

fn with_axis(def: OpDef) -> OpDef {
    let def = def.param("axis", 1, "the axis of several scales");
    def.param("block_size", 0, "positions of the axis with one scale, if there are blocks")
}

/// `part` (scales or zero points) so that it broadcasts to `dims`.
fn spread<'g>(cx: &NodeCtx<'_>, part: Tensor<'g>, dims: &[u64]) -> Tensor<'g> {
    part.then(|b, part| {
        let own = b.dims(part)?;
        if own.iter().product::<u64>() == 1 {
            return b.reshaped(part, []);
        }
        let axis = normalize_axis(cx.params.int("axis").unwrap_or(1), dims.len()).or_fail(b)?;
        match own.len() {
            1 if own[0] == dims[axis] => {
                let mut along = vec![1; dims.len()];
                along[axis] = own[0];
                b.reshaped(part, &along)
            }
            rank if rank == dims.len() && rank > 1 => {
                let mut to = own.clone();
                to.set(axis, dims[axis]);
                let block = cx.params.int("block_size").filter(|n| *n > 0).unwrap_or(1);
                let blocks = dims[axis].div_ceil(block as u64);
                if blocks != own[axis] {
                    return Err(b.fail(format!("{} scales along axis {axis} for {blocks} blocks", own[axis])));
                }
                let mut map = vars(dims.len());
                map[axis] = map[axis].floor_div(block, &to[..]);
                b.view(part, View { map, fill: None }, &to)
            }
            _ => Err(b.fail(format!("scales of shape {own:?} for a tensor of shape {dims:?}"))),
        }
    })
}

/// `round(x / scale) + zero point`, halves to even, saturating in `to`.
pub(crate) fn quantised<'g>(x: Tensor<'g>, scale: Tensor<'g>, zero: Option<Tensor<'g>>, to: DType) -> Tensor<'g> {
    let (x, scale) = (x.cast(DType::F32), scale.cast(DType::F32));
    rounded(x / scale, zero, to)
}

/// A zero point of one element, unless it is known to be 0.
pub(crate) fn unless_zero(zero: Tensor<'_>) -> Result<Option<Tensor<'_>>> {
    let is_zero = zero.known_item()?.is_some_and(|zero| zero.as_f64() == 0.0);
    Ok((!is_zero).then(|| zero.reshape([])))
}

/// Rounds to the nearest integer, halves to even, and adds the zero point, saturating in `to`.
pub(crate) fn rounded<'g>(steps: Tensor<'g>, zero: Option<Tensor<'g>>, to: DType) -> Tensor<'g> {
    let steps = steps.call("round", &[]);
    let steps = zero.map_or(steps, |zero| steps + zero.cast(DType::F32));
    if !to.is_narrow() {
        return steps.cast(to);
    }
    // Conversions to narrow integers wrap.
    let [least, greatest] = match (to, to.bits()) {
        (DType::I4 | DType::I2, bits) => [-(2f64.powi(bits as i32 - 1)), 2f64.powi(bits as i32 - 1) - 1.0],
        (_, bits) => [0.0, 2f64.powi(bits as i32) - 1.0],
    };
    steps.map(|x| x.max(&x.lit(least)).min(&x.lit(greatest))).cast(to)
}

/// Quotients as narrow floats: the rounding is that of the conversion.
fn narrowed<'g>(quotient: Tensor<'g>, zero: Option<Tensor<'g>>, to: DType, saturate: bool) -> Tensor<'g> {
    let moved = match zero.map(|zero| zero.cast(DType::F32)) {
        // A zero point of 0 leaves the sign of a zero as it is.
        Some(zero) if to.bits() == 8 => {
            quotient.map_with(&[zero], |_, a| a[1].eq(&a[1].lit(0.0)).select(&a[0], &(&a[0] + &a[1])))
        }
        Some(zero) => quotient + zero,
        None => quotient,
    };
    quotient.graph().op("cast", &[moved], Params::new().with("to", to).with("saturate", saturate))
}

fn quantize() -> OpDef {
    let compute = formula(|g, cx| {
        let x = g.operand(0);
        let dims = x.dims()?;
        let scale = spread(cx, g.operand(1), &dims);
        let zero = g.maybe(2).map(|zero| spread(cx, zero, &dims));
        let [x, scale] = [x, scale].map(|t| cx.params.dtype("precision").map_or(t, |given| t.cast(given)));
        let [x, scale] = [x, scale].map(|t| t.cast(DType::F32));
        let quotient = cx.params.dtype("precision").map_or(x / scale, |given| (x / scale).cast(given).cast(DType::F32));
        let (to, saturate) = (cx.outputs[0].dtype, cx.params.bool("saturate").unwrap_or(true));
        Ok(if to.is_narrow_float() { narrowed(quotient, zero, to, saturate) } else { rounded(quotient, zero, to) })
    });
    let infer = rule(|cx| {
        shaped_as(cx, 0)?;
        let given = cx.params.dtype("output_dtype");
        if given.is_some_and(|given| !STEPS.contains(&given)) {
            return Err("`output_dtype` is no type of quantised elements".into());
        }
        if cx.params.dtype("precision").is_some_and(|precision| !FLOATS.contains(&precision)) {
            return Err("`precision` is not one of f32, f16 and bf16".into());
        }
        quantised_type(cx, 2, given)
    });
    let doc =
        "round(x / scale) + zero point, halves to even, in the range of the type; narrow floats round by themselves.";
    with_axis(define("quantize_linear", doc, compute, infer))
        .operand("x", REAL)
        .operand("y_scale", SCALES)
        .optional("y_zero_point", TypeRule::OneOf(STEPS))
        .maybe("output_dtype", ParamKind::DType, "the result's type if there is no zero point, else u8")
        .maybe("precision", ParamKind::DType, "the type that the quotient is rounded to")
        .param("saturate", true, "of results of 8-bit floats, as in `cast`")
        .onnx("QuantizeLinear", 10)
        .contrib("QuantizeLinear")
        .not_differentiable(ROUNDS)
}

fn dequantize() -> OpDef {
    let compute = formula(|g, cx| {
        let x = g.operand(0);
        let dims = x.dims()?;
        let steps = x.cast(DType::F32);
        let steps = g.maybe(2).map_or(steps, |zero| steps - spread(cx, zero, &dims).cast(DType::F32));
        let scale = spread(cx, g.operand(1), &dims).cast(DType::F32);
        Ok((steps * scale).cast(cx.outputs[0].dtype))
    });
    let infer = rule(|cx| {
        shaped_as(cx, 0)?;
        match cx.params.dtype("output_dtype") {
            Some(dtype) if !FLOATS.contains(&dtype) => {
                Err(format!("`output_dtype` {dtype} is not f32, f16 or bf16").into())
            }
            Some(dtype) => cx.set_output_dtype(0, dtype),
            None if cx.input_dtype(1) == Some(DType::F8E8M0) => Err("scales of f8e8m0 need an `output_dtype`".into()),
            None => cx.same_dtype(0, 1),
        }
    });
    with_axis(define("dequantize_linear", "(x - zero point) · scale.", compute, infer))
        .operand("x", STORED)
        .operand("x_scale", SCALES)
        .optional("x_zero_point", TypeRule::OneOf(STORED))
        .maybe("output_dtype", ParamKind::DType, "the result's type, else that of the scale")
        .onnx("DequantizeLinear", 10)
        .contrib("DequantizeLinear")
        .not_differentiable(ROUNDS)
}

fn dynamic() -> OpDef {
    let compute = formulas(|g, _| {
        let x = g.operand(0);
        // Rows first, which threads share.
        let rank = x.dims()?.len();
        let stages = [rank.saturating_sub(1)..rank, 0..rank.saturating_sub(1)];
        let extreme = |op: &str, with: &str| {
            let axes = stages.iter().map(|axes| axes.clone().collect::<Vec<_>>()).filter(|axes| !axes.is_empty());
            axes.fold(x, |x, axes| x.reduce(op, &axes)).reshape([]).with_number(with, 0.0)
        };
        let (least, greatest) = (extreme("reduce_min", "min"), extreme("reduce_max", "max"));
        // A tensor of zeros has no range: any scale does.
        let scale = least.map_with(&[greatest], |_, a| {
            let range = (&a[1] - &a[0]) / a[0].lit(255.0);
            range.le(&a[0].lit(0.0)).select(&a[0].lit(1.0), &range)
        });
        let zero = rounded(-(least / scale), None, DType::U8);
        Ok(vec![quantised(x, scale, Some(zero), DType::U8), scale, zero])
    });
    let infer = rule(|cx| {
        shaped_as(cx, 0)?;
        cx.set_output_dtype(0, DType::U8)?;
        for (i, dtype) in [(1, DType::F32), (2, DType::U8)] {
            cx.set_output_dtype(i, dtype)?;
            cx.set_output_shape(i, Shape::consts(&[]))?;
        }
        Ok(())
    });
    let doc = "x quantised to u8, with the scale and zero point that its range (with 0) fills.";
    define("dynamic_quantize_linear", doc, compute, infer)
        .operand("x", &[DType::F32])
        .outputs(3, 3)
        .onnx("DynamicQuantizeLinear", 11)
        .not_differentiable(ROUNDS)
}

/// A vector for each row, column or filter, shaped by `vector`; one element as a scalar.
pub(crate) fn shaped_by<'g>(x: Tensor<'g>, vector: impl Fn(u64) -> Vec<u64>) -> Result<Tensor<'g>> {
    Ok(match x.dims()?[..] {
        [] | [1] => x.reshape([]),
        [n] => x.reshape(vector(n)),
        _ => x,
    })
}

/// An operand has one element, or one for each filter.
fn one_or_each(cx: &mut InferCtx<'_>, i: usize, filters: Dim) -> Result<(), OpError> {
    match cx.open_dims(i).filter(|_| cx.has_input(i)).as_deref() {
        None | Some([] | [Dim::Const(1)]) => Ok(()),
        Some([_]) => cx.set_input_dims(i, [filters]),
        Some(dims) => Err(OpError(format!("{}: expected rank at most 1, found rank {}", cx.input_name(i), dims.len()))),
    }
}

/// Operands of a product, and where their zero points are.
struct Factors {
    a: [usize; 2],
    b: [usize; 2],
}

fn integer_matmul<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, at: &Factors) -> Result<Tensor<'g>> {
    let a = ByteOperand::of(g, at.a, |rows| vec![rows, 1])?;
    let b = ByteOperand::of(g, at.b, |columns| vec![columns])?;
    byte_matmul(a, b, &cx.outputs[0].dims)
}

fn integer_conv<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, at: &Factors) -> Result<Tensor<'g>> {
    let [x, w] = [ByteOperand::of(g, at.a, |n| vec![n])?, ByteOperand::of(g, at.b, |filters| vec![filters])?];
    if let Some(y) = with_geometry(g, cx, [x.x, w.x], |geometry| byte_conv(x, w, geometry))? {
        return Ok(y);
    }
    let rank = w.x.dims()?.len();
    let x = x.centred();
    let w = ByteOperand::of(g, at.b, |filters| [&[filters], &vec![1; rank - 1][..]].concat())?.centred();
    let params = ["auto_pad", "kernel_shape", "strides", "dilations", "pads", "group"].into_iter();
    let given = params.filter_map(|name| Some((name, cx.params.get(name)?.clone())));
    let params = given.fold(Params::new(), |params, (name, value)| params.with(name, value));
    Ok(g.op("conv", &[x, w], params))
}

/// An i32 result of quantised operands as a quantised tensor. The scale of the second operand is shaped by `vector` if
/// there are several.
fn requantised<'g>(sum: Tensor<'g>, vector: impl Fn(u64) -> Vec<u64>) -> Result<Tensor<'g>> {
    let g = sum.graph();
    let own = |n: u64| vec![n];
    let left = shaped_by(g.operand(1), own)?.cast(DType::F32);
    let right = shaped_by(g.operand(4), vector)?.cast(DType::F32);
    let result = shaped_by(g.operand(6), own)?.cast(DType::F32);
    let factor = left * right / result;
    let steps = sum.cast(DType::F32) * factor;
    let zero = g.operand(7);
    let to = zero.ty()?.dtype;
    Ok(rounded(steps, unless_zero(zero)?, to))
}

fn matmul_integer() -> OpDef {
    let at = Factors { a: [0, 2], b: [1, 3] };
    let compute = formula(move |g, cx| integer_matmul(g, cx, &at));
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I32)?;
        matmul_shape(cx, [0, 1])
    });
    define("matmul_integer", "The product of integers less their zero points, in i32.", compute, infer)
        .operands(&["A", "B"], BYTES)
        .optional("a_zero_point", TypeRule::OneOf(BYTES))
        .optional("b_zero_point", TypeRule::OneOf(BYTES))
        .onnx("MatMulInteger", 10)
        .not_differentiable(ROUNDS)
}

fn qlinear_matmul() -> OpDef {
    let at = Factors { a: [0, 2], b: [3, 5] };
    let compute = formula(move |g, cx| requantised(integer_matmul(g, cx, &at)?, |columns| vec![columns]));
    let infer = rule(|cx| {
        quantised_type(cx, 7, None)?;
        matmul_shape(cx, [0, 3])
    });
    scaled(define("qlinear_matmul", "The product of quantised matrices, quantised.", compute, infer), ["a", "b"])
        .onnx("QLinearMatMul", 10)
}

/// Two quantised operands, then scale and zero point of the result.
fn scaled(def: OpDef, [a, b]: [&'static str; 2]) -> OpDef {
    let names = match (a, b) {
        ("a", "b") => ["a_scale", "a_zero_point", "b_scale", "b_zero_point"],
        _ => ["x_scale", "x_zero_point", "w_scale", "w_zero_point"],
    };
    def.operand(a, BYTES)
        .operand(names[0], FLOATS)
        .operand(names[1], BYTES)
        .operand(b, BYTES)
        .operand(names[2], FLOATS)
        .operand(names[3], BYTES)
        .operand("y_scale", FLOATS)
        .operand("y_zero_point", BYTES)
        .not_differentiable(ROUNDS)
}

fn conv_integer() -> OpDef {
    let at = Factors { a: [0, 2], b: [1, 3] };
    let compute = formula(move |g, cx| integer_conv(g, cx, &at));
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I32)?;
        one_element(cx, 2)?;
        let filters = conv_shape(cx, [0, 1])?;
        filters.map_or(Ok(()), |filters| one_or_each(cx, 3, filters))
    });
    let doc = "The convolution of integers less their zero points, in i32.";
    window_params(define("conv_integer", doc, compute, infer))
        .operands(&["x", "w"], BYTES)
        .optional("x_zero_point", TypeRule::OneOf(BYTES))
        .optional("w_zero_point", TypeRule::OneOf(BYTES))
        .param("group", 1, "Number of channel groups.")
        .onnx("ConvInteger", 10)
        .not_differentiable(ROUNDS)
}

fn qlinear_conv() -> OpDef {
    let at = Factors { a: [0, 2], b: [3, 5] };
    let compute = formula(move |g, cx| {
        let sum = integer_conv(g, cx, &at)?;
        let rank = sum.dims()?.len();
        let per_filter = move |n: u64| [&[n], &vec![1; rank - 2][..]].concat();
        let Some(bias) = g.maybe(8) else { return requantised(sum, per_filter) };
        let bias = bias.reshape(per_filter(bias.dims()?[0]));
        requantised(sum + bias, per_filter)
    });
    let infer = rule(|cx| {
        quantised_type(cx, 7, None)?;
        [1, 2, 6, 7].into_iter().try_for_each(|i| one_element(cx, i))?;
        let Some(filters) = conv_shape(cx, [0, 3])? else { return Ok(()) };
        [4, 5].into_iter().try_for_each(|i| one_or_each(cx, i, filters))?;
        if cx.has_input(8) {
            cx.set_input_dims(8, [filters])?;
        }
        Ok(())
    });
    let doc = "The convolution of quantised images with quantised filters, quantised.";
    scaled(window_params(define("qlinear_conv", doc, compute, infer)), ["x", "w"])
        .optional("B", TypeRule::OneOf(&[DType::I32]))
        .param("group", 1, "Number of channel groups.")
        .onnx("QLinearConv", 10)
}
