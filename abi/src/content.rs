//! The data of a constant: in memory, or loaded from a file on demand.
//!
//! Most weights of a model are read once, to be packed. A [`Part`] is read into a buffer that is used again after it;
//! [`Content::bytes`] loads everything and keeps it. No file is mapped: a process dies when it touches a mapped file that
//! another one has made shorter.

mod blocked;

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use crate::memory::{self, AlignedBuffer, AllocError};

pub use blocked::BlockedMatrix;

/// A file cannot be read any more, or is not as it was when it was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("constants cannot be read from {file}: {reason}")]
pub struct ReadError {
    /// The name of the file.
    pub file: String,
    /// What is wrong.
    pub reason: String,
}

/// A file whose bytes are read when they are needed. It may be removed meanwhile, but not be changed.
#[derive(Debug)]
pub struct DataFile {
    name: String,
    file: File,
    /// Tells files apart, also those that are open no more.
    number: u64,
    stamp: Stamp,
    /// Memory of parts that are in use no more.
    spare: Mutex<Vec<AlignedBuffer>>,
    failure: OnceLock<ReadError>,
}

/// What changes when somebody writes to a file.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(file: &File) -> io::Result<Stamp> {
        let metadata = file.metadata()?;
        Ok(Stamp { bytes: metadata.len(), modified: metadata.modified().ok() })
    }
}

impl DataFile {
    /// Bytes from which a constant stays in its file.
    pub const MIN_STORED: u64 = memory::MIN_MAPPED as u64;

    /// Larger memory is given back to the system after each use.
    const MAX_SPARE: usize = 32 << 20;

    /// A regular file; `name` is for messages.
    ///
    /// # Errors
    /// The system tells nothing about the file.
    pub fn new(name: String, file: File) -> io::Result<Arc<DataFile>> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (number, stamp) = (COUNT.fetch_add(1, Ordering::Relaxed), Stamp::of(&file)?);
        let (spare, failure) = (Mutex::default(), OnceLock::new());
        Ok(Arc::new(DataFile { name, file, number, stamp, spare, failure }))
    }

    /// Its size when it was opened, in bytes.
    pub fn size(&self) -> u64 {
        self.stamp.bytes
    }

    /// Reads what begins at a position.
    ///
    /// # Errors
    /// The file ends before, cannot be read, or was changed since it was opened.
    pub fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        read_exact_at(&self.file, at, to).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                io::Error::new(error.kind(), format!("it became shorter than {} bytes while it was read", self.size()))
            }
            _ => error,
        })?;
        if Stamp::of(&self.file)? == self.stamp { Ok(()) } else { Err(io::Error::other("it was changed meanwhile")) }
    }

    /// As [`DataFile::read`]; the file remembers that it failed.
    fn load(&self, at: u64, to: &mut [u8]) -> Result<(), ReadError> {
        self.read(at, to).map_err(|error| {
            let error = ReadError { file: self.name.clone(), reason: error.to_string() };
            self.failure.get_or_init(|| error).clone()
        })
    }

    /// Whether everything that was read so far is what the file held.
    ///
    /// # Errors
    /// Constants could not be read.
    pub fn check(&self) -> Result<(), ReadError> {
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Memory of at least `len` bytes for a part.
    fn room(&self, len: usize) -> Result<AlignedBuffer, ReadError> {
        let spare = {
            let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            spare.iter().position(|buffer| buffer.len() >= len).map(|i| spare.swap_remove(i))
        };
        let fresh = || {
            let mut room = AlignedBuffer::mapped(len.next_power_of_two() as u64, "a part of a file")?;
            memory::populate(&mut room.as_mut_slice()[..len]);
            Ok::<_, AllocError>(room)
        };
        spare.map_or_else(fresh, Ok).map_err(|e| ReadError { file: self.name.clone(), reason: e.to_string() })
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, at: u64, to: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, to, at)
}

#[cfg(not(unix))]
fn read_exact_at(mut file: &File, at: u64, to: &mut [u8]) -> io::Result<()> {
    use std::io::{Read, Seek};
    /// The position belongs to the file, not to the reader.
    static ONE_READER: Mutex<()> = Mutex::new(());
    let _one = ONE_READER.lock();
    file.seek(io::SeekFrom::Start(at))?;
    file.read_exact(to)
}

