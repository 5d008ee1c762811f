//! Models whose state stays with the caller from one run to the next: caches of a decoder, hidden states of a recurrent network.

mod graph;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::{DType, DenseType, Dim, DimId, Shape, TensorData};
use tensorc_passes::values::StaticValues;
use tensorc_runtime::{AlignedBuffer, TensorMut};

use crate::error::Error;
use crate::model::Model;
use crate::part_code::{RunCode, StatefulRun};
use crate::tensor::Tensor;
use graph::{Growth, StateInput, StatefulGraph};

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

/// Which lengths of states are looked at for plans, and how many at most.
const LENGTH_STEP: u64 = 8;
const MAX_LENGTHS: usize = 512;

/// Of open extents of inputs, whether they are at least as large as what is filled, and by how much, or what they are.
type InputExtents = Vec<(bool, u64)>;

/// A model some of whose inputs and outputs are states. Any number of [`States`] go with it.
pub struct StatefulModel {
    model: Model,
    states: Vec<StateInput>,
    /// Positions of the inputs whose last extent is how much of states is filled.
    lengths: Vec<usize>,
    /// Positions of all other inputs.
    inputs: Vec<usize>,
    /// By how much runs with such inputs fill states that grow, in their order.
    growth: Mutex<BTreeMap<InputExtents, Vec<u64>>>,
}

/// The states of one sequence of runs of a [`StatefulModel`]. Nothing is filled at first; what does not grow is 0.
#[derive(Default)]
pub struct States {
    /// How much is filled, by length input.
    lengths: Vec<u64>,
    /// Since the first run, or since a state was set: by state.
    memory: Vec<Option<StateMemory>>,
    /// Of runs.
    run: StatefulRun,
}

struct StateMemory {
    ty: DenseType,
    data: AlignedBuffer,
}

impl Model {
    /// The model with outputs as the next values of inputs. They are inputs and outputs no more: [`States`] hold them from one run to
    /// the next. A state that grows lies in memory of its capacity, and each run writes what is new there.
    ///
    /// # Errors
    /// A name is none of the model; the type of an output is not that of its input but for one axis that grows; or the model has
    /// branches or sequences that its inputs decide ([`Model::has_branches`], [`Model::has_lists`]), or runs on a GPU.
    pub fn stateful(&self, states: &[State]) -> Result<StatefulModel, Error> {
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
            growth: Mutex::default(),
        })
    }
}

impl StatefulModel {
    /// States of a new sequence, empty.
    pub fn states(&self) -> States {
        let memory = self.states.iter().map(|_| None).collect();
        States { lengths: vec![0; self.lengths.len()], memory, run: StatefulRun::default() }
    }

    /// The names of the inputs that a run takes.
    pub fn inputs(&self) -> Vec<String> {
        let name = |i: &usize| self.graph().node(self.graph().inputs()[*i]).name.to_string();
        self.inputs.iter().map(name).collect()
    }

    /// The graph with the states: growing ones are memory with room, and their lengths extents of further inputs.
    pub fn graph(&self) -> &Graph {
        self.model.graph()
    }

    /// How many elements a state has along the axis in which it grows; `None` if it does not grow, or there is none of this name.
    pub fn len(&self, states: &States, input: &str) -> Option<u64> {
        let growth = self.states.iter().find(|state| state.name == input)?.growth?;
        states.lengths.get(growth.length).copied()
    }

    /// Forgets what states hold beyond `len` elements along the axes in which they grow: the next run goes on from there. Where less
    /// is filled, nothing changes.
    pub fn truncate(&self, states: &mut States, len: u64) {
        states.lengths.iter_mut().for_each(|filled| *filled = len.min(*filled));
    }

