//! Writing models to files.

use std::fs;
use std::path::{Path, PathBuf};

use tensorc_frontend::file::{FileError, replace_file};

use super::document::Document;
use super::error::QuantizeError;
use crate::error::Error;

/// What protocol buffers hold.
pub(super) const LARGEST_FILE: usize = i32::MAX as usize;

/// Tensors of fewer bytes stay in the model.
const LEAST_MOVED: usize = 1024;

/// Writes a model that was read from `source`. If it takes more than `largest` bytes, its data goes into a file beside it.
pub(super) fn save(document: &Document, source: &Path, path: &Path, largest: usize) -> Result<(), Error> {
    if is_same(source, path) {
        return Err(QuantizeError::SameFile { path: path.to_owned() }.into());
    }
    let mut bytes = document.model.encode();
    if bytes.len() > largest {
        let data = beside(path);
        let name = data.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut model = document.model.clone();
        replace_file(&data, |file| model.move_data(LEAST_MOVED, &name, file).map_err(|error| unwritten(&data, error)))?;
        bytes = model.encode();
    }
    replace_file(path, |file| file.write_all(&bytes).map_err(|error| unwritten(path, error)))
}

fn unwritten(path: &Path, source: std::io::Error) -> Error {
    Error::Write { path: path.to_owned(), source }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Error {
        Error::Write { path: error.path, source: error.source }
    }
}

/// Whether two paths lead to one file.
fn is_same(a: &Path, b: &Path) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

/// The file of the data.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".data");
    name.into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::compiler::{Compiler, Options};

    #[test]
    fn models_that_are_too_large_have_their_data_beside_them() {
        let folder = tempfile::tempdir().unwrap();
        let [source, path] = ["a.onnx", "b.onnx"].map(|name| folder.path().join(name));
        fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits/digits.onnx"), &source).unwrap();
        let compiler = Compiler::new(Options { threads: Some(1), ..Options::default() }).unwrap();
        let document = Document::open(&compiler, &source).unwrap();
        save(&document, &source, &path, 50_000).unwrap();
        assert!(fs::metadata(&path).unwrap().len() < 50_000);
        // Every tensor that is read again is the one that was written.
        let again = Document::open(&compiler, &path).unwrap();
        for tensor in document.model.initializers.iter().map(|t| t.proto()) {
            let [before, after] = [&document, &again].map(|d| d.constant(tensor.name()).unwrap());
            assert_eq!(before, after, "{}", tensor.name());
        }
        assert!(matches!(save(&document, &source, &source, 50_000), Err(Error::Quantize(_))));
    }
}
