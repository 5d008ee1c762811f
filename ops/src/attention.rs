//! Attention and rotary position embedding.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![attention(), rotary_embedding()]
}

/// Extents of one attention call.
struct Heads {
    batch: Extent,
    kv: u64,
    /// Query heads that share one key and value head.
    group: u64,
    queries: Extent,
    /// Whether the operands are [batch, sequence, heads · size] rather than
    /// [batch, heads, sequence, size].
    packed: bool,
}

impl Heads {
    /// The first axes of products: batch, key heads, query heads that share one, queries.
    fn lead(&self) -> [Extent; 4] {
        [self.batch, self.kv.into(), self.group.into(), self.queries]
    }
}

fn heads(g: GraphScope<'_>, params: &Params, q: &Extents, k: &Extents) -> Result<Heads> {
    let packed = q.len() == 3;
    let (query_heads, kv) = match packed {
        true => {
            let count = |name: &str| params.int(name).unwrap_or(0).max(0) as u64;
            (count("q_num_heads"), count("kv_num_heads"))
        }
        // How many heads there are decides how they are computed.
        false => (q.at(1).fixed() as u64, k.at(1).fixed() as u64),
    };
    if kv == 0 || query_heads % kv != 0 {
        return Err(g.fail(format!("{query_heads} query heads cannot share {kv} key heads")));
    }
    let queries = q.at(if packed { 1 } else { 2 });
    Ok(Heads { batch: q.at(0), kv, group: query_heads / kv, queries, packed })
}

