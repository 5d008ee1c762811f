//! Lists of the images of a folder.

use std::path::{Path, PathBuf};

use super::mersenne::Mersenne;
use crate::error::DataError;
use crate::images::{IMAGE_ENDINGS, folder_entries};
use crate::list::{ImageList, ListEntry};

/// How the images of a folder are listed.
#[derive(Clone, Debug, PartialEq)]
pub struct ListOptions {
    /// Endings of the names of images, with the dot.
    pub exts: Vec<String>,
    /// Lists of about equally many images.
    pub chunks: usize,
    /// Part of the images in `PREFIX_train.lst`. Those that neither this nor the next takes go to `PREFIX_val.lst`.
    pub train_ratio: f64,
    /// Part of the images in `PREFIX_test.lst`.
    pub test_ratio: f64,
    /// Folders in the folder are looked at as well, and each is a class.
    pub recursive: bool,
    /// The order is random: that of Python's generator with seed 100.
    pub shuffle: bool,
}

impl Default for ListOptions {
    fn default() -> ListOptions {
        ListOptions {
            exts: IMAGE_ENDINGS.map(String::from).to_vec(),
            chunks: 1,
            train_ratio: 1.0,
            test_ratio: 0.0,
            recursive: false,
            shuffle: true,
        }
    }
}

const SEED: u32 = 100;

/// Writes lists of the images of `root`, and returns their paths with the number of images of each.
///
/// # Errors
/// The folder has no images or cannot be read, ratios are not parts of a whole, or a list cannot be written.
pub fn make_lists(prefix: &str, root: &Path, options: &ListOptions) -> Result<Vec<(PathBuf, usize)>, DataError> {
    let ListOptions { chunks, train_ratio: train, test_ratio: test, .. } = *options;
    let parts = 0.0..=1.0;
    if !parts.contains(&train) || !parts.contains(&test) || (train < 1.0 && train + test > 1.0) || chunks == 0 {
        let why = format!("{chunks} chunks, of which {train} are for training and {test} for tests");
        return Err(DataError::options("im2rec", why));
    }
    let mut entries = folder_entries(root, options.recursive, &options.exts)?;
    if entries.is_empty() {
        let why = format!("no images with names that end in {}", options.exts.join(", "));
        return Err(DataError::options(root.display().to_string(), why));
    }
    if options.shuffle {
        Mersenne::new(SEED).shuffle(&mut entries);
    }
    let size = entries.len().div_ceil(chunks);
    let mut written = vec![];
    for chunk in 0..chunks {
        let within = |at: usize| at.min(entries.len());
        let images = &entries[within(chunk * size)..within((chunk + 1) * size)];
        let stem = if chunks > 1 { format!("{prefix}_{chunk}") } else { prefix.to_owned() };
        let cut = |ratio: f64| ((size as f64 * ratio) as usize).min(images.len());
        let mut write = |ending: &str, images: &[ListEntry]| -> Result<(), DataError> {
            let path = PathBuf::from(format!("{stem}{ending}.lst"));
            ImageList { entries: images.to_vec(), skipped: vec![] }.write(&path)?;
            written.push((path, images.len()));
            Ok(())
        };
        if train == 1.0 {
            write("", images)?;
            continue;
        }
        let (tests, learned) = (cut(test), (cut(test) + cut(train)).min(images.len()));
        if test > 0.0 {
            write("_test", &images[..tests])?;
        }
        if train + test < 1.0 {
            write("_val", &images[learned..])?;
        }
        write("_train", &images[tests..learned])?;
    }
    Ok(written)
}
