//! `GroupQueryAttention`: attention over caches whose samples have their own lengths.

use super::super::only;
use super::{Call, by_head, check_bias, heads_of, scale_of};
use crate::prelude::*;
use crate::rules::{ints, need_ints, open_rank_in};

/// Operand positions.
const PAST: [usize; 2] = [3, 4];
const LENGTHS: usize = 5;
const TOTAL: usize = 6;
const CACHES: [usize; 2] = [7, 8];
const POSITIONS: usize = 9;
const BIAS: usize = 10;
const SINK: usize = 11;
const NORMS: [usize; 2] = [14, 15];

/// Extents and where each sample stands.
struct Step<'g> {
    batch: u64,
    /// New elements of each sequence.
    new: u64,
    /// Elements of the cache that results.
    total: u64,
    /// Elements of each sample before the new ones, [batch, 1, 1], i64.
    past: Tensor<'g>,
}

impl<'g> Step<'g> {
    /// Positions of the new elements.
    fn positions(&self) -> Tensor<'g> {
        self.past
            .graph()
            .map(&[self.past.reshape([self.batch, 1])], DType::I64, [self.batch, self.new], |s, a| &a[0] + s.coord(1))
    }

    /// Each sample's cache with the new keys or values appended, padded with zeros.
    fn appended(&self, cache: Option<Tensor<'g>>, x: Tensor<'g>) -> Result<Tensor<'g>> {
        let (g, d) = (x.graph(), x.dims()?);
        let (heads, size) = (d[1], d[3]);
        let zero = g.filled(&DenseType::new(x.ty()?.dtype, [self.batch, heads, 1, size]), 0.0);
        let stored = cache.map_or(Ok(0), |c| c.dims().map(|d| d[2]))?;
        let all: Vec<Tensor<'g>> = cache.into_iter().chain([x, zero]).collect();
        let rows = self.batch * heads;
        let all = g.concat(&all, 2).reshape([rows, stored + self.new + 1, size]);
        let from = g.map(&[self.past], DType::I64, [self.batch, heads, self.total], |s, a| {
            let (at, past) = (s.coord(2), &a[0]);
            let [first, last] = [stored, stored + self.new].map(|n| s.constant(Scalar::i64(n as i64)));
            let fresh = &at - past + &first;
            at.lt(past).select(&at, &fresh.lt(&last).select(&fresh, &last))
        });
        let params = Params::new().with("batch_dims", 1);
        let rows = g.op("gather_nd", &[all, from.reshape([rows, self.total, 1])], params);
        Ok(rows.reshape([self.batch, heads, self.total, size]))
    }

    /// Which keys each query sees, [batch, 1, queries, keys].
    fn shown(&self, cx: &NodeCtx<'_>, keys: u64) -> Tensor<'g> {
        let window = cx.params.int("local_window_size").unwrap_or(-1);
        let causal = cx.params.int("causal").unwrap_or(1) != 0;
        let (new, total) = (self.new, self.total);
        let past = self.past.reshape([self.batch, 1, 1, 1]);
        past.graph().map(&[past], DType::Bool, [self.batch, 1, new, keys], |s, a| {
            let at = s.coord(3);
            let number = |n: u64| s.constant(Scalar::i64(n as i64));
            let no = s.constant(Scalar::bool(false));
            let last = if causal { &a[0] + s.coord(2) } else { &a[0] + number(new) - number(1) };
            let mut shown = at.le(&last);
            if window > 0 {
                shown = at.gt(&(&last - number(window as u64))).select(&shown, &no);
            }
            // Behind the keys: what smooths the softmax.
            if keys > total { at.ge(&number(total)).select(&s.constant(Scalar::bool(true)), &shown) } else { shown }
        })
    }
}

/// Normalises queries or keys by head.
fn normalised<'g>(x: Tensor<'g>, weight: Option<Tensor<'g>>, epsilon: f64) -> Tensor<'g> {
    let params = Params::new().with("axis", -1).with("epsilon", epsilon);
    weight.map_or(x, |weight| x.graph().op("rms_norm", &[x, weight], params))
}

