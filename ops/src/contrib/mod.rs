//! Operators that ONNX Runtime adds to ONNX, domain `com.microsoft`, as composites of others.
//!
//! Where such an operator is one that exists, that entry has its name, too, or the importer rewrites the node.

mod activation;
mod attention;
mod hash;
mod image;
mod moe;
mod norm;
mod product;
mod quantised;
mod sequence;

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    let families = [
        activation::ops(),
        attention::ops(),
        hash::ops(),
        image::ops(),
        moe::ops(),
        norm::ops(),
        product::ops(),
        quantised::ops(),
        sequence::ops(),
    ];
    families.into_iter().flatten().collect()
}

/// An error unless a parameter has the value without effect.
fn only(cx: &InferCtx<'_>, name: &str, value: i64) -> Result<(), OpError> {
    let found = cx.params.int(name).unwrap_or(value);
    reject_if(found != value, || format!("parameter `{name}` = {found} is not supported"))
}

/// The last axis of operands, if they are given, is that of operand 0; they have no other.
fn rows_of_first(cx: &mut InferCtx<'_>, operands: &[usize]) -> Result<(), OpError> {
    let Some(&last) = cx.open_dims(0).as_deref().and_then(<[Dim]>::last) else { return Ok(()) };
    operands.iter().try_for_each(|&i| if cx.has_input(i) { shaped(cx, i, &[last]) } else { Ok(()) })
}
