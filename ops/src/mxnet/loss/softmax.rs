//! Softmax whose gradient is that of the cross entropy with labels; and the cross entropy itself.

use super::NORMALIZATIONS;
use crate::prelude::*;
use crate::rules::open_ranked;

pub fn ops() -> Vec<OpDef> {
    vec![softmax_output(), softmax_cross_entropy()]
}

/// The data as rows, classes and positions: [n, k, s].
fn classes(params: &Params, dims: &Extents) -> [Extent; 3] {
    let rank = dims.len();
    if params.flag("multi_output") && rank > 1 {
        return [dims.at(0), dims.at(1), dims.range(2..).count()];
    }
    if params.flag("preserve_shape") {
        let rows = rank.max(1) - 1;
        return [dims.range(..rows).count(), dims.range(rows..).count(), Extent::ONE];
    }
    [dims.range(..1).count(), dims.range(1..).count(), Extent::ONE]
}

/// What the gradient is divided by besides the count of valid labels: the positions of a sample unless
/// those count, and the batch if asked for.
fn divisor(params: &Params, [n, _, s]: [Extent; 3], labels: &Extents) -> Extent {
    let multi = params.flag("multi_output");
    let batch = if multi { n } else { labels.range(..1).count() };
    match params.str("normalization") {
        Some("batch") if multi => batch * s,
        Some("batch") => batch,
        Some("valid") => Extent::ONE,
        _ if multi => s,
        _ => Extent::ONE,
    }
}

/// `p - onehot(label)`, with labels that are classes. Ignored labels have no gradient.
fn from_classes<'g>(params: &Params, p: Tensor<'g>, label: Tensor<'g>, dims: [Extent; 3]) -> Result<Tensor<'g>> {
    let (g, wide) = (p.graph(), p.ty()?.dtype);
    let [n, k, s] = dims;
    let ignored = params.float("ignore_label").unwrap_or(-1.0).trunc();
    let smooth = if params.flag("multi_output") { 0.0 } else { params.float("smooth_alpha").unwrap_or(0.0) };
    let rows = Extents::from_iter([n, Extent::ONE, s]);
    let label = label.reshaped(&rows);
    let count = (params.str("normalization") == Some("valid")).then(|| {
        let valid = g.map(&[label], wide, &rows, |b, a| {
            let other = a[0].cast(DType::I64).ne(&b.number(DType::I64, ignored));
            other.select(&b.number(wide, 1.0), &b.number(wide, 0.0))
        });
        valid.sum(&[0, 1, 2])
    });
    let others: Vec<_> = [label].into_iter().chain(count).collect();
    Ok(p.map_with(&others, |b, a| {
        let class = a[1].cast(DType::I64);
        let rest = if smooth == 0.0 { 0.0 } else { smooth / (k.fixed() as f64 - 1.0) };
        let target = class.eq(&b.coord(1)).select(&b.number(wide, 1.0 - smooth), &b.number(wide, rest));
        let mut out = &a[0] - target;
        if params.flag("use_ignore") {
            let void = class.eq(&b.number(DType::I64, ignored));
            out = void.select(&b.number(wide, 0.0), &out);
        }
        match a.get(2) {
            Some(count) => out / count.max(&count.lit(1.0)),
            None => out,
        }
    }))
}

fn gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let (params, ty) = (cx.node.params, &cx.node.outputs[0]);
    let wide = compute_type(ty.dtype);
    let [p, label] = [g.value(cx.outputs[0]), g.operand(1)].map(|x| x.cast(wide));
    let label_dims = label.dims()?;
    let scale = params.float("grad_scale").unwrap_or(1.0);
    let mut out = if label_dims == ty.dims {
        // Labels that are probabilities.
        (p - label) * scale
    } else {
        let dims = classes(params, &ty.dims);
        let expected = dims[0] * dims[2];
        if label_dims.count() != expected {
            let why = format!("operand `label`: expected {expected} labels, found the shape {label_dims:?}");
            return Err(g.fail(why));
        }
        let out = from_classes(params, p.reshaped(Extents::from_iter(dims)), label, dims)?;
        out.over_extent(scale, divisor(params, dims, &label_dims)).reshaped(&ty.dims)
    };
    if let (true, Some(head)) = (params.flag("out_grad"), g.given_head(cx, 0)) {
        out = out * head.cast(wide);
    }
    Ok(vec![Some(out.cast(ty.dtype)), None])
}

