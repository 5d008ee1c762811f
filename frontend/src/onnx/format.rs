//! What a file is that is no ONNX model.

use super::error::NotOnnx;
use super::wire::{self, next_field, varint};

/// Length of the prefix that is checked for being text, in bytes.
const TEXT: usize = 32;
/// Fields of a model.
const MODEL_FIELDS: [u32; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26];
/// No message of protobuf has more bytes.
const MAX_MESSAGE: u64 = 1 << 31;

/// Why bytes cannot be read as a model.
pub(super) fn problem(bytes: &[u8]) -> NotOnnx {
    if bytes.is_empty() {
        return NotOnnx::Empty;
    }
    match (other_format(bytes), missing(bytes)) {
        (Some(format), _) => NotOnnx::OtherFormat(format),
        (None, Some(missing)) => NotOnnx::Incomplete { missing },
        (None, None) => NotOnnx::Damaged,
    }
}

/// Recognises files that are often taken for ONNX models.
pub(super) fn other_format(bytes: &[u8]) -> Option<&'static str> {
    let signatures: [(usize, &[u8], &str); 14] = [
        (0, b"PK\x03\x04", "a zip archive (PyTorch's .pt, numpy's .npz, or an archive of the model)"),
        (0, b"\x89HDF\r\n", "an HDF5 file (Keras)"),
        (4, b"TFL3", "a TensorFlow Lite model"),
        (0, b"GGUF", "a GGUF file (llama.cpp)"),
        (8, b"{\"", "a file of safetensors: weights without a graph"),
        (0, b"\x80\x02", "a pickle of Python"),
        (0, b"\x93NUMPY", "an array of numpy"),
        (0, b"\x89PNG", "a PNG image"),
        (0, b"\xff\xd8\xff", "a JPEG image"),
        (0, b"\x7fELF", "a program or library"),
        (0, b"\x1f\x8b", "compressed with gzip"),
        (0, b"version https://git-lfs", "a Git LFS pointer; the model itself has not been fetched"),
        (0, b"{", "JSON text (a symbol of MXNet is read if its name ends in .json)"),
        (0, b"<", "XML or HTML text"),
    ];
    let signed = signatures.iter().find(|(at, magic, _)| bytes.get(*at..).is_some_and(|b| b.starts_with(magic)));
    // The tags and lengths that a model begins with are control characters.
    let text = |b: &u8| b.is_ascii_graphic() || b.is_ascii_whitespace() || !b.is_ascii();
    let is_text = bytes.iter().take(TEXT).all(text);
    signed
        .map(|s| s.2)
        .or(is_text.then_some("text (text IR is read if its name ends in .tc, a symbol of MXNet if in .json)"))
}

/// How many bytes of the last field are missing at the end of what begins as a model.
fn missing(bytes: &[u8]) -> Option<u64> {
    let mut rest = bytes;
    loop {
        let before = rest;
        match next_field(&mut rest) {
            Some((field, _)) if MODEL_FIELDS.contains(&field) => {}
            Some(_) => return None,
            None => {
                rest = before;
                break;
            }
        }
    }
    let key = varint(&mut rest)?;
    let is_field = u32::try_from(key >> 3).is_ok_and(|field| MODEL_FIELDS.contains(&field));
    let length =
        varint(&mut rest).filter(|length| is_field && key & 7 == wire::LENGTH_DELIMITED && *length <= MAX_MESSAGE)?;
    length.checked_sub(rest.len() as u64).filter(|missing| *missing > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart() {
        let of = |bytes: &[u8]| problem(bytes).to_string();
        assert_eq!(of(b""), "the file is empty");
        assert!(of(b"hello").starts_with("it is text"), "{}", of(b"hello"));
        assert!(of(b"PK\x03\x04rest").starts_with("it is a zip archive"));
        // An IR version, then a graph of 100 bytes of which 3 are there.
        assert_eq!(
            of(&[0x08, 8, 0x3a, 100, 0, 0, 0]),
            "the file is incomplete: at least 97 bytes are missing at its end"
        );
        assert_eq!(of(&[0x08, 8, 0x3a, 2, 0xff, 0xff]), "it is damaged, or of another format");
        // A field that models do not have, and a length that no file has.
        assert_eq!(of(&[0x08, 8, 0x7a, 100, 0]), "it is damaged, or of another format");
        assert_eq!(of(&[0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), "it is damaged, or of another format");
    }
}
