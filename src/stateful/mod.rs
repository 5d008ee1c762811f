//! Models whose state stays with the caller from one run to the next: caches of a decoder, hidden states of a recurrent network.

mod graph;
mod memory;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::{DType, DenseType, Dim, TensorData};
use tensorc_passes::values::StaticValues;
use tensorc_runtime::TensorMut;

use crate::error::Error;
use crate::model::{Model, by_name};
use crate::part_code::RunCode;
use crate::tensor::Tensor;
use graph::{StateInput, StatefulGraph};
pub use memory::States;

/// A state of a model: an output whose value is that of an input in the next run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The name of the input.
    pub input: String,
    /// The name of the output.
    pub output: String,
    /// The most elements along the axis that grows with each run; `None`: the state keeps its shape.
    pub capacity: Option<u64>,
    /// The axis that grows, if the types of input and output do not tell.
    pub axis: Option<usize>,
}

impl State {
    /// A state that keeps its shape, such as the hidden state of a recurrent network.
    pub fn new(input: impl Into<String>, output: impl Into<String>) -> State {
        State { input: input.into(), output: output.into(), capacity: None, axis: None }
    }

    /// A state that grows, such as the keys and values of attention: the output begins with the input, along one axis. There is
    /// memory for `capacity` elements along it.
    pub fn growing(input: impl Into<String>, output: impl Into<String>, capacity: u64) -> State {
        State { capacity: Some(capacity), ..State::new(input, output) }
    }
}

/// Lengths of states for which plans are made in advance are multiples of this step; at most so many are tried.
const LENGTH_STEP: u64 = 8;
const MAX_LENGTHS: usize = 512;

/// Extents of the inputs of a run: the number, or that the extent equals the new length of the states.
type InputExtents = Vec<Option<u64>>;

/// A model some of whose inputs and outputs are states. Any number of [`States`] go with it.
pub struct StatefulModel {
    model: Model,
    states: Vec<StateInput>,
    /// Positions of the length inputs: their last extent is the length of the states that grow along one dimension.
    lengths: Vec<usize>,
    /// Positions of all other inputs.
    inputs: Vec<usize>,
    /// Extents of inputs for which plans of all lengths are compiled.
    prepared: Mutex<BTreeSet<InputExtents>>,
    /// Shared with its [`States`].
    identity: Arc<()>,
}

impl Model {
    /// The model with outputs as the next values of inputs. They are inputs and outputs no more: [`States`] hold them from one run to
    /// the next. A state that grows lies in memory of its capacity, and each run writes what is new there.
    ///
    /// # Errors
    /// A name is none of the model; the type of an output is not that of its input but for one axis that grows; or the model has
    /// branches or sequences that its inputs decide ([`Model::has_branches`], [`Model::has_lists`]), or runs on a GPU.
    pub fn stateful(&self, states: &[State]) -> Result<StatefulModel, Error> {
        self.refuse_text_operators()?;
        if let Some(first) = states.first()
            && (self.has_branches() || self.has_lists() || self.compiler().gpu().is_some())
        {
            let why = match self.compiler().gpu() {
                Some(_) => "belongs to a model that runs on a GPU, where states are not supported",
                None => {
                    "belongs to a model whose inputs decide what it consists of: fix them with `Model::with_values`"
                }
            };
            let (input, output) = (first.input.clone(), first.output.clone());
            return Err(Error::State { input, output, why: why.to_owned() });
        }
        let compiler = self.compiler().clone();
        let static_bytes = compiler.options().passes.static_bytes;
        let StatefulGraph { graph, states, lengths } =
            StatefulGraph::new(self.graph(), states, compiler.registry(), static_bytes)?;
        let own = |i: &usize| !lengths.contains(i) && states.iter().all(|state| state.position != *i);
        let inputs = (0..graph.inputs().len()).filter(own).collect();
        Ok(StatefulModel {
            model: Model::on_states(compiler, graph),
            states,
            lengths,
            inputs,
            prepared: Mutex::default(),
            identity: Arc::default(),
        })
    }
}

