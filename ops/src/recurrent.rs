//! Operators that carry a state along a sequence, and col2im.

use crate::attention::by_head;
use crate::prelude::*;
use crate::rules::need_ints;

pub fn ops() -> Vec<OpDef> {
    vec![col2im(), causal_conv(), linear_attention()]
}

fn col2im() -> OpDef {
    let compute = prim(|cx| {
        let (x, out) = (cx.input(0)?, &cx.outputs[0]);
        let kernel = need_ints(cx, 2, "block_shape")?.into_iter().map(|n| n.max(0) as u64).collect();
        let window = SpatialWindow::new(cx.params, kernel)?;
        let image = &out.dims[2..];
        let count = window.counts(image)?;
        let blocks: u64 = window.kernel.iter().product();
        let (plane, wide) = (image.iter().product::<u64>(), compute_type(out.dtype));
        let k = &KernelScope::new("col2im");
        let (columns, result) = (k.input("input", x), k.output("out", out));
        k.parallel(&out.dims[..2], |lead| {
            let start = linearize(lead, &out.dims[..2]).scale(plane as i64);
            k.each("z", plane, |i| result.set(&start.add(i), Scalar::zero(out.dtype)));
            let rank = image.len();
            k.serial(&[&window.kernel[..], &count].concat(), |at| {
                let (tap, place) = at.split_at(rank);
                let to: Vec<Index> = (0..rank).map(|i| window.position(i, image[i], &place[i], &tap[i])).collect();
                let all = k.constant(Scalar::bool(true));
                let inside = to.iter().zip(image).fold(all, |all, (p, &n)| {
                    let ok = k.in_range(p, 0, n as i64);
                    all & ok
                });
                let channel = lead[1].scale(blocks as i64).add(&linearize(tap, &window.kernel));
                k.when(inside, || {
                    let value = columns.get([&lead[0], &channel, &linearize(place, &count)]);
                    let to = start.add(&linearize(&to, image));
                    let (old, value) = (result.get_as(&to, wide), value.cast(wide));
                    result.set_cast(&to, old + value);
                });
            });
        });
        k.prim()
    });
    let infer = shape_rule(|cx| {
        let x = ranked(cx, 0, 3)?;
        let (Some(image), Some(block)) = (ints(cx, 1), ints(cx, 2)) else { return Ok(()) };
        let wrong = image.len() != block.len() || image.iter().chain(&block).any(|n| *n <= 0);
        reject_if(wrong, || "operands `image_shape` and `block_shape`: expected as many positive extents")?;
        let window = SpatialWindow::new(cx.params, block.iter().map(|n| *n as u64).collect())?;
        let columns = window.counts(&image.iter().map(|n| *n as u64).collect::<Vec<_>>())?;
        let columns = columns.iter().try_fold(1u64, |product, n| product.checked_mul(*n));
        let columns = columns.ok_or("parameter `pads`: there are too many blocks")?;
        cx.unify_dims(Dim::Const(columns), x[2], "operand `input`, axis 2 (blocks)")?;
        let blocks = block.iter().try_fold(1u64, |product, n| product.checked_mul(*n as u64));
        let blocks = blocks.ok_or("operand `block_shape`: the block is too large")?;
        multiple_of(x[1], blocks, "operand `input`, axis 1")?;
        let channels = x[1].as_const().map(|n| Dim::Const(n / blocks));
        let spatial = image.iter().map(|n| Some(Dim::Const((*n).max(0) as u64)));
        let dims: Vec<Option<Dim>> = [Some(x[0]), channels].into_iter().chain(spatial).collect();
        partial(cx, 0, &dims)
    });
    define("col2im", "Sums the columns of sliding blocks back into an image.", compute, infer)
        .operand("input", NUMBERS)
        .static_operands(&["image_shape", "block_shape"], INDICES)
        .maybe("dilations", ParamKind::Ints, "Default: 1.")
        .maybe("pads", ParamKind::Ints, "Default: 0.")
        .maybe("strides", ParamKind::Ints, "Default: 1.")
        .gradient(derivative(col2im_gradient))
        .onnx("Col2Im", 18)
}

