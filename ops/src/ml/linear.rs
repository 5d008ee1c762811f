//! Linear models: a product with coefficients, and intercepts.

use super::score::{ClassLabels, PostTransform, TRANSFORMS, probit, row_dims, rows_of, two_scores};
use super::{DOMAIN, NUMBERS_READ, f32s, labelled, rows_with};
use crate::prelude::*;

pub(super) fn ops() -> Vec<OpDef> {
    vec![regressor(), classifier()]
}

/// The coefficients [targets, features], by the number of targets.
fn coefficients(params: &Params, targets: usize) -> Result<Vec<f64>, OpError> {
    let list = params.floats("coefficients").unwrap_or(&[]);
    reject_if(targets == 0 || list.is_empty() || !list.len().is_multiple_of(targets), || {
        format!("parameter `coefficients` has {} entries for {targets} targets", list.len())
    })?;
    Ok(list.to_vec())
}

/// Rows times coefficients, and intercepts if there are any: [rows, targets].
pub(super) fn product<'g>(
    x: Tensor<'g>,
    coefficients: &[f64],
    targets: usize,
    intercepts: &[f64],
) -> Result<Tensor<'g>> {
    let (g, features) = (x.graph(), coefficients.len() / targets.max(1));
    let weights = f32s(g, &[targets, features], coefficients)?.permute(&[1, 0]);
    let sums = x.call("matmul", &[weights]);
    Ok(if intercepts.is_empty() { sums } else { sums + f32s(g, &[1, targets], intercepts)? })
}

/// The operand has as many features as there are coefficients of a target.
fn features(cx: &mut InferCtx<'_>, targets: usize) -> Result<(), OpError> {
    let list = coefficients(cx.params, targets)?;
    if let Some([_, found]) = row_dims(cx)? {
        cx.unify_dims(Dim::Const((list.len() / targets) as u64), found, "operand `X`, features")?;
    }
    Ok(())
}

fn intercepts(params: &Params, targets: usize) -> Result<&[f64], OpError> {
    let list = params.floats("intercepts").unwrap_or(&[]);
    reject_if(!list.is_empty() && list.len() != targets, || {
        format!("parameter `intercepts` has {} entries for {targets} targets", list.len())
    })?;
    Ok(list)
}

fn regressor() -> OpDef {
    let compute = formula(|g, cx| {
        let targets = cx.outputs[0].dims[1] as usize;
        let x = rows_of(g.operand(0))?.convert(DType::F32);
        let list = coefficients(cx.params, targets).or_fail(&g)?;
        let scores = product(x, &list, targets, intercepts(cx.params, targets).or_fail(&g)?)?;
        Ok(match (PostTransform::of(cx.params).or_fail(&g)?, targets) {
            (PostTransform::Probit, 1) => scores.map(probit),
            (_, 1) => scores,
            (transform, _) => transform.apply(scores),
        })
    });
    let infer = rule(|cx| {
        let targets = cx.params.int("targets").unwrap_or(1);
        rows_with(cx, 0, targets, Some(DType::F32))?;
        intercepts(cx.params, targets as usize)?;
        features(cx, targets as usize)
    });
    define("linear_regressor", "Rows times coefficients, and intercepts.", compute, infer)
        .operand("X", NUMBERS_READ)
        .maybe("coefficients", ParamKind::Floats, "[targets, features]")
        .maybe("intercepts", ParamKind::Floats, "one for each target")
        .param("targets", 1, "number of targets")
        .choice("post_transform", TRANSFORMS, "NONE", "applied to results at last")
        .onnx_of(DOMAIN, "LinearRegressor", 1)
        .no_gradient()
        .ulp(4.0)
}

/// Labels, and for how many of them there are coefficients.
fn classes(params: &Params) -> Result<(ClassLabels, usize), OpError> {
    let labels = ClassLabels::of(params, "classlabels_ints")?;
    let targets = params.floats("intercepts").map_or(0, <[f64]>::len);
    let targets = if targets == 0 { labels.len() } else { targets };
    let fits = targets == labels.len() || targets == 1 && labels.len() == 2;
    reject_if(!fits, || format!("there are {} labels for {targets} classes", labels.len()))?;
    Ok((labels, targets))
}

fn classifier() -> OpDef {
    let compute = formulas(|g, cx| {
        let (labels, targets) = classes(cx.params).or_fail(&g)?;
        let x = rows_of(g.operand(0))?.convert(DType::F32);
        let list = coefficients(cx.params, targets).or_fail(&g)?;
        let scores = product(x, &list, targets, cx.params.floats("intercepts").unwrap_or(&[]))?;
        let transform = PostTransform::of(cx.params).or_fail(&g)?;
        if targets > 1 {
            return Ok(vec![labels.best(scores), transform.apply(scores)]);
        }
        let rows = scores.dims()?.at(0);
        let [first, second] = if labels.len() == 2 { [labels.get(0), labels.get(1)] } else { [0, 1] };
        let label = g.map(&[scores], DType::I64, scores.dims()?, |s, a| {
            let [first, second] = [first, second].map(|label| s.constant(Scalar::i64(label)));
            a[0].gt(&a[0].lit(0.0)).select(&second, &first)
        });
        let both = match (labels.len(), transform) {
            (2, _) => two_scores(scores, transform),
            (_, PostTransform::Probit) => scores.map(probit),
            _ => scores,
        };
        Ok(vec![label.reshape(Extents::of([rows])), both])
    });
    let infer = rule(|cx| {
        let (labels, targets) = classes(cx.params)?;
        labelled(cx, labels.len())?;
        features(cx, targets)
    });
    let doc = "Classification by a linear model: the label of the best class, and the scores of all.";
    define("linear_classifier", doc, compute, infer)
        .operand("X", NUMBERS_READ)
        .maybe("coefficients", ParamKind::Floats, "[classes, features]")
        .maybe("intercepts", ParamKind::Floats, "one for each class")
        .maybe("classlabels_ints", ParamKind::Ints, "labels of classes")
        .param("multi_class", 0, "No effect.")
        .choice("post_transform", TRANSFORMS, "NONE", "applied to scores at last")
        .outputs(2, 2)
        .onnx_of(DOMAIN, "LinearClassifier", 1)
        .no_gradient()
        .ulp(4.0)
}
