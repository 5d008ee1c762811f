//! Element types as buffers, numpy and ONNX name them.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use tensorc::DType;

/// The types with the names that numpy has for them, or the package `ml_dtypes`, and ONNX.
const NAMES: [(DType, &str, &str); 25] = [
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
    (DType::F8E4M3FN, "float8_e4m3fn", "float8e4m3fn"),
    (DType::F8E4M3FNUZ, "float8_e4m3fnuz", "float8e4m3fnuz"),
    (DType::F8E5M2, "float8_e5m2", "float8e5m2"),
    (DType::F8E5M2FNUZ, "float8_e5m2fnuz", "float8e5m2fnuz"),
    (DType::F8E8M0, "float8_e8m0fnu", "float8e8m0"),
    (DType::F6E2M3, "float6_e2m3fn", "float6e2m3"),
    (DType::F6E3M2, "float6_e3m2fn", "float6e3m2"),
    (DType::F4E2M1, "float4_e2m1fn", "float4e2m1"),
    (DType::I4, "int4", "int4"),
    (DType::I2, "int2", "int2"),
    (DType::U4, "uint4", "uint4"),
    (DType::U2, "uint2", "uint2"),
];

/// What numpy has in place of a type of `ml_dtypes`: for bfloat16 its bits, for a narrow type bytes.
pub fn stand_in(dtype: DType) -> Option<DType> {
    match dtype {
        DType::BF16 => Some(DType::U16),
        DType::I4 | DType::I2 => Some(DType::I8),
        _ => Some(dtype.storage()).filter(|storage| *storage != dtype),
    }
}

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

/// The object of numpy that stands for a type: that of the package `ml_dtypes` if numpy has none, else that of [`stand_in`].
///
/// # Errors
/// numpy cannot be imported.
pub fn numpy_dtype(py: Python<'_>, dtype: DType) -> PyResult<&Bound<'_, PyAny>> {
    static DTYPES: PyOnceLock<Vec<Py<PyAny>>> = PyOnceLock::new();
    let all = DTYPES.get_or_try_init(py, || {
        let class = py.import("numpy")?.getattr("dtype")?;
        let one = |(dtype, name, _): &(DType, &str, &str)| {
            let object = match stand_in(*dtype) {
                Some(bits) => match py.import("ml_dtypes").and_then(|module| module.getattr(*name)) {
                    Ok(object) => class.call1((object,)),
                    Err(_) => class.call1((numpy_name(bits),)),
                },
                None => class.call1((*name,)),
            };
            object.map(Bound::unbind)
        };
        NAMES.iter().map(one).collect::<PyResult<Vec<_>>>()
    })?;
    let at = NAMES.iter().position(|(found, ..)| *found == dtype).unwrap_or_default();
    Ok(all[at].bind(py))
}
