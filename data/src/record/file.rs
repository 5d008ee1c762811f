//! A file of records: reading at offsets, and finding where the records begin.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::frame::{self, Fault, FrameHeader, HEADER, PartKind};
use super::index::{Index, IndexEntry};
use super::walk::{self, Depth, RecordBytes, RecordEnd};
use crate::error::{Cause, DataError, ExamplePlace};

/// Bytes read at once where heads of records lie close together, and where they do not.
const CLOSE_READ: usize = 1 << 16;
const RANDOM_READ_BYTES: usize = 1 << 9;

/// Bytes with which reading a record begins: its header, and short records as a whole.
const HEAD_READ: usize = 1 << 10;

/// The longest jump forward that counts as close.
const MAX_JUMP: u64 = walk::MAX_SHORT_BODY;

/// A file of records that many threads may read at once.
#[derive(Debug)]
pub struct RecordFile {
    file: File,
    path: PathBuf,
    size: u64,
}

/// Bytes of a file that hold no record.
#[derive(Clone, Debug)]
pub struct Damage {
    /// The damaged bytes, by position in the file.
    pub range: Range<u64>,
    /// What is wrong at the start of the range.
    pub error: DataError,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Damaged {
    start: u64,
    end: u64,
    fault: Fault,
}

impl Damaged {
    pub(super) fn of(self, path: &Path) -> Damage {
        let place = ExamplePlace::file(path).offset(self.start);
        Damage { range: self.start..self.end, error: DataError::at(place, self.fault) }
    }
}

/// Where a record lies in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordPosition {
    pub(super) offset: u64,
    /// Bytes of all its parts with headers and padding; less than 2³¹.
    pub(super) length: u32,
}

impl RecordPosition {
    fn end(self) -> u64 {
        self.offset + u64::from(self.length)
    }
}

/// The records that begin in a range of a file.
#[derive(Debug)]
pub struct Scan {
    path: PathBuf,
    pub(super) records: Vec<RecordPosition>,
    pub(super) damage: Vec<Damaged>,
}

impl Scan {
    /// An index of the records with the keys 0, 1 and so on.
    pub fn index(&self) -> Index {
        let entry = |(key, record): (usize, &RecordPosition)| IndexEntry { key: key as u64, offset: record.offset };
        Index { entries: self.records.iter().enumerate().map(entry).collect() }
    }

    /// The ranges without records, from first to last.
    pub fn damage(&self) -> impl Iterator<Item = Damage> {
        self.damage.iter().map(|damaged| damaged.of(&self.path))
    }

    /// Notes damage from `start` to `end`; damage without records in between is one.
    fn damaged(&mut self, start: u64, end: u64, fault: Fault) {
        match self.damage.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => self.damage.push(Damaged { start, end, fault }),
        }
    }
}

/// The bytes of a file around the last position that was looked at.
struct FileWindow<'f> {
    of: &'f RecordFile,
    base: u64,
    bytes: Vec<u8>,
}

impl FileWindow<'_> {
    fn end_of_bytes(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }
}

impl RecordBytes for FileWindow<'_> {
    fn bytes(&mut self, at: u64, want: usize) -> io::Result<&[u8]> {
        let left = self.of.size.saturating_sub(at);
        if left == 0 {
            return Ok(&[]);
        }
        let want = left.min(want as u64);
        if at < self.base || at + want > self.end_of_bytes() {
            let near = at + CLOSE_READ as u64 >= self.base && at <= self.end_of_bytes() + MAX_JUMP;
            let length = want.max(if near { CLOSE_READ } else { RANDOM_READ_BYTES } as u64).min(left);
            self.base = at;
            self.bytes.resize(length as usize, 0);
            self.of.file.read_exact_at(&mut self.bytes, at)?;
        }
        Ok(&self.bytes[(at - self.base) as usize..])
    }

    fn end(&self) -> u64 {
        self.of.size
    }
}

fn no_record(why: impl Display) -> Cause {
    Cause::Index(format!("no record begins there: {why}"))
}