/// An element-wise function of a constant in a file, such as its product with a scale. It is evaluated range by range.
pub trait Compute: std::fmt::Debug + Send + Sync {
    /// Writes the whole elements that begin at a position, in bytes.
    ///
    /// # Errors
    /// The other constant cannot be read.
    fn compute(&self, at: usize, to: &mut [u8]) -> Result<(), ReadError>;

    /// How many computations follow each other, this one among them.
    fn depth(&self) -> usize;
}

/// Bytes that are read or computed when they are needed.
#[derive(Debug)]
pub struct Stored {
    file: Arc<DataFile>,
    origin: Origin,
    len: usize,
    /// Memory for [`Content::bytes`]. It is reserved from the start, because that function cannot fail.
    room: Mutex<AlignedBuffer>,
    bytes: OnceLock<Bytes>,
}

#[derive(Debug)]
enum Origin {
    /// They are in the file, from this position on.
    At(u64),
    /// They are the result of a function; the hash identifies it and its operand.
    Computed(Arc<dyn Compute>, u128),
}

/// A piece of the bytes that [`Content::bytes_by`] loads.
#[derive(Debug)]
pub struct Piece<'a> {
    stored: &'a Stored,
    at: usize,
    to: &'a mut [u8],
}

impl Piece<'_> {
    /// Enough that threads seldom ask for more, and that no thread waits long for the last.
    const LEN: usize = 2 << 20;

    /// Reads it. The file remembers if that fails.
    pub fn read(self) {
        memory::populate(self.to);
        if let Err(error) = self.stored.read(self.at, self.to) {
            self.stored.file.failure.get_or_init(|| error);
        }
    }
}

impl Stored {
    fn new(file: &Arc<DataFile>, origin: Origin, len: u64) -> Result<Stored, AllocError> {
        let room = AlignedBuffer::mapped(len, "a constant")?;
        let (len, room) = (room.len(), Mutex::new(room));
        Ok(Stored { file: file.clone(), origin, len, room, bytes: OnceLock::new() })
    }

    fn read(&self, at: usize, to: &mut [u8]) -> Result<(), ReadError> {
        match &self.origin {
            Origin::At(start) => self.file.load(start + at as u64, to),
            Origin::Computed(compute, _) => compute.compute(at, to),
        }
    }

    fn bytes(&self, run: impl FnOnce(Vec<Piece<'_>>)) -> &Bytes {
        self.bytes.get_or_init(|| {
            let room = &mut *self.room.lock().unwrap_or_else(PoisonError::into_inner);
            let mut memory = std::mem::replace(room, AlignedBuffer::empty());
            let pieces = memory.as_mut_slice().chunks_mut(Piece::LEN).enumerate();
            run(pieces.map(|(i, to)| Piece { stored: self, at: i * Piece::LEN, to }).collect());
            Bytes::from_owner(memory)
        })
    }
}

/// The bytes of a constant. Cloning shares them.
#[derive(Clone, Debug)]
pub enum Content {
    /// In memory.
    Memory(Bytes),
    /// In a file, or computed from what is.
    Stored(Arc<Stored>),
    /// A matrix that is unpacked where it is read.
    Blocked(Arc<BlockedMatrix>),
}

/// The identity of the data of a constant: equal identities mean equal bytes. The same bytes may have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Address and length.
    Memory(usize, usize),
    /// Number of the file, position and length.
    File(u64, u64, usize),
    /// Hash of the function and the identity of its operand, and length.
    Computed(u128, usize),
}

impl Content {
    /// A range of a file, which is read now if it is short.
    ///
    /// # Errors
    /// There is no memory for it, or reading fails.
    pub fn of_file(file: &Arc<DataFile>, range: Range<u64>) -> io::Result<Content> {
        let no_memory = |error| io::Error::new(io::ErrorKind::OutOfMemory, error);
        let bytes = range.end.saturating_sub(range.start);
        if bytes < DataFile::MIN_STORED {
            let mut memory = AlignedBuffer::zeroed(bytes, "a constant").map_err(no_memory)?;
            file.read(range.start, memory.as_mut_slice())?;
            return Ok(Content::Memory(Bytes::from_owner(memory)));
        }
        Ok(Content::Stored(Arc::new(Stored::new(file, Origin::At(range.start), bytes).map_err(no_memory)?)))
    }

