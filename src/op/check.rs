//! Checks that an operator's gradient is the derivative of what it computes.

use tensorc_abi::DType;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::infer::scalar_fn;
use tensorc_ir::interp::eval_graph;
use tensorc_ir::op::{Compute, OpDef, OpRef};
use tensorc_ir::params::Params;
use tensorc_ir::scalar::{Dual, Scalar, ScalarFn};
use tensorc_ir::{DenseType, TensorData};
use tensorc_passes::differentiate::differentiate;
use tensorc_passes::infer::infer_graph;

use crate::compiler::Compiler;
use crate::tensor::Tensor;

/// Values at which operands are tried: around zero and one on both sides, none of them a usual kink.
const POINTS: [f64; 10] = [-2.75, -1.3, -0.8, -0.35, -0.02, 0.03, 0.45, 0.9, 1.6, 3.1];
/// Most combinations of them.
const MAX_COMBINATIONS: usize = 10_000;

/// What [`check_gradient`] compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientCheck {
    /// Partial derivatives.
    pub compared: usize,
}

/// A gradient is not the derivative, or there is none to compare.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum GradientError {
    /// A gradient differs from finite differences.
    #[error(
        "`{op}`: the gradient by element {element} of operand {operand} is {found}, the derivative at {at} is \
         {expected}"
    )]
    Differs { op: String, operand: usize, element: u64, at: f64, found: f64, expected: f64 },
    #[error("`{op}`: {why}")]
    Refused { op: String, why: String },
}

/// Compares the gradient of an operator with its derivative at some operands: by dual numbers if it is element-wise
/// on one type and shape, by central differences otherwise. Everything is evaluated by the reference interpreter.
///
/// Without operands, an element-wise operator on f64 is tried at every combination of a few values (at most
/// 10 000). Points where the derivative is not finite are left out.
///
/// # Errors
/// They differ; or there is no such operator, operands or parameters do not fit it, or it has no gradient.
pub fn check_gradient(
    compiler: &Compiler,
    op: &str,
    params: &Params,
    operands: &[Tensor],
) -> Result<GradientCheck, GradientError> {
    let refused = |why: String| GradientError::Refused { op: op.to_owned(), why };
    let def = compiler.registry().get(op).ok_or_else(|| refused("there is no such operator".into()))?;
    let operands: Vec<TensorData> = match operands {
        [] => combinations(def.inputs.len()),
        given => given.iter().map(|tensor| tensor.0.clone()).collect(),
    };
    let trial = Trial::new(compiler, def, params, operands).map_err(refused)?;
    let found = trial.gradients().map_err(refused)?;
    let mut compared = 0;
    for (operand, gradient) in found {
        let expected = trial.derivative(operand).map_err(refused)?;
        let tolerance = trial.tolerance(operand);
        for (element, expected) in expected.into_iter().enumerate().filter(|(_, x)| x.is_finite()) {
            let element = element as u64;
            let found = gradient.as_ref().map_or(0.0, |g| g.get(element).as_f64());
            let scale = expected.abs().max(found.abs()).max(1.0);
            if (found - expected).abs() > tolerance * scale || found.is_nan() {
                let at = trial.operands[operand].get(element).as_f64();
                return Err(GradientError::Differs { op: op.to_owned(), operand, element, at, found, expected });
            }
            compared += 1;
        }
    }
    Ok(GradientCheck { compared })
}

/// Vectors of f64 that hold every combination of values.
fn combinations(operands: usize) -> Vec<TensorData> {
    let count = POINTS.len().saturating_pow(operands as u32).min(MAX_COMBINATIONS);
    let ty = DenseType::new(DType::F64, [count as u64]);
    // Operands are never equal, so that minima and maxima are not tried at their kink.
    let value = |operand: usize, i: u64| {
        let digit = i as usize / POINTS.len().saturating_pow(operand as u32) % POINTS.len();
        Scalar::from_f64(DType::F64, POINTS[digit] + 0.001 * operand as f64)
    };
    (0..operands).map(|operand| TensorData::from_fn(ty.clone(), |i| value(operand, i))).collect()
}

/// One operator on given operands.
struct Trial<'a> {
    compiler: &'a Compiler,
    def: &'a OpDef,
    params: Params,
    operands: Vec<TensorData>,
    graph: Graph,
    results: Vec<DenseType>,
}

