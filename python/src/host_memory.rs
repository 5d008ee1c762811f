//! Results as memory that Python owns.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tensorc::{DType, Output};

use crate::element;

/// Memory of a result, which arrays of numpy see.
#[pyclass(frozen, module = "tensorc._tensorc")]
pub struct HostMemory {
    start: *mut u8,
    len: usize,
    /// What owns the memory. Nothing here reads or writes it any more.
    _owner: MemoryOwner,
}

/// What may own memory; its address stays the same when it is moved.
enum MemoryOwner {
    Output { _output: Output },
    Bytes { _bytes: Vec<u8> },
}

// SAFETY: the memory is owned, and it is touched by Python alone.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    fn of_output(mut output: Output) -> HostMemory {
        let bytes = output.bytes_mut();
        let (start, len) = (bytes.as_mut_ptr(), bytes.len());
        HostMemory { start, len, _owner: MemoryOwner::Output { _output: output } }
    }

    fn of_bytes(mut bytes: Vec<u8>) -> HostMemory {
        let (start, len) = (bytes.as_mut_ptr(), bytes.len());
        HostMemory { start, len, _owner: MemoryOwner::Bytes { _bytes: bytes } }
    }
}

#[pymethods]
impl HostMemory {
    #[allow(clippy::needless_pass_by_value, reason = "what the protocol of buffers passes")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = slf.get();
        let len = memory.len as ffi::Py_ssize_t;
        // SAFETY: Python passes a place for the view; the memory lives as long as the object, to which the view refers.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), memory.start.cast(), len, 0, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// A result as an array of numpy, in the memory into which it was computed.
///
/// # Errors
/// Memory is short, or numpy cannot be imported.
pub fn numpy_array(py: Python<'_>, output: Output) -> PyResult<Bound<'_, PyAny>> {
    let (dtype, shape) = (output.dtype(), PyTuple::new(py, output.dims())?);
    array_in(py, HostMemory::of_output(output), dtype, shape)
}

/// Little-endian, row-major elements as an array of numpy, in their memory.
///
/// # Errors
/// They do not fill the shape, or numpy cannot be imported.
pub fn array_of_bytes<'py>(py: Python<'py>, bytes: Vec<u8>, dtype: DType, dims: &[u64]) -> PyResult<Bound<'py, PyAny>> {
    array_in(py, HostMemory::of_bytes(bytes), dtype, PyTuple::new(py, dims)?)
}

fn array_in<'py>(
    py: Python<'py>,
    memory: HostMemory,
    dtype: DType,
    shape: Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let memory = Bound::new(py, memory)?;
    element::ndarray(py)?.call1((shape, element::numpy_dtype(py, dtype)?, memory))
}