/// Every column reads the gradient of the element it was added to.
fn col2im_gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let head = g.head(cx, 0);
    let (dims, image) = (g.operand(0).dims()?, head.ty()?);
    let kernel = need_ints(cx.node, 2, "block_shape").or_fail(&g)?.into_iter().map(|n| n.max(0) as u64).collect();
    let window = SpatialWindow::new(cx.node.params, kernel).or_fail(&g)?;
    let spatial = &image.dims[2..];
    let count = window.counts(spatial).or_fail(&g)?;
    let blocks = window.kernel.iter().product::<u64>().max(1) as i64;
    let tap = delinearize(&Index::var(1).modulo(blocks, &dims[..]), &window.kernel, &dims[..]);
    let place = delinearize(&Index::var(2), &count, &dims[..]);
    let mut map = vec![Index::var(0), Index::var(1).floor_div(blocks, &dims[..])];
    map.extend((0..spatial.len()).map(|i| window.position(i, spatial[i], &place[i], &tap[i])));
    Ok(vec![Some(head.view(map, Some(Scalar::zero(image.dtype)), &dims))])
}

fn causal_conv() -> OpDef {
    let compute = formulas(|g, cx| {
        let [x, w] = g.operands();
        let (ty, taps) = (x.ty()?, w.dims()?[2]);
        let state = [ty.dims[0], ty.dims[1], taps - 1];
        let none = || g.map(&[], ty.dtype, state, |s, _| s.number(compute_type(ty.dtype), 0.0));
        let whole = g.concat(&[g.maybe(3).unwrap_or_else(none), x], 2);
        let params = Params::new().with("group", ty.dims[1] as i64);
        let y = g.op_multi("conv", &[Some(whole), Some(w), g.maybe(2)], params, 1)[0];
        let y = match cx.params.str("activation").unwrap_or("none") {
            "none" => y,
            "silu" | "swish" => y.map(|y| y / ((-y).exp() + 1.0)),
            other => return Err(g.fail(format!("parameter `activation`: unknown value `{other}`"))),
        };
        Ok(vec![y, whole.slice(2, ty.dims[2], taps - 1)])
    });
    let infer = rule(|cx| {
        let (x, w) = (ranked(cx, 0, 3)?, ranked(cx, 1, 3)?);
        cx.unify_dims(x[1], w[0], "operand `weight`, axis 0")?;
        cx.unify_dims(Dim::Const(1), w[1], "operand `weight`, axis 1")?;
        shaped(cx, 2, &[x[1]])?;
        match cx.resolve(w[2]) {
            Dim::Const(0) => return Err("operand `weight`: no taps".into()),
            Dim::Const(taps) => shaped(cx, 3, &[x[0], x[1], Dim::Const(taps.saturating_sub(1))])?,
            _ => drop(rank_in(cx, 3, 3..=3)?),
        }
        cx.same_dtype(0, 0)?;
        cx.set_output_dims(0, x.iter().copied())?;
        if cx.output_count() > 1 {
            cx.same_dtype(1, 0)?;
            let taps = cx.resolve(w[2]).as_const().map(|n| Dim::Const(n.saturating_sub(1)));
            partial(cx, 1, &[Some(x[0]), Some(x[1]), taps])?;
        }
        Ok(())
    });
    let doc = "Depthwise convolution over the past of a sequence, carried between calls.";
    define("causal_conv_with_state", doc, compute, infer)
        .groups(&["input", "weight"], FLOATS)
        .optional("bias", TypeRule::Group(0, FLOATS))
        .optional("past_state", TypeRule::Group(0, FLOATS))
        .param("activation", "none", "none, silu or swish.")
        .outputs(1, 2)
        .onnx("CausalConvWithState", 26)
        .ulp(8.0)
}

/// Operands of the recurrence, in f32, by head; decay is already exponentiated.
struct Recurrence<'g> {
    q: Tensor<'g>,
    k: Tensor<'g>,
    v: Tensor<'g>,
    past: Option<Tensor<'g>>,
    decay: Option<Tensor<'g>>,
    beta: Option<Tensor<'g>>,
    scale: f64,
}

impl<'g> Recurrence<'g> {
    /// The operands that are present, with their names.
    fn operands(&self) -> Vec<(&'static str, Tensor<'g>)> {
        let always = [("q", self.q), ("k", self.k), ("v", self.v)].map(|(name, x)| (name, Some(x)));
        let others = [("past", self.past), ("decay", self.decay), ("beta", self.beta)];
        always.into_iter().chain(others).filter_map(|(name, x)| Some((name, x?))).collect()
    }
}

