//! Where an ONNX model comes from. It is read anew for each import.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tensorc_frontend::onnx::{OnnxError, OnnxModel, Replacements};

use crate::compiler::Compiler;
use crate::error::Error;

/// An ONNX model that can be read several times, with what is replaced in it.
#[derive(Clone)]
pub(crate) struct ModelSource {
    from: Origin,
    replacements: Arc<Replacements>,
}

#[derive(Clone)]
enum Origin {
    /// A file, with external data beneath its folder.
    File(PathBuf),
    /// Bytes in memory without external data, and what messages call them.
    Memory { name: PathBuf, bytes: Bytes },
}

impl ModelSource {
    pub fn file(path: &Path) -> ModelSource {
        ModelSource { from: Origin::File(path.to_owned()), replacements: Arc::default() }
    }

    /// A model in memory.
    pub fn memory(name: &str, bytes: Bytes) -> ModelSource {
        ModelSource { from: Origin::Memory { name: name.into(), bytes }, replacements: Arc::default() }
    }

    /// The same model with other initializers.
    pub fn replacing(self, replacements: &Replacements) -> ModelSource {
        ModelSource { replacements: replacements.clone().into(), ..self }
    }

    /// Reads the model without its weights.
    ///
    /// # Errors
    /// It cannot be read, or is no ONNX model.
    pub fn open(&self, compiler: &Compiler) -> Result<OnnxModel, Error> {
        let options = compiler.read_options();
        let opened = match &self.from {
            Origin::File(path) => OnnxModel::open_with(path, options),
            Origin::Memory { bytes, .. } => OnnxModel::decode_with(bytes.clone(), None, options),
        };
        let replaced = opened.and_then(|mut model| model.replace(&self.replacements).map(|()| model));
        replaced.map_err(|error| self.error(error))
    }

    /// An error of the model, with its name.
    pub fn error(&self, source: OnnxError) -> Error {
        Error::Onnx { path: self.name().to_owned(), source: Box::new(source) }
    }

    fn name(&self) -> &Path {
        let (Origin::File(name) | Origin::Memory { name, .. }) = &self.from;
        name
    }
}
