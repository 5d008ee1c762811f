//! Index files: lines of a record's key and its offset.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::error::{Cause, DataError, ExamplePlace};

/// Key of a record and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The number of the record.
    pub key: u64,
    /// In bytes from the start of the file.
    pub offset: u64,
}

/// Where the records of a file begin, in the order of the lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// The entries, in the order of the file.
    pub entries: Vec<IndexEntry>,
}

fn parse(line: &[u8]) -> Option<IndexEntry> {
    let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace().map(|field| field.parse().ok());
    let (key, offset) = (fields.next()??, fields.next()??);
    fields.next().is_none().then_some(IndexEntry { key, offset })
}

impl Index {
    /// Reads an index; empty lines are passed over.
    ///
    /// # Errors
    /// The file cannot be read, or a line is not a key and an offset; the place has the line's number, from 0.
    pub fn read(path: impl AsRef<Path>) -> Result<Index, DataError> {
        let text = fs::read(&path).map_err(|e| DataError::io(&path, e))?;
        let mut entries = vec![];
        for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
            if line.trim_ascii().is_empty() {
                continue;
            }
            let Some(entry) = parse(line) else {
                let line = String::from_utf8_lossy(&line[..line.len().min(40)]).into_owned();
                let cause = Cause::Format(format!("{line:?} is not a key and an offset"));
                return Err(DataError::at(ExamplePlace::file(&path).record(number as u64), cause));
            };
            entries.try_reserve(1).map_err(|e| DataError::io(&path, e.into()))?;
            entries.push(entry);
        }
        Ok(Index { entries })
    }

    /// Writes the entries in their order.
    ///
    /// # Errors
    /// Writing fails.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), DataError> {
        let write = || {
            let mut out = BufWriter::new(File::create(&path)?);
            for IndexEntry { key, offset } in &self.entries {
                writeln!(out, "{key}\t{offset}")?;
            }
            out.into_inner()?.sync_data()
        };
        write().map_err(|e| DataError::io(&path, e))
    }

    /// The offsets by key. Of lines with the same key, the last counts.
    pub fn by_key(&self) -> BTreeMap<u64, u64> {
        self.entries.iter().map(|entry| (entry.key, entry.offset)).collect()
    }
}
