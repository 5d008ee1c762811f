//! Files of examples other than RecordIO: rows of text (CSV, LibSVM), idx files (MNIST) and arrays of numpy.
//!
//! Files are read at positions, so that examples come in any order from many threads; files of text are scanned once
//! for their rows when they are opened.

mod csv;
mod idx;
mod libsvm;
mod mnist;
mod npy;
mod npy_array;
mod npy_header;
mod npy_text;
mod npz;
mod sink;
mod text;

use std::io::{ErrorKind, Read};

pub use csv::{CsvDataset, CsvOptions};
pub use idx::read_idx;
pub use libsvm::{LibSvmDataset, LibSvmOptions};
pub use mnist::{MnistDataset, MnistOptions};
pub use npy::{NpyDataset, read_arrays, read_stored_arrays};
pub use npy_array::StoredArray;
pub use npy_header::stored_as;
pub use npy_text::StoredTexts;
pub use npz::{ArrayRef, write_arrays, write_stored_arrays};
use tensorc_abi::DType;
use tensorc_runtime::HostTensor;
use tensorc_runtime::host_tensor::byte_len;

use crate::error::Cause;
use crate::iter::LastBatch;

/// Values of MXNet's option `round_batch`.
fn last_batch(round: bool) -> LastBatch {
    match round {
        true => LastBatch::Round,
        false => LastBatch::Repeat,
    }
}

/// Extents of an example's labels: a single one has no axis, as in MXNet's batches.
fn label_dims(shape: &[u64]) -> Vec<u64> {
    match shape.iter().all(|n| *n == 1) {
        true => vec![],
        false => shape.to_vec(),
    }
}

/// The most bytes that the compressed arrays of a file may have in all, since a thousandth of that stores them.
const MAX_INFLATED_BYTES: u64 = 1 << 32;

/// How many bytes a byte of deflated data gives at most.
const MAX_DEFLATE_RATIO: u64 = 1032;

/// The most bytes of elements that a compressed file of so many bytes can hold, and may.
fn inflated_limit(file: u64) -> u64 {
    file.saturating_mul(MAX_DEFLATE_RATIO).min(MAX_INFLATED_BYTES)
}

/// Fills `bytes` with the next part of a file's header.
fn read_header(reader: &mut impl Read, bytes: &mut [u8]) -> Result<(), Cause> {
    reader.read_exact(bytes).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => Cause::Truncated { what: "its header" },
        _ => e.into(),
    })
}

/// The rest of a stream as the elements of a tensor, at most `most` bytes. Memory grows with what is read, not with what
/// the shape says.
fn read_elements(reader: impl Read, dtype: DType, dims: &[u64], big: bool, most: u64) -> Result<Vec<u8>, Cause> {
    let wrong = |found: String| Cause::Format(format!("{found} bytes of elements do not fill {dims:?} of {dtype}"));
    let expected = byte_len(dtype, dims).ok_or_else(|| Cause::Format(format!("{dims:?} of {dtype} is too large")))?;
    if expected > most {
        let why = format!("{dims:?} of {dtype} is more than the {most} bytes that the file can hold");
        return Err(Cause::Format(why));
    }
    let mut bytes = vec![];
    reader.take(expected + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        found if found > expected => return Err(wrong(format!("more than {expected}"))),
        found if found < expected => return Err(wrong(found.to_string())),
        _ => {}
    }
    to_native(&mut bytes, dtype, big)?;
    Ok(bytes)
}

/// Converts elements in file byte order to little-endian, and checks that Booleans are 0 or 1.
fn to_native(bytes: &mut [u8], dtype: DType, big: bool) -> Result<(), Cause> {
    if big {
        bytes.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    }
    let wrong = if dtype == DType::Bool { bytes.iter().find(|byte| **byte > 1) } else { None };
    match wrong {
        Some(byte) => Err(Cause::Format(format!("{byte} is no boolean"))),
        None => Ok(()),
    }
}

fn tensor(dtype: DType, dims: &[u64], bytes: Vec<u8>) -> Result<HostTensor, Cause> {
    HostTensor::new(dtype, dims, bytes).map_err(|e| Cause::Format(e.to_string()))
}