    /// Runs on named inputs and the states, which it advances. Returns the outputs that are no states, by name.
    ///
    /// # Errors
    /// As [`Model::run`]: states that grow are as before then, others are not defined. A state has no room for what is new: all are as
    /// before.
    pub fn run(&self, states: &mut States, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>, Error> {
        let given = self.ordered(inputs)?;
        self.allocate(states, &given)?;
        let is_new = self.admit(states, &given)?;
        let code = self.code(states, &given)?;
        let mut outputs = self.execute(&code, states, &given)?;
        if !self.lengths.is_empty()
            && let Some((_, lengths)) = outputs.pop()
        {
            let before = states.lengths.clone();
            self.advance(states, &lengths)?;
            if is_new {
                self.prepare(&before, states, &given);
            }
        }
        Ok(outputs)
    }

    /// A copy of a state, as the model's input has it.
    ///
    /// # Errors
    /// There is no such state, or no value yet.
    pub fn get(&self, states: &States, input: &str) -> Result<Tensor, Error> {
        let at = self.position(input)?;
        let Some(StateMemory { ty, data }) = &states.memory[at] else {
            return Err(self.refused(at, "has no value before the first run"));
        };
        let Some(growth) = self.states[at].growth else {
            return Tensor::from_bytes(ty.dtype, &ty.dims, data.as_slice().to_vec());
        };
        let (filled, mut dims) = (states.lengths[growth.length], ty.dims.to_vec());
        dims[growth.axis] = filled;
        let [row, run] = rows(ty, growth.axis, filled);
        let bytes: Vec<u8> = data.as_slice().chunks(row.max(1)).flat_map(|row| &row[..run]).copied().collect();
        Tensor::from_bytes(ty.dtype, &dims, bytes)
    }

    /// Sets a state to a value of the type of the model's input. States that grow together must be set to the same length.
    ///
    /// # Errors
    /// There is no such state, or the value has another type, or more elements than there is room for.
    pub fn set(&self, states: &mut States, input: &str, value: &Tensor) -> Result<(), Error> {
        let at = self.position(input)?;
        let mut ty = value.data().ty.clone();
        let declared = self.graph().resolved(self.value(self.states[at].position));
        let growth = self.states[at].growth;
        if let Some(Growth { axis, capacity, .. }) = growth {
            let filled = ty.dims.get(axis).copied().unwrap_or(0);
            if filled > capacity {
                return Err(self.full(at, filled));
            }
            if axis < ty.rank() {
                ty.dims.set(axis, capacity + 1);
            }
        }
        let fits = |dims: &[Dim]| dims.iter().zip(&ty.dims).all(|(d, n)| d.as_const().is_none_or(|known| known == *n));
        let known = declared.shape.dims().is_some_and(|dims| dims.len() == ty.rank() && fits(dims));
        if declared.dtype.is_some_and(|dtype| dtype != ty.dtype) || !known {
            return Err(self.refused(at, &format!("cannot be set to a tensor of type {}", value.data().ty)));
        }
        let mut data = AlignedBuffer::zeroed(ty.bytes(), "a state")?;
        match growth {
            None => data.as_mut_slice().copy_from_slice(value.bytes()),
            Some(Growth { axis, length, .. }) => {
                let filled = value.dims()[axis];
                let [row, run] = rows(&ty, axis, filled);
                let rows = data.as_mut_slice().chunks_mut(row.max(1)).zip(value.bytes().chunks(run.max(1)));
                rows.for_each(|(row, value)| row[..value.len()].copy_from_slice(value));
                states.lengths[length] = filled;
            }
        }
        states.memory[at] = Some(StateMemory { ty, data });
        Ok(())
    }

    fn value(&self, position: usize) -> Value {
        Value { node: self.graph().inputs()[position], port: 0 }
    }

    fn position(&self, input: &str) -> Result<usize, Error> {
        let names = || self.states.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.states.iter().position(|state| state.name == input);
        found.ok_or_else(|| Error::UnknownInput { name: input.to_owned(), expected: names() })
    }

    fn refused(&self, at: usize, why: &str) -> Error {
        Error::StateValue { name: self.states[at].name.clone(), why: why.to_owned() }
    }

    fn full(&self, at: usize, wanted: u64) -> Error {
        let capacity = self.states[at].growth.map_or(0, |growth| growth.capacity);
        Error::StateFull { name: self.states[at].name.clone(), capacity, wanted }
    }

    /// The inputs of a run, in the order of the signature.
    fn ordered(&self, inputs: &[(&str, Tensor)]) -> Result<Vec<Tensor>, Error> {
        let names = self.inputs();
        if let Some((name, _)) = inputs.iter().find(|(name, _)| !names.iter().any(|n| n == name)) {
            return Err(Error::UnknownInput { name: (*name).to_owned(), expected: names.join(", ") });
        }
        let find = |name: &String| {
            let found = inputs.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
            found.ok_or_else(|| Error::MissingInput { name: name.clone(), expected: names.join(", ") })
        };
        names.iter().map(find).collect()
    }

    /// Makes memory for states that have none, of the extents that the inputs have.
    fn allocate(&self, states: &mut States, given: &[Tensor]) -> Result<(), Error> {
        if states.memory.iter().all(Option::is_some) {
            return Ok(());
        }
        let mut known: BTreeMap<DimId, u64> = BTreeMap::new();
        let set = states.memory.iter().zip(&self.states);
        let set = set.filter_map(|(memory, state)| Some((state.position, &memory.as_ref()?.ty.dims[..])));
        let inputs = self.inputs.iter().copied().zip(given.iter().map(Tensor::dims));
        for (position, dims) in inputs.chain(set) {
            let declared = self.graph().resolved(self.value(position));
            for (dim, n) in declared.shape.dims().into_iter().flatten().zip(dims) {
                if let Dim::Sym(id) = dim {
                    known.insert(*id, *n);
                }
            }
        }
        for (at, state) in self.states.iter().enumerate() {
            if states.memory[at].is_some() {
                continue;
            }
            let declared = self.graph().resolved(self.value(state.position));
            let extent = |dim: &Dim| match dim {
                Dim::Sym(id) => known.get(id).copied(),
                known => known.as_const(),
            };
            let dims: Option<Vec<u64>> = match &declared.shape {
                Shape::Ranked(dims) => dims.iter().map(extent).collect(),
                Shape::Unranked => None,
            };
            let dims = dims.ok_or_else(|| self.refused(at, "has extents that no input tells: set it first"))?;
            let ty = DenseType::new(declared.dtype.unwrap_or(DType::F32), dims);
            let data = AlignedBuffer::zeroed(ty.bytes(), "a state")?;
            states.memory[at] = Some(StateMemory { ty, data });
        }
        Ok(())
    }

    /// The code for these inputs and states.
    fn code(&self, states: &States, given: &[Tensor]) -> Result<Arc<RunCode>, Error> {
        let given = given.iter().map(|tensor| tensor.data().ty.clone());
        let types = self.types(&states.lengths, states, given);
        self.model.code(&types)
    }

    /// Types of all inputs, for states that are filled so far.
    fn types(&self, lengths: &[u64], states: &States, given: impl Iterator<Item = DenseType>) -> Vec<DenseType> {
        let memory = self.states.iter().zip(states.memory.iter().flatten());
        let of_states = memory.map(|(state, memory)| (state.position, memory.ty.clone()));
        let length = |(position, filled): (&usize, &u64)| (*position, DenseType::new(DType::F32, [0, *filled]));
        let lengths = self.lengths.iter().zip(lengths).map(length);
        let all: BTreeMap<usize, DenseType> =
            self.inputs.iter().copied().zip(given).chain(of_states).chain(lengths).collect();
        all.into_values().collect()
    }

    /// Refuses a run for which a state has no room. Whether inputs like these have not come up before.
    fn admit(&self, states: &States, given: &[Tensor]) -> Result<bool, Error> {
        if self.lengths.is_empty() {
            return Ok(false);
        }
        let filled = states.lengths.iter().copied().max().unwrap_or(0);
        let like = |(position, tensor): (&usize, &Tensor)| {
            let dims = self.open_extents(*position, tensor).map(|n| n.checked_sub(filled).ok_or(n));
            dims.map(|more| more.map_or_else(|n| (false, n), |more| (true, more))).collect::<InputExtents>()
        };
        let like: InputExtents = self.inputs.iter().zip(given).flat_map(like).collect();
        let growing = self.states.iter().filter_map(|state| state.growth);
        let before: Vec<u64> = growing.map(|growth| states.lengths[growth.length]).collect();
        let mut known = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !known.contains_key(&like);
        if is_new {
            let given = given.iter().map(|tensor| tensor.data().ty.clone());
            // What cannot be inferred is an error of the compilation.
            let Some(after) = self.new_lengths(&self.types(&states.lengths, states, given)) else { return Ok(true) };
            let more = after.iter().zip(&before).map(|(after, before)| after.saturating_sub(*before));
            known.insert(like.clone(), more.collect());
        }
        let more = known.get(&like).map_or(&[][..], Vec::as_slice);
        let after: Vec<u64> = before.iter().zip(more).map(|(before, more)| before.saturating_add(*more)).collect();
        self.too_long(&after).map_or(Ok(is_new), Err)
    }

    /// Compiles what later runs with inputs like these need, for all lengths up to the capacity: which plans there are depends on the
    /// length. Extents that are as large as what is filled now grow with it, as those of masks do.
    fn prepare(&self, before: &[u64], states: &States, given: &[Tensor]) {
        let [from, now] = [before, &states.lengths].map(|lengths| lengths.iter().copied().max().unwrap_or(0));
        if from == 0 || now <= from {
            return;
        }
        let all: Vec<Vec<(bool, u64)>> = self.inputs.iter().zip(given).map(|(i, t)| self.follows(*i, t, now)).collect();
        let capacity = self.states.iter().filter_map(|state| Some(state.growth?.capacity)).min().unwrap_or(0);
        let (grown, most) = (now - from, capacity.saturating_sub(now - from));
        // A plan often holds from some number on, or for all numbers but the size of something else.
        let tried = |filled: &u64| (filled + grown).is_multiple_of(LENGTH_STEP) || *filled == now || *filled == most;
        for filled in (now..=most).filter(tried).take(MAX_LENGTHS) {
            let like = |(tensor, dims): (&Tensor, &Vec<(bool, u64)>)| {
                let dims = dims.iter().map(|(follows, n)| if *follows { filled + grown } else { *n });
                DenseType::new(tensor.dtype(), dims.collect::<Vec<u64>>())
            };
            let lengths: Vec<u64> = states.lengths.iter().map(|n| if *n == now { filled } else { *n }).collect();
            // What does not compile is an error of the run that needs it.
            drop(self.model.code(&self.types(&lengths, states, given.iter().zip(&all).map(like))));
        }
    }

    /// The extents of an input, and whether each is open and as large as what is filled.
    fn follows(&self, position: usize, tensor: &Tensor, filled: u64) -> Vec<(bool, u64)> {
        let open = self.is_open(position);
        tensor.dims().iter().enumerate().map(|(axis, n)| (*n == filled && open(axis), *n)).collect()
    }

    /// The extents of an input along its open axes.
    fn open_extents<'t>(&self, position: usize, tensor: &'t Tensor) -> impl Iterator<Item = u64> + 't {
        let open = self.is_open(position);
        tensor.dims().iter().enumerate().filter(move |(axis, _)| open(*axis)).map(|(_, n)| *n)
    }

    /// Whether axes of an input are open.
    fn is_open(&self, position: usize) -> impl Fn(usize) -> bool + use<> {
        let declared = self.graph().resolved(self.value(position));
        move |axis| declared.shape.dims().is_none_or(|dims| matches!(dims.get(axis), Some(Dim::Sym(_))))
    }

    /// The first state that has no room for a length.
    fn too_long(&self, lengths: &[u64]) -> Option<Error> {
        let growing = self.states.iter().enumerate().filter_map(|(at, state)| Some((at, state.growth?.capacity)));
        let mut pairs = growing.zip(lengths);
        pairs.find(|((_, capacity), n)| *n > capacity).map(|((at, _), n)| self.full(at, *n))
    }

    /// The lengths of states that grow after a run, as inference finds them.
    fn new_lengths(&self, types: &[DenseType]) -> Option<Vec<u64>> {
        let mut graph = self.graph().clone();
        graph.clear_updates();
        let (_, lengths) = graph.outputs().last()?.clone();
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
    fn execute(&self, code: &RunCode, states: &mut States, given: &[Tensor]) -> Result<Vec<(String, Tensor)>, Error> {
        let lengths: Vec<Tensor> = states
            .lengths
            .iter()
            .map(|n| Tensor::from_bytes(DType::F32, &[0, *n], vec![]))
            .collect::<Result<_, _>>()?;
        let own = self.inputs.iter().copied().zip(given);
        let mut all: Vec<(usize, &Tensor)> = own.chain(self.lengths.iter().copied().zip(&lengths)).collect();
        all.sort_by_key(|(position, _)| *position);
        let inputs: Vec<_> = all.iter().map(|(_, tensor)| tensor.as_ref()).collect();
        let States { memory, run, .. } = states;
        let mut order: Vec<(usize, &mut StateMemory)> =
            self.states.iter().map(|state| state.position).zip(memory.iter_mut().flatten()).collect();
        order.sort_by_key(|(position, _)| *position);
        let mut memory: Vec<TensorMut<'_>> = order
            .into_iter()
            .map(|(_, StateMemory { ty, data })| TensorMut::new(ty.dtype, &ty.dims, data.as_mut_slice()))
            .collect();
        let outputs = code.run_on_states(run, &inputs, &mut memory)?;
        Ok(code.outputs().iter().cloned().zip(outputs).collect())
    }

    /// Takes note of how much is filled after a run.
    fn advance(&self, states: &mut States, lengths: &Tensor) -> Result<(), Error> {
        let found = counts(lengths.data());
        let growing = self.states.iter().enumerate().filter_map(|(at, state)| Some((at, state.growth?.length)));
        let mut next: BTreeMap<usize, u64> = BTreeMap::new();
        for ((at, length), n) in growing.zip(found) {
            if *next.entry(length).or_insert(n) != n {
                return Err(self.refused(at, "grows by another number of elements than states of the same dimension"));
            }
        }
        next.into_iter().for_each(|(length, n)| states.lengths[length] = n);
        Ok(())
    }
}

/// Elements as numbers that count.
fn counts(data: &TensorData) -> Vec<u64> {
    data.to_i64s().into_iter().map(|n| n.max(0) as u64).collect()
}

/// Bytes of a row, of all that lies along an axis and those behind it, and of the first `filled` positions in it.
fn rows(ty: &DenseType, axis: usize, filled: u64) -> [usize; 2] {
    let inner: u64 = ty.dims[axis + 1..].iter().product::<u64>() * ty.dtype.size() as u64;
    [ty.dims[axis], filled].map(|n| (n * inner) as usize)
}