/// A label for every row, or a probability for every class.
fn label_rule(cx: &mut InferCtx<'_>, x: &[Dim]) -> Result<(), OpError> {
    reject_if(x.is_empty(), || "operand `data`: expected rank at least 1, found rank 0")?;
    let given = cx.open_dims(1).map(|d| d.to_vec());
    let multi = cx.params.flag("multi_output") && x.len() > 1;
    if !multi {
        let rows = &x[..x.len() - 1];
        return match given {
            Some(label) if label.len() == x.len() => agree_shapes(cx, &[0, 1], &[0]),
            _ => cx.set_input_dims(1, rows.iter().copied()),
        };
    }
    let joined = |rest: &[Dim]| rest.iter().map(|d| d.as_extent()).product::<Option<Extent>>();
    let Some(label) = given else {
        return match joined(&x[2..]) {
            Some(n) => cx.set_input_dims(1, [x[0], Dim::of(n)]),
            None => Ok(()),
        };
    };
    cx.unify_dims(x[0], label[0], "operand `label`, axis 0")?;
    let size = |dims: &[Dim]| joined(dims);
    match (size(&label), size(x), size(&[&x[..1], &x[2..]].concat())) {
        (Some(found), Some(all), Some(rows)) if found != all && found != rows => {
            Err(OpError(format!("operand `label`: expected {rows} labels, found {found}")))
        }
        _ => Ok(()),
    }
}

fn softmax_output() -> OpDef {
    let compute = formula(|g, cx| {
        let dims = g.operand(0).dims()?;
        let rows = g.operand(0).reshaped(Extents::from_iter(classes(cx.params, &dims)));
        Ok(g.op("softmax", &[rows], Params::new().with("axis", 1)).reshaped(&dims))
    });
    let infer = shape_rule(|cx| {
        default_dtype(cx, 1, 0)?;
        agree_shapes(cx, &[0], &[0])?;
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        label_rule(cx, &x)
    });
    let doc = "Softmax of each sample, or along axis 1 (multi_output) or the last axis (preserve_shape). Its gradient is \
               p - onehot(label), whatever the head, or p - label if the label has the shape of the data.";
    let divided = "Divide the gradient by the batch or by the number of labels that are not `ignore_label`.";
    define("mx_softmax_output", doc, compute, infer)
        .operand("data", FLOATS)
        .label()
        .param("grad_scale", 1.0, "Factor of the gradient.")
        .param("ignore_label", -1.0, "The label that is ignored, or not valid.")
        .param("multi_output", false, "Axis 1 holds classes, and further axes positions.")
        .param("use_ignore", false, "No gradient where the label is `ignore_label`.")
        .param("preserve_shape", false, "The last axis holds classes.")
        .choice("normalization", NORMALIZATIONS, "null", divided)
        .param("out_grad", false, "Multiply the gradient by the head.")
        .share("smooth_alpha", 0.0, "Probability that the labels leave to other classes.")
        .gradient(derivative(gradient))
        .loss()
        .named(&["SoftmaxOutput", "Softmax"])
        .ulp(8.0)
}

fn softmax_cross_entropy() -> OpDef {
    let compute = formula(|g, cx| {
        let [x, label] = g.operands();
        let log = g.op("log_softmax", &[x.widened()], Params::new().with("axis", 1));
        let chosen = log.map_with(&[label.reshaped(Extents::from_iter([x.dims()?.at(0), Extent::ONE]))], |s, a| {
            // No probability counts as less than 10⁻⁸.
            let least = a[0].lit(1e-8f64.ln());
            let log = a[0].lt(&least).select(&least, &a[0]);
            a[1].cast(DType::I64).eq(&s.coord(1)).select(&-log, &a[0].lit(0.0))
        });
        Ok(chosen.sum(&[0, 1]).reshaped([1]).cast(cx.outputs[0].dtype))
    });
    let gradient = derivative(|g, cx| {
        let ([x, label], head) = (g.operands(), g.head(cx, 0));
        let ty = x.ty()?;
        let [x, head] = [x, head].map(|x| x.cast(compute_type(ty.dtype)));
        let p = g.op("softmax", &[x], Params::new().with("axis", 1));
        let out = p.map_with(
            &[label.reshaped(Extents::from_iter([ty.dims.at(0), Extent::ONE])), head.reshaped([1, 1])],
            |s, a| {
                let target = a[1].cast(DType::I64).eq(&s.coord(1)).select(&a[0].lit(1.0), &a[0].lit(0.0));
                (&a[0] - target) * &a[2]
            },
        );
        Ok(vec![Some(out.cast(ty.dtype)), None])
    });
    let infer = shape_rule(|cx| {
        cx.set_output_dims(0, [Dim::Const(1)])?;
        let x = open_ranked(cx, 0, 2)?;
        cx.set_input_dims(1, [x[0]])
    });
    define("mx_softmax_cross_entropy", "-Σ ln softmax(data)[label] over the rows.", compute, infer)
        .operand("data", FLOATS)
        .operand("label", NUMBERS)
        .gradient(gradient)
        .named(&["softmax_cross_entropy"])
        .ulp(8.0)
}
