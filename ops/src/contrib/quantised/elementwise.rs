//! Element-wise operators, softmax and concatenation of quantised tensors.

use super::{BYTES, ROUNDS, SCALE, real, requantised, scalars};
use crate::prelude::*;
use crate::rules::open_rank_in;

pub fn ops() -> Vec<OpDef> {
    vec![add(), mul(), activation("qlinear_sigmoid"), activation("qlinear_leaky_relu"), softmax(), select(), concat()]
}

/// The operands and the rule of a binary operator.
fn binary(name: &'static str, doc: &'static str, compute: Compute) -> OpDef {
    let infer = rule(|cx| {
        agree_dtypes(cx, &[0, 3], &[0])?;
        scalars(cx, &[1, 2, 4, 5, 6, 7])?;
        let shapes = [cx.input_shape(0), cx.input_shape(3)];
        match cx.broadcast(&shapes)? {
            Some(dims) => cx.set_output_dims(0, dims),
            None => Ok(()),
        }
    });
    let zero = || TypeRule::Group(0, BYTES);
    define(name, doc, compute, infer)
        .group("A", BYTES)
        .operand("A_scale", SCALE)
        .optional("A_zero_point", zero())
        .group("B", BYTES)
        .operand("B_scale", SCALE)
        .optional("B_zero_point", zero())
        .operand("C_scale", SCALE)
        .optional("C_zero_point", zero())
        .not_differentiable(ROUNDS)
}