    /// `len` bytes, the result of a function of a constant in a file; `number` is a hash of the function and its operand.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn computed(
        file: &Arc<DataFile>,
        compute: Arc<dyn Compute>,
        number: u128,
        len: u64,
    ) -> Result<Content, AllocError> {
        Ok(Content::Stored(Arc::new(Stored::new(file, Origin::Computed(compute, number), len)?)))
    }

    /// Their number.
    pub fn len(&self) -> usize {
        match self {
            Content::Memory(bytes) => bytes.len(),
            Content::Stored(stored) => stored.len,
            Content::Blocked(matrix) => matrix.len(),
        }
    }

    /// The matrix, if it is in the form of blocked weights.
    pub fn blocked(&self) -> Option<&Arc<BlockedMatrix>> {
        if let Content::Blocked(matrix) = self { Some(matrix) } else { None }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes, which stay in memory then. Whoever uses them asks [`Content::check`] before anyone else sees what was made
    /// of them: where reading fails, they are zeros.
    pub fn bytes(&self) -> &Bytes {
        self.bytes_by(|pieces| pieces.into_iter().for_each(Piece::read))
    }

    /// As [`Content::bytes`]; where they are read, `run` reads all pieces, on as many threads as it likes.
    pub fn bytes_by(&self, run: impl FnOnce(Vec<Piece<'_>>)) -> &Bytes {
        match self {
            Content::Memory(bytes) => bytes,
            Content::Stored(stored) => stored.bytes(run),
            Content::Blocked(matrix) => matrix.bytes(),
        }
    }

    /// Some of the bytes, in memory for as long as the part is there.
    ///
    /// # Errors
    /// There is no memory for them, or reading fails.
    pub fn part(&self, range: Range<usize>) -> Result<Part<'_>, ReadError> {
        let stored = match self {
            Content::Memory(bytes) => return Ok(Part(Held::Bytes(&bytes[range]))),
            Content::Stored(stored) => stored,
            Content::Blocked(matrix) => {
                let len = range.len();
                let no_memory = |e: AllocError| ReadError { file: "memory".into(), reason: e.to_string() };
                let (memory, start) = matrix.part(range).map_err(no_memory)?;
                return Ok(Part(Held::Unpacked(memory, start..start + len)));
            }
        };
        if let Some(bytes) = stored.bytes.get() {
            return Ok(Part(Held::Bytes(&bytes[range])));
        }
        let mut part = Read { file: &stored.file, memory: stored.file.room(range.len())?, len: range.len() };
        stored.read(range.start, &mut part.memory.as_mut_slice()[..range.len()])?;
        Ok(Part(Held::Read(part)))
    }

    /// All bytes as a [`Part`].
    ///
    /// # Errors
    /// As for [`Content::part`].
    pub fn whole(&self) -> Result<Part<'_>, ReadError> {
        self.part(0..self.len())
    }

    /// XXH3 of the bytes.
    ///
    /// # Errors
    /// As for [`Content::part`].
    pub fn hash(&self) -> Result<u128, ReadError> {
        Ok(xxh3_128(&self.whole()?))
    }

    /// Where the bytes are.
    pub fn place(&self) -> Place {
        match self {
            Content::Memory(bytes) => Place::Memory(bytes.as_ptr().addr(), bytes.len()),
            Content::Stored(stored) => match stored.origin {
                Origin::At(at) => Place::File(stored.file.number, at, stored.len),
                Origin::Computed(_, number) => Place::Computed(number, stored.len),
            },
            Content::Blocked(matrix) => Place::Memory(matrix.packed().as_ptr().addr(), matrix.len()),
        }
    }

    /// How many computations lie between it and its file.
    pub fn depth(&self) -> usize {
        match self {
            Content::Stored(stored) => match &stored.origin {
                Origin::Computed(compute, _) => compute.depth(),
                Origin::At(_) => 0,
            },
            Content::Memory(_) | Content::Blocked(_) => 0,
        }
    }

    /// Whether all bytes are in memory.
    pub fn is_in_memory(&self) -> bool {
        match self {
            Content::Memory(_) | Content::Blocked(_) => true,
            Content::Stored(stored) => stored.bytes.get().is_some(),
        }
    }

    /// The file that has them, or what they are computed from.
    pub fn file(&self) -> Option<&Arc<DataFile>> {
        match self {
            Content::Memory(_) | Content::Blocked(_) => None,
            Content::Stored(stored) => Some(&stored.file),
        }
    }

    /// Whether everything that was read of its file so far is what the file held.
    ///
    /// # Errors
    /// Constants could not be read.
    pub fn check(&self) -> Result<(), ReadError> {
        self.file().map_or(Ok(()), |file| file.check())
    }
}

