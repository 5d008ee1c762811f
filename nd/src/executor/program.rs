//! A training graph compiled and run over arrays: one piece, or one for each device.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use tensorc_abi::{Arg, Plan, StorageClass};
use tensorc_ir::DenseType;
use tensorc_ir::graph::{Graph, Value};
use tensorc_runtime::Device;
use tensorc_runtime::array::{ArrayLaunch, ArrayOperand, Extents, LaunchOutput};
use tensorc_runtime::engine::OpName;
use tensorc_runtime::plan::{Needs, Phase};

use super::binder::Bound;
use super::memory::SharedMemory;
use super::place::{DevicePiece, InputRole, Placement, ProgramPhase, place};
use super::training_graph::{GraphInputRole, OutputRole, TrainingGraph};
use crate::error::Error;
use crate::ndarray::{NDArray, Runtime};
use tensorc::Program;

/// The keys of random nodes for one forward pass and the backward pass after it.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys(Bytes);

impl Keys {
    /// New keys for random nodes.
    pub fn draw(rt: &Runtime, device: Device, nodes: u64) -> Keys {
        let words = (0..nodes).flat_map(|_| rt.next_key(device));
        Keys(words.flat_map(u32::to_le_bytes).collect())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The arrays a run works on.
#[derive(Clone, Copy)]
pub(super) struct Arrays<'a> {
    pub bound: &'a Bound,
    pub outputs: &'a [NDArray],
    pub heads: &'a [&'a NDArray],
    pub step: Option<&'a OptimizerInputs>,
}

/// What a step of the optimizer works on besides.
#[derive(Clone, Debug)]
pub(super) struct OptimizerInputs {
    /// States by argument.
    pub states: Vec<Vec<NDArray>>,
    /// Bytes of the table of numbers, `f32[arguments, numbers]`.
    pub numbers: Bytes,
}

/// Planned memory of a program besides its arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedMemory {
    /// What a run takes: intermediate values, and working memory for every thread of the compiler's pool.
    pub run_bytes: u64,
    /// The least that `run_bytes` could be in the order of the plan.
    pub run_lower_bound_bytes: u64,
    /// Intermediate values alone.
    pub arena_bytes: u64,
    /// Most bytes of intermediate values live at once in the order of the plan.
    pub lower_bound_bytes: u64,
    /// Kernel launches and library calls.
    pub steps: usize,
    /// Steps of the forward pass whose result takes the place of an operand.
    pub in_place: usize,
}

/// A graph with the meaning of its inputs and outputs, compiled when it first runs.
pub(super) struct PlacedGraph {
    input_roles: Vec<GraphInputRole>,
    feed_types: Vec<DenseType>,
    output_roles: Vec<OutputRole>,
    heads: Vec<usize>,
    outputs: Vec<(String, DenseType)>,
    parts: Vec<Part>,
    /// Arrays that pieces pass on to each other, on the device of the piece that makes them.
    crossings: Vec<NDArray>,
    /// Copies of arrays on the devices of pieces that use them there.
    copies: Mutex<BTreeMap<(InputRole, Device), NDArray>>,
}

/// A piece with its code.
struct Part {
    piece: DevicePiece,
    name: OpName,
    /// Positions among the piece's inputs of the plan's inputs, and of its states.
    inputs: Vec<usize>,
    states: Vec<usize>,
    code: OnceLock<Arc<Program>>,
}

impl Part {
    fn new(piece: DevicePiece) -> Part {
        let graph = &piece.graph;
        let updated = |at: &usize| graph.updates().iter().any(|(of, _)| *of == graph.inputs()[*at]);
        let (states, inputs) = (0..graph.inputs().len()).partition(updated);
        Part { name: OpName::from(graph.name.clone()), inputs, states, code: OnceLock::new(), piece }
    }
}