impl<'a> Trial<'a> {
    fn new(
        compiler: &'a Compiler,
        def: &'a OpRef,
        params: &Params,
        operands: Vec<TensorData>,
    ) -> Result<Trial<'a>, String> {
        let mut params = params.clone();
        params.complete(&def.params)?;
        let mut graph = Graph::new(def.name);
        let values: Vec<Option<Value>> = operands
            .iter()
            .enumerate()
            .map(|(i, data)| {
                Some(match def.static_inputs.contains(&i) {
                    true => graph.add_const(format!("x{i}"), data.clone()),
                    false => graph.add_input(format!("x{i}"), data.ty.clone().into()),
                })
            })
            .collect();
        let fail = |d: tensorc_ir::diag::Diagnostic| d.to_string();
        let outputs = def.outputs.0.max(1);
        let node = graph.add_op(def.name, def, &values, params.clone(), outputs).map_err(fail)?;
        for port in 0..outputs as u16 {
            graph.add_output(format!("y{port}"), Value { node, port });
        }
        let bytes = compiler.options().passes.static_bytes;
        infer_graph(&mut graph, compiler.registry(), bytes).map_err(fail)?;
        let results = graph.outputs().iter().map(|(_, v)| graph.dense(*v)).collect::<Result<_, _>>().map_err(fail)?;
        Ok(Trial { compiler, def, params, operands, graph, results })
    }

    /// Positions of the operands that are differentiated by.
    fn variables(&self) -> Vec<usize> {
        let varies = |i: &usize| self.operands[*i].dtype().is_float() && !self.def.static_inputs.contains(i);
        (0..self.operands.len()).filter(varies).collect()
    }

    fn inputs(&self, operands: &[TensorData]) -> Vec<TensorData> {
        let is_input = |(i, data): (usize, &TensorData)| (!self.def.static_inputs.contains(&i)).then(|| data.clone());
        operands.iter().enumerate().filter_map(is_input).collect()
    }

    /// The gradient that flows into an element of a result.
    fn head(result: usize, element: u64) -> f64 {
        1.0 + 0.25 * ((element + result as u64) % 5) as f64
    }

    fn gradients(&self) -> Result<Vec<(usize, Option<TensorData>)>, String> {
        let fail = |d: tensorc_ir::diag::Diagnostic| d.to_string();
        let mut graph = self.graph.clone();
        let ends: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
        let mut seeds = vec![];
        for (i, (end, ty)) in ends.iter().zip(&self.results).enumerate() {
            let head = |element| Scalar::from_f64(ty.dtype, Trial::head(i, element));
            let seed = ty.dtype.is_float().then(|| graph.add_const("head", TensorData::from_fn(ty.clone(), head)));
            seeds.push((*end, seed));
        }
        let positions = self.variables();
        let inputs = graph.inputs().to_vec();
        let before = |i: usize| (0..i).filter(|j| !self.def.static_inputs.contains(j)).count();
        let variables: Vec<Value> = positions.iter().map(|i| Value { node: inputs[before(*i)], port: 0 }).collect();
        let found = differentiate(&mut graph, self.compiler.registry(), &seeds, &variables).map_err(fail)?;
        graph.set_outputs(found.iter().flatten().map(|v| ("gradient".into(), *v)));
        graph.remove_dead();
        let mut values =
            eval_graph(&graph, self.compiler.registry(), &self.inputs(&self.operands)).map_err(fail)?.into_iter();
        Ok(positions.into_iter().zip(found).map(|(i, g)| (i, g.and_then(|_| values.next()))).collect())
    }

    /// The expression, if the operator is element-wise on f64 operands of one shape.
    fn expression(&self) -> Option<ScalarFn> {
        let Compute::Scalar(_) = self.def.compute else { return None };
        let ty = &self.operands.first()?.ty;
        if ty.dtype != DType::F64 || self.operands.iter().any(|data| data.ty != *ty) {
            return None;
        }
        let types = vec![Some(DType::F64); self.operands.len()];
        let f = scalar_fn(self.def, &self.params, &types, ty.dims.len(), Some(&ty.dims)).ok()?;
        (!f.uses_coord() && f.outputs.len() == 1).then_some(f)
    }

    fn tolerance(&self, operand: usize) -> f64 {
        match (self.expression(), self.operands[operand].dtype()) {
            (Some(_), _) => 1e-9,
            (None, DType::F64) => 1e-5,
            (None, _) => 2e-2,
        }
    }

    /// The derivative of the results, weighted with the heads, by every element of an operand.
    fn derivative(&self, operand: usize) -> Result<Vec<f64>, String> {
        let count = self.operands[operand].len();
        if let Some(f) = self.expression() {
            let at = |element: u64| {
                let dual = |(i, data): (usize, &TensorData)| match (i == operand, data.get(element).as_f64()) {
                    (true, x) => Dual::variable(x),
                    (false, x) => Dual::constant(x),
                };
                let duals: Vec<Dual> = self.operands.iter().enumerate().map(dual).collect();
                let value = f.eval_dual(&duals, &[]).first().copied().unwrap_or(Dual::constant(f64::NAN));
                if value.value.is_finite() { Trial::head(0, element) * value.tangent } else { f64::NAN }
            };
            return Ok((0..count).map(at).collect());
        }
        (0..count).map(|element| self.difference(operand, element)).collect()
    }

    /// A central difference.
    fn difference(&self, operand: usize, element: u64) -> Result<f64, String> {
        let data = &self.operands[operand];
        let center = data.get(element).as_f64();
        let step = if data.dtype() == DType::F64 { 1e-6 } else { 4e-3 } * center.abs().max(1.0);
        let sum = |x: f64| -> Result<f64, String> {
            let mut operands = self.operands.clone();
            let pick = |i| if i == element { Scalar::from_f64(data.dtype(), x) } else { data.get(i) };
            operands[operand] = TensorData::from_fn(data.ty.clone(), pick);
            let results = eval_graph(&self.graph, self.compiler.registry(), &self.inputs(&operands));
            let results = results.map_err(|d| d.to_string())?;
            let weighted =
                results.iter().enumerate().filter(|(_, r)| r.dtype().is_float()).flat_map(|(i, r)| {
                    (0..r.len()).map(move |element| Trial::head(i, element) * r.get(element).as_f64())
                });
            Ok(weighted.sum())
        };
        Ok((sum(center + step)? - sum(center - step)?) / (2.0 * step))
    }
}
