//! Reading of NDArray lists.
//!
//! Every length is compared with what is left of the input before anything is made of it, so a
//! damaged list costs memory in proportion to its size at most.

use bytes::Bytes;
use tensorc_abi::DType;
use tensorc_ir::{DenseType, TensorData};

use super::sparse::{Csr, RowSparse};
use super::{
    ArrayList, ArrayVersion, LIST_MAGIC, SavedArray, SavedDevice, SavedDeviceKind, V1_MAGIC, V2_MAGIC, V3_MAGIC,
    byte_len,
};
use crate::mxnet::dtype::dtype_of_code;
use crate::mxnet::error::{FormatProblem, ParamsError, Site};
use crate::onnx::tensor::normalise_bool;

/// The smallest array: the rank 0 of version 0.
const MIN_ARRAY_BYTES: u64 = 4;
/// The smallest name: its length.
const MIN_NAME_BYTES: u64 = 8;

/// Reads a list of any version. The arrays are views of `bytes` and copy nothing, except bool
/// arrays with bytes other than 0 and 1, which become 1.
///
/// Whether the indices of sparse arrays are valid is checked when they are used
/// ([`SavedArray::to_dense`]).
///
/// # Errors
/// [`ParamsError::Format`] with the array and the byte where the list is damaged.
pub fn read(bytes: Bytes) -> Result<ArrayList, ParamsError> {
    let mut reader = Reader { bytes, at: 0, field: 0 };
    let count = reader.header().map_err(|problem| reader.error(Site::Header, problem))?;
    let mut list = ArrayList::default();
    for index in 0..count as usize {
        let array = reader.array().map_err(|problem| reader.error(Site::Array { index, name: None }, problem))?;
        list.arrays.push((None, array));
    }
    let names = reader.name_count(count).map_err(|problem| reader.error(Site::Names, problem))?;
    for (index, (name, _)) in list.arrays.iter_mut().enumerate().take(names as usize) {
        *name = Some(reader.name().map_err(|problem| reader.error(Site::Name { index }, problem))?);
    }
    match reader.left() {
        0 => Ok(list),
        left => {
            reader.field = reader.at;
            Err(reader.error(Site::End, FormatProblem::TrailingBytes(left)))
        }
    }
}

/// Recognises files that are taken for NDArray lists.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    let signatures: [(&[u8], &str); 4] = [
        (b"PK\x03\x04", "a zip archive (NumPy's .npz, as MXNet 2 writes)"),
        (b"\x93NUMPY", "a NumPy .npy file"),
        (b"version https://git-lfs", "a Git LFS pointer; the file itself has not been fetched"),
        (b"{", "JSON text (the symbol file?)"),
    ];
    signatures.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|s| s.1)
}

/// A shape field. Nothing follows one that is unknown.
enum SavedShape {
    Unknown,
    Known(Vec<u64>),
}

/// The shape of the stored values of a sparse array. MXNet saves one without elements for arrays
/// whose values it has computed, and takes the shape from the indices when it reads that.
fn storage_shape(saved: Vec<u64>, derived: Vec<u64>) -> Vec<u64> {
    if saved.contains(&0) { derived } else { saved }
}

/// The fields of a list, front to back.
struct Reader {
    bytes: Bytes,
    at: usize,
    /// Where the field that was read last begins.
    field: usize,
}

