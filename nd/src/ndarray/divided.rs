//! Recorded calls whose shapes depend on elements: each part of a run is a recorded call of its own, with the shapes of that run.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_ir::graph::{Graph, Value};
use tensorc_passes::differentiate::{expand_found, passed};
use tensorc_passes::parts::{PartShape, next_part};
use tensorc_runtime::Device;
use tensorc_runtime::array::ArrayOperand;

use super::array::NDArray;
use super::program::ArrayProgram;
use super::recording::{attach, recorded};
use super::runtime::Runtime;
use super::tape::RecordedOperand;
use crate::error::Error;
use tensorc::{DividedRun, ProgramKey, RanPart, Tensor};

/// An operand, or what a part delivered.
pub(super) enum PartValue {
    Array(NDArray),
    /// A number or a tensor of the host.
    Constant(ArrayOperand, Tensor),
}

impl PartValue {
    /// The elements, which may be waited for.
    pub fn tensor(&self) -> Result<Tensor, Error> {
        match self {
            PartValue::Array(array) => array.to_tensor(),
            PartValue::Constant(_, tensor) => Ok(tensor.clone()),
        }
    }

    fn recorded(&self) -> RecordedOperand {
        match self {
            PartValue::Array(array) => recorded(array),
            PartValue::Constant(source, _) => RecordedOperand::Constant(source.clone()),
        }
    }

    fn is_recorded(&self) -> bool {
        matches!(self, PartValue::Array(array) if array.is_recorded())
    }
}

/// The program as one through whose parts gradients pass.
///
/// # Errors
/// An operator that finds elements, and that gradients would pass through, has no gradient.
pub(super) fn differentiable(rt: &Runtime, program: &ArrayProgram, device: Device) -> Result<Arc<ArrayProgram>, Error> {
    let mut key = ProgramKey::of("differentiable");
    key.number(program.number);
    key.device(rt.space(), device);
    rt.programs().get_or_make(&key, || {
        let mut graph = program.graph.clone();
        let typing = rt.compiler().typing();
        expand_found(&mut graph, typing.registry, typing.static_bytes)?;
        let inputs: Vec<Value> = graph.inputs().iter().map(|node| Value { node: *node, port: 0 }).collect();
        let outputs: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
        passed(&graph, &outputs, &inputs)?;
        Ok(ArrayProgram::new(device, program.name.clone(), graph))
    })
}

/// Runs a program on operands by graph input, waiting for them, and records its parts.
pub(super) fn record(
    rt: &Runtime,
    program: &Arc<ArrayProgram>,
    device: Device,
    operands: Vec<PartValue>,
) -> Result<Vec<NDArray>, Error> {
    let tensors = operands.iter().map(PartValue::tensor).collect::<Result<Vec<_>, _>>()?;
    let DividedRun { parts, values, .. } = program.run_divided(rt.compiler(), &tensors)?;
    let given = |(node, value): (_, PartValue)| (Value { node, port: 0 }, value);
    let graph = &program.graph;
    let mut known: BTreeMap<Value, PartValue> = graph.inputs().iter().copied().zip(operands).map(given).collect();
    for (at, part) in parts.iter().enumerate() {
        let (made, PartShape { inputs, outputs, .. }) = part_program(rt, program, device, (at, part))?;
        let mut results = vec![];
        for v in &outputs {
            results.push(rt.from_tensor(values.get(v).ok_or_else(|| missing(graph, *v))?, device)?);
        }
        let operands: Vec<&PartValue> =
            inputs.iter().map(|v| known.get(v).ok_or_else(|| missing(graph, *v))).collect::<Result<_, _>>()?;
        if operands.iter().any(|operand| operand.is_recorded()) {
            attach(&made, operands.iter().map(|operand| operand.recorded()).collect(), &mut results);
        }
        known.extend(outputs.into_iter().zip(results.into_iter().map(PartValue::Array)));
        for (v, tensor) in values.iter().filter(|(v, _)| part.shape.hosts.iter().any(|host| host.node == v.node)) {
            known.insert(*v, PartValue::Array(rt.from_tensor(tensor, device)?));
        }
    }
    let outputs: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
    // An operand, or a value that is several outputs, has an array of its own for each.
    let shared = |v: Value| graph.inputs().contains(&v.node) || outputs.iter().filter(|other| **other == v).count() > 1;
    let output = |v: Value| match known.get(&v) {
        Some(PartValue::Array(array)) if shared(v) => array.copy_to(device),
        Some(PartValue::Array(array)) => Ok(array.clone()),
        Some(PartValue::Constant(_, tensor)) => rt.from_tensor(tensor, device),
        None => {
            let constant = graph.constant(v).cloned().ok_or_else(|| missing(graph, v))?;
            rt.from_tensor(&Tensor::from(constant), device)
        }
    };
    outputs.iter().map(|v| output(*v)).collect()
}

/// A part with the numbers of a run, and what it computes of the whole graph.
fn part_program(
    rt: &Runtime,
    program: &ArrayProgram,
    device: Device,
    (at, part): (usize, &RanPart),
) -> Result<(Arc<ArrayProgram>, PartShape), Error> {
    let mut graph = program.graph.clone();
    let shape = next_part(&mut graph, rt.compiler().typing(), &part.facts)?;
    let mut key = ProgramKey::of("part");
    key.number(program.number);
    key.number(at as u64);
    key.device(rt.space(), device);
    part.facts.types.iter().for_each(|ty| key.ty(ty.dtype, &ty.dims));
    let made = rt.programs().get_or_make(&key, || Ok(ArrayProgram::new(device, program.name.clone(), graph)))?;
    Ok((made, shape))
}

fn missing(graph: &Graph, v: Value) -> Error {
    Error::Internal(format!("`{}`: no part delivers what another needs", graph.node(v.node).name))
}
