//! Inference rules that several operator families share.

use std::ops::RangeInclusive;

use tensorc_ir::diag::Result;
use tensorc_ir::extent::fixed;
use tensorc_ir::infer::{InferCtx, normalize_axis};
use tensorc_ir::op::{NodeCtx, OpError};
use tensorc_ir::{Dim, Dims, Extent, MAX_RANK, Shape};

/// States an output's shape of which some axes are not known yet (`None`).
///
/// Unknown axes keep the variables the output already has, so that stating the same facts again
/// learns nothing.
pub fn partial(cx: &mut InferCtx<'_>, output: usize, dims: &[Option<Dim>]) -> Result<(), OpError> {
    let old = match cx.output_shape(output) {
        Shape::Ranked(old) if old.len() == dims.len() => Some(old),
        _ => None,
    };
    let dims: Vec<Dim> = dims
        .iter()
        .enumerate()
        .map(|(i, d)| match (d, &old) {
            (Some(d), _) => *d,
            (None, Some(old)) => old[i],
            (None, None) => cx.fresh(),
        })
        .collect();
    cx.set_output_dims(output, dims)
}

/// Numbers that a table which the compiler computes may hold.
const MAX_TABULATED: u64 = 1 << 24;

/// Whether the compiler may compute a table of so many rows.
///
/// # Errors
/// It would be too large.
pub fn tabulated(rows: u64, width: u64) -> Result<(), OpError> {
    reject_if(rows.checked_mul(width).is_none_or(|numbers| numbers > MAX_TABULATED), || {
        format!("a table of {rows} times {width} numbers is too large; it may have {MAX_TABULATED}")
    })
}

/// An error if the condition holds.
pub fn reject_if<W: Into<OpError>>(condition: bool, why: impl FnOnce() -> W) -> Result<(), OpError> {
    if condition { Err(why().into()) } else { Ok(()) }
}

/// The axes of an output whose rank has been stated.
pub fn output_dims(cx: &InferCtx<'_>, output: usize) -> Vec<Dim> {
    cx.output_shape(output).dims().map(<[Dim]>::to_vec).unwrap_or_default()
}

/// The output has the type and shape of an operand, both ways.
pub fn same(cx: &mut InferCtx<'_>, output: usize, input: usize) -> Result<(), OpError> {
    cx.same_dtype(output, input)?;
    match cx.input_shape(input) {
        Shape::Unranked => {
            let shape = cx.output_shape(output);
            cx.set_input_shape(input, shape)
        }
        shape => cx.set_output_shape(output, shape),
    }
}

/// The result has the element type that a parameter states, else that of the first operand.
pub fn dtype_or_first(cx: &mut InferCtx<'_>, parameter: &str) -> Result<(), OpError> {
    match cx.params.dtype(parameter) {
        Some(dtype) => cx.set_output_dtype(0, dtype),
        None => cx.same_dtype(0, 0),
    }
}

/// An operand has the element type of another, unless it is known to have one of its own.
pub fn default_dtype(cx: &mut InferCtx<'_>, i: usize, from: usize) -> Result<(), OpError> {
    match cx.input_dtype(from) {
        Some(dtype) if cx.input_dtype(i).is_none() => cx.set_input_dtype(i, dtype),
        _ => Ok(()),
    }
}

/// Elements of a static integer operand, if it is known.
pub fn ints(cx: &InferCtx<'_>, i: usize) -> Option<Vec<i64>> {
    extents(cx, i).map(fixed)
}

/// Elements of a static integer operand, if it is known, which may depend on symbols.
pub fn extents(cx: &InferCtx<'_>, i: usize) -> Option<Vec<Extent>> {
    cx.value(i).map(|v| v.extents())
}

/// Elements of a static integer operand at lowering; an error if it is absent.
pub fn need_ints(cx: &NodeCtx<'_>, i: usize, name: &str) -> Result<Vec<i64>, OpError> {
    need_extents(cx, i, name).map(fixed)
}

/// As [`need_ints`], of elements that may depend on symbols.
pub fn need_extents(cx: &NodeCtx<'_>, i: usize, name: &str) -> Result<Vec<Extent>, OpError> {
    match cx.value(i) {
        Some(v) => Ok(v.extents()),
        None => Err(OpError(format!("operand `{name}` has no value at compile time"))),
    }
}