/// [batch, sequence, heads · size] as [batch, heads, sequence, size].
pub fn by_head(x: Tensor<'_>, heads: u64) -> Result<Tensor<'_>> {
    let d = x.dims()?;
    Ok(x.reshape(Extents::of([d.at(0), d.at(1), heads.into(), d.at(2).div_floor(heads)])).permute(&[0, 2, 1, 3]))
}

/// The mask as [.., queries, keys], with what it lacks at the end masked out.
fn padded_mask(mask: Tensor<'_>, keys: Extent) -> Result<Tensor<'_>> {
    let ty = mask.ty()?;
    let mut dims = ty.dims.clone();
    let Some(last) = dims.len().checked_sub(1).filter(|last| dims.at(*last) < keys && dims.at(*last) != 1) else {
        return Ok(mask);
    };
    dims.set(last, keys);
    let fill = match ty.dtype {
        DType::Bool => Scalar::bool(false),
        d => Scalar::from_f64(d, f64::NEG_INFINITY),
    };
    Ok(mask.view(vars(dims.len()), Some(fill), &dims))
}

/// The mask of the scores: an operand, the number of valid keys, and which keys around its position a query sees. That is its number
/// behind the cached keys, or among the valid keys, of which the queries are the last.
struct Mask<'g> {
    /// [.., queries, keys], a bool or what is added to scores.
    operand: Option<Tensor<'g>>,
    /// The number of valid keys, [batch, 1, 1, 1].
    valid: Option<Tensor<'g>>,
    /// How many keys before and behind its own position a query sees, if not all.
    window: [Option<i64>; 2],
    /// Length of the key cache; of queries, if they are the last of the valid keys.
    length: Extent,
}

impl<'g> Mask<'g> {
    fn new(g: GraphScope<'g>, cx: &NodeCtx<'_>, scores: &DenseType, past: Extent) -> Result<Mask<'g>> {
        let [batch, queries, keys] = [0, 2, 3].map(|axis| scores.dims.at(axis));
        let operand = g.maybe(3).map(|mask| padded_mask(mask, keys)).transpose()?;
        let one = Extent::ONE;
        let valid = g.maybe(6).map(|valid| valid.reshape(Extents::of([batch, one, one, one])));
        let bound = |name: &str| cx.params.int(name).filter(|n| *n >= 0);
        let behind = if cx.params.flag("is_causal") { Some(0) } else { bound("right_window_size") };
        let length = if valid.is_some() { queries } else { past };
        Ok(Mask { operand, valid, window: [bound("left_window_size"), behind], length })
    }

    fn has_window(&self) -> bool {
        self.window.iter().any(Option::is_some)
    }

    /// Scores, -∞ where a key is hidden.
    fn applied(&self, scores: Tensor<'g>) -> Tensor<'g> {
        if self.operand.is_none() && self.valid.is_none() && !self.has_window() {
            return scores;
        }
        // A length that depends on symbols is an operand.
        let is_open = self.has_window() && self.length.known().is_none();
        let length = is_open.then(|| scores.graph().extents(&Extents::of([self.length])).reshape([]));
        let others: Vec<_> = self.operand.into_iter().chain(self.valid).chain(length).collect();
        scores.map_with(&others, |s, a| {
            let mut y = a[0].clone();
            let never = y.lit(f64::NEG_INFINITY);
            let hide = |y: &Ex, shown: &Ex| (y + shown.select(&y.lit(0.0), &never)).clone();
            let mut rest = a[1..].iter();
            if let Some(m) = self.operand.and_then(|_| rest.next()) {
                y = if m.dtype() == DType::Bool { hide(&y, m) } else { y + m.cast(a[0].dtype()) };
            }
            let valid = self.valid.and_then(|_| rest.next()).map(|n| n.cast(DType::I64));
            if let Some(n) = &valid {
                y = hide(&y, &s.coord(3).lt(n));
            }
            if !self.has_window() {
                return y;
            }
            let int = |n: i64| s.number(DType::I64, n as f64);
            let known = || int(self.length.known().unwrap_or(0));
            let length = length.and_then(|_| rest.next()).cloned().unwrap_or_else(known);
            let own = s.coord(2) + valid.map_or_else(|| length.clone(), |n| n - &length);
            let [before, behind] = self.window;
            if let Some(n) = behind {
                y = hide(&y, &s.coord(3).le(&if n == 0 { own.clone() } else { &own + int(n) }));
            }
            if let Some(n) = before {
                y = hide(&y, &s.coord(3).ge(&(own - int(n))));
            }
            y
        })
    }

    /// The row maximum of the mask, added to scores of 0: -∞ where all keys of a query are masked. `None` if that cannot
    /// be: without other masks, a query sees its own position or those before. An axis along which the mask is constant has extent 1.
    fn peaks(&self, g: GraphScope<'g>, scores: &DenseType) -> Result<Option<Tensor<'g>>> {
        if self.operand.is_none() && self.valid.is_none() && self.window[0].is_none() {
            return Ok(None);
        }
        let mut dims = vec![Extent::ONE; 4];
        if let Some(mask) = self.operand {
            let own = mask.dims()?;
            let lead = 4 - own.len().min(4);
            dims.splice(lead.., own.all());
        }
        let varies = [(0, self.valid.is_some()), (2, self.has_window()), (3, true)];
        varies.iter().filter(|(_, varies)| *varies).for_each(|(axis, _)| dims[*axis] = scores.dims.at(*axis));
        let dims = dims.into_iter().collect::<Extents>();
        let zeros = g.filled(&DenseType { dtype: scores.dtype, dims }, 0.0);
        Ok(Some(self.applied(zeros).reduce("reduce_max", &[3])))
    }
}

/// `x`, with 0 in rows that are fully masked.
fn without_masked_rows<'g>(x: Tensor<'g>, peaks: Tensor<'g>) -> Tensor<'g> {
    x.map_with(&[peaks], |_, a| a[1].eq(&a[1].lit(f64::NEG_INFINITY)).select(&a[0].lit(0.0), &a[0]))
}

/// The product of [batch, heads, queries, n] and a tensor for each key head, of which a position is `from`, over the
/// last of `extents`: by batch, key head, query head that shares it, query and the position in the result.
fn by_group<'g>(x: Tensor<'g>, y: Tensor<'g>, h: &Heads, [m, n]: [Extent; 2], from: [u32; 2]) -> Tensor<'g> {
    let [batch, kv, group, queries] = h.lead();
    let extents = Extents::of([batch, kv, group, queries, m, n]);
    let lhs = [0, 1, 2, 3, 5].map(Index::var).to_vec();
    let rhs = [0, 1, from[0], from[1]].map(Index::var).to_vec();
    x.reshape(Extents::of([batch, kv, group, queries, n])).contract(y, Contraction::new(extents, 5, lhs, rhs))
}

/// `scale · q · kᵀ` for every query head, [batch, heads, queries, keys].
fn scores<'g>(h: &Heads, q: Tensor<'g>, k: Tensor<'g>, scale: f64) -> Result<Tensor<'g>> {
    let (qt, keys) = (q.ty()?, k.dims()?.at(2));
    // Half precision is scaled before the product, where it cannot overflow.
    let half = matches!(qt.dtype, DType::F16 | DType::BF16);
    let scaled = |x: Tensor<'g>| x.map(|x| x * scale);
    let [batch, kv, group, queries] = h.lead();
    let q = q.reshape(Extents::of([batch, kv, group, queries, qt.dims.at(3)]));
    let y = by_group(if half { scaled(q) } else { q }, k, h, [keys, qt.dims.at(3)], [4, 5]);
    let y = y.reshape(Extents::of([batch, kv * group, queries, keys]));
    Ok(if half { y } else { scaled(y) })
}

/// `p · v`, in the layout of the operands; 0 in rows that are fully masked.
fn weighted<'g>(h: &Heads, p: Tensor<'g>, v: Tensor<'g>, peaks: Option<Tensor<'g>>) -> Result<Tensor<'g>> {
    let (size, keys, count) = (v.dims()?.at(3), p.dims()?.at(3), Extent::from(h.kv * h.group));
    let mut y = by_group(p, v, h, [size, keys], [5, 4]);
    if let Some(peaks) = peaks {
        let d = peaks.dims()?;
        let [_, kv, group, _] = if d.at(1) == 1 { [Extent::ONE; 4] } else { h.lead() };
        y = without_masked_rows(y, peaks.reshape(Extents::of([d.at(0), kv, group, d.at(2), Extent::ONE])));
    }
    Ok(match h.packed {
        true => y.permute(&[0, 3, 1, 2, 4]).reshape(Extents::of([h.batch, h.queries, count * size])),
        false => y.reshape(Extents::of([h.batch, count, h.queries, size])),
    })
}

