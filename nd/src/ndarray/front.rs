//! From a call to an operation of the engine: look-up, compilation, deferral.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use tensorc_ir::DenseType;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::op::Compute;
use tensorc_passes::infer::infer_graph;
use tensorc_runtime::array::ArrayView;
use tensorc_runtime::engine::OpName;

use super::array::{NDArray, refuse_in_place};
use super::divided::{self, PartValue};
use super::program::{ArrayProgram, KeyKind};
use super::recording;
use super::resolved_call::{Formal, ResolvedCall};
use super::runtime::Runtime;
use crate::error::Error;
use tensorc::{ProgramFamily, ProgramKey, Tensor};

/// The program of a call: everything that does not depend on elements.
fn program(rt: &Runtime, request: &ResolvedCall<'_>) -> Result<Arc<ArrayProgram>, Error> {
    rt.programs().get_or_make(&key(rt, request, KeyKind::Program), || infer(rt, request))
}

fn key(rt: &Runtime, request: &ResolvedCall<'_>, kind: KeyKind) -> ProgramKey {
    let mut key = ProgramKey::of("call");
    key.device(rt.space(), request.device);
    key.op(&request.def);
    key.number(request.outputs as u64);
    key.params(&request.params);
    for formal in &request.operands {
        match formal {
            Formal::Absent => key.small(0),
            Formal::Static(data) => {
                key.small(1);
                key.tensor(data);
            }
            Formal::Array(_) | Formal::Inline(_) | Formal::Host(_) => {
                key.small(2);
                let (dtype, dims) = formal.ty();
                kind.ty(&mut key, dtype, dims);
            }
        }
    }
    key
}

/// What a call returns.
type Results = SmallVec<[NDArray; 1]>;

