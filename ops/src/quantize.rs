//! Quantised tensors: integers `q` that stand for `(q - zero point) · scale`, with one scale for a tensor, for each
//! position of an axis, or for each block along one. The formulas are those of ONNX.
//!
//! A constant of integers is brought to floats when the model is compiled, and what lies between two quantised tensors is
//! computed in floats, so that it fuses.

use crate::contract::matmul_shape;
use crate::conv::{conv_shape, window_params};
use crate::prelude::*;

const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16];
/// What is quantised: results of integer products too.
const REAL: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::I32];
const BYTES: &[DType] = &[DType::I8, DType::U8];
const STEPS: &[DType] = &[DType::I8, DType::U8, DType::I16, DType::U16];
const STORED: &[DType] = &[DType::I8, DType::U8, DType::I16, DType::U16, DType::I32];

const ROUNDS: &str = "it rounds to integers";

pub fn ops() -> Vec<OpDef> {
    vec![quantize(), dequantize(), dynamic(), matmul_integer(), qlinear_matmul(), conv_integer(), qlinear_conv()]
}

/// The type of a zero point, or else `given`.
fn quantised_type(cx: &mut InferCtx<'_>, zero: usize, given: Option<DType>) -> Result<(), OpError> {
    match given {
        Some(dtype) => cx.set_output_dtype(0, dtype),
        None if cx.has_input(zero) => cx.same_dtype(0, zero),
        None => cx.set_output_dtype(0, DType::U8),
    }
}

/// The result has the shape of an operand.
fn shaped_as(cx: &mut InferCtx<'_>, i: usize) -> Result<(), OpError> {
    let shape = cx.input(i).shape;
    cx.set_output_shape(0, shape)?;
    let output = cx.output(0).shape;
    cx.set_input_shape(i, output)
}

fn with_axis(def: OpDef) -> OpDef {
    def.param("axis", ParamValue::Int(1), "the axis of several scales").param(
        "block_size",
        ParamValue::Int(0),
        "positions of the axis with one scale, if there are blocks",
    )
}