/// The length of a one-dimensional operand, if its shape is known, and tensors have as many axes.
pub fn length(cx: &InferCtx<'_>, i: usize) -> Option<usize> {
    match cx.input_dims(i)?.first() {
        Some(Dim::Const(n)) => usize::try_from(*n).ok().filter(|n| *n <= MAX_RANK),
        _ => None,
    }
}

/// Maps every axis to `0..rank`; repeated ones are an error.
pub fn axes(axes: &[i64], rank: usize) -> Result<Vec<usize>, OpError> {
    let mut out = vec![];
    for &a in axes {
        let axis = normalize_axis(a, rank)?;
        reject_if(out.contains(&axis), || format!("axis {a} is given twice"))?;
        out.push(axis);
    }
    Ok(out)
}

/// The numpy broadcast of several axis lists; axes that are not decided yet are `None`.
pub fn broadcast(lists: &[&[Dim]]) -> Result<Vec<Option<Dim>>, OpError> {
    let rank = lists.iter().map(|l| l.len()).max().unwrap_or(0);
    let mut out = vec![Some(Dim::Const(1)); rank];
    for list in lists {
        let lead = rank - list.len();
        for (i, &d) in list.iter().enumerate() {
            let known = &mut out[lead + i];
            let own = d.as_extent();
            *known = match (known.map(|k| (k, k.as_extent())), own) {
                (Some((k, Some(a))), Some(b)) if a.is_surely(b) => Some(k),
                (Some((_, Some(a))), _) if a == 1 => Some(d),
                (k, Some(b)) if b == 1 => k.map(|(k, _)| k),
                (Some((_, Some(a))), Some(b)) if a != b => {
                    return Err(OpError(format!("axis {}: cannot broadcast {b} to {a}", lead + i)));
                }
                (_, Some(_)) => Some(d),
                (Some((k, _)), None) if k == d => Some(d),
                (Some((k, Some(_))), None) => Some(k),
                _ => None,
            };
        }
    }
    Ok(out)
}

/// An operand that must have the given rank: states fresh axes for it if nothing is known.
pub fn ranked(cx: &mut InferCtx<'_>, i: usize, rank: usize) -> Result<Vec<Dim>, OpError> {
    open_ranked(cx, i, rank)?;
    Ok(cx.input_dims(i).map(|d| d.to_vec()).unwrap_or_default())
}

/// As [`ranked`], of extents that may depend on symbols.
pub fn open_ranked(cx: &mut InferCtx<'_>, i: usize, rank: usize) -> Result<Vec<Dim>, OpError> {
    if cx.open_dims(i).is_none() {
        let dims: Dims = (0..rank).map(|_| cx.fresh()).collect();
        cx.set_input_dims(i, dims)?;
    }
    match cx.open_dims(i) {
        Some(dims) if dims.len() == rank => Ok(dims.to_vec()),
        found => {
            let found = found.map_or(0, |d| d.len());
            Err(OpError(format!("{}: expected rank {rank}, found rank {found}", cx.input_name(i))))
        }
    }
}

/// The axes of an operand that is given and whose rank is known.
fn present(cx: &InferCtx<'_>, i: usize) -> Option<Vec<Dim>> {
    if cx.has_input(i) { cx.input_dims(i).map(|d| d.to_vec()) } else { None }
}

/// The axes of an operand whose rank must lie in a range, if they are known.
pub fn rank_in(cx: &InferCtx<'_>, i: usize, ranks: RangeInclusive<usize>) -> Result<Option<Vec<Dim>>, OpError> {
    let dims = open_rank_in(cx, i, ranks)?;
    Ok(dims.and_then(|_| present(cx, i)))
}

/// As [`rank_in`], of extents that may depend on symbols.
pub fn open_rank_in(cx: &InferCtx<'_>, i: usize, ranks: RangeInclusive<usize>) -> Result<Option<Vec<Dim>>, OpError> {
    let Some(dims) = cx.open_dims(i).filter(|_| cx.has_input(i)).map(|d| d.to_vec()) else { return Ok(None) };
    if ranks.contains(&dims.len()) {
        return Ok(Some(dims));
    }
    let expected = match (*ranks.start(), *ranks.end()) {
        (least, most) if least == most => least.to_string(),
        (least, usize::MAX) => format!("at least {least}"),
        (least, most) => format!("{least} to {most}"),
    };
    Err(OpError(format!("{}: expected rank {expected}, found rank {}", cx.input_name(i), dims.len())))
}

