//! `results.jsonl`: the records of all runs with one output folder, each on disk before the next is made.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::error::RunnerError;
use super::record::{FORMAT, Record, Results};

/// How the first line of a file of ours begins.
const FIRST: &str = r#"{"record":"header","#;

/// How long the lock of another run is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// The file, locked against other runs, and what its records say.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes of whole records.
    len: u64,
    results: Results,
}

impl Journal {
    /// Opens or creates the file in a folder; the end of a record that was being written when its run died is cut off.
    ///
    /// # Errors
    /// It is in use, of another bundle or device, damaged before its end, or cannot be read or written.
    pub fn open(out: &Path, bundle: &str, device: &str) -> Result<Journal, RunnerError> {
        fs::create_dir_all(out).map_err(RunnerError::file(out))?;
        let path = out.join("results.jsonl");
        let file = lock(&path)?;
        let mut text = vec![];
        (&file).read_to_end(&mut text).map_err(RunnerError::file(&path))?;

        let (records, len) = parse(&path, &text)?;
        let mut journal = Journal { path, file, len: len as u64, results: Results::default() };
        if len < text.len() {
            journal.cut()?;
        }
        match records.first() {
            None => {
                let header = Record::Header { format: FORMAT, bundle: bundle.into(), device: device.into() };
                journal.append(header)?;
                // The name of a new file is on disk only once its folder is.
                File::open(out).and_then(|folder| folder.sync_all()).map_err(RunnerError::file(out))?;
            }
            Some(header) => check_header(&journal.path, header, bundle, device)?,
        }
        records.into_iter().for_each(|record| journal.results.apply(record));
        Ok(journal)
    }

    pub fn results(&self) -> &Results {
        &self.results
    }

    /// Writes a record to the disk.
    ///
    /// # Errors
    /// It cannot be written; the records before it stay whole.
    pub fn append(&mut self, record: Record) -> Result<(), RunnerError> {
        let mut line = serde_json::to_vec(&record).map_err(|e| RunnerError::file(&self.path)(e.into()))?;
        line.push(b'\n');
        if let Err(source) = self.file.write_all(&line).and_then(|()| self.file.sync_data()) {
            // Where this fails too, the next run cuts the torn line off.
            let _ = self.cut();
            return Err(RunnerError::file(&self.path)(source));
        }
        self.len += line.len() as u64;
        self.results.apply(record);
        Ok(())
    }

    /// Cuts off what is behind the whole records.
    fn cut(&mut self) -> Result<(), RunnerError> {
        let cut = self.file.set_len(self.len).and_then(|()| self.file.sync_data());
        cut.map_err(RunnerError::file(&self.path))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Closing does not do while a process that another thread is starting has the file open, too.
        let _ = self.file.unlock();
    }
}

/// The file itself is the lock, so that none is left behind by a run that was killed.
fn lock(path: &Path) -> Result<File, RunnerError> {
    let file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(RunnerError::file(path))?;
    if !file.metadata().map_err(RunnerError::file(path))?.is_file() {
        return Err(RunnerError::file(path)(std::io::Error::other("not a regular file")));
    }
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // A run that was just killed may have left a process that is about to start and lets go of the file then.
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_WAIT => thread::sleep(LOCK_WAIT / 50),
            Err(TryLockError::WouldBlock) => return Err(RunnerError::Busy { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(RunnerError::file(path)(source)),
        }
    }
}

/// The whole records and the bytes they take. Only the last record can be torn: each is on disk before the next.
fn parse(path: &Path, text: &[u8]) -> Result<(Vec<Record>, usize), RunnerError> {
    let shared = text.len().min(FIRST.len());
    if text[..shared] != FIRST.as_bytes()[..shared] {
        let reason = "not a file of results".to_owned();
        return Err(RunnerError::Damaged { path: path.to_owned(), line: 1, reason });
    }
    let (mut records, mut len) = (vec![], 0);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let last = len + line.len() == text.len();
        let torn = last && (!line.ends_with(b"\n") || serde_json::from_slice::<serde::de::IgnoredAny>(line).is_err());
        if torn {
            break;
        }
        let record = serde_json::from_slice(line).map_err(|e| RunnerError::Damaged {
            path: path.to_owned(),
            line: records.len() + 1,
            reason: e.to_string(),
        })?;
        records.push(record);
        len += line.len();
    }
    Ok((records, len))
}

fn check_header(path: &Path, header: &Record, bundle: &str, device: &str) -> Result<(), RunnerError> {
    let Record::Header { format, bundle: found_bundle, device: found_device } = header else {
        let reason = "a header is missing".to_owned();
        return Err(RunnerError::Damaged { path: path.to_owned(), line: 1, reason });
    };
    let (format, wanted) = (format.to_string(), FORMAT.to_string());
    let pairs =
        [("format", &*format, &*wanted), ("bundle", &**found_bundle, bundle), ("device", &**found_device, device)];
    match pairs.into_iter().find(|(_, found, wanted)| found != wanted) {
        None => Ok(()),
        Some((what, found, wanted)) => {
            let (found, wanted) = (found.to_owned(), wanted.to_owned());
            Err(RunnerError::OtherRun { path: path.to_owned(), what, found, wanted })
        }
    }
}