/// The results (by query head) and the final state.
fn recur<'g>(r: &Recurrence<'g>) -> Result<Vec<Tensor<'g>>> {
    let given = r.operands();
    let types = given.iter().map(|(n, v)| v.ty().map(|t| (*n, t))).collect::<Result<Vec<_>>>()?;
    let (q, k, v) = (&types[0].1.dims, &types[1].1.dims, &types[2].1.dims);
    let out = DenseType::new(DType::F32, [q[0], q[1], q[2], v[3]]);
    let state = DenseType::new(DType::F32, [k[0], k[1], k[3], v[3]]);
    let scope = KernelScope::new("linear_attention");
    let inputs: Vec<_> = types.iter().map(|(name, ty)| scope.input(name, ty)).collect();
    let [y, s] = scope.outputs(["out", "state"], [&out, &state]);
    let find = |name: &str| types.iter().position(|(n, _)| *n == name).map(|i| inputs[i]);
    let (past, decay, beta) = (find("past"), find("decay"), find("beta"));
    scope.parallel(&k[..2], |lead| {
        // Axes of extent 1 are shared by all heads or elements.
        let at = |x: KernelTensor<'_>, tail: [&Index; 2]| {
            let dims = x.dims();
            let own = lead.iter().chain(tail).zip(dims.all());
            own.map(|(i, n)| if n == 1 { Index::default() } else { i.clone() }).collect::<Vec<_>>()
        };
        scope.serial(&[k[3], v[3]], |p| {
            let here = at(s, [&p[0], &p[1]]);
            s.set(&here, past.map_or(scope.number(DType::F32, 0.0), |past| past.get(&linearize(&here, &state.dims))));
        });
        let acc = scope.cell("acc", DType::F32);
        scope.each("t", k[2], |t| {
            scope.serial(&[v[3]], |m| {
                let m = &m[0];
                acc.set(0.0);
                scope.serial(&[k[3]], |d| {
                    let mut old = s.get(&at(s, [&d[0], m]));
                    if let Some(decay) = decay {
                        old = old * decay.get(&at(decay, [t, &d[0]]));
                        s.set(&at(s, [&d[0], m]), old);
                    }
                    let term = old * inputs[1].get(&at(inputs[1], [t, &d[0]]));
                    acc.add(term);
                });
                let mut value = inputs[2].get(&at(inputs[2], [t, m]));
                if let Some(beta) = beta {
                    let seen = acc.get();
                    value = beta.get(&at(beta, [t, &Index::default()])) * (value - seen);
                }
                scope.serial(&[k[3]], |d| {
                    let (old, key) = (s.get(&at(s, [&d[0], m])), inputs[1].get(&at(inputs[1], [t, &d[0]])));
                    let term = key * value;
                    s.set(&at(s, [&d[0], m]), old + term);
                });
                let group = q[1] / k[1];
                for g in 0..group {
                    let head = lead[1].scale(group as i64).offset(g as i64);
                    acc.set(0.0);
                    scope.serial(&[k[3]], |d| {
                        let query = inputs[0].get([&lead[0], &head, t, &d[0]]);
                        let term = query * s.get(&at(s, [&d[0], m]));
                        acc.add(term);
                    });
                    y.set([&lead[0], &head, t, m], acc.get() * r.scale);
                }
            });
        });
    });
    let args: Vec<_> = given.iter().map(|(_, v)| *v).collect();
    r.q.graph().kernel(scope.finish(), &args, &[out.clone(), state.clone()])
}

fn linear_attention_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let heads = |name: &str| cx.params.int(name).unwrap_or(1).max(1) as u64;
    let (hq, hk) = (heads("q_num_heads"), heads("kv_num_heads"));
    if hq % hk != 0 {
        return Err(g.fail(format!("{hq} query heads cannot share {hk} key heads")));
    }
    let f32_by_head = |x: Tensor<'g>, heads: u64| by_head(x.convert(DType::F32), heads);
    let [q, k, v] = g.operands();
    let (q, k, v) = (f32_by_head(q, hq)?, f32_by_head(k, hk)?, f32_by_head(v, hk)?);
    let past = g.maybe(3).map(|p| p.convert(DType::F32));
    let rule = cx.params.str("update_rule").unwrap_or("gated_delta");
    let needed = |at: usize, name: &str| {
        g.maybe(at).ok_or_else(|| g.fail(format!("update rule `{rule}` needs operand `{name}`")))
    };
    let decay = match rule {
        "gated" | "gated_delta" => Some(f32_by_head(needed(4, "decay")?, hk)?.map(Ex::exp)),
        "linear" | "delta" => None,
        other => return Err(g.fail(format!("parameter `update_rule`: unknown value `{other}`"))),
    };
    let beta = match rule {
        "delta" | "gated_delta" => {
            let beta = needed(5, "beta")?;
            Some(f32_by_head(beta, beta.dims()?[2])?)
        }
        _ => None,
    };
    let scale = match cx.params.float("scale").unwrap_or(0.0) {
        0.0 => 1.0 / (k.dims()?[3] as f64).sqrt(),
        s => s,
    };
    let results = recur(&Recurrence { q, k, v, past, decay, beta, scale })?;
    let y = results[0].permute(&[0, 2, 1, 3]).reshape(&cx.outputs[0].dims).convert(cx.outputs[0].dtype);
    Ok(vec![y, cx.outputs.get(1).map_or(results[1], |ty| results[1].convert(ty.dtype))])
}

