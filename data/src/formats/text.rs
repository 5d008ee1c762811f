//! Files of rows of text: where each row lies, and numbers in them.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tensorc_abi::DType;

use crate::error::{Cause, DataError, ExamplePlace};

/// A row that is longer is taken for an error: the file is no text then.
const MAX_ROW: u64 = 256 << 20;

/// Bytes that are scanned at once.
const CHUNK: usize = 1 << 18;

/// The byte order mark with which some programs begin a file.
const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// The rows of a file of text. Blank lines, and those that begin with the sign of a comment, are no rows.
#[derive(Debug)]
pub struct TextRows {
    path: PathBuf,
    file: File,
    starts: Vec<u64>,
    /// In bytes, without the newline.
    lengths: Vec<u32>,
}

/// The state of a scan inside of a line.
struct Scan {
    comment: Option<u8>,
    begin: u64,
    /// The first byte of the line that is not a space.
    first: Option<u8>,
    starts: Vec<u64>,
    lengths: Vec<u32>,
}

impl Scan {
    fn inside(&mut self, part: &[u8]) {
        self.first = self.first.or_else(|| part.iter().copied().find(|byte| !byte.is_ascii_whitespace()));
    }

    fn end_line(&mut self, end: u64) -> Result<(), Cause> {
        if self.first.is_some() && self.first != self.comment {
            let length = end - self.begin;
            if length > MAX_ROW {
                return Err(Cause::Format(format!("a row of {length} bytes; the most are {MAX_ROW}")));
            }
            let memory = |_| std::io::Error::from(ErrorKind::OutOfMemory);
            self.starts.try_reserve(1).map_err(memory)?;
            self.lengths.try_reserve(1).map_err(memory)?;
            self.starts.push(self.begin);
            self.lengths.push(length as u32);
        }
        (self.begin, self.first) = (end + 1, None);
        Ok(())
    }

    fn file(&mut self, file: &mut File) -> Result<(), Cause> {
        let mut head = [0; 3];
        let mut at = match file.read_at(&mut head, 0)? == head.len() && head == BYTE_ORDER_MARK {
            true => file.seek(SeekFrom::Start(head.len() as u64))?,
            false => 0,
        };
        self.begin = at;
        let mut buffer = vec![0; CHUNK];
        loop {
            let chunk = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => &buffer[..read],
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.into()),
            };
            let mut from = 0;
            for newline in memchr::memchr_iter(b'\n', chunk) {
                self.inside(&chunk[from..newline]);
                self.end_line(at + newline as u64)?;
                from = newline + 1;
            }
            self.inside(&chunk[from..]);
            at += chunk.len() as u64;
        }
        self.end_line(at)
    }
}

impl TextRows {
    /// Finds the rows of a file.
    ///
    /// # Errors
    /// The file cannot be read, has no rows, or one of them is longer than text is.
    pub fn open(path: &Path, comment: Option<u8>) -> Result<TextRows, DataError> {
        let mut file = File::open(path).map_err(|e| DataError::io(path, e))?;
        let mut scan = Scan { comment, begin: 0, first: None, starts: vec![], lengths: vec![] };
        if let Err(cause) = scan.file(&mut file) {
            let place = ExamplePlace::file(path).record(scan.starts.len() as u64).offset(scan.begin);
            return Err(DataError::at(place, cause));
        }
        if scan.starts.is_empty() {
            return Err(DataError::at(ExamplePlace::file(path), Cause::Format("the file has no rows".into())));
        }
        let Scan { starts, lengths, .. } = scan;
        Ok(TextRows { path: path.to_owned(), file, starts, lengths })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Reads a row, which comes without spaces around it.
    ///
    /// # Errors
    /// The file cannot be read, or what `parse` finds wrong, with the row's place.
    pub fn read(&self, row: usize, parse: impl FnOnce(&[u8]) -> Result<(), Cause>) -> Result<(), DataError> {
        let start = self.starts[row];
        let mut line = vec![0; self.lengths[row] as usize];
        let read = self.file.read_exact_at(&mut line, start).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => Cause::Truncated { what: "a row that it had when it was opened" },
            _ => e.into(),
        });
        read.and_then(|()| parse(line.trim_ascii()))
            .map_err(|cause| DataError::at(ExamplePlace::file(&self.path).record(row as u64).offset(start), cause))
    }

    /// Another file with a row for each of this one.
    ///
    /// # Errors
    /// As [`TextRows::open`]; the other file has fewer rows.
    pub fn open_beside(&self, path: &Path, comment: Option<u8>) -> Result<TextRows, DataError> {
        let other = TextRows::open(path, comment)?;
        match other.len() < self.len() {
            true => {
                let rows = |n: usize, file: &Path| format!("{n} rows in {}", file.display());
                let (expected, found) = (rows(self.len(), &self.path), format!("{} rows", other.len()));
                let place = ExamplePlace::file(path).record(other.len() as u64);
                Err(DataError::at(place, Cause::Shape { expected: format!("labels for {expected}"), found }))
            }
            false => Ok(other),
        }
    }
}