/// An operand must have the given axes, as far as its rank is known.
pub fn shaped(cx: &mut InferCtx<'_>, i: usize, expected: &[Dim]) -> Result<(), OpError> {
    let Some(found) = open_rank_in(cx, i, expected.len()..=expected.len())? else { return Ok(()) };
    let name = cx.input_name(i);
    let pairs = expected.iter().zip(&found).enumerate();
    pairs.into_iter().try_for_each(|(axis, (e, f))| cx.unify_dims(*e, *f, &format!("{name}, axis {axis}")))
}

/// An operand must broadcast to the given axes without enlarging them.
pub fn broadcasts_to(cx: &InferCtx<'_>, i: usize, to: &[Dim]) -> Result<(), OpError> {
    let Some(dims) = open_rank_in(cx, i, 0..=to.len())? else { return Ok(()) };
    let lead = to.len() - dims.len();
    for (axis, (found, expected)) in dims.iter().zip(&to[lead..]).enumerate() {
        if let (Some(found), Some(expected)) = (found.as_extent(), expected.as_extent())
            && found != expected
            && found != 1
        {
            let name = cx.input_name(i);
            return Err(OpError(format!("{name}, axis {axis}: expected 1 or {expected}, found {found}")));
        }
    }
    Ok(())
}

/// The operand must have exactly one element, as far as its shape is known.
pub fn one_element(cx: &InferCtx<'_>, i: usize) -> Result<(), OpError> {
    let Some(dims) = present(cx, i) else { return Ok(()) };
    match dims.iter().map(|d| d.as_const()).product::<Option<u64>>() {
        Some(n) if n != 1 => Err(OpError(format!("{}: expected one element, found {n}", cx.input_name(i)))),
        _ => Ok(()),
    }
}

/// An extent must be a multiple of a number, if it is known; `what` names it.
pub fn multiple_of(extent: Dim, of: u64, what: &str) -> Result<(), OpError> {
    match extent {
        Dim::Const(n) if n % of != 0 => Err(OpError(format!("{what}: expected a multiple of {of}, found {n}"))),
        _ => Ok(()),
    }
}

/// An axis of an operand must be no longer than `most`.
pub fn no_longer(cx: &InferCtx<'_>, i: usize, axis: usize, found: Dim, most: Dim) -> Result<(), OpError> {
    match (found.as_extent(), most.as_extent()) {
        (Some(n), Some(most)) if n > most => {
            let name = cx.input_name(i);
            Err(OpError(format!("{name}, axis {axis}: expected at most {most} elements, found {n}")))
        }
        _ => Ok(()),
    }
}

pub fn axis_of(cx: &NodeCtx<'_>, rank: usize) -> Result<usize, OpError> {
    normalize_axis(cx.params.int("axis").unwrap_or(0), rank)
}

/// These operands and results have one element type, whichever is known first.
pub fn agree_dtypes(cx: &mut InferCtx<'_>, inputs: &[usize], outputs: &[usize]) -> Result<(), OpError> {
    let known =
        inputs.iter().find_map(|&i| cx.input_dtype(i)).or_else(|| outputs.iter().find_map(|&i| cx.output_dtype(i)));
    let Some(dtype) = known else { return Ok(()) };
    inputs.iter().try_for_each(|&i| cx.set_input_dtype(i, dtype))?;
    outputs.iter().try_for_each(|&i| cx.set_output_dtype(i, dtype))
}

/// These operands and results have one shape, whichever is known first.
pub fn agree_shapes(cx: &mut InferCtx<'_>, inputs: &[usize], outputs: &[usize]) -> Result<(), OpError> {
    let ranked = |shape: Shape| matches!(shape, Shape::Ranked(_)).then_some(shape);
    let known = inputs
        .iter()
        .find_map(|&i| ranked(cx.input_shape(i)))
        .or_else(|| outputs.iter().find_map(|&i| ranked(cx.output_shape(i))));
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
