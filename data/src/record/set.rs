//! All records of a list of files, or one of several parts of them, for reading in any order.

use std::ops::Range;
use std::path::PathBuf;

use super::file::{Damage, Damaged, RecordFile};
use super::index::Index;
use super::{frame, paths};
use crate::error::{DataError, ExamplePlace};

/// Heads of records that are looked at when an index is opened, to notice that it belongs to another file.
const PROBES: usize = 64;

/// Which index files tell where the records begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IndexFiles {
    /// None: the files are scanned for records, and parts have about equally many bytes.
    #[default]
    Ignore,
    /// Those that have the names of the files and end with `.idx`, if every file has one; else none.
    Beside,
    /// Paths separated by `;`, one for each file.
    List(String),
}

/// How a [`RecordSet`] is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSetOptions {
    /// Parts that the records are divided into, such as one for each worker.
    pub parts: usize,
    /// The part to be read, from 0.
    pub part: usize,
    /// Which index files are used.
    pub index: IndexFiles,
}

impl Default for RecordSetOptions {
    fn default() -> RecordSetOptions {
        RecordSetOptions { parts: 1, part: 0, index: IndexFiles::Ignore }
    }
}

/// Where a record lies.
#[derive(Clone, Copy, Debug)]
struct RecordEntry {
    offset: u64,
    /// Bytes of its parts; those up to the next record if offsets come from an index.
    stored: u32,
    file: u32,
}

/// What a set knows of one of its files.
#[derive(Debug)]
struct Share {
    file: RecordFile,
    /// Number in the set of the first record of the file that belongs to it.
    start: usize,
    /// Records of the file before that one, if known.
    before: Option<u64>,
}

/// The records of several files, or of one part of them, which can be read in any order by any number of threads.
///
/// Without an index, the bytes of all files in a row are divided: with T bytes and P parts, bounds are the multiples of
/// T/P, rounded up, then rounded up to a multiple of four; each bound is moved forward to the next head of a record in
/// its file. With an index, the records are divided: each part has N/P records, rounded up, so that the last parts may
/// be shorter or empty. In both cases every record is in exactly one part.
///
/// Each record takes 16 bytes of memory.
#[derive(Debug)]
pub struct RecordSet {
    shares: Vec<Share>,
    entries: Vec<RecordEntry>,
    damage: Vec<(u32, Damaged)>,
    total: Option<u64>,
    indexed: bool,
}

/// The range of part `part` when `total` is divided into `parts` whose size is a multiple of `align`.
fn bounds(total: u64, parts: usize, part: usize, align: u64) -> Range<u64> {
    let step = total.div_ceil(parts as u64).checked_next_multiple_of(align).unwrap_or(u64::MAX);
    let bound = |part: u64| step.saturating_mul(part).min(total);
    bound(part as u64)..bound(part as u64 + 1)
}

/// The index file of each record file, if there are any.
fn index_paths(files: &[PathBuf], index: &IndexFiles) -> Result<Option<Vec<PathBuf>>, DataError> {
    match index {
        IndexFiles::Ignore => Ok(None),
        IndexFiles::Beside => {
            let beside: Vec<PathBuf> = files.iter().map(|file| file.with_extension("idx")).collect();
            Ok(beside.iter().all(|path| path.is_file()).then_some(beside))
        }
        IndexFiles::List(list) => {
            let indices: Vec<PathBuf> =
                list.split(';').map(str::trim).filter(|item| !item.is_empty()).map(PathBuf::from).collect();
            if indices.len() != files.len() {
                let why = format!("{} index files for {} files of records", indices.len(), files.len());
                return Err(DataError::options("index", why));
            }
            Ok(Some(indices))
        }
    }
}

impl RecordSet {
    /// Opens the files of a list: files, folders (all files in them, in the order of their names, but no `.idx` and
    /// `.lst`), and paths with `*` and `?` in the last name, separated by `;`.
    ///
    /// Damaged ranges are no errors here: see [`RecordSet::damage`]. Of an index, all offsets are compared with the
    /// sizes of the files, but only some are looked up; others that are wrong are errors when their record is read, and
    /// [`RecordFile::check`] looks at all.
    ///
    /// # Errors
    /// The list names no files, a file cannot be read, an index is malformed or belongs to another file, or there is no
    /// such part.
    pub fn open(list: &str, options: &RecordSetOptions) -> Result<RecordSet, DataError> {
        if options.part >= options.parts {
            let why = format!("part {} of {}; parts count from 0", options.part, options.parts);
            return Err(DataError::options("part", why));
        }
        let paths = paths::expand(list)?;
        let indices = index_paths(&paths, &options.index)?;
        let files = paths.iter().map(RecordFile::open).collect::<Result<Vec<_>, _>>()?;
        let shares = files.into_iter().map(|file| Share { file, start: 0, before: None }).collect();
        let mut set = RecordSet { shares, entries: vec![], damage: vec![], total: None, indexed: indices.is_some() };
        match indices {
            Some(indices) => set.take_indexed(&indices, options)?,
            None => set.take_scanned(options)?,
        }
        set.entries.shrink_to_fit();
        Ok(set)
    }

    fn push(&mut self, file: usize, offset: u64, stored: u32) -> Result<(), DataError> {
        let room = self.entries.try_reserve(1);
        room.map_err(|e| DataError::io(self.shares[file].file.path(), e.into()))?;
        self.entries.push(RecordEntry { offset, stored, file: file as u32 });
        Ok(())
    }

