//! Arrays of texts: numpy's arrays of strings, bytes or objects.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use tensorc::{Array, DType, MapKeys, Output, TextArray};

use crate::arrays::BorrowedArray;
use crate::element;
use crate::errors::{self, Class};
use crate::host_memory::numpy_array;

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

/// The keys and the values of a dictionary for an input that is a map.
///
/// # Errors
/// It is no dictionary, or its keys or values are of other types than the model states.
pub fn map_parts(name: &str, value: &Bound<'_, PyAny>, kind: &str) -> PyResult<[(String, Array); 2]> {
    let py = value.py();
    let Ok(map) = value.cast::<PyDict>() else {
        let message = format!("Unexpected input data type. Input `{name}`: no dictionary , expected: ({kind})");
        return Err(Class::InvalidArgument.error(py, &message, None));
    };
    let (of_key, of_value) = kind.trim_start_matches("map(").split_once(',').unwrap_or((kind, kind));
    let part = |elements: Bound<'_, PyList>, ty: &str| {
        if ty == "string" {
            let all_texts = elements.iter().all(|element| element.is_instance_of::<PyString>());
            let texts = if all_texts { texts_of(&elements)? } else { None };
            return texts.map(Array::from).ok_or_else(|| PyTypeError::new_err("elements that are no strings"));
        }
        let named = DType::ALL.into_iter().find(|dtype| element::onnx_name(*dtype) == format!("tensor({ty})"));
        let dtype = element::numpy_dtype(py, named.unwrap_or(DType::F32))?;
        let array = py.import("numpy")?.call_method1("asarray", (elements, dtype))?;
        FeedValue::Numbers(BorrowedArray::of(&array)?).owned(py)
    };
    let of_value = of_value.trim_start_matches("tensor(").trim_end_matches(')');
    let parts = part(map.keys(), of_key).and_then(|keys| Ok([keys, part(map.values(), of_value)?]));
    match parts {
        Ok([keys, values]) => Ok([(format!("{name}.keys"), keys), (format!("{name}.values"), values)]),
        Err(error) => {
            let why = error.value(py).to_string();
            let message = format!("Unexpected input data type. Input `{name}`: {why} , expected: ({kind})");
            Err(Class::InvalidArgument.error(py, &message, None))
        }
    }
}

/// The rows of an array as dictionaries, which have their keys in ascending order.
///
/// # Errors
/// The array is no matrix.
pub fn dictionaries<'py>(values: &Bound<'py, PyAny>, keys: &MapKeys) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let py = values.py();
    let mut columns: Vec<(Bound<'py, PyAny>, usize)> = vec![];
    match keys {
        MapKeys::Texts(texts) => {
            let mut order: Vec<(&String, usize)> = texts.iter().zip(0..).collect();
            order.sort();
            columns.extend(order.into_iter().map(|(text, at)| (PyString::new(py, text).into_any(), at)));
        }
        MapKeys::Integers(integers) => {
            let mut order: Vec<(i64, usize)> = integers.iter().copied().zip(0..).collect();
            order.sort_unstable();
            for (key, at) in order {
                columns.push((key.into_pyobject(py)?.into_any(), at));
            }
        }
    }
    let row = |row: PyResult<Bound<'py, PyAny>>| {
        let (row, made) = (row?, PyDict::new(py));
        for (key, at) in &columns {
            made.set_item(key, row.get_item(at)?)?;
        }
        Ok(made)
    };
    values.call_method0("tolist")?.try_iter()?.map(row).collect()
}
