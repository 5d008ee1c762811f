//! Graphs whose shapes depend on values, run part by part: forward in order, backward in reverse.
//!
//! Parts exchange arrays. A part is a plan of two phases: the first computes its results, the second the gradients of its operands
//! from the gradients of its results. Intermediate values of a part stay in its memory between the phases. Another number of found
//! elements puts other numbers into the same plans.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorc_ir::DenseType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_passes::differentiate::{expand_found, passed};
use tensorc_passes::parts::{Facts, PartShape, ShapeSource, SourceKind};
use tensorc_runtime::Device;
use tensorc_runtime::array::{ArrayLaunch, ArrayOperand, LaunchOutput};
use tensorc_runtime::engine::OpName;
use tensorc_runtime::plan::{Needs, Phase};

use super::memory::SharedMemory;
use super::part_gradient::{PartGradient, PartRoles};
use super::program::{Arrays, Keys};
use super::training_graph::{GraphInputRole, TypedSymbol};
use crate::error::Error;
use crate::grad_req::GradReq;
use crate::ndarray::autograd::pause;
use crate::ndarray::{NDArray, Runtime};
use tensorc::{Compiler, DividedModel, DividedPart, Tensor};

/// A graph in several parts, for one device.
pub(super) struct DividedGraph {
    model: DividedModel,
    name: OpName,
    device: Device,
    /// By graph input.
    input_roles: Vec<GraphInputRole>,
    input_types: Vec<DenseType>,
    /// Outputs of the symbol; next values of states come after them.
    outputs: usize,
    /// For each output after the outputs of the symbol, the position of the auxiliary state that it updates.
    states: Vec<usize>,
    gradient: Arc<PartGradient>,
    /// Of each part: runs of it take turns.
    memories: Mutex<Vec<SharedMemory>>,
}

/// The parts and values of a forward pass, which the backward pass reads.
pub(super) struct DividedPass {
    parts: Vec<Arc<DividedPart>>,
    known: BTreeMap<Value, NDArray>,
    /// The outputs of the symbol.
    pub outputs: Vec<NDArray>,
}

/// The tensors of one phase of a part, by position among all of the part.
struct PhaseArrays<'a> {
    half: Option<Phase>,
    input: &'a dyn Fn(usize) -> Result<NDArray, Error>,
    output: &'a dyn Fn(usize) -> Result<NDArray, Error>,
}

impl DividedGraph {
    /// The forward pass; with `requests` (by argument) the backward pass as well.
    ///
    /// # Errors
    /// An operator on the way has no gradient, as far as that is seen without numbers.
    pub fn new(
        compiler: &Compiler,
        typed: TypedSymbol,
        device: Device,
        requests: Option<&[GradReq]>,
    ) -> Result<DividedGraph, Error> {
        let typing = compiler.typing();
        let TypedSymbol { mut graph, input_roles, .. } = typed;
        let input = |at: usize, graph: &Graph| Value { node: graph.inputs()[at], port: 0 };
        let wanted = requests.into_iter().flatten().enumerate().filter(|(_, request)| **request != GradReq::Null);
        let wrt: Vec<Value> = wanted.map(|(at, _)| input(at, &graph)).collect();
        expand_found(&mut graph, typing.registry, typing.static_bytes)?;
        let heads: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
        let gradient = Arc::new(PartGradient::new(&graph, passed(&graph, &heads, &wrt)?, heads.iter().copied()));
        let (outputs, updates) = (heads.len(), graph.updates().to_vec());
        graph.clear_updates();
        let mut states = vec![];
        for (node, next) in updates.into_iter().filter(|_| requests.is_some()) {
            let of = graph.inputs().iter().position(|n| *n == node).map(|at| input_roles[at]);
            if let Some(GraphInputRole::Auxiliary(at)) = of {
                graph.add_output(graph.node(node).name.clone(), next);
                states.push(at);
            }
        }
        graph.remove_dead();
        let input_types: Vec<DenseType> =
            (0..graph.inputs().len()).map(|at| graph.dense(input(at, &graph))).collect::<Result<_, _>>()?;
        let (name, of_parts, registry) = (OpName::from(graph.name.clone()), gradient.clone(), compiler.clone());
        let derive = move |graph: &mut Graph, shape: &PartShape| of_parts.derive(graph, shape, registry.registry());
        let model = DividedModel::new(graph, Arc::new(derive));
        if !wrt.is_empty() {
            model.check(compiler, &input_types)?;
        }
        let memories = Mutex::default();
        Ok(DividedGraph { model, name, device, input_roles, input_types, outputs, states, gradient, memories })
    }