fn attention_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let [q, k, v] = g.operands();
    let h = heads(g, cx.params, &q.dims()?, &k.dims()?)?;
    let unpacked = |x: Tensor<'g>, heads: u64| if h.packed { by_head(x, heads) } else { Ok(x) };
    let q = unpacked(q, h.kv * h.group)?;
    let (k, v) = (unpacked(k, h.kv)?, unpacked(v, h.kv)?);
    // After what earlier calls left in the cache.
    let past = g.maybe(4).map_or(Ok(Extent::ZERO), |past| past.dims().map(|d| d.at(2)))?;
    let appended = |at: usize, x: Tensor<'g>| g.maybe(at).map_or(x, |past| g.concat(&[past, x], 2));
    let (k, v) = (appended(4, k), appended(5, v));
    let ty = q.ty()?;
    let scale = cx.params.float("scale").unwrap_or_else(|| 1.0 / (ty.dims.at(3).fixed() as f64).sqrt());
    let raw = scores(&h, q, k, scale)?;
    let capped = match cx.params.float("softcap").unwrap_or(0.0) {
        cap if cap > 0.0 => raw.map(|x| (x / x.lit(cap)).tanh() * cap),
        _ => raw,
    };
    let scores = capped.ty()?;
    let mask = Mask::new(g, cx, &scores, past)?;
    let (biased, peaks) = (mask.applied(capped), mask.peaks(g, &scores)?);
    let precise = biased.convert(cx.params.dtype("softmax_precision").unwrap_or(ty.dtype));
    let p = g.op("softmax", &[precise], Params::new().with("axis", -1)).convert(ty.dtype);
    let y = weighted(&h, p, v, peaks)?;
    let shown = match cx.params.int("qk_matmul_output_mode").unwrap_or(0) {
        1 => capped,
        2 => biased,
        3 => peaks.map_or(p, |peaks| without_masked_rows(p, peaks)),
        _ => raw,
    };
    Ok(vec![y, k, v, shown])
}

/// `out = a · factor` (exact), for possibly unknown dimensions.
fn multiple(cx: &mut InferCtx<'_>, out: Dim, a: Dim, factor: u64) -> Result<(), OpError> {
    cx.relate(Equation::Affine { out, input: a, mul: factor as i64, add: 0, div: 1 })
}