/// `part` (scales or zero points) so that it broadcasts to `dims`.
fn spread(b: &mut Builder<'_>, cx: &NodeCtx<'_>, part: Value, dims: &[u64]) -> Result<Value> {
    let own = b.dims(part)?;
    if own.iter().product::<u64>() == 1 {
        return b.reshaped(part, &[]);
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
            to[axis] = dims[axis];
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
}

/// `round(x / scale) + zero point`, halves to even, saturating in `to`.
fn quantised(b: &mut Builder<'_>, x: Value, scale: Value, zero: Option<Value>, to: DType) -> Result<Value> {
    let (x, scale) = (cast(b, x, DType::F32)?, cast(b, scale, DType::F32)?);
    let steps = b.call("div", &[x, scale])?;
    rounded(b, steps, zero, to)
}

fn rounded(b: &mut Builder<'_>, steps: Value, zero: Option<Value>, to: DType) -> Result<Value> {
    let mut steps = b.call("round", &[steps])?;
    if let Some(zero) = zero {
        let zero = cast(b, zero, DType::F32)?;
        steps = b.call("add", &[steps, zero])?;
    }
    cast(b, steps, to)
}

fn quantize() -> OpDef {
    let compute = composite(|b, cx, args| {
        let (x, scale) = (operand(b, args, 0)?, operand(b, args, 1)?);
        let dims = b.dims(x)?;
        let scale = spread(b, cx, scale, &dims)?;
        let zero = maybe(args, 2).map(|zero| spread(b, cx, zero, &dims)).transpose()?;
        quantised(b, x, scale, zero, cx.outputs[0].dtype)
    });
    let infer = rule(|cx| {
        shaped_as(cx, 0)?;
        let given = cx.params.dtype("output_dtype");
        quantised_type(cx, 2, given)
    });
    let doc = "round(x / scale) + zero point, halves to even, in the range of the type.";
    with_axis(define("quantize_linear", doc, compute, infer))
        .operand("x", REAL)
        .operand("y_scale", FLOATS)
        .optional("y_zero_point", TypeRule::OneOf(STEPS))
        .maybe("output_dtype", ParamKind::DType, "the result's type if there is no zero point, else u8")
        .onnx("QuantizeLinear", 10)
        .not_differentiable(ROUNDS)
}

fn dequantize() -> OpDef {
    let compute = composite(|b, cx, args| {
        let (x, scale) = (operand(b, args, 0)?, operand(b, args, 1)?);
        let (dims, to) = (b.dims(x)?, cx.outputs[0].dtype);
        let mut steps = cast(b, x, DType::F32)?;
        if let Some(zero) = maybe(args, 2) {
            let zero = spread(b, cx, zero, &dims)?;
            let zero = cast(b, zero, DType::F32)?;
            steps = b.call("sub", &[steps, zero])?;
        }
        let scale = spread(b, cx, scale, &dims)?;
        let scale = cast(b, scale, DType::F32)?;
        let y = b.call("mul", &[steps, scale])?;
        cast(b, y, to)
    });
    let infer = rule(|cx| {
        shaped_as(cx, 0)?;
        match cx.params.dtype("output_dtype") {
            Some(dtype) => cx.set_output_dtype(0, dtype),
            None => cx.same_dtype(0, 1),
        }
    });
    with_axis(define("dequantize_linear", "(x - zero point) · scale.", compute, infer))
        .operand("x", STORED)
        .operand("x_scale", FLOATS)
        .optional("x_zero_point", TypeRule::OneOf(STORED))
        .maybe("output_dtype", ParamKind::DType, "the result's type, else that of the scale")
        .onnx("DequantizeLinear", 10)
        .not_differentiable(ROUNDS)
}

fn dynamic() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, _, args| {
        let x = operand(b, args, 0)?;
        let axes: Vec<usize> = (0..b.dims(x)?.len()).collect();
        let flat = |b: &mut Builder<'_>, op: &str, with: &str| {
            let extreme = reduce(b, op, x, &axes)?;
            let extreme = b.reshaped(extreme, &[])?;
            let zero = number(b, extreme, 0.0)?;
            b.call(with, &[extreme, zero])
        };
        let (least, greatest) = (flat(b, "reduce_min", "min")?, flat(b, "reduce_max", "max")?);
        // A tensor of zeros has no range: any scale does.
        let scale = b.map_as(&[least, greatest], DType::F32, &[], |_, a| {
            let range = (&a[1] - &a[0]) / a[0].lit(255.0);
            range.le(&a[0].lit(0.0)).select(&a[0].lit(1.0), &range)
        })?;
        let zero = b.call("div", &[least, scale])?;
        let zero = b.call("neg", &[zero])?;
        let zero = rounded(b, zero, None, DType::U8)?;
        let y = quantised(b, x, scale, Some(zero), DType::U8)?;
        Ok(vec![y, scale, zero])
    }));
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

/// An operand less its zero point, as i32. `vector` shapes a zero point for each row, column or filter.
fn centred(b: &mut Builder<'_>, x: Value, zero: Option<Value>, vector: impl Fn(u64) -> Vec<u64>) -> Result<Value> {
    let x = cast(b, x, DType::I32)?;
    let Some(zero) = zero else { return Ok(x) };
    let dims = b.dims(zero)?;
    let zero = match dims[..] {
        [] | [1] => b.reshaped(zero, &[])?,
        [n] => b.reshaped(zero, &vector(n))?,
        _ => zero,
    };
    let zero = cast(b, zero, DType::I32)?;
    b.call("sub", &[x, zero])
}

/// Operands of a product, and where their zero points are.
struct Factors {
    a: [usize; 2],
    b: [usize; 2],
}

fn integer_matmul(b: &mut Builder<'_>, args: &[Option<Value>], at: &Factors) -> Result<Value> {
    let (l, r) = (operand(b, args, at.a[0])?, operand(b, args, at.b[0])?);
    let l = centred(b, l, maybe(args, at.a[1]), |rows| vec![rows, 1])?;
    let r = centred(b, r, maybe(args, at.b[1]), |columns| vec![columns])?;
    b.call("matmul", &[l, r])
}

