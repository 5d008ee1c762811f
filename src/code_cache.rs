//! Machine code of kernels in a folder, shared by processes.
//!
//! A file holds one record (`tensorc_codegen::stored`) and is named by its number. It is written under another name and
//! renamed, so that a reader sees a whole record or none; what a crash leaves is damaged or has that other name. What
//! was not used for longest is removed when the folder has grown too large. Nothing that goes wrong here is an error.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use tensorc_codegen::stored::CodeStore;

/// Bytes in a folder, at most.
const MAX_CACHE_BYTES: u64 = 256 << 20;
/// Bytes of one file, at most.
const MAX_RECORD_BYTES: u64 = 16 << 20;
/// A process looks through the folder whenever it has written this part of the limit.
const TRIM_FRACTION: u64 = 8;
/// Age from which an unfinished file is one of a process that is gone.
const STALE_FILE_AGE: Duration = Duration::from_secs(3600);
/// Ends of the names of records and of unfinished files.
const RECORD: &str = ".tccode";
const UNFINISHED: &str = ".tcpart";

pub struct CodeFolder {
    path: PathBuf,
    limit: u64,
    /// Tells this process from others on all machines that share the folder.
    process: u64,
    /// Files written by this process.
    count: AtomicU64,
    /// Bytes written since the folder was looked through; at first, so many that the next ones are enough to do that.
    written: AtomicU64,
    /// Why nothing is stored any more.
    failure: OnceLock<String>,
}

impl CodeFolder {
    pub fn new(path: PathBuf) -> CodeFolder {
        CodeFolder::with_limit(path, MAX_CACHE_BYTES)
    }

    fn with_limit(path: PathBuf, limit: u64) -> CodeFolder {
        let process = RandomState::new().hash_one(std::process::id());
        let written = AtomicU64::new(limit / TRIM_FRACTION);
        CodeFolder { path, limit, process, count: AtomicU64::new(0), written, failure: OnceLock::new() }
    }

    /// Why nothing is stored any more, if something went wrong.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    fn file(&self, number: u128) -> PathBuf {
        self.path.join(format!("{number:032x}{RECORD}"))
    }

    fn write(&self, number: u128, record: &[u8]) -> io::Result<()> {
        let count = self.count.fetch_add(1, Relaxed);
        let part = self.path.join(format!("{:016x}-{count}{UNFINISHED}", self.process));
        let mut file = match create(&part) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                create_folder(&self.path)?;
                create(&part)?
            }
            other => other?,
        };
        let done = file.write_all(record).and_then(|()| fs::rename(&part, self.file(number)));
        if done.is_err() {
            // It may be that nothing can be removed, either.
            let _ = fs::remove_file(&part);
        }
        done
    }

    /// Removes what was not used for longest, down to three quarters of the limit if that is exceeded.
    fn trim(&self) -> io::Result<()> {
        let now = SystemTime::now();
        let (mut records, mut total) = (vec![], 0);
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            // Another process may have removed it.
            let Ok(about) = entry.metadata() else { continue };
            let (used, path) = (about.modified()?, entry.path());
            if name.ends_with(UNFINISHED) && now.duration_since(used).is_ok_and(|age| age > STALE_FILE_AGE) {
                let _ = fs::remove_file(path);
            } else if is_record(name) && about.is_file() {
                total += about.len();
                records.push((used, path, about.len()));
            }
        }
        if total <= self.limit {
            return Ok(());
        }
        records.sort();
        for (_, path, bytes) in records {
            if total <= self.limit / 4 * 3 {
                break;
            }
            if fs::remove_file(path).is_ok() {
                total -= bytes;
            }
        }
        Ok(())
    }
}

impl CodeStore for CodeFolder {
    fn get(&self, number: u128) -> Option<Vec<u8>> {
        let file = File::open(self.file(number)).ok()?;
        let mut record = vec![];
        (&file).take(MAX_RECORD_BYTES).read_to_end(&mut record).ok()?;
        // In a folder that others fill, records only grow older.
        let _ = file.set_modified(SystemTime::now());
        Some(record)
    }