/// The numbers of query heads and of key heads.
fn head_counts(cx: &mut InferCtx<'_>, [q, k, v]: [&[Dim]; 3]) -> Result<(Dim, Dim), OpError> {
    let (hq, hk) = match q.len() {
        3 => {
            let count = |name: &str| cx.params.int(name).filter(|n| *n > 0).map(|n| n as u64);
            let (Some(hq), Some(hk)) = (count("q_num_heads"), count("kv_num_heads")) else {
                return Err("parameters `q_num_heads` and `kv_num_heads` must be given for operands of rank 3".into());
            };
            for (i, axis, heads) in [(0, q[2], hq), (1, k[2], hk), (2, v[2], hk)] {
                multiple_of(axis, heads, &format!("{}, axis 2", cx.input_name(i)))?;
            }
            (Dim::Const(hq), Dim::Const(hk))
        }
        _ => {
            cx.unify_dims(k[1], v[1], "operand `V`, axis 1")?;
            (q[1], k[1])
        }
    };
    if let (Dim::Const(hq), Dim::Const(hk)) = (hq, hk) {
        reject_if(hk == 0 || hq % hk != 0, || format!("{hq} query heads cannot share {hk} key heads"))?;
    }
    Ok((hq, hk))
}

/// The number of keys in the cache, if there is one; `head` are the sizes of a key and of a value.
fn cached(cx: &mut InferCtx<'_>, [batch, heads]: [Dim; 2], head: [Option<Dim>; 2]) -> Result<Option<Dim>, OpError> {
    reject_if(cx.has_input(4) != cx.has_input(5), || "operands `past_key` and `past_value`: expected both or none")?;
    if cx.has_input(5) {
        default_dtype(cx, 5, 2)?;
        let (cached, new) = (cx.input_dtype(5), cx.input_dtype(2));
        reject_if(
            cached.is_some() && new.is_some() && cached != new,
            || "operand `past_value`: expected the type of `V`",
        )?;
    }
    let mut past = None;
    for (i, head) in [(4, head[0]), (5, head[1])] {
        let Some(dims) = open_rank_in(cx, i, 4..=4)? else { continue };
        let length = past.unwrap_or(dims[2]);
        shaped(cx, i, &[batch, heads, length, head.unwrap_or(dims[3])])?;
        past = Some(length);
    }
    Ok(past)
}

fn attention_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    (0..cx.output_count()).try_for_each(|i| cx.same_dtype(i, if i == 2 { 2 } else { 0 }))?;
    let (Some(q), Some(k), Some(v)) = (cx.open_dims(0), cx.open_dims(1), cx.open_dims(2)) else { return Ok(()) };
    if q.len() != k.len() || q.len() != v.len() || !(3..=4).contains(&q.len()) {
        return Err(OpError(format!(
            "operands `Q`, `K`, `V`: expected equal ranks 3 or 4, found {}, {}, {}",
            q.len(),
            k.len(),
            v.len()
        )));
    }
    cx.unify_dims(q[0], k[0], "operand `K`, axis 0")?;
    cx.unify_dims(q[0], v[0], "operand `V`, axis 0")?;
    let packed = q.len() == 3;
    let (hq, hk) = head_counts(cx, [&q, &k, &v])?;
    let time = q.len() - 2;
    let (queries, new) = (q[time], k[time]);
    cx.unify_dims(new, v[time], &format!("operand `V`, axis {time}"))?;
    // Sizes of one query, one key and one value head.
    let size = |cx: &InferCtx<'_>, x: &[Dim], heads: Dim| match (packed, cx.resolve(x[x.len() - 1]), heads) {
        (false, d, _) => Some(d),
        (true, Dim::Const(n), Dim::Const(h)) => Some(Dim::Const(n / h)),
        _ => None,
    };
    let (query_size, key_size, value_size) = (size(cx, &q, hq), size(cx, &k, hk), size(cx, &v, hk));
    if let (Some(query), Some(key)) = (query_size, key_size) {
        cx.unify_dims(query, key, "operand `K`, size of a head")?;
    }
    match packed {
        true => {
            partial(cx, 0, &[Some(q[0]), Some(queries), None])?;
            if let (Some(vs), Dim::Const(h)) = (value_size, hq) {
                let out = output_dims(cx, 0)[2];
                multiple(cx, out, vs, h)?;
            }
        }
        false => partial(cx, 0, &[Some(q[0]), Some(hq), Some(queries), value_size])?,
    }
    let past = cached(cx, [q[0], hk], [key_size, value_size])?;
    let total = if cx.has_input(4) { None } else { Some(new) };
    for (i, size) in [(1, key_size), (2, value_size)] {
        if cx.output_count() > i {
            partial(cx, i, &[Some(q[0]), Some(hk), total, size])?;
            append_rule(cx, i, 2, past, new)?;
        }
    }
    if cx.output_count() > 3 {
        partial(cx, 3, &[Some(q[0]), Some(hq), Some(queries), total])?;
        append_rule(cx, 3, 3, past, new)?;
    }
    Ok(())
}