/// One operation of the engine, being put together.
struct ProgramLaunch {
    inputs: Vec<ArrayOperand>,
    targets: Vec<LaunchOutput>,
    states: usize,
    outputs: usize,
    /// Results to be copied to where they belong afterwards.
    deliveries: Vec<(NDArray, NDArray)>,
}

impl PlacedGraph {
    /// Divides the graph if its nodes belong to several devices.
    pub fn new(
        rt: &Runtime,
        training_graph: TrainingGraph,
        node_devices: &BTreeMap<String, Device>,
        device: Device,
    ) -> Result<PlacedGraph, Error> {
        let graph = &training_graph.graph;
        let outputs = graph.outputs().iter().map(|(name, v)| Ok((name.to_string(), graph.dense(*v)?)));
        let outputs = outputs.collect::<Result<Vec<_>, Error>>()?;
        let types = graph.inputs().iter().map(|n| graph.dense(Value { node: *n, port: 0 }));
        let feed_types = types.collect::<Result<Vec<_>, _>>()?;
        let placement = match node_devices.values().any(|d| *d != device) {
            true => place(&training_graph, node_devices, device)?,
            false => Placement::single(training_graph.graph, device),
        };
        let mut crossings = vec![];
        for (ty, device) in &placement.crossings {
            crossings.push(rt.empty(*device, ty.dtype, &ty.dims)?);
        }
        Ok(PlacedGraph {
            input_roles: training_graph.input_roles,
            feed_types,
            output_roles: training_graph.output_roles,
            heads: training_graph.heads,
            outputs,
            parts: placement.pieces.into_iter().map(Part::new).collect(),
            crossings,
            copies: Mutex::default(),
        })
    }

    /// Outputs whose gradients must be given.
    pub fn heads(&self) -> &[usize] {
        &self.heads
    }

    /// Names and types of the graph's outputs.
    pub fn outputs(&self) -> &[(String, DenseType)] {
        &self.outputs
    }

    /// Memory of the compiled plans.
    pub fn planned(&self, rt: &Runtime, memory: &SharedMemory) -> Result<PlannedMemory, Error> {
        let mut total = PlannedMemory::default();
        for part in &self.parts {
            let code = self.code(rt, part, memory)?;
            let (plan, workers) = (code.plan(), rt.compiler().pool().threads());
            total.run_bytes += plan.run_bytes(workers);
            total.run_lower_bound_bytes += plan.run_lower_bound_bytes(workers);
            total.arena_bytes += plan.arena_bytes;
            total.lower_bound_bytes += plan.lower_bound_bytes;
            total.steps += plan.steps.len();
            let forward = (0..plan.steps.len()).filter(|at| !plan.in_second_phase(*at));
            total.in_place += forward.filter(|at| is_in_place(plan, *at)).count();
        }
        Ok(total)
    }

    /// Arguments in the order in which the backward phase is done with their gradients. Those missing are added to.
    pub fn gradients_in_order(&self, rt: &Runtime, memory: &SharedMemory) -> Result<Vec<usize>, Error> {
        let mut order = vec![];
        for part in &self.parts {
            let outputs = self.code(rt, part, memory)?.executable().outputs_in_order(Phase::Second);
            order.extend(outputs.into_iter().filter_map(|output| match part.piece.outputs[output] {
                InputRole::Output(at) => match self.output_roles[at] {
                    OutputRole::Gradient(argument) => Some(argument),
                    OutputRole::Output(_) => None,
                },
                _ => None,
            }));
        }
        Ok(order)
    }

    /// New keys for all random nodes.
    pub fn draw_keys(&self, rt: &Runtime, device: Device) -> Keys {
        let at = self.input_roles.iter().position(|feed| *feed == GraphInputRole::Keys);
        Keys::draw(rt, device, at.map_or(0, |at| self.feed_types[at].dims[0]))
    }

