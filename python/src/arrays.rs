//! Arrays of Python as tensors, without copying where that is possible.

use std::ffi::CStr;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use tensorc::DType;
use tensorc::runtime::TensorRef;

use crate::element;
use crate::texts::is_text_array;

/// An array that Python owns, whose elements lie in row-major order without gaps, at an address that suits their type. As long as it
/// lives, the object cannot move or free them.
pub struct BorrowedArray {
    view: BufferView,
    dtype: DType,
    dims: Vec<u64>,
}

impl BorrowedArray {
    /// The elements of an array, or of what numpy makes an array of: the same memory if it is one without gaps, else a copy.
    ///
    /// # Errors
    /// It holds no numbers.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<BorrowedArray> {
        if let Some(array) = BorrowedArray::directly(object)? {
            return Ok(array);
        }
        let numpy = object.py().import("numpy")?;
        // What has the protocol of DLPack alone.
        let lent = match object.hasattr("__dlpack__")? && !object.hasattr("__array__")? {
            true => Some(numpy.call_method1("from_dlpack", (object,))?),
            false => None,
        };
        let object = lent.as_ref().unwrap_or(object);
        let array = numpy.call_method1("ascontiguousarray", (object,))?;
        // That makes a row of a single number.
        let array = match numpy.call_method1("ndim", (object,))?.extract::<usize>()? {
            0 => array.call_method1("reshape", ((),))?,
            _ => array,
        };
        let (array, dtype) = as_numbers(&array)?;
        let found = BorrowedArray::directly(&array)?;
        // Other byte orders, and memory that begins at an odd address.
        let found = match found {
            Some(found) => Some(found),
            None => {
                let native = array.getattr("dtype")?.call_method1("newbyteorder", ("=",))?;
                BorrowedArray::directly(&array.call_method1("astype", (native,))?)?
            }
        };
        match found {
            Some(found) => Ok(BorrowedArray { dtype: dtype.unwrap_or(found.dtype), ..found }),
            None => Err(no_numbers(&array)),
        }
    }

    /// The elements if they lie as tensors do. `None` if they do not, or the object has no buffer or no numbers.
    fn directly(object: &Bound<'_, PyAny>) -> PyResult<Option<BorrowedArray>> {
        let Some(view) = BufferView::of(object) else { return Ok(None) };
        let Some(dtype) = element::of_format(view.format(), view.item_size()) else { return Ok(None) };
        if !view.is_contiguous() || !view.address().addr().is_multiple_of(dtype.size()) {
            return Ok(None);
        }
        let dims = view.shape().iter().map(|extent| *extent as u64).collect();
        Ok(Some(BorrowedArray { view, dtype, dims }))
    }

    /// The elements of an array of integers as those of a type that numpy does not have, of which they are the bits; else as
    /// they are.
    ///
    /// # Errors
    /// A byte is no element of the type.
    pub fn read_as(self, stated: Option<DType>) -> PyResult<BorrowedArray> {
        let Some(dtype) = stated.filter(|dtype| dtype.is_narrow() && element::stand_in(*dtype) == Some(self.dtype))
        else {
            return Ok(self);
        };
        match self.view.bytes().iter().find(|byte| !dtype.holds(**byte)) {
            Some(byte) => Err(PyTypeError::new_err(format!("byte {byte:#04x} is no element of {dtype}"))),
            None => Ok(BorrowedArray { dtype, ..self }),
        }
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents, outermost first.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// The elements.
    pub fn tensor(&self) -> TensorRef<'_> {
        TensorRef::new(self.dtype, &self.dims, self.view.bytes())
    }
}

/// Arrays of types of `ml_dtypes` as those of integers with that type; numpy gives no buffers of the former.
fn as_numbers<'py>(array: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Option<DType>)> {
    let name = array.getattr("dtype")?.getattr("name")?.extract::<String>()?;
    match element::of_numpy(&name) {
        Some(dtype) => match element::stand_in(dtype) {
            None => Ok((array.clone(), None)),
            // What is above the bits of their elements is not defined.
            Some(bits) if matches!(dtype, DType::I4 | DType::I2 | DType::U4 | DType::U2) => {
                Ok((array.call_method1("astype", (element::numpy_name(bits),))?, Some(dtype)))
            }
            Some(bits) if dtype.bits() < 8 => {
                let bits = array.call_method1("view", (element::numpy_name(bits),))?;
                Ok((bits.call_method1("__and__", ((1u8 << dtype.bits()) - 1,))?, Some(dtype)))
            }
            Some(bits) => Ok((array.call_method1("view", (element::numpy_name(bits),))?, Some(dtype))),
        },
        None => Err(no_numbers(array)),
    }
}

fn no_numbers(array: &Bound<'_, PyAny>) -> PyErr {
    if is_text_array(array) {
        return PyTypeError::new_err("strings and other objects are no numbers");
    }
    let dtype = array.getattr("dtype");
    let dtype = dtype.map_or_else(|_| "unknown".to_owned(), |dtype| dtype.to_string());
    PyTypeError::new_err(format!(
        "an array of {dtype}: tensors hold float16, bfloat16, float32, float64, int8 to int64, uint8 to uint64, bool or narrow \
         types of ml_dtypes"
    ))
}

/// A buffer of an object, until it is dropped. It is boxed because some objects point into it.
struct BufferView(Box<ffi::Py_buffer>);

// SAFETY: the memory of a buffer stays where it is until the buffer is released, whatever thread has it; `drop` takes the
// interpreter's lock for that.
unsafe impl Send for BufferView {}
// SAFETY: a shared view is only read.
unsafe impl Sync for BufferView {}

impl BufferView {
    /// `None` if the object has no buffer.
    fn of(object: &Bound<'_, PyAny>) -> Option<BufferView> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object lives, and the place for the view is valid.
        let status = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, ffi::PyBUF_FULL_RO) };
        if status == 0 {
            return Some(BufferView(view));
        }
        drop(PyErr::take(object.py()));
        None
    }

    fn item_size(&self) -> usize {
        self.0.itemsize.unsigned_abs()
    }

    /// The code of the elements; bytes if the object states none.
    fn format(&self) -> &[u8] {
        if self.0.format.is_null() {
            return b"B";
        }
        // SAFETY: a format is text that ends in 0 and lives as long as the buffer.
        unsafe { CStr::from_ptr(self.0.format) }.to_bytes()
    }

    fn shape(&self) -> &[isize] {
        match self.0.ndim {
            0 => &[],
            // SAFETY: a buffer with axes that was asked for its shape has an extent for each.
            axes => unsafe { std::slice::from_raw_parts(self.0.shape, axes.unsigned_abs() as usize) },
        }
    }

    fn is_contiguous(&self) -> bool {
        // SAFETY: the buffer is valid.
        self.0.ndim == 0 || unsafe { ffi::PyBuffer_IsContiguous(&raw const *self.0, b'C' as std::ffi::c_char) } != 0
    }

    fn address(&self) -> *const u8 {
        self.0.buf.cast()
    }

    fn bytes(&self) -> &[u8] {
        match self.0.len {
            0 => &[],
            // SAFETY: the buffer is contiguous and has so many bytes until it is released. Whoever lets a model read an array does not
            // write to it meanwhile, as with other libraries that release the interpreter's lock.
            len => unsafe { std::slice::from_raw_parts(self.address(), len.unsigned_abs()) },
        }
    }
}

impl Drop for BufferView {
    fn drop(&mut self) {
        // SAFETY: the view was filled by `PyObject_GetBuffer` and is released once.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}