/// Makes a call: defers it or pushes it. Only looking up, deferring and flushing hold the lock.
pub(super) fn call(
    rt: &Runtime,
    mut request: ResolvedCall<'_>,
    targets: Option<&[&NDArray]>,
) -> Result<Results, Error> {
    let program = program(rt, &request)?;
    if let Some(targets) = targets {
        check_targets(&program, &request, targets.iter().copied().enumerate())?;
    }
    check_targets(&program, &request, request.written().map(|(state, result)| (result, state)))?;
    let arrays = || request.operands.iter().filter_map(Formal::as_array);
    let recorded = arrays().any(NDArray::is_recorded);
    if let Some(targets) = targets {
        refuse_in_place(request.def.name, arrays(), targets.iter().copied())?;
    }
    refuse_in_place(request.def.name, [], request.written().map(|(state, _)| state))?;
    if recorded && program.outputs.is_empty() {
        let program = divided::differentiable(rt, &program, request.device)?;
        request.draw_key(rt);
        let mut results = divided::record(rt, &program, request.device, part_values(&request)?)?;
        results.truncate(request.wanted);
        return Ok(results.into());
    }
    // A refused call draws nothing.
    request.draw_key(rt);
    let before = if recorded { request.copies()? } else { SmallVec::new() };
    let mut results = push(rt, &program, &request, targets)?;
    let written = targets.into_iter().flatten().copied().chain(request.written().map(|(state, _)| state));
    written.for_each(|target| target.view().chunk().touch());
    if recorded {
        let given = request.operands.iter().enumerate();
        let operands = given.map(|(i, formal)| match before.iter().find(|(at, _)| *at == i) {
            Some((_, copy)) => Formal::Array(copy),
            None => formal.clone(),
        });
        let operands: SmallVec<[Formal<'_>; 4]> = operands.collect();
        recording::record(&program, &operands, &mut results);
    }
    results.truncate(request.wanted);
    Ok(results)
}

/// The operands of a call, by input of its graph.
fn part_values(request: &ResolvedCall<'_>) -> Result<Vec<PartValue>, Error> {
    let mut values = vec![];
    for formal in &request.operands {
        let Some(source) = formal.source() else { continue };
        values.push(match formal {
            Formal::Absent | Formal::Static(_) => continue,
            Formal::Array(array) => PartValue::Array((*array).clone()),
            Formal::Host(data) => PartValue::Constant(source, Tensor::from(data.clone())),
            Formal::Inline(value) => {
                let tensor = Tensor::from_bytes(value.dtype(), value.dims(), value.bytes().to_vec())?;
                PartValue::Constant(source, tensor)
            }
        });
    }
    Ok(values)
}

/// Notes that a view of an operand's memory is the result of a call.
pub(super) fn record_view(rt: &Runtime, request: &ResolvedCall<'_>, seen: &mut NDArray) -> Result<(), Error> {
    let program = program(rt, request)?;
    recording::record(&program, &request.operands, std::slice::from_mut(seen));
    Ok(())
}

fn push(
    rt: &Runtime,
    program: &Arc<ArrayProgram>,
    request: &ResolvedCall<'_>,
    targets: Option<&[&NDArray]>,
) -> Result<Results, Error> {
    if program.outputs.is_empty() {
        return call_in_parts(rt, program, request);
    }
    if rt.options().fuse && program.elementwise && !program.outputs[0].is_empty() {
        let target = targets.and_then(|t| t.first()).map(|t| t.view());
        let sources = request.operands.iter().filter_map(Formal::source).collect();
        let view = rt.front().defer(rt.programs(), program, request.device, sources, target)?;
        return Ok(smallvec![NDArray::new(rt.clone(), view)]);
    }
    let place = |(i, ty): (usize, &DenseType)| {
        let state = || request.written().find(|(_, result)| *result == i).map(|(state, _)| state);
        match targets.and_then(|targets| targets.get(i).copied()).or_else(state) {
            Some(array) => Ok(array.view().clone()),
            None => rt.programs().fresh(request.device, ty),
        }
    };
    let views: SmallVec<[ArrayView; 2]> = program.outputs.iter().enumerate().map(place).collect::<Result<_, _>>()?;
    rt.run(program, request.device, request.operands.iter().filter_map(Formal::source).collect(), views.iter())?;
    Ok(views.into_iter().map(|view| NDArray::new(rt.clone(), view)).collect())
}

/// Runs an operator whose result types depend on elements: waits for its operands.
fn call_in_parts(rt: &Runtime, program: &ArrayProgram, request: &ResolvedCall<'_>) -> Result<Results, Error> {
    let inputs = part_values(request)?.iter().map(PartValue::tensor).collect::<Result<Vec<_>, _>>()?;
    let results = program.run_in_parts(rt.compiler(), &inputs)?;
    results.iter().map(|tensor| rt.from_tensor(tensor, request.device)).collect()
}

/// The graph of one node, with types.
fn infer(rt: &Runtime, request: &ResolvedCall<'_>) -> Result<ArrayProgram, Error> {
    let ResolvedCall { def, operands, params, outputs, .. } = request;
    let mut graph = Graph::new(def.name);
    let mut values: Vec<Option<Value>> = vec![];
    for (i, formal) in operands.iter().enumerate() {
        let name = def.input_spec(i).map_or("operand", |spec| spec.name);
        values.push(match formal {
            Formal::Absent => None,
            Formal::Static(data) => Some(graph.add_const(name, data.clone())),
            _ => {
                let (dtype, dims) = formal.ty();
                Some(graph.add_input(format!("{name}{i}"), DenseType::new(dtype, dims).into()))
            }
        });
    }
    while let Some(None) = values.last() {
        values.pop();
    }
    let node = graph.add_op(def.name, def, &values, params.clone(), *outputs)?;
    for port in 0..*outputs {
        graph.add_output(format!("{}{port}", def.name), Value { node, port: port as u16 });
    }
    let untyped = graph.clone();
    infer_graph(&mut graph, rt.compiler().registry(), rt.compiler().options().passes.static_bytes)?;
    // Values that follow from extents are constants now, and other extents have others.
    let is_whole = graph.node_ids() == untyped.node_ids();
    let mut program = ArrayProgram::new(request.device, OpName::from(def.name), graph);
    let elementwise = matches!(def.compute, Compute::Scalar(_)) && def.static_inputs.is_empty();
    program.elementwise = elementwise && program.outputs.len() == 1;
    if is_whole && !program.outputs.is_empty() {
        let types = operands.iter().filter(|formal| !matches!(formal, Formal::Absent | Formal::Static(_)));
        let types = types.map(|formal| formal.ty()).map(|(dtype, dims)| DenseType::new(dtype, dims)).collect();
        let key = key(rt, request, KeyKind::Family);
        program.member = rt.programs().member(&key, types, || ProgramFamily::of(&untyped));
    }
    Ok(program)
}

/// Whether arrays can take the results of these numbers.
fn check_targets<'a>(
    program: &ArrayProgram,
    request: &ResolvedCall<'_>,
    targets: impl Iterator<Item = (usize, &'a NDArray)>,
) -> Result<(), Error> {
    let op = || request.def.name.to_owned();
    for (result, target) in targets {
        let Some(ty) = program.outputs.get(result) else {
            return Err(Error::DynamicTarget { op: op() });
        };
        if *ty != target.ty() {
            return Err(Error::Target { op: op(), expected: ty.to_string(), found: target.ty().to_string() });
        }
        if target.device() != request.device {
            return Err(Error::Devices { op: op(), first: request.device, second: target.device() });
        }
    }
    Ok(())
}