    fn take_scanned(&mut self, options: &RecordSetOptions) -> Result<(), DataError> {
        let total = self.shares.iter().map(|share| share.file.size()).sum();
        let part = bounds(total, options.parts, options.part, frame::ALIGN);
        let mut base = 0;
        for number in 0..self.shares.len() {
            let share = &mut self.shares[number];
            let size = share.file.size();
            let range = part.start.clamp(base, base + size) - base..part.end.clamp(base, base + size) - base;
            base += size;
            share.start = self.entries.len();
            share.before = (range.start == 0).then_some(0);
            if range.is_empty() {
                continue;
            }
            let scan = share.file.scan(range)?;
            self.damage.extend(scan.damage.iter().map(|damaged| (number as u32, *damaged)));
            for record in scan.records {
                self.push(number, record.offset, record.length)?;
            }
        }
        self.total = (options.parts == 1).then_some(self.entries.len() as u64);
        Ok(())
    }

    fn take_indexed(&mut self, indices: &[PathBuf], options: &RecordSetOptions) -> Result<(), DataError> {
        let mut offsets = vec![];
        for (share, index) in self.shares.iter().zip(indices) {
            offsets.push(share.file.offsets(&Index::read(index)?)?);
        }
        let total: usize = offsets.iter().map(Vec::len).sum();
        let part = bounds(total as u64, options.parts, options.part, 1);
        let (start, end) = (part.start as usize, part.end as usize);
        let mut base = 0;
        for (number, offsets) in offsets.iter().enumerate() {
            let range = start.clamp(base, base + offsets.len()) - base..end.clamp(base, base + offsets.len()) - base;
            base += offsets.len();
            let share = &mut self.shares[number];
            share.start = self.entries.len();
            share.before = Some(range.start as u64);
            let size = share.file.size();
            share.file.check_heads(offsets, range.clone().step_by(range.len().div_ceil(PROBES).max(1)))?;
            for at in range {
                let next = offsets.get(at + 1).copied().unwrap_or(size);
                self.push(number, offsets[at], u32::try_from(next - offsets[at]).unwrap_or(u32::MAX))?;
            }
        }
        self.total = Some(total as u64);
        Ok(())
    }

    /// Number of records of this part.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of records of all parts, unless finding it out would mean to scan what belongs to other parts.
    pub fn total(&self) -> Option<u64> {
        self.total
    }

    /// Bytes that record `i` takes in its file, or with an index, at most takes.
    ///
    /// # Panics
    /// There is no record `i`.
    pub fn stored_len(&self, i: usize) -> u64 {
        u64::from(self.entries[i].stored)
    }

    /// A number of record `i` that is the same whichever part it is read from: its file's in the list and its offset.
    ///
    /// # Panics
    /// There is no record `i`.
    pub fn key(&self, i: usize) -> u64 {
        let RecordEntry { offset, file, .. } = self.entries[i];
        u64::from(file) << 48 ^ offset
    }

    /// Where record `i` lies. Its number counts the records found in the file; it is left out where those before are
    /// not known: in a part that begins inside of the file and was found without an index.
    ///
    /// # Panics
    /// There is no record `i`.
    pub fn place(&self, i: usize) -> ExamplePlace {
        let RecordEntry { offset, file, .. } = self.entries[i];
        let Share { file, start, before } = &self.shares[file as usize];
        let record = before.map(|before| before + (i - start) as u64);
        ExamplePlace { record, ..ExamplePlace::file(file.path()).offset(offset) }
    }

    /// Reads record `i`; its payload replaces what `payload` holds.
    ///
    /// # Errors
    /// The record is damaged, the index is wrong or reading fails. What `payload` holds then is anything.
    ///
    /// # Panics
    /// There is no record `i`.
    pub fn read(&self, i: usize, payload: &mut Vec<u8>) -> Result<(), DataError> {
        let RecordEntry { offset, stored, file } = self.entries[i];
        let file = &self.shares[file as usize].file;
        file.read(offset, stored, payload).map_err(|cause| {
            let cause = if self.indexed { file.blame_index(offset, cause) } else { cause };
            DataError::at(self.place(i), cause)
        })
    }

    /// The ranges of the files of this part that hold no records, from first to last. Offsets that come from an index
    /// are trusted, so that none are known then.
    pub fn damage(&self) -> impl Iterator<Item = Damage> {
        self.damage.iter().map(|(file, damaged)| damaged.of(self.shares[*file as usize].file.path()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_rounded_up_and_cover_everything() {
        assert_eq!(bounds(100, 3, 0, 4), 0..36);
        assert_eq!(bounds(100, 3, 2, 4), 72..100);
        assert_eq!(bounds(10, 4, 3, 1), 9..10);
        assert_eq!(bounds(5, 4, 3, 1), 5..5);
        assert_eq!(bounds(0, 7, 3, 4), 0..0);
        assert_eq!(bounds(u64::MAX, 2, 1, 4), 1 << 63..u64::MAX);
        assert_eq!(bounds(u64::MAX, 1, 0, 4), 0..u64::MAX);
    }

    #[test]
    fn an_entry_is_small() {
        assert_eq!(size_of::<RecordEntry>(), 16);
    }
}
