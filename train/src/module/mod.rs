//! Modules: a symbol with parameters that learns from batches.
//!
//! ```no_run
//! # fn main() -> Result<(), tensorc_train::Error> {
//! use tensorc_nd::{Runtime, RuntimeOptions};
//! use tensorc::symbol::{Symbol, op};
//! use tensorc_data::formats::MnistOptions;
//! use tensorc_train::{Fit, Initializer, Module, Optimizer};
//!
//! let image = "train-images-idx3-ubyte".into();
//! let label = "train-labels-idx1-ubyte".into();
//! let mut train = MnistOptions { image, label, batch_size: 64, ..MnistOptions::default() }.open()?;
//! let rt = Runtime::new(RuntimeOptions::default())?;
//! let hidden = op("FullyConnected").input(&Symbol::variable("data")).param("num_hidden", 128).build()?;
//! let hidden = op("Activation").input(&hidden).param("act_type", "relu").build()?;
//! let scores = op("FullyConnected").input(&hidden).param("num_hidden", 10).build()?;
//! let net = op("SoftmaxOutput").input(&scores).name("softmax").build()?;
//!
//! let mut module = Module::of(&rt, &net).batches(&train).bind()?;
//! module.init_params(&Initializer::xavier(3.0))?;
//! module.init_optimizer(Optimizer::sgd(0.1, 0.9))?;
//! module.fit(&mut train, Fit::epochs(10).on_epoch(|report| println!("{report}")))?;
//! module.save_checkpoint("digits", 10)?;
//! # Ok(())
//! # }
//! ```

mod bind;
mod buckets;
mod checkpoint;
mod fit;
mod parallel;
mod progress;
mod step;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorc_frontend::symbol::Symbol;
use tensorc_runtime::Device;

pub use bind::ModuleBuilder;
pub use buckets::{Buckets, Network};
pub use checkpoint::{Params, load_checkpoint};
pub use fit::{EpochReport, Fit};
pub use parallel::Sums;

use crate::error::{Error, TrainError};
use crate::init::{Initializer, Variable};
use crate::kvstore::KVStore;
use crate::optimizer::{Optimizer, Updater};
use tensorc::Tensor;
use tensorc_data::DataDesc;
use tensorc_nd::executor::{Executor, GradReq};
use tensorc_nd::{NDArray, Runtime};

/// A symbol bound to arrays, with what updates its parameters.
///
/// Arguments that are neither data nor labels are its parameters.
pub struct Module {
    rt: Runtime,
    symbol: Symbol,
    device: Device,
    data: Vec<DataDesc>,
    /// Labels that the symbol uses, with their places among those of a batch.
    labels: Vec<(usize, DataDesc)>,
    fixed: Vec<String>,
    grad_req: GradReq,
    inputs_need_grad: bool,
    /// That of the first device, which holds the parameters that count.
    executor: Executor,
    /// More micro-batches, devices or processes than one.
    parallel: Option<Box<parallel::Parallel>>,
    /// Shared by modules that share parameters.
    updater: Arc<Mutex<Option<Updater>>>,
    fused: Option<step::StepPlan>,
}

impl Module {
    /// Begins to bind a symbol.
    pub fn of(rt: &Runtime, symbol: &Symbol) -> ModuleBuilder {
        ModuleBuilder::new(rt, symbol)
    }

    /// The network that was bound.
    pub fn symbol(&self) -> &Symbol {
        &self.symbol
    }

    /// The runtime that its arrays belong to.
    pub fn runtime(&self) -> &Runtime {
        &self.rt
    }

    /// Examples in a batch.
    pub fn batch_size(&self) -> u64 {
        self.data.first().and_then(|desc| desc.dims.first().copied()).unwrap_or(1)
    }

    fn is_input(&self, name: &str) -> bool {
        self.inputs().any(|input| input.name == name)
    }

