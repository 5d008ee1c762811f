//! Element types as buffers, numpy and ONNX name them.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use tensorc::DType;

/// The types with the names that numpy has for them. Of bfloat16 it has none.
const NAMES: [(DType, &str, &str); 13] = [
    (DType::F32, "float32", "float"),
    (DType::F64, "float64", "double"),
    (DType::F16, "float16", "float16"),
    (DType::BF16, "bfloat16", "bfloat16"),
    (DType::I8, "int8", "int8"),
    (DType::I16, "int16", "int16"),
    (DType::I32, "int32", "int32"),
    (DType::I64, "int64", "int64"),
    (DType::U8, "uint8", "uint8"),
    (DType::U16, "uint16", "uint16"),
    (DType::U32, "uint32", "uint32"),
    (DType::U64, "uint64", "uint64"),
    (DType::Bool, "bool", "bool"),
];

/// The type that numpy calls so.
pub fn of_numpy(name: &str) -> Option<DType> {
    NAMES.iter().find(|(_, numpy, _)| *numpy == name).map(|(dtype, ..)| *dtype)
}

/// What numpy calls a type.
pub fn numpy_name(dtype: DType) -> &'static str {
    NAMES.iter().find(|(found, ..)| *found == dtype).map_or("", |(_, numpy, _)| numpy)
}

/// What ONNX Runtime calls a tensor of the type: `tensor(float)`.
pub fn onnx_name(dtype: DType) -> String {
    format!("tensor({})", NAMES.iter().find(|(found, ..)| *found == dtype).map_or("", |(_, _, onnx)| onnx))
}

/// The type of elements of so many bytes whose format is a code of Python's module `struct` with native sizes; `None` for what is no
/// number or lies in the other byte order.
pub fn of_format(format: &[u8], size: usize) -> Option<DType> {
    let code = match format {
        [code] | [b'@' | b'=' | b'<', code] => *code,
        _ => return None,
    };
    Some(match (code, size) {
        (b'f', 4) => DType::F32,
        (b'd', 8) => DType::F64,
        (b'e', 2) => DType::F16,
        (b'?', 1) => DType::Bool,
        (b'b', 1) => DType::I8,
        (b'B' | b'c', 1) => DType::U8,
        (b'h', 2) => DType::I16,
        (b'H', 2) => DType::U16,
        (b'i' | b'l' | b'q' | b'n', 4) => DType::I32,
        (b'i' | b'l' | b'q' | b'n', 8) => DType::I64,
        (b'I' | b'L' | b'Q' | b'N', 4) => DType::U32,
        (b'I' | b'L' | b'Q' | b'N', 8) => DType::U64,
        _ => return None,
    })
}

/// The class `numpy.ndarray`.
///
/// # Errors
/// numpy cannot be imported.
pub fn ndarray(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static NDARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    NDARRAY.import(py, "numpy", "ndarray")
}

/// The object of numpy that stands for a type: for bfloat16 that of the package `ml_dtypes` if there is one, else `uint16`.
///
/// # Errors
/// numpy cannot be imported.
pub fn numpy_dtype(py: Python<'_>, dtype: DType) -> PyResult<&Bound<'_, PyAny>> {
    static DTYPES: PyOnceLock<Vec<Py<PyAny>>> = PyOnceLock::new();
    let all = DTYPES.get_or_try_init(py, || {
        let class = py.import("numpy")?.getattr("dtype")?;
        let one = |(dtype, name, _): &(DType, &str, &str)| {
            let object = match dtype {
                DType::BF16 => match py.import("ml_dtypes").and_then(|module| module.getattr("bfloat16")) {
                    Ok(bfloat16) => class.call1((bfloat16,)),
                    Err(_) => class.call1(("uint16",)),
                },
                _ => class.call1((*name,)),
            };
            object.map(Bound::unbind)
        };
        NAMES.iter().map(one).collect::<PyResult<Vec<_>>>()
    })?;
    let at = NAMES.iter().position(|(found, ..)| *found == dtype).unwrap_or_default();
    Ok(all[at].bind(py))
}
