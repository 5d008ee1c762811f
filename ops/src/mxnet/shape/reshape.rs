//! Regrouping and permuting axes.

use crate::prelude::*;
use crate::rules::axes;
use crate::shape::{permuted_dims, squeezed_dims};

pub fn ops() -> Vec<OpDef> {
    vec![
        reshape(),
        reshape_like(),
        expand_dims(),
        squeeze(),
        transpose(),
        cast("mx_cast", &["Cast", "cast"]),
        cast("mx_amp_cast", &["amp_cast"]),
    ]
}

/// An entry that only regroups elements: its body follows from the two shapes.
fn regroup(name: &'static str, doc: &'static str, infer: fn(&mut InferCtx<'_>) -> Result<(), OpError>) -> OpDef {
    let compute = formula(|g, cx| {
        let (from, out) = (g.operand(0).ty()?, &cx.outputs[0]);
        if from.dims.count() != out.dims.count() {
            return Err(g.fail(format!("operand `data`: {from} cannot become {out}")));
        }
        Ok(g.operand(0).reshaped(&out.dims))
    });
    define(name, doc, compute, shape_rule(infer))
}

/// What one group of codes makes of operand axes: both sides have the same product.
#[derive(Debug, PartialEq)]
struct AxisGroup {
    /// Operand axes, as a range.
    from: std::ops::Range<usize>,
    /// Extents of the result; `None` is open.
    to: Vec<Option<Dim>>,
}

/// The codes of `shape` against the operand's axes: 0 copies an axis, -2 all that remain, -3 joins two, -4
/// splits one into the next two entries; -1 is open and any other number an extent.
///
/// A group whose `from` is empty uses up an axis without being equal to it: -1 and plain extents, which the
/// product over all of them decides.
fn decode(codes: &[i64], x: &[Dim]) -> Result<Vec<AxisGroup>, OpError> {
    let mut groups = vec![];
    let (mut at, mut i) = (0, 0);
    let axis = |at: usize, code: i64| match x.get(at) {
        Some(d) => Ok(*d),
        None => {
            Err(OpError(format!("parameter `shape`: code {code} needs axis {at} of an operand of rank {}", x.len())))
        }
    };
    while i < codes.len() {
        match codes[i] {
            0 => {
                groups.push(AxisGroup { from: at..at + 1, to: vec![Some(axis(at, 0)?)] });
                at += 1;
            }
            -1 => {
                groups.push(AxisGroup { from: at..at, to: vec![None] });
                at += 1;
            }
            -2 => {
                let rest = x.get(at..).unwrap_or(&[]);
                groups.extend(
                    rest.iter().enumerate().map(|(k, d)| AxisGroup { from: at + k..at + k + 1, to: vec![Some(*d)] }),
                );
                at = at.max(x.len());
            }
            -3 => {
                let (a, b) = (axis(at, -3)?, axis(at + 1, -3)?);
                let joined = a.as_extent().zip(b.as_extent()).map(|(a, b)| Dim::of(a * b));
                groups.push(AxisGroup { from: at..at + 2, to: vec![joined] });
                at += 2;
            }
            -4 => {
                let (Some(&a), Some(&b)) = (codes.get(i + 1), codes.get(i + 2)) else {
                    return Err("parameter `shape`: -4 needs two entries after it".into());
                };
                let part = |n: i64, other: i64| match (n, other) {
                    (-1, -1) => Err("parameter `shape`: -4 has two open entries after it".into()),
                    (-1, other) => match axis(at, -4)?.as_extent() {
                        Some(whole) if other > 0 && Extent::of(other).divides(whole) => {
                            Ok(Some(Dim::of(whole / other)))
                        }
                        Some(whole) => Err(OpError(format!("parameter `shape`: {whole} cannot be split by {other}"))),
                        None => Ok(None),
                    },
                    (n, _) if n > 0 => Ok(Some(Dim::Const(n as u64))),
                    (n, _) => Err(OpError(format!("parameter `shape`: {n} after -4"))),
                };
                groups.push(AxisGroup { from: at..at + 1, to: vec![part(a, b)?, part(b, a)?] });
                at += 1;
                i += 2;
            }
            n if n > 0 => {
                groups.push(AxisGroup { from: at..at, to: vec![Some(Dim::Const(n as u64))] });
                at += 1;
            }
            n => return Err(OpError(format!("parameter `shape`: unknown code {n}"))),
        }
        i += 1;
    }
    Ok(groups)
}

/// States the result of the codes, and what follows for either side.
fn apply(cx: &mut InferCtx<'_>, codes: &[i64], reverse: bool) -> Result<(), OpError> {
    if codes.iter().filter(|n| **n == -1).count() > 1 && !codes.contains(&-4) {
        return Err("parameter `shape`: more than one entry is -1".into());
    }
    let Some(x) = cx.open_dims(0) else {
        // Plain extents are known without the operand.
        if codes.iter().all(|n| *n >= -1) {
            let dims: Vec<Option<Dim>> = codes.iter().map(|&n| (n > 0).then_some(Dim::Const(n as u64))).collect();
            partial(cx, 0, &dims)?;
        }
        return Ok(());
    };
    let mut x = x.to_vec();
    let mut codes = codes.to_vec();
    if reverse {
        x.reverse();
        codes.reverse();
    }
    let groups = decode(&codes, &x)?;
    let mut dims: Vec<Option<Dim>> = groups.iter().flat_map(|g| g.to.iter().copied()).collect();
    if reverse {
        dims.reverse();
    }
    partial(cx, 0, &dims)?;
    let mut out = output_dims(cx, 0);
    if reverse {
        out.reverse();
    }
    let mut right = vec![];
    let mut used = vec![false; x.len()];
    let mut at = 0;
    for g in &groups {
        let made = out[at..at + g.to.len()].to_vec();
        at += g.to.len();
        match g.from.is_empty() {
            true => right.extend(made),
            false => {
                g.from.clone().for_each(|axis| used[axis] = true);
                let whole = g.from.clone().map(|axis| x[axis]).collect();
                cx.relate(Equation::Product { left: made, right: whole })?;
            }
        }
    }
    let left = x.iter().zip(&used).filter(|(_, used)| !**used).map(|(dim, _)| *dim).collect();
    cx.relate(Equation::Product { left, right })
}

/// The codes, also from the parameters of old files.
fn codes(params: &Params) -> Option<(Vec<i64>, bool)> {
    match (params.ints("shape"), params.ints("target_shape")) {
        (Some(shape), _) if !shape.is_empty() => Some((shape.to_vec(), params.flag("reverse"))),
        (_, Some(target)) if !target.is_empty() => {
            // There 0 is what -1 is now, and the first axis may be kept.
            let mut list: Vec<i64> = target.iter().map(|&n| if n == 0 { -1 } else { n }).collect();
            if params.flag("keep_highest") {
                list[0] = 0;
            }
            Some((list, false))
        }
        _ => None,
    }
}

fn reshape() -> OpDef {
    let doc = "The elements in the same order under another shape. In `shape` 0 copies an axis, -1 follows from the \
               others, -2 copies all that remain, -3 joins two, -4 splits one into the next two entries.";
    regroup("mx_reshape", doc, |cx| match codes(cx.params) {
        Some((codes, reverse)) => apply(cx, &codes, reverse),
        None => Err("parameter `shape` is missing".into()),
    })
    .operand("data", &[])
    .param("shape", ParamValue::Ints(vec![]), "The new shape.")
    .param("reverse", false, "Match from the last axis.")
    .param("target_shape", ParamValue::Ints(vec![]), "Of old files: a shape in which 0 follows from the others.")
    .param("keep_highest", false, "Of old files: `target_shape` keeps axis 0.")
    .named(&["Reshape", "reshape"])
}

/// The half-open range of axes between two parameters.
fn axis_range(params: &Params, [begin, end]: [&str; 2], rank: usize) -> Result<std::ops::Range<usize>, OpError> {
    let r = rank as i64;
    let at = |name: &str, default: i64| {
        let n = params.int(name).unwrap_or(default);
        let n = if n < 0 { n + r } else { n };
        match (0..=r).contains(&n) {
            true => Ok(n as usize),
            false => Err(OpError(format!("parameter `{name}` is out of range for rank {rank}"))),
        }
    };
    let (begin_at, end_at) = (at(begin, 0)?, at(end, r)?);
    match begin_at <= end_at {
        true => Ok(begin_at..end_at),
        false => Err(OpError(format!("parameters `{begin}` and `{end}`: the range is empty from the wrong side"))),
    }
}

fn reshape_like() -> OpDef {
    let gradient = derivative(|g, cx| Ok(vec![Some(g.head(cx, 0).reshaped(&g.operand(0).dims()?)), None]));
    regroup("mx_reshape_like", "The elements of lhs under the shape of rhs, or a range of its axes.", |cx| {
        let (Some(x), Some(like)) = (cx.open_dims(0), cx.open_dims(1)) else { return Ok(()) };
        let own = axis_range(cx.params, ["lhs_begin", "lhs_end"], x.len())?;
        let other = axis_range(cx.params, ["rhs_begin", "rhs_end"], like.len())?;
        cx.relate(Equation::Product { left: x[own.clone()].to_vec(), right: like[other.clone()].to_vec() })?;
        cx.set_output_dims(0, [&x[..own.start], &like[other], &x[own.end..]].concat())
    })
    .operands(&["lhs", "rhs"], &[])
    .maybe("lhs_begin", ParamKind::Int, "First axis that is replaced; default: 0.")
    .maybe("lhs_end", ParamKind::Int, "End of the axes that are replaced; default: the rank.")
    .maybe("rhs_begin", ParamKind::Int, "First axis that replaces; default: 0.")
    .maybe("rhs_end", ParamKind::Int, "End of the axes that replace; default: the rank.")
    .gradient(gradient)
    .named(&["reshape_like"])
}

/// The result has an axis more than the first operand, of the given extent.
pub(super) fn with_new_axis(cx: &mut InferCtx<'_>, extent: Dim) -> Result<(), OpError> {
    let axis = cx.params.int("axis").unwrap_or(0);
    match (cx.input_shape(0), cx.output_shape(0)) {
        (Shape::Ranked(mut x), _) => {
            let at = cx.axis(axis, x.len() + 1)?;
            x.insert(at, extent);
            cx.set_output_dims(0, x)
        }
        (_, Shape::Ranked(mut out)) => {
            let at = cx.axis(axis, out.len())?;
            let own = out.remove(at);
            cx.unify_dims(extent, own, "output")?;
            cx.set_input_dims(0, out)
        }
        _ => Ok(()),
    }
}

fn expand_dims() -> OpDef {
    regroup("mx_expand_dims", "Inserts an axis of extent 1.", |cx| with_new_axis(cx, Dim::Const(1)))
        .operand("data", &[])
        .required("axis", ParamKind::Int, "Position of the new axis in the result.")
        .named(&["expand_dims"])
}

fn squeeze() -> OpDef {
    regroup("mx_squeeze", "Drops the given axes of extent 1, or all of them.", |cx| {
        let given = cx.params.ints("axis").map(<[i64]>::to_vec);
        let Some(mut dims) = squeezed_dims(cx, given)? else { return Ok(()) };
        if dims.is_empty() {
            // There are no arrays of rank 0.
            dims.push(Dim::Const(1));
        }
        cx.set_output_dims(0, dims)
    })
    .operand("data", &[])
    .maybe("axis", ParamKind::Ints, "Axes that are dropped; default: all of extent 1.")
    .named(&["squeeze"])
}

fn permutation(params: &Params, rank: usize) -> Result<Vec<usize>, OpError> {
    match params.ints("axes") {
        None | Some([]) => Ok((0..rank).rev().collect()),
        Some(list) if list.len() == rank => axes(list, rank),
        Some(list) => Err(OpError(format!("parameter `axes`: expected {rank} entries, found {}", list.len()))),
    }
}

fn transpose() -> OpDef {
    let compute = formula(|g, cx| {
        let x = g.operand(0);
        let perm = permutation(cx.params, x.dims()?.len()).or_fail(&g)?;
        let perm: Vec<i64> = perm.into_iter().map(|p| p as i64).collect();
        Ok(g.op("transpose", &[x], Params::new().with("perm", perm)))
    });
    let infer = shape_rule(|cx| permuted_dims(cx, permutation));
    define("mx_transpose", "Permutes the axes: result axis i is operand axis `axes[i]`.", compute, infer)
        .operand("data", &[])
        .param("axes", ParamValue::Ints(vec![]), "Default: the axes reversed.")
        .named(&["transpose"])
}

fn cast(name: &'static str, names: &[&'static str]) -> OpDef {
    let compute = formula(|g, cx| {
        let (x, to) = (g.operand(0), cx.outputs[0].dtype);
        Ok(if x.ty()?.dtype == to { x.call("identity", &[]) } else { x.cast(to) })
    });
    let gradient = derivative(|g, cx| Ok(vec![Some(g.head(cx, 0).cast(g.operand(0).ty()?.dtype))]));
    let infer = rule(|cx| {
        agree_shapes(cx, &[0], &[0])?;
        cx.set_output_dtype(0, cx.params.dtype("dtype").unwrap_or(DType::F32))
    });
    define(name, "The elements converted: floats to nearest even, integers truncate and saturate.", compute, infer)
        .operand("data", &[])
        .required("dtype", ParamKind::DType, "The result's type.")
        .gradient(gradient)
        .named(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(codes: &[i64], x: &[u64]) -> Vec<Option<u64>> {
        let dims: Vec<Dim> = x.iter().map(|n| Dim::Const(*n)).collect();
        let groups = decode(codes, &dims).expect("valid codes");
        groups.into_iter().flat_map(|g| g.to).map(|d| d.and_then(|d| d.as_const())).collect()
    }

    #[test]
    fn codes_read_the_operand_from_the_left() {
        assert_eq!(shape(&[4, 0, 2], &[2, 3, 4]), [Some(4), Some(3), Some(2)]);
        assert_eq!(shape(&[-3, -3], &[2, 3, 4, 5]), [Some(6), Some(20)]);
        assert_eq!(shape(&[-4, 1, -1, -2], &[2, 3, 4]), [Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!(shape(&[0, -1], &[2, 3, 5, 5]), [Some(2), None]);
    }
}
