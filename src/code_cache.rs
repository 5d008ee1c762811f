//! Machine code of kernels in a folder, shared by processes.
//!
//! A file holds one record (`tensorc_codegen::stored`) and is named by its number. It is written under another name and
//! renamed, so that a reader sees a whole record or none; what a crash leaves is damaged or has that other name. What
//! was not used for longest is removed when the folder has grown too large. Nothing that goes wrong here is an error.
//!
//! Whoever can write a record decides what this process runs. So a folder is used only if it belongs to this user or to
//! the superuser and nobody else may write to it, and the same holds of every file that is read.

use std::fs::{self, File, Metadata, OpenOptions};
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
    /// Whether the folder is used, once there is one.
    used: OnceLock<bool>,
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
        CodeFolder {
            path,
            limit,
            process,
            count: AtomicU64::new(0),
            written,
            used: OnceLock::new(),
            failure: OnceLock::new(),
        }
    }

    /// Why nothing is stored any more, if something went wrong.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Whether the folder is there and only this user decides what is in it.
    fn is_used(&self) -> bool {
        if let Some(used) = self.used.get() {
            return *used;
        }
        // A folder that is not there yet will be created.
        let Ok(about) = fs::metadata(&self.path) else { return false };
        let foreign = access::foreign(&about);
        if let Some(why) = foreign {
            _ = self.failure.set(format!("code in {} is not used: {why}", self.path.display()));
        }
        *self.used.get_or_init(|| foreign.is_none())
    }

    fn file(&self, number: u128) -> PathBuf {
        self.path.join(format!("{number:032x}{RECORD}"))
    }

    fn write(&self, number: u128, record: &[u8]) -> io::Result<()> {
        let count = self.count.fetch_add(1, Relaxed);
        let part = self.path.join(format!("{:016x}-{count}{UNFINISHED}", self.process));
        let mut file = access::create(&part)?;
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
            match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {}
                // If it is not there, another process does the same.
                _ => total -= bytes,
            }
        }
        Ok(())
    }
}

impl CodeStore for CodeFolder {
    fn get(&self, number: u128) -> Option<Vec<u8>> {
        if !self.is_used() {
            return None;
        }
        let file = access::open(&self.file(number)).ok()?;
        if !file.metadata().is_ok_and(|about| about.is_file() && access::foreign(&about).is_none()) {
            return None;
        }
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
        let created = if self.path.exists() { Ok(()) } else { access::create_folder(&self.path) };
        match created.and_then(|()| if self.is_used() { self.write(number, record) } else { Ok(()) }) {
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

/// Who may write what, and how files are opened so that nobody else can change that.
#[cfg(unix)]
mod access {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};

    use rustix::fs::OFlags;

    use super::*;

    /// Bits of a mode that allow writing to the group and to everybody; access lists show in those of the group.
    const OTHERS_WRITE: u32 = 0o022;

    /// Why others than this user and the superuser decide what is in a file or folder.
    pub fn foreign(about: &Metadata) -> Option<&'static str> {
        match about.uid() {
            owner if owner != 0 && owner != rustix::process::geteuid().as_raw() => Some("it belongs to another user"),
            _ if about.mode() & OTHERS_WRITE != 0 => Some("others may write to it (`chmod go-w` changes that)"),
            _ => None,
        }
    }

    /// Creates a file that is not there, for this user alone.
    pub fn create(path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
    }

    /// Opens a file, but no link, and waits for nobody if it is a pipe.
    pub fn open(path: &Path) -> io::Result<File> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
    }

    /// Creates a folder for this user alone.
    pub fn create_folder(path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
    }
}

/// Where files have no owners and modes, the folder's place decides who may write to it.
#[cfg(not(unix))]
mod access {
    use super::*;

    pub fn foreign(_: &Metadata) -> Option<&'static str> {
        None
    }

    pub fn create(path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).open(path)
    }

    pub fn open(path: &Path) -> io::Result<File> {
        File::open(path)
    }

    pub fn create_folder(path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }
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

    #[cfg(unix)]
    #[test]
    fn what_others_may_write_is_not_used() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let folder = CodeFolder::new(path.clone());
        folder.put(1, b"code");
        assert_eq!(folder.get(1).as_deref(), Some(&b"code"[..]));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(folder.file(1)).unwrap().permissions().mode() & 0o777, 0o600);
        // Of files: one that the group may write to, a link to a whole record, a pipe in which nobody writes, a folder.
        mode(&folder.file(1), 0o620);
        assert_eq!(folder.get(1), None);
        mode(&folder.file(1), 0o604);
        assert!(folder.get(1).is_some());
        symlink(folder.file(1), folder.file(2)).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(folder.file(3)).status().unwrap().success());
        fs::create_dir(folder.file(4)).unwrap();
        assert_eq!([2, 3, 4].map(|number| folder.get(number)), [None, None, None]);
        // A link gives way to a record, and what it leads to stays.
        folder.put(2, b"own");
        assert!(!fs::symlink_metadata(folder.file(2)).unwrap().is_symlink());
        assert_eq!((folder.get(1), folder.get(2)), (Some(b"code".to_vec()), Some(b"own".to_vec())));
        assert_eq!(folder.failure(), None);
        for (number, allowed) in [(0o720, false), (0o702, false), (0o1777, false), (0o755, true)] {
            mode(&path, number);
            let folder = CodeFolder::new(path.clone());
            assert_eq!(folder.get(1).is_some(), allowed, "mode {number:o}");
            folder.put(5, b"more");
            assert_eq!(folder.file(5).exists(), allowed, "mode {number:o}");
            let refused = folder.failure().is_some_and(|why| why.contains("is not used: others may write to it"));
            assert_eq!(refused, !allowed, "mode {number:o}");
        }
        // Only the superuser can give a folder away.
        if chown(&path, Some(1), None).is_ok() {
            let folder = CodeFolder::new(path);
            assert_eq!(folder.get(1), None);
            assert!(folder.failure().unwrap().ends_with("is not used: it belongs to another user"));
        }
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
