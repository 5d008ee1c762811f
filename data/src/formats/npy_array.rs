//! A whole array of a .npy stream.

use std::io::Read;

use super::npy_header::{NpyHeader, RawHeader};
use super::npy_text::{StoredTexts, TextElement};
use super::{read_elements, tensor};
use crate::HostTensor;
use crate::error::Cause;

/// An array of a file: numbers or texts.
#[derive(Clone, Debug)]
pub enum StoredArray {
    /// Numbers.
    Numbers(HostTensor),
    /// Texts.
    Texts(StoredTexts),
}

impl StoredArray {
    /// The numbers.
    ///
    /// # Errors
    /// They are texts.
    pub(super) fn numbers(self) -> Result<HostTensor, Cause> {
        match self {
            StoredArray::Numbers(tensor) => Ok(tensor),
            StoredArray::Texts(_) => Err(Cause::Format("texts in place of numbers".to_owned())),
        }
    }
}

/// The array of a stream that ends with it, of at most `most` bytes, and how many they are.
pub(super) fn array(mut reader: impl Read, most: u64) -> Result<(StoredArray, u64), Cause> {
    let header = RawHeader::read(&mut reader)?;
    if let Some(element) = TextElement::of(&header.descr) {
        let (texts, bytes) = element.read(&header, reader, most)?;
        return Ok((StoredArray::Texts(texts), bytes));
    }
    let tensor = numbers(NpyHeader::of(header)?, reader, most)?;
    let bytes = tensor.bytes().len() as u64;
    Ok((StoredArray::Numbers(tensor), bytes))
}

fn numbers(header: NpyHeader, reader: impl Read, most: u64) -> Result<HostTensor, Cause> {
    let NpyHeader { dtype, big, fortran, dims, .. } = header;
    let mut bytes = read_elements(reader, dtype, &dims, big, most)?;
    if fortran && dims.len() > 1 && !bytes.is_empty() {
        bytes = row_major(&bytes, &dims, dtype.size())?;
    }
    tensor(dtype, &dims, bytes)
}

/// Elements in C's order of those in Fortran's, where the first axis is the innermost.
pub(super) fn row_major(bytes: &[u8], dims: &[u64], size: usize) -> Result<Vec<u8>, Cause> {
    let mut out = Vec::new();
    out.try_reserve_exact(bytes.len()).map_err(|_| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
    let mut stride = size;
    let axes: Vec<(u64, usize)> = dims
        .iter()
        .map(|n| {
            let step = stride;
            stride *= *n as usize;
            (*n, step)
        })
        .collect();
    let (mut place, mut from) = (vec![0; dims.len()], 0);
    while out.len() < bytes.len() {
        out.extend_from_slice(&bytes[from..from + size]);
        for ((n, step), at) in axes.iter().zip(&mut place).rev() {
            (*at, from) = (*at + 1, from + step);
            if *at < *n {
                break;
            }
            from -= step * *n as usize;
            *at = 0;
        }
    }
    Ok(out)
}
