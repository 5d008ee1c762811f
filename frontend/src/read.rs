//! Regular files, read whole into memory of their own.
//!
//! Nothing is mapped: a process dies when it touches a mapped file that another one has made shorter, and what was checked
//! once would change when the file does.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

use bytes::Bytes;

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

/// The first `size` bytes of a file.
///
/// # Errors
/// There is no memory for them, the file is shorter by now, or it cannot be read.
pub(crate) fn bytes(file: &File, size: u64) -> Result<Bytes> {
    let mut bytes = vec![];
    let reserved = usize::try_from(size).is_ok_and(|size| bytes.try_reserve_exact(size).is_ok());
    if !reserved {
        return Err(Error::new(ErrorKind::OutOfMemory, format!("there is no memory for its {size} bytes")));
    }
    file.take(size).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != size {
        let why = format!("it became shorter than {size} bytes while it was read");
        return Err(Error::new(ErrorKind::UnexpectedEof, why));
    }
    Ok(bytes.into())
}

/// The size of a file now, in bytes.
pub(crate) fn size(file: &File) -> Result<u64> {
    Ok(file.metadata()?.len())
}
