//! `Module`: a symbol with parameters that learns from batches.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use tensorc::Tensor;
use tensorc_data::{Batch, DataDesc, HostTensor};
use tensorc_nd::NDArray;
use tensorc_train::{Error, Initializer, Module as BoundModule, Params};

use super::array::{Array, dtype_named, grad_req};
use super::metric::tensor;
use super::symbol::Symbol;
use super::{runtime, updater};
use crate::errors;

/// A symbol bound for training.
#[pyclass(frozen, module = "tensorc._tensorc")]
pub struct Module(Mutex<BoundModule>);

/// Name, shape and element type of an input.
type Input = (String, Vec<u64>, String);

/// Names and arrays.
type NamedArrays = Vec<(String, Array)>;

fn descs(inputs: Vec<Input>) -> PyResult<Vec<DataDesc>> {
    inputs.into_iter().map(|(name, dims, dtype)| Ok(DataDesc { name, dtype: dtype_named(&dtype)?, dims })).collect()
}

#[pymethods]
impl Module {
    /// Binds a symbol to inputs of the given shapes; shares the parameters of another module if one is given.
    #[new]
    #[pyo3(signature = (symbol, data, labels, fixed, request, inputs_need_grad, shared))]
    #[allow(clippy::too_many_arguments, reason = "what the package passes on by name")]
    fn new(
        py: Python<'_>,
        symbol: &Symbol,
        data: Vec<Input>,
        labels: Vec<Input>,
        fixed: Vec<String>,
        request: &str,
        inputs_need_grad: bool,
        shared: Option<&Module>,
    ) -> PyResult<Module> {
        let (rt, request) = (runtime(py)?, grad_req(py, request)?);
        let (data, labels) = (descs(data)?, descs(labels)?);
        let symbol = symbol.symbol();
        let bind = || match shared {
            Some(other) => other.module().sibling(symbol, &data, &labels),
            None => {
                let builder = BoundModule::of(&rt, symbol).inputs(data, labels);
                let builder = builder.fixed(fixed.iter().map(String::as_str)).grad_req(request);
                if inputs_need_grad { builder.inputs_need_grad().bind() } else { builder.bind() }
            }
        };
        let bound: Result<BoundModule, Error> = py.detach(bind);
        Ok(Module(Mutex::new(bound.map_err(|error| errors::mxnet(py, &error))?)))
    }

    /// Gives parameters their initial values, by an initialiser in MXNet's text.
    fn init_params(&self, py: Python<'_>, initializer: &str) -> PyResult<()> {
        let initializer = Initializer::parse(initializer).map_err(|error| errors::mxnet(py, &error))?;
        self.work(py, |module| module.init_params(&initializer))
    }

    fn init_optimizer(&self, py: Python<'_>, name: &str, settings: &str, schedule: Option<&str>) -> PyResult<()> {
        let optimizer = updater::optimizer(py, name, settings, schedule)?;
        self.work(py, |module| module.init_optimizer(optimizer))
    }

    /// Outputs, gradients and updates for a batch, as one plan.
    fn step(&self, py: Python<'_>, data: Vec<Bound<'_, PyAny>>, labels: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let batch = batch(py, &data, &labels)?;
        self.work(py, |module| module.step(&batch))
    }

    fn forward(
        &self,
        py: Python<'_>,
        data: Vec<Bound<'_, PyAny>>,
        labels: Vec<Bound<'_, PyAny>>,
        training: bool,
    ) -> PyResult<()> {
        let batch = batch(py, &data, &labels)?;
        self.work(py, |module| module.forward(&batch, training).map(|_| ()))
    }

    fn backward(&self, py: Python<'_>, heads: Vec<PyRef<'_, Array>>) -> PyResult<()> {
        let heads: Vec<NDArray> = heads.iter().map(|array| array.array()).collect();
        self.work(py, |module| module.backward(&heads.iter().collect::<Vec<_>>()))
    }

    fn update(&self, py: Python<'_>) -> PyResult<()> {
        self.work(py, BoundModule::update)
    }

    fn outputs(&self) -> Vec<Array> {
        self.module().outputs().iter().map(|array| Array::of(array.clone())).collect()
    }

    /// The gradient of an argument.
    fn gradient(&self, py: Python<'_>, name: &str) -> PyResult<Array> {
        let found = self.module().gradient(name).map(|array| Array::of(array.clone()));
        found.map_err(|error| errors::mxnet(py, &error))
    }

    /// Names and copies of parameters and of auxiliary states.
    fn params(&self, py: Python<'_>) -> PyResult<(NamedArrays, NamedArrays)> {
        let copies = |module: &BoundModule| {
            let copy = |(name, array): (&str, &NDArray)| Ok((name.to_owned(), array.copy()?));
            let arguments = module.parameters().map(copy).collect::<Result<Vec<_>, Error>>()?;
            Ok((arguments, module.auxiliaries().map(copy).collect::<Result<Vec<_>, Error>>()?))
        };
        let copied: Result<_, Error> = py.detach(|| copies(&self.module()));
        let (arguments, auxiliary) = copied.map_err(|error| errors::mxnet(py, &error))?;
        let of =
            |list: Vec<(String, NDArray)>| list.into_iter().map(|(name, array)| (name, Array::of(array))).collect();
        Ok((of(arguments), of(auxiliary)))
    }

    fn set_params(
        &self,
        py: Python<'_>,
        arguments: Vec<(String, Bound<'_, PyAny>)>,
        auxiliary: Vec<(String, Bound<'_, PyAny>)>,
        partial: bool,
    ) -> PyResult<()> {
        let tensors = |list: Vec<(String, Bound<'_, PyAny>)>| {
            list.into_iter().map(|(name, value)| Ok((name, tensor(&value)?))).collect::<PyResult<_>>()
        };
        let params = Params { arguments: tensors(arguments)?, auxiliary: tensors(auxiliary)? };
        self.work(py, |module| module.set_params(&params, partial))
    }

    fn save_checkpoint(&self, py: Python<'_>, prefix: PathBuf, epoch: u32, with_states: bool) -> PyResult<()> {
        self.work(py, |module| {
            module.save_checkpoint(&prefix, epoch)?;
            if with_states { module.save_optimizer_states(&prefix, epoch) } else { Ok(()) }
        })
    }

    fn load_optimizer_states(&self, py: Python<'_>, prefix: PathBuf, epoch: u32) -> PyResult<()> {
        self.work(py, |module| module.load_optimizer_states(&prefix, epoch))
    }
}

impl Module {
    fn module(&self) -> MutexGuard<'_, BoundModule> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, py: Python<'_>, work: impl FnOnce(&mut BoundModule) -> Result<(), Error> + Send) -> PyResult<()> {
        let done = py.detach(|| work(&mut self.module()));
        done.map_err(|error| errors::mxnet(py, &error))
    }
}

/// Copies of the arrays of a batch.
fn batch(py: Python<'_>, data: &[Bound<'_, PyAny>], labels: &[Bound<'_, PyAny>]) -> PyResult<Batch> {
    let host = |value: &Bound<'_, PyAny>| {
        let tensor: Tensor = tensor(value)?;
        HostTensor::try_from(tensor).map_err(|error| errors::mxnet(py, &error))
    };
    let data = data.iter().map(host).collect::<PyResult<_>>()?;
    Ok(Batch { data, labels: labels.iter().map(host).collect::<PyResult<_>>()?, pad: 0, index: vec![] })
}
