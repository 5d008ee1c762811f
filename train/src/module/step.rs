//! Passes and updates: one by one, or a whole step as one compiled plan.

use std::sync::PoisonError;

use super::{Module, describe, no_optimizer};
use crate::error::Error;
use crate::optimizer::{FusedUpdate, Optimizer, Updater};
use tensorc::Tensor;
use tensorc_data::{Batch, DataDesc};
use tensorc_nd::NDArray;
use tensorc_nd::executor::{FusedStep, GradReq};

/// An input of a batch on its way.
pub(super) enum Staged {
    Host(Tensor),
    /// In the memory of the device, or being copied there.
    Device(NDArray),
}

/// The inputs of each micro-batch.
pub(super) type StagedBatch = Vec<Vec<Staged>>;

/// The plan of a whole step, and the optimizer whose constants it holds.
pub(super) struct StepPlan {
    step: FusedStep,
    optimizer: Optimizer,
}

impl StepPlan {
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
    ///
    /// A module with several micro-batches takes them from each batch itself.
    pub fn feed(&self, batch: &Batch) -> Result<(), Error> {
        match &self.stage(batch)?[..] {
            [only] => self.take(0, only),
            several => Err(in_parts("feed", several.len())),
        }
    }

    /// Begins to bring a batch to the module's devices, whatever those are doing: the inputs of each micro-batch.
    pub(super) fn stage(&self, batch: &Batch) -> Result<StagedBatch, Error> {
        let labels = self.labels.iter().map(|(at, desc)| (batch.labels.get(*at), desc));
        let given = self.data.iter().enumerate().map(|(at, desc)| (batch.data.get(at), desc)).chain(labels);
        let mut tensors = vec![];
        for (tensor, desc) in given {
            let (name, expected) = (desc.name.clone(), describe(self.inputs()));
            let missing = || tensorc::Error::MissingInput { name, expected };
            tensors.push((Tensor::try_from(tensor.ok_or_else(missing)?)?, desc));
        }
        let leaves = self.leaves();
        let stage = |leaf: usize, tensor: &Tensor, desc: &DataDesc| {
            let tensor = part_of(tensor, leaf, leaves)?;
            let argument = self.executor_of(leaf).argument(&desc.name)?;
            match self.rt.space().is_driven(argument.device()) {
                true => Ok(Staged::Device(self.rt.from_tensor(&tensor, argument.device())?)),
                false => Ok(Staged::Host(tensor)),
            }
        };
        let inputs = |leaf| tensors.iter().map(|(tensor, desc)| stage(leaf, tensor, desc)).collect();
        (0..leaves).map(inputs).collect()
    }

    /// Lets what was staged be the arguments of a micro-batch.
    pub(super) fn take(&self, leaf: usize, staged: &[Staged]) -> Result<(), Error> {
        for (input, staged) in self.inputs().zip(staged) {
            let argument = self.executor_of(leaf).argument(&input.name)?;
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

    pub(super) fn forward_staged(&mut self, staged: &StagedBatch, training: bool) -> Result<&[NDArray], Error> {
        for (leaf, inputs) in staged.iter().enumerate() {
            self.take(leaf, inputs)?;
            self.executor_of_mut(leaf).forward(training)?;
            self.collect_outputs(leaf)?;
        }
        Ok(self.outputs())
    }

    /// Computes the gradients, after a forward pass in training mode. `heads` are the gradients of the outputs,
    /// none if they are losses.
    ///
    /// # Errors
    /// No such forward pass precedes, or a gradient of an output is missing; or steps have several micro-batches, of this
    /// process or of others, which only [`Module::step`] sums.
    pub fn backward(&mut self, heads: &[&NDArray]) -> Result<(), Error> {
        match self.summed_leaves() {
            1 => Ok(self.executor.backward(heads)?),
            several => Err(in_parts("backward", several)),
        }
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
        if self.update_there()? {
            return Ok(());
        }
        let mut updater = self.lock_updater();
        let updater = updater.as_mut().ok_or_else(no_optimizer)?;
        let gradients = self.executor.gradients().filter(|(name, _)| !self.is_input(name));
        // The gradients of the last layers come first.
        for (name, gradient) in gradients.collect::<Vec<_>>().into_iter().rev() {
            updater.update(name, self.executor.argument(name)?, gradient)?;
        }
        self.pass_on()
    }

    /// A whole training step: outputs, gradients and updates as one plan, in which gradients have no arrays. The
    /// same as [`Module::forward`], [`Module::backward`] and [`Module::update`], which run one after the other
    /// where gradients are added up or those of the data are wanted, or shapes depend on values.
    ///
    /// # Errors
    /// As those of the three.
    pub fn step(&mut self, batch: &Batch) -> Result<(), Error> {
        let staged = self.stage(batch)?;
        self.step_staged(&staged)
    }

    /// [`Module::forward`], [`Module::backward`] and [`Module::update`].
    pub(super) fn step_apart(&mut self, staged: &StagedBatch) -> Result<(), Error> {
        if self.parallel.is_some() {
            return self.step_parallel(staged);
        }
        self.forward_staged(staged, true)?;
        self.backward(&[])?;
        self.update()
    }

    pub(super) fn step_staged(&mut self, staged: &StagedBatch) -> Result<(), Error> {
        let [inputs] = &staged[..] else { return self.step_parallel(staged) };
        if self.parallel.is_some()
            || self.inputs_need_grad
            || self.grad_req != GradReq::Write
            || self.executor.has_parts()
        {
            return self.step_apart(staged);
        }
        self.take(0, inputs)?;
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

    fn fuse(&self, updater: &mut Updater) -> Result<StepPlan, Error> {
        let optimizer = updater.optimizer.clone();
        let types = self.learned().map(|(name, array)| (name, array.dtype()));
        let rule = FusedUpdate::new(&optimizer, self.rt.compiler().registry(), types)?;
        let mut step = self.executor.fuse(&rule, None)?;
        for (name, array) in self.learned() {
            updater.prepare(name, array)?;
            let states = updater.state(name).map_or(&[][..], |(_, arrays)| arrays);
            step.set_states(name, states)?;
        }
        Ok(StepPlan { step, optimizer })
    }

    /// The gradient of an argument, for example of data if [`super::ModuleBuilder::inputs_need_grad`] asked for it.
    ///
    /// # Errors
    /// It is not computed.
    pub fn gradient(&self, name: &str) -> Result<&NDArray, Error> {
        Ok(self.executor.gradient(name)?)
    }
}

/// The rows of one of several micro-batches.
fn part_of(tensor: &Tensor, leaf: usize, leaves: usize) -> Result<Tensor, Error> {
    let Some(rows) = tensor.dims().first().filter(|_| leaves > 1) else { return Ok(tensor.clone()) };
    let mut dims = tensor.dims().to_vec();
    dims[0] = rows / leaves as u64;
    let bytes = tensor.bytes().len() / leaves;
    Ok(Tensor::from_bytes(tensor.dtype(), &dims, tensor.data().bytes().slice(leaf * bytes..(leaf + 1) * bytes))?)
}

fn in_parts(what: &str, leaves: usize) -> Error {
    let why = format!("`{what}` is for one micro-batch, this module has {leaves} in a step; use `step`");
    tensorc_nd::Error::Bind(why).into()
}
