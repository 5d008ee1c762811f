//! Symbols as MXNet's JSON text.

mod file;
mod read;
mod upgrade;
mod write;

use std::path::Path;

use tensorc_ir::op::Registry;

use super::Symbol;
use super::error::SymbolError;
use super::operator::operators;
use crate::file::replace_file;
use crate::mxnet::FileError;

/// The version of MXNet whose form is written, 1.9.1.
const VERSION: u32 = 10901;

impl Symbol {
    /// Reads the text of a symbol file of any version of MXNet.
    ///
    /// # Errors
    /// The text is not that of a symbol, or names an operator or parameter that is not known.
    pub fn from_json(text: &str) -> Result<Symbol, SymbolError> {
        Symbol::from_json_in(operators()?, text)
    }

    /// As [`Symbol::from_json`], with the operators of a registry.
    ///
    /// # Errors
    /// As [`Symbol::from_json`].
    pub(crate) fn from_json_in(registry: &Registry, text: &str) -> Result<Symbol, SymbolError> {
        let mut file = file::File::parse(text)?;
        upgrade::upgrade(&mut file, registry)?;
        read::build(file, registry)
    }

    /// Reads a symbol file.
    ///
    /// # Errors
    /// As [`Symbol::from_json`]; or the file cannot be read.
    pub fn load(path: impl AsRef<Path>) -> Result<Symbol, SymbolError> {
        Symbol::load_in(operators()?, path)
    }

    /// As [`Symbol::load`], with the operators of a registry.
    ///
    /// # Errors
    /// As [`Symbol::load`].
    pub fn load_in(registry: &Registry, path: impl AsRef<Path>) -> Result<Symbol, SymbolError> {
        let path = path.as_ref();
        let failed = |source| FileError { action: "read", path: path.to_owned(), source };
        Symbol::from_json_in(registry, &std::fs::read_to_string(path).map_err(failed)?)
    }

    /// The text of the symbol as MXNet 1.9.1 writes it.
    pub fn to_json(&self) -> String {
        write::text(self)
    }

    /// Writes the symbol to a file, which appears whole or not at all.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), SymbolError> {
        let path = path.as_ref();
        let text = self.to_json();
        replace_file(path, |out| {
            let failed = |source| FileError { action: "write", path: path.to_owned(), source };
            Ok(out.write_all(text.as_bytes()).map_err(failed)?)
        })
    }
}
