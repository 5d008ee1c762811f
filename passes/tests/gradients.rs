//! Gradients of every registered operator, found by trying operands: in f64 they are what central differences
//! say, and in narrower types what they are in f64. A new entry is covered without an edit here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::op::{Grad, OpRef, Registry, TypeRule};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::testing::{Candidate, Rng, candidates_of};
use tensorc_ir::text::parse_module;
use tensorc_ir::verify::{Stage, verify_graph};
use tensorc_ir::{DType, DenseType, TensorData};
use tensorc_passes::infer::InferTypes;
use tensorc_passes::{Pass, PassCx, differentiate};

/// Most candidates of one operator whose gradients are checked.
const MOST: usize = 12;

/// Most elements of an operand that is tried.
const LARGEST: u64 = 300;

/// Where operands are drawn from: the first range in which the results are finite.
const RANGES: [(f64, f64); 4] = [(-0.95, 0.95), (0.15, 0.9), (1.1, 2.5), (2.0, 6.0)];

fn tensor(ty: &DenseType, (low, high): (f64, f64), seed: u64) -> TensorData {
    let mut rng = Rng::new(seed);
    TensorData::from_fn(ty.clone(), |_| {
        let unit = rng.element(DType::F64).as_f64() * 0.5 + 0.5;
        Scalar::from_f64(ty.dtype, low + (high - low) * unit)
    })
}

fn random(ty: &DenseType, seed: u64) -> TensorData {
    tensor(ty, (-1.0, 1.0), seed)
}

/// The inputs of a candidate, floats drawn anew from a range.
fn inputs(candidate: &Candidate, range: (f64, f64)) -> Vec<TensorData> {
    let drawn = |(i, data): (usize, &TensorData)| match data.dtype().is_float() {
        true => tensor(&data.ty, range, 31 * i as u64 + 7),
        false => data.clone(),
    };
    candidate.inputs.iter().enumerate().map(drawn).collect()
}

fn typed(candidate: &Candidate, op: &OpRef, registry: &Registry) -> Option<Graph> {
    let mut graph = candidate.graph(op)?;
    InferTypes.run(&mut graph, &mut PassCx::new(registry)).ok()?;
    let values: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
    values.iter().all(|v| graph.dense(*v).is_ok()).then_some(graph)
}

/// Whether values are such that differences of them are slopes.
fn is_tame(data: &TensorData) -> bool {
    !data.dtype().is_float() || data.to_f64s().iter().all(|x| x.abs() <= 100.0)
}

/// The seeds of the heads of a graph, by output; `None` for what is not a float.
fn seeds(graph: &Graph, types: &dyn Fn(DType) -> DType) -> Vec<Option<TensorData>> {
    let values = graph.outputs().iter().map(|(_, v)| graph.dense(*v).unwrap());
    let seed = |(i, ty): (usize, DenseType)| {
        let wide = DenseType::new(types(ty.dtype), &ty.dims);
        ty.dtype.is_float().then(|| random(&wide, 900 + i as u64))
    };
    values.enumerate().map(seed).collect()
}

/// The float inputs of a graph.
fn variables(graph: &Graph) -> Vec<Value> {
    let values = graph.inputs().iter().map(|n| Value { node: *n, port: 0 });
    values.filter(|v| graph.dense(*v).unwrap().dtype.is_float()).collect()
}

/// The graph whose outputs are the gradients of `Σ seed · output` with respect to the float inputs.
fn gradient_graph(graph: &Graph, registry: &Registry) -> Result<Graph, String> {
    let mut graph = graph.clone();
    let outputs: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
    let mut heads = vec![];
    for (v, seed) in outputs.into_iter().zip(seeds(&graph, &|d| d)) {
        heads.push((v, seed.map(|data| graph.add_const("seed", data))));
    }
    let wrt = variables(&graph);
    let gradients = differentiate(&mut graph, registry, &heads, &wrt).map_err(|d| d.to_string())?;
    let mut outputs = vec![];
    for (v, gradient) in wrt.iter().zip(gradients) {
        let ty = graph.dense(*v).unwrap();
        let gradient =
            gradient.unwrap_or_else(|| graph.add_const("zeros", TensorData::splat(&ty.dims, Scalar::zero(ty.dtype))));
        outputs.push((format!("d{}", graph.node(v.node).name).into(), gradient));
    }
    graph.set_outputs(outputs);
    graph.remove_dead();
    verify_graph(&graph, Stage::Typed).map_err(|d| d.to_string())?;
    Ok(graph)
}

