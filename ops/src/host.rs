//! Operators whose result shapes depend on element values; they run on the host.

use tensorc_abi::FindOp;
use tensorc_kernels::{FindError, FindOperand, find, find_words};

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![nonzero(), compress(), unique(), non_max_suppression()]
}

/// An operator that finds elements: what it looks for, by parameters and the rank of the first operand.
pub fn finding(
    name: &'static str,
    doc: &'static str,
    finds: impl Fn(&Params, usize) -> Result<FindOp, OpError> + Clone + Send + Sync + 'static,
    infer: Infer,
) -> OpDef {
    finding_where(name, doc, |_, _| Ok(()), finds, infer)
}

/// The same, for operands that `admits` takes, which is what inference states of their types.
pub fn finding_where(
    name: &'static str,
    doc: &'static str,
    admits: impl Fn(&Params, &[Option<TensorData>]) -> Result<(), OpError> + Send + Sync + 'static,
    finds: impl Fn(&Params, usize) -> Result<FindOp, OpError> + Clone + Send + Sync + 'static,
    infer: Infer,
) -> OpDef {
    let op = finds.clone();
    let compute = host(move |cx, args| {
        admits(cx.params, args)?;
        let rank = args.first().and_then(Option::as_ref).map_or(0, |x| x.dims().len());
        found(op(cx.params, rank)?, args)
    });
    define(name, doc, compute, infer).edit(|def| def.finds = Some(Box::new(finds)))
}

/// What is found in some operands.
fn found(op: FindOp, args: &[Option<TensorData>]) -> Result<Vec<TensorData>, OpError> {
    let mut operands: Vec<Option<FindOperand<'_>>> = vec![];
    for x in args {
        operands.push(x.as_ref().map(|x| FindOperand { dtype: x.dtype(), dims: x.dims(), bytes: x.bytes() }));
    }
    let shapes: Vec<Option<&[u64]>> = operands.iter().map(|x| x.map(|x| x.dims)).collect();
    let mut words = vec![0; find_words(op, &shapes) as usize];
    let found = find(op, &operands, &mut words).map_err(|error| match error {
        FindError::Operand(i) => match shapes.get(i).copied().flatten() {
            Some(dims) => OpError(format!("operand {i}: {dims:?} is no shape that it takes")),
            None => OpError(format!("operand {i} is missing")),
        },
        FindError::Words => OpError("what is found has no place".into()),
    })?;
    let result = |i: usize| {
        let mut bytes = vec![0; found.bytes(i) as usize];
        found.write(i, &mut bytes);
        TensorData::new(DenseType::new(found.dtype(i), found.dims(i).collect::<Vec<_>>()), bytes.into())
    };
    let results: Option<Vec<TensorData>> = (0..op.results()).map(result).collect();
    results.ok_or_else(|| OpError("the result does not fill its shape".into()))
}

/// The slices of the first operand along an axis where the second is not zero, by their positions; without an axis, those elements.
pub fn chosen<'g>(g: GraphScope<'g>, axis: Option<i64>, name: &str) -> Tensor<'g> {
    let [x, condition] = g.operands();
    let (x, axis) = along(x, axis);
    let (rank_0, along) = (|n| g.scalar(Scalar::i64(n)), Params::new().with("axis", axis));
    let extent = x.call("shape", &[]).call("gather", &[rank_0(axis)]);
    let positions = rank_0(0).call("range", &[extent, rank_0(1)]);
    let chosen = g.op(name, &[positions, condition], Params::new().with("axis", 0));
    g.op("gather", &[x, chosen], along)
}

/// A tensor and one of its axes: the only one of the flattened tensor if none is given.
fn along(x: Tensor<'_>, axis: Option<i64>) -> (Tensor<'_>, i64) {
    match axis {
        Some(axis) => (x, axis),
        None => (x.call("reshape", &[x.graph().i64s(&[-1])]), 0),
    }
}

/// Of distinct elements, those that come first.
fn first_of_each<'g>(g: GraphScope<'g>, params: &Params, count: usize) -> Result<Vec<Tensor<'g>>> {
    let mut found = g.op_multi("unique", &[Some(g.operand(0))], params.clone(), count.max(2));
    let (x, axis) = along(g.operand(0), params.int("axis"));
    found[0] = g.op("gather", &[x, found[1]], Params::new().with("axis", axis));
    found.truncate(count);
    Ok(found)
}

