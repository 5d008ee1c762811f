//! `NDArray`: handles of arrays that are computed in the background.

use std::sync::{PoisonError, RwLock};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tensorc::DType;
use tensorc_nd::autograd::GradReq;
use tensorc_nd::{NDArray, Slice};

use super::runtime;
use crate::arrays::BorrowedArray;
use crate::host_memory::array_of_bytes;
use crate::{element, errors};

/// An array of the process's runtime.
#[pyclass(frozen, subclass, module = "tensorc._tensorc")]
pub struct Array(RwLock<NDArray>);

impl Array {
    /// A handle of an array.
    pub fn of(array: NDArray) -> Array {
        Array(RwLock::new(array))
    }

    /// The array.
    pub fn array(&self) -> NDArray {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn with<T>(&self, py: Python<'_>, work: impl FnOnce(&NDArray) -> Result<T, tensorc_nd::Error>) -> PyResult<T> {
        work(&self.array()).map_err(|error| errors::mxnet(py, &error))
    }
}

/// The element type that numpy calls so.
///
/// # Errors
/// There is none.
pub fn dtype_named(name: &str) -> PyResult<DType> {
    element::of_numpy(name).ok_or_else(|| PyTypeError::new_err(format!("there are no arrays of `{name}`")))
}

/// What becomes of a gradient: `write`, `add` or `null`.
///
/// # Errors
/// It is none of these.
pub fn grad_req(py: Python<'_>, name: &str) -> PyResult<GradReq> {
    match name {
        "write" => Ok(GradReq::Write),
        "add" => Ok(GradReq::Add),
        "null" => Ok(GradReq::Null),
        other => Err(errors::mxnet(py, &format!("`{other}` is no gradient request; there are write, add and null"))),
    }
}

#[pymethods]
impl Array {
    /// A copy of an array of numpy, or of what numpy makes one of.
    #[staticmethod]
    fn from_numpy(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<Array> {
        let rt = runtime(py)?;
        let source = BorrowedArray::of(source)?;
        let tensor = source.tensor();
        let copied = py.detach(|| rt.from_bytes(rt.options().device, tensor.dtype, tensor.dims, tensor.data));
        copied.map(Array::of).map_err(|error| errors::mxnet(py, &error))
    }

    /// An array with one value.
    #[staticmethod]
    fn full(py: Python<'_>, shape: Vec<u64>, value: f64, dtype: &str) -> PyResult<Array> {
        let (rt, dtype) = (runtime(py)?, dtype_named(dtype)?);
        let made = rt.full(rt.options().device, dtype, &shape, value);
        made.map(Array::of).map_err(|error| errors::mxnet(py, &error))
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.array().dims())
    }

    #[getter]
    fn dtype_name(&self) -> &'static str {
        element::numpy_name(self.array().dtype())
    }

    /// Waits for the elements and copies them.
    fn asnumpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let array = self.array();
        let bytes = py.detach(|| array.to_bytes()).map_err(|error| errors::mxnet(py, &error))?;
        array_of_bytes(py, bytes, array.dtype(), array.dims())
    }

    fn wait_to_read(&self, py: Python<'_>) -> PyResult<()> {
        let array = self.array();
        py.detach(|| array.wait_to_read()).map_err(|error| errors::mxnet(py, &error))
    }

    fn copy(&self, py: Python<'_>) -> PyResult<Array> {
        self.with(py, NDArray::copy).map(Array::of)
    }

    fn copy_into(&self, py: Python<'_>, to: &Array) -> PyResult<()> {
        self.with(py, |array| array.copy_into(&to.array()))
    }

    fn cast(&self, py: Python<'_>, dtype: &str) -> PyResult<Array> {
        let dtype = dtype_named(dtype)?;
        self.with(py, |array| array.cast(dtype)).map(Array::of)
    }

    /// The same elements in another shape, in the same memory.
    fn reshaped(&self, py: Python<'_>, shape: Vec<i64>) -> PyResult<Array> {
        self.with(py, |array| array.reshape(&shape)).map(Array::of)
    }

    /// The elements at positions of the leading axes: numbers, or triples of begin, end and step.
    fn slice(&self, py: Python<'_>, positions: Vec<Position>) -> PyResult<Array> {
        let slices: Vec<Slice> = positions.into_iter().map(Slice::from).collect();
        self.with(py, |array| array.slice(&slices)).map(Array::of)
    }

    /// Writes a number, or the elements of an array, to positions.
    fn assign(&self, py: Python<'_>, positions: Vec<Position>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let slices: Vec<Slice> = positions.into_iter().map(Slice::from).collect();
        if let Ok(value) = value.cast::<Array>() {
            let value = value.get().array();
            return self.with(py, |array| array.set(&slices, &value));
        }
        let value = value.extract::<f64>()?;
        self.with(py, |array| match &slices[..] {
            [] => array.fill(value),
            some => array.set(some, value),
        })
    }

    #[pyo3(signature = (request, gradient = None))]
    fn attach_grad(&self, py: Python<'_>, request: &str, gradient: Option<&Array>) -> PyResult<()> {
        let request = grad_req(py, request)?;
        let mut array = self.array();
        let attached = match gradient {
            Some(gradient) => array.attach_grad_to(&gradient.array(), request),
            None => array.attach_grad(request),
        };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = array;
        attached.map_err(|error| errors::mxnet(py, &error))
    }

    #[getter]
    fn grad(&self) -> Option<Array> {
        self.array().grad().map(Array::of)
    }

    fn detached(&self) -> Array {
        Array::of(self.array().detach())
    }

    /// Whether both handles see the same elements.
    fn is_same(&self, other: &Array) -> bool {
        self.array().is_same(&other.array())
    }
}

/// Positions of an axis.
#[derive(FromPyObject)]
pub enum Position {
    One(i64),
    Range(Option<i64>, Option<i64>, i64),
}

impl From<Position> for Slice {
    fn from(position: Position) -> Slice {
        match position {
            Position::One(at) => Slice::from(at),
            Position::Range(begin, end, step) => Slice::new(begin, end, step),
        }
    }
}

/// Begins the sequence of random numbers of a seed.
#[pyfunction]
pub fn seed(py: Python<'_>, seed: u64) -> PyResult<()> {
    runtime(py)?.seed(seed);
    Ok(())
}

/// Waits until everything is computed.
#[pyfunction]
pub fn wait_all(py: Python<'_>) -> PyResult<()> {
    let rt = runtime(py)?;
    py.detach(|| rt.wait_all()).map_err(|error| errors::mxnet(py, &error))
}
