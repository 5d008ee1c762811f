//! A file that is written to its end, whatever happens, and says then whether all of it was: writers of archives have no way to stop
//! other than to finish.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

/// A file for writing. Behind the first error nothing is written any more.
pub(super) struct Sink {
    file: BufWriter<File>,
    failed: Option<io::Error>,
    position: u64,
    length: u64,
}

impl Sink {
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path) -> io::Result<Sink> {
        Ok(Sink { file: BufWriter::new(File::create(path)?), failed: None, position: 0, length: 0 })
    }

    /// # Errors
    /// The first of all that was done.
    pub fn finish(mut self) -> io::Result<()> {
        self.file(|file| file.flush());
        self.failed.map_or(Ok(()), Err)
    }

    fn file(&mut self, work: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        if self.failed.is_none() {
            self.failed = work(&mut self.file).err();
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file(|file| file.write_all(bytes));
        self.position += bytes.len() as u64;
        self.length = self.length.max(self.position);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Sink {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let found = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
            SeekFrom::End(distance) => self.length.checked_add_signed(distance),
        };
        self.position = found.ok_or(io::ErrorKind::InvalidInput)?;
        let position = self.position;
        self.file(|file| file.seek(SeekFrom::Start(position)).map(drop));
        Ok(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut sink = Sink::create(&path).unwrap();
        sink.write_all(b"three").unwrap();
        sink.seek(SeekFrom::Start(1)).unwrap();
        sink.write_all(b"H").unwrap();
        assert_eq!(sink.seek(SeekFrom::End(0)).unwrap(), 5);
        sink.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"tHree");
        // A device that is always full.
        if let Ok(mut full) = Sink::create(Path::new("/dev/full")) {
            full.write_all(&[0; 100_000]).unwrap();
            assert_eq!(full.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
    }
}
