//! Arrays of numpy: `.npy` files read at positions as examples, and `.npy` or `.npz` files read into memory.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tensorc_runtime::TensorMut;
use tensorc_runtime::host_tensor::byte_len;

use super::npy_array::{StoredArray, array};
use super::npy_header::NpyHeader;
use super::{npz, to_native};
use crate::HostTensor;
use crate::dataset::{DataDesc, Dataset, Sample};
use crate::error::{Cause, DataError, ExamplePlace};

/// An array whose first axis counts examples, read at positions.
#[derive(Debug)]
struct NpyColumn {
    path: PathBuf,
    file: File,
    header: NpyHeader,
    /// Bytes of an example.
    row: u64,
}

impl NpyColumn {
    fn open(path: &Path) -> Result<NpyColumn, DataError> {
        let wrap = |cause| DataError::at(ExamplePlace::file(path), cause);
        let mut file = File::open(path).map_err(|e| DataError::io(path, e))?;
        let header = NpyHeader::read(&mut file).map_err(wrap)?;
        let NpyHeader { dtype, dims, offset, .. } = &header;
        let [_, example @ ..] = &dims[..] else {
            return Err(wrap(Cause::Format("a single value has no examples".into())));
        };
        if header.fortran && dims.len() > 1 {
            let why = "examples do not lie in one piece: the array is in Fortran's order, and must be in C's";
            return Err(wrap(Cause::Format(why.into())));
        }
        let too_large = || wrap(Cause::Format(format!("{dims:?} of {dtype} is too large")));
        let row = byte_len(*dtype, example).ok_or_else(too_large)?;
        let expected = byte_len(*dtype, dims).and_then(|bytes| bytes.checked_add(*offset)).ok_or_else(too_large)?;
        let found = file.metadata().map_err(|e| DataError::io(path, e))?.len();
        if found != expected {
            let expected = format!("{expected} bytes for {dims:?} of {dtype}");
            return Err(wrap(Cause::Shape { expected, found: found.to_string() }));
        }
        Ok(NpyColumn { path: path.to_owned(), file, row, header })
    }

    fn examples(&self) -> u64 {
        self.header.dims[0]
    }

    fn read(&self, index: usize, tensor: &mut TensorMut<'_>) -> Result<(), DataError> {
        let at = self.header.offset + index as u64 * self.row;
        let wrap = |cause| DataError::at(ExamplePlace::file(&self.path).record(index as u64).offset(at), cause);
        self.file.read_exact_at(tensor.data, at).map_err(|e| wrap(e.into()))?;
        to_native(tensor.data, self.header.dtype, self.header.big).map_err(wrap)
    }
}

/// Examples in `.npy` files, one for each array of data and labels; the first axis counts them. The files are not
/// loaded: an example is read when it is asked for.
#[derive(Debug)]
pub struct NpyDataset {
    data_columns: Vec<NpyColumn>,
    label_columns: Vec<NpyColumn>,
    data: Vec<DataDesc>,
    labels: Vec<DataDesc>,
}

fn columns<N: Into<String>, P: AsRef<Path>>(
    files: impl IntoIterator<Item = (N, P)>,
) -> Result<(Vec<DataDesc>, Vec<NpyColumn>), DataError> {
    let open = |(name, path): (N, P)| {
        let column = NpyColumn::open(path.as_ref())?;
        Ok((DataDesc::new(name, column.header.dtype, &column.header.dims[1..]), column))
    };
    files.into_iter().map(open).collect()
}

impl NpyDataset {
    /// Opens the files of named data and labels, which have equally many examples in C's order.
    ///
    /// # Errors
    /// A file cannot be read, is no array in C's order with an axis of examples, or has more or fewer of them than the
    /// first file; there are no data.
    pub fn open<N: Into<String>, P: AsRef<Path>>(
        data: impl IntoIterator<Item = (N, P)>,
        labels: impl IntoIterator<Item = (N, P)>,
    ) -> Result<NpyDataset, DataError> {
        let (data, data_columns) = columns(data)?;
        let (labels, label_columns) = columns(labels)?;
        let Some(first) = data_columns.first() else {
            return Err(DataError::options("arrays", "there are no data"));
        };
        if let Some(other) = data_columns.iter().chain(&label_columns).find(|c| c.examples() != first.examples()) {
            let expected = format!("{} examples as {} has", first.examples(), first.path.display());
            let cause = Cause::Shape { expected, found: other.examples().to_string() };
            return Err(DataError::at(ExamplePlace::file(&other.path), cause));
        }
        Ok(NpyDataset { data_columns, label_columns, data, labels })
    }
}

impl Dataset for NpyDataset {
    fn name(&self) -> String {
        self.data_columns.first().map_or_else(String::new, |column| column.path.display().to_string())
    }

    fn len(&self) -> usize {
        self.data_columns.first().map_or(0, |column| column.examples() as usize)
    }

    fn data(&self) -> &[DataDesc] {
        &self.data
    }

    fn labels(&self) -> &[DataDesc] {
        &self.labels
    }

    fn read(&self, sample: Sample, data: &mut [TensorMut<'_>], labels: &mut [TensorMut<'_>]) -> Result<(), DataError> {
        let fill = |columns: &[NpyColumn], tensors: &mut [TensorMut<'_>]| {
            columns.iter().zip(tensors).try_for_each(|(column, tensor)| column.read(sample.index, tensor))
        };
        fill(&self.data_columns, data)?;
        fill(&self.label_columns, labels)
    }
}

/// The arrays of a file of numpy, by name and in the order of the file: all of a `.npz` file, or that of a `.npy` file,
/// which has the file's name. Arrays in Fortran's order are brought into C's.
///
/// # Errors
/// The file cannot be read, is damaged, or has elements that tensors do not have.
pub fn read_arrays(path: impl AsRef<Path>) -> Result<Vec<(String, HostTensor)>, DataError> {
    let path = path.as_ref();
    let one = |(name, array): (String, StoredArray)| match array.numbers() {
        Ok(tensor) => Ok((name, tensor)),
        Err(cause) => Err(DataError::at(ExamplePlace::file(path), npz::of(&name, cause))),
    };
    read_stored_arrays(path)?.into_iter().map(one).collect()
}

/// As [`read_arrays`], of arrays that may also be texts: elements `U` and `S` of numpy.
///
/// # Errors
/// As [`read_arrays`].
pub fn read_stored_arrays(path: impl AsRef<Path>) -> Result<Vec<(String, StoredArray)>, DataError> {
    let path = path.as_ref();
    let read = || {
        let mut file = BufReader::new(File::open(path)?);
        if file.fill_buf()?.starts_with(b"PK") {
            return npz::read(file);
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(vec![(name, array(file, u64::MAX)?.0)])
    };
    read().map_err(|cause| DataError::at(ExamplePlace::file(path), cause))
}
