//! Memory of arrays that other libraries share, by DLPack.

use std::ffi::{CStr, c_void};

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensorc::runtime::dlpack::{DLManagedTensor, DLManagedTensorVersioned, Imported};

use super::array::Array;
use super::runtime;
use crate::errors;

const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";
const LEGACY: &CStr = c"dltensor";
const LEGACY_USED: &CStr = c"used_dltensor";

/// Waits for everything that uses an array and lends its memory, in a capsule of version 1 or of the form before it.
#[pyfunction]
pub fn lend_array<'py>(py: Python<'py>, array: &Array, versioned: bool) -> PyResult<Bound<'py, PyAny>> {
    let array = array.array();
    // The address alone, because pointers do not leave the part without the interpreter's lock.
    let lent = py.detach(|| array.to_dlpack().map(|tensor| tensor.expose_provenance()));
    let address = lent.map_err(|error| PyBufferError::new_err(error.to_string()))?;
    let tensor = std::ptr::with_exposed_provenance_mut::<DLManagedTensorVersioned>(address);
    let (pointer, name, destructor): (*mut c_void, &CStr, ffi::PyCapsule_Destructor) = match versioned {
        true => (tensor.cast(), VERSIONED, release_versioned),
        false => (legacy(tensor).cast(), LEGACY, release_legacy),
    };
    // SAFETY: the tensor is handed over to the capsule, whose destructor gives it back unless a consumer has renamed the capsule.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destructor))) }
}

/// A tensor in the older form, whose deleter gives back the newer one.
fn legacy(tensor: *mut DLManagedTensorVersioned) -> *mut DLManagedTensor {
    // SAFETY: the tensor was just lent and is alive.
    let dl_tensor = unsafe { (*tensor).dl_tensor };
    Box::into_raw(Box::new(DLManagedTensor { dl_tensor, manager_ctx: tensor.cast(), deleter: Some(delete_legacy) }))
}

/// Gives back what [`legacy`] made.
unsafe extern "C" fn delete_legacy(tensor: *mut DLManagedTensor) {
    // SAFETY: a deleter is called once, with the structure that `legacy` has boxed, which owns the other one.
    unsafe {
        let owner = Box::from_raw(tensor).manager_ctx.cast::<DLManagedTensorVersioned>();
        if let Some(deleter) = (*owner).deleter {
            deleter(owner);
        }
    }
}

/// An array in the memory of an object that has the protocol of DLPack.
#[pyfunction]
pub fn borrow_array(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<Array> {
    let rt = runtime(py)?;
    let imported = imported(&capsule(source)?)?;
    rt.from_dlpack(imported).map(Array::of).map_err(|error| errors::mxnet(py, &error))
}

/// Gives back a tensor that nobody has taken over.
unsafe extern "C" fn release_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule that it destroys. If that still has its first name, nobody has taken the tensor over,
    // and its deleter is called once.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            let tensor = ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast::<DLManagedTensorVersioned>();
            if let Some(deleter) = (*tensor).deleter {
                deleter(tensor);
            }
        }
    }
}

/// The same for the older form.
unsafe extern "C" fn release_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: as in `release_versioned`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) != 0 {
            delete_legacy(ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()).cast::<DLManagedTensor>());
        }
    }
}

/// A capsule of an object, of version 1 if it knows that.
fn capsule<'py>(source: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if !source.hasattr("__dlpack__")? {
        return Err(PyTypeError::new_err(format!("{} has no method __dlpack__", source.get_type())));
    }
    let options = PyDict::new(source.py());
    options.set_item("max_version", (1, 0))?;
    match source.call_method("__dlpack__", (), Some(&options)) {
        Err(error) if error.is_instance_of::<PyTypeError>(source.py()) => source.call_method0("__dlpack__"),
        made => made,
    }
}

/// Takes the tensor of a capsule over.
fn imported(capsule: &Bound<'_, PyAny>) -> PyResult<Imported> {
    let object = capsule.as_ptr();
    // SAFETY: the capsule lives; one of these names has the structure that DLPack defines for it. It is renamed, so that nobody else
    // takes the tensor over and its destructor leaves it alone. By the protocol, the deleter may be called on any thread, and the
    // elements are not written elsewhere while operations on the array are pending.
    let taken = unsafe {
        if ffi::PyCapsule_IsValid(object, VERSIONED.as_ptr()) != 0 {
            let tensor = ffi::PyCapsule_GetPointer(object, VERSIONED.as_ptr()).cast::<DLManagedTensorVersioned>();
            ffi::PyCapsule_SetName(object, VERSIONED_USED.as_ptr());
            Imported::from_versioned(tensor)
        } else if ffi::PyCapsule_IsValid(object, LEGACY.as_ptr()) != 0 {
            let tensor = ffi::PyCapsule_GetPointer(object, LEGACY.as_ptr()).cast::<DLManagedTensor>();
            ffi::PyCapsule_SetName(object, LEGACY_USED.as_ptr());
            Imported::from_legacy(tensor)
        } else {
            return Err(PyTypeError::new_err("__dlpack__ gave no capsule of DLPack, or one that was used before"));
        }
    };
    taken.map_err(|error| PyBufferError::new_err(error.to_string()))
}
