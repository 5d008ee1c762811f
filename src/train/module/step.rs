//! Passes and updates: one by one, or a whole step as one compiled plan.

use super::{Module, no_optimizer};
use crate::Error;
use crate::ndarray::NDArray;
use crate::train::Batch;

/// The plan of a whole step, and what it was made for.
pub(super) struct Fused {}

impl Module {
    /// Copies a batch to the arguments it is for.
    ///
    /// # Errors
    /// The batch has another type or shape than the module was bound to.
    pub fn feed(&self, batch: &Batch) -> Result<(), Error> {
        let data = self.data.iter().zip(&batch.data);
        let labels = self.labels.iter().zip(&batch.labels);
        for ((name, ..), tensor) in data.chain(labels) {
            let argument = self.executor.argument(name)?;
            self.rt.from_tensor(tensor, argument.device())?.copy_into(argument)?;
        }
        Ok(())
    }

    /// Computes the outputs for a batch.
    ///
    /// # Errors
    /// As [`Module::feed`], or the graph does not compile.
    pub fn forward(&mut self, batch: &Batch, training: bool) -> Result<&[NDArray], Error> {
        self.feed(batch)?;
        self.executor.forward(training)
    }

    /// Computes the gradients, after a forward pass in training mode. `heads` are the gradients of the outputs,
    /// none if they are losses.
    ///
    /// # Errors
    /// No such forward pass precedes, or a gradient of an output is missing.
    pub fn backward(&mut self, heads: &[&NDArray]) -> Result<(), Error> {
        self.executor.backward(heads)
    }

    /// Names and arrays of the parameters that have gradients.
    pub(super) fn learned(&self) -> impl Iterator<Item = (&str, &NDArray)> {
        let with = |name: &str| self.executor.gradients().any(|(n, _)| n == name);
        self.parameters().filter(move |(name, _)| with(name))
    }

    /// Moves every parameter by its gradient.
    ///
    /// # Errors
    /// There is no optimizer, or it does not fit a parameter.
    pub fn update(&mut self) -> Result<(), Error> {
        let mut updater = self.lock_updater();
        let updater = updater.as_mut().ok_or_else(no_optimizer)?;
        for (name, gradient) in self.executor.gradients().filter(|(name, _)| !self.is_input(name)) {
            updater.update(name, self.executor.argument(name)?, gradient)?;
        }
        Ok(())
    }

    /// The gradient of an argument, for example of data if [`super::ModuleBuilder::inputs_need_grad`] asked for it.
    ///
    /// # Errors
    /// It is not computed.
    pub fn gradient(&self, name: &str) -> Result<&NDArray, Error> {
        self.executor.gradient(name)
    }
}
