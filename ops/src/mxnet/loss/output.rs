//! Outputs of regressions and of support vector machines.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    let sign = |x: &Ex| {
        let below = x.lt(&x.lit(0.0)).select(&x.lit(-1.0), &x.lit(0.0));
        x.gt(&x.lit(0.0)).select(&x.lit(1.0), &below)
    };
    vec![
        regression(
            "mx_linear_regression_output",
            "The data; gradient (x - label) / outputs of a sample.",
            "identity",
            Ex::clone,
        )
        .named(&["LinearRegressionOutput"]),
        regression(
            "mx_logistic_regression_output",
            "σ(x); gradient (σ(x) - label) / outputs of a sample.",
            "sigmoid",
            Ex::clone,
        )
        .named(&["LogisticRegressionOutput"]),
        regression(
            "mx_mae_regression_output",
            "The data; gradient sign(x - label) / outputs of a sample.",
            "identity",
            sign,
        )
        .named(&["MAERegressionOutput"]),
        svm_output(),
    ]
}

/// Labels of as many elements as the data, the batch first. A column of data has a vector of labels.
fn regression_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    cx.same_dtype(0, 0)?;
    default_dtype(cx, 1, 0)?;
    agree_shapes(cx, &[0], &[0])?;
    let Some(x) = cx.open_dims(0) else { return Ok(()) };
    let column = x.len() == 2 && x[1] == Dim::Const(1);
    match cx.open_dims(1) {
        None if column => cx.set_input_dims(1, x[..1].iter().copied()),
        None => cx.set_input_dims(1, x),
        Some(label) if label.len() == x.len() => agree_shapes(cx, &[0, 1], &[0]),
        Some(label) => {
            let size = |d: &[Dim]| d.iter().map(|d| d.as_extent()).product::<Option<Extent>>();
            match (size(&x), size(&label)) {
                (Some(a), Some(b)) if a != b => {
                    Err(OpError(format!("operand `label`: expected {a} elements, found {b}")))
                }
                _ => Ok(()),
            }
        }
    }
}

fn regression(name: &'static str, doc: &'static str, forward: &'static str, slope: fn(&Ex) -> Ex) -> OpDef {
    let compute = calling(forward);
    let gradient = derivative(move |g, cx| {
        let ty = &cx.node.outputs[0];
        let label = g.operand(1).cast(ty.dtype).reshaped(&ty.dims);
        let outputs = ty.dims.range(1..).count();
        let scale = cx.node.params.float("grad_scale").unwrap_or(1.0);
        let out = g.value(cx.outputs[0]).map_with(&[label], |_, a| slope(&(&a[0] - &a[1])));
        Ok(vec![Some(out.over_extent(scale, outputs)), None])
    });
    define(name, doc, compute, rule(regression_rule))
        .operand("data", FLOATS)
        .label()
        .param("grad_scale", 1.0, "Factor of the gradient.")
        .gradient(gradient)
        .loss()
        .ulp(4.0)
}

/// Each class against the others: hinge loss, or its square.
fn svm_gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let [x, label] = g.operands();
    let ty = x.ty()?;
    if ty.rank() != 2 {
        return Err(g.fail(format!("operand `data`: expected rank 2, found rank {}", ty.rank())));
    }
    let float = |name: &str| cx.node.params.float(name).unwrap_or(1.0);
    let (margin, weight) = (float("margin"), float("regularization_coefficient"));
    let linear = cx.node.params.flag("use_linear");
    let wide = compute_type(ty.dtype);
    let out = x.map_with(&[label.reshaped(Extents::of([ty.dims.at(0), Extent::ONE]))], |s, a| {
        let own = a[1].cast(DType::I64).eq(&s.coord(1));
        let towards = own.select(&s.number(wide, -1.0), &s.number(wide, 1.0));
        let lack = &towards * &a[0] + margin;
        let size = if linear { s.number(wide, weight) } else { &lack * (2.0 * weight) };
        lack.gt(&lack.lit(0.0)).select(&(towards * size), &lack.lit(0.0))
    });
    Ok(vec![Some(out), None])
}

fn svm_output() -> OpDef {
    let compute = calling("identity");
    let infer = shape_rule(|cx| {
        default_dtype(cx, 1, 0)?;
        agree_shapes(cx, &[0], &[0])?;
        let x = open_ranked(cx, 0, 2)?;
        cx.set_input_dims(1, [x[0]])
    });
    define("mx_svm_output", "The data; the gradient is that of the squared or plain hinge loss.", compute, infer)
        .operand("data", FLOATS)
        .label()
        .param("margin", 1.0, "Distance a score must keep.")
        .param("regularization_coefficient", 1.0, "Factor of the gradient.")
        .param("use_linear", false, "The plain hinge loss.")
        .gradient(derivative(svm_gradient))
        .loss()
        .named(&["SVMOutput"])
}
