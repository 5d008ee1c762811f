//! Memory of states between runs: reading, setting and cutting them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_ir::{DType, DenseType, Dim, DimId, Shape};
use tensorc_runtime::{AlignedBuffer, TensorMut};

use super::StatefulModel;
use super::graph::Growth;
use crate::error::Error;
use crate::part_code::StatefulRun;
use crate::tensor::Tensor;

/// The states of one sequence of runs of a [`StatefulModel`]. At first, states that grow are empty and others are 0.
pub struct States {
    /// By state; `None` before the first run or [`StatefulModel::set`].
    memory: Vec<Option<StateMemory>>,
    run: StatefulRun,
    /// Of the model.
    identity: Arc<()>,
}

struct StateMemory {
    /// The type of the memory: along the axis that grows, the capacity.
    ty: DenseType,
    data: AlignedBuffer,
    /// Elements along the axis that grows.
    length: u64,
}

impl States {
    /// Types of the memory of all states.
    pub(super) fn types(&self) -> impl Iterator<Item = DenseType> {
        self.memory.iter().flatten().map(|memory| memory.ty.clone())
    }

    /// Memory of runs, and the states as tensors.
    pub(super) fn parts(&mut self) -> (&mut StatefulRun, impl Iterator<Item = TensorMut<'_>>) {
        let memory = self.memory.iter_mut().flatten();
        let tensors =
            memory.map(|StateMemory { ty, data, .. }| TensorMut::new(ty.dtype, &ty.dims, data.as_mut_slice()));
        (&mut self.run, tensors)
    }
}

impl StatefulModel {
    /// States of a new sequence.
    pub fn states(&self) -> States {
        let memory = self.states.iter().map(|_| None).collect();
        States { memory, run: StatefulRun::default(), identity: self.identity.clone() }
    }

    /// How many elements a state has along the axis in which it grows; `None` if it does not grow, or there is none of this name.
    pub fn len(&self, states: &States, input: &str) -> Option<u64> {
        let at = self.states.iter().position(|state| state.name == input && state.growth.is_some())?;
        Some(states.memory.get(at)?.as_ref().map_or(0, |memory| memory.length))
    }

    /// Cuts all states that grow to at most `len` elements. The next run continues from there.
    pub fn truncate(&self, states: &mut States, len: u64) {
        states.memory.iter_mut().flatten().for_each(|memory| memory.length = len.min(memory.length));
    }

    /// A copy of a state, of the type of the model's input.
    ///
    /// # Errors
    /// There is no such state, it has no value yet, or the states belong to another model.
    pub fn get(&self, states: &States, input: &str) -> Result<Tensor, Error> {
        let at = self.position(states, input)?;
        let Some(StateMemory { ty, data, length }) = &states.memory[at] else {
            return Err(self.refused(at, "has no value before the first run"));
        };
        let Some(growth) = self.states[at].growth else {
            return Tensor::from_bytes(ty.dtype, &ty.dims, data.as_slice().to_vec());
        };
        let mut dims = ty.dims.to_vec();
        dims[growth.axis] = *length;
        let [row, run] = row_bytes(ty, growth.axis, *length);
        let bytes: Vec<u8> = data.as_slice().chunks(row.max(1)).flat_map(|row| &row[..run]).copied().collect();
        Tensor::from_bytes(ty.dtype, &dims, bytes)
    }