/// A number that rows of text hold.
pub trait TextNumber: Sized {
    /// `None` if the text is no number, or none that the type holds.
    fn parse(text: &[u8]) -> Option<Self>;

    fn store(self, place: &mut [u8]);
}

macro_rules! stored {
    () => {
        fn store(self, place: &mut [u8]) {
            place.copy_from_slice(&self.to_le_bytes());
        }
    };
}

macro_rules! integers {
    ($($type:ty),*) => { $(
        impl TextNumber for $type {
            fn parse(text: &[u8]) -> Option<$type> {
                std::str::from_utf8(text).ok()?.parse().ok()
            }

            stored!();
        }
    )* };
}

macro_rules! floats {
    ($($type:ty),*) => { $(
        impl TextNumber for $type {
            fn parse(text: &[u8]) -> Option<$type> {
                let value: $type = fast_float2::parse(text).ok()?;
                // Digits that overflow are out of range, the word `inf` is not.
                (value.is_finite() || !text.iter().any(u8::is_ascii_digit)).then_some(value)
            }

            stored!();
        }
    )* };
}

macro_rules! halves {
    ($($type:ty),*) => { $(
        /// Rounded from the nearest f64.
        impl TextNumber for $type {
            fn parse(text: &[u8]) -> Option<$type> {
                let wide = f64::parse(text)?;
                let value = <$type>::from_f32(crate::rounding::odd(wide));
                (value.is_finite() || !wide.is_finite()).then_some(value)
            }

            stored!();
        }
    )* };
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);
floats!(f32, f64);
halves!(half::f16, half::bf16);

impl TextNumber for bool {
    fn parse(text: &[u8]) -> Option<bool> {
        u8::parse(text).filter(|value| *value <= 1).map(|value| value == 1)
    }

    fn store(self, place: &mut [u8]) {
        place.fill(u8::from(self));
    }
}

/// Characters of a wrong value that messages show.
const MAX_SHOWN_CHARS: usize = 40;

/// The text of a value for a message.
pub fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("`{}…`", &text[..end]),
        None => format!("`{text}`"),
    }
}

/// What is wrong with text that should have been a value of this type.
pub fn not_a_number(text: &[u8], dtype: DType) -> Cause {
    let is_number = fast_float2::parse::<f64, _>(text).is_ok();
    let text = shown(text);
    Cause::Format(match is_number {
        true => format!("{text} does not fit {dtype}"),
        false => format!("{text} is not a number"),
    })
}

/// Writes numbers between commas, exactly as many as there is room for. A comma behind the last one is allowed.
///
/// # Errors
/// A value is no number or does not fit the type, or there are more or fewer values.
pub fn parse_row(dtype: DType, row: &[u8], data: &mut [u8]) -> Result<(), Cause> {
    let parse = match dtype {
        DType::F32 => parse_row_of::<f32>,
        DType::F64 => parse_row_of::<f64>,
        DType::F16 => parse_row_of::<half::f16>,
        DType::BF16 => parse_row_of::<half::bf16>,
        DType::I8 => parse_row_of::<i8>,
        DType::I16 => parse_row_of::<i16>,
        DType::I32 => parse_row_of::<i32>,
        DType::I64 => parse_row_of::<i64>,
        DType::U8 => parse_row_of::<u8>,
        DType::U16 => parse_row_of::<u16>,
        DType::U32 => parse_row_of::<u32>,
        DType::U64 => parse_row_of::<u64>,
        DType::Bool => parse_row_of::<bool>,
        narrow => return Err(Cause::Format(format!("elements of {narrow} are not read from text"))),
    };
    parse(dtype, row, data)
}

