//! Operators whose gradient is not the slope of what they compute: it passes through, scaled or masked.

use super::unary::round;
use crate::prelude::*;

/// The gradient is that of the result.
fn straight(def: OpDef) -> OpDef {
    def.gradient(|b, cx| Ok(vec![Some(cx.head(b, 0)?)]))
}

fn gradient_multiplier() -> OpDef {
    let body = composite(|b, _, args| operand(b, args, 0));
    let doc = "The data; its gradient is multiplied by `scalar`.";
    define("mx_gradientmultiplier", doc, body, rule(|cx| same(cx, 0, 0)))
        .operand("data", FLOATS)
        .param("scalar", 1.0, "factor of the gradient")
        .ignored(&[("is_int", ParamValue::Bool(true))])
        .gradient(|b, cx| {
            let (head, factor) = (cx.head(b, 0)?, cx.node.params.float("scalar").unwrap_or(1.0));
            let ty = b.ty(head)?;
            Ok(vec![Some(b.map_as(&[head], ty.dtype, &ty.dims, |_, a| &a[0] * factor)?)])
        })
        .named(&["_contrib_gradientmultiplier"])
}

fn element_mask() -> OpDef {
    let body = composite_of(|b, _, [data, mask]| {
        let dims = b.dims(data)?;
        let by_row: Vec<u64> = dims.iter().enumerate().map(|(axis, &n)| if axis == 0 { n } else { 1 }).collect();
        let mask = b.call("stop_gradient", &[mask])?;
        let mask = reshape(b, mask, &by_row)?;
        b.call("mul", &[data, mask])
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
