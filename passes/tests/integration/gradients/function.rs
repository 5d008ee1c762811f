//! Functions that gradients are taken of, made from guessed operands or from text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::op::{OpRef, Registry, TypeRule};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::text::parse_module;
use tensorc_ir::verify::{Stage, verify_graph};
use tensorc_ir::{DType, DenseType, TensorData};
use tensorc_passes::infer::InferTypes;
use tensorc_passes::{Pass, PassCx, differentiate};
use tensorc_random::{Candidate, Rng};

/// Where operands are drawn from: the first range in which results are tame and differences are slopes.
pub const RANGES: [(f64, f64); 5] = [(-0.95, 0.95), (0.15, 0.9), (0.6, 0.95), (1.1, 2.5), (2.0, 6.0)];

pub type Outcome<T> = Result<T, String>;

pub fn tensor(ty: &DenseType, (low, high): (f64, f64), seed: u64) -> TensorData {
    let mut rng = Rng::new(seed);
    TensorData::from_fn(ty.clone(), |_| {
        let unit = rng.element(DType::F64).as_f64() * 0.5 + 0.5;
        Scalar::from_f64(ty.dtype, low + (high - low) * unit)
    })
}

pub fn cast(x: &TensorData, to: DType) -> TensorData {
    TensorData::from_fn(DenseType::new(to, x.dims()), |i| x.get(i).cast(to))
}

/// Whether values are such that differences of them are slopes.
pub fn is_tame(data: &TensorData) -> bool {
    !data.dtype().is_float() || data.to_f64s().iter().all(|x| x.abs() <= 100.0)
}

/// A panic as an error.
pub fn caught<T>(f: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let outcome = catch_unwind(AssertUnwindSafe(f));
    outcome.unwrap_or_else(|panic| Err(format!("panicked: {:?}", panic.downcast_ref::<String>())))
}

pub fn evaluate(graph: &Graph, registry: &Registry, inputs: &[TensorData]) -> Outcome<Vec<TensorData>> {
    caught(|| eval_graph(graph, registry, inputs).map_err(|d| d.to_string()))
}

/// A function with the inputs it is differentiated by (all of the same float type).
#[derive(Clone)]
pub struct Function {
    pub graph: Graph,
    /// Positions of inputs.
    pub by: Vec<usize>,
    /// The first of the outputs that gradients flow from.
    pub heads: usize,
}

impl Function {
    /// The gradients of the heads, by output; `None` for those that are no heads.
    pub fn seeds(&self) -> Vec<Option<TensorData>> {
        let types = self.graph.outputs().iter().map(|(_, v)| self.graph.dense(*v).unwrap());
        let head = |(i, ty): (usize, DenseType)| {
            (i < self.heads && ty.dtype.is_float()).then(|| tensor(&ty, (-1.0, 1.0), 900 + i as u64))
        };
        types.enumerate().map(head).collect()
    }

    /// The function of the same inputs whose results are the gradients of `Σ seed · output`.
    pub fn gradient(&self, registry: &Registry) -> Outcome<Function> {
        let mut graph = self.graph.clone();
        let outputs: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
        let seeds = self.seeds().into_iter().map(|seed| seed.map(|data| graph.add_const("seed", data)));
        let heads: Vec<(Value, Option<Value>)> = outputs.into_iter().zip(seeds.collect::<Vec<_>>()).collect();
        let wrt: Vec<Value> = self.by.iter().map(|i| Value { node: graph.inputs()[*i], port: 0 }).collect();
        let gradients = differentiate(&mut graph, registry, &heads, &wrt).map_err(|d| d.to_string())?;
        // Inputs are drawn without regard to what operators demand of them.
        graph.clear_checks();
        let mut outputs = vec![];
        for (v, gradient) in wrt.iter().zip(gradients) {
            let ty = graph.dense(*v).unwrap();
            let zeros = TensorData::splat(&ty.dims, Scalar::zero(ty.dtype));
            let gradient = gradient.unwrap_or_else(|| graph.add_const("zeros", zeros));
            outputs.push((format!("d{}", graph.node(v.node).name).into(), gradient));
        }
        graph.set_outputs(outputs);
        graph.remove_dead();
        verify_graph(&graph, Stage::Typed).map_err(|d| d.to_string())?;
        Ok(Function { heads: self.by.len(), by: self.by.clone(), graph })
    }
}

/// How far a gradient in a type may be from that in f64, relative to the greatest element.
pub fn precision(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 2e-4,
        DType::F16 => 4e-2,
        _ => 2.5e-1,
    }
}

/// The function of a candidate, if the operator takes it: differentiated by floats that are no states, from the
/// results that users see.
pub fn function(candidate: &Candidate, op: &OpRef, registry: &Registry) -> Option<Function> {
    let mut graph = candidate.graph(op)?;
    InferTypes.run(&mut graph, &mut PassCx::new(registry)).ok()?;
    let values: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
    if values.iter().any(|v| graph.dense(*v).is_err()) {
        return None;
    }
    let given = candidate.operands.iter().enumerate().filter(|(_, o)| matches!(o, Some((_, false))));
    let by = given
        .enumerate()
        .filter(|(i, (at, _))| candidate.inputs[*i].dtype().is_float() && !op.is_state(&candidate.params, *at));
    Some(Function { by: by.map(|(i, _)| i).collect(), heads: op.result_count(&candidate.params).visible, graph })
}

/// The inputs of a candidate, floats drawn anew from a range.
pub fn inputs(candidate: &Candidate, range: (f64, f64)) -> Vec<TensorData> {
    let drawn = |(i, data): (usize, &TensorData)| match data.dtype().is_float() {
        true => tensor(&data.ty, range, 31 * i as u64 + 7),
        false => data.clone(),
    };
    candidate.inputs.iter().enumerate().map(drawn).collect()
}

/// Whether an operand may be a float whose value does not decide shapes.
pub fn has_variables(op: &OpRef) -> bool {
    op.inputs.iter().enumerate().any(|(i, spec)| {
        let float = match &spec.ty {
            TypeRule::Any => true,
            TypeRule::Group(_, list) | TypeRule::OneOf(list) => list.is_empty() || list.iter().any(|d| d.is_float()),
        };
        float && !op.static_inputs.contains(&i)
    })
}

/// A case in a float type.
pub fn case(text: &str, dtype: &str, registry: &Registry) -> Outcome<Function> {
    let text = format!("graph @g{}", text.replace("?[", &format!("{dtype}[")));
    let mut graph = parse_module(&text, registry).map_err(|d| d.to_string())?.graphs.swap_remove(0);
    InferTypes.run(&mut graph, &mut PassCx::new(registry)).map_err(|d| d.to_string())?;
    Ok(Function { by: (0..graph.inputs().len()).collect(), heads: graph.outputs().len(), graph })
}
