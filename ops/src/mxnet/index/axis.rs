//! Positions along one axis: take, pick, one_hot, where, masks.

use tensorc_abi::{ExternFn, FindOp};

use super::in_range;
use crate::host::{chosen, finding_where};
use crate::index::all_but;
use crate::mxnet::reduce::line;
use crate::prelude::*;

/// What a mask or a condition may be.
const ANY: &[DType] = &[];

pub fn ops() -> Vec<OpDef> {
    vec![take(), batch_take(), pick(), one_hot(), choose(), boolean_mask(), index_copy(), index_array()]
}

/// `indices` as positions in `0..n`, i64.
fn positions(indices: Tensor<'_>, n: u64, wrap: bool) -> Result<Tensor<'_>> {
    let g = indices.graph();
    Ok(g.map(&[indices], DType::I64, &indices.dims()?, |_, a| in_range(&a[0].cast(DType::I64), n, wrap)))
}

/// The extent of an axis as a number: positions along it are tested against that.
fn number(dims: &Extents, axis: usize) -> u64 {
    dims.at(axis).fixed() as u64
}

/// `indices` as positions, i64. The first that is out of range, also below zero, is an error of the run.
fn checked(indices: Tensor<'_>, n: u64, axis: usize) -> Result<Tensor<'_>> {
    let indices = indices.convert(DType::I64);
    let ty = indices.ty()?;
    let sizes = vec![ty.bytes()];
    let check = ExternFn::new("take", sizes.clone(), sizes, 0, move |call| {
        let [from] = call.inputs else { return Err("one operand is expected".to_owned()) };
        for word in from.as_chunks().0 {
            let index = i64::from_le_bytes(*word);
            if !(0..n as i64).contains(&index) {
                return Err(format!("index {index} is out of range for axis {axis} of extent {n}"));
            }
        }
        call.outputs.iter_mut().for_each(|to| to.copy_from_slice(from));
        Ok(())
    });
    Ok(indices.then(|b, indices| Ok(b.prim(Prim::Extern(check), &[indices], &[ty])?[0])))
}

/// Extent 0 has no position to move an index to.
fn not_empty(cx: &InferCtx<'_>, dim: Dim, count: &[Dim]) -> Result<(), OpError> {
    match dim {
        Dim::Const(0) if !count.contains(&Dim::Const(0)) => {
            Err(OpError(format!("{}: an axis without elements is indexed", cx.input_name(0))))
        }
        _ => Ok(()),
    }
}

fn wraps(cx: &Params) -> bool {
    cx.str("mode") == Some("wrap")
}

fn take() -> OpDef {
    let compute = formula(|g, cx| {
        let [data, indices] = g.operands();
        let dims = data.dims()?;
        let axis = normalize_axis(cx.params.int("axis").unwrap_or(0), dims.len()).or_fail(&g)?;
        let indices = match cx.params.str("mode") {
            Some("raise") => checked(indices, number(&dims, axis), axis)?,
            _ => positions(indices, number(&dims, axis), wraps(cx.params))?,
        };
        Ok(data.gather(indices, axis))
    });
    let infer = shape_rule(|cx| {
        let (Some(data), Some(indices)) = (cx.open_dims(0), cx.open_dims(1)) else { return Ok(()) };
        let axis = cx.axis(cx.params.int("axis").unwrap_or(0), data.len())?;
        not_empty(cx, data[axis], &indices)?;
        cx.set_output_dims(0, [&data[..axis], &indices[..], &data[axis + 1..]].concat())
    });
    define("mx_take", "Slices of `a` along `axis` at the given indices.", compute, infer)
        .operand("a", ANY)
        .operand("indices", NUMBERS)
        .param("axis", 0, "axis indexed")
        .choice("mode", &["clip", "wrap", "raise"], "clip", "what becomes of an index out of range")
        .mxnet("take")
}

/// The element of every line along `axis` at that line's position; `index` has extent 1 there. The gradient of
/// the sum of a selection is the selection of the gradient, without writes at computed positions.
fn selected<'g>(data: Tensor<'g>, index: Tensor<'g>, axis: usize) -> Tensor<'g> {
    let chosen = data.map_with(&[index], |s, a| {
        let zero = a[0].lit(0.0);
        a[1].eq(&s.coord(axis)).select(&a[0], &zero)
    });
    chosen.sum(&[axis])
}

fn batch_take() -> OpDef {
    let compute = formula(|g, cx| {
        let [data, indices] = g.operands();
        let dims = data.dims()?;
        let indices = positions(indices, number(&dims, 1), false)?.reshaped(Extents::of([dims.at(0), Extent::ONE]));
        Ok(selected(data, indices, 1).reshaped(&cx.outputs[0].dims))
    });
    let infer = shape_rule(|cx| {
        let Some(data) = open_rank_in(cx, 0, 2..=2)? else { return Ok(()) };
        shaped(cx, 1, &data[..1])?;
        cx.set_output_dims(0, [data[0]])
    });
    define("mx_batch_take", "`a[i, indices[i]]`, clamped.", compute, infer)
        .operands(&["a", "indices"], NUMBERS)
        .not_differentiable("MXNet defines no gradient of it; `pick` has one")
        .mxnet("batch_take")
}

/// The axis of `pick`, `None` for all in row-major order.
fn pick_axis(params: &Params) -> Option<i64> {
    params.int("axis").filter(|a| *a != ParamValue::NONE)
}

fn pick() -> OpDef {
    let compute = formula(|g, cx| {
        let ([data, index], out) = (g.operands(), &cx.outputs[0].dims);
        let (data, axis) = line(data, pick_axis(cx.params))?;
        let mut kept = data.dims()?;
        let index = positions(index, number(&kept, axis), wraps(cx.params))?;
        if pick_axis(cx.params).is_none() {
            return Ok(data.gather(index, 0).reshaped(out));
        }
        kept.set(axis, 1);
        Ok(selected(data, index.reshaped(&kept), axis).reshaped(out))
    });
    let infer = shape_rule(|cx| {
        let Some(data) = cx.open_dims(0) else { return Ok(()) };
        let keep = cx.params.flag("keepdims");
        let Some(axis) = pick_axis(cx.params) else {
            return cx.copy_shape(0, 1);
        };
        let axis = cx.axis(axis, data.len())?;
        let (mut kept, mut removed) = (data.to_vec(), data.to_vec());
        kept[axis] = Dim::Const(1);
        removed.remove(axis);
        // The index may have the axis, with extent 1, whatever the result has.
        match cx.open_dims(1) {
            Some(index) if index.len() == kept.len() => shaped(cx, 1, &kept)?,
            _ => cx.set_input_dims(1, removed.iter().copied())?,
        }
        not_empty(cx, data[axis], &removed)?;
        cx.set_output_dims(0, if keep { kept } else { removed })
    });
    define("mx_pick", "The element of every line along `axis` at the line's index.", compute, infer)
        .operands(&["data", "index"], NUMBERS)
        .param("axis", -1, "axis indexed; None: that of the flattened operand")
        .param("keepdims", false, "keep the axis with extent 1")
        .choice("mode", &["clip", "wrap"], "clip", "what becomes of an index out of range")
        .named(&["pick", "choose_element_0index"])
}

fn one_hot() -> OpDef {
    let compute = formula(|g, cx| {
        let (indices, out) = (g.operand(0), &cx.outputs[0]);
        let column: Extents = indices.dims()?.all().chain([Extent::ONE]).collect();
        let indices = indices.reshaped(column);
        let value = |name: &str, default: f64| cx.params.float(name).unwrap_or(default);
        let (on, off) = (value("on_value", 1.0), value("off_value", 0.0));
        let wide = compute_type(out.dtype);
        Ok(g.map(&[indices], out.dtype, &out.dims, |s, a| {
            let hit = a[0].cast(DType::I64).eq(&s.coord(out.dims.len() - 1));
            hit.select(&s.number(wide, on), &s.number(wide, off))
        }))
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, cx.params.dtype("dtype").unwrap_or(DType::F32))?;
        let depth = Dim::Const(cx.params.int("depth").unwrap_or(0).max(0) as u64);
        let Some(indices) = cx.open_dims(0) else { return Ok(()) };
        cx.set_output_dims(0, indices.iter().copied().chain([depth]))
    });
    define("mx_one_hot", "`on_value` where the new last axis equals the index, else `off_value`.", compute, infer)
        .operand("indices", NUMBERS)
        .required("depth", ParamKind::Int, "extent of the new axis")
        .within(0.0, f64::from(i32::MAX))
        .param("on_value", 1.0, "value at the index")
        .param("off_value", 0.0, "value elsewhere")
        .param("dtype", DType::F32, "type of the result")
        .no_gradient()
        .mxnet("one_hot")
}

fn choose() -> OpDef {
    let compute = formula(|g, _| {
        let [condition, x, y] = g.operands();
        let (dims, rank) = (condition.dims()?, x.dims()?.len());
        let holds = g.map(&[condition], DType::Bool, &dims, |_, a| a[0].cast(DType::Bool));
        let dims: Extents = dims.all().chain(std::iter::repeat_n(Extent::ONE, rank - dims.len())).collect();
        Ok(holds.reshaped(&dims).call("where", &[x, y]))
    });
    let infer = rule(|cx| {
        for i in [1, 2] {
            let (shape, other) = (cx.output_shape(0), cx.input_shape(i));
            cx.set_output_shape(0, other)?;
            cx.set_input_shape(i, shape)?;
            cx.same_dtype(0, i)?;
        }
        let Some(dims) = cx.output_shape(0).dims().map(<[Dim]>::to_vec) else { return Ok(()) };
        match cx.open_dims(0) {
            Some(condition) if condition.len() == 1 && !dims.is_empty() => shaped(cx, 0, &dims[..1]),
            _ => cx.set_input_dims(0, dims),
        }
    });
    let doc = "x where the condition is not zero, else y. The condition has their shape, or chooses slices along the \
               first axis.";
    define("mx_where", doc, compute, infer).operand("condition", ANY).groups(&["x", "y"], ANY).mxnet("where")
}

fn boolean_mask() -> OpDef {
    let infer = shape_rule(|cx| {
        let Some(data) = cx.open_dims(0) else { return Ok(()) };
        let axis = cx.axis(cx.params.int("axis").unwrap_or(0), data.len())?;
        shaped(cx, 1, &data[axis..=axis])?;
        all_but(cx, 0, &data, axis, None)
    });
    let finds = |params: &Params, rank| {
        let axis = normalize_axis(params.int("axis").unwrap_or(0), rank)?;
        Ok(FindOp::Compress { axis: Some(axis as u32) })
    };
    let admits = |params: &Params, args: &[Option<TensorData>]| {
        let (Some(Some(data)), Some(Some(index))) = (args.first(), args.get(1)) else {
            return Err("operands are missing".into());
        };
        let axis = normalize_axis(params.int("axis").unwrap_or(0), data.dims().len())?;
        match index.dims() == &data.dims()[axis..=axis] {
            true => Ok(()),
            false => Err(format!("`index` has shape {:?}, the axis {}", index.dims(), data.dims()[axis]).into()),
        }
    };
    let doc = "The slices along `axis` where `index` is not zero.";
    finding_where("mx_boolean_mask", doc, admits, finds, infer)
        .operand("data", ANY)
        .operand("index", NUMBERS)
        .param("axis", 0, "axis masked")
        .found_as(|g, params, _| {
            let axis = params.int("axis").unwrap_or(0);
            Ok(vec![chosen(g, Some(axis), "mx_boolean_mask")])
        })
        .mxnet("_contrib_boolean_mask")
}

/// The index vector as a column, which the scatter operators take.
fn column(index: Tensor<'_>, n: u64) -> Result<Tensor<'_>> {
    let index = positions(index, n, false)?;
    Ok(index.reshaped([index.ty()?.len(), 1]))
}

fn index_copy() -> OpDef {
    let compute = formula(|g, cx| {
        let [old, index, new] = g.operands();
        Ok(old.call("scatter_nd", &[column(index, cx.outputs[0].dims[0])?, new]))
    });
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        let (Some(old), Some(index)) = (rank_in(cx, 0, 1..=usize::MAX)?, rank_in(cx, 1, 1..=1)?) else {
            return Ok(());
        };
        shaped(cx, 2, &[&index[..], &old[1..]].concat())
    });
    define("mx_index_copy", "`old_tensor` with the slices at the given positions replaced.", compute, infer)
        .group("old_tensor", ANY)
        .operand("index_vector", NUMBERS)
        .group("new_tensor", ANY)
        .gradient(derivative(|g, cx| {
            let (head, index, n) = (g.head(cx, 0), g.operand(1), cx.node.outputs[0].dims[0]);
            let zeros = g.filled(cx.node.inputs[2].as_ref().unwrap_or(&cx.node.outputs[0]), 0.0);
            let old = head.call("scatter_nd", &[column(index, n)?, zeros]);
            Ok(vec![Some(old), None, Some(head.gather(positions(index, n, false)?, 0))])
        }))
        .mxnet("_contrib_index_copy")
}

