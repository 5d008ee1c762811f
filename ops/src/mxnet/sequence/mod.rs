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
    let Some(data) = open_rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(None) };
    let batch = 1 - time_axis(cx.params);
    if cx.has_input(1) {
        cx.set_input_dims(1, [data[batch]])?;
        shaped(cx, 1, &[data[batch]])?;
    }
    Ok(Some(data))
}

/// The lengths as i64, shaped to broadcast with data of a rank; `None` if all are whole.
fn lengths<'g>(g: GraphScope<'g>, params: &Params, rank: usize) -> Result<Option<Tensor<'g>>> {
    let Some(given) = g.maybe(1).filter(|_| params.flag("use_sequence_length")) else {
        return Ok(None);
    };
    let (n, batch) = (given.dims()?.at(0), 1 - time_axis(params));
    let dims: Extents = (0..rank).map(|i| if i == batch { n } else { Extent::ONE }).collect();
    Ok(Some(given.convert(DType::I64).reshaped(&dims)))
}

fn mask() -> OpDef {
    let compute = formula(|g, cx| {
        let (data, axis) = (g.operand(0), time_axis(cx.params));
        let Some(lengths) = lengths(g, cx.params, cx.outputs[0].rank())? else { return Ok(data.call("identity", &[])) };
        let value = cx.params.float("value").unwrap_or(0.0);
        Ok(data.map_with(&[lengths], |s, a| s.coord(axis).lt(&a[1]).select(&a[0], &a[0].lit(value))))
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
    let compute = formula(|g, cx| {
        let (data, axis) = (g.operand(0), time_axis(cx.params));
        let dims = data.dims()?;
        let n = dims.at(axis);
        let chosen = match lengths(g, cx.params, dims.len())? {
            None => data.slice(axis, n - 1, 1),
            Some(lengths) => {
                let dtype = cx.outputs[0].dtype;
                let only = g.map_with_extents(&[data, lengths], &Extents::of([n]), dtype, &dims, |s, a, n| {
                    let end = a[1].max(&a[1].lit(1.0)).min(&n[0]) - a[1].lit(1.0);
                    s.coord(axis).eq(&end).select(&a[0], &a[0].lit(0.0))
                });
                only.sum(&[axis])
            }
        };
        Ok(chosen.reshaped(&cx.outputs[0].dims))
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
    let compute = formula(|g, cx| {
        let data = g.operand(0);
        let dims = data.dims()?;
        let (time, batch) = (dims.at(0), dims.at(1));
        let both = dims.range(..2);
        let lengths = lengths(g, cx.params, dims.len())?.map(|l| l.reshaped(Extents::of([Extent::ONE, batch])));
        let inputs: Vec<_> = lengths.into_iter().collect();
        // Rows of the sequences put one behind the other, and which of them each place takes.
        let from = g.map_with_extents(&inputs, &both, DType::I64, &both, |s, a, extents| {
            let (t, time) = (s.coord(0), &extents[0]);
            let end = a.first().map_or(time.clone(), |l| l.max(&l.lit(0.0)).min(time));
            let source = t.lt(&end).select(&(&end - t.lit(1.0) - &t), &t);
            source * &extents[1] + s.coord(1)
        });
        let rows: Extents = [time * batch].into_iter().chain(dims.range(2..).all()).collect();
        Ok(data.reshaped(&rows).gather(from.reshaped(rows.range(..1)), 0).reshaped(&dims))
    });
    let infer = rule(|cx| {
        reject_if(time_axis(cx.params) != 0, || "parameter `axis`: sequences are reversed along axis 0 only")?;
        check(cx)?;
        same(cx, 0, 0)
    });
    let doc = "Every sequence backwards; what is behind its end stays.";
    with_lengths(define("mx_sequence_reverse", doc, compute, infer)).mxnet("SequenceReverse")
}