fn linear_attention() -> OpDef {
    let infer = shape_rule(|cx| {
        let heads = |name: &str| cx.params.int(name).unwrap_or(1).max(1) as u64;
        let (hq, hk) = (heads("q_num_heads"), heads("kv_num_heads"));
        reject_if(hq % hk != 0, || format!("{hq} query heads cannot share {hk} key heads"))?;
        let (q, k, v) = (ranked(cx, 0, 3)?, ranked(cx, 1, 3)?, ranked(cx, 2, 3)?);
        for (i, axis, heads) in [(0, q[2], hq), (1, k[2], hk), (2, v[2], hk)] {
            multiple_of(axis, heads, &format!("{}, axis 2", cx.input_name(i)))?;
        }
        for (x, name) in [(&k, "key"), (&v, "value")] {
            for axis in 0..2 {
                cx.unify_dims(q[axis], x[axis], &format!("operand `{name}`, axis {axis}"))?;
            }
        }
        let size = |d: Dim, heads: u64| d.as_const().map(|n| n / heads);
        let (query, key, value) = (size(q[2], hq), size(k[2], hk), size(v[2], hk));
        if let (Some(query), Some(key)) = (query, key) {
            cx.unify_dims(Dim::Const(query), Dim::Const(key), "operand `key`, size of a head")?;
        }
        if let (Some(key), Some(value)) = (key, value) {
            shaped(cx, 3, &[q[0], Dim::Const(hk), Dim::Const(key), Dim::Const(value)])?;
        }
        // Decay is that of each element of a key or of a head, beta that of a head or of all.
        let features = [(4, key.map_or(vec![], |size| vec![hk * size, hk])), (5, vec![hk, 1])];
        for (i, sizes) in features {
            let Some(dims) = rank_in(cx, i, 3..=3)? else { continue };
            shaped(cx, i, &[q[0], q[1], dims[2]])?;
            if let Some(found) = cx.resolve(dims[2]).as_const().filter(|n| !sizes.is_empty() && !sizes.contains(n)) {
                return Err(OpError(format!(
                    "{}, axis 2: expected {}, found {found}",
                    cx.input_name(i),
                    sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(" or ")
                )));
            }
        }
        partial(cx, 0, &[Some(q[0]), Some(q[1]), value.map(|n| Dim::Const(n * hq))])?;
        if cx.output_count() > 1 {
            cx.same_dtype(1, if cx.has_input(3) { 3 } else { 0 })?;
            let dims = [Some(q[0]), Some(Dim::Const(hk)), key.map(Dim::Const), value.map(Dim::Const)];
            partial(cx, 1, &dims)?;
        }
        Ok(())
    });
    let doc = "Attention as a recurrence over a matrix state, with optional decay and delta rule.";
    define("linear_attention", doc, formulas(linear_attention_body), infer)
        .operands(&["query", "key", "value"], FLOATS)
        .optional("past_state", TypeRule::OneOf(FLOATS))
        .optional("decay", TypeRule::OneOf(FLOATS))
        .optional("beta", TypeRule::OneOf(FLOATS))
        .required("q_num_heads", ParamKind::Int, "")
        .required("kv_num_heads", ParamKind::Int, "")
        .param("scale", 0.0, "0: 1 / √size.")
        .param("chunk_size", 0, "No effect on the result.")
        .param("update_rule", "gated_delta", "linear, gated, delta or gated_delta.")
        .outputs(1, 2)
        .not_differentiable("its state is carried by a kernel that keeps no history")
        .onnx("LinearAttention", 26)
        .ulp(64.0)
}
