//! Tensor data that lies in files beside the model.
//!
//! A model comes from anywhere, so the paths in it are not trusted: only regular files inside the
//! model's own folder are opened, after symbolic links are resolved. Every file is mapped once
//! and shared by all tensors that lie in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use memmap2::Mmap;

use super::error::ExternalProblem;
use super::proto::StringStringEntryProto;

/// The files that hold external data of one model.
#[derive(Debug, Default)]
pub struct ExternalFiles {
    /// The model's folder; `None` for a model that was not read from a file.
    folder: Option<PathBuf>,
    maps: BTreeMap<PathBuf, Bytes>,
}

impl ExternalFiles {
    /// Looks for external data in `folder`; without one every external tensor is an error.
    pub fn new(folder: Option<PathBuf>) -> ExternalFiles {
        ExternalFiles { folder, maps: BTreeMap::new() }
    }

    /// The bytes that the `external_data` entries of a tensor describe.
    ///
    /// Without `length` they reach to the end of the file.
    pub fn read(&mut self, entries: &[StringStringEntryProto]) -> Result<Bytes, ExternalProblem> {
        let value = |key: &str| entries.iter().find(|e| e.key() == key).map(|e| e.value());
        let number = |key: &'static str| match value(key) {
            None => Ok(None),
            Some(text) => match text.parse::<u64>() {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(ExternalProblem::BadNumber { key, value: text.to_owned() }),
            },
        };
        let location = value("location").filter(|l| !l.is_empty()).ok_or(ExternalProblem::NoLocation)?;
        let offset = number("offset")?.unwrap_or(0);
        let length = number("length")?;

        let file = self.map(location)?;
        let size = file.len() as u64;
        let end = match length {
            Some(length) => offset.saturating_add(length),
            None => size.max(offset),
        };
        if end > size {
            return Err(ExternalProblem::OutOfBounds { path: location.to_owned(), offset, end, size });
        }
        Ok(file.slice(offset as usize..end as usize))
    }

    fn map(&mut self, location: &str) -> Result<Bytes, ExternalProblem> {
        let folder = self.folder.as_deref().ok_or(ExternalProblem::NoFolder)?;
        let path = inside(folder, location)?;
        if let Some(bytes) = self.maps.get(&path) {
            return Ok(bytes.clone());
        }
        let open_error = |source| ExternalProblem::Open { path: location.to_owned(), source };
        let file = File::open(&path).map_err(open_error)?;
        if !file.metadata().map_err(open_error)?.is_file() {
            return Err(ExternalProblem::NotAFile(location.to_owned()));
        }
        let bytes = map_file(&file).map_err(open_error)?;
        self.maps.insert(path, bytes.clone());
        Ok(bytes)
    }
}

/// The real path of `location`, which must lie inside `folder`.
fn inside(folder: &Path, location: &str) -> Result<PathBuf, ExternalProblem> {
    for component in Path::new(location).components() {
        match component {
            Component::Normal(_) | Component::CurDir => {}
            Component::ParentDir => return Err(ExternalProblem::Outside(location.to_owned())),
            Component::RootDir | Component::Prefix(_) => return Err(ExternalProblem::Absolute(location.to_owned())),
        }
    }
    let open_error = |source| ExternalProblem::Open { path: location.to_owned(), source };
    let folder = folder.canonicalize().map_err(open_error)?;
    let path = folder.join(location).canonicalize().map_err(open_error)?;
    if !path.starts_with(&folder) {
        return Err(ExternalProblem::Outside(location.to_owned()));
    }
    // Opening a pipe or a device could block or have effects, so this comes before opening.
    if !path.metadata().map_err(open_error)?.is_file() {
        return Err(ExternalProblem::NotAFile(location.to_owned()));
    }
    Ok(path)
}

/// The whole file as shared read-only memory.
pub(crate) fn map_file(file: &File) -> std::io::Result<Bytes> {
    // An empty file cannot be mapped.
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and read-only and lives as long as the `Bytes` that own it.
    // That no other process changes the file meanwhile cannot be enforced; as every program that
    // maps its weights, tensorc requires it of its users.
    let map = unsafe { Mmap::map(file)? };
    Ok(Bytes::from_owner(map))
}
