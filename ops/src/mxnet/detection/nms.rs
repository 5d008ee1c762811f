//! Suppression of boxes that overlap a better one.
//!
//! What comes before the loop over pairs is composed of other operators: scores, the order, boxes by corners.

use super::boxes::{Decoding, FORMATS, component, corners, decoded, is_center, overlap, variances};
use crate::kernel::clamp;
use crate::prelude::*;

const F32: DType = DType::F32;

pub fn ops() -> Vec<OpDef> {
    vec![box_nms(), multibox_detection()]
}

/// What the loop over pairs needs, best first: rows [images, n, width], boxes by corners [images, n, 4], classes
/// and which are candidates, [images, n]. All but the flags are f32.
struct Candidates<'g> {
    rows: Tensor<'g>,
    boxes: Tensor<'g>,
    class: Tensor<'g>,
    valid: Tensor<'g>,
}

#[derive(Clone, Copy)]
struct Rules {
    threshold: f64,
    /// Overlap of just the threshold suppresses.
    inclusive: bool,
    /// Boxes of other classes suppress, too.
    across: bool,
    /// Candidates considered.
    most: u64,
    /// Kept rows move up, others become -1; else rows stay and the first number of suppressed ones is -1.
    compact: bool,
}

/// Copies row `at` to `to`; where `mark` is true, its first number becomes -1.
fn copy_row<'k>(
    k: &'k KernelScope,
    [from, out]: [KernelTensor<'k>; 2],
    width: u64,
    [to, at]: [&Index; 2],
    mark: Option<KernelValue<'k>>,
) {
    k.each("w", width, |w| {
        let place = |row: &Index| row.scale(width as i64).add(w);
        let value = from.get(&place(at));
        let value = match mark {
            Some(mark) => (k.position(w).eq(0) & mark).select(-1.0, value),
            None => value,
        };
        out.set(&place(to), value);
    });
}

/// Results: rows, and the position each came from, -1 for none. The last buffer is scratch: which are suppressed.
fn suppression(types: [&DenseType; 4], results: [&DenseType; 3], rules: Rules) -> Result<Kernel, OpError> {
    let (images, n, width) = (types[0].dims[0], types[0].dims[1], types[0].dims[2]);
    let most = rules.most.min(n);
    let k = &KernelScope::new("suppression");
    let [from, boxes, class, valid] = k.inputs(["rows", "boxes", "class", "valid"], types);
    let [out, origin, gone] = k.outputs(["out", "origin", "gone"], results);
    let cmp = if rules.inclusive { CmpOp::Ge } else { CmpOp::Gt };
    let corners = |at: &Index| (0..4).map(|c| boxes.get(&at.scale(4).offset(c))).collect::<Vec<_>>();
    k.parallel_each("image", images, |image| {
        let base = image.scale(n as i64);
        let count = k.cell("count", DType::I64).holding(0);
        k.each("clear", n, |i| {
            let at = base.add(i);
            origin.set(&at, -1);
            gone.set(&at, false);
            k.each("w", width, |w| out.set(&at.scale(width as i64).add(w), -1.0));
        });
        k.each("i", most, |i| {
            let at = base.add(i);
            k.when(valid.get(&at), || {
                let lost = gone.get(&at);
                if !rules.compact {
                    origin.set(&at, i);
                    copy_row(k, [from, out], width, [&at, &at], Some(lost));
                }
                k.when(!lost, || {
                    if rules.compact {
                        let place = count.get();
                        let to = base.add(&clamp(&place.index(), n));
                        origin.set(&to, i);
                        copy_row(k, [from, out], width, [&to, &at], None);
                        count.set(place + 1);
                    }
                    let own = corners(&at);
                    let own_class = class.get(&at);
                    k.range("j", (&i.offset(1), &Index::constant(most as i64)), |j| {
                        let other = base.add(j);
                        let pair = [&own[..], &corners(&other)].concat();
                        let [share] = k.eval(&pair, |a| [overlap(&a[..4], &a[4..])]);
                        let mut hit = share.cmp(cmp, rules.threshold);
                        if !rules.across {
                            hit = hit & own_class.eq(class.get(&other));
                        }
                        gone.set(&other, gone.get(&other) | hit);
                    });
                });
            });
        });
    });
    k.finish()
}

