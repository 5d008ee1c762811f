//! The numbers that MXNet's files use for element types. It has no narrow types; theirs are our own.

use tensorc_abi::DType;

/// With the number of a narrow type in [`DType`], its code.
const FIRST_NARROW: i32 = 100;

/// The element type of a code; `None` for a code that is not defined or has no counterpart.
pub(crate) fn dtype_of_code(code: i32) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| code_of_dtype(*dtype) == code)
}

/// The code of an element type, the inverse of [`dtype_of_code`].
pub(crate) const fn code_of_dtype(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 0,
        DType::F64 => 1,
        DType::F16 => 2,
        DType::U8 => 3,
        DType::I32 => 4,
        DType::I8 => 5,
        DType::I64 => 6,
        DType::Bool => 7,
        DType::I16 => 8,
        DType::U16 => 9,
        DType::U32 => 10,
        DType::U64 => 11,
        DType::BF16 => 12,
        narrow => FIRST_NARROW + narrow as i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_types_are_inverse() {
        for dtype in DType::ALL {
            assert_eq!(dtype_of_code(code_of_dtype(dtype)), Some(dtype));
        }
        for wrong in [-1, 13, i32::MIN, i32::MAX] {
            assert_eq!(dtype_of_code(wrong), None);
        }
    }
}
