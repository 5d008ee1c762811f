//! Reading records one after another from a stream.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::frame::{self, HEADER};
use super::walk::{self, Depth, RecordBytes, RecordEnd, RecordExtent};
use crate::error::{Cause, DataError, ExamplePlace};

/// Bytes of the buffer before a longer record makes it grow.
const BUFFER: usize = 1 << 19;

/// A record of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'r> {
    /// How many records were found before it.
    pub number: u64,
    /// Where its first part begins, in bytes.
    pub offset: u64,
    /// The bytes of the record.
    pub payload: &'r [u8],
}

/// The bytes of a stream that are kept: those from `base` on.
struct KeptBytes<R> {
    inner: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Position in the stream of `buffer[start]`.
    base: u64,
    ended: bool,
}

impl<R: Read> KeptBytes<R> {
    fn fill(&mut self) -> io::Result<()> {
        if self.end == self.buffer.len() {
            if self.start > 0 {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            } else {
                let more = self.buffer.len().max(BUFFER);
                self.buffer.try_reserve_exact(more)?;
                self.buffer.resize(self.end + more, 0);
            }
        }
        match self.inner.read(&mut self.buffer[self.end..]) {
            Ok(0) => self.ended = true,
            Ok(read) => self.end += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl<R: Read> RecordBytes for KeptBytes<R> {
    fn bytes(&mut self, at: u64, want: usize) -> io::Result<&[u8]> {
        let skip = (at - self.base) as usize;
        while self.end - self.start < skip + want && !self.ended {
            self.fill()?;
        }
        Ok(self.buffer[self.start..self.end].get(skip..).unwrap_or_default())
    }

    fn end(&self) -> u64 {
        if self.ended { self.base + (self.end - self.start) as u64 } else { u64::MAX }
    }

    fn release(&mut self, at: u64) {
        let skip = ((at - self.base) as usize).min(self.end - self.start);
        self.start += skip;
        self.base += skip as u64;
    }
}

/// Reads records in the order in which they lie. Memory is bounded by the longest record.
///
/// Heads of parts inside of other parts are noticed, so that a wrong length hides no record behind it.
pub struct Reader<R: Read> {
    kept: KeptBytes<R>,
    name: PathBuf,
    /// Where the next record begins, and its number.
    head: u64,
    number: u64,
    /// Where to search for a record after an error.
    resume: Option<u64>,
}

impl Reader<File> {
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Reader<File>, DataError> {
        let file = File::open(&path).map_err(|e| DataError::io(&path, e))?;
        Ok(Reader::new(file, path))
    }
}

impl<R: Read> Reader<R> {
    /// Reads from `inner`, which need not be buffered and which errors call `name`. Offsets count from here.
    pub fn new(inner: R, name: impl AsRef<Path>) -> Reader<R> {
        let kept = KeptBytes { inner, buffer: vec![], start: 0, end: 0, base: 0, ended: false };
        Reader { kept, name: name.as_ref().to_owned(), head: 0, number: 0, resume: None }
    }

    fn error(&self, cause: impl Into<Cause>) -> DataError {
        DataError::at(ExamplePlace::file(&self.name).record(self.number).offset(self.head), cause)
    }

    /// Size of the record at the head; nothing at the end.
    fn measure(&mut self) -> Result<Option<RecordExtent>, RecordEnd> {
        self.kept.release(self.head);
        if self.kept.bytes(self.head, HEADER)?.is_empty() {
            return Ok(None);
        }
        walk::extent(&mut self.kept, self.head, Depth::Bodies).map(Some)
    }

    /// The next record, or nothing at the end of the stream.
    ///
    /// # Errors
    /// Reading fails, or the bytes are no record. Every further call gives the same error, until
    /// [`Reader::resynchronise`] goes on behind the damage.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, DataError> {
        let extent = match self.measure() {
            Ok(None) => return Ok(None),
            Ok(Some(extent)) => extent,
            Err(stop) => {
                if let RecordEnd::Fault { resume, .. } = stop {
                    self.resume = Some(resume);
                }
                return Err(self.error(stop));
            }
        };
        let (number, offset) = (self.number, self.head);
        self.number += 1;
        self.head += extent.stored;
        let start = self.kept.start;
        let stored = &mut self.kept.buffer[start..start + extent.stored as usize];
        let payload = match frame::FrameHeader::parse(stored) {
            Ok(header) if extent.parts == 1 => &stored[HEADER..HEADER + header.length as usize],
            _ => {
                let length = frame::join(stored).map_err(|fault| {
                    DataError::at(ExamplePlace::file(&self.name).record(number).offset(offset), fault)
                })?;
                &stored[..length]
            }
        };
        Ok(Some(Record { number, offset, payload }))
    }

    /// After an error in the data, searches for the next head of a record; without one, does nothing. The result is
    /// the range of bytes that is left out. Takes time linear in its length.
    ///
    /// # Errors
    /// Reading fails.
    pub fn resynchronise(&mut self) -> Result<Range<u64>, DataError> {
        let from = self.head;
        if let Some(resume) = self.resume {
            self.head = walk::next_head(&mut self.kept, resume).map_err(|e| self.error(e))?;
            self.resume = None;
        }
        Ok(from..self.head)
    }
}