/// Rows after suppression, and where each came from among the candidates.
fn suppress<'g>(c: &Candidates<'g>, rules: Rules) -> Result<[Tensor<'g>; 2]> {
    let ty = c.rows.ty()?;
    let each = [ty.dims[0], ty.dims[1]];
    let given = [c.rows.ty()?, c.boxes.ty()?, c.class.ty()?, c.valid.ty()?];
    let types = [ty, DenseType::new(DType::I64, each), DenseType::new(DType::Bool, each)];
    let kernel = suppression(given.each_ref(), types.each_ref(), rules);
    let made = c.rows.graph().kernel(kernel, &[c.rows, c.boxes, c.class, c.valid], &types)?;
    Ok([made[0], made[1]])
}

/// Positions by falling score, [images, n]; those that are no candidates come last.
fn order<'g>(score: Tensor<'g>, valid: Tensor<'g>) -> Result<Tensor<'g>> {
    let (g, n) = (score.graph(), score.dims()?[1]);
    let key = score.map_with(&[valid], |_, a| a[1].select(&a[0], &a[0].lit(f64::NEG_INFINITY)));
    let params = Params::new().with("axis", 1);
    Ok(g.op_multi("topk", &[Some(key), Some(g.i64s(&[n as i64]))], params, 2)[1])
}

/// Slices along axis 1 of [images, n, …] at positions [images, n], by image.
fn ordered<'g>(x: Tensor<'g>, order: Tensor<'g>) -> Result<Tensor<'g>> {
    let dims = x.dims()?;
    let (images, n) = (dims[0], dims[1]);
    let flat = order.map_with(&[], |s, a| s.coord(0) * a[0].lit(n as f64) + &a[0]).reshape([images * n]);
    let rows = x.reshape([&[images * n], &dims[2..]].concat());
    Ok(rows.gather(flat, 0).reshape(&dims))
}

