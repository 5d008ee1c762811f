//! From a call to an operation of the engine: look-up, compilation, deferral.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::{SmallVec, smallvec};
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::op::{Compute, OpRef};
use tensorc_ir::params::Params;
use tensorc_ir::{DenseType, TensorData, TensorType};
use tensorc_passes::infer::infer_graph;
use tensorc_runtime::Device;
use tensorc_runtime::array::{self, ArrayOperand, ArrayView, Chunk, Extents, LaunchOutput};
use tensorc_runtime::engine::{OpName, Property};

use super::autograd::{Formula, tape};
use super::call::{Formal, ResolvedCall};
use super::key::ProgramKey;
use super::program::{OnDevices, Program};
use super::window::LazyBatch;
use super::{NDArray, Runtime};
use crate::Error;
use tensorc::{Session, Tensor};

/// Call signatures kept compiled; beyond that all are forgotten.
const MAX_CACHED_SIGNATURES: usize = 4096;

/// State behind the lock of a runtime. Calls of one thread pass through it in order.
pub(super) struct Front {
    key: ProgramKey,
    signatures: HashMap<Box<[u8]>, Arc<CallSignature>>,
    window: LazyBatch,
}

/// A call's operator with types: everything that does not depend on elements.
pub(super) struct CallSignature {
    pub def: OpRef,
    pub params: Params,
    /// Result types; empty if they depend on elements.
    pub outputs: Vec<DenseType>,
    /// Whether calls may wait in the window.
    deferrable: bool,
    name: OpName,
    formula: Arc<Formula>,
    code: OnDevices,
    /// What runs the call if its result types depend on elements.
    staged: Mutex<Option<Session>>,
}

impl Front {
    pub fn new(window: usize) -> Front {
        Front { key: ProgramKey::default(), signatures: HashMap::new(), window: LazyBatch::new(window) }
    }

    /// Pushes what is deferred.
    pub fn flush(&mut self, rt: &Runtime) -> Result<(), Error> {
        self.window.flush(rt)
    }

    /// Pushes what is deferred if it reads or writes the memory of `view`.
    pub fn settle(&mut self, rt: &Runtime, view: &ArrayView) -> Result<(), Error> {
        match self.window.concerns(view) {
            true => self.flush(rt),
            false => Ok(()),
        }
    }

    fn signature(&mut self, rt: &Runtime, request: &ResolvedCall<'_>) -> Result<Arc<CallSignature>, Error> {
        let key = &mut self.key;
        key.clear();
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
                    let (dtype, dims) = formal_type(formal);
                    key.ty(dtype, dims);
                }
            }
        }
        if let Some(found) = self.signatures.get(self.key.bytes()) {
            return Ok(found.clone());
        }
        let made = Arc::new(CallSignature::infer(rt, request)?);
        if self.signatures.len() >= MAX_CACHED_SIGNATURES {
            self.signatures.clear();
        }
        self.signatures.insert(self.key.bytes().into(), made.clone());
        Ok(made)
    }
}

/// What a call returns.
type Results = SmallVec<[NDArray; 1]>;