impl Reader {
    fn error(&self, site: Site, problem: FormatProblem) -> ParamsError {
        ParamsError::Format { site, offset: self.field as u64, problem }
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `count` bytes as a view of the input.
    fn take(&mut self, count: u64, what: &'static str) -> Result<Bytes, FormatProblem> {
        self.field = self.at;
        let left = self.left();
        if count > left {
            return Err(FormatProblem::Truncated { what, needed: count, left });
        }
        self.at += count as usize;
        Ok(self.bytes.slice(self.field..self.at))
    }

    fn word<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], FormatProblem> {
        let bytes = self.take(N as u64, what)?;
        let mut word = [0; N];
        word.copy_from_slice(&bytes);
        Ok(word)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, FormatProblem> {
        self.word(what).map(u32::from_le_bytes)
    }

    fn i32(&mut self, what: &'static str) -> Result<i32, FormatProblem> {
        self.word(what).map(i32::from_le_bytes)
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, FormatProblem> {
        self.word(what).map(u64::from_le_bytes)
    }

    /// Up to the number of arrays, which is returned.
    fn header(&mut self) -> Result<u64, FormatProblem> {
        if let Some(format) = other_format(&self.bytes) {
            return Err(FormatProblem::OtherFormat(format));
        }
        let found = self.u64("the header")?;
        if found != LIST_MAGIC {
            return Err(FormatProblem::NotAList { found });
        }
        self.u64("the header")?;
        self.count(MIN_ARRAY_BYTES, "the number of arrays", "the list of arrays")
    }

    /// A number of items, each of which takes `smallest` bytes or more.
    fn count(&mut self, smallest: u64, field: &'static str, what: &'static str) -> Result<u64, FormatProblem> {
        let count = self.u64(field)?;
        let (needed, left) = (count.saturating_mul(smallest), self.left());
        if needed > left {
            return Err(FormatProblem::Truncated { what, needed, left });
        }
        Ok(count)
    }

    fn name_count(&mut self, arrays: u64) -> Result<u64, FormatProblem> {
        let names = self.count(MIN_NAME_BYTES, "the number of names", "the list of names")?;
        if names != 0 && names != arrays {
            return Err(FormatProblem::NameCount { arrays, names });
        }
        Ok(names)
    }

    fn name(&mut self) -> Result<String, FormatProblem> {
        let length = self.u64("the length of the name")?;
        let bytes = self.take(length, "the name")?;
        std::str::from_utf8(&bytes).map(str::to_owned).map_err(|_| FormatProblem::NotUtf8)
    }

    fn array(&mut self) -> Result<SavedArray, FormatProblem> {
        let first = self.u32("the array")?;
        let version = match first {
            V3_MAGIC => ArrayVersion::V3,
            V2_MAGIC => ArrayVersion::V2,
            V1_MAGIC => ArrayVersion::V1,
            _ => ArrayVersion::V0,
        };
        match version {
            ArrayVersion::V0 => {
                let dims = self.short_dims(first)?;
                self.dense(SavedShape::Known(dims), version)
            }
            ArrayVersion::V1 => {
                let shape = self.shape(version)?;
                self.dense(shape, version)
            }
            ArrayVersion::V2 | ArrayVersion::V3 => match self.i32("the storage type")? {
                0 => {
                    let shape = self.shape(version)?;
                    self.dense(shape, version)
                }
                1 | 2 if version == ArrayVersion::V3 => Err(FormatProblem::SparseInV3),
                1 => self.row_sparse(),
                2 => self.csr(),
                other => Err(FormatProblem::UnknownStorage(other)),
            },
        }
    }

    /// The 32-bit dimensions of version 0.
    fn short_dims(&mut self, rank: u32) -> Result<Vec<u64>, FormatProblem> {
        let bytes = self.take(u64::from(rank) * 4, "the shape")?;
        let (words, _) = bytes.as_chunks();
        Ok(words.iter().map(|&word| u64::from(u32::from_le_bytes(word))).collect())
    }

    /// The rank and the 64-bit dimensions of later versions. In version 3 a rank or a dimension of
    /// -1 is an unknown one.
    fn shape(&mut self, version: ArrayVersion) -> Result<SavedShape, FormatProblem> {
        let unknown = version == ArrayVersion::V3;
        let rank = match self.i32("the rank")? {
            -1 if unknown => return Ok(SavedShape::Unknown),
            rank => u64::try_from(rank).map_err(|_| FormatProblem::BadRank(rank))?,
        };
        let bytes = self.take(rank * 8, "the shape")?;
        let (words, _) = bytes.as_chunks();
        let dims = words.iter().map(|&word| i64::from_le_bytes(word));
        if unknown && dims.clone().any(|dim| dim == -1) {
            return Ok(SavedShape::Unknown);
        }
        let dims = dims
            .enumerate()
            .map(|(index, value)| u64::try_from(value).map_err(|_| FormatProblem::BadDimension { index, value }));
        Ok(SavedShape::Known(dims.collect::<Result<_, _>>()?))
    }

    fn device(&mut self) -> Result<SavedDevice, FormatProblem> {
        let code = self.i32("the device")?;
        let kind = SavedDeviceKind::of_code(code).ok_or(FormatProblem::UnknownDevice(code))?;
        Ok(SavedDevice { kind, id: self.i32("the device")? })
    }

    fn dtype(&mut self, what: &'static str) -> Result<DType, FormatProblem> {
        let code = self.i32("the element type")?;
        dtype_of_code(code).ok_or(FormatProblem::UnknownType { code, what })
    }

    fn data(&mut self, dtype: DType, dims: Vec<u64>, what: &'static str) -> Result<TensorData, FormatProblem> {
        self.field = self.at;
        let Some(size) = byte_len(dtype, &dims) else { return Err(FormatProblem::TooLarge(dims)) };
        let bytes = self.take(size, what)?;
        let bytes = if dtype == DType::Bool { normalise_bool(bytes) } else { bytes };
        let ty = DenseType::new(dtype, &dims);
        TensorData::new(ty, bytes).ok_or(FormatProblem::TooLarge(dims))
    }

    /// What follows the shape of a dense array.
    fn dense(&mut self, shape: SavedShape, version: ArrayVersion) -> Result<SavedArray, FormatProblem> {
        let dims = match shape {
            SavedShape::Unknown => return Ok(SavedArray::None),
            // Without scalars, rank 0 says that the shape is not known.
            SavedShape::Known(dims) if dims.is_empty() && version != ArrayVersion::V3 => return Ok(SavedArray::None),
            SavedShape::Known(dims) => dims,
        };
        let device = self.device()?;
        let dtype = self.dtype("elements")?;
        Ok(SavedArray::Dense { device, data: self.data(dtype, dims, "the elements")? })
    }

    /// A shape in which nothing is unknown.
    fn known_shape(&mut self) -> Result<Vec<u64>, FormatProblem> {
        match self.shape(ArrayVersion::V2)? {
            SavedShape::Known(dims) => Ok(dims),
            SavedShape::Unknown => Err(FormatProblem::BadRank(-1)),
        }
    }

    /// The element type and shape of an index array, whose data comes later.
    fn index_type(&mut self, what: &'static str) -> Result<DenseType, FormatProblem> {
        let dtype = self.dtype(what)?;
        Ok(DenseType::new(dtype, self.known_shape()?))
    }

    fn row_sparse(&mut self) -> Result<SavedArray, FormatProblem> {
        let stored = self.known_shape()?;
        let dims = self.known_shape()?;
        if dims.is_empty() {
            return Ok(SavedArray::None);
        }
        let device = self.device()?;
        let dtype = self.dtype("values")?;
        let rows = self.index_type("row indices")?;
        let derived = rows.dims.iter().take(1).chain(&dims[1..]).copied().collect();
        let values = self.data(dtype, storage_shape(stored, derived), "the values")?;
        let indices = self.data(rows.dtype, rows.dims.to_vec(), "the row indices")?;
        Ok(SavedArray::RowSparse(Box::new(RowSparse { device, dims, indices, values })))
    }

    fn csr(&mut self) -> Result<SavedArray, FormatProblem> {
        let stored = self.known_shape()?;
        let dims = self.known_shape()?;
        if dims.is_empty() {
            return Ok(SavedArray::None);
        }
        let device = self.device()?;
        let dtype = self.dtype("values")?;
        let starts = self.index_type("row starts")?;
        let columns = self.index_type("column indices")?;
        let values = self.data(dtype, storage_shape(stored, columns.dims.to_vec()), "the values")?;
        let indptr = self.data(starts.dtype, starts.dims.to_vec(), "the row starts")?;
        let indices = self.data(columns.dtype, columns.dims.to_vec(), "the column indices")?;
        Ok(SavedArray::Csr(Box::new(Csr { device, dims, indptr, indices, values })))
    }
}
