//! What the entries for MXNet have in common: inference rules of operands that agree, axis lists.

use crate::prelude::*;

/// These operands and results have one element type, whichever is known first.
pub fn agree_dtypes(cx: &mut InferCtx<'_>, inputs: &[usize], outputs: &[usize]) -> Result<(), OpError> {
    let known =
        inputs.iter().find_map(|&i| cx.input(i).dtype).or_else(|| outputs.iter().find_map(|&i| cx.output(i).dtype));
    let Some(dtype) = known else { return Ok(()) };
    inputs.iter().try_for_each(|&i| cx.set_input_dtype(i, dtype))?;
    outputs.iter().try_for_each(|&i| cx.set_output_dtype(i, dtype))
}

/// These operands and results have one shape, whichever is known first.
pub fn agree_shapes(cx: &mut InferCtx<'_>, inputs: &[usize], outputs: &[usize]) -> Result<(), OpError> {
    let ranked = |shape: Shape| matches!(shape, Shape::Ranked(_)).then_some(shape);
    let known = inputs
        .iter()
        .find_map(|&i| ranked(cx.input(i).shape))
        .or_else(|| outputs.iter().find_map(|&i| ranked(cx.output(i).shape)));
    let Some(shape) = known else { return Ok(()) };
    inputs.iter().try_for_each(|&i| cx.set_input_shape(i, shape.clone()))?;
    outputs.iter().try_for_each(|&i| cx.set_output_shape(i, shape.clone()))
}

/// All operands and results have one shape and one element type.
pub fn agree(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    let (inputs, outputs): (Vec<usize>, Vec<usize>) =
        ((0..cx.input_count()).collect(), (0..cx.output_count()).collect());
    agree_dtypes(cx, &inputs, &outputs)?;
    agree_shapes(cx, &inputs, &outputs)
}

/// The operand is a vector of the given length.
pub fn vector(cx: &mut InferCtx<'_>, input: usize, len: Dim) -> Result<(), OpError> {
    cx.set_input_shape(input, Shape::Ranked([len].into_iter().collect()))
}

/// The axes a list selects, ascending: all of them without a list; the others if `exclude`.
pub fn selected(list: Option<&[i64]>, exclude: bool, rank: usize) -> Result<Vec<usize>, OpError> {
    let given = match list {
        None | Some([]) => (0..rank).collect(),
        Some(list) => list.iter().map(|&a| normalize_axis(a, rank)).collect::<Result<Vec<_>, _>>()?,
    };
    let all = list.is_none_or(<[i64]>::is_empty);
    Ok((0..rank).filter(|axis| given.contains(axis) != (exclude && !all)).collect())
}

/// An extent given as a parameter.
pub fn extent(n: i64, what: &str) -> Result<Dim, OpError> {
    match u64::try_from(n) {
        Ok(n) => Ok(Dim::Const(n)),
        Err(_) => Err(OpError(format!("parameter `{what}` is {n}"))),
    }
}
