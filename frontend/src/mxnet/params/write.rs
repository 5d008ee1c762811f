//! Writing of NDArray lists.

use std::io::Write;

use tensorc_abi::DType;
use tensorc_ir::TensorData;

use super::sparse::{Csr, RowSparse};
use super::{ArrayList, ArrayVersion, LIST_MAGIC, SavedArray, SavedDevice, V1_MAGIC, V2_MAGIC, V3_MAGIC, byte_len};
use crate::mxnet::dtype::code_of_dtype;
use crate::mxnet::error::{ArrayProblem, ParamsError};

/// The bytes of a list, as MXNet writes it.
///
/// # Errors
/// An array cannot be expressed in `version`, its indices are not valid, or only some arrays have
/// names.
pub fn write(list: &ArrayList, version: ArrayVersion) -> Result<Vec<u8>, ParamsError> {
    let mut bytes = vec![];
    write_to(list, version, &mut bytes)?;
    Ok(bytes)
}

/// Writes the bytes of a list to `out`, in many small pieces. The list is checked first, so that
/// nothing is written of one that cannot be.
///
/// # Errors
/// See [`write`]; and `out` fails.
pub(crate) fn write_to(list: &ArrayList, version: ArrayVersion, out: &mut dyn Write) -> Result<(), ParamsError> {
    let named = list.arrays.first().is_some_and(|(name, _)| name.is_some());
    if let Some(odd) = list.arrays.iter().position(|(name, _)| name.is_some() != named) {
        return Err(ParamsError::MixedNames { unnamed: if named { odd } else { 0 } });
    }
    for (index, (_, array)) in list.arrays.iter().enumerate() {
        check(array, version).map_err(|problem| ParamsError::Array { site: list.site(index), problem })?;
    }
    emit(list, version, out).map_err(ParamsError::Stream)
}

/// Whether `version` can express the array.
fn check(array: &SavedArray, version: ArrayVersion) -> Result<(), ArrayProblem> {
    let kind = match array {
        SavedArray::None => return Ok(()),
        SavedArray::Dense { data, .. } => return check_dense(data, version),
        SavedArray::RowSparse(sparse) => {
            sparse.check()?;
            RowSparse::KIND
        }
        SavedArray::Csr(sparse) => {
            sparse.check()?;
            Csr::KIND
        }
    };
    if version != ArrayVersion::V2 {
        return Err(ArrayProblem::Sparse { kind, version });
    }
    Ok(())
}

fn check_dense(data: &TensorData, version: ArrayVersion) -> Result<(), ArrayProblem> {
    let dims = data.dims();
    if version != ArrayVersion::V3 && dims.is_empty() {
        return Err(ArrayProblem::Scalar(version));
    }
    if version != ArrayVersion::V3 && dims.contains(&0) {
        return Err(ArrayProblem::ZeroDimension(version));
    }
    let short = version != ArrayVersion::V0 || dims.iter().all(|&d| u32::try_from(d).is_ok());
    if !short || byte_len(data.dtype(), dims).is_none() {
        return Err(ArrayProblem::TooLarge(dims.to_vec()));
    }
    Ok(())
}

fn emit(list: &ArrayList, version: ArrayVersion, out: &mut dyn Write) -> std::io::Result<()> {
    for word in [LIST_MAGIC, 0, list.arrays.len() as u64] {
        out.write_all(&word.to_le_bytes())?;
    }
    for (_, array) in &list.arrays {
        match array {
            SavedArray::None => none(version, out)?,
            SavedArray::Dense { device, data } => dense(*device, data, version, out)?,
            SavedArray::RowSparse(sparse) => row_sparse(sparse, out)?,
            SavedArray::Csr(sparse) => csr(sparse, out)?,
        }
    }
    let names: Vec<&str> = list.arrays.iter().filter_map(|(name, _)| name.as_deref()).collect();
    out.write_all(&(names.len() as u64).to_le_bytes())?;
    for name in names {
        out.write_all(&(name.len() as u64).to_le_bytes())?;
        out.write_all(name.as_bytes())?;
    }
    Ok(())
}

fn int(value: i32, out: &mut dyn Write) -> std::io::Result<()> {
    out.write_all(&value.to_le_bytes())
}

/// Magic and, where the version has it, storage type.
fn start(version: ArrayVersion, storage: i32, out: &mut dyn Write) -> std::io::Result<()> {
    let magic = match version {
        ArrayVersion::V0 => return Ok(()),
        ArrayVersion::V1 => return out.write_all(&V1_MAGIC.to_le_bytes()),
        ArrayVersion::V2 => V2_MAGIC,
        ArrayVersion::V3 => V3_MAGIC,
    };
    out.write_all(&magic.to_le_bytes())?;
    int(storage, out)
}

fn shape(dims: &[u64], version: ArrayVersion, out: &mut dyn Write) -> std::io::Result<()> {
    int(dims.len() as i32, out)?;
    for &dim in dims {
        match version {
            ArrayVersion::V0 => out.write_all(&(dim as u32).to_le_bytes())?,
            _ => out.write_all(&dim.to_le_bytes())?,
        }
    }
    Ok(())
}

fn device(device: SavedDevice, out: &mut dyn Write) -> std::io::Result<()> {
    int(device.kind.code(), out)?;
    int(device.id, out)
}

fn dtype(dtype: DType, out: &mut dyn Write) -> std::io::Result<()> {
    int(code_of_dtype(dtype), out)
}

/// An array without shape: rank -1 where 0 is that of a scalar.
fn none(version: ArrayVersion, out: &mut dyn Write) -> std::io::Result<()> {
    start(version, 0, out)?;
    int(if version == ArrayVersion::V3 { -1 } else { 0 }, out)
}

fn dense(on: SavedDevice, data: &TensorData, version: ArrayVersion, out: &mut dyn Write) -> std::io::Result<()> {
    start(version, 0, out)?;
    shape(data.dims(), version, out)?;
    device(on, out)?;
    dtype(data.dtype(), out)?;
    out.write_all(data.bytes())
}

/// What every sparse array has up to the types of its indices.
fn sparse_start(
    storage: i32,
    values: &TensorData,
    dims: &[u64],
    on: SavedDevice,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    start(ArrayVersion::V2, storage, out)?;
    shape(values.dims(), ArrayVersion::V2, out)?;
    shape(dims, ArrayVersion::V2, out)?;
    device(on, out)?;
    dtype(values.dtype(), out)
}

fn index_type(data: &TensorData, out: &mut dyn Write) -> std::io::Result<()> {
    dtype(data.dtype(), out)?;
    shape(data.dims(), ArrayVersion::V2, out)
}

fn row_sparse(sparse: &RowSparse, out: &mut dyn Write) -> std::io::Result<()> {
    sparse_start(1, &sparse.values, &sparse.dims, sparse.device, out)?;
    index_type(&sparse.indices, out)?;
    out.write_all(sparse.values.bytes())?;
    out.write_all(sparse.indices.bytes())
}

fn csr(sparse: &Csr, out: &mut dyn Write) -> std::io::Result<()> {
    sparse_start(2, &sparse.values, &sparse.dims, sparse.device, out)?;
    index_type(&sparse.indptr, out)?;
    index_type(&sparse.indices, out)?;
    out.write_all(sparse.values.bytes())?;
    out.write_all(sparse.indptr.bytes())?;
    out.write_all(sparse.indices.bytes())
}
