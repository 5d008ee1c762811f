//! Where the data of tensors is read: in the file of the model, and in files beside it.
//!
//! A model comes from anywhere, so the paths in it are not trusted: only regular files beneath the model's folder are
//! opened, never by a link. A symbolic link could lead to any file, and a hard link is another name of one: whoever unpacks
//! an archive or a repository beside the model can make either, and what the file holds would come out as weights. The
//! caches of some package managers keep models by links; whoever trusts the folder allows them ([`ReadOptions`]). Every
//! file is opened once.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tensorc_abi::content::{Content, DataFile};

use super::beneath::{self, Found};
use super::error::ExternalProblem;
use super::limits::{Budget, ImportLimits};
use super::proto::StringStringEntryProto;
use super::skeleton::Holes;
use crate::read;

/// How files of a model are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Also reads external data that is reached by symbolic links, wherever they lead, or has further names (hard links).
    /// For folders that are trusted, such as caches of downloads.
    pub linked_data: bool,
    /// What the model may take.
    pub limits: ImportLimits,
}

/// The files that hold data of one model.
#[derive(Debug, Default)]
pub struct ModelFiles {
    /// The model's folder; `None` for a model that was not read from a file.
    folder: Option<PathBuf>,
    linked: bool,
    /// Files of external data by the path beneath the folder.
    open: BTreeMap<String, Arc<DataFile>>,
    /// The data that is left in the file of the model.
    pub(super) holes: Holes,
    /// What reading and importing may still take.
    pub(super) budget: Budget,
}

impl ModelFiles {
    /// Looks for external data in `folder`; without one every external tensor is an error.
    pub fn new(folder: Option<PathBuf>, options: ReadOptions) -> ModelFiles {
        let (linked, budget) = (options.linked_data, Budget::new(options.limits));
        ModelFiles { folder, linked, open: BTreeMap::new(), holes: Holes::default(), budget }
    }

    /// The bytes that the `external_data` entries of a tensor describe; `needed` is how many its shape takes.
    ///
    /// Without `length` they reach to the end of the file. Keys that say nothing of the place of the data are passed over; a
    /// `checksum` is not compared.
    ///
    /// # Errors
    /// The entries are not one place of `needed` bytes in a regular file beneath the folder, or the file cannot be read.
    pub fn external(&mut self, entries: &[StringStringEntryProto], needed: u64) -> Result<Content, ExternalProblem> {
        let place = Place::of(entries)?;
        let folder = self.folder.as_deref().ok_or(ExternalProblem::NoFolder)?;
        let names = names(place.location)?;
        let path = names.join("/");
        let failed = |source| ExternalProblem::Open { path: path.clone(), source };
        if let Some(file) = self.open.get(&path) {
            return Content::of_file(file, place.range(file.size(), needed)?).map_err(failed);
        }
        let file = open(folder, &names, self.linked)?;
        let file = DataFile::new(folder.join(&path).display().to_string(), file).map_err(failed)?;
        let range = place.range(file.size(), needed)?;
        self.budget.take_bytes(file.size())?;
        let content = Content::of_file(&file, range).map_err(failed)?;
        self.open.insert(path, file);
        Ok(content)
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
        let number = |key: &'static str| {
            let parsed = |text: &str| {
                let digits = text.bytes().all(|b| b.is_ascii_digit());
                let number = text.parse::<u64>().ok().filter(|_| digits);
                number.ok_or_else(|| ExternalProblem::BadNumber { key, value: text.to_owned() })
            };
            value(key)?.map(parsed).transpose()
        };
        let location = value("location")?.filter(|l| !l.is_empty()).ok_or(ExternalProblem::NoLocation)?;
        Ok(Place { location, offset: number("offset")?.unwrap_or(0), length: number("length")? })
    }

    /// The positions in a file of `size` bytes.
    fn range(&self, size: u64, needed: u64) -> Result<std::ops::Range<u64>, ExternalProblem> {
        let (path, offset) = (self.location.to_owned(), self.offset);
        let end = match self.length {
            Some(length) => offset.saturating_add(length),
            None => size.max(offset),
        };
        match end - offset {
            _ if end > size => Err(ExternalProblem::OutOfBounds { path, offset, end, size }),
            found if found != needed => Err(ExternalProblem::WrongLength { path, found, needed }),
            _ => Ok(offset..end),
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