    /// Names and arrays of the parameters, in the symbol's order.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &NDArray)> {
        let all = self.executor.arguments().iter().map(|(name, array)| (name.as_str(), array));
        all.filter(|(name, _)| !self.is_input(name))
    }

    /// Names and arrays of the auxiliary states, in the symbol's order.
    pub fn auxiliaries(&self) -> impl Iterator<Item = (&str, &NDArray)> {
        self.executor.auxiliaries().iter().map(|(name, array)| (name.as_str(), array))
    }

    /// The outputs of the latest forward pass.
    pub fn outputs(&self) -> &[NDArray] {
        match &self.parallel {
            Some(parallel) if parallel.leaves() > 1 => &parallel.outputs,
            _ => self.executor.outputs(),
        }
    }

    /// The store that the parameters are shared through, if there is one.
    pub fn kvstore(&self) -> Option<&KVStore> {
        self.parallel.as_ref().and_then(|parallel| parallel.store.as_ref())
    }

    /// Gives every parameter and auxiliary state its initial value. Random ones come from the runtime's
    /// stream, in the symbol's order. Where processes share a store, those of rank 0 count, and every rank calls this.
    ///
    /// # Errors
    /// Nothing says what a variable begins as, or the initialiser does not suit its shape.
    pub fn init_params(&self, initializer: &Initializer) -> Result<(), Error> {
        let attributes = self.symbol.attr_dict();
        for (name, array) in self.parameters().chain(self.auxiliaries()) {
            let init = attributes.get(name).and_then(|attrs| attrs.get("__init__")).map(String::as_str);
            let variable = Variable { name, init, dims: array.dims(), dtype: array.dtype() };
            initializer.init(&self.rt, self.device, variable)?.copy_into(array)?;
        }
        self.spread_params()
    }

    /// Copies of all parameters and auxiliary states on the host.
    ///
    /// # Errors
    /// What computed them failed.
    pub fn params(&self) -> Result<Params, Error> {
        let copy = |(name, array): (&str, &NDArray)| Ok((name.to_owned(), array.to_tensor()?));
        Ok(Params {
            arguments: self.parameters().map(copy).collect::<Result<_, Error>>()?,
            auxiliary: self.auxiliaries().map(copy).collect::<Result<_, Error>>()?,
        })
    }

    /// Sets parameters and auxiliary states. All must be given unless `partial`; those that the symbol does
    /// not have are ignored. Where processes share a store, those of rank 0 count, and every rank calls this.
    ///
    /// # Errors
    /// One is missing, or has another type or shape.
    pub fn set_params(&self, params: &Params, partial: bool) -> Result<(), Error> {
        let arguments = self.parameters().map(|(name, array)| (name, array, params.arguments.get(name)));
        let auxiliary = self.auxiliaries().map(|(name, array)| (name, array, params.auxiliary.get(name)));
        for (name, array, given) in arguments.chain(auxiliary) {
            match given {
                Some(tensor) => self.set(name, array, tensor)?,
                None if partial => {}
                None => return Err(parameter(name, "no value is given for it")),
            }
        }
        self.spread_params()
    }

    fn set(&self, name: &str, array: &NDArray, tensor: &Tensor) -> Result<(), Error> {
        if (array.dtype(), array.dims()) != (tensor.dtype(), tensor.dims()) {
            let found = &tensor.data().ty;
            return Err(parameter(name, format!("it is {array:?}, the value given {found}")));
        }
        Ok(self.rt.from_tensor(tensor, array.device())?.copy_into(array)?)
    }

    /// Sets the optimizer. Learning rate and weight decay factors of the symbol's variables apply unless the
    /// optimizer has its own; gradients are divided by the batch size, of all processes, unless it says otherwise.
    ///
    /// # Errors
    /// A variable's factor is no number, or the learning rate schedule contradicts itself.
    pub fn init_optimizer(&mut self, mut optimizer: Optimizer) -> Result<(), Error> {
        optimizer.schedule.check()?;
        let attributes = self.symbol.attr_dict();
        let all = attributes.iter().flat_map(|(name, attrs)| {
            attrs.iter().map(move |(key, value)| (name.as_str(), key.as_str(), value.as_str()))
        });
        optimizer.read_multipliers(all)?;
        let ranks = self.parallel.as_ref().map_or(1, |parallel| parallel.summed_ranks());
        optimizer.rescale_grad.get_or_insert(1.0 / (self.batch_size() * ranks as u64) as f64);
        if let Some(store) = self.kvstore().filter(|store| store.kind().is_async()) {
            store.set_optimizer(optimizer.clone())?;
        }
        *self.lock_updater() = Some(Updater::new(optimizer));
        self.fused = None;
        Ok(())
    }

    fn lock_updater(&self) -> MutexGuard<'_, Option<Updater>> {
        self.updater.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes the optimizer, for example its learning rate.
    ///
    /// # Errors
    /// [`Module::init_optimizer`] was not called.
    pub fn with_updater<R>(&mut self, f: impl FnOnce(&mut Updater) -> R) -> Result<R, Error> {
        match &mut *self.lock_updater() {
            Some(updater) => Ok(f(updater)),
            None => Err(no_optimizer()),
        }
    }

    /// What every batch gives anew: data, and the labels that the symbol uses.
    pub fn inputs(&self) -> impl Iterator<Item = &DataDesc> {
        self.data.iter().chain(self.labels.iter().map(|(_, desc)| desc))
    }
}

/// Arrays as messages name them.
fn describe<'a>(descs: impl IntoIterator<Item = &'a DataDesc>) -> String {
    let one = |desc: &DataDesc| format!("{} {}{:?}", desc.name, desc.dtype, desc.dims);
    descs.into_iter().map(one).collect::<Vec<_>>().join(", ")
}

fn no_optimizer() -> Error {
    TrainError::Optimizer { why: "there is no optimizer; call `init_optimizer`".into() }.into()
}

fn parameter(name: &str, why: impl Into<String>) -> Error {
    TrainError::Update { parameter: name.to_owned(), why: why.into() }.into()
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("symbol", &self.symbol).field("data", &self.data).finish_non_exhaustive()
    }
}