    /// Pushes a run, or a phase of one.
    pub fn launch(
        &self,
        rt: &Runtime,
        arrays: Arrays<'_>,
        keys: &Keys,
        phase: ProgramPhase,
        memory: &SharedMemory,
    ) -> Result<(), Error> {
        for part in &self.parts {
            let piece = &part.piece;
            if piece.phase.is_some_and(|of| of != phase) {
                continue;
            }
            let code = self.code(rt, part, memory)?;
            let half = match (piece.graph.boundary(), phase) {
                (Some(_), ProgramPhase::Forward) => Some(Phase::First),
                (Some(_), ProgramPhase::Backward) => Some(Phase::Second),
                _ => None,
            };
            let mut work = self.gather(rt, part, half.and_then(|half| code.executable().needs(half)), arrays, keys)?;
            if self.parts.len() == 1 {
                let token = memory.token(rt, piece.device)?.view().clone();
                // A new pass forgets that the one before failed.
                let target = if phase == ProgramPhase::Backward { LaunchOutput::update } else { LaunchOutput::write };
                work.targets.push(target(token));
            }
            let ProgramLaunch { inputs, targets, states, outputs, deliveries } = work;
            let request = ArrayLaunch::new(&part.name, piece.device, inputs, targets);
            code.launch(rt.space(), request, half, [states, outputs])?;
            for (from, to) in deliveries {
                from.copy_into(&to)?;
            }
        }
        Ok(())
    }