fn dot(a: &TensorData, b: &TensorData) -> f64 {
    a.iter().zip(b.iter()).map(|(x, y)| x.as_f64() * y.as_f64()).sum()
}

fn moved(x: &TensorData, direction: &TensorData, by: f64) -> TensorData {
    TensorData::from_fn(x.ty.clone(), |i| {
        Scalar::from_f64(x.dtype(), x.get(i).as_f64() + by * direction.get(i).as_f64())
    })
}

/// Compares the gradient with central differences of `Σ seed · output` along random directions.
fn agrees_with_differences(
    graph: &Graph,
    gradient: &Graph,
    registry: &Registry,
    inputs: &[TensorData],
) -> Result<(), String> {
    let eval = |graph: &Graph, inputs: &[TensorData]| eval_graph(graph, registry, inputs).map_err(|d| d.to_string());
    let found = eval(gradient, inputs)?;
    let seeds = seeds(graph, &|d| d);
    let loss = |inputs: &[TensorData]| -> Result<f64, String> {
        let outputs = eval(graph, inputs)?;
        Ok(outputs.iter().zip(&seeds).filter_map(|(out, seed)| seed.as_ref().map(|seed| dot(out, seed))).sum())
    };
    let floats: Vec<usize> = (0..inputs.len()).filter(|i| inputs[*i].dtype() == DType::F64).collect();
    for (nth, &i) in floats.iter().enumerate() {
        for round in 0..2 {
            let direction = random(&inputs[i].ty, 5000 + 10 * i as u64 + round);
            let h = 1e-5;
            let at = |by: f64| {
                let mut inputs = inputs.to_vec();
                inputs[i] = moved(&inputs[i], &direction, by);
                loss(&inputs)
            };
            let expected = (at(h)? - at(-h)?) / (2.0 * h);
            let got = dot(&found[nth], &direction);
            let size: f64 = found[nth].to_f64s().iter().map(|x| x.abs()).fold(1.0, f64::max);
            if (got - expected).abs() > 2e-6 * size.max(expected.abs()) {
                return Err(format!("input {i}: {got}, expected {expected}"));
            }
        }
    }
    Ok(())
}

/// How far a gradient in a type may be from that in f64, relative to the greatest element.
fn precision(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 2e-4,
        DType::F16 => 4e-2,
        _ => 2.5e-1,
    }
}

/// Compares the gradient in a narrower type with that in f64 at the same operands.
fn agrees_with_wide(
    op: &OpRef,
    registry: &Registry,
    candidate: &Candidate,
    wide: (&Candidate, &Graph),
    range: (f64, f64),
) -> Result<(), String> {
    let Some(graph) = typed(candidate, op, registry) else { return Ok(()) };
    let narrow = inputs(candidate, range);
    let same = |(n, w): (&TensorData, &TensorData)| n.dims() == w.dims();
    if narrow.len() != wide.0.inputs.len() || !narrow.iter().zip(&wide.0.inputs).all(same) {
        return Ok(());
    }
    let widened: Vec<TensorData> = narrow
        .iter()
        .zip(&wide.0.inputs)
        .map(|(n, w)| TensorData::from_fn(w.ty.clone(), |i| n.get(i).cast(w.dtype())))
        .collect();
    let gradient = gradient_graph(&graph, registry)?;
    let got = eval_graph(&gradient, registry, &narrow).map_err(|d| d.to_string())?;
    let want = eval_graph(wide.1, registry, &widened).map_err(|d| d.to_string())?;
    nearly(&got, &want)
}

/// Gradients agree within the precision of the narrower type.
fn nearly(got: &[TensorData], want: &[TensorData]) -> Result<(), String> {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let (got, want, dtype) = (got.to_f64s(), want.to_f64s(), got.dtype());
        let size = want.iter().map(|x| x.abs()).fold(1.0, f64::max);
        let differs = |(_, (g, w)): &(usize, (&f64, &f64))| (*g - *w).abs() > precision(dtype) * size;
        if let Some((at, (g, w))) = got.iter().zip(&want).enumerate().find(differs) {
            return Err(format!("{dtype}, input {i}, element {at}: {g}, in f64 {w}"));
        }
    }
    Ok(())
}

