//! Gradients of every registered operator, found by trying operands: in f64 they are what central differences
//! say, and in narrower types what they are in f64. A new entry is covered without an edit here, or asks for a
//! case.

mod cases;
mod function;

use std::collections::BTreeSet;

use cases::{CASES, CONVENTIONS, ONCE};
use function::{
    Function, Outcome, RANGES, case, cast, caught, evaluate, function, has_variables, inputs, is_tame, precision,
    tensor,
};
use tensorc_ir::graph::{NodeKind, Value};
use tensorc_ir::op::{Grad, OpRef, Registry};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, TensorData};
use tensorc_random::candidates_of;

/// Most candidates of one operator whose gradients are checked.
const MAX_ELEMENTS: usize = 12;

/// Most elements of an operand that is tried.
const LARGEST: u64 = 300;

/// The first word of what is wrong where differences are no slopes: near a jump, or where slopes change fast.
const ROUGH: &str = "rough";

fn dot(a: &TensorData, b: &TensorData) -> f64 {
    a.iter().zip(b.iter()).map(|(x, y)| x.as_f64() * y.as_f64()).sum()
}

impl Function {
    /// Whether every head is an f64: of rounded results differences show no slope.
    fn is_exact(&self) -> bool {
        self.seeds().iter().flatten().all(|seed| seed.dtype() == DType::F64)
    }

    /// `Σ seed · output`.
    fn loss(&self, registry: &Registry, inputs: &[TensorData]) -> Outcome<f64> {
        let outputs = evaluate(&self.graph, registry, inputs)?;
        Ok(outputs.iter().zip(self.seeds()).filter_map(|(out, seed)| seed.map(|seed| dot(out, &seed))).sum())
    }

    /// Compares the gradient with central differences of the loss along random directions.
    fn check(&self, gradient: &Function, registry: &Registry, inputs: &[TensorData]) -> Outcome<()> {
        let found = evaluate(&gradient.graph, registry, inputs)?;
        for (&i, found) in self.by.iter().zip(&found) {
            for round in 0..2 {
                let direction = tensor(&inputs[i].ty, (-1.0, 1.0), 5000 + 10 * i as u64 + round);
                let slope = |h: f64| -> Outcome<f64> {
                    let at = |by: f64| {
                        let mut inputs = inputs.to_vec();
                        inputs[i] = TensorData::from_fn(inputs[i].ty.clone(), |j| {
                            let (x, d) = (inputs[i].get(j).as_f64(), direction.get(j).as_f64());
                            Scalar::from_f64(DType::F64, x + by * d)
                        });
                        self.loss(registry, &inputs)
                    };
                    Ok((at(h)? - at(-h)?) / (2.0 * h))
                };
                let (expected, coarse) = (slope(1e-5)?, slope(2.7e-5)?);
                let got = dot(found, &direction);
                let size = found.to_f64s().iter().map(|x| x.abs()).fold(1.0, f64::max).max(expected.abs());
                if (expected - coarse).abs() > 1e-6 * size {
                    return Err(format!("{ROUGH} along input {i}"));
                }
                if (got - expected).abs() > 2e-6 * size {
                    return Err(format!("input {i}: {got}, expected {expected}"));
                }
            }
        }
        Ok(())
    }

    /// Compares the gradient, and that of the gradient, with differences. Returns the gradient, and why that has
    /// none itself.
    fn check_twice(&self, registry: &Registry, inputs: &[TensorData]) -> Outcome<(Function, Option<String>)> {
        let gradient = self.gradient(registry)?;
        let exact = self.is_exact();
        if exact {
            self.check(&gradient, registry, inputs)?;
        }
        match gradient.gradient(registry) {
            Ok(second) if exact => {
                gradient.check(&second, registry, inputs).map_err(|why| format!("{why}, of the second derivative"))?;
                Ok((gradient, None))
            }
            Ok(_) => Ok((gradient, None)),
            Err(why) => Ok((gradient, Some(why))),
        }
    }
}

/// Compares a gradient in a narrower type with that in f64 at the same operands.
fn check_narrow(narrow: &Function, wide: &Function, registry: &Registry, inputs: &[TensorData]) -> Outcome<()> {
    let widened: Vec<TensorData> =
        inputs.iter().map(|x| if x.dtype().is_float() { cast(x, DType::F64) } else { x.clone() }).collect();
    let got = evaluate(&narrow.gradient(registry)?.graph, registry, inputs)?;
    let want = evaluate(&wide.graph, registry, &widened)?;
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
    failures: Vec<String>,
    /// Why there is no second derivative.
    once: Option<String>,
}