    /// The name of engine operations.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Outputs whose gradients must be given.
    pub fn heads(&self) -> Vec<usize> {
        let outputs = self.symbol_outputs().enumerate();
        outputs.filter(|(_, v)| self.gradient.takes_gradient(*v)).map(|(at, _)| at).collect()
    }

    /// New keys for all random nodes.
    pub fn draw_keys(&self, rt: &Runtime, device: Device) -> Keys {
        let at = self.input_roles.iter().position(|role| *role == GraphInputRole::Keys);
        Keys::draw(rt, device, at.map_or(0, |at| self.input_types[at].dims[0]))
    }

    /// Bytes of memory for intermediate values.
    pub fn intermediate_bytes(&self) -> usize {
        lock(&self.memories).iter().map(SharedMemory::bytes).sum()
    }

    fn symbol_outputs(&self) -> impl Iterator<Item = Value> {
        self.model.graph().outputs().iter().take(self.outputs).map(|(_, v)| *v)
    }

    fn memory(&self, part: usize) -> SharedMemory {
        let mut memories = lock(&self.memories);
        let count = memories.len().max(part + 1);
        memories.resize_with(count, SharedMemory::default);
        memories[part].clone()
    }

    /// Computes the outputs, waiting for what the host looks at. They are the arrays given where these have their types.
    pub fn forward(&self, rt: &Runtime, arrays: Arrays<'_>, keys: &Keys) -> Result<DividedPass, Error> {
        let (compiler, graph) = (rt.compiler().on(self.device)?, self.model.graph());
        let mut known = self.given(rt, arrays, keys)?;
        let mut facts = Facts::of_inputs(graph, &self.input_types);
        let mut parts = vec![];
        loop {
            let memory = self.memory(parts.len());
            let part = self.model.part(&compiler, &facts, memory.arena())?;
            let mut made = vec![];
            for (at, v) in part.shape.outputs.iter().enumerate() {
                made.push((*v, self.place_of(rt, &part, at, arrays)?));
            }
            let roles = self.gradient.roles(&part.shape);
            let work = PhaseArrays {
                half: roles.has_gradient().then_some(Phase::First),
                input: &|at| part.shape.inputs.get(at).map_or_else(|| Err(missing()), |v| found(graph, &known, *v)),
                output: &|at| made.get(at).map_or_else(|| Err(missing()), |(_, array)| Ok(array.clone())),
            };
            self.launch(rt, &part, &memory, &work)?;
            known.extend(made);
            for call in &part.shape.hosts {
                let elements = |v| Ok::<_, Error>(found(graph, &known, v)?.to_tensor()?.data().clone());
                for (v, data) in self.model.host(&compiler, call, elements)? {
                    known.insert(v, rt.from_tensor(&Tensor::from(data), self.device)?);
                }
            }
            for source in &part.shape.sources {
                facts.types.push(numbers(source, &found(graph, &known, source.value)?)?);
                facts.sources.push(source.clone());
            }
            facts.available.extend(known.keys());
            let is_last = part.shape.is_last();
            parts.push(part);
            if is_last {
                let outputs = self.delivered(rt, &known, arrays)?;
                return Ok(DividedPass { parts, known, outputs });
            }
        }
    }

