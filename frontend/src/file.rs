//! Files that appear whole or not at all.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Why a file could not be read or replaced. What was at its path before is still there.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct FileError {
    /// What was done, such as `read` or `write`.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What the operating system says.
    pub source: std::io::Error,
}

/// Writes what `fill` produces to a temporary file in the folder of `path`, brings it to the disk
/// and only then gives it the name `path`, so that no reader and no crash meets an incomplete file.
///
/// A symbolic link at `path` is followed. A file that is replaced passes on its permissions.
///
/// # Errors
/// The error of `fill`, or any step on the way; the temporary file is then removed. Nothing but a
/// regular file is replaced.
pub fn replace_file<E: From<FileError>>(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let failed = |action| move |source| FileError { action, path: path.to_owned(), source };
    let (target, old) = match std::fs::canonicalize(path) {
        Ok(target) => {
            let old = target.metadata().map_err(failed("examine"))?;
            (target, Some(old))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (path.to_owned(), None),
        Err(error) => return Err(failed("find")(error).into()),
    };
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file");
        return Err(failed("replace")(source).into());
    }
    let folder = match target.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".").suffix(".partial");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut partial = builder.tempfile_in(folder).map_err(failed("create a file beside"))?;
    let mut writer = BufWriter::with_capacity(1 << 16, partial.as_file_mut());
    fill(&mut writer)?;
    writer.flush().map_err(failed("write"))?;
    drop(writer);
    if let Some(old) = old {
        partial.as_file().set_permissions(old.permissions()).map_err(failed("set the permissions of"))?;
    }
    partial.as_file().sync_all().map_err(failed("write"))?;
    partial.persist(&target).map_err(|error| failed("replace")(error.error))?;
    // The new name itself. Not every file system can do this, and the file is whole either way.
    drop(File::open(folder).and_then(|folder| folder.sync_all()));
    Ok(())
}

/// Writes bytes to a path. A regular file appears as a whole or not at all ([`replace_file`]); a pipe or a device is written to as it
/// is.
///
/// # Errors
/// It cannot be written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let failed = |source| FileError { action: "write", path: path.to_owned(), source };
    match std::fs::metadata(path) {
        Ok(old) if !old.is_file() => std::fs::write(path, bytes).map_err(failed),
        _ => replace_file(path, |out| out.write_all(bytes).map_err(failed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn put(path: &Path, text: &str) -> Result<(), FileError> {
        let failed = |source| FileError { action: "write", path: path.to_owned(), source };
        replace_file(path, |out| out.write_all(text.as_bytes()).map_err(failed))
    }

    #[test]
    fn a_file_is_made_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.params");
        for text in ["first", "2nd"] {
            put(&path, text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(names(folder.path()), ["a.params"]);
    }

    #[test]
    fn a_failure_on_the_way_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.params");
        put(&path, "old").unwrap();
        let result: Result<(), FileError> = replace_file(&path, |out| {
            out.write_all(&[7; 1 << 20]).unwrap();
            let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
            Err(FileError { action: "write", path: path.clone(), source })
        });
        assert_eq!(result.unwrap_err().source.kind(), std::io::ErrorKind::StorageFull);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(folder.path()), ["a.params"]);
    }

    #[test]
    #[cfg(unix)]
    fn devices_are_written_to_as_they_are() {
        write_file(Path::new("/dev/null"), b"text").unwrap();
        let full = write_file(Path::new("/dev/full"), b"text").unwrap_err();
        assert_eq!(full.source.kind(), std::io::ErrorKind::StorageFull);
        let folder = tempfile::tempdir().unwrap();
        assert!(write_file(folder.path(), b"text").is_err());
        write_file(&folder.path().join("a.html"), b"text").unwrap();
        assert_eq!(names(folder.path()), ["a.html"]);
    }

    #[test]
    fn only_regular_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let error = put(folder.path(), "x").unwrap_err();
        assert_eq!(error.action, "replace");
        assert!(error.to_string().ends_with("it is not a regular file"), "{error}");
        let error = put(&folder.path().join("missing/a.params"), "x").unwrap_err();
        assert_eq!(error.source.kind(), std::io::ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_permissions_stay() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("a"), folder.path().join("link"));
        put(&path, "old").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        put(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }
}
