//! Writing records to a stream, and to a file with an index beside it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::frame;
use crate::error::{Cause, DataError, ExamplePlace};

/// Bytes collected before they are written.
const BUFFER: usize = 1 << 18;

/// Writes records one after another. What was written is safe only after [`RecordWriter::finish`].
#[must_use = "records may be lost unless `finish` is called"]
pub struct RecordWriter<W: Write> {
    inner: BufWriter<W>,
    name: PathBuf,
    offset: u64,
    records: u64,
    /// A record may have been written in part, so that nothing can follow it.
    failed: bool,
}

impl RecordWriter<File> {
    /// Writes to a new file, or over an old one.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: impl AsRef<Path>) -> Result<RecordWriter<File>, DataError> {
        let file = File::create(&path).map_err(|e| DataError::io(&path, e))?;
        Ok(RecordWriter::new(file, path))
    }
}

impl<W: Write> RecordWriter<W> {
    /// Writes to `inner`, which errors call `name`. Offsets count from here.
    pub fn new(inner: W, name: impl AsRef<Path>) -> RecordWriter<W> {
        let inner = BufWriter::with_capacity(BUFFER, inner);
        RecordWriter { inner, name: name.as_ref().to_owned(), offset: 0, records: 0, failed: false }
    }

    fn error(&self, cause: impl Into<Cause>) -> DataError {
        DataError::at(ExamplePlace::file(&self.name).record(self.records).offset(self.offset), cause)
    }

    fn check(&self) -> Result<(), DataError> {
        if self.failed { Err(self.error(std::io::Error::other("an earlier write failed"))) } else { Ok(()) }
    }

    /// Writes a record and gives the offset at which it begins.
    ///
    /// # Errors
    /// The payload is longer than [`super::MAX_PAYLOAD`], which writes nothing, or writing fails, now or earlier.
    pub fn write(&mut self, payload: &[u8]) -> Result<u64, DataError> {
        self.check()?;
        let at = self.offset;
        match frame::encode(payload, &mut self.inner) {
            Ok(written) => {
                self.offset += written;
                self.records += 1;
                Ok(at)
            }
            Err(cause) => {
                self.failed = matches!(cause, Cause::Io(_));
                Err(self.error(cause))
            }
        }
    }

    /// Writes what is still in memory.
    ///
    /// # Errors
    /// Writing fails, now or earlier.
    pub fn flush(&mut self) -> Result<(), DataError> {
        self.check()?;
        let done = self.inner.flush();
        self.failed = done.is_err();
        done.map_err(|e| self.error(e))
    }

    /// Writes what is still in memory and gives the stream back.
    ///
    /// # Errors
    /// As [`RecordWriter::flush`].
    pub fn finish(mut self) -> Result<W, DataError> {
        self.flush()?;
        let RecordWriter { inner, name, .. } = self;
        inner.into_inner().map_err(|e| DataError::io(name, e.into_error()))
    }
}

/// Writes records to a file and their keys and offsets to an index.
#[must_use = "records may be lost unless `finish` is called"]
pub struct IndexedWriter {
    records: RecordWriter<File>,
    index: BufWriter<File>,
    index_path: PathBuf,
}

impl IndexedWriter {
    /// Writes to new files, or over old ones.
    ///
    /// # Errors
    /// A file cannot be created.
    pub fn create(records: impl AsRef<Path>, index: impl AsRef<Path>) -> Result<IndexedWriter, DataError> {
        let records = RecordWriter::create(records)?;
        let file = File::create(&index).map_err(|e| DataError::io(&index, e))?;
        Ok(IndexedWriter { records, index: BufWriter::new(file), index_path: index.as_ref().to_owned() })
    }

    /// Writes a record and gives the offset at which it begins.
    ///
    /// # Errors
    /// As [`RecordWriter::write`], also for the index.
    pub fn write(&mut self, key: u64, payload: &[u8]) -> Result<u64, DataError> {
        let offset = self.records.write(payload)?;
        writeln!(self.index, "{key}\t{offset}").map_err(|e| DataError::io(&self.index_path, e))?;
        Ok(offset)
    }

    /// Writes what is still in memory, and waits until the disk has it: some file systems report only then that they
    /// are full.
    ///
    /// # Errors
    /// Writing fails, now or earlier.
    pub fn finish(self) -> Result<(), DataError> {
        let IndexedWriter { records, index, index_path } = self;
        let path = records.name.clone();
        records.finish()?.sync_data().map_err(|e| DataError::io(path, e))?;
        let index = index.into_inner().map_err(std::io::IntoInnerError::into_error);
        index.and_then(|file| file.sync_data()).map_err(|e| DataError::io(index_path, e))
    }
}
