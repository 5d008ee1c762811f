//! Another executor of the same symbol for other shapes, in the same memory.

use super::Executor;
use super::binder::Bound;
use super::types::{VariableTypes, before_any, infer};
use crate::error::Error;
use crate::ndarray::NDArray;
use tensorc_ir::DenseType;

/// New shapes of some arguments; [`Reshape::build`] makes the executor.
#[must_use = "nothing happens until it is built"]
pub struct Reshape<'a> {
    executor: &'a Executor,
    known: VariableTypes,
    partial: bool,
    up: bool,
}

impl Executor {
    /// Begins to make an executor for other input shapes. Arrays whose shape stays are shared. Smaller ones
    /// are views of the beginning of the old ones.
    pub fn reshape(&self) -> Reshape<'_> {
        Reshape { executor: self, known: VariableTypes::default(), partial: false, up: false }
    }
}

impl Reshape<'_> {
    /// The new shape of an argument; 0 is an unknown extent.
    pub fn shape(mut self, name: &str, dims: &[u64]) -> Self {
        self.known.shapes.insert(name.to_owned(), dims.to_vec());
        self
    }

    /// Lets arguments change that are not named.
    pub fn partial_shaping(self, allowed: bool) -> Self {
        Reshape { partial: allowed, ..self }
    }

    /// Lets arrays become larger: they are then allocated anew, as zeros.
    pub fn allow_up_sizing(self, allowed: bool) -> Self {
        Reshape { up: allowed, ..self }
    }

    /// Makes the executor. It takes turns with the old one, see [`super::Binder::share`].
    ///
    /// # Errors
    /// A name is unknown, shapes contradict each other, an argument that is not named changes, or an array
    /// grows, without permission.
    pub fn build(self) -> Result<Executor, Error> {
        let old = self.executor;
        let mut known = self.known.clone();
        for name in known.shapes.keys() {
            old.argument(name)?;
        }
        for (name, array) in old.arguments().iter().chain(old.auxiliaries()) {
            known.dtypes.insert(name.clone(), array.dtype());
        }
        let types = infer(old.rt.compiler(), &old.symbol, &known)?;
        let mut arguments = vec![];
        for ((name, array), ty) in old.arguments().iter().zip(&types.arguments) {
            arguments.push((name.clone(), self.fitted(name, array, ty)?));
        }
        let mut auxiliaries = vec![];
        for ((name, array), ty) in old.auxiliaries().iter().zip(&types.auxiliaries) {
            auxiliaries.push((name.clone(), self.fitted(name, array, ty)?));
        }
        let mut gradients = vec![];
        for ((name, gradient), ty) in
            old.arguments().iter().map(|(n, _)| n).zip(&old.bound.gradients).zip(&types.arguments)
        {
            gradients.push(gradient.as_ref().map(|g| self.fitted(name, g, ty)).transpose()?);
        }
        let mut outputs = vec![];
        for (array, (_, ty)) in old.outputs.iter().zip(&types.outputs) {
            let ty = &before_any(ty);
            outputs.push(match ty.len() <= array.len() && ty.dtype == array.dtype() {
                true => prefix(array, ty)?,
                false => old.rt.empty(array.device(), ty.dtype, &ty.dims)?,
            });
        }
        let requests = old.bound.requests.clone();
        let bound = Bound { arguments, auxiliaries, gradients, requests, outputs: types.outputs };
        let (rt, symbol) = (old.rt.clone(), old.symbol.clone());
        let mut made = Executor::new(rt, symbol, bound, old.device, old.groups.clone(), old.memory.clone())?;
        made.outputs = outputs;
        Ok(made)
    }

    fn fitted(&self, name: &str, array: &NDArray, ty: &DenseType) -> Result<NDArray, Error> {
        if array.dims() == ty.dims {
            return Ok(array.clone());
        }
        let changes = format!("`{name}` changes from {:?} to {:?}", array.dims(), ty.dims);
        if !self.partial && !self.known.shapes.contains_key(name) {
            return Err(Error::Bind(format!("{changes} though it is not named; `partial_shaping` allows it")));
        }
        if ty.len() <= array.len() {
            return prefix(array, ty);
        }
        if !self.up {
            return Err(Error::Bind(format!("{changes}, which is larger; `allow_up_sizing` allows it")));
        }
        self.executor.rt.full(array.device(), ty.dtype, &ty.dims, 0.0)
    }
}

/// The beginning of an array's memory, as another shape.
fn prefix(array: &NDArray, ty: &DenseType) -> Result<NDArray, Error> {
    if array.dims() == ty.dims {
        return Ok(array.clone());
    }
    let dims: Vec<i64> = ty.dims.iter().map(|d| *d as i64).collect();
    array.reshape(&[-1])?.rows(0, ty.len())?.reshape(&dims)
}
