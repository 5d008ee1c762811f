//! Joining arrays, cutting them into parts, adding them up.

use super::reshape::with_new_axis;
use crate::prelude::*;
use crate::rules::axis_of;
use crate::slicing::joined;

pub fn ops() -> Vec<OpDef> {
    vec![concat(), stack(), slice_channel(), split_v2(), add_n(), amp_multicast()]
}

fn all_inputs(cx: &InferCtx<'_>) -> Vec<usize> {
    (0..cx.input_count()).collect()
}

fn all_outputs(cx: &InferCtx<'_>) -> Vec<usize> {
    (0..cx.output_count()).collect()
}

fn concat() -> OpDef {
    let compute = formula(|g, cx| {
        let axis = normalize_axis(cx.params.int("dim").unwrap_or(1), cx.outputs[0].rank()).or_fail(&g)?;
        Ok(g.op("concat", &g.given(), Params::new().with("axis", axis as i64)))
    });
    let infer = rule(|cx| {
        agree_dtypes(cx, &all_inputs(cx), &[0])?;
        joined(cx, cx.params.int("dim").unwrap_or(1))
    });
    define("mx_concat", "Joins the operands along an axis.", compute, infer)
        .group("arg", &[])
        .variadic()
        .param("dim", 1, "The axis.")
        .named(&["Concat", "concat", "_rnn_param_concat"])
}

fn stack() -> OpDef {
    let compute = formula(|g, cx| {
        let axis = axis_of(cx, cx.outputs[0].rank()).or_fail(&g)?;
        let mut dims = cx.outputs[0].dims.clone();
        dims.set(axis, 1);
        let parts: Vec<_> = g.given().into_iter().map(|x| x.reshaped(&dims)).collect();
        Ok(g.op("concat", &parts, Params::new().with("axis", axis as i64)))
    });
    let infer = rule(|cx| {
        let inputs = all_inputs(cx);
        agree_dtypes(cx, &inputs, &[0])?;
        agree_shapes(cx, &inputs, &[])?;
        with_new_axis(cx, Dim::Const(inputs.len() as u64))
    });
    define("mx_stack", "Joins the operands along a new axis.", compute, infer)
        .group("arg", &[])
        .variadic()
        .param("axis", 0, "Position of the new axis.")
        .named(&["stack"])
}

/// The part from `start` along `axis`, of the given result shape.
fn part<'g>(x: Tensor<'g>, axis: usize, [start, len]: [Extent; 2], out: &Extents) -> Tensor<'g> {
    x.slice(axis, start, len).reshaped(out)
}

fn parts(params: &Params) -> usize {
    params.int("num_outputs").unwrap_or(1).max(1) as usize
}

fn squeezed(params: &Params) -> bool {
    params.flag("squeeze_axis")
}

fn slice_channel() -> OpDef {
    let compute = formulas(|g, cx| {
        let (x, dims) = (g.operand(0), g.operand(0).dims()?);
        let axis = normalize_axis(cx.params.int("axis").unwrap_or(1), dims.len()).or_fail(&g)?;
        let len = dims.at(axis).div_floor(parts(cx.params) as u64);
        Ok((0i64..).zip(cx.outputs).map(|(i, out)| part(x, axis, [len * i, len], &out.dims)).collect())
    });
    let infer = rule(|cx| {
        let count = parts(cx.params);
        reject_if(cx.output_count() > count, || format!("{} results asked for, there are {count}", cx.output_count()))?;
        let outputs = all_outputs(cx);
        agree_dtypes(cx, &[0], &outputs)?;
        agree_shapes(cx, &[], &outputs)?;
        let (axis, squeeze) = (cx.params.int("axis").unwrap_or(1), squeezed(cx.params));
        if cx.open_dims(0).is_none()
            && let Shape::Ranked(out) = cx.output_shape(0)
        {
            // From a part the whole.
            let rank = out.len() + usize::from(squeeze);
            let at = cx.axis(axis, rank)?;
            let mut dims: Dims = out;
            if !squeeze {
                dims.remove(at);
            }
            dims.insert(at, cx.fresh());
            cx.set_input_dims(0, dims)?;
        }
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let at = cx.axis(axis, x.len())?;
        if let Some(n) = x[at].as_extent()
            && (!Extent::from(count as u64).divides(n) || squeeze && n != count as u64)
        {
            return Err(OpError(format!("operand `data`, axis {at}: {n} cannot be divided into {count} parts")));
        }
        let mut dims: Vec<Option<Dim>> = x.iter().copied().map(Some).collect();
        if squeeze {
            dims.remove(at);
            cx.unify_dims(Dim::Const(count as u64), x[at], &format!("operand `data`, axis {at}"))?;
            partial(cx, 0, &dims)?;
            return agree_shapes(cx, &[], &outputs);
        }
        dims[at] = None;
        partial(cx, 0, &dims)?;
        agree_shapes(cx, &[], &outputs)?;
        let part = output_dims(cx, 0)[at];
        cx.relate(Equation::Affine { out: x[at], input: part, mul: count as i64, add: 0, div: 1 })
    });
    define("mx_slice_channel", "Cuts an axis into equal parts.", compute, infer)
        .operand("data", &[])
        .outputs(1, usize::from(u16::MAX))
        .results(|params| ResultCount { visible: parts(params), listed: parts(params) })
        .required("num_outputs", ParamKind::Int, "Number of parts.")
        .within(1.0, f64::from(u16::MAX))
        .param("axis", 1, "The axis.")
        .param("squeeze_axis", false, "Drop the axis of parts of extent 1.")
        .named(&["SliceChannel", "split"])
}

