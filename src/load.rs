//! Model files to models, by the kind of the file.

use std::path::Path;

use bytes::Bytes;
use tensorc_frontend::mxnet::params::{self, Checkpoint};
use tensorc_frontend::onnx::{ImportOptions, OnnxModel, Replacements, import, list_inputs, signature, stated_texts};
use tensorc_frontend::symbol::Symbol;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::graph::Graph;
use tensorc_ir::verify::{Stage, verify_graph};
use tensorc_passes::CompilePhase;

use crate::branches::Branches;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::lists::{Lengths, Lists};
use crate::model::Model;
use crate::source::ModelSource;
use crate::symbol::{Inference, inference};

impl Compiler {
    /// Loads a model file: ONNX; a symbol of MXNet if the name ends in `.json`; or the text IR if it ends in
    /// `.tc`. The variables of a symbol are inputs of the model.
    ///
    /// Large tensors of an ONNX model are read from its files when it is compiled. The files may be removed or replaced
    /// meanwhile; if they are changed, compiling fails ([`Error::Constants`], or a diagnostic of the code `file`).
    ///
    /// # Errors
    /// The file cannot be read, is no model, or holds what is not supported; then the error lists
    /// everything unsupported at once.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Model, Error> {
        self.load_with(path, None)
    }

    /// Loads a symbol of MXNet with its parameters, which become constants of the model.
    ///
    /// # Errors
    /// As [`Compiler::load`]; or the parameters do not fit the symbol, or the file of the model is no symbol.
    pub fn load_with(&self, path: impl AsRef<Path>, parameters: Option<&Path>) -> Result<Model, Error> {
        let model = self.imported(path.as_ref(), parameters)?;
        self.options().limits.admit_graph(model.graph())?;
        Ok(model)
    }

    /// Loads an ONNX model from memory, with its weights; it has no external data. Messages call it `name`.
    ///
    /// # Errors
    /// As [`Compiler::load`].
    pub fn load_bytes(&self, name: &str, bytes: impl Into<Bytes>) -> Result<Model, Error> {
        self.load_source(ModelSource::memory(name, bytes.into()))
    }

    /// Loads an ONNX model file with other initializers than it has.
    ///
    /// # Errors
    /// As [`Compiler::load`]; or what replaces an initializer does not fit.
    pub fn load_replacing(&self, path: impl AsRef<Path>, by: &Replacements) -> Result<Model, Error> {
        self.load_source(ModelSource::file(path.as_ref()).replacing(by))
    }

    /// As [`Compiler::load_bytes`], with other initializers than the model has.
    ///
    /// # Errors
    /// As [`Compiler::load_replacing`].
    pub fn load_bytes_replacing(&self, name: &str, bytes: impl Into<Bytes>, by: &Replacements) -> Result<Model, Error> {
        self.load_source(ModelSource::memory(name, bytes.into()).replacing(by))
    }

    fn load_source(&self, source: ModelSource) -> Result<Model, Error> {
        self.progress(CompilePhase::Import.name());
        let _span = self.span(CompilePhase::Import.name());
        let model = self.load_onnx(source)?;
        self.options().limits.admit_graph(model.graph())?;
        Ok(model)
    }

    fn imported(&self, path: &Path, parameters: Option<&Path>) -> Result<Model, Error> {
        let ends_in = |extension: &str| path.extension().is_some_and(|e| e == extension);
        self.progress(CompilePhase::Import.name());
        let _span = self.span(CompilePhase::Import.name());
        if ends_in("json") {
            let Inference { graph, unused } = self.load_symbol(path, parameters)?;
            return Ok(Model::new(self.clone(), graph).accepting(unused));
        }
        if parameters.is_some() {
            return Err(Error::NoSymbol { path: path.to_owned() });
        }
        match ends_in("tc") {
            true => Ok(Model::new(self.clone(), self.load_text(path)?)),
            false => self.load_onnx(ModelSource::file(path)),
        }
    }

    fn load_symbol(&self, path: &Path, parameters: Option<&Path>) -> Result<Inference, Error> {
        let fail = |source| Error::SymbolFile { path: path.to_owned(), source: Box::new(source) };
        let symbol = Symbol::load_in(self.registry(), path).map_err(fail)?;
        let read = |file: &Path| {
            let fail = |source| Error::ParamsFile { path: file.to_owned(), source };
            params::load(file).and_then(Checkpoint::from_list).map_err(fail)
        };
        inference(&symbol, parameters.map(read).transpose()?, self.registry())
    }

    fn load_text(&self, path: &Path) -> Result<Graph, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let mut module = tensorc_ir::text::parse_module(&text, self.registry())?;
        match module.graphs.len() {
            0 => {
                let why = format!("{}: the file holds no graph", path.display());
                Err(Diagnostic::new(DiagnosticCode::Verify, why).into())
            }
            _ => {
                let graph = module.graphs.swap_remove(0);
                verify_graph(&graph, Stage::Imported)?;
                Ok(graph)
            }
        }
    }

    fn load_onnx(&self, source: ModelSource) -> Result<Model, Error> {
        let model = source.open(self)?;
        let lists = list_inputs(&model);
        if lists.is_empty() {
            return self.load_onnx_of(&source, model, &[]);
        }
        let none: Vec<(&str, usize)> = lists.iter().map(|list| (list.name.as_str(), 0)).collect();
        let (inputs, outputs) = signature(model, self.registry(), &none).map_err(|e| source.error(e))?;
        let compiler = self.clone();
        let load = move |lengths: &Lengths<'_>| {
            let model = source.open(&compiler)?;
            compiler.load_onnx_of(&source, model, lengths)
        };
        Ok(Model::new(self.clone(), inputs).with_lists(Lists::new(lists, Box::new(load)), outputs))
    }

    /// A model of which it is known how many tensors there are in sequences and optional values.
    fn load_onnx_of(&self, source: &ModelSource, model: OnnxModel, lengths: &Lengths<'_>) -> Result<Model, Error> {
        let options = ImportOptions { lengths, ..ImportOptions::default() };
        match import(model, self.registry(), &options) {
            Ok(imported) => Ok(Model::new(self.clone(), imported.graph).with_texts(&imported.texts)),
            Err(error) => {
                let Some(branches) = Branches::of(source, lengths, &error) else { return Err(source.error(error)) };
                let model = source.open(self)?;
                if let Some(value) = stated_texts(&model) {
                    return Err(Error::TextBranches { value });
                }
                let (inputs, outputs) =
                    signature(model, self.registry(), lengths).map_err(|error| source.error(error))?;
                Ok(Model::new(self.clone(), inputs).with_branches(branches, outputs))
            }
        }
    }

    /// Wraps a graph built in Rust.
    pub fn model(&self, graph: Graph) -> Model {
        Model::new(self.clone(), graph)
    }
}
