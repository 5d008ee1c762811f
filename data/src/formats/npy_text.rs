//! Arrays of texts in files of numpy: elements of a fixed number of characters, of 4 bytes (`U`) or one (`S`), with zeros behind shorter
//! texts.

use std::io::Read;

use tensorc_abi::DType;

use super::npy_array::row_major;
use super::npy_header::{self, RawHeader};
use super::read_elements;
use crate::error::Cause;

/// Texts in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTexts {
    /// Extents, outermost first.
    pub dims: Vec<u64>,
    /// The texts.
    pub texts: Vec<String>,
}

/// The type of the elements.
#[derive(Clone, Copy)]
pub(super) struct TextElement {
    /// Of a character.
    dtype: DType,
    big: bool,
    /// Characters of an element.
    length: u64,
}

impl TextElement {
    /// The type that numpy's name means, if it is one of texts.
    pub fn of(descr: &[u8]) -> Option<TextElement> {
        let (order, kind) = descr.split_first()?;
        let (kind, length) = kind.split_first()?;
        let dtype = match kind {
            b'U' => DType::U32,
            b'S' => DType::U8,
            _ => return None,
        };
        let length = std::str::from_utf8(length).ok()?.parse().ok().filter(|length| *length > 0)?;
        Some(TextElement { dtype, big: *order == b'>', length })
    }

    /// The texts behind a header, in at most `most` bytes, and how many they are.
    pub fn read(self, header: &RawHeader, reader: impl Read, most: u64) -> Result<(StoredTexts, u64), Cause> {
        let dims = &header.dims;
        let stored: Vec<u64> = dims.iter().copied().chain([self.length]).collect();
        let mut bytes = read_elements(reader, self.dtype, &stored, self.big, most)?;
        let size = self.length as usize * self.dtype.size();
        if header.fortran && dims.len() > 1 && !bytes.is_empty() {
            bytes = row_major(&bytes, dims, size)?;
        }
        let texts = bytes.chunks_exact(size).map(|element| self.text(element)).collect::<Result<_, _>>()?;
        Ok((StoredTexts { dims: dims.clone(), texts }, bytes.len() as u64))
    }

    fn text(self, element: &[u8]) -> Result<String, Cause> {
        let wrong = || Cause::Format("a text with a character that is none".to_owned());
        if self.dtype == DType::U8 {
            let end = element.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            return String::from_utf8(element[..end].to_vec()).map_err(|_| wrong());
        }
        let codes: Vec<u32> = element.as_chunks::<4>().0.iter().map(|code| u32::from_le_bytes(*code)).collect();
        let end = codes.iter().rposition(|code| *code != 0).map_or(0, |last| last + 1);
        codes[..end].iter().map(|code| char::from_u32(*code).ok_or_else(wrong)).collect()
    }
}

/// A file of texts.
pub(super) fn file(dims: &[u64], texts: &[&str]) -> Result<Vec<u8>, Cause> {
    let count = dims.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim));
    if count != Some(texts.len() as u64) {
        return Err(Cause::Shape { expected: format!("texts of {dims:?}"), found: texts.len().to_string() });
    }
    let length = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0).max(1);
    let mut bytes = npy_header::write_with(&format!("<U{length}"), dims)?;
    for text in texts {
        let codes = text.chars().map(u32::from).chain(std::iter::repeat(0)).take(length);
        bytes.extend(codes.flat_map(u32::to_le_bytes));
    }
    Ok(bytes)
}
