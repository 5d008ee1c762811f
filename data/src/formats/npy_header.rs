//! Headers of `.npy` files: the element type, the order of the axes and the shape, as a dictionary in Python's syntax.

use std::io::Read;

use tensorc_abi::DType;

use super::read_header;
use super::text::{TextNumber, shown};
use crate::error::Cause;

/// With which a file begins, before its version.
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Bytes of a header; numpy's own reader takes fewer.
const MAX_HEADER: usize = 1 << 16;

/// What a file says about its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpyHeader {
    pub dtype: DType,
    /// Whether the elements are big-endian.
    pub big: bool,
    /// Whether the first axis is the one whose elements are neighbours.
    pub fortran: bool,
    pub dims: Vec<u64>,
    /// Where the elements begin.
    pub offset: u64,
}

/// A header whose element type is as numpy names it.
pub(super) struct RawHeader {
    pub descr: Vec<u8>,
    pub fortran: bool,
    pub dims: Vec<u64>,
    offset: u64,
}

impl NpyHeader {
    /// Reads a header and nothing behind it.
    ///
    /// # Errors
    /// This is no header, or one of elements that tensors do not have.
    pub fn read(reader: &mut impl Read) -> Result<NpyHeader, Cause> {
        NpyHeader::of(RawHeader::read(reader)?)
    }

    /// A header of numbers.
    ///
    /// # Errors
    /// The elements are none that tensors have.
    pub(super) fn of(raw: RawHeader) -> Result<NpyHeader, Cause> {
        let unknown = || Cause::Format(format!("element type {} is not supported", shown(&raw.descr)));
        let (dtype, big) = element(&raw.descr).ok_or_else(unknown)?;
        Ok(NpyHeader { dtype, big, fortran: raw.fortran, dims: raw.dims, offset: raw.offset })
    }
}

impl RawHeader {
    /// Reads a header and nothing behind it.
    ///
    /// # Errors
    /// This is no header.
    pub fn read(reader: &mut impl Read) -> Result<RawHeader, Cause> {
        let mut start = [0; 8];
        read_header(reader, &mut start)?;
        let [magic @ .., major, _minor] = start;
        if magic != *MAGIC {
            return Err(Cause::Format("not a file of numpy: it must begin with \\x93NUMPY".into()));
        }
        let mut size = [0; 4];
        let digits = match major {
            1 => 2,
            2 | 3 => 4,
            _ => return Err(Cause::Format(format!("version {major} of the format is unknown"))),
        };
        read_header(reader, &mut size[..digits])?;
        let length = u32::from_le_bytes(size) as usize;
        if length > MAX_HEADER {
            return Err(Cause::Format(format!("a header of {length} bytes; the most are {MAX_HEADER}")));
        }
        let mut text = vec![0; length];
        read_header(reader, &mut text)?;
        let offset = (start.len() + digits + length) as u64;
        Ok(RawHeader { offset, ..dictionary(&text)? })
    }
}

/// numpy's names of element types, without the order of bytes.
const KINDS: [(&str, DType); 12] = [
    ("f2", DType::F16),
    ("f4", DType::F32),
    ("f8", DType::F64),
    ("i1", DType::I8),
    ("i2", DType::I16),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("u1", DType::U8),
    ("u2", DType::U16),
    ("u4", DType::U32),
    ("u8", DType::U64),
    ("b1", DType::Bool),
];

/// The element type in a .npy file. NumPy has no `bf16`, stored as `u16`, and no narrow types, stored a byte each: `i8` for
/// signed integers, `u8` for others.
pub fn stored_as(dtype: DType) -> DType {
    match dtype {
        DType::BF16 => DType::U16,
        DType::I4 | DType::I2 => DType::I8,
        other => other.storage(),
    }
}

