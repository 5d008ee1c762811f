//! What the copy engine is told of a matrix.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use cudarc::driver::sys;

use crate::gpu::Matrix;

/// Bytes of a row of a box, and of an element.
const ROW: u32 = 128;
const ELEMENT: u32 = 2;

/// The matrix at an address as kernels take it.
///
/// Drivers that load code with such parameters have the call.
///
/// # Errors
/// The driver refuses the matrix; the message says why.
pub(super) fn encode(matrix: &Matrix, address: *mut u8) -> Result<sys::CUtensorMap, String> {
    use sys::CUtensorMapDataType::{CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16};
    let element = if matrix.bf16 { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 } else { CU_TENSOR_MAP_DATA_TYPE_FLOAT16 };
    let extents = [matrix.columns, matrix.rows];
    let strides = [matrix.stride * u64::from(ELEMENT)];
    let (in_box, steps) = ([ROW / ELEMENT, matrix.box_rows], [1, 1]);
    let mut map = MaybeUninit::<sys::CUtensorMap>::uninit();
    // SAFETY: the pointers are to as many numbers as a matrix has extents, or one fewer; the driver only looks at the
    // address as a number.
    let outcome = unsafe {
        sys::cuTensorMapEncodeTiled(
            map.as_mut_ptr(),
            element,
            extents.len() as u32,
            address.cast::<c_void>(),
            extents.as_ptr(),
            strides.as_ptr(),
            in_box.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    match outcome {
        // SAFETY: the driver has written it.
        sys::CUresult::CUDA_SUCCESS => Ok(unsafe { map.assume_init() }),
        refused => Err(format!("a matrix {matrix:?}: {refused:?}")),
    }
}
