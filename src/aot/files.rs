//! Files of a model compiled ahead of time.

use std::path::{Path, PathBuf};

use super::link::{LinkError, LinkOutput, Tools, link};
use super::{AotRequest, Artifact, bindings};
use crate::error::Error;

/// A file that can be made of an artifact, beside its header, manifest and weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArtifactFile {
    /// The relocatable object, `.o`.
    Object,
    /// A library or program.
    Linked(LinkOutput),
    /// Rust bindings, `.rs`.
    RustBindings,
}

impl Artifact {
    /// Writes the header, the manifest, the weights unless they are in the object, and other files beside each other: `out` with
    /// an extension. Returns their paths.
    ///
    /// # Errors
    /// A file cannot be written, or linking fails.
    pub fn write(
        &self,
        request: &AotRequest,
        out: &Path,
        files: &[ArtifactFile],
        tools: &Tools,
    ) -> Result<Vec<PathBuf>, Error> {
        let write = |extension: &str, bytes: &[u8]| write_file(with_extension(out, extension), bytes);
        let mut written = vec![write("h", self.header.as_bytes())?, write("json", &self.manifest.to_json())?];
        if let Some(weights) = &self.weights {
            written.push(write("weights", weights)?);
        }
        for file in files {
            let (extension, product) = match file {
                ArtifactFile::Object => {
                    written.push(write("o", &self.object)?);
                    continue;
                }
                ArtifactFile::RustBindings => {
                    written.push(write("rs", bindings::write(&self.manifest).as_bytes())?);
                    continue;
                }
                ArtifactFile::Linked(LinkOutput::StaticLibrary) => ("a", LinkOutput::StaticLibrary),
                ArtifactFile::Linked(LinkOutput::SharedLibrary) => ("so", LinkOutput::SharedLibrary),
                ArtifactFile::Linked(LinkOutput::Program) => ("", LinkOutput::Program),
            };
            let path = with_extension(out, extension);
            link(product, &request.name, &self.object, request.target, tools, &path)?;
            written.push(path);
        }
        Ok(written)
    }
}

/// Writes a file and returns its path.
///
/// # Errors
/// It cannot be written.
pub fn write_file(path: PathBuf, bytes: &[u8]) -> Result<PathBuf, Error> {
    match crate::write_file(&path, bytes) {
        Ok(()) => Ok(path),
        Err(error) => Err(LinkError::File { path, source: error.source }.into()),
    }
}

/// A name in C from the name of a file.
pub fn identifier(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name: String = stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("m{name}") } else { name }
}

/// The path with an extension, unless it has it.
pub fn with_extension(out: &Path, extension: &str) -> PathBuf {
    if extension.is_empty() || out.extension().is_some_and(|e| e == extension) {
        return out.to_owned();
    }
    let known = ["o", "a", "so", "h", "rs", "json", "weights", "ir", "kir", "s", "ptx"];
    let base = if out.extension().is_some_and(|e| known.iter().any(|k| e == *k)) {
        out.with_extension("")
    } else {
        out.to_owned()
    };
    let mut name = base.into_os_string();
    name.push(".");
    name.push(extension);
    name.into()
}