/// Makes a call: defers it or pushes it. Only looking up, deferring and flushing hold the lock.
pub(super) fn call(
    rt: &Runtime,
    mut request: ResolvedCall<'_>,
    targets: Option<&[&NDArray]>,
) -> Result<Results, Error> {
    let signature = rt.front().signature(rt, &request)?;
    if let Some(targets) = targets {
        check_targets(&signature, &request, targets.iter().copied().enumerate())?;
    }
    check_targets(&signature, &request, request.written().map(|(state, result)| (result, state)))?;
    let arrays = || request.operands.iter().filter_map(Formal::as_array);
    let recorded = tape::concerns(arrays());
    if let Some(targets) = targets {
        tape::refuse_in_place(request.def.name, arrays(), targets.iter().copied())?;
    }
    tape::refuse_in_place(request.def.name, [], request.written().map(|(state, _)| state))?;
    // A refused call draws nothing.
    request.draw_key(rt);
    let recorded = recorded && !signature.outputs.is_empty();
    let before = if recorded { request.copies()? } else { SmallVec::new() };
    let mut results = push(rt, &signature, &request, targets)?;
    let written = targets.into_iter().flatten().copied().chain(request.written().map(|(state, _)| state));
    written.for_each(|target| target.view().chunk().touch());
    if recorded {
        let given = request.operands.iter().enumerate();
        let operands = given.map(|(i, formal)| match before.iter().find(|(at, _)| *at == i) {
            Some((_, copy)) => Formal::Array(copy),
            None => formal.clone(),
        });
        let operands: SmallVec<[Formal<'_>; 4]> = operands.collect();
        tape::record(&signature.name, &signature.formula, &operands, &mut results);
    }
    results.truncate(request.wanted);
    Ok(results)
}

/// Notes that a view of an operand's memory is the result of a call.
pub(super) fn record_view(rt: &Runtime, request: &ResolvedCall<'_>, seen: &mut NDArray) -> Result<(), Error> {
    let signature = rt.front().signature(rt, request)?;
    let results = std::slice::from_mut(seen);
    tape::record(&signature.name, &signature.formula, &request.operands, results);
    Ok(())
}

fn push(
    rt: &Runtime,
    signature: &Arc<CallSignature>,
    request: &ResolvedCall<'_>,
    targets: Option<&[&NDArray]>,
) -> Result<Results, Error> {
    if signature.outputs.is_empty() {
        return call_staged(rt, signature, request);
    }
    if rt.options().fuse && signature.deferrable {
        let target = targets.and_then(|t| t.first()).map(|t| t.view());
        let view = rt.front().window.defer(rt, signature, request, target)?;
        return Ok(smallvec![NDArray::new(rt.clone(), view)]);
    }
    let program = signature.program(rt, request.device)?;
    let place = |(i, ty): (usize, &DenseType)| {
        let state = || request.written().find(|(_, result)| *result == i).map(|(state, _)| state);
        match targets.and_then(|targets| targets.get(i).copied()).or_else(state) {
            Some(array) => Ok(array.view().clone()),
            None => fresh(rt, request.device, ty),
        }
    };
    let views: SmallVec<[ArrayView; 2]> = signature.outputs.iter().enumerate().map(place).collect::<Result<_, _>>()?;
    let inputs: Vec<ArrayOperand> = request.operands.iter().filter_map(source).collect();
    for view in inputs.iter().filter_map(ArrayOperand::view).chain(&views) {
        rt.front().settle(rt, view)?;
    }
    let launch = array::ArrayLaunch {
        name: &signature.name,
        device: request.device,
        property: Property::Normal,
        priority: 0,
        inputs,
        outputs: views.iter().cloned().map(LaunchOutput::write).collect(),
    };
    program.launch(rt.space(), launch)?;
    Ok(views.into_iter().map(|view| NDArray::new(rt.clone(), view)).collect())
}

/// Runs an operator whose result types depend on elements: waits for its operands.
fn call_staged(rt: &Runtime, signature: &CallSignature, request: &ResolvedCall<'_>) -> Result<Results, Error> {
    let mut inputs = vec![];
    for formal in &request.operands {
        match formal {
            Formal::Absent | Formal::Static(_) => {}
            Formal::Host(data) => inputs.push(Tensor::from(data.clone())),
            Formal::Array(array) => inputs.push(array.to_tensor()?),
            Formal::Inline(value) => {
                inputs.push(Tensor::from_bytes(value.dtype(), value.dims(), value.bytes().to_vec())?)
            }
        }
    }
    let mut staged = signature.staged.lock().unwrap_or_else(PoisonError::into_inner);
    let session = match &mut *staged {
        Some(session) => session,
        none => none.insert(Session::new(rt.compiler().on(request.device)?, signature.formula.graph.clone())?),
    };
    let results = session.run(&inputs)?;
    drop(staged);
    results.iter().map(|tensor| rt.from_tensor(tensor, request.device)).collect()
}

/// The type of an operand that is data of the call.
fn formal_type<'f>(formal: &'f Formal<'_>) -> (tensorc_abi::DType, &'f [u64]) {
    match formal {
        Formal::Array(array) => (array.dtype(), array.dims()),
        Formal::Inline(value) => (value.dtype(), value.dims()),
        Formal::Host(data) | Formal::Static(data) => (data.dtype(), data.dims()),
        Formal::Absent => (tensorc_abi::DType::F32, &[]),
    }
}

