//! Arrays of texts: numpy's arrays of strings, bytes or objects.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use tensorc::{Array, Output, TextArray};

use crate::arrays::BorrowedArray;
use crate::host_memory::numpy_array;
use crate::{element, errors};

/// A value for an input.
pub enum FeedValue {
    Numbers(BorrowedArray),
    Texts(TextArray),
}

impl FeedValue {
    /// What ONNX Runtime calls the type.
    pub fn kind(&self) -> String {
        match self {
            FeedValue::Numbers(array) => element::onnx_name(array.dtype()),
            FeedValue::Texts(_) => TEXTS.to_owned(),
        }
    }

    /// Extents, outermost first.
    pub fn dims(&self) -> &[u64] {
        match self {
            FeedValue::Numbers(array) => array.dims(),
            FeedValue::Texts(texts) => texts.dims(),
        }
    }

    /// The value with a copy of its numbers.
    ///
    /// # Errors
    /// None that the value does not have already.
    pub fn owned(&self, py: Python<'_>) -> PyResult<Array> {
        match self {
            FeedValue::Numbers(array) => {
                let tensor = array.tensor();
                let copy = tensorc::Tensor::from_bytes(tensor.dtype, tensor.dims, tensor.data.to_vec());
                copy.map(Array::from).map_err(|error| errors::raised(py, &error))
            }
            FeedValue::Texts(texts) => Ok(texts.clone().into()),
        }
    }
}

/// What ONNX Runtime calls tensors of texts.
pub const TEXTS: &str = "tensor(string)";

/// Whether an array holds strings, bytes or objects.
pub fn is_text_array(value: &Bound<'_, PyAny>) -> bool {
    let kind = || value.getattr("dtype")?.getattr("kind")?.extract::<char>();
    kind().is_ok_and(|kind| matches!(kind, 'U' | 'S' | 'O' | 'T'))
}

/// The texts of an array of strings, bytes or objects, or of lists; objects that are no strings become what `str` makes of them.
/// `None` for other arrays.
///
/// # Errors
/// Bytes are no UTF-8 text, or an object has no text.
pub fn texts_of(value: &Bound<'_, PyAny>) -> PyResult<Option<TextArray>> {
    let py = value.py();
    let is_list = value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>();
    let is_text = value.is_instance_of::<PyString>();
    let array = match is_list || is_text {
        true => py.import("numpy")?.call_method1("asarray", (value, "object"))?,
        false if is_text_array(value) => value.clone(),
        false => return Ok(None),
    };
    let bytes = array.getattr("dtype")?.getattr("kind")?.extract::<char>()? == 'S';
    let dims = array.getattr("shape")?.extract::<Vec<u64>>()?;
    let elements = array.call_method1("astype", ("object",))?.call_method0("ravel")?.call_method0("tolist")?;
    let one = |item: PyResult<Bound<'_, PyAny>>| -> PyResult<_> {
        let item = item?;
        match item.cast::<PyBytes>() {
            Ok(item) if bytes => {
                let text = std::str::from_utf8(item.as_bytes());
                Ok(text.map_err(|_| PyTypeError::new_err("bytes that are no UTF-8 text"))?.into())
            }
            _ => Ok(item.str()?.to_cow()?.into()),
        }
    };
    let texts = elements.try_iter()?.map(one).collect::<PyResult<Vec<_>>>()?;
    Ok(TextArray::new(&dims, texts))
}

/// A result as an array of numpy, of objects if it is texts.
///
/// # Errors
/// Memory is short, or numpy cannot be imported.
pub fn array_of<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyAny>> {
    match array {
        Array::Numbers(tensor) => {
            numpy_array(py, Output::try_from(tensor).map_err(|error| errors::raised(py, &error))?)
        }
        Array::Texts(texts) => {
            let elements = PyList::new(py, texts.texts().iter().map(|text| &**text))?;
            let array = py.import("numpy")?.call_method1("array", (elements, "object"))?;
            array.call_method1("reshape", (PyTuple::new(py, texts.dims())?,))
        }
    }
}
