//! Cranelift types and constant bits of element types.

use cranelift_codegen::ir::{Type, types};
use tensorc_abi::DType;
use tensorc_ir::scalar::Scalar;

/// The CLIF type of a scalar of `dtype`.
pub(super) const fn carrier(dtype: DType) -> Type {
    match dtype {
        DType::F32 => types::F32,
        DType::F64 => types::F64,
        DType::I64 | DType::U64 => types::I64,
        DType::Bool => types::I8,
        _ => types::I32,
    }
}

/// The bits of a constant in its carrier.
pub(super) fn carried_bits(c: Scalar) -> u64 {
    if c.dtype.is_signed_int() { c.as_i64() as u64 } else { c.bits }
}

/// The type of a chunk of `dtype`; masks have lanes of `mask_bits`.
pub(super) fn chunk_type(dtype: DType, mask_bits: u32) -> Type {
    match (dtype, carrier(dtype)) {
        (DType::Bool, _) if mask_bits == 64 => types::I64X2,
        (DType::Bool, _) => types::I32X4,
        (_, types::F32) => types::F32X4,
        (_, types::F64) => types::F64X2,
        (_, types::I64) => types::I64X2,
        _ => types::I32X4,
    }
}