/// Column `i` of [images, n, width] as [images, n].
fn column(x: Tensor<'_>, i: u64) -> Result<Tensor<'_>> {
    Ok(component(x, i).reshape(&x.dims()?[..2]))
}

/// Rows with the four numbers of the box in another format.
fn reformatted(rows: Tensor<'_>, start: u64, from_center: bool) -> Tensor<'_> {
    let half = if from_center { 0.5 } else { 1.0 };
    let parts = [0, 1, 2, 3].map(|i| component(rows, start + i));
    rows.map_with(&parts, |s, a| {
        let column = s.coord(2);
        let value = |axis: usize| -> [Ex; 2] {
            let (x, y) = (&a[1 + axis], &a[3 + axis]);
            if from_center { [x - y * half, x + y * half] } else { [(x + y) * 0.5, y - x] }
        };
        let [x, y] = [value(0), value(1)];
        let all = [&x[0], &y[0], &x[1], &y[1]];
        all.into_iter()
            .enumerate()
            .fold(a[0].clone(), |held, (i, v)| column.eq(&column.lit((start as usize + i) as f64)).select(v, &held))
    })
}

/// How many of `n` candidates are considered: all, unless the parameter is positive.
fn considered(params: &Params, name: &str, n: u64) -> u64 {
    params.int(name).filter(|k| *k > 0).map_or(n, |k| k as u64)
}

fn nms_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let int = |name: &str, default: i64| cx.params.int(name).unwrap_or(default);
    let real = |name: &str, default: f64| cx.params.float(name).unwrap_or(default);
    let out = &cx.outputs[0];
    let rank = out.rank();
    let (n, width) = (out.dims[rank - 2], out.dims[rank - 1]);
    let images = out.dims[..rank - 2].iter().product();
    let data = g.operand(0).reshape([images, n, width]).cast(F32);
    let score = column(data, int("score_index", 1).max(0) as u64)?;
    let id = int("id_index", -1);
    let class = (id >= 0).then(|| column(data, id as u64)).transpose()?;
    let (least, background) = (real("valid_thresh", 0.0), int("background_id", -1) as f64);
    let inputs: Vec<_> = [score].into_iter().chain(class).collect();
    let valid = g.map(&inputs, DType::Bool, [images, n], |_, a| {
        let fine = a[0].gt(&a[0].lit(least));
        match a.get(1) {
            Some(class) => fine & class.ne(&class.lit(background)),
            None => fine,
        }
    });
    let order = order(score, valid)?;
    let (rows, valid) = (ordered(data, order)?, ordered(valid, order)?);
    let start = int("coord_start", 2).max(0) as u64;
    let (center, out_center) = (is_center(cx.params, "in_format"), is_center(cx.params, "out_format"));
    let boxes = g.concat(&corners(rows.slice(2, start, 4), center), 2);
    let class = class.map_or(Ok(score), |class| ordered(class, order))?;
    let rows = if center == out_center { rows } else { reformatted(rows, start, center) };
    let rules = Rules {
        threshold: real("overlap_thresh", 0.5),
        inclusive: false,
        across: id < 0 || cx.params.flag("force_suppress"),
        most: considered(cx.params, "topk", n),
        compact: true,
    };
    let [kept, origin] = suppress(&Candidates { rows, boxes, class, valid }, rules)?;
    // The position before ordering, for the gradient.
    let source = ordered(order, origin.map(|at| at.max(&at.lit(0.0))))?;
    let source = g.map(&[source, origin], out.dtype, [images, n], |_, a| {
        a[1].ge(&a[1].lit(0.0)).select(&a[0], &a[0].lit(-1.0)).cast(compute_type(out.dtype))
    });
    Ok(vec![kept.cast(out.dtype).reshape(&out.dims), source.reshape(&cx.outputs[1].dims)])
}

/// Every row's gradient goes to the row it was.
fn nms_gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let (head, source) = (g.head(cx, 0), g.value(cx.outputs[1]));
    let ty = head.ty()?;
    let (lead, [n, width]) = (&ty.dims[..ty.rank() - 2], [ty.dims[ty.rank() - 2], ty.dims[ty.rank() - 1]]);
    let images: u64 = lead.iter().product();
    let rows = images * n;
    // Rows that came from nowhere go to one behind the last.
    let to = g.map(&[source.reshape([images, n])], DType::I64, [images, n], |s, a| {
        let at = a[0].cast(DType::I64);
        let row = s.coord(0) * at.lit(n as f64) + &at;
        at.lt(&at.lit(0.0)).select(&at.lit(rows as f64), &row)
    });
    let (to, head) = (to.reshape([rows, 1]), head.reshape([rows, width]));
    let zeros = g.filled(&DenseType::new(ty.dtype, [rows + 1, width]), 0.0);
    let spread = zeros.call("scatter_nd", &[to, head]).slice(0, 0, rows);
    Ok(vec![Some(spread.reshape(&ty.dims))])
}

fn box_nms() -> OpDef {
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        cx.same_dtype(1, 0)?;
        let Some(x) = rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(()) };
        let int = |name: &str, default: i64| cx.params.int(name).unwrap_or(default);
        if let Dim::Const(width) = x[x.len() - 1] {
            let start = int("coord_start", 2).max(0);
            let last = [start + 3, int("score_index", 1), int("id_index", -1)].into_iter().max().unwrap_or(0);
            if last as u64 >= width {
                return Err(OpError(format!("operand `data`: rows of {width} numbers have no number {last}")));
            }
        }
        cx.set_output_dims(1, x[..x.len() - 1].iter().copied().chain([Dim::Const(1)]))
    });
    let doc = "Rows of a score and a box by falling score, without those that overlap a better one; rows of -1 fill \
               the rest. The second result tells which row each was, -1 for none.";
    define("mx_box_nms", doc, formulas(nms_body), infer)
        .operand("data", FLOATS)
        .param("overlap_thresh", 0.5, "greatest overlap that is tolerated")
        .param("valid_thresh", 0.0, "scores above it take part")
        .param("topk", -1, "how many of the best take part; not positive: all")
        .param("coord_start", 2, "where the box begins in a row")
        .param("score_index", 1, "where the score is")
        .param("id_index", -1, "where the class is, none if negative")
        .param("background_id", -1, "a class that takes no part")
        .param("force_suppress", false, "boxes of other classes suppress, too")
        .choice("in_format", FORMATS, "corner", "what the numbers of a box are")
        .choice("out_format", FORMATS, "corner", "what they are in the result")
        .outputs(2, 2)
        .results(|_| ResultCount { visible: 1, listed: 2 })
        .gradient(derivative(nms_gradient))
        .named(&["_contrib_box_nms", "_contrib_box_non_maximum_suppression"])
}