fn examine(op: &OpRef, registry: &Registry) -> Report {
    let mut report = Report::default();
    let narrower = [DType::F32, DType::F16, DType::BF16].map(|dtype| candidates_of(op, dtype));
    for (nth, candidate) in candidates_of(op, DType::F64).iter().enumerate() {
        let fits = candidate.inputs.iter().all(|x| x.len() <= LARGEST)
            && candidate.inputs.iter().any(|x| x.dtype() == DType::F64 && !x.is_empty());
        if report.checked == MAX_ELEMENTS || !fits {
            continue;
        }
        let Some(wide) = function(candidate, op, registry) else { continue };
        for range in RANGES {
            let data = inputs(candidate, range);
            if !evaluate(&wide.graph, registry, &data).is_ok_and(|outputs| outputs.iter().all(is_tame)) {
                continue;
            }
            let outcome = caught(|| {
                let (gradient, once) = wide.check_twice(registry, &data)?;
                report.once = report.once.take().or(once);
                for narrow in narrower.iter().filter_map(|all| all.get(nth)) {
                    let data = inputs(narrow, range);
                    let alike = data.len() == wide.graph.inputs().len()
                        && data.iter().zip(&candidate.inputs).all(|(n, w)| n.dims() == w.dims());
                    if let (true, Some(f)) = (alike, function(narrow, op, registry)) {
                        check_narrow(&f, &gradient, registry, &data)?;
                    }
                }
                Ok(())
            });
            match outcome {
                Err(why) if why.contains(ROUGH) => continue,
                Err(why) => report.failures.push(format!("{}: {candidate}: {why}", op.name)),
                Ok(()) => {}
            }
            report.checked += 1;
            break;
        }
    }
    report
}

/// Operators in the cases.
fn in_cases(registry: &Registry) -> BTreeSet<&'static str> {
    let mut names = BTreeSet::new();
    for (_, text) in CASES {
        let Ok(Function { graph, .. }) = case(text, "f64", registry) else { continue };
        for node in graph.node_ids() {
            if let NodeKind::Op(op) = &graph.node(node).kind {
                names.insert(op.def.name);
            }
        }
    }
    names
}

#[test]
fn gradients_of_chosen_cases() {
    let registry = tensorc_ops::registry().unwrap();
    let only = std::env::var("TENSORC_CASES_ONLY").unwrap_or_default();
    let mut failures = vec![];
    for (name, text) in CASES.iter().filter(|(name, _)| name.contains(&only)) {
        let outcome = caught(|| {
            let wide = case(text, "f64", &registry)?;
            let types = wide.graph.inputs().iter().map(|n| wide.graph.dense(Value { node: *n, port: 0 }).unwrap());
            let data: Vec<TensorData> =
                types.enumerate().map(|(i, ty)| tensor(&ty, (-0.95, 0.95), 31 * i as u64 + 7)).collect();
            let (gradient, once) = wide.check_twice(&registry, &data)?;
            match once {
                Some(why) if !ONCE.contains(name) => return Err(why),
                None if ONCE.contains(name) => return Err("has a second derivative after all".into()),
                _ => {}
            }
            for (name, dtype) in [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16)] {
                let narrow: Vec<TensorData> = data.iter().map(|x| cast(x, dtype)).collect();
                check_narrow(&case(text, name, &registry)?, &gradient, &registry, &narrow)?;
            }
            Ok(())
        });
        failures.extend(outcome.err().map(|why| format!("{name}: {why}")));
    }
    assert!(failures.is_empty(), "{} fail:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn gradients_are_the_slopes_of_their_operators() {
    let registry = tensorc_ops::registry().unwrap();
    let only = std::env::var("TENSORC_OPERATORS_ONLY").unwrap_or_default();
    let in_cases = in_cases(&registry);
    let (mut failures, mut open, mut once, mut checked) = (vec![], vec![], vec![], 0);
    for op in registry.iter().filter(|op| op.name.contains(&only) && has_variables(op)) {
        let conventional = CONVENTIONS.iter().any(|(name, _)| *name == op.name);
        if matches!(op.grad, Grad::Zero | Grad::Found(_) | Grad::None(_)) || op.is_loss || conventional {
            continue;
        }
        let report = examine(op, &registry);
        match report.checked {
            0 if !in_cases.contains(op.name) => open.push(op.name),
            0 => {}
            _ => checked += 1,
        }
        once.extend(report.once.map(|why| format!("\n{}: {why}", op.name)));
        failures.extend(report.failures.into_iter().take(2));
    }
    println!("gradients: {checked} operators checked; without second derivative:{}", once.concat());
    assert!(failures.is_empty(), "{} fail:\n{}", failures.len(), failures.join("\n"));
    assert!(open.is_empty(), "no operands found for {}: add a case to CASES", open.join(", "));
}