/// A panic as an error.
fn caught<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let outcome = catch_unwind(AssertUnwindSafe(f));
    outcome.unwrap_or_else(|panic| Err(format!("panicked: {:?}", panic.downcast_ref::<String>())))
}

/// What was found out about one operator.
#[derive(Default)]
struct Report {
    checked: usize,
    twice: usize,
    failures: Vec<String>,
    not_twice: Vec<String>,
}

fn examine(op: &OpRef, registry: &Registry) -> Report {
    let mut report = Report::default();
    let narrow: Vec<Vec<Candidate>> =
        [DType::F32, DType::F16, DType::BF16].into_iter().map(|d| candidates_of(op, d)).collect();
    for (nth, candidate) in candidates_of(op, DType::F64).iter().enumerate() {
        let fits = candidate.inputs.iter().all(|x| x.len() <= LARGEST)
            && candidate.inputs.iter().any(|x| x.dtype() == DType::F64 && !x.is_empty());
        if report.checked == MOST || !fits {
            continue;
        }
        let Some(graph) = typed(candidate, op, registry) else { continue };
        let range = RANGES.into_iter().find(|range| {
            let outputs =
                caught(|| eval_graph(&graph, registry, &inputs(candidate, *range)).map_err(|d| d.to_string()));
            outputs.is_ok_and(|outputs| outputs.iter().all(is_tame))
        });
        let Some(range) = range else { continue };
        let data = inputs(candidate, range);
        let outcome = caught(|| {
            let gradient = gradient_graph(&graph, registry)?;
            // Rounded results have no slope that differences could show.
            let exact = seeds(&graph, &|d| d).iter().flatten().all(|seed| seed.dtype() == DType::F64);
            if exact {
                agrees_with_differences(&graph, &gradient, registry, &data)?;
            }
            match gradient_graph(&gradient, registry) {
                Ok(_) if !exact => report.twice += 1,
                Ok(second) => {
                    agrees_with_differences(&gradient, &second, registry, &data)
                        .map_err(|why| format!("twice: {why}"))?;
                    report.twice += 1;
                }
                Err(why) => report.not_twice.push(why),
            }
            for narrow in narrow.iter().filter_map(|all| all.get(nth)) {
                agrees_with_wide(op, registry, narrow, (candidate, &gradient), range)?;
            }
            Ok(())
        });
        report.checked += 1;
        if let Err(why) = outcome {
            report.failures.push(format!("{}: {candidate}: {why}", op.name));
        }
    }
    report
}

