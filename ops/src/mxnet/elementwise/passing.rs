//! Operators whose gradient is not the slope of what they compute: it passes through, scaled or masked.

use super::unary::round;
use crate::prelude::*;

/// The gradient is that of the result.
fn straight(def: OpDef) -> OpDef {
    def.gradient(derivative(|g, cx| Ok(vec![Some(g.head(cx, 0))])))
}

fn gradient_multiplier() -> OpDef {
    let body = formula(|g, _| Ok(g.operand(0)));
    let doc = "The data; its gradient is multiplied by `scalar`.";
    define("mx_gradientmultiplier", doc, body, rule(|cx| same(cx, 0, 0)))
        .operand("data", FLOATS)
        .param("scalar", 1.0, "factor of the gradient")
        .ignored(&[("is_int", ParamValue::Bool(true))])
        .gradient(derivative(|g, cx| {
            let factor = cx.node.params.float("scalar").unwrap_or(1.0);
            Ok(vec![Some(g.head(cx, 0).map(|head| head * factor))])
        }))
        .named(&["_contrib_gradientmultiplier"])
}

fn element_mask() -> OpDef {
    let body = formula(|g, _| {
        let [data, mask] = g.operands();
        let dims = data.dims()?;
        let by_row: Vec<u64> = dims.iter().enumerate().map(|(axis, &n)| if axis == 0 { n } else { 1 }).collect();
        Ok(data * mask.call("stop_gradient", &[]).reshaped(&by_row))
    });
    let infer = rule(|cx| {
        agree_dtypes(cx, &[0, 1], &[0])?;
        same(cx, 0, 0)?;
        match rank_in(cx, 0, 1..=usize::MAX)? {
            Some(dims) => cx.set_input_dims(1, [dims[0]]),
            None => Ok(()),
        }
    });
    define("mx_element_mask", "Rows of the data times one element of the mask each; the mask is constant.", body, infer)
        .groups(&["data", "mask"], FLOATS)
        .named(&["element_mask"])
}

pub fn ops() -> Vec<OpDef> {
    vec![
        straight(elementwise(
            "mx_round_ste",
            "The nearest integer, halves away from zero; its gradient passes unchanged.",
            FLOATS,
            &["data"],
            |_, a| round(&a[0]),
        ))
        .named(&["_contrib_round_ste"]),
        straight(elementwise(
            "mx_sign_ste",
            "-1, 0 or 1; its gradient passes unchanged.",
            FLOATS,
            &["data"],
            |_, a| {
                let (x, zero) = (&a[0], a[0].lit(0.0));
                x.gt(&zero).select(&x.lit(1.0), &x.lt(&zero).select(&x.lit(-1.0), x))
            },
        ))
        .named(&["_contrib_sign_ste"]),
        gradient_multiplier(),
        element_mask(),
    ]
}