fn detection_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let [scores, offsets, anchors] = g.operands().map(|x| x.cast(F32));
    let d = scores.dims()?;
    let (images, classes, n) = (d[0], d[1], d[2]);
    let front = scores.slice(1, 1, classes - 1);
    let best = front.reduce("reduce_max", &[1]).reshape([images, n]);
    let class = g.op("argmax", &[front], Params::new().with("axis", 1)).reshape([images, n]).cast(F32);
    let threshold = cx.params.float("threshold").unwrap_or(0.01);
    let valid = g.map(&[best], DType::Bool, [images, n], |_, a| a[0].ge(&a[0].lit(threshold)));
    let clip = cx.params.bool("clip") != Some(false);
    let how = Decoding { by_corner: true, factors: variances(cx.params), limit: 0.0, clip };
    let boxes = decoded(offsets.reshape([images, n, 4]), anchors, &how)?;
    let order = order(best, valid)?;
    let (class, best) = (ordered(class, order)?, ordered(best, order)?);
    let (boxes, valid) = (ordered(boxes, order)?, ordered(valid, order)?);
    let rows = g.concat(&[class.reshape([images, n, 1]), best.reshape([images, n, 1]), boxes], 2);
    // A threshold outside (0, 1] suppresses nothing.
    let threshold = cx.params.float("nms_threshold").unwrap_or(0.5);
    let threshold = if threshold > 0.0 && threshold <= 1.0 { threshold } else { f64::INFINITY };
    let (across, most) = (cx.params.flag("force_suppress"), considered(cx.params, "nms_topk", n));
    let rules = Rules { threshold, inclusive: true, across, most, compact: false };
    let [rows, _] = suppress(&Candidates { rows, boxes, class, valid }, rules)?;
    Ok(vec![rows.cast(cx.outputs[0].dtype)])
}

fn multibox_detection() -> OpDef {
    let infer = shape_rule(|cx| {
        if cx.params.int("background_id").unwrap_or(0) != 0 {
            return Err("parameter `background_id`: the background is class 0".into());
        }
        let Some(scores) = rank_in(cx, 0, 3..=3)? else { return Ok(()) };
        if scores[1].as_const().is_some_and(|n| n < 2) {
            return Err("operand `cls_prob`, axis 1: expected at least 2 classes".into());
        }
        shaped(cx, 2, &[Dim::Const(1), scores[2], Dim::Const(4)])?;
        if let Dim::Const(n) = scores[2] {
            shaped(cx, 1, &[scores[0], Dim::Const(4 * n)])?;
        }
        cx.set_output_dims(0, [scores[0], scores[2], Dim::Const(6)])
    });
    let doc = "Detections (class, score, x1, y1, x2, y2) by falling score. The class of a suppressed one is -1; rows of \
               -1 follow.";
    define("mx_multibox_detection", doc, formulas(detection_body), infer)
        .groups(&["cls_prob", "loc_pred", "anchor"], FLOATS)
        .param("clip", true, "whether boxes are clipped to the image")
        .param("threshold", 0.01, "least score of a detection")
        .param("background_id", 0, "class of the background, 0")
        .param("nms_threshold", 0.5, "overlap that suppresses")
        .param("force_suppress", false, "boxes of other classes suppress, too")
        .param("variances", vec![0.1, 0.1, 0.2, 0.2], "factors of the offsets")
        .param("nms_topk", -1, "how many of the best are kept; not positive: all")
        .no_gradient()
        .ulp(64.0)
        .mxnet("_contrib_MultiBoxDetection")
}
