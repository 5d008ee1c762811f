//! Images in files of their own: a list of them, or all of a folder.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use tensorc_runtime::TensorMut;

use super::pipeline::{ImagePipeline, ImageScratch};
use crate::dataset::{DataDesc, Dataset, Sample};
use crate::error::{Cause, DataError, ExamplePlace};
use crate::list::ListEntry;

/// Endings of the names of images.
pub(crate) const IMAGE_ENDINGS: [&str; 3] = [".jpeg", ".jpg", ".png"];

/// Images below a folder, with their labels.
pub struct ImageFiles {
    root: PathBuf,
    entries: Vec<ListEntry>,
    pipeline: ImagePipeline,
}

impl ImageFiles {
    /// The entries' paths are relative to `root`.
    pub fn new(root: impl Into<PathBuf>, entries: Vec<ListEntry>, pipeline: ImagePipeline) -> ImageFiles {
        ImageFiles { root: root.into(), entries, pipeline }
    }
}

/// Appends a file's contents to what `bytes` holds, which is nothing.
fn read_file(path: &Path, bytes: &mut Vec<u8>) -> Result<(), Cause> {
    bytes.clear();
    let mut file = File::open(path)?;
    let size = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    bytes.try_reserve(size).map_err(|_| Cause::Format(format!("no memory for {size} bytes")))?;
    file.read_to_end(bytes)?;
    Ok(())
}

impl Dataset for ImageFiles {
    fn name(&self) -> String {
        self.root.display().to_string()
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    fn data(&self) -> &[DataDesc] {
        self.pipeline.data()
    }

    fn labels(&self) -> &[DataDesc] {
        self.pipeline.labels()
    }

    fn id(&self, index: usize) -> u64 {
        self.entries[index].index
    }

    fn read(&self, sample: Sample, data: &mut [TensorMut<'_>], labels: &mut [TensorMut<'_>]) -> Result<(), DataError> {
        let entry = &self.entries[sample.index];
        let path = self.root.join(&entry.path);
        self.pipeline.with_scratch(|ImageScratch { file, work }| {
            let read = read_file(&path, file)
                .and_then(|()| {
                    let found = &entry.labels;
                    self.pipeline.write_labels(found.len(), found.iter().copied(), &mut labels[0])
                })
                .and_then(|()| {
                    let draws = self.pipeline.draws(sample.epoch, sample.index as u64);
                    self.pipeline.write(file, draws, work, &mut data[0])
                });
            read.map_err(|cause| DataError::at(ExamplePlace::file(&path).record(entry.index), cause))
        })
    }
}

/// The images of a folder as list entries numbered from 0: files whose names have one of `endings`, in capitals or not, a folder's before those of the folders in it, in the order of their names. If `recursive`, folders in the folder
/// are looked at as well, and the label is the number of the folder that holds an image, among those that hold any;
/// otherwise it is 0.
///
/// # Errors
/// A folder cannot be read.
pub(crate) fn folder_entries(
    root: impl AsRef<Path>,
    recursive: bool,
    endings: &[impl AsRef<str>],
) -> Result<Vec<ListEntry>, DataError> {
    let mut found = vec![];
    collect(root.as_ref(), Path::new(""), recursive, endings, &mut found)?;
    found.sort();
    // A folder's files are side by side.
    let folders = found.chunk_by(|(a, _), (b, _)| a == b).enumerate();
    let labelled = folders.flat_map(|(number, files)| files.iter().map(move |file| (number, file)));
    let entry = |(index, (number, (folder, name))): (usize, (usize, &(PathBuf, PathBuf)))| ListEntry {
        index: index as u64,
        labels: vec![if recursive { number as f32 } else { 0.0 }],
        path: folder.join(name),
    };
    Ok(labelled.enumerate().map(entry).collect())
}

/// Appends the folder and name of each image.
fn collect(
    root: &Path,
    below: &Path,
    recursive: bool,
    endings: &[impl AsRef<str>],
    found: &mut Vec<(PathBuf, PathBuf)>,
) -> Result<(), DataError> {
    // Joining an empty path would put a slash behind the root.
    let folder = if below.as_os_str().is_empty() { root.to_owned() } else { root.join(below) };
    let failed = |e| DataError::io(&folder, e);
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let about = match fs::metadata(entry.path()) {
            // A link to nothing.
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            about => about.map_err(|e| DataError::io(entry.path(), e))?,
        };
        if about.is_dir() {
            if recursive && !leads_back(&entry.path(), &folder).map_err(failed)? {
                collect(root, &below.join(entry.file_name()), recursive, endings, found)?;
            }
            continue;
        }
        let name = PathBuf::from(entry.file_name());
        let Some(ending) = name.extension().map(|ending| format!(".{}", ending.to_string_lossy().to_lowercase()))
        else {
            continue;
        };
        if endings.iter().any(|known| known.as_ref().to_lowercase() == ending) {
            found.push((below.to_owned(), name));
        }
    }
    Ok(())
}

/// Whether a folder is one that it lies in, by a link.
fn leads_back(path: &Path, folder: &Path) -> std::io::Result<bool> {
    Ok(fs::symlink_metadata(path)?.is_symlink() && fs::canonicalize(folder)?.starts_with(fs::canonicalize(path)?))
}