/// The axis counts cached and new keys.
fn append_rule(cx: &mut InferCtx<'_>, output: usize, axis: usize, past: Option<Dim>, new: Dim) -> Result<(), OpError> {
    let out = output_dims(cx, output)[axis];
    match past {
        Some(past) => cx.relate(Equation::Sum { out, terms: vec![past, new] }),
        None => Ok(()),
    }
}

fn attention() -> OpDef {
    let doc = "Scaled dot-product attention with grouped heads, caches, masks and soft capping.";
    define("attention", doc, formulas(attention_body), rule(attention_rule))
        .groups(&["Q", "K"], FLOATS)
        .operand("V", FLOATS)
        .optional("attn_mask", TypeRule::Any)
        .optional("past_key", TypeRule::Group(0, FLOATS))
        .optional("past_value", TypeRule::OneOf(FLOATS))
        .optional("nonpad_kv_seqlen", TypeRule::OneOf(INDICES))
        .param("is_causal", false, "Queries see no later keys.")
        .param("left_window_size", -1, "How many earlier keys a query sees; -1: all.")
        .param("right_window_size", -1, "How many later keys a query sees; -1: all.")
        .maybe("q_num_heads", ParamKind::Int, "Needed for operands of rank 3.")
        .maybe("kv_num_heads", ParamKind::Int, "Needed for operands of rank 3.")
        .param("qk_matmul_output_mode", 0, "Which scores the last result shows: raw, capped, masked, normalised.")
        .maybe("scale", ParamKind::Float, "Default: 1 / √size.")
        .param("softcap", 0.0, "Bound of the scores by tanh; 0: none.")
        .maybe("softmax_precision", ParamKind::DType, "Type the softmax computes in.")
        .outputs(1, 4)
        .demand(6, |cx| {
            let keys = cx.input(1)?;
            Ok(Some(Allowed::up_to(keys.dims.at(keys.rank().saturating_sub(2)))))
        })
        .onnx("Attention", 23)
        .ulp(16.0)
}

