//! `Metric`: measures of outputs against labels.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use tensorc::Tensor;
use tensorc_train::metric;

use super::array::Array;
use crate::arrays::BorrowedArray;
use crate::errors;

/// A metric of the library.
#[pyclass(frozen, module = "tensorc._tensorc")]
pub struct Metric(Mutex<Box<dyn metric::Metric>>);

impl Metric {
    fn metric(&self) -> MutexGuard<'_, Box<dyn metric::Metric>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A tensor of an array, of MXNet's kind or numpy's.
///
/// # Errors
/// It holds no numbers, or what computed it failed.
pub fn tensor(value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let py = value.py();
    if let Ok(array) = value.cast::<Array>() {
        let array = array.get().array();
        return py.detach(|| array.to_tensor()).map_err(|error| errors::mxnet(py, &error));
    }
    let array = BorrowedArray::of(value)?;
    let tensor = array.tensor();
    Tensor::from_bytes(tensor.dtype, tensor.dims, tensor.data.to_vec()).map_err(|error| errors::mxnet(py, &error))
}

#[pymethods]
impl Metric {
    /// A metric by MXNet's name.
    #[new]
    fn new(py: Python<'_>, name: &str) -> PyResult<Metric> {
        metric::create(name).map(|made| Metric(Mutex::new(made))).map_err(|error| errors::mxnet(py, &error))
    }

    fn update(&self, py: Python<'_>, labels: Vec<Bound<'_, PyAny>>, outputs: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let all = |list: Vec<Bound<'_, PyAny>>| list.iter().map(tensor).collect::<PyResult<Vec<_>>>();
        let (labels, outputs) = (all(labels)?, all(outputs)?);
        let updated = self.metric().update(&labels, &outputs);
        updated.map_err(|error| errors::mxnet(py, &error))
    }

    fn reset(&self) {
        self.metric().reset();
    }

    /// Names and values.
    fn values(&self) -> Vec<(String, f64)> {
        self.metric().values()
    }
}
