//! NDArray lists: the files `.params` and `.nd` in which MXNet saves arrays.
//!
//! A list has arrays, and a name for each or for none. Four versions of the format exist and all
//! are read: 0 (32-bit dimensions), 1 (64-bit), 2 (with sparse arrays) and 3 (where scalars and
//! dimensions of 0 exist). Every version keeps the elements row-major and little-endian.

mod checkpoint;
mod read;
mod sparse;
pub(super) mod version;
mod write;

use std::path::Path;

use tensorc_ir::TensorData;

pub use checkpoint::{Checkpoint, CheckpointRole, checkpoint_path};
pub use read::read;
pub use sparse::{Csr, RowSparse};
pub use version::ArrayVersion;
pub use write::write;
pub(crate) use write::write_to;

use super::error::{ArrayProblem, ParamsError, Site};
use crate::file::{FileError, replace_file};

/// First word of a list.
const LIST_MAGIC: u64 = 0x112;
/// First words of an array from version 1 on. Version 0 has its rank there.
const V1_MAGIC: u32 = 0xF993_FAC8;
const V2_MAGIC: u32 = 0xF993_FAC9;
const V3_MAGIC: u32 = 0xF993_FACA;

/// The device type in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SavedDeviceKind {
    /// The host.
    #[default]
    Cpu,
    /// A GPU.
    Gpu,
    /// Pinned memory of the host.
    CpuPinned,
    /// Memory shared between processes.
    CpuShared,
}

impl SavedDeviceKind {
    /// All device types.
    pub const ALL: [SavedDeviceKind; 4] =
        [SavedDeviceKind::Cpu, SavedDeviceKind::Gpu, SavedDeviceKind::CpuPinned, SavedDeviceKind::CpuShared];

    /// MXNet's number of the device type.
    pub const fn code(self) -> i32 {
        match self {
            SavedDeviceKind::Cpu => 1,
            SavedDeviceKind::Gpu => 2,
            SavedDeviceKind::CpuPinned => 3,
            SavedDeviceKind::CpuShared => 5,
        }
    }

    /// The inverse of [`SavedDeviceKind::code`].
    pub(crate) fn of_code(code: i32) -> Option<SavedDeviceKind> {
        SavedDeviceKind::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

/// Where an array was when it was saved. Its data is in the file whatever device that was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SavedDevice {
    /// The device type.
    pub kind: SavedDeviceKind,
    /// The number of the device.
    pub id: i32,
}

/// One array of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SavedArray {
    /// An array that had no shape when it was saved.
    None,
    /// Elements row-major in one piece.
    Dense {
        /// The device that held the array when it was saved.
        device: SavedDevice,
        /// The elements.
        data: TensorData,
    },
    /// Some rows of a matrix; the others are 0.
    RowSparse(Box<RowSparse>),
    /// A matrix in compressed sparse row format.
    Csr(Box<Csr>),
}

impl SavedArray {
    /// A dense array on the first cpu.
    pub fn dense(data: TensorData) -> SavedArray {
        SavedArray::Dense { device: SavedDevice::default(), data }
    }

    /// [`SavedArray::to_dense`] of the array of a list at `index`.
    ///
    /// # Errors
    /// As [`SavedArray::to_dense`], with the array's place.
    pub fn to_dense_of(&self, index: usize, name: Option<&str>) -> Result<TensorData, ParamsError> {
        let site = || Site::Array { index, name: name.map(str::to_owned) };
        self.to_dense().map_err(|problem| ParamsError::Array { site: site(), problem })
    }

    /// The array with every element stored. A dense array is not copied.
    ///
    /// # Errors
    /// The array is [`SavedArray::None`], its indices are not valid, or memory is exhausted.
    pub fn to_dense(&self) -> Result<TensorData, ArrayProblem> {
        match self {
            SavedArray::None => Err(ArrayProblem::None),
            SavedArray::Dense { data, .. } => Ok(data.clone()),
            SavedArray::RowSparse(sparse) => sparse.to_dense(),
            SavedArray::Csr(sparse) => sparse.to_dense(),
        }
    }

    /// The shape of the array, not of what is stored of it.
    pub fn dims(&self) -> Option<&[u64]> {
        match self {
            SavedArray::None => None,
            SavedArray::Dense { data, .. } => Some(data.dims()),
            SavedArray::RowSparse(sparse) => Some(&sparse.dims),
            SavedArray::Csr(sparse) => Some(&sparse.dims),
        }
    }
}

/// Arrays in the order of the file, with a name for each or for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrayList {
    /// The arrays with their names, in the order of the file.
    pub arrays: Vec<(Option<String>, SavedArray)>,
}

impl ArrayList {
    /// A list of arrays without names.
    pub fn unnamed(arrays: impl IntoIterator<Item = SavedArray>) -> ArrayList {
        ArrayList { arrays: arrays.into_iter().map(|array| (None, array)).collect() }
    }

    /// A list of arrays with names.
    pub fn named<N: Into<String>>(arrays: impl IntoIterator<Item = (N, SavedArray)>) -> ArrayList {
        ArrayList { arrays: arrays.into_iter().map(|(name, array)| (Some(name.into()), array)).collect() }
    }

    /// The array of a name; the last of them when several have it, as in MXNet.
    pub fn get(&self, name: &str) -> Option<&SavedArray> {
        self.arrays.iter().rev().find(|(n, _)| n.as_deref() == Some(name)).map(|(_, array)| array)
    }

    /// The version to write when the reader does not matter: 3 for lists with a scalar or a
    /// dimension of 0, 2, which more readers know, for all others.
    pub fn version(&self) -> ArrayVersion {
        let numpy = |array: &SavedArray| match array {
            SavedArray::Dense { data, .. } => data.dims().is_empty() || data.dims().contains(&0),
            _ => false,
        };
        if self.arrays.iter().any(|(_, array)| numpy(array)) { ArrayVersion::V3 } else { ArrayVersion::V2 }
    }

    fn site(&self, index: usize) -> Site {
        Site::Array { index, name: self.arrays.get(index).and_then(|(name, _)| name.clone()) }
    }
}

/// Reads a list from a file.
///
/// # Errors
/// The file cannot be opened, or see [`read`].
pub fn load(path: &Path) -> Result<ArrayList, ParamsError> {
    let failed = |source| FileError { action: "open", path: path.to_owned(), source };
    read(crate::read::bytes(path).map_err(failed)?)
}

/// Writes a list to a file, which is replaced as a whole or not at all ([`replace_file`]).
///
/// # Errors
/// The file cannot be written, or see [`write`].
pub fn save(path: &Path, list: &ArrayList, version: ArrayVersion) -> Result<(), ParamsError> {
    replace_file(path, |out| write_to(list, version, out)).map_err(|error| match error {
        ParamsError::Stream(source) => FileError { action: "write", path: path.to_owned(), source }.into(),
        other => other,
    })
}

/// Bytes of an array; `None` if its extent, dimensions of 0 left out, exceeds an `i64`, so that
/// strides and offsets never overflow.
fn byte_len(dtype: tensorc_abi::DType, dims: &[u64]) -> Option<u64> {
    let extent = dims.iter().filter(|&&d| d != 0).try_fold(dtype.size() as u64, |a, &d| a.checked_mul(d))?;
    i64::try_from(extent).ok()?;
    Some(if dims.contains(&0) { 0 } else { extent })
}