/// Operands and parameters that are not tried above. Types are f64 where a type is `?`.
const CASES: &[(&str, &str)] = &[
    (
        "convolution",
        "(%x: ?[2, 4, 6, 5], %w: ?[6, 2, 3, 2], %b: ?[6]) { %y = conv(%x, %w, %b) {group=2, strides=[2, 1], pads=[1, 0, 1, 1], dilations=[1, 2]} return %y }",
    ),
    (
        "depthwise convolution",
        "(%x: ?[1, 3, 5, 5], %w: ?[3, 1, 3, 3]) { %y = conv(%x, %w) {group=3, pads=[1, 1, 1, 1]} return %y }",
    ),
    (
        "convolution of volumes",
        "(%x: ?[1, 2, 3, 4, 3], %w: ?[2, 2, 2, 2, 2]) { %y = conv(%x, %w) {strides=[1, 2, 1]} return %y }",
    ),
    (
        "transposed convolution",
        "(%x: ?[2, 4, 3, 2], %w: ?[4, 2, 3, 3], %b: ?[4]) { %y = conv_transpose(%x, %w, %b) {group=2, strides=[2, 2], pads=[1, 0, 1, 1]} return %y }",
    ),
    (
        "transposed convolution that tiles",
        "(%x: ?[1, 3, 2, 2], %w: ?[3, 2, 2, 2]) { %y = conv_transpose(%x, %w) {strides=[2, 2]} return %y }",
    ),
    (
        "max pooling",
        "(%x: ?[1, 2, 6, 7]) { %y = max_pool(%x) {kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]} return %y }",
    ),
    (
        "max pooling with positions",
        "(%x: ?[1, 2, 5]) { %y = max_pool(%x) {kernel_shape=[3], dilations=[2]} : (?, ?) return %y, %y:1 }",
    ),
    (
        "average pooling",
        "(%x: ?[1, 2, 6, 7]) { %y = average_pool(%x) {kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=true} return %y }",
    ),
    ("pooling by norms", "(%x: ?[1, 2, 6]) { %y = lp_pool(%x) {kernel_shape=[3], p=3, pads=[1, 1]} return %y }"),
    (
        "batch normalisation in training",
        "(%x: ?[3, 2, 4], %g: ?[2], %b: ?[2], %m: ?[2], %v: ?[2]) { %y = batch_norm(%x, %g, %b, %m, %v) {training_mode=true} return %y }",
    ),
    (
        "layer normalisation",
        "(%x: ?[3, 2, 4], %g: ?[2, 4], %b: ?[2, 4]) { %y = layer_norm(%x, %g, %b) {axis=1} : (?, ?, ?) return %y, %y:1, %y:2 }",
    ),
    (
        "group normalisation",
        "(%x: ?[2, 4, 3], %g: ?[4], %b: ?[4]) { %y = group_norm(%x, %g, %b) {num_groups=2} return %y }",
    ),
    (
        "softmax over the first axis",
        "(%x: ?[4, 3]) { %y = softmax(%x) {axis=0} %z = log_softmax(%x) {axis=0} return %y, %z }",
    ),
    (
        "scaled product",
        "(%a: ?[4, 3], %b: ?[5, 4], %c: ?[5]) { %y = gemm(%a, %b, %c) {transA=true, transB=true, alpha=0.5, beta=2.0} return %y }",
    ),
    (
        "attention",
        "(%q: ?[1, 2, 3, 4], %k: ?[1, 1, 5, 4], %v: ?[1, 1, 5, 3]) { %y = attention(%q, %k, %v) {is_causal=true} return %y }",
    ),
    ("grid", "(%t: ?[2, 2, 3]) { %s = const i64[4] [2, 1, 3, 4] %y = affine_grid(%t, %s) return %y }"),
    (
        "samples at the border",
        "(%x: ?[1, 2, 4, 5], %g: ?[1, 3, 2, 2]) { %y = grid_sample(%x, %g) {padding_mode=\"border\", align_corners=true} return %y }",
    ),
    (
        "samples by reflection",
        "(%x: ?[1, 2, 4, 5], %g: ?[1, 3, 2, 2]) { %h = add(%g, %g) %y = grid_sample(%x, %h) {padding_mode=\"reflection\"} return %y }",
    ),
    ("cubic samples", "(%x: ?[1, 1, 4, 5], %g: ?[1, 3, 2, 2]) { %y = grid_sample(%x, %g) {mode=\"cubic\"} return %y }"),
    (
        "deformed convolution",
        "(%x: ?[1, 4, 4, 5], %w: ?[2, 2, 2, 2], %o: ?[1, 16, 3, 4], %b: ?[2], %m: ?[1, 8, 3, 4]) { %y = deform_conv(%x, %w, %o, %b, %m) {group=2, offset_group=2} return %y }",
    ),
    (
        "resampling",
        "(%x: ?[1, 2, 3, 4]) { %s = const f32[4] [1.0, 1.0, 2.0, 1.5] %y = resize(%x, _, %s) {mode=\"linear\"} return %y }",
    ),
    (
        "padding by reflection",
        "(%x: ?[4, 3]) { %p = const i64[4] [2, 1, 1, 2] %y = pad(%x, %p) {mode=\"reflect\"} return %y }",
    ),
    (
        "padding by the edge",
        "(%x: ?[4, 3]) { %p = const i64[4] [2, 1, 1, 2] %y = pad(%x, %p) {mode=\"edge\"} return %y }",
    ),
    (
        "padding by wrapping",
        "(%x: ?[4, 3]) { %p = const i64[4] [2, 1, 1, 2] %y = pad(%x, %p) {mode=\"wrap\"} return %y }",
    ),
    (
        "columns to image",
        "(%x: ?[1, 12, 9]) { %i = const i64[2] [4, 3] %k = const i64[2] [3, 2] %y = col2im(%x, %i, %k) {pads=[1, 0, 0, 1]} return %y }",
    ),
    (
        "tuples with batches",
        "(%x: ?[2, 3, 4, 2]) { %i = const i64[2, 2, 2] [0, 1, 2, 3, -1, 0, 1, 1] %y = gather_nd(%x, %i) {batch_dims=1} return %y }",
    ),
    (
        "the same tuple twice",
        "(%x: ?[3, 4], %u: ?[3, 4]) { %i = const i64[3, 1] [1, 2, 1] %y = scatter_nd(%x, %i, %u) %z = scatter_nd(%x, %i, %u) {reduction=\"add\"} return %y, %z }",
    ),
    (
        "the same element twice",
        "(%x: ?[3, 4], %u: ?[2, 3]) { %i = const i64[2, 3] [1, 0, 1, 2, -1, 0] %y = scatter_elements(%x, %i, %u) {axis=1} %z = scatter_elements(%x, %i, %u) {axis=0, reduction=\"add\"} return %y, %z }",
    ),
    (
        "a ring",
        "(%x: ?[2, 4, 3], %u: ?[2, 2, 3]) { %i = const i64[2] [3, 1] %y = tensor_scatter(%x, %u, %i) {mode=\"circular\"} return %y }",
    ),
    ("reversed steps", "(%x: ?[4, 3]) { %n = const i64[3] [2, 4, 1] %y = reverse_sequence(%x, %n) return %y }"),
    (
        "exclusive running sum from the end",
        "(%x: ?[2, 5]) { %a = const i64[] [1] %y = cumsum(%x, %a) {exclusive=true, reverse=true} return %y }",
    ),
    (
        "running product through a zero",
        "(%x: ?[2, 5]) { %c = const i64[5] [1, 1, 0, 1, 1] %d = cast_like(%c, %x) %m = mul(%x, %d) %a = const i64[] [1] %y = cumprod(%m, %a) %z = cumprod(%m, %a) {exclusive=true, reverse=true} return %y, %z }",
    ),
    (
        "product through a zero",
        "(%x: ?[2, 5]) { %c = const i64[5] [1, 1, 0, 1, 1] %d = cast_like(%c, %x) %m = mul(%x, %d) %y = reduce_prod(%m) return %y }",
    ),
    (
        "order",
        "(%x: ?[3, 20]) { %k = const i64[1] [18] %y = topk(%x, %k) {largest=false} : (?, ?) %z = sort(%x) {axis=0, is_ascend=false} return %y, %z }",
    ),
    ("sum of products", "(%a: ?[2, 3, 4], %b: ?[4, 2]) { %y = einsum(%a, %b) {equation=\"bij,jb->ib\"} return %y }"),
    ("diagonal of products", "(%a: ?[3, 3], %b: ?[3]) { %y = einsum(%a, %b) {equation=\"ii,j->i\"} return %y }"),
    (
        "unpooling",
        "(%x: ?[1, 1, 2, 2]) { %i = const i64[1, 1, 2, 2] [0, 3, 9, 14] %y = max_unpool(%x, %i) {kernel_shape=[2, 2], strides=[2, 2]} return %y }",
    ),
    (
        "regions by averages",
        "(%x: ?[2, 2, 5, 6]) { %r = const ?[2, 4] [0.5, 1.0, 4.0, 3.5, 1.0, 0.0, 5.5, 4.0] %i = const i64[2] [1, 0] %y = roi_align(%x, %r, %i) {output_height=2, output_width=3} return %y }",
    ),
    (
        "regions by maxima",
        "(%x: ?[2, 2, 5, 6]) { %r = const ?[2, 5] [1, 0, 1, 4, 3, 0, 1, 0, 5, 4] %y = max_roi_pool(%x, %r) {pooled_shape=[2, 3]} return %y }",
    ),
    (
        "convolution over the past",
        "(%x: ?[2, 3, 5], %w: ?[3, 1, 3], %b: ?[3], %p: ?[2, 3, 2]) { %y = causal_conv_with_state(%x, %w, %b, %p) {activation=\"silu\"} : (?, ?) return %y, %y:1 }",
    ),
    ("local response", "(%x: ?[2, 5, 3]) { %y = lrn(%x) {size=3, alpha=0.1} return %y }"),
    (
        "loss",
        "(%x: ?[3, 4], %w: ?[4]) { %t = const i64[3] [1, 3, 0] %y = softmax_cross_entropy_loss(%x, %t, %w) return %y }",
    ),
];