/// The `axis` parameter as an axis of a tensor of this rank, if there is one.
fn axis(params: &Params, rank: usize) -> Result<Option<u32>, OpError> {
    let axis = params.int("axis").map(|axis| normalize_axis(axis, rank)).transpose()?;
    Ok(axis.map(|axis| axis as u32))
}

fn nonzero() -> OpDef {
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I64)?;
        let rank = cx.input_shape(0).rank().map(|r| Dim::Const(r as u64));
        partial(cx, 0, &[rank, None])
    });
    let doc = "The coordinates of the non-zero elements, in row-major order.";
    finding("nonzero", doc, |_, _| Ok(FindOp::NonZero), infer).operand("X", &DType::COMPUTED).onnx("NonZero", 9)
}

fn compress() -> OpDef {
    let infer = shape_rule(|cx| {
        let Some(axis) = cx.params.int("axis") else { return partial(cx, 0, &[None]) };
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let axis = cx.axis(axis, x.len())?;
        crate::index::all_but(cx, 0, &x, axis, None)
    });
    let finds = |params: &Params, rank| Ok(FindOp::Compress { axis: axis(params, rank)? });
    finding("compress", "The slices along `axis` where the condition holds.", finds, infer)
        .operand("input", &[])
        .operand("condition", BOOLS)
        .maybe("axis", ParamKind::Int, "Default: of the flattened operand.")
        .found_as(|g, params, _| Ok(vec![chosen(g, params.int("axis"), "compress")]))
        .onnx("Compress", 9)
}

fn unique() -> OpDef {
    let infer = shape_rule(|cx| {
        for i in 1..cx.output_count() {
            cx.set_output_dtype(i, DType::I64)?;
            partial(cx, i, &[None])?;
        }
        let axis = cx.params.int("axis");
        if axis.is_none() {
            partial(cx, 0, &[None])?;
        }
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let (axis, slices) = match axis {
            Some(axis) => {
                let axis = cx.axis(axis, x.len())?;
                crate::index::all_but(cx, 0, &x, axis, None)?;
                (axis, Some(x[axis]))
            }
            None => (0, x.iter().map(|dim| dim.as_extent()).product::<Option<Extent>>().map(Dim::of)),
        };
        let found = cx.output_shape(0).dims().and_then(|dims| dims.get(axis).copied());
        for (i, dim) in [(1, found), (2, slices), (3, found)] {
            if let Some(dim) = dim.filter(|_| i < cx.output_count()) {
                cx.set_output_dims(i, [dim])?;
            }
        }
        Ok(())
    });
    let doc = "The distinct elements, or slices along `axis`; where each first occurs, which of them every element is, \
               and how often each occurs.";
    let finds = |params: &Params, rank| {
        Ok(FindOp::Unique { axis: axis(params, rank)?, sorted: params.bool("sorted").unwrap_or(true) })
    };
    finding("unique", doc, finds, infer)
        .operand("X", &DType::COMPUTED)
        .maybe("axis", ParamKind::Int, "Default: of the flattened operand.")
        .param("sorted", true, "Ascending; otherwise in order of first occurrence.")
        .outputs(1, 4)
        .found_as(first_of_each)
        .onnx("Unique", 11)
}

fn non_max_suppression() -> OpDef {
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::I64)?;
        partial(cx, 0, &[None, Some(Dim::Const(3))])
    });
    let doc = "Greedy selection of boxes by score, leaving out those that overlap a selected one too much; rows of \
               (batch, class, box).";
    let finds =
        |params: &Params, _| Ok(FindOp::NonMaxSuppression { centered: params.int("center_point_box") == Some(1) });
    let admits = |_: &Params, args: &[Option<TensorData>]| {
        let [Some(boxes), Some(scores), ..] = args else { return Err("operands are missing".into()) };
        match (boxes.dims(), scores.dims()) {
            ([images, count, 4], [of, _, scored]) if images == of && count == scored => Ok(()),
            (boxes, scores) => Err(format!(
                "`boxes` has shape {boxes:?} and `scores` {scores:?}, expected [images, count, 4] and [images, classes, count]"
            )
            .into()),
        }
    };
    finding_where("non_max_suppression", doc, admits, finds, infer)
        .operands(&["boxes", "scores"], FLOATS)
        .optional("max_output_boxes_per_class", TypeRule::OneOf(&[DType::I64]))
        .optional("iou_threshold", TypeRule::OneOf(FLOATS))
        .optional("score_threshold", TypeRule::OneOf(FLOATS))
        .param("center_point_box", 0, "1: boxes are centre and size, not corners.")
        .onnx("NonMaxSuppression", 10)
}
