//! Regular files that the user names, opened, and read whole.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use bytes::Bytes;
use tensorc_abi::content::DataFile;
use tensorc_abi::memory::{self, AlignedBuffer};

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

/// All bytes of a file, in memory of their own.
///
/// # Errors
/// There is no memory for them, or the file cannot be read.
pub(crate) fn bytes(path: &Path) -> Result<Bytes> {
    let file = DataFile::new(path.display().to_string(), open(path)?)?;
    let mut memory = room(&file)?;
    memory::populate(memory.as_mut_slice());
    file.read(0, memory.as_mut_slice())?;
    Ok(Bytes::from_owner(memory))
}

/// Memory for all bytes of a file, none of it used.
///
/// # Errors
/// There is none.
pub(crate) fn room(file: &DataFile) -> Result<AlignedBuffer> {
    let no_memory = |_| Error::new(ErrorKind::OutOfMemory, format!("there is no memory for its {} bytes", file.size()));
    AlignedBuffer::mapped(file.size(), "a file").map_err(no_memory)
}
