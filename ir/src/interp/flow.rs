//! Evaluation of branches and loops.

use super::graph::eval_step;
use crate::diag::{Diagnostic, DiagnosticCode, Result};
use crate::extent::Extent;
use crate::flow::{Flow, FlowKind, Loop};
use crate::graph::{Graph, Value};
use crate::op::Registry;
use crate::scalar::Scalar;
use crate::tensor::TensorData;
use crate::types::{DenseType, Dim};

/// Evaluates a flow on its operands.
pub(super) fn eval_flow(flow: &Flow, operands: &[TensorData], registry: &Registry) -> Result<Vec<TensorData>> {
    run_flow(flow, operands, &mut |body, inputs| {
        let graph = &flow.bodies[body];
        let (mut results, states) = eval_step(graph, registry, inputs)?;
        results.extend(states);
        Ok(results)
    })
}

/// Runs the body of a number on its inputs.
pub type RunBody<'a, E> = dyn FnMut(usize, &[TensorData]) -> Result<Vec<TensorData>, E> + 'a;

/// Runs a flow on its operands. `body` runs the body of a number on its inputs: results are its outputs, then what it updates.
///
/// # Errors
/// Operands or results of bodies are missing, or `body` fails.
pub fn run_flow<E: From<Diagnostic>>(
    flow: &Flow,
    operands: &[TensorData],
    body: &mut RunBody<'_, E>,
) -> Result<Vec<TensorData>, E> {
    match (&flow.kind, &flow.bodies[..]) {
        (FlowKind::If, [_, _]) => {
            let [condition, inputs @ ..] = operands else { return malformed() };
            body(usize::from(!holds(condition)), inputs)
        }
        (FlowKind::Loop(repeat), [graph]) => run_loop(repeat, graph, operands, body),
        _ => malformed(),
    }
}

fn malformed<T, E: From<Diagnostic>>() -> Result<T, E> {
    let why = "a branch or loop without the bodies or operands that it needs";
    Err(Diagnostic::new(DiagnosticCode::Verify, why).into())
}

fn holds(condition: &TensorData) -> bool {
    condition.item().is_some_and(|c| c.as_bool())
}

fn run_loop<E: From<Diagnostic>>(
    repeat: &Loop,
    body: &Graph,
    operands: &[TensorData],
    step: &mut RunBody<'_, E>,
) -> Result<Vec<TensorData>, E> {
    if operands.len() < repeat.own_operands() {
        return malformed();
    }
    let (condition, operands) = operands.split_at(usize::from(repeat.conditional));
    let (carried, operands) = operands.split_at(repeat.carried);
    let (scanned, constant) = operands.split_at(repeat.scanned.len());
    let rows = || scanned.first().and_then(|all| all.dims().first().copied());
    let known = repeat.trips.map(|n| n.fixed().max(0) as u64);
    let trips = known.or_else(rows).unwrap_or(u64::MAX);
    let at = |i: u64, back: bool| if back { trips - 1 - i } else { i };
    let mut carried = carried.to_vec();
    let mut goes_on = condition.iter().all(holds);
    let mut stacked: Vec<Vec<TensorData>> = vec![vec![]; repeat.stacked.len()];
    let mut i = 0;
    while goes_on && i < trips {
        let number = TensorData::scalar(Scalar::i64(i as i64));
        let rows = scanned.iter().zip(&repeat.scanned).map(|(all, back)| row(all, at(i, *back)));
        let rows = rows.collect::<Result<Vec<_>, E>>()?;
        let inputs: Vec<TensorData> =
            [number].into_iter().chain(carried).chain(rows).chain(constant.iter().cloned()).collect();
        let mut outputs = step(0, &inputs)?;
        if outputs.len() != repeat.outputs() + repeat.carried {
            return malformed();
        }
        carried = outputs.split_off(repeat.outputs());
        let made = outputs.split_off(usize::from(repeat.conditional));
        goes_on = outputs.iter().all(holds);
        stacked.iter_mut().zip(made).for_each(|(all, row)| all.push(row));
        i += 1;
    }
    let outputs = body.outputs().iter().skip(usize::from(repeat.conditional));
    let stacked = stacked.into_iter().zip(outputs).zip(&repeat.stacked).map(|((rows, (_, v)), back)| {
        // Before inference only values say what their types are.
        let ty = rows.first().map_or_else(|| row_type(body, *v), |row| Ok(row.ty.clone()))?;
        let missing = rows.len() as u64..known.unwrap_or(0);
        let zeros = missing.map(|_| TensorData::splat(&ty.dims, Scalar::zero(ty.dtype)));
        let all = rows.into_iter().chain(zeros).collect();
        stack(all, &ty, *back)
    });
    let stacked = stacked.collect::<Result<Vec<_>, E>>()?;
    Ok(carried.into_iter().chain(stacked).collect())
}

/// The type of a row that no iteration computed. Extents that nothing tells are 0, as ONNX Runtime has them.
fn row_type<E: From<Diagnostic>>(body: &Graph, v: Value) -> Result<DenseType, E> {
    let ty = body.resolved(v);
    match (ty.dtype, ty.shape.dims()) {
        (Some(dtype), Some(dims)) => {
            let extent = |dim: &Dim| dim.as_extent().unwrap_or(Extent::ZERO);
            Ok(DenseType { dtype, dims: dims.iter().map(extent).collect() })
        }
        _ => Ok(body.dense(v)?),
    }
}

fn row<E: From<Diagnostic>>(all: &TensorData, i: u64) -> Result<TensorData, E> {
    let ty = DenseType::new(all.ty.dtype, all.ty.dims.get(1..).unwrap_or_default());
    let (bytes, size) = (all.bytes(), ty.bytes() as usize);
    let part = bytes.get(i as usize * size..(i as usize + 1) * size);
    part.and_then(|part| TensorData::new(ty, part.to_vec().into())).map_or_else(malformed, Ok)
}

fn stack<E: From<Diagnostic>>(rows: Vec<TensorData>, row: &DenseType, back: bool) -> Result<TensorData, E> {
    if rows.iter().any(|other| other.ty != *row) {
        let why = "the rows that a loop stacks have different types";
        return Err(Diagnostic::new(DiagnosticCode::Operands, why).into());
    }
    let ty = DenseType::new(row.dtype, [&[rows.len() as u64], &row.dims[..]].concat());
    let mut bytes = Vec::with_capacity(ty.bytes() as usize);
    let mut each = |row: &TensorData| bytes.extend_from_slice(row.bytes());
    if back {
        rows.iter().rev().for_each(&mut each)
    } else {
        rows.iter().for_each(&mut each)
    }
    TensorData::new(ty, bytes.into()).map_or_else(malformed, Ok)
}