/// Queries, keys and values by head.
fn operands<'g>(g: GraphScope<'g>, [heads, shared]: [u64; 2]) -> Result<[Tensor<'g>; 3]> {
    let q = g.operand(0);
    if let (Some(k), Some(v)) = (g.maybe(1), g.maybe(2)) {
        return Ok([by_head(q, heads)?, by_head(k, shared)?, by_head(v, shared)?]);
    }
    let size = q.dims()?[2] / (heads + 2 * shared);
    let part = |start: u64, count: u64| by_head(q.slice(2, start * size, count * size), count);
    Ok([part(0, heads)?, part(heads, shared)?, part(heads + shared, shared)?])
}

/// With a key of zeros behind the others, whose score is what smooths the softmax.
fn with_sink<'g>(x: Tensor<'g>) -> Result<Tensor<'g>> {
    let ty = x.ty()?;
    let mut dims = ty.dims.clone();
    dims.set(2, 1u64);
    Ok(x.graph().concat(&[x, x.graph().filled(&DenseType::new(ty.dtype, dims), 0.0)], 2))
}

/// What is added to scores, -∞ where keys are hidden, or else which keys are shown.
fn mask<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, step: &Step<'g>, [heads, keys]: [u64; 2]) -> Result<Tensor<'g>> {
    let shown = step.shown(cx, keys);
    let sink = g.maybe(SINK).map(|sink| sink.reshape([1, heads, 1, 1]));
    let Some(bias) = g.maybe(BIAS) else {
        let Some(sink) = sink else { return Ok(shown) };
        let dims = [step.batch, heads, step.new, keys];
        return Ok(g.map(&[shown, sink], cx.outputs[0].dtype, dims, |s, a| {
            let at_end = s.coord(3).ge(&s.constant(Scalar::i64(step.total as i64)));
            let score = at_end.select(&a[1], &a[1].lit(0.0));
            a[0].select(&score, &score.lit(f64::NEG_INFINITY))
        }));
    };
    let mut bias_dims = bias.dims()?.to_vec();
    bias_dims[3] = keys;
    let dims: Vec<u64> =
        [step.batch, heads, step.new].iter().zip(&bias_dims).map(|(n, b)| *n.max(b)).chain([keys]).collect();
    let bias = bias.view(vars(4), Some(Scalar::zero(bias.ty()?.dtype)), &bias_dims);
    let others: Vec<Tensor<'g>> = [shown, bias].into_iter().chain(sink).collect();
    Ok(g.map(&others, cx.outputs[0].dtype, &dims, |s, a| {
        let at_end = s.coord(3).ge(&s.constant(Scalar::i64(step.total as i64)));
        let score = a.get(2).map_or(a[1].clone(), |sink| at_end.select(sink, &a[1]));
        a[0].select(&score, &score.lit(f64::NEG_INFINITY))
    }))
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let heads = heads_of(cx.params, "num_heads").or_fail(&g)?;
    let shared = heads_of(cx.params, "kv_num_heads").or_fail(&g)?;
    let [q, k, v] = operands(g, [heads, shared])?;
    let epsilon = cx.params.float("qk_norm_epsilon").unwrap_or(1e-6);
    let (mut q, mut k) = (normalised(q, g.maybe(NORMS[0]), epsilon), normalised(k, g.maybe(NORMS[1]), epsilon));
    let d = q.dims()?;
    let total = need_ints(cx, TOTAL, "total_sequence_length").or_fail(&g)?.first().copied().unwrap_or(0).max(0) as u64;
    let stored = g.maybe(PAST[0]).map_or(Ok(0), |past| past.dims().map(|d| d[2]))?;
    let prompt = total == d[2];
    let lengths = g.operand(LENGTHS).cast(DType::I64).reshape([d[0], 1, 1]);
    let past = lengths.map(|n| if prompt { n.lit(0.0) } else { n + (1.0 - d[2] as f64) });
    let step = Step { batch: d[0], new: d[2], total: total.max(stored), past };
    if cx.params.flag("do_rotary") {
        let [cos, sin] = CACHES.map(|i| g.operand(i));
        let at = g.maybe(POSITIONS).unwrap_or_else(|| step.positions());
        let params = Params::new()
            .with("interleaved", cx.params.flag("rotary_interleaved"))
            .with("rotary_embedding_dim", 2 * cos.dims()?[1] as i64);
        [q, k] = [q, k].map(|x| g.op("rotary_embedding", &[x, cos, sin, at], params.clone()));
    }
    let (keys, values) = (step.appended(g.maybe(PAST[0]), k)?, step.appended(g.maybe(PAST[1]), v)?);
    let smooth = cx.params.int("smooth_softmax").unwrap_or(-1) == 1 || g.maybe(SINK).is_some();
    let mask = mask(g, cx, &step, [heads, step.total + u64::from(smooth)])?;
    let (k, v) = if smooth { (with_sink(keys)?, with_sink(values)?) } else { (keys, values) };
    let softcap = cx.params.float("softcap").unwrap_or(0.0);
    let call = Call { q, k, v, past: [None; 2], mask: Some(mask), causal: false, scale: scale_of(cx), softcap };
    Ok(vec![call.results()?[0], keys, values])
}