/// The header of little-endian elements in C's order, as numpy writes it: the elements begin at a multiple of 64 bytes.
///
/// # Errors
/// The shape has more axes than a header can say.
pub fn write(dtype: DType, dims: &[u64]) -> Result<Vec<u8>, Cause> {
    let stored = stored_as(dtype);
    let order = if dtype.size() == 1 { '|' } else { '<' };
    let kind = KINDS.into_iter().find(|(_, dtype)| *dtype == stored).map_or("", |(name, _)| name);
    write_with(&format!("{order}{kind}"), dims)
}

/// As [`write`], of elements that numpy names so.
///
/// # Errors
/// As [`write`].
pub(super) fn write_with(descr: &str, dims: &[u64]) -> Result<Vec<u8>, Cause> {
    let dims: String = match dims {
        [n] => format!("{n},"),
        _ => dims.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    let start = MAGIC.len() + 4;
    text += &" ".repeat(63 - (start + text.len()) % 64);
    text.push('\n');
    let Ok(length) = u16::try_from(text.len()) else {
        return Err(Cause::Format("a shape with too many axes for a file of numpy".into()));
    };
    Ok([&MAGIC[..], &[1, 0], &length.to_le_bytes(), text.as_bytes()].concat())
}

/// The element type that numpy's name means, and whether it is big-endian.
fn element(descr: &[u8]) -> Option<(DType, bool)> {
    let (order, kind) = descr.split_first()?;
    let (_, dtype) = KINDS.into_iter().find(|(name, _)| name.as_bytes() == kind)?;
    match order {
        b'<' | b'=' | b'|' => Some((dtype, false)),
        b'>' => Some((dtype, true)),
        _ => None,
    }
}

/// The part of a dictionary that was not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, sign: u8) -> bool {
        let rest = self.0.trim_ascii_start();
        let found = rest.first() == Some(&sign);
        self.0 = if found { &rest[1..] } else { rest };
        found
    }

    fn expect(&mut self, sign: u8) -> Result<(), Cause> {
        match self.take(sign) {
            true => Ok(()),
            false => Err(Cause::Format(format!("a header with {} in place of `{}`", shown(self.0), char::from(sign)))),
        }
    }

    /// What stands between quotes; there are no escapes in what is known here.
    fn string(&mut self) -> Result<&'a [u8], Cause> {
        let quote = if self.take(b'"') { b'"' } else { b'\'' };
        if quote == b'\'' {
            self.expect(quote)?;
        }
        let end = self.0.iter().position(|byte| *byte == quote).ok_or(Cause::Truncated { what: "a string" })?;
        let text = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Ok(text)
    }

    /// A word or number.
    fn word(&mut self) -> &'a [u8] {
        let rest = self.0.trim_ascii_start();
        let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(rest.len());
        self.0 = &rest[end..];
        &rest[..end]
    }

    fn shape(&mut self) -> Result<Vec<u64>, Cause> {
        self.expect(b'(')?;
        let mut dims = vec![];
        while !self.take(b')') {
            let word = self.word();
            // Python 2 wrote some integers as 10L.
            let extent = u64::parse(word.strip_suffix(b"L").unwrap_or(word));
            dims.push(extent.ok_or_else(|| Cause::Format(format!("extent {} is no number", shown(word))))?);
            if !self.take(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(dims)
    }
}

fn dictionary(text: &[u8]) -> Result<RawHeader, Cause> {
    let mut rest = Rest(text);
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    rest.expect(b'{')?;
    while !rest.take(b'}') {
        let key = rest.string()?;
        rest.expect(b':')?;
        match key {
            b"descr" if rest.take(b'[') => return Err(Cause::Format("elements with fields are not supported".into())),
            b"descr" => descr = Some(rest.string()?),
            b"shape" => shape = Some(rest.shape()?),
            b"fortran_order" => {
                fortran = Some(match rest.word() {
                    b"True" => true,
                    b"False" => false,
                    word => return Err(Cause::Format(format!("fortran_order is {}", shown(word)))),
                });
            }
            _ => return Err(Cause::Format(format!("a header with the key {}", shown(key)))),
        }
        if !rest.take(b',') {
            rest.expect(b'}')?;
            break;
        }
    }
    let (Some(descr), Some(fortran), Some(dims)) = (descr, fortran, shape) else {
        return Err(Cause::Format("a header without descr, fortran_order or shape".into()));
    };
    Ok(RawHeader { descr: descr.to_vec(), fortran, dims, offset: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(text: &str) -> Result<NpyHeader, String> {
        let length = (text.len() as u16).to_le_bytes();
        let file = [&b"\x93NUMPY\x01\x00"[..], &length, text.as_bytes()].concat();
        NpyHeader::read(&mut &file[..]).map_err(|cause| cause.to_string())
    }

    #[test]
    fn headers_are_read_as_numpy_writes_them() {
        let expected = NpyHeader { dtype: DType::F32, big: false, fortran: false, dims: vec![3, 4], offset: 69 };
        assert_eq!(header("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"), Ok(expected));
        let vector = header("{\"shape\":(10L,),\"fortran_order\":True,\"descr\":\">i8\"}").unwrap();
        assert_eq!((vector.dtype, vector.big, vector.fortran, vector.dims), (DType::I64, true, true, vec![10]));
        assert_eq!(header("{'descr': '|b1', 'fortran_order': False, 'shape': ()}").unwrap().dims, [0u64; 0]);
    }

    #[test]
    fn written_headers_are_read_again() {
        for (dtype, dims) in
            [(DType::F32, &[3, 4][..]), (DType::Bool, &[]), (DType::I64, &[7]), (DType::U8, &[0, 1, 2])]
        {
            let bytes = write(dtype, dims).unwrap();
            assert_eq!(bytes.len() % 64, 0);
            let expected =
                NpyHeader { dtype, big: false, fortran: false, dims: dims.to_vec(), offset: bytes.len() as u64 };
            assert_eq!(NpyHeader::read(&mut &bytes[..]).unwrap(), expected);
        }
        let text = String::from_utf8_lossy(&write(DType::BF16, &[5]).unwrap()[10..]).into_owned();
        assert_eq!(text.trim_end(), "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }");
        let error = write(DType::F32, &[1; 30_000]).unwrap_err().to_string();
        assert_eq!(error, "a shape with too many axes for a file of numpy");
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let with = |descr: &str, shape: &str| format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}");
        for (text, why) in [
            (with("'<c8'", "(3,)"), "element type `<c8` is not supported"),
            (with("'|O'", "(3,)"), "element type `|O` is not supported"),
            (with("[('a', '<f4')]", "(3,)"), "elements with fields are not supported"),
            (with("'<f4'", "(-3,)"), "extent `` is no number"),
            (with("'<f4'", "(99999999999999999999,)"), "extent `99999999999999999999` is no number"),
            (with("'<f4'", "3"), "a header with `3}` in place of `(`"),
            ("{'descr': '<f4', 'shape': (3,)}".into(), "a header without descr, fortran_order or shape"),
            ("{'descr': '<f4".into(), "the file ends inside of a string"),
            ("".into(), "a header with `` in place of `{`"),
        ] {
            assert_eq!(header(&text).unwrap_err(), why, "{text}");
        }
        let long = b"\x93NUMPY\x02\x00\xff\xff\xff\xff{";
        let error = NpyHeader::read(&mut &long[..]).unwrap_err().to_string();
        assert_eq!(error, "a header of 4294967295 bytes; the most are 65536");
        let other = NpyHeader::read(&mut &b"PK\x03\x04........"[..]).unwrap_err().to_string();
        assert_eq!(other, "not a file of numpy: it must begin with \\x93NUMPY");
        let newer = NpyHeader::read(&mut &b"\x93NUMPY\x07\x00"[..]).unwrap_err().to_string();
        assert_eq!(newer, "version 7 of the format is unknown");
    }
}