    /// What the inputs of the graph are.
    fn given(&self, rt: &Runtime, arrays: Arrays<'_>, keys: &Keys) -> Result<BTreeMap<Value, NDArray>, Error> {
        let mut known = BTreeMap::new();
        for ((node, role), ty) in self.model.graph().inputs().iter().zip(&self.input_roles).zip(&self.input_types) {
            let array = match role {
                GraphInputRole::Argument(at) => arrays.bound.arguments[*at].1.clone(),
                GraphInputRole::Auxiliary(at) => arrays.bound.auxiliaries[*at].1.clone(),
                GraphInputRole::Keys => rt.from_bytes(self.device, ty.dtype, &ty.dims, keys.bytes())?,
                other => return Err(Error::Internal(format!("{other:?} is no input of a graph in parts"))),
            };
            if array.device() != self.device {
                let op = self.name.to_string();
                return Err(Error::Devices { op, first: self.device, second: array.device() });
            }
            known.insert(Value { node: *node, port: 0 }, array);
        }
        Ok(known)
    }

    /// The array that a result of a part is written to.
    fn place_of(&self, rt: &Runtime, part: &DividedPart, at: usize, arrays: Arrays<'_>) -> Result<NDArray, Error> {
        let ty = output_type(part, at);
        let position = self.symbol_outputs().position(|v| v == part.shape.outputs[at]);
        let bound = position.and_then(|position| arrays.outputs.get(position));
        match bound.filter(|array| array.ty() == ty && array.device() == self.device) {
            Some(array) => Ok(array.clone()),
            None => rt.empty(self.device, ty.dtype, &ty.dims),
        }
    }

    /// The outputs of the symbol, in the arrays given where these have their types.
    fn delivered(
        &self,
        rt: &Runtime,
        known: &BTreeMap<Value, NDArray>,
        arrays: Arrays<'_>,
    ) -> Result<Vec<NDArray>, Error> {
        let graph = self.model.graph();
        let mut outputs = vec![];
        for (v, bound) in self.symbol_outputs().zip(arrays.outputs) {
            let made = match graph.constant(v) {
                Some(data) => rt.from_tensor(&Tensor::from(data.clone()), self.device)?,
                None => found(graph, known, v)?,
            };
            let is_bound = Arc::ptr_eq(made.view().chunk(), bound.view().chunk());
            // An input, or a value that is several outputs, does not become the array of one.
            let shared =
                graph.inputs().contains(&v.node) || self.symbol_outputs().filter(|other| *other == v).count() > 1;
            outputs.push(match (is_bound, made.ty() == bound.ty()) {
                (true, _) => made,
                (false, true) => {
                    made.copy_into(bound)?;
                    bound.clone()
                }
                (false, false) if shared => made.copy_to(self.device)?,
                (false, false) => made,
            });
        }
        Ok(outputs)
    }