    fn put(&self, number: u128, record: &[u8]) {
        let bytes = record.len() as u64;
        if self.failure.get().is_some() || bytes > MAX_RECORD_BYTES.min(self.limit) {
            return;
        }
        match self.write(number, record) {
            Ok(()) => _ = self.written.fetch_add(bytes, Relaxed),
            Err(e) => _ = self.failure.set(format!("no more code is stored in {}: {e}", self.path.display())),
        }
    }

    fn finish(&self) {
        let due = |written: u64| (written > self.limit / TRIM_FRACTION).then_some(0);
        if self.written.fetch_update(Relaxed, Relaxed, due).is_ok() {
            // A folder that cannot be read is not written to, either, which `put` says.
            let _ = self.trim();
        }
    }
}

/// Whether a file of that name is a record.
fn is_record(name: &str) -> bool {
    let number = name.strip_suffix(RECORD);
    number.is_some_and(|n| n.len() == 32 && n.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Creates a folder that only its owner may write to: whoever can write to it decides what code runs.
fn create_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_longest_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let folder = CodeFolder::with_limit(path.clone(), 1000);
        let old = SystemTime::now() - Duration::from_secs(100_000);
        for number in 0..10 {
            folder.put(number, &[number as u8; 100]);
            let file = File::open(folder.file(number)).unwrap();
            file.set_modified(old + Duration::from_secs(number as u64)).unwrap();
        }
        // What is no record is not counted, and stays; what a process left unfinished goes.
        fs::write(path.join("notes"), [0; 5000]).unwrap();
        fs::write(path.join("x.tcpart"), [0; 10]).unwrap();
        File::open(path.join("x.tcpart")).unwrap().set_modified(old).unwrap();
        folder.finish();
        assert!((0..10).all(|n| folder.get(n).is_some()), "nothing is removed within the limit");
        assert!(path.join("notes").exists() && !path.join("x.tcpart").exists());
        for number in 0..10 {
            let file = File::open(folder.file(number)).unwrap();
            file.set_modified(old + Duration::from_secs(number as u64)).unwrap();
        }
        assert_eq!(folder.get(2).as_deref(), Some(&[2; 100][..]));
        folder.put(10, &[10; 150]);
        folder.finish();
        let left: Vec<u128> = (0..11).filter(|n| folder.get(*n).is_some()).collect();
        assert_eq!(left, [2, 5, 6, 7, 8, 9, 10], "down to 750 bytes");
        assert!(path.join("notes").exists());
        assert_eq!(folder.failure(), None);
    }

    #[test]
    fn a_folder_that_cannot_be_written_stores_nothing_and_says_so_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"no folder").unwrap();
        let folder = CodeFolder::new(file.join("cache"));
        assert_eq!(folder.get(1), None);
        folder.put(1, b"code");
        folder.finish();
        assert_eq!(folder.get(1), None);
        let failure = folder.failure().unwrap().to_owned();
        assert!(failure.starts_with("no more code is stored in ") && failure.contains("cache: "), "{failure}");
        folder.put(2, b"code");
        assert_eq!(folder.failure(), Some(failure.as_str()));
    }

    #[test]
    fn unfinished_files_have_names_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let folders: Vec<CodeFolder> = (0..2).map(|_| CodeFolder::new(dir.path().to_owned())).collect();
        assert_ne!(folders[0].process, folders[1].process);
        std::thread::scope(|scope| {
            for folder in &folders {
                for t in 0..4u128 {
                    scope.spawn(move || (0..50).for_each(|n| folder.put(n, &[n as u8 + t as u8; 2000])));
                }
            }
        });
        for n in 0..50 {
            let record = folders[0].get(n).unwrap();
            assert!(record.len() == 2000 && record.iter().all(|b| *b == record[0]), "record {n} is mixed");
        }
        let parts =
            fs::read_dir(dir.path()).unwrap().filter(|e| !is_record(e.as_ref().unwrap().file_name().to_str().unwrap()));
        assert_eq!(parts.count(), 0, "nothing unfinished is left");
    }
}