impl RecordFile {
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<RecordFile, DataError> {
        let open = || {
            let file = File::open(&path)?;
            let metadata = file.metadata()?;
            Ok(RecordFile { file, path: path.as_ref().to_owned(), size: metadata.len() })
        };
        open().map_err(|e| DataError::io(&path, e))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that the file had when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn window(&self) -> FileWindow<'_> {
        FileWindow { of: self, base: 0, bytes: vec![] }
    }

    fn error(&self, offset: u64, cause: impl Into<Cause>) -> DataError {
        DataError::at(ExamplePlace::file(&self.path).offset(offset), cause)
    }

    /// The header of the record that begins at `offset`.
    fn head(source: &mut impl RecordBytes, offset: u64) -> Result<FrameHeader, Cause> {
        let header = FrameHeader::parse(source.bytes(offset, HEADER)?)?;
        if header.part.begins() { Ok(header) } else { Err(Fault::Order(header.part).into()) }
    }

    /// Reads the record that begins at `offset`; its payload replaces what `payload` holds.
    ///
    /// # Errors
    /// No record begins there, or reading fails. What `payload` holds then is anything.
    pub fn read_at(&self, offset: u64, payload: &mut Vec<u8>) -> Result<(), DataError> {
        self.read(offset, HEAD_READ as u32, payload).map_err(|cause| self.error(offset, cause))
    }

    /// As [`RecordFile::read_at`]; `stored` is about how many bytes the record takes.
    pub(super) fn read(&self, offset: u64, stored: u32, payload: &mut Vec<u8>) -> Result<(), Cause> {
        let left = self.size.saturating_sub(offset);
        let mut bytes = [0; HEAD_READ];
        let at_once = u64::from(stored).clamp(HEADER as u64, HEAD_READ as u64);
        let bytes = &mut bytes[..left.min(at_once) as usize];
        self.file.read_exact_at(bytes, offset)?;
        let header = Self::head(&mut &*bytes, 0)?;
        if header.part != PartKind::Whole {
            let stored = walk::extent(&mut self.window(), offset, Depth::Headers { longest: u64::MAX })?.stored;
            self.fill(payload, stored as usize, bytes, offset)?;
            return walk::decode_in_place(payload);
        }
        if left < HEADER as u64 + header.padded() {
            return Err(Fault::NoBody.into());
        }
        self.fill(payload, header.length as usize, &bytes[HEADER..], offset + HEADER as u64)?;
        if frame::find_magic(payload).is_some() { Err(Fault::Inside.into()) } else { Ok(()) }
    }

    /// Reads bytes that the file is known to have, of which the first are known.
    fn fill(&self, buffer: &mut Vec<u8>, length: usize, known: &[u8], offset: u64) -> io::Result<()> {
        buffer.try_reserve(length.saturating_sub(buffer.len()))?;
        buffer.resize(length, 0);
        let (first, rest) = buffer.split_at_mut(known.len().min(length));
        first.copy_from_slice(&known[..first.len()]);
        if rest.is_empty() { Ok(()) } else { self.file.read_exact_at(rest, offset + first.len() as u64) }
    }

    /// Where a bound of a range lies: at an end of the file, or at the next head of a record.
    fn bound(&self, window: &mut FileWindow<'_>, at: u64) -> io::Result<u64> {
        if at == 0 { Ok(0) } else { walk::next_head(window, at.min(self.size)) }
    }

    /// Finds the records that begin in a range of bytes. Both bounds, unless they are ends of the file, are moved
    /// forward to heads of records, so that adjoining ranges have no record in common and leave none out.
    ///
    /// This reads headers and jumps over what is between them. Damage is noted and passed over, which takes time linear
    /// in its length. What is not noticed is damage inside of a payload, and a wrong length that is not longer than a
    /// record before it and leads to another head exactly; reading the record is an error then.
    ///
    /// # Errors
    /// Reading fails.
    pub fn scan(&self, range: Range<u64>) -> Result<Scan, DataError> {
        let mut scan = Scan { path: self.path.clone(), records: vec![], damage: vec![] };
        self.scan_into(range, &mut scan).map_err(|e| DataError::io(&self.path, e))?;
        Ok(scan)
    }