/// The size of a head, from queries alone or with packed keys and values.
fn head_size(cx: &mut InferCtx<'_>, q: &[Dim], [heads, shared]: [u64; 2]) -> Result<Option<u64>, OpError> {
    let packed = !cx.has_input(1);
    reject_if(cx.has_input(1) != cx.has_input(2), || "operands `key` and `value`: expected both or none")?;
    let parts = if packed { heads + 2 * shared } else { heads };
    let Some(n) = q[2].as_const() else { return Ok(None) };
    reject_if(n % parts != 0, || format!("operand `query`: {n} features do not divide into {parts} heads"))?;
    let size = n / parts;
    if !packed {
        for i in [1, 2] {
            shaped(cx, i, &[q[0], q[1], Dim::Const(shared * size)])?;
        }
    }
    Ok(Some(size))
}

fn rotation_rule(cx: &mut InferCtx<'_>, q: &[Dim], size: u64) -> Result<(), OpError> {
    if !cx.params.flag("do_rotary") {
        return Ok(());
    }
    for i in CACHES {
        reject_if(!cx.has_input(i), || format!("{} must be given with `do_rotary`", cx.input_name(i)))?;
        let Some(dims) = open_rank_in(cx, i, 2..=2)? else { continue };
        reject_if(dims[1].as_const().is_some_and(|half| half == 0 || 2 * half > size), || {
            format!("{}: too many features for heads of {size}", cx.input_name(i))
        })?;
    }
    if cx.has_input(POSITIONS) { shaped(cx, POSITIONS, &[q[0], q[1]]) } else { Ok(()) }
}