    /// Sets a state to a value of the type of the model's input. States that grow along one dimension need the same length when the
    /// model runs.
    ///
    /// # Errors
    /// There is no such state, the value has another type or more elements than the capacity, or the states belong to another model.
    pub fn set(&self, states: &mut States, input: &str, value: &Tensor) -> Result<(), Error> {
        let at = self.position(states, input)?;
        let (mut ty, mut length) = (value.data().ty.clone(), 0);
        let declared = self.graph().resolved(self.value(self.states[at].position));
        let growth = self.states[at].growth;
        if let Some(Growth { axis, capacity, .. }) = growth.filter(|growth| growth.axis < ty.rank()) {
            length = value.dims()[axis];
            if length > capacity {
                return Err(self.full(at, length));
            }
            ty.dims.set(axis, capacity);
        }
        let fits = |dims: &[Dim]| dims.iter().zip(&ty.dims).all(|(d, n)| d.as_const().is_none_or(|known| known == *n));
        let known = declared.shape.dims().is_some_and(|dims| dims.len() == ty.rank() && fits(dims));
        if declared.dtype.is_some_and(|dtype| dtype != ty.dtype) || !known {
            return Err(self.refused(at, &format!("cannot be set to a tensor of type {}", value.data().ty)));
        }
        let mut data = AlignedBuffer::zeroed(ty.bytes(), "a state")?;
        match growth {
            None => data.as_mut_slice().copy_from_slice(value.bytes()),
            Some(Growth { axis, .. }) => {
                let [row, run] = row_bytes(&ty, axis, length);
                let rows = data.as_mut_slice().chunks_mut(row.max(1)).zip(value.bytes().chunks(run.max(1)));
                rows.for_each(|(row, value)| row[..value.len()].copy_from_slice(value));
            }
        }
        states.memory[at] = Some(StateMemory { ty, data, length });
        Ok(())
    }

    /// The position of a state of this model.
    fn position(&self, states: &States, input: &str) -> Result<usize, Error> {
        let names = || self.states.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", ");
        let unknown = || Error::UnknownInput { name: input.to_owned(), expected: names() };
        let at = self.states.iter().position(|state| state.name == input).ok_or_else(unknown)?;
        self.own(states, at).map(|()| at)
    }

    fn own(&self, states: &States, at: usize) -> Result<(), Error> {
        match Arc::ptr_eq(&states.identity, &self.identity) {
            true => Ok(()),
            false => Err(self.refused(at, "is one of the states of another model")),
        }
    }

    /// The length of the states that grow, by length input.
    ///
    /// # Errors
    /// States that grow along one dimension have different lengths, or the states belong to another model.
    pub(super) fn lengths(&self, states: &States) -> Result<Vec<u64>, Error> {
        if !self.states.is_empty() {
            self.own(states, 0)?;
        }
        let mut lengths: Vec<Option<u64>> = vec![None; self.lengths.len()];
        for (at, (state, memory)) in self.states.iter().zip(&states.memory).enumerate() {
            let Some(growth) = state.growth else { continue };
            let length = memory.as_ref().map_or(0, |memory| memory.length);
            let known = *lengths[growth.length].get_or_insert(length);
            if known != length {
                let why =
                    format!("has {length} positions, and a state that grows along the same dimension has {known}");
                return Err(self.refused(at, &why));
            }
        }
        Ok(lengths.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Sets the lengths of the states that grow, in the order of the states.
    pub(super) fn advance(&self, states: &mut States, lengths: &[u64]) {
        let growing = states.memory.iter_mut().zip(&self.states).filter(|(_, state)| state.growth.is_some());
        for ((memory, _), length) in growing.zip(lengths) {
            memory.iter_mut().for_each(|memory| memory.length = *length);
        }
    }

    /// Makes memory for states that have none. Their open extents are those of inputs and of other states.
    ///
    /// # Errors
    /// An extent is that of no input, or memory is short.
    pub(super) fn allocate(&self, states: &mut States, given: &[Tensor]) -> Result<(), Error> {
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
            let dims =
                dims.ok_or_else(|| self.refused(at, "has extents that are not those of an input: set it first"))?;
            let ty = DenseType::new(declared.dtype.unwrap_or(DType::F32), dims);
            let data = AlignedBuffer::zeroed(ty.bytes(), "a state")?;
            states.memory[at] = Some(StateMemory { ty, data, length: 0 });
        }
        Ok(())
    }
}

/// Bytes of a row of the memory, which is an element of the axes before `axis`, and of its first `length` positions.
fn row_bytes(ty: &DenseType, axis: usize, length: u64) -> [usize; 2] {
    let inner: u64 = ty.dims[axis + 1..].iter().product::<u64>() * ty.dtype.size() as u64;
    [ty.dims[axis], length].map(|n| (n * inner) as usize)
}
