//! Model files without the data of large tensors, which stays in the file until it is needed.
//!
//! What is read has the place in memory that it has in the file, with holes for what is not. The structure of the messages
//! decides where holes are; where it is not understood, everything is read, and the decoder says what is wrong.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tensorc_abi::content::{Content, DataFile};

use super::wire::{self, Schema};
use crate::read;

/// The bytes of a model file, with holes.
#[derive(Debug)]
pub(super) struct Skeleton {
    /// All bytes of the file; zeros in the holes.
    pub bytes: Bytes,
    /// What belongs into the holes.
    pub holes: Holes,
}

/// The data of tensors that was not read, by the address of the hole.
#[derive(Debug, Default)]
pub(super) struct Holes(BTreeMap<usize, Content>);

impl Holes {
    /// The data of a tensor, where it is.
    pub(super) fn content(&self, raw: &Bytes) -> Content {
        self.0.get(&raw.as_ptr().addr()).cloned().unwrap_or_else(|| raw.clone().into())
    }
}

impl Skeleton {
    /// Reads a model file.
    ///
    /// # Errors
    /// There is no memory for so many bytes, the file cannot be read, or it was changed since it was opened.
    pub(super) fn read(file: &Arc<DataFile>) -> io::Result<Skeleton> {
        let mut memory = read::room(file)?;
        let size = memory.len();
        let mut reader = Reader { file, memory: memory.as_mut_slice(), read: 0, step: MIN_STEP, holes: vec![] };
        if let Err(Stop::Io(error)) = reader.message(0..size, &wire::MODEL, 0) {
            return Err(error);
        }
        reader.read_to(size)?;
        let ranges = reader.holes;
        let bytes = Bytes::from_owner(memory);
        let holes = ranges.into_iter().map(|hole| {
            let content = Content::of_file(file, hole.start as u64..hole.end as u64)?;
            Ok((bytes[hole].as_ptr().addr(), content))
        });
        let holes = Holes(holes.collect::<io::Result<_>>()?);
        Ok(Skeleton { bytes, holes })
    }
}

/// Bytes that are read at once, at least and at most: more while no hole comes.
const MIN_STEP: usize = 4 << 10;
const MAX_STEP: usize = 1 << 20;

/// Reads a file from its beginning to its end, but for the holes.
struct Reader<'a> {
    file: &'a DataFile,
    memory: &'a mut [u8],
    /// Everything before this is read, or in a hole.
    read: usize,
    step: usize,
    holes: Vec<Range<usize>>,
}

/// Why reading by structure ends before the end of the file.
enum Stop {
    /// The bytes are no messages.
    Structure,
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Io(error)
    }
}

impl Reader<'_> {
    /// Reads up to a position, and some more.
    fn read_to(&mut self, end: usize) -> io::Result<()> {
        while self.read < end {
            let stop = self.memory.len().min(self.read + self.step);
            self.file.read(self.read as u64, &mut self.memory[self.read..stop])?;
            (self.read, self.step) = (stop, MAX_STEP.min(2 * self.step));
        }
        Ok(())
    }

    /// Leaves out a range, unless all of it is read already.
    fn skip(&mut self, range: Range<usize>) {
        if self.read < range.end {
            (self.read, self.step) = (range.end, MIN_STEP);
            self.holes.push(range);
        }
    }

    /// Reads the messages in a range, but for large data of tensors.
    fn message(&mut self, range: Range<usize>, schema: &Schema, depth: usize) -> Result<(), Stop> {
        const BYTES: u64 = 2;
        if depth > wire::MAX_DEPTH {
            return Err(Stop::Structure);
        }
        let (mut at, end) = (range.start, range.end);
        while at < end {
            let key = self.varint(&mut at, end)?;
            let (field, kind) = (key >> 3, key & 7);
            let len = match kind {
                0 => self.varint(&mut at, end).map(|_| 0)?,
                1 => 8,
                BYTES => self.varint(&mut at, end)?,
                5 => 4,
                _ => return Err(Stop::Structure),
            };
            let stop = usize::try_from(len).ok().and_then(|len| at.checked_add(len)).filter(|stop| *stop <= end);
            let stop = stop.ok_or(Stop::Structure)?;
            match schema.message(field) {
                Some(inner) if kind == BYTES => self.message(at..stop, inner, depth + 1)?,
                _ if schema.is_raw_data(field) && len >= DataFile::MIN_STORED => self.skip(at..stop),
                _ => self.read_to(stop)?,
            }
            at = stop;
        }
        Ok(())
    }

    fn varint(&mut self, at: &mut usize, end: usize) -> Result<u64, Stop> {
        let mut value = 0;
        for place in 0..10 {
            if *at == end {
                break;
            }
            self.read_to(*at + 1)?;
            let byte = self.memory[*at];
            *at += 1;
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Stop::Structure)
    }
}