impl From<Bytes> for Content {
    fn from(bytes: Bytes) -> Content {
        Content::Memory(bytes)
    }
}

impl PartialEq for Content {
    fn eq(&self, other: &Content) -> bool {
        self.place() == other.place() || self.bytes() == other.bytes()
    }
}

impl Eq for Content {}

/// Bytes of a constant that are in memory for the moment.
#[derive(Debug)]
pub struct Part<'a>(Held<'a>);

#[derive(Debug)]
enum Held<'a> {
    Bytes(&'a [u8]),
    Read(Read<'a>),
    Unpacked(AlignedBuffer, Range<usize>),
}

#[derive(Debug)]
struct Read<'a> {
    file: &'a DataFile,
    memory: AlignedBuffer,
    len: usize,
}

impl Deref for Part<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Bytes(bytes) => bytes,
            Held::Read(read) => &read.memory.as_slice()[..read.len],
            Held::Unpacked(memory, range) => &memory.as_slice()[range.clone()],
        }
    }
}

impl Drop for Read<'_> {
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, AlignedBuffer::empty());
        if memory.len() <= DataFile::MAX_SPARE {
            self.file.spare.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

    use super::*;

    const LEN: usize = 200_000;

    /// A file of its own for a test, and what it holds.
    fn stored(name: &str) -> (std::path::PathBuf, Vec<u8>) {
        let path = std::env::temp_dir().join(format!("tensorc-content-{name}-{}", std::process::id()));
        let bytes: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        (path, bytes)
    }

    fn opened(path: &std::path::Path) -> Arc<DataFile> {
        DataFile::new("weights".into(), File::open(path).unwrap()).unwrap()
    }

    #[test]
    fn parts_and_all_bytes_are_those_of_the_file() {
        let (path, bytes) = stored("parts");
        let file = opened(&path);
        let content = Content::of_file(&file, 100..LEN as u64).unwrap();
        // The file may go: it is open.
        std::fs::remove_file(&path).unwrap();
        assert_eq!(content.len(), LEN - 100);
        assert_eq!(*content.part(5..70_000).unwrap(), bytes[105..70_100]);
        let (a, b) = (content.part(0..100).unwrap(), content.whole().unwrap());
        assert_eq!((&*a, &*b), (&bytes[100..200], &bytes[100..]), "two parts at a time have memory of their own");
        drop((a, b));
        assert_eq!(content.bytes()[..], bytes[100..]);
        assert_eq!(*content.part(7..9).unwrap(), bytes[107..109]);
        assert_eq!(content.hash().unwrap(), Content::from(Bytes::from(bytes[100..].to_vec())).hash().unwrap());
        let short = Content::of_file(&file, 3..50).unwrap();
        assert!(matches!(&short, Content::Memory(held) if held[..] == bytes[3..50]));
        content.check().unwrap();
    }

    #[test]
    fn places_tell_ranges_and_files_apart() {
        let (path, _) = stored("places");
        let (a, b) = (opened(&path), opened(&path));
        std::fs::remove_file(&path).unwrap();
        let range = |file: &Arc<DataFile>, from| Content::of_file(file, from..from + 100_000).unwrap();
        assert_eq!(range(&a, 10).place(), range(&a, 10).place());
        assert_ne!(range(&a, 10).place(), range(&a, 11).place());
        assert_ne!(range(&a, 10).place(), range(&b, 10).place());
        assert_eq!(range(&a, 10), range(&b, 10));
        assert_ne!(range(&a, 10), range(&a, 11));
    }

    #[test]
    fn files_that_change_are_errors_that_stay() {
        for (name, change) in [("short", 1000u64), ("long", 2 * LEN as u64)] {
            let (path, _) = stored(name);
            let file = opened(&path);
            let content = Content::of_file(&file, 0..LEN as u64).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(change).unwrap();
            let error = content.part(0..100_000).unwrap_err();
            assert!(error.to_string().starts_with("constants cannot be read from weights: it "), "{error}");
            assert_eq!(content.bytes().len(), LEN);
            assert_eq!(content.check(), Err(error));
            std::fs::remove_file(&path).unwrap();
        }
    }
}