    fn scan_into(&self, range: Range<u64>, scan: &mut Scan) -> io::Result<()> {
        let mut window = self.window();
        let (begin, end) = (self.bound(&mut window, range.start)?, self.bound(&mut window, range.end)?);
        let (mut at, mut longest) = (begin, 0);
        while at < end {
            match walk::extent(&mut window, at, Depth::Headers { longest }) {
                // The range ends with a head, which this record must not contain.
                Ok(extent) if at + extent.stored <= end => {
                    scan.records.try_reserve(1)?;
                    scan.records.push(RecordPosition { offset: at, length: extent.stored as u32 });
                    at += extent.stored;
                    longest = longest.max(extent.stored);
                }
                Err(RecordEnd::Io(error)) => return Err(error),
                Ok(_) | Err(RecordEnd::Fault { .. }) => {
                    let (start, fault, resume) = self.locate(&mut window, at, scan)?;
                    at = walk::next_head(&mut window, resume)?.min(end);
                    scan.damaged(start, at, fault);
                }
            }
        }
        Ok(())
    }

    /// Where damage begins that is met at `at`, what it is, and from where on to search for a record.
    fn locate(&self, window: &mut FileWindow<'_>, at: u64, scan: &mut Scan) -> io::Result<(u64, Fault, u64)> {
        // The length of the record before may be wrong, which only its body shows.
        let before = scan.records.last().copied().filter(|record| record.end() == at);
        for start in before.map(|record| record.offset).into_iter().chain([at]) {
            match walk::extent(window, start, Depth::Bodies) {
                Ok(_) => {}
                Err(RecordEnd::Io(error)) => return Err(error),
                Err(RecordEnd::Fault { fault, resume }) => {
                    if start < at {
                        scan.records.pop();
                    }
                    return Ok((start, fault, resume));
                }
            }
        }
        // The record is whole, but one that begins inside of it ends the range.
        Ok((at, Fault::Inside, at + frame::ALIGN))
    }

    /// Checks that a record begins at every offset of an index.
    ///
    /// # Errors
    /// [`Cause::Index`] for the first offset where this is not so, or reading fails. The place has the record's number
    /// in the order of offsets.
    pub fn check(&self, index: &Index) -> Result<(), DataError> {
        let offsets = self.offsets(index)?;
        self.check_heads(&offsets, 0..offsets.len())
    }

    /// The offsets of an index from small to large: all different, aligned and inside of the file.
    pub(super) fn offsets(&self, index: &Index) -> Result<Vec<u64>, DataError> {
        let mut offsets: Vec<u64> = index.entries.iter().map(|entry| entry.offset).collect();
        offsets.sort_unstable();
        for (number, &offset) in offsets.iter().enumerate() {
            let why = if offset.saturating_add(HEADER as u64) > self.size {
                format!("offset {offset} in a file of {} bytes", self.size)
            } else if offset % frame::ALIGN != 0 {
                format!("offset {offset} is no multiple of {}", frame::ALIGN)
            } else if offsets.get(number + 1) == Some(&offset) {
                format!("offset {offset} occurs twice")
            } else {
                continue;
            };
            return Err(self.index_error(number, offset, why));
        }
        Ok(offsets)
    }

    /// Checks that records begin at those of `offsets` that have these numbers.
    pub(super) fn check_heads(&self, offsets: &[u64], which: impl Iterator<Item = usize>) -> Result<(), DataError> {
        let mut window = self.window();
        for number in which {
            let offset = offsets[number];
            match Self::head(&mut window, offset) {
                Ok(_) => {}
                Err(Cause::Io(error)) => return Err(self.error(offset, Cause::Io(error))),
                Err(cause) => return Err(self.index_error(number, offset, cause)),
            }
        }
        Ok(())
    }

    /// The cause of an error of [`RecordFile::read`] if the offset comes from an index.
    pub(super) fn blame_index(&self, offset: u64, cause: Cause) -> Cause {
        match Self::head(&mut self.window(), offset) {
            Err(Cause::Io(_)) | Ok(_) => cause,
            Err(_) => no_record(&cause),
        }
    }

    fn index_error(&self, number: usize, offset: u64, why: impl Display) -> DataError {
        let place = ExamplePlace::file(&self.path).record(number as u64).offset(offset);
        DataError::at(place, no_record(why))
    }
}
