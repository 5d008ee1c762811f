//! Files beneath a folder: a path that comes from a model cannot lead out of the folder, not even by links.

use std::fs::File;
use std::io::Result;
use std::path::Path;

/// How a file was found, or why it is not opened.
#[derive(Debug)]
pub(super) enum Found {
    /// An open file, of whatever kind.
    File(File),
    /// The path, or a folder on it, is a symbolic link.
    Link,
}

/// Opens `names`, folders and then a file, beneath `folder` without following links.
///
/// Nothing is waited for, whatever the file is.
#[cfg(unix)]
pub(super) fn open(folder: &Path, names: &[&str]) -> Result<Found> {
    unix::open(folder, names)
}

/// Opens `names`, folders and then a file, beneath `folder` without following links.
///
/// The path is looked at before it is opened: between the two, links could be put there.
#[cfg(not(unix))]
pub(super) fn open(folder: &Path, names: &[&str]) -> Result<Found> {
    let path = names.iter().fold(folder.canonicalize()?, |path, name| path.join(name));
    match path.canonicalize()? == path {
        true => Ok(Found::File(File::open(&path)?)),
        false => Ok(Found::Link),
    }
}

/// How many names a file has.
#[cfg(unix)]
pub(super) fn names_of(file: &File) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(file.metadata()?.nlink())
}

/// How many names a file has, where that can be known.
#[cfg(not(unix))]
pub(super) fn names_of(_: &File) -> Result<u64> {
    Ok(1)
}

#[cfg(unix)]
mod unix {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::{Mode, OFlags, openat};
    use rustix::io::Errno;

    use super::Found;

    /// A folder to look names up in, which takes no right to list it where the system can do without.
    #[cfg(target_os = "linux")]
    const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    #[cfg(not(target_os = "linux"))]
    const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    const FILE: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

    pub(super) fn open(folder: &Path, names: &[&str]) -> io::Result<Found> {
        let folder = rustix::fs::open(folder, FOLDER, Mode::empty())?;
        let opened = match in_one_step(&folder, names) {
            None => step_by_step(folder, names),
            Some(opened) => opened,
        };
        match opened {
            Ok(file) => Ok(Found::File(file.into())),
            Err(Errno::LOOP) => Ok(Found::Link),
            Err(error) => Err(error.into()),
        }
    }

    /// `None` where the kernel, or a sandbox, does not have the call.
    #[cfg(target_os = "linux")]
    fn in_one_step(folder: &OwnedFd, names: &[&str]) -> Option<Result<OwnedFd, Errno>> {
        use rustix::fs::{ResolveFlags, openat2};
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(folder, names.join("/"), FILE, Mode::empty(), resolve) {
            Err(Errno::NOSYS | Errno::PERM) => None,
            opened => Some(opened),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn in_one_step(_: &OwnedFd, _: &[&str]) -> Option<Result<OwnedFd, Errno>> {
        None
    }

    /// Opens one folder after the other, none by a link.
    fn step_by_step(mut folder: OwnedFd, names: &[&str]) -> Result<OwnedFd, Errno> {
        let Some((file, folders)) = names.split_last() else { return Err(Errno::NOENT) };
        for name in folders {
            folder = openat(&folder, *name, FOLDER | OFlags::NOFOLLOW, Mode::empty()).map_err(|error| {
                // A link is no folder, which is all that some systems say of it.
                let link = error == Errno::NOTDIR && is_link(&folder, name);
                if link { Errno::LOOP } else { error }
            })?;
        }
        openat(&folder, *file, FILE | OFlags::NOFOLLOW, Mode::empty())
    }

    fn is_link(folder: &OwnedFd, name: &str) -> bool {
        use rustix::fs::{AtFlags, FileType, statat};
        let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }

    #[cfg(test)]
    mod tests {
        use std::os::unix::fs::symlink;

        use super::*;

        type OneWay = fn(OwnedFd, &[&str]) -> Result<OwnedFd, Errno>;

        /// Both ways to open a file, whichever this machine uses.
        #[test]
        #[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
        fn both_ways_agree() {
            let place = tempfile::tempdir().unwrap();
            let folder = place.path().join("model");
            std::fs::create_dir_all(folder.join("sub/deep")).unwrap();
            std::fs::write(place.path().join("secret"), "secret").unwrap();
            std::fs::write(folder.join("sub/deep/data"), "data").unwrap();
            symlink("../secret", folder.join("out")).unwrap();
            symlink("sub/deep/data", folder.join("in")).unwrap();
            symlink("sub", folder.join("folder")).unwrap();
            symlink("/proc/self/root", folder.join("root")).unwrap();
            let one_step: OneWay = |folder, names| in_one_step(&folder, names).unwrap_or(step_by_step(folder, names));
            for way in [one_step, step_by_step as OneWay] {
                let get = |names: &[&str]| {
                    let opened = way(rustix::fs::open(&folder, FOLDER, Mode::empty()).unwrap(), names);
                    opened.map(|file| std::io::read_to_string(std::fs::File::from(file)).unwrap())
                };
                assert_eq!(get(&["sub", "deep", "data"]), Ok("data".to_owned()));
                for linked in [&["out"][..], &["in"], &["folder", "deep", "data"], &["root", "etc", "passwd"]] {
                    assert_eq!(get(linked), Err(Errno::LOOP), "{linked:?}");
                }
                assert_eq!(get(&["absent"]), Err(Errno::NOENT));
                assert_eq!(get(&["sub", "deep", "data", "more"]), Err(Errno::NOTDIR));
            }
        }
    }
}
