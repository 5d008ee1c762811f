//! Evaluation of branches and loops.

use super::graph::{eval_graph, eval_step};
use crate::diag::{Diagnostic, DiagnosticCode, Result};
use crate::flow::{Flow, FlowKind, Loop};
use crate::graph::Graph;
use crate::op::Registry;
use crate::scalar::Scalar;
use crate::tensor::TensorData;
use crate::types::DenseType;

/// Evaluates a flow on its operands.
pub(super) fn eval_flow(flow: &Flow, operands: &[TensorData], registry: &Registry) -> Result<Vec<TensorData>> {
    match (&flow.kind, &flow.bodies[..]) {
        (FlowKind::If, [then, otherwise]) => {
            let [condition, inputs @ ..] = operands else { return malformed() };
            eval_graph(if holds(condition) { then } else { otherwise }, registry, inputs)
        }
        (FlowKind::Loop(repeat), [body]) => eval_loop(repeat, body, operands, registry),
        _ => malformed(),
    }
}

fn malformed<T>() -> Result<T> {
    Err(Diagnostic::new(DiagnosticCode::Verify, "a branch or loop without the bodies or operands that it needs"))
}

fn holds(condition: &TensorData) -> bool {
    condition.item().is_some_and(|c| c.as_bool())
}

fn eval_loop(repeat: &Loop, body: &Graph, operands: &[TensorData], registry: &Registry) -> Result<Vec<TensorData>> {
    if operands.len() < repeat.own_operands() || body.outputs().len() != repeat.outputs() {
        return malformed();
    }
    let (condition, operands) = operands.split_at(usize::from(repeat.conditional));
    let (carried, operands) = operands.split_at(repeat.carried);
    let (scanned, constant) = operands.split_at(repeat.scanned.len());
    let trips = repeat.trips.map_or(u64::MAX, |n| n.fixed().max(0) as u64);
    let at = |i: u64, back: bool| if back { trips - 1 - i } else { i };
    let mut carried = carried.to_vec();
    let mut goes_on = condition.iter().all(holds);
    let mut stacked: Vec<Vec<TensorData>> = vec![vec![]; repeat.stacked.len()];
    let mut i = 0;
    while goes_on && i < trips {
        let number = TensorData::scalar(Scalar::i64(i as i64));
        let rows = scanned.iter().zip(&repeat.scanned).map(|(all, back)| row(all, at(i, *back)));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let inputs: Vec<TensorData> =
            [number].into_iter().chain(carried).chain(rows).chain(constant.iter().cloned()).collect();
        let (mut outputs, next) = eval_step(body, registry, &inputs)?;
        carried = next;
        let made = outputs.split_off(usize::from(repeat.conditional));
        goes_on = outputs.iter().all(holds);
        stacked.iter_mut().zip(made).for_each(|(all, row)| all.push(row));
        i += 1;
    }
    let outputs = body.outputs()[usize::from(repeat.conditional)..].iter();
    let stacked = stacked.into_iter().zip(outputs).zip(&repeat.stacked).map(|((rows, (_, v)), back)| {
        // Before inference only values say what their types are.
        let ty = rows.first().map_or_else(|| body.dense(*v), |row| Ok(row.ty.clone()))?;
        let zeros = (rows.len() as u64..trips).map(|_| TensorData::splat(&ty.dims, Scalar::zero(ty.dtype)));
        let all = rows.into_iter().chain(zeros).collect();
        stack(all, &ty, *back)
    });
    let stacked = stacked.collect::<Result<Vec<_>>>()?;
    Ok(carried.into_iter().chain(stacked).collect())
}

fn row(all: &TensorData, i: u64) -> Result<TensorData> {
    let ty = DenseType::new(all.ty.dtype, all.ty.dims.get(1..).unwrap_or_default());
    let (bytes, size) = (all.bytes(), ty.bytes() as usize);
    let part = bytes.get(i as usize * size..(i as usize + 1) * size);
    part.and_then(|part| TensorData::new(ty, part.to_vec().into())).map_or_else(malformed, Ok)
}

fn stack(rows: Vec<TensorData>, row: &DenseType, back: bool) -> Result<TensorData> {
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