fn integer_conv(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>], at: &Factors) -> Result<Value> {
    let (x, w) = (operand(b, args, at.a[0])?, operand(b, args, at.b[0])?);
    let rank = b.dims(w)?.len();
    let x = centred(b, x, maybe(args, at.a[1]), |n| vec![n])?;
    let w = centred(b, w, maybe(args, at.b[1]), |filters| [&[filters], &vec![1; rank - 1][..]].concat())?;
    let params = ["auto_pad", "kernel_shape", "strides", "dilations", "pads", "group"].into_iter();
    let given = params.filter_map(|name| Some((name, cx.params.get(name)?.clone())));
    let params = given.fold(Params::new(), |params, (name, value)| params.with(name, value));
    b.op("conv", &[x, w], params)
}

/// An i32 result of quantised operands as a quantised tensor; `scales` are those of the operands and of the result,
/// the second shaped by `vector` if there are several.
fn requantised(
    b: &mut Builder<'_>,
    sum: Value,
    scales: [Value; 3],
    zero: Value,
    vector: impl Fn(u64) -> Vec<u64>,
) -> Result<Value> {
    let mut wide = vec![];
    for (i, scale) in scales.into_iter().enumerate() {
        let dims = b.dims(scale)?;
        let scale = match dims[..] {
            [] | [1] => b.reshaped(scale, &[])?,
            [n] if i == 1 => b.reshaped(scale, &vector(n))?,
            _ => scale,
        };
        wide.push(cast(b, scale, DType::F32)?);
    }
    let both = b.call("mul", &[wide[0], wide[1]])?;
    let factor = b.call("div", &[both, wide[2]])?;
    let sum = cast(b, sum, DType::F32)?;
    let steps = b.call("mul", &[sum, factor])?;
    let to = b.ty(zero)?.dtype;
    let zero = b.reshaped(zero, &[])?;
    rounded(b, steps, Some(zero), to)
}

fn matmul_integer() -> OpDef {
    let at = Factors { a: [0, 2], b: [1, 3] };
    let compute = composite(move |b, _, args| integer_matmul(b, args, &at));
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
    let compute = composite(move |b, _, args| {
        let sum = integer_matmul(b, args, &at)?;
        let scales = [operand(b, args, 1)?, operand(b, args, 4)?, operand(b, args, 6)?];
        let zero = operand(b, args, 7)?;
        requantised(b, sum, scales, zero, |columns| vec![columns])
    });
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
    let compute = composite(move |b, cx, args| integer_conv(b, cx, args, &at));
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I32)?;
        conv_shape(cx, [0, 1]).map(drop)
    });
    let doc = "The convolution of integers less their zero points, in i32.";
    window_params(define("conv_integer", doc, compute, infer))
        .operands(&["x", "w"], BYTES)
        .optional("x_zero_point", TypeRule::OneOf(BYTES))
        .optional("w_zero_point", TypeRule::OneOf(BYTES))
        .param("group", ParamValue::Int(1), "Number of channel groups.")
        .onnx("ConvInteger", 10)
        .not_differentiable(ROUNDS)
}

fn qlinear_conv() -> OpDef {
    let at = Factors { a: [0, 2], b: [3, 5] };
    let compute = composite(move |b, cx, args| {
        let mut sum = integer_conv(b, cx, args, &at)?;
        let rank = b.dims(sum)?.len();
        let per_filter = move |n: u64| [&[n], &vec![1; rank - 2][..]].concat();
        if let Some(bias) = maybe(args, 8) {
            let filters = b.dims(bias)?[0];
            let bias = b.reshaped(bias, &per_filter(filters))?;
            sum = b.call("add", &[sum, bias])?;
        }
        let scales = [operand(b, args, 1)?, operand(b, args, 4)?, operand(b, args, 6)?];
        let zero = operand(b, args, 7)?;
        requantised(b, sum, scales, zero, per_filter)
    });
    let infer = rule(|cx| {
        quantised_type(cx, 7, None)?;
        let Some(filters) = conv_shape(cx, [0, 3])? else { return Ok(()) };
        if cx.has_input(8) {
            cx.set_input_shape(8, Shape::Ranked([filters].into_iter().collect()))?;
        }
        Ok(())
    });
    let doc = "The convolution of quantised images with quantised filters, quantised.";
    scaled(window_params(define("qlinear_conv", doc, compute, infer)), ["x", "w"])
        .optional("B", TypeRule::OneOf(&[DType::I32]))
        .param("group", ParamValue::Int(1), "Number of channel groups.")
        .onnx("QLinearConv", 10)
}