/// Cases whose second derivative cannot be had.
const ONCE: &[&str] = &["regions by maxima"];

#[test]
fn gradients_of_chosen_cases() {
    let registry = tensorc_ops::registry().unwrap();
    let only = std::env::var("TENSORC_CASES_ONLY").unwrap_or_default();
    let mut failures = vec![];
    for (name, text) in CASES.iter().filter(|(name, _)| name.contains(&only)) {
        let outcome = caught(|| {
            let parse = |dtype: &str| -> Result<Graph, String> {
                let text = format!("graph @g{}", text.replace("?[", &format!("{dtype}[")));
                let mut graph = parse_module(&text, &registry).map_err(|d| d.to_string())?.graphs.swap_remove(0);
                InferTypes.run(&mut graph, &mut PassCx::new(&registry)).map_err(|d| d.to_string())?;
                Ok(graph)
            };
            let graph = parse("f64")?;
            let types = graph.inputs().iter().map(|n| graph.dense(Value { node: *n, port: 0 }).unwrap());
            let data: Vec<TensorData> =
                types.enumerate().map(|(i, ty)| tensor(&ty, (-0.95, 0.95), 31 * i as u64 + 7)).collect();
            let gradient = gradient_graph(&graph, &registry)?;
            agrees_with_differences(&graph, &gradient, &registry, &data)?;
            match gradient_graph(&gradient, &registry) {
                Ok(second) => agrees_with_differences(&gradient, &second, &registry, &data)
                    .map_err(|why| format!("twice: {why}"))?,
                Err(_) if ONCE.contains(name) => {}
                Err(why) => return Err(format!("twice: {why}")),
            }
            for dtype in ["f32", "f16", "bf16"] {
                let gradient_here = gradient_graph(&parse(dtype)?, &registry)?;
                let to = gradient_here.dense(gradient_here.outputs()[0].1).unwrap().dtype;
                let cast = |x: &TensorData, to: DType| {
                    TensorData::from_fn(DenseType::new(to, x.dims()), |i| x.get(i).cast(to))
                };
                let narrow: Vec<TensorData> = data.iter().map(|x| cast(x, to)).collect();
                let wide: Vec<TensorData> = narrow.iter().map(|x| cast(x, DType::F64)).collect();
                let got = eval_graph(&gradient_here, &registry, &narrow).map_err(|d| d.to_string())?;
                let want = eval_graph(&gradient, &registry, &wide).map_err(|d| d.to_string())?;
                nearly(&got, &want)?;
            }
            Ok(())
        });
        failures.extend(outcome.err().map(|why| format!("{name}: {why}")));
    }
    assert!(failures.is_empty(), "{} fail:\n{}", failures.len(), failures.join("\n"));
}

