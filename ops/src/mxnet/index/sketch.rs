//! Count sketches: sums of signed features that a hash sends to one place.

use crate::prelude::*;

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let ([x, places, signs], out) = (g.operands(), &cx.outputs[0]);
    let ty = x.ty()?;
    let axis = ty.rank() - 1;
    let (n, extent) = (ty.dims[axis], out.dims[axis]);
    let [x, signs] = [x, signs].map(|x| x.cast(compute_type(ty.dtype)));
    let signed = x * signs.reshaped([n]);
    let place = |place: &Ex| super::in_range(&place.cast(DType::I64), extent, false);
    let places = g.map(&[places.reshaped([n])], DType::I64, [n], |_, a| place(&a[0]));
    let along = Params::new().with("axis", axis as i64);
    Ok(g.op("scatter_sum", &[signed, places, g.i64s(&[extent as i64])], along).cast(out.dtype))
}

pub fn count_sketch() -> OpDef {
    let infer = shape_rule(|cx| {
        let Some(mut dims) = rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
        let features = dims.pop().unwrap_or(Dim::Const(1));
        for i in [1, 2] {
            let Some(given) = rank_in(cx, i, 1..=2)? else { continue };
            cx.unify_dims(given[given.len() - 1], features, "the number of features")?;
            if given.len() == 2 {
                cx.unify_dims(given[0], Dim::Const(1), "the rows of hashes and signs")?;
            }
        }
        match cx.params.int("out_dim") {
            Some(n) if n > 0 => cx.set_output_dims(0, dims.into_iter().chain([Dim::Const(n as u64)])),
            n => Err(OpError(format!("parameter `out_dim` is {}, expected at least 1", n.unwrap_or(0)))),
        }
    });
    let doc = "Count sketches along the last axis: out[…, h[i]] += s[i]·data[…, i]. Hashes h beyond `out_dim` count as \
               the last place.";
    define("mx_count_sketch", doc, formula(body), infer)
        .group("data", FLOATS)
        .operand("h", FLOATS)
        .group("s", FLOATS)
        .required("out_dim", ParamKind::Int, "places of a sketch")
        .ignored(&[("processing_batch_size", ParamValue::Int(32))])
        .ulp(2.0)
        .named(&["_contrib_count_sketch"])
}