/// A zero point as f32, 0 if there is none.
fn zero_of(g: GraphScope<'_>, at: usize) -> Tensor<'_> {
    match g.maybe(at) {
        Some(zero) => zero.reshape([]).cast(DType::F32),
        None => g.scalar(Scalar::f32(0.0)),
    }
}

fn add() -> OpDef {
    let compute = formula(|g, cx| {
        let scale = |at: usize| g.operand(at).reshape([]);
        let (left, right) = (scale(1) / scale(6), scale(4) / scale(6));
        let fixed = zero_of(g, 7) - (left * zero_of(g, 2) + right * zero_of(g, 5));
        let (a, b, out) = (g.operand(0), g.operand(3), &cx.outputs[0]);
        Ok(g.map(&[a, b, left, right, fixed], DType::F32, &out.dims, |_, x| {
            let [a, b] = [0, 1].map(|i| x[i].cast(DType::F32));
            b.fma(&x[3], &a.fma(&x[2], &x[4])).round()
        })
        .cast(out.dtype))
    });
    binary("qlinear_add", "The sum of quantised tensors, quantised.", compute).contrib("QLinearAdd")
}

fn mul() -> OpDef {
    let compute = formula(|g, cx| {
        let scale = |at: usize| g.operand(at).reshape([]);
        let factor = scale(1) * scale(4) / scale(6);
        let (a, b, out) = (g.operand(0), g.operand(3), &cx.outputs[0]);
        let zeros = [2, 5, 7].map(|at| zero_of(g, at));
        Ok(g.map(&[a, b, factor, zeros[0], zeros[1], zeros[2]], DType::F32, &out.dims, |_, x| {
            let [a, b] = [(0, 3), (1, 4)].map(|(i, zero)| x[i].cast(DType::F32) - &x[zero]);
            (a * b * &x[2] + &x[5]).round()
        })
        .cast(out.dtype))
    });
    binary("qlinear_mul", "The product of quantised tensors, quantised.", compute).contrib("QLinearMul")
}

/// The rule of an operator of one quantised tensor, which keeps its type.
fn like_first() -> Infer {
    rule(|cx| {
        scalars(cx, &[1, 2, 3, 4])?;
        same(cx, 0, 0)
    })
}

/// The operands of such an operator.
fn one_quantised(name: &'static str, doc: &'static str, compute: Compute) -> OpDef {
    define(name, doc, compute, like_first())
        .group("X", BYTES)
        .operand("X_scale", SCALE)
        .optional("X_zero_point", TypeRule::Group(0, BYTES))
        .operand("Y_scale", SCALE)
        .optional("Y_zero_point", TypeRule::Group(0, BYTES))
        .not_differentiable(ROUNDS)
}

fn activation(name: &'static str) -> OpDef {
    let leaky = name == "qlinear_leaky_relu";
    let compute = formula(move |g, cx| {
        let x = real(g, 0);
        let y = match leaky {
            true => {
                let alpha = cx.params.float("alpha").unwrap_or(0.01);
                g.op("leaky_relu", &[x], Params::new().with("alpha", alpha))
            }
            false => x.call("sigmoid", &[]),
        };
        Ok(requantised(g, y, [3, 4], cx.outputs[0].dtype))
    });
    match leaky {
        true => one_quantised(name, "`leaky_relu` of a quantised tensor, quantised.", compute)
            .param("alpha", 0.01, "slope below 0")
            .contrib("QLinearLeakyRelu"),
        false => one_quantised(name, "`sigmoid` of a quantised tensor, quantised.", compute).contrib("QLinearSigmoid"),
    }
}

fn softmax() -> OpDef {
    let compute = formula(|g, cx| {
        let (x, out) = (g.operand(0), &cx.outputs[0]);
        let default = if cx.params.int("opset").unwrap_or(13) < 13 { 1 } else { -1 };
        let axis = g.check(normalize_axis(cx.params.int("axis").unwrap_or(default), out.rank()))?;
        // Old forms normalise a matrix.
        let last = if default == 1 { out.rank() } else { axis + 1 };
        let axes: Vec<usize> = (axis..last).collect();
        let steps = x.cast(DType::F32);
        let scale = g.operand(1).reshape([]);
        let powers = ((steps - steps.reduce("reduce_max", &axes)) * scale).exp();
        // The reciprocal of the scale counts as a whole number.
        let factor = g.operand(3).reshape([]).map(|scale| (scale.lit(1.0) / scale).floor());
        let shares = (powers * factor / powers.sum(&axes)).call("round", &[]);
        Ok((shares + g.operand(4).reshape([]).cast(DType::F32)).cast(out.dtype))
    });
    let infer = rule(|cx| {
        scalars(cx, &[1, 2, 3, 4])?;
        same(cx, 0, 0)?;
        let Some(dims) = open_rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
        let default = if cx.params.int("opset").unwrap_or(13) < 13 { 1 } else { -1 };
        normalize_axis(cx.params.int("axis").unwrap_or(default), dims.len()).map(drop)
    });
    define("qlinear_softmax", "`softmax` of a quantised tensor, quantised.", compute, infer)
        .group("X", BYTES)
        .operand("X_scale", SCALE)
        .optional("x_zero_point", TypeRule::Group(0, BYTES))
        .operand("y_scale", SCALE)
        .group("y_zero_point", BYTES)
        .maybe("axis", ParamKind::Int, "axis normalised; default: the last, of operator sets below 13 the second")
        .required(
            "opset",
            ParamKind::Int,
            "operator set of the softmax; below 13 all axes from `axis` on are normalised",
        )
        .contrib("QLinearSoftmax")
        .not_differentiable(ROUNDS)
}

fn select() -> OpDef {
    let compute = formula(|g, cx| {
        let to = cx.outputs[0].dtype;
        let [x, y] = [1, 4].map(|at| requantised(g, real(g, at), [7, 8], to));
        Ok(g.operand(0).call("where", &[x, y]))
    });
    let infer = rule(|cx| {
        agree_dtypes(cx, &[1, 4], &[0])?;
        scalars(cx, &[2, 3, 5, 6, 7, 8])?;
        let shapes = [cx.input_shape(0), cx.input_shape(1), cx.input_shape(4)];
        match cx.broadcast(&shapes)? {
            Some(dims) => cx.set_output_dims(0, dims),
            None => Ok(()),
        }
    });
    define("qlinear_where", "Elements of one or the other quantised tensor, quantised.", compute, infer)
        .operand("condition", BOOLS)
        .group("X", BYTES)
        .operand("x_scale", SCALE)
        .group("x_zero_point", BYTES)
        .group("Y", BYTES)
        .operand("y_scale", SCALE)
        .group("y_zero_point", BYTES)
        .operand("z_scale", SCALE)
        .group("z_zero_point", BYTES)
        .contrib("QLinearWhere")
        .not_differentiable(ROUNDS)
}

fn concat() -> OpDef {
    let compute = formula(|g, cx| {
        let out = &cx.outputs[0];
        let axis = g.check(normalize_axis(cx.params.int("axis").unwrap_or(0), out.rank()))?;
        let count = (cx.inputs.len() - 2) / 3;
        let parts: Vec<Tensor<'_>> =
            (0..count).map(|i| requantised(g, real(g, 2 + 3 * i), [0, 1], out.dtype)).collect();
        Ok(g.concat(&parts, axis))
    });
    let infer = rule(|cx| {
        let count = cx.input_count();
        reject_if(count < 5 || count % 3 != 2, || {
            format!("{count} operands: expected scale and zero point of the result, then three for each tensor")
        })?;
        cx.same_dtype(0, 1)?;
        let tensors: Vec<usize> = (2..count).step_by(3).collect();
        tensors.iter().try_for_each(|&i| scalars(cx, &[i + 1, i + 2]))?;
        let mut out: Option<Vec<Dim>> = None;
        let (mut total, mut place) = (Some(0), 0);
        for i in tensors {
            cx.set_input_dtype(i + 1, DType::F32)?;
            let Some(dims) = open_rank_in(cx, i, 1..=usize::MAX)? else { return Ok(()) };
            place = normalize_axis(cx.params.int("axis").unwrap_or(0), dims.len())?;
            total = total.zip(dims[place].as_const()).map(|(a, b)| a + b);
            if let Some(first) = &out {
                reject_if(first.len() != dims.len(), || {
                    format!("{}: expected rank {}", cx.input_name(i), first.len())
                })?;
                for axis in (0..dims.len()).filter(|axis| *axis != place) {
                    cx.unify_dims(first[axis], dims[axis], &format!("{}, axis {axis}", cx.input_name(i)))?;
                }
            }
            out.get_or_insert(dims);
        }
        let out = out.unwrap_or_default();
        let dims: Vec<Option<Dim>> = out
            .iter()
            .enumerate()
            .map(|(axis, d)| if axis == place { total.map(Dim::Const) } else { Some(*d) })
            .collect();
        partial(cx, 0, &dims)
    });
    let doc = "Quantised tensors joined along an axis, quantised. Each is followed by its scale and zero point.";
    define("qlinear_concat", doc, compute, infer)
        .operand("Y_scale", SCALE)
        .operand("Y_zero_point", BYTES)
        .operand("inputs", &[DType::I8, DType::U8, DType::F32])
        .variadic()
        .required("axis", ParamKind::Int, "axis joined along")
        .contrib("QLinearConcat")
        .not_differentiable(ROUNDS)
}
