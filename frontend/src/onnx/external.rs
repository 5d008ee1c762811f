//! Tensor data that lies in files beside the model.
//!
//! A model comes from anywhere, so the paths in it are not trusted: only regular files beneath the model's folder are
//! opened, never by a link. A symbolic link could lead to any file, and a hard link is another name of one: whoever unpacks
//! an archive or a repository beside the model can make either, and what the file holds would come out as weights. The
//! caches of some package managers keep models by links; whoever trusts the folder allows them ([`ReadOptions`]). Every
//! file is read once and shared by all tensors that lie in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::beneath::{self, Found};
use super::error::ExternalProblem;
use super::limits::{Budget, ImportLimits};
use super::proto::StringStringEntryProto;
use crate::read;

/// How files of a model are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Also reads external data that is reached by symbolic links, wherever they lead, or has further names (hard links).
    /// For folders that are trusted, such as caches of downloads.
    pub linked_data: bool,
    /// What the model may take.
    pub limits: ImportLimits,
    /// Threads that read a large file; 0 is as 1.
    pub threads: usize,
}

/// The files that hold external data of one model.
#[derive(Debug, Default)]
pub struct ExternalFiles {
    /// The model's folder; `None` for a model that was not read from a file.
    folder: Option<PathBuf>,
    linked: bool,
    threads: usize,
    /// Contents by the path beneath the folder.
    read: BTreeMap<String, Bytes>,
    /// What reading and importing may still take.
    pub(super) budget: Budget,
}

impl ExternalFiles {
    /// Looks for external data in `folder`; without one every external tensor is an error.
    pub fn new(folder: Option<PathBuf>, options: ReadOptions) -> ExternalFiles {
        let (linked, threads, budget) = (options.linked_data, options.threads, Budget::new(options.limits));
        ExternalFiles { folder, linked, threads, read: BTreeMap::new(), budget }
    }

    /// The bytes that the `external_data` entries of a tensor describe; `needed` is how many its shape takes.
    ///
    /// Without `length` they reach to the end of the file. Keys that say nothing of the place of the data are passed over; a
    /// `checksum` is not compared.
    ///
    /// # Errors
    /// The entries are not one place of `needed` bytes in a regular file beneath the folder, or the file cannot be read.
    pub fn read(&mut self, entries: &[StringStringEntryProto], needed: u64) -> Result<Bytes, ExternalProblem> {
        let place = Place::of(entries)?;
        let folder = self.folder.as_deref().ok_or(ExternalProblem::NoFolder)?;
        let names = names(place.location)?;
        let path = names.join("/");
        if let Some(bytes) = self.read.get(&path) {
            return Ok(bytes.slice(place.range(bytes.len() as u64, needed)?));
        }
        let failed = |source| ExternalProblem::Open { path: path.clone(), source };
        let file = open(folder, &names, self.linked)?;
        let size = read::size(&file).map_err(failed)?;
        let range = place.range(size, needed)?;
        self.budget.take_bytes(size)?;
        let bytes = read::bytes(&file, size, self.threads).map_err(failed)?;
        let data = bytes.slice(range);
        self.read.insert(path, bytes);
        Ok(data)
    }
}

/// Where the data of a tensor lies.
struct Place<'a> {
    location: &'a str,
    offset: u64,
    length: Option<u64>,
}

impl Place<'_> {
    fn of(entries: &[StringStringEntryProto]) -> Result<Place<'_>, ExternalProblem> {
        let value = |key: &'static str| {
            let mut values = entries.iter().filter(|e| e.key() == key).map(|e| e.value());
            match (values.next(), values.next()) {
                (value, None) => Ok(value),
                (_, Some(_)) => Err(ExternalProblem::Twice(key)),
            }
        };
        let number = |key: &'static str| match value(key)? {
            None => Ok(None),
            Some(text) if text.bytes().all(|b| b.is_ascii_digit()) => match text.parse::<u64>() {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(ExternalProblem::BadNumber { key, value: text.to_owned() }),
            },
            Some(text) => Err(ExternalProblem::BadNumber { key, value: text.to_owned() }),
        };
        let location = value("location")?.filter(|l| !l.is_empty()).ok_or(ExternalProblem::NoLocation)?;
        Ok(Place { location, offset: number("offset")?.unwrap_or(0), length: number("length")? })
    }

    /// The positions in a file of `size` bytes.
    fn range(&self, size: u64, needed: u64) -> Result<std::ops::Range<usize>, ExternalProblem> {
        let (path, offset) = (self.location.to_owned(), self.offset);
        let end = match self.length {
            Some(length) => offset.saturating_add(length),
            None => size.max(offset),
        };
        match end - offset {
            _ if end > size => Err(ExternalProblem::OutOfBounds { path, offset, end, size }),
            found if found != needed => Err(ExternalProblem::WrongLength { path, found, needed }),
            _ => Ok(offset as usize..end as usize),
        }
    }
}

/// The folders and the file of a path, which must lead downwards.
fn names(location: &str) -> Result<Vec<&str>, ExternalProblem> {
    let fail = |problem: fn(String) -> ExternalProblem| Err(problem(location.to_owned()));
    if location.contains(['\0', '\\']) {
        return fail(ExternalProblem::BadPath);
    }
    // On some systems `C:` is a place of its own, and `file:stream` another file.
    if location.starts_with('/') || (cfg!(windows) && location.contains(':')) {
        return fail(ExternalProblem::Absolute);
    }
    let names: Vec<&str> = location.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    match names.as_slice() {
        names if names.contains(&"..") => fail(ExternalProblem::Outside),
        [] => fail(ExternalProblem::NotAFile),
        _ if location.ends_with('/') => fail(ExternalProblem::NotAFile),
        _ => Ok(names),
    }
}

/// The file, which is regular and, unless `linked`, reached without links and of one name.
fn open(folder: &Path, names: &[&str], linked: bool) -> Result<File, ExternalProblem> {
    let path = names.join("/");
    let failed = |source| ExternalProblem::Open { path: path.clone(), source };
    let found = match linked {
        true => read::open_at_once(&folder.join(&path)).map(Found::File),
        false => beneath::open(folder, names),
    };
    let Found::File(file) = found.map_err(failed)? else { return Err(ExternalProblem::Link(path)) };
    if !read::is_regular(&file).map_err(failed)? {
        return Err(ExternalProblem::NotAFile(path));
    }
    match beneath::names_of(&file).map_err(failed)? {
        names if names > 1 && !linked => Err(ExternalProblem::HardLink { path, names }),
        _ => Ok(file),
    }
}