fn shapes(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    ["sliding_window_cache", "qk_output"].into_iter().try_for_each(|name| only(cx, name, 0))?;
    for name in ["k_quant_type", "v_quant_type"] {
        reject_if(cx.params.str(name).unwrap_or("NONE") != "NONE", || format!("parameter `{name}` is not supported"))?;
    }
    (0..cx.output_count()).try_for_each(|i| cx.same_dtype(i, 0))?;
    let (heads, shared) = (heads_of(cx.params, "num_heads")?, heads_of(cx.params, "kv_num_heads")?);
    reject_if(heads % shared != 0, || format!("{heads} query heads cannot share {shared} key heads"))?;
    let Some(q) = open_rank_in(cx, 0, 3..=3)? else { return Ok(()) };
    let Some(size) = head_size(cx, &q, [heads, shared])? else {
        return partial(cx, 0, &[Some(q[0]), Some(q[1]), None]);
    };
    rotation_rule(cx, &q, size)?;
    cx.set_output_dims(0, [q[0], q[1], Dim::Const(heads * size)])?;
    reject_if(
        cx.has_input(PAST[0]) != cx.has_input(PAST[1]),
        || "operands `past_key` and `past_value`: expected both or none",
    )?;
    let past = open_rank_in(cx, PAST[0], 4..=4)?;
    if let Some(past) = &past {
        for i in PAST {
            shaped(cx, i, &[q[0], Dim::Const(shared), past[2], Dim::Const(size)])?;
        }
    }
    if let Some(lengths) = open_rank_in(cx, LENGTHS, 1..=2)? {
        reject_if(
            lengths.len() == 2 && lengths[1].as_const().is_some_and(|n| n != 1),
            || "operand `seqlens_k`: expected one element for each sample",
        )?;
        cx.unify_dims(q[0], lengths[0], "operand `seqlens_k`, axis 0")?;
    }
    for i in NORMS {
        if cx.has_input(i) {
            shaped(cx, i, &[Dim::Const(size)])?;
        }
    }
    if cx.has_input(SINK) {
        shaped(cx, SINK, &[Dim::Const(heads)])?;
    }
    let stored = if cx.has_input(PAST[0]) { past.and_then(|past| past[2].as_const()) } else { Some(0) };
    let total = ints(cx, TOTAL).and_then(|n| n.first().copied());
    let total = total.map(|n| u64::try_from(n).map_err(|_| OpError(format!("operand `total_sequence_length` is {n}"))));
    let total = total.transpose()?;
    if let (Some(total), Some(new)) = (total, q[1].as_const()) {
        reject_if(total < new, || format!("operand `total_sequence_length`: {total} for {new} new elements"))?;
    }
    let all = total.zip(stored).map(|(total, stored)| Dim::Const(total.max(stored)));
    for i in 1..cx.output_count() {
        partial(cx, i, &[Some(q[0]), Some(Dim::Const(shared)), all, Some(Dim::Const(size))])?;
    }
    match total {
        Some(total) => check_bias(cx, BIAS, heads, [q[0], q[1], Dim::Const(total)]),
        None => Ok(()),
    }
}

pub fn group_query() -> OpDef {
    let doc = "Causal attention with grouped heads, over caches whose samples have their own lengths.";
    let float = || TypeRule::Group(0, FLOATS);
    define("group_query_attention", doc, formulas(body), rule(shapes))
        .group("query", FLOATS)
        .optional("key", float())
        .optional("value", float())
        .optional("past_key", float())
        .optional("past_value", float())
        .operand("seqlens_k", &[DType::I32])
        .static_operands(&["total_sequence_length"], &[DType::I32])
        .optional("cos_cache", float())
        .optional("sin_cache", float())
        .optional("position_ids", TypeRule::OneOf(&[DType::I64]))
        .optional("attention_bias", float())
        .optional("head_sink", float())
        .optional("k_scale", TypeRule::OneOf(&[]))
        .optional("v_scale", TypeRule::OneOf(&[]))
        .optional("q_norm_weight", float())
        .optional("k_norm_weight", float())
        .outputs(1, 3)
        .required("num_heads", ParamKind::Int, "number of query heads")
        .required("kv_num_heads", ParamKind::Int, "number of key heads")
        .maybe("scale", ParamKind::Float, "Default: 1 / √size.")
        .param("softcap", 0.0, "Bound of the scores by tanh; 0: none.")
        .param("causal", 1, "Queries see no later keys.")
        .param("do_rotary", false, "Rotate queries and keys by position.")
        .param("rotary_interleaved", false, "Pairs are neighbours rather than halves apart.")
        .param("local_window_size", -1, "How many keys a query sees at most; below 1: all.")
        .param("smooth_softmax", -1, "1: a further score of 0 that stands for no key.")
        .param("qk_norm_epsilon", 1e-6, "added to the mean square of queries and keys that are normalised")
        .param("sliding_window_cache", 0, "Only 0 is supported.")
        .param("qk_output", 0, "Only 0 is supported.")
        .param("k_quant_type", "NONE", "Only `NONE` is supported.")
        .param("v_quant_type", "NONE", "Only `NONE` is supported.")
        .param("kv_cache_bit_width", 0, "No effect on floats.")
        .demand(LENGTHS, |cx| {
            let total = cx.value(TOTAL).and_then(TensorData::item).map_or(i64::MAX, |n| n.as_i64());
            let new = cx.input(0)?.dims[1] as i64;
            let least = if total == new { 0 } else { new - 1 };
            Ok(Some(Allowed::Within(Extent::of(least), Extent::of(total - 1))))
        })
        .contrib("GroupQueryAttention")
        .ulp(16.0)
}