/// Where the parts begin: equal sections, or the given positions (of which the first may be 0).
fn sections(params: &Params) -> usize {
    match params.int("sections").unwrap_or(0) {
        n if n > 0 => n as usize,
        _ => params.ints("indices").map_or(1, |list| list.len().max(1)),
    }
}

/// Start and length of each part of an axis of extent `n`.
fn cuts(params: &Params, n: u64) -> Result<Vec<[u64; 2]>, OpError> {
    let count = sections(params) as u64;
    if params.int("sections").unwrap_or(0) > 0 {
        return match n % count {
            0 => Ok((0..count).map(|i| [i * (n / count), n / count]).collect()),
            _ => Err(OpError(format!("operand `data`: {n} cannot be divided into {count} sections"))),
        };
    }
    let starts: Vec<u64> = params.ints("indices").unwrap_or(&[0]).iter().map(|&i| i.max(0) as u64).collect();
    let end = |i: usize| starts.get(i + 1).copied().unwrap_or(n);
    match (0..starts.len()).find(|&i| starts[i] > end(i) || end(i) > n) {
        Some(i) => Err(OpError(format!("parameter `indices`: entry {i} is {}, the axis has {n}", starts[i]))),
        None => Ok((0..starts.len()).map(|i| [starts[i], end(i) - starts[i]]).collect()),
    }
}

fn split_v2() -> OpDef {
    let compute = formulas(|g, cx| {
        let (x, dims) = (g.operand(0), g.operand(0).dims()?);
        let axis = normalize_axis(cx.params.int("axis").unwrap_or(1), dims.len()).or_fail(&g)?;
        let cuts = cuts(cx.params, dims.at(axis).fixed().max(0) as u64).or_fail(&g)?;
        let part = |(cut, out): ([u64; 2], &DenseType)| part(x, axis, cut.map(Extent::from), &out.dims);
        Ok(cuts.into_iter().zip(cx.outputs).map(part).collect())
    });
    let infer = rule(|cx| {
        let outputs = all_outputs(cx);
        agree_dtypes(cx, &[0], &outputs)?;
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let at = cx.axis(cx.params.int("axis").unwrap_or(1), x.len())?;
        let Some(n) = x[at].as_extent().map(|n| n.fixed().max(0) as u64) else { return Ok(()) };
        let squeeze = squeezed(cx.params);
        for (i, [_, len]) in cuts(cx.params, n)?.into_iter().enumerate().take(outputs.len()) {
            let mut dims = x.to_vec();
            if squeeze && len == 1 {
                dims.remove(at);
            } else if squeeze {
                return Err(OpError(format!("part {i} has extent {len}, which cannot be dropped")));
            } else {
                dims[at] = Dim::Const(len);
            }
            cx.set_output_dims(i, dims)?;
        }
        Ok(())
    });
    define("mx_split_v2", "Cuts an axis at the given positions, or into equal sections.", compute, infer)
        .operand("data", &[])
        .outputs(1, usize::from(u16::MAX))
        .results(|params| ResultCount { visible: sections(params), listed: sections(params) })
        .required("indices", ParamKind::Ints, "Where the parts begin, the first at 0.")
        .param("axis", 1, "The axis.")
        .param("squeeze_axis", false, "Drop the axis of parts of extent 1.")
        .param("sections", 0, "Number of equal sections, in place of `indices`.")
        .named(&["_split_v2"])
}

fn add_n() -> OpDef {
    let fold = |args: &[Ex]| args[1..].iter().fold(args[0].clone(), |sum, x| sum + x);
    elementwise("mx_add_n", "Σ operands, left to right, all of one shape.", NUMBERS, &["arg"], move |_, a| fold(a))
        .edit(|d| d.infer = rule(agree))
        .variadic()
        .named(&["add_n", "ElementWiseSum"])
}

/// The widest (or narrowest) of the operands' float types.
fn common_dtype(cx: &InferCtx<'_>) -> Option<DType> {
    let types: Option<Vec<_>> = all_inputs(cx).into_iter().map(|i| cx.input_dtype(i)).collect();
    let narrow = cx.params.flag("cast_narrow");
    let types = types?.into_iter();
    if narrow { types.min_by_key(|d| d.size()) } else { types.max_by_key(|d| d.size()) }
}

fn amp_multicast() -> OpDef {
    let compute =
        formulas(|g, cx| Ok(g.given().into_iter().zip(cx.outputs).map(|(x, out)| x.cast(out.dtype)).collect()));
    let infer = rule(|cx| {
        let count = cx.output_count().min(cx.input_count());
        for i in 0..count {
            agree_shapes(cx, &[i], &[i])?;
        }
        let Some(dtype) = common_dtype(cx) else { return Ok(()) };
        (0..count).try_for_each(|i| cx.set_output_dtype(i, dtype))
    });
    let count = |params: &Params| params.int("num_outputs").unwrap_or(1).max(1) as usize;
    define("mx_amp_multicast", "The operands in their widest type, or their narrowest.", compute, infer)
        .operand("data_", FLOATS)
        .variadic()
        .outputs(1, usize::from(u16::MAX))
        .results(move |params| ResultCount { visible: count(params), listed: count(params) })
        .required("num_outputs", ParamKind::Int, "Number of operands and results.")
        .param("cast_narrow", false, "The narrowest type.")
        .named(&["amp_multicast"])
}
