//! Archives of arrays (`.npz`): zip files with a `.npy` file for each array.

use std::fs::File;
use std::io::{BufReader, Read, Seek, Write};
use std::path::Path;

use memchr::memmem;
use tensorc_runtime::TensorRef;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

use super::inflated_limit;
use super::npy_array::{StoredArray, array};
use super::sink::Sink;
use super::{npy_header, npy_text};
use crate::error::{Cause, DataError, ExamplePlace};

/// What numpy appends to the names of arrays.
const SUFFIX: &str = ".npy";

/// Bytes of a file from which zip needs its larger fields.
const MIN_ZIP64_BYTES: u64 = u32::MAX as u64;

/// The signature of the end record of a directory.
const END_RECORD: &[u8] = b"PK\x05\x06";

/// Where the end record has the numbers of entries, on this disk and in all, of 16 bits each.
const COUNTS: usize = 8;

/// Bytes of files in which the numbers of entries are checked: the memory that zip takes for the largest number.
const MAX_CHECKED_BYTES: u64 = 16 << 20;

impl From<ZipError> for Cause {
    fn from(error: ZipError) -> Cause {
        match error {
            ZipError::Io(error) => error.into(),
            error => Cause::Format(error.to_string()),
        }
    }
}

/// The arrays of an archive, in its order; other files in it are left out.
pub(super) fn read(file: BufReader<File>) -> Result<Vec<(String, StoredArray)>, Cause> {
    // Entries may lie in each other, so that all of them together have a limit.
    let mut stored = file.get_ref().metadata()?.len();
    let mut inflated = inflated_limit(stored);
    let file = without_false_counts(file, stored)?;
    let mut zip = ZipArchive::new(file)?;
    let mut arrays = vec![];
    for i in 0..zip.len() {
        let entry = zip.by_index(i)?;
        let Some(name) = entry.name().strip_suffix(SUFFIX).map(str::to_owned) else { continue };
        let left = if entry.compression() == CompressionMethod::Stored { &mut stored } else { &mut inflated };
        let (array, bytes) = array(entry, *left).map_err(|cause| of(&name, cause))?;
        *left -= bytes;
        arrays.push((name, array));
    }
    Ok(arrays)
}

/// A file, unless it is small and the end record of its directory states entries on this disk and none in all. zip takes
/// memory for the first number and checks the second; a large file explains that memory.
fn without_false_counts(mut file: BufReader<File>, length: u64) -> Result<BufReader<File>, Cause> {
    if length >= MAX_CHECKED_BYTES {
        return Ok(file);
    }
    let mut bytes = vec![];
    (&mut file).take(MAX_CHECKED_BYTES).read_to_end(&mut bytes)?;
    file.rewind()?;
    let states_false_counts = |at: usize| match bytes.get(at + COUNTS..).and_then(|rest| rest.first_chunk::<4>()) {
        Some([a, b, 0, 0]) => (*a, *b) != (0, 0),
        _ => false,
    };
    match memmem::find_iter(&bytes, END_RECORD).any(states_false_counts) {
        true => Err(Cause::Format("the directory of the archive states different numbers of entries".to_owned())),
        false => Ok(file),
    }
}

/// Writes a `.npz` file of named arrays, in the order given and not compressed; numpy has no type for bf16, which is
/// written as `u16`. The same arrays give the same bytes.
///
/// # Errors
/// The file cannot be written; two arrays have the same name; elements do not fill their shape.
pub fn write_arrays<'a>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = (&'a str, TensorRef<'a>)>,
) -> Result<(), DataError> {
    write_stored_arrays(path, arrays.into_iter().map(|(name, array)| (name, ArrayRef::Numbers(array))))
}

/// An array to write.
#[derive(Clone, Copy, Debug)]
pub enum ArrayRef<'a> {
    /// Numbers.
    Numbers(TensorRef<'a>),
    /// Texts of a shape.
    Texts(&'a [u64], &'a [&'a str]),
}

/// As [`write_arrays`], of arrays that may also be texts, which are elements `U` of numpy.
///
/// # Errors
/// As [`write_arrays`].
pub fn write_stored_arrays<'a>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = (&'a str, ArrayRef<'a>)>,
) -> Result<(), DataError> {
    let path = path.as_ref();
    let write = || -> Result<(), Cause> {
        let mut zip = ZipWriter::new(Sink::create(path)?);
        for (name, array) in arrays {
            let mut put = || match array {
                ArrayRef::Numbers(tensor) => put(&mut zip, name, tensor),
                ArrayRef::Texts(dims, texts) => put_parts(&mut zip, name, &[&npy_text::file(dims, texts)?]),
            };
            put().map_err(|cause| of(name, cause))?;
        }
        Ok(zip.finish()?.finish()?)
    };
    write().map_err(|cause| DataError::at(ExamplePlace::file(path), cause))
}

fn put(zip: &mut ZipWriter<Sink>, name: &str, array: TensorRef<'_>) -> Result<(), Cause> {
    let header = npy_header::write(array.dtype, array.dims)?;
    if tensorc_runtime::host_tensor::byte_len(array.dtype, array.dims) != Some(array.data.len() as u64) {
        let expected = format!("elements of {:?} {}", array.dims, array.dtype);
        return Err(Cause::Shape { expected, found: format!("{} bytes", array.data.len()) });
    }
    put_parts(zip, name, &[&header, array.data])
}

/// Writes an entry that consists of parts.
fn put_parts(zip: &mut ZipWriter<Sink>, name: &str, parts: &[&[u8]]) -> Result<(), Cause> {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    // The earliest date there is, whatever the time of day.
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(DateTime::default())
        .large_file(bytes as u64 >= MIN_ZIP64_BYTES);
    zip.start_file(format!("{name}{SUFFIX}"), options)?;
    parts.iter().try_for_each(|part| Ok(zip.write_all(part)?))
}

pub(super) fn of(name: &str, cause: Cause) -> Cause {
    Cause::Format(format!("array `{name}`: {cause}"))
}