fn parse_row_of<T: TextNumber>(dtype: DType, row: &[u8], data: &mut [u8]) -> Result<(), Cause> {
    let row = row.strip_suffix(b",").unwrap_or(row);
    let room = data.len() / dtype.size();
    let fields = || row.split(|byte| *byte == b',');
    let mut places = data.chunks_exact_mut(dtype.size());
    let mut found = 0;
    for field in fields() {
        let Some(place) = places.next() else {
            found = fields().count();
            break;
        };
        let text = field.trim_ascii();
        T::parse(text).ok_or_else(|| not_a_number(text, dtype))?.store(place);
        found += 1;
    }
    match found == room {
        true => Ok(()),
        false => Err(Cause::Shape { expected: format!("{room} values"), found: found.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draws::Draws;

    fn rows(text: &[u8], comment: Option<u8>) -> Result<Vec<String>, DataError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let rows = TextRows::open(file.path(), comment)?;
        let mut found = vec![];
        for row in 0..rows.len() {
            rows.read(row, |line| {
                found.push(String::from_utf8_lossy(line).into_owned());
                Ok(())
            })?;
        }
        Ok(found)
    }

    #[test]
    fn rows_end_with_any_newline_or_the_file() {
        for text in ["1,2\n3,4\n", "1,2\n3,4", "1,2\r\n3,4\r\n\r\n \n\n", "\u{feff}1,2\n\n3,4\n"] {
            assert_eq!(rows(text.as_bytes(), None).unwrap(), ["1,2", "3,4"], "{text:?}");
        }
        assert_eq!(rows(b"# head\n1 0:1\n  # more\n", Some(b'#')).unwrap(), ["1 0:1"]);
        for empty in ["", "\n\r\n", "\u{feff}\n"] {
            assert!(rows(empty.as_bytes(), None).unwrap_err().to_string().ends_with("the file has no rows"));
        }
    }

    #[test]
    fn rows_lie_anywhere_in_the_pieces_that_are_scanned() {
        let long = "7".repeat(CHUNK - 2);
        for head in ["", "1", "12", "123"] {
            let text = format!("{head}\n{long}\n8\n");
            let expected: Vec<&str> = [head, &long, "8"].into_iter().filter(|row| !row.is_empty()).collect();
            assert_eq!(rows(text.as_bytes(), None).unwrap(), expected);
        }
    }

    fn parsed(dtype: DType, text: &str) -> Result<Vec<u8>, String> {
        let mut data = vec![0; 2 * dtype.size()];
        parse_row(dtype, text.as_bytes(), &mut data).map(|()| data).map_err(|cause| cause.to_string())
    }

    #[test]
    fn numbers_are_exact_or_errors() {
        let exact = [i64::MIN, i64::MAX].map(i64::to_le_bytes).concat();
        assert_eq!(parsed(DType::I64, "-9223372036854775808, +9223372036854775807"), Ok(exact));
        assert_eq!(parsed(DType::F32, "1e-1,-inf,"), Ok([0.1f32, f32::NEG_INFINITY].map(f32::to_le_bytes).concat()));
        let halves = [half::f16::from_f32(0.1), half::f16::MAX].map(half::f16::to_le_bytes).concat();
        assert_eq!(parsed(DType::F16, "0.1,65504"), Ok(halves));
        assert_eq!(parsed(DType::Bool, "1,0"), Ok(vec![1, 0]));
        for (dtype, text, why) in [
            (DType::I32, "1,2147483648", "`2147483648` does not fit i32"),
            (DType::I32, "1.5,2", "`1.5` does not fit i32"),
            (DType::U8, "-1,2", "`-1` does not fit u8"),
            (DType::Bool, "1,2", "`2` does not fit bool"),
            (DType::F32, "1e39,2", "`1e39` does not fit f32"),
            (DType::F16, "65520,2", "`65520` does not fit f16"),
            (DType::F32, "1,x", "`x` is not a number"),
            (DType::F32, "1,", "expected 2 values, found 1"),
            (DType::F32, "1,,", "`` is not a number"),
            (DType::F32, "1,2,3,4", "expected 2 values, found 4"),
        ] {
            assert_eq!(parsed(dtype, text).unwrap_err(), why, "{text}");
        }
    }

    #[test]
    fn floats_are_those_of_the_standard_library() {
        let mut draws = Draws::new(1, 0, 0);
        let mut numbers = 0;
        for _ in 0..200_000 {
            let mut text = match draws.below(3) {
                0 => f64::from_bits(draws.bits()).to_string(),
                1 => f32::from_bits(draws.bits() as u32).to_string(),
                _ => format!("{}e{}", draws.bits(), draws.below(700) as i64 - 350),
            };
            if draws.coin() {
                let sign = b"+-.eE0inf_ x"[draws.below(12) as usize];
                text.insert(draws.below(text.len() as u64 + 1) as usize, char::from(sign));
            }
            let bits = text.parse::<f32>().ok().map(f32::to_bits);
            assert_eq!(fast_float2::parse::<f32, _>(&text).ok().map(f32::to_bits), bits, "{text}");
            let bits = text.parse::<f64>().ok().map(f64::to_bits);
            assert_eq!(fast_float2::parse::<f64, _>(&text).ok().map(f64::to_bits), bits, "{text}");
            numbers += usize::from(bits.is_some());
        }
        assert!((50_000..190_000).contains(&numbers), "{numbers}");
    }
}
