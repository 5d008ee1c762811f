//! Passes and updates: one by one, or a whole step as one compiled plan.

use std::sync::PoisonError;

use super::{Module, describe, no_optimizer};
use crate::data::{Batch, DataDesc, HostTensor};
use crate::executor::{FusedStep, GradReq};
use crate::ndarray::NDArray;
use crate::train::optimizer::FusedUpdate;
use crate::train::{Optimizer, Updater};
use crate::{Error, Tensor};

/// An input of a batch on its way.
pub(super) enum Staged {
    Host(Tensor),
    /// In the memory of the device, or being copied there.
    Device(NDArray),
}

/// The plan of a whole step, and the optimizer whose constants it holds.
pub(super) struct Fused {
    step: FusedStep,
    optimizer: Optimizer,
}

impl Fused {
    /// Whether the plan is that of an optimizer: numbers that are operands may differ.
    fn suits(&self, optimizer: &Optimizer) -> bool {
        let constants = |o: &Optimizer| (o.rule.clone(), o.rescale_grad, o.clip_gradient, o.multi_precision);
        constants(&self.optimizer) == constants(optimizer)
    }
}

impl Module {
    /// Copies a batch to the arguments it is for. Returns before that is done; a tensor of the batch is kept until then.
    ///
    /// # Errors
    /// The batch has another type or shape than the module was bound to.
    pub fn feed(&self, batch: &Batch) -> Result<(), Error> {
        self.take(&self.stage(batch)?)
    }

    /// Begins to bring a batch to the module's device, whatever that is doing.
    pub(super) fn stage(&self, batch: &Batch) -> Result<Vec<Staged>, Error> {
        let labels = self.labels.iter().map(|(at, desc)| (batch.labels.get(*at), desc));
        let tensors = self.data.iter().enumerate().map(|(at, desc)| (batch.data.get(at), desc)).chain(labels);
        let stage = |(tensor, desc): (Option<&HostTensor>, &DataDesc)| {
            let missing = || Error::MissingInput { name: desc.name.clone(), expected: describe(self.inputs()) };
            let tensor = Tensor::try_from(tensor.ok_or_else(missing)?)?;
            let argument = self.executor.argument(&desc.name)?;
            match self.rt.space().is_driven(argument.device()) {
                true => Ok(Staged::Device(self.rt.from_tensor(&tensor, argument.device())?)),
                false => Ok(Staged::Host(tensor)),
            }
        };
        tensors.map(stage).collect()
    }

    /// Lets what was staged be the arguments.
    fn take(&self, staged: &[Staged]) -> Result<(), Error> {
        for (input, staged) in self.inputs().zip(staged) {
            let argument = self.executor.argument(&input.name)?;
            match staged {
                Staged::Host(tensor) => argument.assign(tensor)?,
                Staged::Device(array) => array.copy_into(argument)?,
            }
        }
        Ok(())
    }

    /// Computes the outputs for a batch.
    ///
    /// # Errors
    /// As [`Module::feed`], or the graph does not compile.
    pub fn forward(&mut self, batch: &Batch, training: bool) -> Result<&[NDArray], Error> {
        self.forward_staged(&self.stage(batch)?, training)
    }

    pub(super) fn forward_staged(&mut self, staged: &[Staged], training: bool) -> Result<&[NDArray], Error> {
        self.take(staged)?;
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

    /// A whole training step: outputs, gradients and updates as one plan, in which gradients have no arrays. The
    /// same as [`Module::forward`], [`Module::backward`] and [`Module::update`], which run one after the other
    /// where gradients are added up or those of the data are wanted.
    ///
    /// # Errors
    /// As those of the three.
    pub fn step(&mut self, batch: &Batch) -> Result<(), Error> {
        let staged = self.stage(batch)?;
        self.step_staged(&staged)
    }

    /// [`Module::forward`], [`Module::backward`] and [`Module::update`].
    pub(super) fn step_apart(&mut self, staged: &[Staged]) -> Result<(), Error> {
        self.forward_staged(staged, true)?;
        self.backward(&[])?;
        self.update()
    }

    pub(super) fn step_staged(&mut self, staged: &[Staged]) -> Result<(), Error> {
        if self.inputs_need_grad || self.grad_req != GradReq::Write {
            return self.step_apart(staged);
        }
        self.take(staged)?;
        let shared = self.updater.clone();
        let mut updater = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let updater = updater.as_mut().ok_or_else(no_optimizer)?;
        if !self.fused.as_ref().is_some_and(|fused| fused.suits(&updater.optimizer)) {
            self.fused = Some(self.fuse(updater)?);
        }
        let Some(fused) = &self.fused else { return Err(Error::Internal("no plan of a step".into())) };
        let mut table = vec![0.0; fused.step.parameters().len() * fused.step.numbers()];
        for (row, of) in table.chunks_mut(fused.step.numbers().max(1)).zip(fused.step.parameters()) {
            if let Some(numbers) = updater.next_numbers(&of.parameter) {
                row.iter_mut().zip(numbers).for_each(|(to, number)| *to = number as f32);
            }
        }
        self.executor.step(&fused.step, &table)?;
        Ok(())
    }

    fn fuse(&self, updater: &mut Updater) -> Result<Fused, Error> {
        let optimizer = updater.optimizer.clone();
        let types = self.learned().map(|(name, array)| (name, array.dtype()));
        let rule = FusedUpdate::new(&optimizer, self.rt.compiler().registry(), types)?;
        let mut step = self.executor.fuse(&rule, None)?;
        for (name, array) in self.learned() {
            updater.prepare(name, array)?;
            let states = updater.state(name).map_or(&[][..], |(_, arrays)| arrays);
            step.set_states(name, states)?;
        }
        Ok(Fused { step, optimizer })
    }

    /// The gradient of an argument, for example of data if [`super::ModuleBuilder::inputs_need_grad`] asked for it.
    ///
    /// # Errors
    /// It is not computed.
    pub fn gradient(&self, name: &str) -> Result<&NDArray, Error> {
        self.executor.gradient(name)
    }
}
