//! Operators on sequences of different lengths, time first: [time, batch, …].

mod ctc;

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![mask(), last(), reverse(), ctc::ctc_loss()]
}

/// The axis of time; the batch is the other of the first two.
fn time_axis(params: &Params) -> usize {
    usize::from(params.int("axis") == Some(1))
}

/// Completes an entry with what all three take.
fn with_lengths(def: OpDef) -> OpDef {
    def.operand("data", NUMBERS)
        .optional("sequence_length", TypeRule::OneOf(NUMBERS))
        .param("use_sequence_length", false, "whether sequences have lengths of their own")
        .param("axis", 0, "axis of time, 0 or 1")
        .within(0.0, 1.0)
        .present(|params, _| params.flag("use_sequence_length"))
}

fn check(cx: &mut InferCtx<'_>) -> Result<Option<Vec<Dim>>, OpError> {
    if cx.params.flag("use_sequence_length") && !cx.has_input(1) {
        return Err("operand `sequence_length` is missing".into());
    }
    let Some(data) = rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(None) };
    let batch = 1 - time_axis(cx.params);
    if cx.has_input(1) {
        cx.set_input_dims(1, [data[batch]])?;
        shaped(cx, 1, &[data[batch]])?;
    }
    Ok(Some(data))
}

/// The lengths as i64, shaped to broadcast with the data; `None` if all are whole.
fn lengths(
    b: &mut Builder<'_>,
    params: &Params,
    data: Value,
    args: &[Option<Value>],
) -> Result<Option<Value>, Diagnostic> {
    let Some(given) = maybe(args, 1).filter(|_| params.flag("use_sequence_length")) else {
        return Ok(None);
    };
    let rank = b.dims(data)?.len();
    let batch = 1 - time_axis(params);
    let n = b.ty(given)?.len();
    let dims: Vec<u64> = (0..rank).map(|i| if i == batch { n } else { 1 }).collect();
    let given = b.converted(given, DType::I64)?;
    reshape(b, given, &dims).map(Some)
}

fn mask() -> OpDef {
    let compute = composite(|b, cx, args| {
        let data = operand(b, args, 0)?;
        let Some(lengths) = lengths(b, cx.params, data, args)? else { return b.call("identity", &[data]) };
        let (out, axis) = (&cx.outputs[0], time_axis(cx.params));
        let value = cx.params.float("value").unwrap_or(0.0);
        b.map_as(&[data, lengths], out.dtype, &out.dims, |s, a| s.coord(axis).lt(&a[1]).select(&a[0], &a[0].lit(value)))
    });
    let infer = rule(|cx| {
        check(cx)?;
        same(cx, 0, 0)
    });
    let doc = "The sequences, with `value` behind the end of each.";
    with_lengths(define("mx_sequence_mask", doc, compute, infer))
        .param("value", 0.0, "written behind the end")
        .mxnet("SequenceMask")
}

fn last() -> OpDef {
    let compute = composite(|b, cx, args| {
        let data = operand(b, args, 0)?;
        let (dims, axis) = (b.dims(data)?, time_axis(cx.params));
        let n = dims[axis];
        let chosen = match lengths(b, cx.params, data, args)? {
            None => b.slice_axis(data, axis, n - 1, 1)?,
            Some(lengths) => {
                let ty = b.ty(data)?;
                let only = b.map_as(&[data, lengths], ty.dtype, &dims, |s, a| {
                    let end = a[1].max(&a[1].lit(1.0)).min(&a[1].lit(n as f64)) - a[1].lit(1.0);
                    s.coord(axis).eq(&end).select(&a[0], &a[0].lit(0.0))
                })?;
                reduce(b, "reduce_sum", only, &[axis])?
            }
        };
        reshape(b, chosen, &cx.outputs[0].dims)
    });
    let infer = shape_rule(|cx| {
        let Some(mut data) = check(cx)? else { return Ok(()) };
        if data.remove(time_axis(cx.params)) == Dim::Const(0) {
            return Err("operand `data`: a sequence without elements has no last one".into());
        }
        cx.set_output_dims(0, data)
    });
    with_lengths(define("mx_sequence_last", "The last element of every sequence.", compute, infer))
        .mxnet("SequenceLast")
}

fn reverse() -> OpDef {
    let compute = composite(|b, cx, args| {
        let data = operand(b, args, 0)?;
        let dims = b.dims(data)?;
        let (time, batch) = (dims[0], dims[1]);
        let lengths = lengths(b, cx.params, data, args)?;
        let lengths = lengths.map(|l| reshape(b, l, &[1, batch])).transpose()?;
        let inputs: Vec<Value> = lengths.into_iter().collect();
        // Rows of the sequences put one behind the other, and which of them each place takes.
        let from = b.map_as(&inputs, DType::I64, &[time, batch], |s, a| {
            let t = s.coord(0);
            let end = a.first().map_or(t.lit(time as f64), |l| l.max(&l.lit(0.0)).min(&l.lit(time as f64)));
            let source = t.lt(&end).select(&(&end - t.lit(1.0) - &t), &t);
            source * t.lit(batch as f64) + s.coord(1)
        })?;
        let from = reshape(b, from, &[time * batch])?;
        let rows = reshape(b, data, &[&[time * batch], &dims[2..]].concat())?;
        let out = b.gathered(rows, from, 0)?;
        reshape(b, out, &dims)
    });
    let infer = rule(|cx| {
        reject_if(time_axis(cx.params) != 0, || "parameter `axis`: sequences are reversed along axis 0 only")?;
        check(cx)?;
        same(cx, 0, 0)
    });
    let doc = "Every sequence backwards; what is behind its end stays.";
    with_lengths(define("mx_sequence_reverse", doc, compute, infer)).mxnet("SequenceReverse")
}