/// Interleaved pairs, or halves, of the last axis: the view of the `which`-th of each pair.
fn half(x: Tensor<'_>, which: u64, interleaved: bool) -> Result<Tensor<'_>> {
    let mut dims = x.dims()?;
    let last = dims.len() - 1;
    dims.set(last, dims.at(last).div_floor(2));
    if !interleaved {
        return Ok(x.slice(last, dims.at(last) * which, dims.at(last)));
    }
    let mut map = vars(dims.len());
    map[last] = map[last].scale(2).offset(which as i64);
    Ok(x.view(map, None, &dims))
}

/// Cosines or sines as [batch, sequence, 1, size].
fn table<'g>(cache: Tensor<'g>, ids: Option<Tensor<'g>>) -> Result<Tensor<'g>> {
    let rows = ids.map_or(cache, |ids| cache.gather(ids, 0));
    let d = rows.dims()?;
    Ok(rows.reshape(Extents::of([d.at(0), d.at(1), Extent::ONE, d.at(2)])))
}

fn rotary_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let [x, cos, sin] = g.operands();
    let ty = x.ty()?;
    let (cos, sin) = (table(cos, g.maybe(3))?, table(sin, g.maybe(3))?);
    // Computed on [batch, sequence, heads, size].
    let x = match ty.rank() {
        3 => {
            let heads = cx.params.int("num_heads").unwrap_or(0).max(0) as u64;
            let Some(size) = Some(heads).filter(|n| *n > 0).and_then(|n| ty.dims.at(2).sure_quotient(n)) else {
                return Err(g.fail("parameter `num_heads` must divide the last axis of an operand of rank 3"));
            };
            x.reshape(Extents::of([ty.dims.at(0), ty.dims.at(1), heads.into(), size]))
        }
        _ => x.permute(&[0, 2, 1, 3]),
    };
    let dims = x.dims()?;
    let size = dims.at(3).fixed() as u64;
    let rotated = match cx.params.int("rotary_embedding_dim").unwrap_or(0) {
        n if n > 0 => (n as u64).min(size),
        _ => size,
    };
    let interleaved = cx.params.flag("interleaved");
    let turned = x.slice(3, 0, rotated);
    let inputs = [cos, sin, half(turned, 0, interleaved)?, half(turned, 1, interleaved)?];
    let [n, s, heads] = [0, 1, 2].map(|axis| dims.at(axis));
    let shape = Extents::of([n, s, heads, (rotated / 2).into()]);
    let real = g.map(&inputs, ty.dtype, &shape, |_, a| &a[0] * &a[2] - &a[1] * &a[3]);
    let imaginary = g.map(&inputs, ty.dtype, &shape, |_, a| &a[1] * &a[2] + &a[0] * &a[3]);
    let mut y = match interleaved {
        true => {
            let pairs: Extents = shape.all().chain([Extent::ONE]).collect();
            let parts = [real, imaginary].map(|part| part.reshape(&pairs));
            g.concat(&parts, 4).reshape(Extents::of([n, s, heads, rotated.into()]))
        }
        false => g.concat(&[real, imaginary], 3),
    };
    if rotated < size {
        y = g.concat(&[y, x.slice(3, rotated, size - rotated)], 3);
    }
    Ok(if ty.rank() == 3 { y.reshape(&ty.dims) } else { y.permute(&[0, 2, 1, 3]) })
}

fn rotary_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    same(cx, 0, 0)?;
    let x = open_rank_in(cx, 0, 3..=4)?;
    // Both [batch, sequence, hidden] and [batch, heads, sequence, size] end in these two.
    if let Some(x) = &x {
        broadcasts_to(cx, 3, &[x[0], x[x.len() - 2]])?;
        open_rank_in(cx, 3, 2..=2)?;
    }
    let heads = cx.params.int("num_heads").unwrap_or(0).max(0) as u64;
    let size = x.as_ref().and_then(|x| match (x.len(), x[x.len() - 1].as_const()?) {
        (3, hidden) => hidden.checked_div(heads),
        (_, size) => Some(size),
    });
    let rotated = match cx.params.int("rotary_embedding_dim").unwrap_or(0) {
        n if n > 0 => size.map(|s| s.min(n as u64)),
        _ => size,
    };
    if let Some(n) = rotated.filter(|n| n % 2 != 0) {
        return Err(OpError(format!("operand `X`: expected pairs of features to rotate, found {n} features")));
    }
    for cache in [1, 2] {
        let rank = if cx.has_input(3) { 2 } else { 3 };
        let Some(found) = open_rank_in(cx, cache, rank..=rank)? else { continue };
        let mut expected = found.clone();
        if let (Some(x), 3) = (&x, rank) {
            (expected[0], expected[1]) = (x[0], x[x.len() - 2]);
        }
        if let Some(n) = rotated {
            expected[rank - 1] = Dim::Const(n / 2);
        }
        broadcasts_to(cx, cache, &expected)?;
    }
    Ok(())
}

fn rotary_embedding() -> OpDef {
    define("rotary_embedding", "Rotates pairs of features by position.", formula(rotary_body), rule(rotary_rule))
        .groups(&["X", "cos_cache", "sin_cache"], FLOATS)
        .optional("position_ids", TypeRule::OneOf(INDICES))
        .param("interleaved", false, "Pairs are neighbours rather than halves apart.")
        .param("num_heads", 0, "Needed for an operand of rank 3.")
        .param("rotary_embedding_dim", 0, "How many features rotate; 0: all.")
        .demand(3, |cx| Ok(Some(Allowed::below(cx.input(1)?.dims.at(0)))))
        .onnx("RotaryEmbedding", 23)
        .ulp(2.0)
}