fn array_axes(cx: &Params, rank: usize) -> Result<Vec<usize>, OpError> {
    match cx.ints("axes") {
        Some(axes) => axes.iter().map(|&a| normalize_axis(a, rank)).collect(),
        None => Ok((0..rank).collect()),
    }
}

fn index_array_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let out = &cx.outputs[0];
    let rank = out.dims.len() - 1;
    let axes = array_axes(cx.params, rank).or_fail(&g)?;
    Ok(g.map(&[], out.dtype, &out.dims, |s, _| {
        let which = s.coord(rank);
        let start: Ex = s.number(DType::I64, 0.0);
        axes.iter()
            .enumerate()
            .fold(start, |value, (i, &axis)| which.eq(&which.lit(i as f64)).select(&s.coord(axis), &value))
    }))
}

fn index_array() -> OpDef {
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I64)?;
        let Some(dims) = cx.open_dims(0) else { return Ok(()) };
        let count = array_axes(cx.params, dims.len())?.len() as u64;
        cx.set_output_dims(0, dims.iter().copied().chain([Dim::Const(count)]))
    });
    let doc = "The coordinates of every element, along a new last axis.";
    define("mx_index_array", doc, formula(index_array_body), infer)
        .operand("data", ANY)
        .maybe("axes", ParamKind::Ints, "axes whose coordinates are wanted; default: all")
        .no_gradient()
        .mxnet("_contrib_index_array")
}