    /// Computes the requested gradients from the gradients of the outputs, and updates the auxiliary states.
    pub fn backward(&self, rt: &Runtime, pass: &DividedPass, arrays: Arrays<'_>) -> Result<(), Error> {
        let _scope = pause();
        let graph = self.model.graph();
        let mut adjoints: BTreeMap<Value, NDArray> = BTreeMap::new();
        for (v, head) in self.symbol_outputs().zip(arrays.heads).filter(|(v, _)| self.gradient.takes_gradient(*v)) {
            add(&mut adjoints, v, (*head).clone())?;
        }
        let mut written = BTreeSet::new();
        for (at, part) in pass.parts.iter().enumerate().rev() {
            let roles = self.gradient.roles(&part.shape);
            let reached = roles.seeds().any(|v| adjoints.contains_key(&v)) || roles.has_loss();
            if roles.has_gradient() && reached {
                self.part_backward(rt, (at, part), &roles, &pass.known, &mut adjoints, (arrays, &mut written))?;
            }
        }
        // The gradient of an output that is an argument.
        for (v, adjoint) in &adjoints {
            if let Some(at) = self.argument(*v) {
                deliver(arrays, &mut written, at, adjoint)?;
            }
        }
        for (at, request) in arrays.bound.requests.iter().enumerate() {
            if let (GradReq::Write, false, Some(array)) = (request, written.contains(&at), &arrays.bound.gradients[at])
            {
                array.fill(0.0)?;
            }
        }
        let states = graph.outputs().iter().skip(self.outputs).map(|(_, v)| *v);
        for (v, at) in states.zip(&self.states) {
            let state = &arrays.bound.auxiliaries[*at].1;
            match graph.constant(v) {
                Some(data) => state.assign(&Tensor::from(data.clone()))?,
                None => {
                    let next = found(graph, &pass.known, v)?;
                    if !Arc::ptr_eq(next.view().chunk(), state.view().chunk()) {
                        next.copy_into(state)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Computes the gradients of the operands of a part. Gradients of arguments go to their arrays, others to the parts before. The
    /// first part that computes the gradient of an argument writes the array itself.
    fn part_backward(
        &self,
        rt: &Runtime,
        (at, part): (usize, &DividedPart),
        roles: &PartRoles,
        known: &BTreeMap<Value, NDArray>,
        adjoints: &mut BTreeMap<Value, NDArray>,
        (arrays, written): (Arrays<'_>, &mut BTreeSet<usize>),
    ) -> Result<(), Error> {
        let (graph, shape) = (self.model.graph(), &part.shape);
        let mut seeds = vec![];
        for v in roles.seeds() {
            let ty = found(graph, known, v)?.ty();
            seeds.push(match adjoints.get(&v) {
                Some(adjoint) => adjoint.clone(),
                None => rt.full(self.device, ty.dtype, &ty.dims, 0.0)?,
            });
        }
        let mut targets = vec![];
        for v in roles.wrt() {
            let argument = self.argument(v);
            let own = argument.filter(|at| arrays.bound.requests[*at] == GradReq::Write && written.insert(*at));
            let ty = found(graph, known, v)?.ty();
            targets.push(match own.and_then(|at| arrays.bound.gradients[at].clone()) {
                Some(array) => (v, array, true),
                None => (v, rt.empty(self.device, ty.dtype, &ty.dims)?, false),
            });
        }
        let (inputs, outputs) = (shape.inputs.len(), shape.outputs.len());
        let work = PhaseArrays {
            half: Some(Phase::Second),
            input: &|at| match at.checked_sub(inputs) {
                None => found(graph, known, shape.inputs[at]),
                Some(seed) => seeds.get(seed).cloned().ok_or_else(missing),
            },
            output: &|at| {
                let target = at.checked_sub(outputs).and_then(|at| targets.get(at));
                target.map(|(_, array, _)| array.clone()).ok_or_else(missing)
            },
        };
        self.launch(rt, part, &self.memory(at), &work)?;
        for (v, array, is_done) in targets {
            match self.argument(v) {
                _ if is_done => {}
                Some(at) => deliver(arrays, written, at, &array)?,
                None => add(adjoints, v, array)?,
            }
        }
        Ok(())
    }

    /// The position of the argument that a value is.
    fn argument(&self, v: Value) -> Option<usize> {
        let at = self.model.graph().inputs().iter().position(|node| *node == v.node)?;
        match self.input_roles[at] {
            GraphInputRole::Argument(argument) => Some(argument),
            _ => None,
        }
    }

    /// Pushes a phase of a part.
    fn launch(
        &self,
        rt: &Runtime,
        part: &DividedPart,
        memory: &SharedMemory,
        work: &PhaseArrays<'_>,
    ) -> Result<(), Error> {
        let plan = part.program.plan();
        let all = || Needs::all(plan.inputs.len(), 0, plan.outputs.len());
        let needs = work.half.and_then(|half| part.program.executable().needs(half)).cloned().unwrap_or_else(all);
        let (mut inputs, mut targets) = (vec![], vec![]);
        for at in &needs.inputs {
            let array = (work.input)(*at)?;
            array.settle()?;
            inputs.push(ArrayOperand::View(array.view().clone()));
        }
        for at in &needs.outputs {
            let array = (work.output)(*at)?;
            array.settle()?;
            targets.push(LaunchOutput::write(array.view().clone()));
        }
        let token = memory.token(rt, self.device)?.view().clone();
        targets.push(match work.half {
            Some(Phase::Second) => LaunchOutput::update(token),
            _ => LaunchOutput::write(token),
        });
        let request = ArrayLaunch::new(&self.name, self.device, inputs, targets);
        Ok(part.program.launch(rt.space(), request, work.half, [0, needs.outputs.len()])?)
    }
}

/// Refuses a graph whose nodes belong to several devices.
pub(super) fn refuse_devices(graph: &Graph) -> Error {
    refused(graph, graph.node_ids().into_iter().find(|node| graph.is_by_host(*node)), "such a graph runs on one device")
}

/// Refuses what needs one plan.
pub(super) fn refuse_step(graph: &Graph) -> Error {
    let open = |node: &NodeId| {
        (0..graph.node(*node).types.len() as u16).any(|port| graph.dense(Value { node: *node, port }).is_err())
    };
    let why = "a training step is no single plan; call `forward`, `backward` and the optimizer";
    refused(graph, graph.order().into_iter().find(open), why)
}

fn refused(graph: &Graph, node: Option<NodeId>, why: &str) -> Error {
    let operator = node.map_or("", |node| match &graph.node(node).kind {
        NodeKind::Op(op) => op.def.name,
        _ => "",
    });
    let error = Diagnostic::new(
        DiagnosticCode::Unsupported,
        format!("{operator}: the result's shape depends on values: {why}"),
    );
    node.map_or(error.clone(), |node| error.at(&graph.node(node).name)).into()
}

/// Adds to the gradient array of an argument. With [`GradReq::Write`], the first addend overwrites the array.
fn deliver(arrays: Arrays<'_>, written: &mut BTreeSet<usize>, at: usize, part: &NDArray) -> Result<(), Error> {
    let Some(gradient) = &arrays.bound.gradients[at] else { return Ok(()) };
    match arrays.bound.requests[at] == GradReq::Write && written.insert(at) {
        true => part.copy_into(gradient),
        false => (gradient + part)?.copy_into(gradient),
    }
}

/// Adds to the gradient of a value.
fn add(adjoints: &mut BTreeMap<Value, NDArray>, v: Value, part: NDArray) -> Result<(), Error> {
    let sum = match adjoints.get(&v) {
        Some(sum) => (sum + &part)?,
        None => part,
    };
    adjoints.insert(v, sum);
    Ok(())
}

/// The numbers of a source that have become known.
fn numbers(source: &ShapeSource, array: &NDArray) -> Result<DenseType, Error> {
    Ok(match source.kind {
        SourceKind::Elements => source.numbers_in(array.to_tensor()?.data()),
        SourceKind::Input | SourceKind::Result => array.ty(),
    })
}

fn output_type(part: &DividedPart, at: usize) -> DenseType {
    let plan = part.program.plan();
    let buffer = plan.buffer(plan.outputs[at]);
    DenseType::new(buffer.dtype, &buffer.dims)
}

fn found(graph: &Graph, known: &BTreeMap<Value, NDArray>, v: Value) -> Result<NDArray, Error> {
    let why = || Error::Internal(format!("`{}`: no part delivers what another needs", graph.node(v.node).name));
    known.get(&v).cloned().ok_or_else(why)
}

fn missing() -> Error {
    Error::Internal("a part reads or writes a tensor that it does not have".into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
