//! Regular files, read whole into memory of their own.
//!
//! No file is mapped: a process dies when it touches a mapped file that another one has made shorter, and what was checked
//! once would change when the file does.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use bytes::Bytes;
use tensorc_abi::memory::{self, AlignedBuffer};
#[cfg(unix)]
use tensorc_ir::parallel::try_map;

/// Opens a file that the user names. A pipe or a device is refused, and without waiting for anything.
pub(crate) fn open(path: &Path) -> Result<File> {
    let file = open_at_once(path)?;
    if is_regular(&file)? { Ok(file) } else { Err(Error::new(ErrorKind::InvalidInput, "not a regular file")) }
}

#[cfg(unix)]
pub(crate) fn open_at_once(path: &Path) -> Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

#[cfg(not(unix))]
pub(crate) fn open_at_once(path: &Path) -> Result<File> {
    File::open(path)
}

/// Whether it is neither a folder nor a pipe nor a device.
pub(crate) fn is_regular(file: &File) -> Result<bool> {
    Ok(file.metadata()?.is_file())
}

/// What is read at once: enough that threads seldom ask for more.
#[cfg(unix)]
const PIECE: usize = 8 << 20;

/// The first `size` bytes of a file, read by up to `threads` threads.
///
/// # Errors
/// There is no memory for them, the file is shorter by now, or it cannot be read.
pub(crate) fn bytes(file: &File, size: u64, threads: usize) -> Result<Bytes> {
    let no_memory = |_| Error::new(ErrorKind::OutOfMemory, format!("there is no memory for its {size} bytes"));
    let mut memory = AlignedBuffer::mapped(size, "a file").map_err(no_memory)?;
    fill(file, memory.as_mut_slice(), threads).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => {
            Error::new(error.kind(), format!("it became shorter than {size} bytes while it was read"))
        }
        _ => error,
    })?;
    Ok(Bytes::from_owner(memory))
}

#[cfg(unix)]
fn fill(file: &File, bytes: &mut [u8], threads: usize) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let pieces: Vec<_> = bytes.chunks_mut(PIECE).zip((0u64..).step_by(PIECE)).collect();
    let read = |(piece, at): (&mut [u8], u64)| {
        memory::populate(piece);
        file.read_exact_at(piece, at)
    };
    try_map(pieces, threads, read, |panic| std::panic::resume_unwind(panic)).map(drop)
}

#[cfg(not(unix))]
fn fill(mut file: &File, bytes: &mut [u8], _threads: usize) -> Result<()> {
    std::io::Read::read_exact(&mut file, bytes)
}

/// The size of a file now, in bytes.
pub(crate) fn size(file: &File) -> Result<u64> {
    Ok(file.metadata()?.len())
}
