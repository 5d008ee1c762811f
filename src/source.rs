//! Where an ONNX model comes from. It is read anew for each import.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use tensorc_frontend::onnx::{OnnxError, OnnxModel};

use crate::compiler::Compiler;
use crate::error::Error;

/// An ONNX model that can be read several times.
#[derive(Clone)]
pub(crate) enum ModelSource {
    /// A file, with external data beneath its folder.
    File(PathBuf),
    /// Bytes in memory without external data, and what messages call them.
    Memory { name: PathBuf, bytes: Bytes },
}

impl ModelSource {
    /// Reads the model without its weights.
    ///
    /// # Errors
    /// It cannot be read, or is no ONNX model.
    pub fn open(&self, compiler: &Compiler) -> Result<OnnxModel, Error> {
        let options = compiler.read_options();
        let opened = match self {
            ModelSource::File(path) => OnnxModel::open_with(path, options),
            ModelSource::Memory { bytes, .. } => OnnxModel::decode_with(bytes.clone(), None, options),
        };
        opened.map_err(|error| self.error(error))
    }

    /// An error of the model, with its name.
    pub fn error(&self, source: OnnxError) -> Error {
        Error::Onnx { path: self.name().to_owned(), source: Box::new(source) }
    }

    fn name(&self) -> &Path {
        let (ModelSource::File(name) | ModelSource::Memory { name, .. }) = self;
        name
    }
}
