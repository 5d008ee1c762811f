//! `Executor`: a symbol bound to arrays.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use tensorc_nd::executor::{Executor as BoundSymbol, GradReq};
use tensorc_nd::{Error, NDArray};

use super::array::{Array, dtype_named, grad_req};
use super::runtime;
use super::symbol::Symbol;
use crate::errors;

/// A symbol bound to arrays, which runs forward and backward.
#[pyclass(frozen, module = "tensorc._tensorc")]
pub struct Executor(Mutex<BoundSymbol>);

/// Names and arrays.
type Named = Vec<(String, Array)>;

#[pymethods]
impl Executor {
    /// Binds a symbol. Arrays that are not given are made in the shapes that follow, if `simple`; gradients are computed where there is a
    /// request or an array for them.
    #[new]
    #[pyo3(signature = (symbol, simple, shapes, dtypes, arrays, gradients, requests, request))]
    #[allow(clippy::too_many_arguments, reason = "what the package passes on by name")]
    fn new(
        py: Python<'_>,
        symbol: &Symbol,
        simple: bool,
        shapes: BTreeMap<String, Vec<u64>>,
        dtypes: BTreeMap<String, String>,
        arrays: BTreeMap<String, PyRef<'_, Array>>,
        gradients: BTreeMap<String, PyRef<'_, Array>>,
        requests: BTreeMap<String, String>,
        request: Option<&str>,
    ) -> PyResult<Executor> {
        let rt = runtime(py)?;
        let request = request.map(|name| grad_req(py, name)).transpose()?;
        let requests = requests.into_iter().map(|(name, request)| Ok((name, grad_req(py, &request)?)));
        let requests = requests.collect::<PyResult<Vec<(String, GradReq)>>>()?;
        let dtypes = dtypes.into_iter().map(|(name, dtype)| Ok((name, dtype_named(&dtype)?)));
        let dtypes = dtypes.collect::<PyResult<Vec<_>>>()?;
        let of = |all: BTreeMap<String, PyRef<'_, Array>>| -> Vec<(String, NDArray)> {
            all.into_iter().map(|(name, array)| (name, array.array())).collect()
        };
        let (arrays, gradients) = (of(arrays), of(gradients));
        let symbol = symbol.symbol();
        let bind = || {
            let mut binder = match simple {
                true => BoundSymbol::simple_bind(&rt, symbol),
                false => BoundSymbol::bind(&rt, symbol),
            };
            if let Some(request) = request {
                binder = binder.grad_req(request);
            }
            for (name, dims) in &shapes {
                binder = binder.shape(name, dims);
            }
            for (name, dtype) in &dtypes {
                binder = binder.dtype(name, *dtype);
            }
            for (name, array) in &arrays {
                binder = binder.array(name, array);
            }
            for (name, array) in &gradients {
                binder = binder.gradient(name, array);
            }
            for (name, request) in &requests {
                binder = binder.grad_req_of(name, *request);
            }
            binder.build()
        };
        let bound: Result<BoundSymbol, Error> = py.detach(bind);
        Ok(Executor(Mutex::new(bound.map_err(|error| errors::mxnet(py, &error))?)))
    }

    fn arguments(&self) -> Named {
        named(self.bound().arguments().iter().map(|(name, array)| (name.as_str(), array)))
    }

    fn auxiliaries(&self) -> Named {
        named(self.bound().auxiliaries().iter().map(|(name, array)| (name.as_str(), array)))
    }

    fn gradients(&self) -> Named {
        named(self.bound().gradients())
    }

    fn outputs(&self) -> Vec<Array> {
        self.bound().outputs().iter().map(|array| Array::of(array.clone())).collect()
    }

    fn forward(&self, py: Python<'_>, training: bool) -> PyResult<()> {
        self.work(py, |bound| bound.forward(training).map(|_| ()))
    }

    fn backward(&self, py: Python<'_>, heads: Vec<PyRef<'_, Array>>) -> PyResult<()> {
        let heads: Vec<NDArray> = heads.iter().map(|array| array.array()).collect();
        self.work(py, |bound| bound.backward(&heads.iter().collect::<Vec<_>>()))
    }
}

impl Executor {
    fn bound(&self) -> MutexGuard<'_, BoundSymbol> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, py: Python<'_>, work: impl FnOnce(&mut BoundSymbol) -> Result<(), Error> + Send) -> PyResult<()> {
        let done = py.detach(|| work(&mut self.bound()));
        done.map_err(|error| errors::mxnet(py, &error))
    }
}

fn named<'a>(all: impl Iterator<Item = (&'a str, &'a NDArray)>) -> Named {
    all.map(|(name, array)| (name.to_owned(), Array::of(array.clone()))).collect()
}