    /// The code of a part, compiled at its first run. The only one has its intermediate values in the memory given.
    fn code<'p>(&self, rt: &Runtime, part: &'p Part, memory: &SharedMemory) -> Result<&'p Arc<Program>, Error> {
        if let Some(code) = part.code.get() {
            return Ok(code);
        }
        let program = Program::compile(&rt.compiler().on(part.piece.device)?, part.piece.graph.clone())?;
        let program = program.in_turns((self.parts.len() == 1).then(|| memory.arena()))?;
        Ok(part.code.get_or_init(|| Arc::new(program)))
    }

    fn gather(
        &self,
        rt: &Runtime,
        part: &Part,
        needs: Option<&Needs>,
        arrays: Arrays<'_>,
        keys: &Keys,
    ) -> Result<ProgramLaunch, Error> {
        let piece = &part.piece;
        let all = || Needs::all(part.inputs.len(), part.states.len(), piece.outputs.len());
        let needs = needs.cloned().unwrap_or_else(all);
        let mut work = ProgramLaunch { inputs: vec![], targets: vec![], states: 0, outputs: 0, deliveries: vec![] };
        let read = needs.inputs.iter().map(|i| part.inputs[*i]);
        for at in read.chain(needs.read_states.iter().map(|s| part.states[*s])) {
            let slot = piece.inputs[at];
            work.inputs.push(match self.source(slot, keys, arrays)? {
                Some(source) => source,
                None => {
                    let array = self.array(slot, arrays)?;
                    let array = self.brought(rt, slot, array, piece.device)?;
                    ArrayOperand::View(array.view().clone())
                }
            });
        }
        for s in &needs.states {
            let array = self.array(piece.inputs[part.states[*s]], arrays)?;
            if array.device() != piece.device {
                let (first, second) = (array.device(), piece.device);
                return Err(Error::Devices { op: format!("update of {array:?}"), first, second });
            }
            array.settle()?;
            work.targets.push(LaunchOutput::update(array.view().clone()));
        }
        for o in &needs.outputs {
            let slot = piece.outputs[*o];
            let array = self.array(slot, arrays)?;
            array.settle()?;
            let target = match array.device() == piece.device {
                true => array.clone(),
                false => {
                    let made = self.copy_of(rt, slot, array, piece.device)?;
                    work.deliveries.push((made.clone(), array.clone()));
                    made
                }
            };
            work.targets.push(LaunchOutput::write(target.view().clone()));
        }
        (work.states, work.outputs) = (needs.states.len(), needs.outputs.len());
        Ok(work)
    }

    /// What is handed over by value.
    fn source(&self, slot: InputRole, keys: &Keys, arrays: Arrays<'_>) -> Result<Option<ArrayOperand>, Error> {
        let InputRole::Input(at) = slot else { return Ok(None) };
        let data = match (self.input_roles[at], arrays.step) {
            (GraphInputRole::Keys, _) => keys.0.clone(),
            (GraphInputRole::Numbers, Some(step)) => step.numbers.clone(),
            _ => return Ok(None),
        };
        let DenseType { dtype, dims } = &self.feed_types[at];
        if data.len() as u64 != self.feed_types[at].len() * dtype.size() as u64 {
            return Err(Error::Internal(format!("{} bytes are given for {}", data.len(), self.feed_types[at])));
        }
        Ok(Some(ArrayOperand::Host { dtype: *dtype, dims: Extents::from_slice(dims), data }))
    }

    fn array<'a>(&'a self, slot: InputRole, arrays: Arrays<'a>) -> Result<&'a NDArray, Error> {
        let found = match slot {
            InputRole::Crossing(at) => self.crossings.get(at),
            InputRole::Output(at) => match self.output_roles[at] {
                OutputRole::Output(at) => arrays.outputs.get(at),
                OutputRole::Gradient(at) => arrays.bound.gradients[at].as_ref(),
            },
            InputRole::Input(at) => match self.input_roles[at] {
                GraphInputRole::Argument(at) => Some(&arrays.bound.arguments[at].1),
                GraphInputRole::Auxiliary(at) => Some(&arrays.bound.auxiliaries[at].1),
                GraphInputRole::Head(at) => arrays.heads.get(at).copied(),
                GraphInputRole::Gradient(at) => arrays.bound.gradients[at].as_ref(),
                GraphInputRole::State(at, state) => arrays.step.and_then(|step| step.states.get(at)?.get(state)),
                GraphInputRole::Keys | GraphInputRole::Numbers => None,
            },
        };
        found.ok_or_else(|| Error::Internal(format!("no array is bound to {slot:?} of a program")))
    }

    /// The array on a device: itself, or a copy made by an operation of the engine.
    fn brought(&self, rt: &Runtime, slot: InputRole, array: &NDArray, device: Device) -> Result<NDArray, Error> {
        if array.device() == device {
            array.settle()?;
            return Ok(array.clone());
        }
        let copy = self.copy_of(rt, slot, array, device)?;
        array.copy_into(&copy)?;
        Ok(copy)
    }

    /// An array like another, on a device, for one slot.
    fn copy_of(&self, rt: &Runtime, slot: InputRole, like: &NDArray, device: Device) -> Result<NDArray, Error> {
        let mut copies = lock(&self.copies);
        if let Some(copy) = copies.get(&(slot, device)) {
            return Ok(copy.clone());
        }
        let made = rt.empty(device, like.dtype(), like.dims())?;
        copies.insert((slot, device), made.clone());
        Ok(made)
    }
}

/// Whether a step writes arena memory that another buffer it reads lies in.
fn is_in_place(plan: &Plan, step: usize) -> bool {
    let args = plan.steps[step].op.args();
    let offset = |arg: &Arg| match plan.buffer(arg.buffer).storage {
        StorageClass::Arena(at) if !plan.buffer(arg.buffer).is_empty() => Some(at),
        _ => None,
    };
    args.iter()
        .filter(|w| w.writes && offset(w).is_some())
        .any(|w| args.iter().any(|r| !r.writes && r.buffer != w.buffer && offset(r) == offset(w)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Placement {
    /// Everything on one device.
    fn single(graph: Graph, device: Device) -> Placement {
        let inputs = (0..graph.inputs().len()).map(InputRole::Input).collect();
        let outputs = (0..graph.outputs().len()).map(InputRole::Output).collect();
        Placement { pieces: vec![DevicePiece { graph, device, phase: None, inputs, outputs }], crossings: vec![] }
    }
}
