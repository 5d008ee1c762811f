//! `--check-values`: the same inputs through the reference interpreter before and after the passes,
//! and through the compiled plan.

use bytes::Bytes;
use tensorc::abi::BufferId;
use tensorc::ir::graph::Graph;
use tensorc::ir::interp::eval_step;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DType, DenseType, Rng, TensorData};
use tensorc::runtime::plan::{Needs, Phase};
use tensorc::runtime::{AlignedBuffer, AllocError, Bindings, Context, TensorMut, TensorRef};
use tensorc::schedule::lowered::Lowered;
use tensorc::{Compiler, Program};

use super::failure::CliFailure;

/// What random inputs hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mix {
    /// Small numbers of either sign.
    Plain,
    /// A quarter of zeros, ones and tiny numbers.
    Small,
    /// An eighth of infinities, NaN and the extremes of integers.
    Extreme,
}

const MIXES: [Mix; 3] = [Mix::Plain, Mix::Small, Mix::Extreme];

/// Largest error of a reassociated result, relative to the largest finite element of its tensor.
const TOLERANCE: f64 = 1e-5;
/// The same of f16, and of f32 whose products round operands to the fraction of f16 (tf32).
const F16: f64 = 1.0 / 1024.0;
/// The same of f32 whose products round operands to bf16.
const BF16: f64 = 1.0 / 64.0;

/// What products of f32 round their operands to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounded {
    /// Nothing.
    No,
    /// 10 bits of fraction.
    Tf32,
    /// 7 bits of fraction.
    Bf16,
}

/// Compares a graph before the passes with one after them.
pub struct Comparison<'a> {
    pub compiler: &'a Compiler,
    pub before: &'a Graph,
    pub after: &'a Graph,
    /// The lowered and planned form of `after`, if that is to be run as well.
    pub compiled: Option<Lowered>,
    /// Whether the passes keep every bit. Compiled reductions never do: they fold in lanes.
    pub exact: bool,
    /// What products of f32 round their operands to.
    pub products: Rounded,
}

impl Comparison<'_> {
    /// Runs all forms on the same inputs of the given types; returns one line that sums up.
    ///
    /// # Errors
    /// A form cannot be run, or the first difference.
    pub fn run(self, inputs: &[DenseType]) -> Result<String, CliFailure> {
        let folds = self.after.node_ids().iter().any(|n| folds(self.after, *n));
        let compiled_exact = self.exact && !folds;
        let compiled_tolerance = match self.products {
            Rounded::Bf16 => BF16,
            _ if compiled_exact => 0.0,
            Rounded::Tf32 => F16,
            Rounded::No => TOLERANCE,
        };
        let mut compiled = match self.compiled {
            Some(mut lowered) => {
                lowered.plan.checks.clear();
                let program = Program::from_lowered(self.compiler, lowered)?;
                Some(Context::new(program.executable().clone(), self.compiler.pool())?)
            }
            None => None,
        };
        // Inputs are drawn without regard to what operators demand of them.
        let mut after = self.after.clone();
        after.clear_checks();
        let registry = self.compiler.registry();
        let outputs = self.before.outputs().iter().map(|(name, _)| name.to_string());
        let states = self.before.states().into_iter();
        let states = states.map(|(i, _)| format!("{} after the run", self.before.node(self.before.inputs()[i]).name));
        let names: Vec<String> = outputs.chain(states).collect();
        for (seed, mix) in MIXES.into_iter().enumerate() {
            super::progress::phase("interpret");
            let given = random(inputs, mix, seed as u64);
            let evaluate =
                |graph| eval_step(graph, registry, &given).map(|(outputs, states)| [outputs, states].concat());
            let (expected, found) = (evaluate(self.before)?, evaluate(&after)?);
            declared(self.after, &found)?;
            let allowed = if self.exact { 0.0 } else { TOLERANCE };
            compare("after the passes", &names, &expected, &found, allowed).map_err(|e| with_run(e, mix))?;
            if let Some(context) = &mut compiled {
                let found = execute(self.compiler, context, self.before, &given)?;
                compare("compiled", &names, &expected, &found, compiled_tolerance).map_err(|e| with_run(e, mix))?;
            }
        }
        let how = |exact| if exact { "bit for bit" } else { "within tolerance" };
        let mut line = format!("// values agree {}", how(self.exact));
        if compiled.is_some() {
            line += &format!(", compiled {}", how(compiled_exact));
        }
        let updates = match self.before.updates().len() {
            0 => String::new(),
            n => format!(", {n} updates"),
        };
        Ok(format!("{line}: {} outputs{updates}, {} runs\n", self.before.outputs().len(), MIXES.len()))
    }
}

fn with_run(difference: String, mix: Mix) -> CliFailure {
    format!("{difference} (inputs: {mix:?})").into()
}

