//! Lists of images: text files with a line of number, labels and path for each image.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Cause, DataError, ExamplePlace};

/// An image of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ListEntry {
    /// The number of the image.
    pub index: u64,
    /// One or more.
    pub labels: Vec<f32>,
    /// Relative to a folder that the list does not name.
    pub path: PathBuf,
}

/// A line that is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkippedLine {
    /// From 0.
    pub line: u64,
    /// Why the line was skipped.
    pub why: &'static str,
}

/// The images of a list and the lines that were left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageList {
    /// The lines that name images, in order.
    pub entries: Vec<ListEntry>,
    /// The lines that name none.
    pub skipped: Vec<SkippedLine>,
}

const FEW_FIELDS: &str = "fewer than 3 fields: index, label and path, separated by tabs";

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn parse(line: &[u8]) -> Result<ListEntry, &'static str> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b'\t').map(<[u8]>::trim_ascii).collect();
    let [index, labels @ .., path] = &fields[..] else { return Err(FEW_FIELDS) };
    if labels.is_empty() {
        return Err(FEW_FIELDS);
    }
    // Through f64, as one rounding more or less decides the last bit.
    let label = |field: &&[u8]| number::<f64>(field).map(|value| value as f32);
    Ok(ListEntry {
        index: number(index).ok_or("the index is no whole number")?,
        labels: labels.iter().map(label).collect::<Option<_>>().ok_or("a label is no number")?,
        path: PathBuf::from(OsStr::from_bytes(path)),
    })
}

impl ImageList {
    /// Reads a list. Lines that are no entries are noted and passed over, empty ones without a note.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: impl AsRef<Path>) -> Result<ImageList, DataError> {
        let text = fs::read(&path).map_err(|e| DataError::io(&path, e))?;
        let mut list = ImageList::default();
        for (line, content) in text.split(|&byte| byte == b'\n').enumerate() {
            if content.trim_ascii().is_empty() {
                continue;
            }
            match parse(content.trim_ascii()) {
                Ok(entry) => list.entries.push(entry),
                Err(why) => list.skipped.push(SkippedLine { line: line as u64, why }),
            }
        }
        Ok(list)
    }

    /// Writes the entries, with six decimals of each label.
    ///
    /// # Errors
    /// An entry has no labels, its path is empty, has a tab or the end of a line in it, or white space around it, or
    /// writing fails.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), DataError> {
        for (line, entry) in self.entries.iter().enumerate() {
            let bytes = entry.path.as_os_str().as_bytes();
            let plain = !bytes.is_empty() && bytes.trim_ascii() == bytes && !bytes.iter().any(|b| b"\t\n".contains(b));
            if entry.labels.is_empty() || !plain {
                let cause = Cause::Format(format!("a line cannot hold {entry:?}"));
                return Err(DataError::at(ExamplePlace::file(path).record(line as u64), cause));
            }
        }
        let write = || {
            let mut out = BufWriter::new(File::create(&path)?);
            for ListEntry { index, labels, path } in &self.entries {
                write!(out, "{index}\t")?;
                labels.iter().try_for_each(|label| match label {
                    label if label.is_nan() => write!(out, "nan\t"),
                    label => write!(out, "{label:.6}\t"),
                })?;
                out.write_all(path.as_os_str().as_bytes())?;
                out.write_all(b"\n")?;
            }
            out.into_inner()?.sync_data()
        };
        write().map_err(|e| DataError::io(&path, e))
    }
}
