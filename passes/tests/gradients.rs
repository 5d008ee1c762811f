//! Gradients of every registered operator, found by trying operands: in f64 they are what central differences
//! say, and in narrower types what they are in f64. A new entry is covered without an edit here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::op::{Grad, OpRef, Registry};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::testing::{Candidate, Rng, candidates_of};
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

fn is_finite(data: &TensorData) -> bool {
    !data.dtype().is_float() || data.to_f64s().iter().all(|x| x.is_finite())
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
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let (got, want, dtype) = (got.to_f64s(), want.to_f64s(), got.dtype());
        let size = want.iter().map(|x| x.abs()).fold(1.0, f64::max);
        let differs = |(_, (g, w)): &(usize, (&f64, &f64))| (*g - *w).abs() > precision(dtype) * size;
        if let Some((at, (g, w))) = got.iter().zip(&want).enumerate().find(differs) {
            return Err(format!("{dtype}, input {i}, element {at}: {g}, in f64 {w}"));
        }
    }
    Ok(())
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
            let outputs = eval_graph(&graph, registry, &inputs(candidate, *range));
            outputs.is_ok_and(|outputs| outputs.iter().all(is_finite))
        });
        let Some(range) = range else { continue };
        let data = inputs(candidate, range);
        let outcome = gradient_graph(&graph, registry).and_then(|gradient| {
            agrees_with_differences(&graph, &gradient, registry, &data)?;
            match gradient_graph(&gradient, registry) {
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

#[test]
fn gradients_are_the_slopes_of_their_operators() {
    let registry = tensorc_ops::registry().unwrap();
    let only = std::env::var("TENSORC_OPERATORS_ONLY").unwrap_or_default();
    let (mut failures, mut open, mut once, mut checked) = (vec![], vec![], vec![], 0);
    for op in registry.iter().filter(|op| op.name.contains(&only)) {
        if matches!(op.grad, Grad::Zero | Grad::None(_)) || op.is_loss {
            continue;
        }
        let report = examine(op, &registry);
        match report.checked {
            0 => open.push(op.name),
            _ => checked += 1,
        }
        if let (0, Some(why)) = (report.twice, report.not_twice.first()) {
            once.push(format!("{}: {why}", op.name));
        }
        failures.extend(report.failures.into_iter().take(2));
    }
    println!("gradients: {checked} operators checked; not twice:\n{}", once.join("\n"));
    println!("no operands found for: {}", open.join(", "));
    assert!(failures.is_empty(), "{} fail:\n{}", failures.len(), failures.join("\n"));
}