/// Whether a node folds floating-point numbers, so that the order of folding shows in its result.
fn folds(graph: &Graph, node: tensorc::ir::graph::NodeId) -> bool {
    use tensorc::ir::graph::NodeKind;
    use tensorc::ir::prim::Prim;
    match &graph.node(node).kind {
        NodeKind::Prim(Prim::Reduce(_) | Prim::Contract(_)) => {
            graph.node(node).types.iter().any(|t| t.dtype.is_none_or(DType::is_float))
        }
        NodeKind::Prim(Prim::Flow(f)) => f.bodies.iter().any(|body| body.node_ids().iter().any(|n| folds(body, *n))),
        NodeKind::Fused(f) => f.body.node_ids().iter().any(|n| folds(&f.body, *n)),
        _ => false,
    }
}

fn random(types: &[DenseType], mix: Mix, seed: u64) -> Vec<TensorData> {
    let mut rng = Rng::new(seed);
    types.iter().map(|t| TensorData::from_fn(t.clone(), |_| element(&mut rng, t.dtype, mix))).collect()
}

fn element(rng: &mut Rng, dtype: DType, mix: Mix) -> Scalar {
    let small: &[f64] = match dtype {
        d if d.is_float() || d.is_narrow_float() => &[0.0, -0.0, 1.0, -1.0, 0.5, 1e-7, -1e-40, 3.0],
        _ => &[0.0, 1.0, -1.0, 2.0],
    };
    let extreme: &[f64] = match dtype {
        d if d.is_float() || d.is_narrow_float() => &[f64::INFINITY, f64::NEG_INFINITY, f64::NAN],
        _ => &[f64::INFINITY, f64::NEG_INFINITY],
    };
    match mix {
        Mix::Small if rng.one_in(4) => Scalar::from_f64(dtype, *rng.pick(small)),
        // Float to integer saturates, so infinities give the extremes.
        Mix::Extreme if rng.one_in(8) => Scalar::from_f64(DType::F64, *rng.pick(extreme)).cast(dtype),
        _ => rng.element(dtype),
    }
}

/// Checks that the types the graph states for its outputs are those of the values.
fn declared(graph: &Graph, values: &[TensorData]) -> Result<(), CliFailure> {
    for ((name, v), data) in graph.outputs().iter().zip(values) {
        let ty = graph.resolved(*v);
        let dims = ty.shape.dims().map(|dims| dims.iter().map(|d| d.as_const()).collect::<Vec<_>>());
        let fits = ty.dtype.is_none_or(|d| d == data.dtype())
            && dims.is_none_or(|dims| {
                dims.len() == data.dims().len() && dims.iter().zip(data.dims()).all(|(d, n)| d.is_none_or(|d| d == *n))
            });
        if !fits {
            return Err(format!("output `{name}` has the value of type {}, the graph states another", data.ty).into());
        }
    }
    Ok(())
}

/// The outputs, and the next values of updated inputs; of two phases, each is run by itself.
fn execute(
    compiler: &Compiler,
    context: &mut Context,
    graph: &Graph,
    inputs: &[TensorData],
) -> Result<Vec<TensorData>, CliFailure> {
    let executable = context.executable().clone();
    let plan = executable.plan();
    let types = |ids: &[BufferId]| -> Vec<DenseType> {
        ids.iter().map(|id| plan.buffer(*id)).map(|b| DenseType::new(b.dtype, &b.dims)).collect()
    };
    let (output_types, state_types) = (types(&plan.outputs), types(&plan.states));
    let positions: Vec<usize> = graph.states().into_iter().map(|(i, _)| i).collect();
    let (states, inputs): (Vec<_>, Vec<_>) =
        inputs.iter().enumerate().partition(|(i, _)| positions.binary_search(i).is_ok());
    let outputs = output_types.iter().map(|t| AlignedBuffer::zeroed(t.bytes(), "outputs"));
    let mut outputs = outputs.collect::<Result<Vec<_>, _>>()?;
    let mut states = copies(states.into_iter().map(|(_, t)| t.bytes().as_ref()))?;
    let phases: &[Option<Phase>] = match plan.boundary {
        Some(_) => &[Some(Phase::First), Some(Phase::Second)],
        None => &[None],
    };
    for phase in phases {
        let all = Needs::all(inputs.len(), states.len(), outputs.len());
        let needs = phase.and_then(|phase| executable.needs(phase)).unwrap_or(&all);
        let old = copies(states.iter().map(AlignedBuffer::as_slice))?;
        let mut refs: Vec<TensorRef<'_>> = needs
            .inputs
            .iter()
            .map(|i| {
                let t = inputs[*i].1;
                TensorRef::new(t.dtype(), t.dims(), t.bytes())
            })
            .collect();
        refs.extend(needs.read_states.iter().map(|i| {
            let ty = &state_types[*i];
            TensorRef::new(ty.dtype, &ty.dims, old[*i].as_slice())
        }));
        let mut states = tensors(&state_types, &mut states, &needs.states);
        let mut outputs = tensors(&output_types, &mut outputs, &needs.outputs);
        let bindings = Bindings { inputs: &refs, states: &mut states, outputs: &mut outputs };
        match phase {
            Some(phase) => context.run_phase(*phase, compiler.pool(), bindings)?,
            None => context.run(compiler.pool(), bindings)?,
        }
    }
    let wrong = || CliFailure::from("a compiled output does not have its declared size");
    let all = output_types.into_iter().zip(outputs).chain(state_types.into_iter().zip(states));
    all.map(|(t, d)| TensorData::new(t, Bytes::from_owner(d)).ok_or_else(wrong)).collect()
}