/// Whether an operand may be a float whose value does not decide shapes.
fn has_variables(op: &OpRef) -> bool {
    op.inputs.iter().enumerate().any(|(i, spec)| {
        let float = match &spec.ty {
            TypeRule::Any => true,
            TypeRule::Group(_, list) | TypeRule::OneOf(list) => list.is_empty() || list.iter().any(|d| d.is_float()),
        };
        float && !op.static_inputs.contains(&i)
    })
}

/// Operators in the cases.
fn in_cases(registry: &Registry) -> BTreeSet<&'static str> {
    let mut names = BTreeSet::new();
    for (_, text) in CASES {
        let graph =
            parse_module(&format!("graph @g{}", text.replace("?[", "f64[")), registry).unwrap().graphs.remove(0);
        for node in graph.node_ids() {
            if let NodeKind::Op(op) = &graph.node(node).kind {
                names.insert(op.def.name);
            }
        }
    }
    names
}

#[test]
fn gradients_are_the_slopes_of_their_operators() {
    let registry = tensorc_ops::registry().unwrap();
    let only = std::env::var("TENSORC_OPERATORS_ONLY").unwrap_or_default();
    let in_cases = in_cases(&registry);
    let (mut failures, mut open, mut once, mut checked) = (vec![], vec![], vec![], 0);
    for op in registry.iter().filter(|op| op.name.contains(&only)) {
        if matches!(op.grad, Grad::Zero | Grad::None(_)) || op.is_loss || !has_variables(op) {
            continue;
        }
        let report = examine(op, &registry);
        match report.checked {
            0 if !in_cases.contains(op.name) => open.push(op.name),
            0 => {}
            _ => checked += 1,
        }
        if let (0, Some(why)) = (report.twice, report.not_twice.first()) {
            once.push(format!("{}: {why}", op.name));
        }
        failures.extend(report.failures.into_iter().take(2));
    }
    println!("gradients: {checked} operators checked; not twice:\n{}", once.join("\n"));
    assert!(open.is_empty(), "no operands found for {}: add a case to CASES", open.join(", "));
    assert!(failures.is_empty(), "{} fail:\n{}", failures.len(), failures.join("\n"));
}
