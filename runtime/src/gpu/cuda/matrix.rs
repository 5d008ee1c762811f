//! What the copy engine is told of a matrix.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use cudarc::driver::sys;
use tensorc_abi::DType;

use crate::driver::MatrixParam;

/// Bytes of a row of a box.
const ROW: u32 = 128;

/// The matrices at an address as kernels take them.
///
/// Drivers that load code with such parameters have the call.
///
/// # Errors
/// The driver refuses the matrix; the message says why.
pub(super) fn encode(matrix: &MatrixParam, address: *mut u8) -> Result<sys::CUtensorMap, String> {
    use sys::CUtensorMapDataType as Element;
    let element = match matrix.dtype {
        DType::F16 => Element::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        DType::BF16 => Element::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        // The copy engine rounds what it reads.
        DType::F32 => Element::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
        other => return Err(format!("matrices of {other} are not copied")),
    };
    let bytes = matrix.dtype.size();
    let (mut extents, mut strides, mut in_box) = (vec![matrix.columns], vec![], vec![ROW / bytes as u32]);
    for (extent, stride, boxed) in matrix.axes() {
        extents.push(extent);
        strides.push(stride * bytes as u64);
        in_box.push(boxed);
    }
    let steps = vec![1; extents.len()];
    let mut map = MaybeUninit::<sys::CUtensorMap>::uninit();
    // SAFETY: the pointers are to as many numbers as there are extents, or one fewer; the driver only looks at the
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