/// The same bytes in other memory.
fn copies<'d>(tensors: impl Iterator<Item = &'d [u8]>) -> Result<Vec<AlignedBuffer>, AllocError> {
    let copy = |bytes: &[u8]| {
        let mut copy = AlignedBuffer::zeroed(bytes.len() as u64, "states")?;
        copy.as_mut_slice().copy_from_slice(bytes);
        Ok(copy)
    };
    tensors.map(copy).collect()
}

/// The tensors at some positions.
fn tensors<'d>(types: &'d [DenseType], data: &'d mut [AlignedBuffer], some: &[usize]) -> Vec<TensorMut<'d>> {
    let all = types.iter().zip(data).enumerate().filter(|(i, _)| some.contains(i));
    all.map(|(_, (t, d))| TensorMut::new(t.dtype, &t.dims, d.as_mut_slice())).collect()
}

fn compare(
    form: &str,
    names: &[String],
    expected: &[TensorData],
    found: &[TensorData],
    single: f64,
) -> Result<(), String> {
    for ((name, a), b) in names.iter().zip(expected).zip(found) {
        if a.ty != b.ty {
            return Err(format!("output `{name}`: {} before, {} {form}", a.ty, b.ty));
        }
        let tolerance = tolerance(a, single);
        let differs = |i: &u64| !agree(a.get(*i), b.get(*i), tolerance);
        if let Some(i) = (0..a.len()).find(differs) {
            let (x, y) = (a.get(i), b.get(i));
            return Err(format!(
                "output `{name}` differs at {:?}: {} (0x{:x}) before, {} (0x{:x}) {form}",
                coordinates(i, a.dims()),
                x.as_f64(),
                x.bits,
                y.as_f64(),
                y.bits
            ));
        }
    }
    Ok(())
}

/// The largest error of an element, given that of an f32 relative to the largest; 0 allows none.
fn tolerance(reference: &TensorData, single: f64) -> f64 {
    let epsilon = match reference.dtype() {
        _ if single == 0.0 => 0.0,
        DType::F16 => F16.max(single),
        DType::BF16 => 1.0 / 128.0,
        _ => single,
    };
    let largest = reference.iter().map(|s| s.as_f64().abs()).filter(|x| x.is_finite()).fold(0.0, f64::max);
    epsilon * largest
}

/// Equal bits, two NaNs, or floats not farther apart than `tolerance`.
fn agree(a: Scalar, b: Scalar, tolerance: f64) -> bool {
    let close = tolerance > 0.0 && a.dtype.is_float() && (a.as_f64() - b.as_f64()).abs() <= tolerance;
    a.bits == b.bits || a.is_nan() && b.is_nan() || close || zeros(a, b, tolerance)
}

/// Reassociation may change the sign of a zero.
fn zeros(a: Scalar, b: Scalar, tolerance: f64) -> bool {
    tolerance > 0.0 && a.dtype.is_float() && a.as_f64() == 0.0 && b.as_f64() == 0.0
}

fn coordinates(position: u64, dims: &[u64]) -> Vec<u64> {
    let mut rest = position;
    let mut at: Vec<u64> = dims
        .iter()
        .rev()
        .map(|n| {
            let c = rest % n;
            rest /= n;
            c
        })
        .collect();
    at.reverse();
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_comparison_sees_signs_of_zero_and_joins_nans() {
        let f = Scalar::f32;
        assert!(!agree(f(0.0), f(-0.0), 0.0));
        assert!(agree(f(0.0), f(-0.0), 1e-5));
        assert!(agree(f(f32::NAN), f(-f32::NAN), 0.0));
        assert!(!agree(f(f32::NAN), f(1.0), 1.0));
        assert!(!agree(f(f32::INFINITY), f(1.0), 1.0));
        assert!(agree(f(1.0), f(1.000_001), 1e-5) && !agree(f(1.0), f(1.000_001), 0.0));
        assert!(!agree(Scalar::i64(1), Scalar::i64(2), 5.0));
    }

    #[test]
    fn a_difference_is_named_by_coordinates() {
        let a = TensorData::f32s(&[2, 3], &[0.0; 6]).unwrap();
        let b = TensorData::f32s(&[2, 3], &[0.0, 0.0, 0.0, 0.0, 0.0, 2.0]).unwrap();
        let message = compare("compiled", &["y".into()], &[a], &[b], 0.0).unwrap_err();
        assert!(message.contains("`y` differs at [1, 2]: 0 (0x0) before, 2 "), "{message}");
    }

    #[test]
    fn extreme_inputs_hold_extremes() {
        let types = [DenseType::new(DType::F32, [256]), DenseType::new(DType::I8, [256])];
        let given = random(&types, Mix::Extreme, 1);
        let floats = given[0].to_f64s();
        assert!(floats.iter().any(|x| x.is_nan()) && floats.contains(&f64::NEG_INFINITY));
        assert!(given[1].to_i64s().contains(&-128) && given[1].to_i64s().contains(&127));
    }
}