impl StatefulModel {
    /// The names of the inputs that a run takes.
    pub fn inputs(&self) -> Vec<String> {
        self.inputs.iter().map(|i| self.input_name(*i).to_owned()).collect()
    }

    fn input_name(&self, position: usize) -> &str {
        &self.graph().node(self.graph().inputs()[position]).name
    }

    /// The graph with the states as updated inputs. A state that grows has the extent of its capacity; its length is the last extent
    /// of a further input.
    pub fn graph(&self) -> &Graph {
        self.model.graph()
    }

    /// Runs on named inputs and the states, which it advances. Returns the outputs that are no states, by name.
    ///
    /// # Errors
    /// As [`Model::run`]. [`Error::StateFull`]: a state has no room for the new elements. [`Error::StateValue`]: states that grow
    /// together have different lengths, or belong to another model. If the run itself fails, states that grow keep their length, and
    /// the values of others are not defined.
    pub fn run(&self, states: &mut States, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>, Error> {
        let names = self.inputs();
        let given = by_name(|| names.iter().map(String::as_str), |_| false, inputs)?;
        let before = self.lengths(states)?;
        self.allocate(states, &given)?;
        let types = self.types(&before, states, given.iter().map(|tensor| tensor.data().ty.clone()));
        let code = self.model.code(&types).map_err(|error| self.explained(error, &types))?;
        let mut outputs = self.execute(&code, states, &before, &given)?;
        if !self.lengths.is_empty()
            && let Some((_, lengths)) = outputs.pop()
        {
            self.advance(states, &counts(lengths.data()));
            self.prepare(&before, states, &given);
        }
        Ok(outputs)
    }

    fn value(&self, position: usize) -> Value {
        Value { node: self.graph().inputs()[position], port: 0 }
    }

    fn refused(&self, at: usize, why: &str) -> Error {
        Error::StateValue { name: self.states[at].name.clone(), why: why.to_owned() }
    }

    fn full(&self, at: usize, wanted: u64) -> Error {
        let capacity = self.states[at].growth.map_or(0, |growth| growth.capacity);
        Error::StateFull { name: self.states[at].name.clone(), capacity, wanted }
    }

    /// Types of all inputs, in signature order.
    fn types(&self, lengths: &[u64], states: &States, given: impl Iterator<Item = DenseType>) -> Vec<DenseType> {
        let of_states = self.states.iter().map(|state| state.position).zip(states.types());
        let length = |(position, length): (&usize, &u64)| (*position, DenseType::new(DType::F32, [0, *length]));
        let lengths = self.lengths.iter().zip(lengths).map(length);
        let all: BTreeMap<usize, DenseType> =
            self.inputs.iter().copied().zip(given).chain(of_states).chain(lengths).collect();
        all.into_values().collect()
    }

    /// Compiles the plans of later runs with inputs of the same extents, for all lengths up to the capacity: which plan holds depends on
    /// the length. An extent that equals the new length grows with it, as that of a mask does.
    fn prepare(&self, before: &[u64], states: &States, given: &[Tensor]) {
        let Ok(after) = self.lengths(states) else { return };
        let [from, now] = [before, &after].map(|lengths| lengths.iter().copied().max().unwrap_or(0));
        if from == 0 || now <= from {
            return;
        }
        let all: Vec<InputExtents> = self.inputs.iter().zip(given).map(|(i, t)| self.extents(*i, t, now)).collect();
        if !self.prepared.lock().unwrap_or_else(PoisonError::into_inner).insert(all.concat()) {
            return;
        }
        let capacity = self.states.iter().filter_map(|state| Some(state.growth?.capacity)).min().unwrap_or(0);
        let (grown, most) = (now - from, capacity.saturating_sub(now - from));
        // A plan often holds from some length on, or for all lengths but one that equals another extent.
        let tried = |length: &u64| (length + grown).is_multiple_of(LENGTH_STEP) || *length == now || *length == most;
        for length in (now..=most).filter(tried).take(MAX_LENGTHS) {
            let like = |(tensor, dims): (&Tensor, &InputExtents)| {
                let dims = dims.iter().map(|n| n.unwrap_or(length + grown));
                DenseType::new(tensor.dtype(), dims.collect::<Vec<u64>>())
            };
            let lengths: Vec<u64> = after.iter().map(|n| if *n == now { length } else { *n }).collect();
            // A failure is reported by the run that needs the plan.
            drop(self.model.code(&self.types(&lengths, states, given.iter().zip(&all).map(like))));
        }
    }

    /// The extents of an input of a run after which states have a length.
    fn extents(&self, position: usize, tensor: &Tensor, length: u64) -> InputExtents {
        let declared = self.graph().resolved(self.value(position));
        let open = |axis: usize| declared.shape.dims().is_none_or(|d| matches!(d.get(axis), Some(Dim::Sym(_))));
        let dims = tensor.dims().iter().enumerate();
        dims.map(|(axis, n)| (*n != length || !open(axis)).then_some(*n)).collect()
    }

    /// [`Error::StateFull`] in place of the error of a compilation that fails because a state has no room.
    fn explained(&self, error: Error, types: &[DenseType]) -> Error {
        let growing = self.states.iter().enumerate().filter_map(|(at, state)| Some((at, state.growth?.capacity)));
        let after = self.inferred_lengths(types).unwrap_or_default();
        let full = growing.zip(after).find(|((_, capacity), length)| length > capacity);
        full.map_or(error, |((at, _), length)| self.full(at, length))
    }

    /// The lengths of states that grow after a run, in the order of the states.
    fn inferred_lengths(&self, types: &[DenseType]) -> Option<Vec<u64>> {
        let mut graph = self.graph().clone();
        graph.clear_updates();
        let (_, lengths) = graph.outputs().last().filter(|_| !self.lengths.is_empty())?.clone();
        graph.set_outputs([(graph::LENGTHS.into(), lengths)]);
        graph.remove_dead();
        tensorc_passes::infer::bind(&mut graph, types).ok()?;
        let compiler = self.model.compiler();
        let static_bytes = compiler.options().passes.static_bytes;
        tensorc_passes::infer::infer_graph(&mut graph, compiler.registry(), static_bytes).ok()?;
        let values = StaticValues::new(compiler.registry(), static_bytes);
        Some(counts(&values.get(&graph, graph.outputs()[0].1)?))
    }

    /// Runs code on states in place.
    fn execute(
        &self,
        code: &RunCode,
        states: &mut States,
        lengths: &[u64],
        given: &[Tensor],
    ) -> Result<Vec<(String, Tensor)>, Error> {
        let lengths = lengths.iter().map(|n| Tensor::from_bytes(DType::F32, &[0, *n], vec![]));
        let lengths: Vec<Tensor> = lengths.collect::<Result<_, _>>()?;
        let own = self.inputs.iter().copied().zip(given);
        let inputs: BTreeMap<usize, &Tensor> = own.chain(self.lengths.iter().copied().zip(&lengths)).collect();
        let inputs: Vec<_> = inputs.into_values().map(Tensor::as_ref).collect();
        let (run, tensors) = states.parts();
        let memory: BTreeMap<usize, TensorMut<'_>> =
            self.states.iter().map(|state| state.position).zip(tensors).collect();
        let mut memory: Vec<TensorMut<'_>> = memory.into_values().collect();
        let outputs = code.run_on_states(run, &inputs, &mut memory)?;
        Ok(code.outputs().iter().cloned().zip(outputs).collect())
    }
}

/// Elements of a tensor of lengths.
fn counts(data: &TensorData) -> Vec<u64> {
    data.to_i64s().into_iter().map(|n| n.max(0) as u64).collect()
}