/// The operand as the engine's operation reads it; nothing if the program holds it.
pub(super) fn source(formal: &Formal<'_>) -> Option<ArrayOperand> {
    match formal {
        Formal::Absent | Formal::Static(_) => None,
        Formal::Array(array) => Some(ArrayOperand::View(array.view().clone())),
        Formal::Inline(value) => Some(ArrayOperand::Inline(*value)),
        Formal::Host(data) => Some(host_source(data)),
    }
}

fn host_source(data: &TensorData) -> ArrayOperand {
    ArrayOperand::Host { dtype: data.dtype(), dims: Extents::from_slice(data.dims()), data: data.bytes().clone() }
}

impl CallSignature {
    fn infer(rt: &Runtime, request: &ResolvedCall<'_>) -> Result<CallSignature, Error> {
        let ResolvedCall { def, operands, params, outputs, .. } = request;
        let mut graph = Graph::new(def.name);
        let mut values: Vec<Option<Value>> = vec![];
        for (i, formal) in operands.iter().enumerate() {
            let name = def.input_spec(i).map_or("operand", |spec| spec.name);
            values.push(match formal {
                Formal::Absent => None,
                Formal::Static(data) => Some(graph.add_const(name, data.clone())),
                _ => {
                    let (dtype, dims) = formal_type(formal);
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
        infer_graph(&mut graph, rt.compiler().registry(), rt.compiler().options().passes.static_bytes)?;
        let types = graph.outputs().iter().map(|(_, v)| TensorType::dense(&graph.resolved(*v)));
        let outputs: Vec<DenseType> = types.collect::<Option<_>>().unwrap_or_default();
        let element_wise = matches!(def.compute, Compute::Scalar(_)) && def.static_inputs.is_empty();
        let deferrable = element_wise && outputs.len() == 1 && !outputs[0].is_empty();
        Ok(CallSignature {
            def: def.clone(),
            params: params.clone(),
            formula: Formula::new(graph, element_wise && outputs.len() == 1),
            outputs,
            deferrable,
            name: OpName::from(def.name),
            code: OnDevices::default(),
            staged: Mutex::default(),
        })
    }

    fn program(&self, rt: &Runtime, device: Device) -> Result<Arc<Program>, Error> {
        let graph = || self.formula.graph.clone();
        let compile = || Program::compile(rt.compiler(), device, self.name.clone(), graph());
        self.code.on(rt.space(), device, compile)
    }
}

/// Whether arrays can take the results of these numbers.
fn check_targets<'a>(
    signature: &CallSignature,
    request: &ResolvedCall<'_>,
    targets: impl Iterator<Item = (usize, &'a NDArray)>,
) -> Result<(), Error> {
    let op = || request.def.name.to_owned();
    for (result, target) in targets {
        let Some(ty) = signature.outputs.get(result) else {
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

/// A new array's memory, as a view of all of it.
pub(super) fn fresh(rt: &Runtime, device: Device, ty: &DenseType) -> Result<ArrayView, Error> {
    let chunk = Chunk::new(rt.space(), device, array::byte_len(ty.dtype, &ty.dims)?);
    Ok(ArrayView::whole(chunk, ty.dtype, &ty.dims)?)
}
