//! Models in Rust programs: what a build script calls to compile a model ahead of time and link it.
//!
//! ```no_run
//! // build.rs
//! fn main() -> Result<(), tensorc::build::BuildError> {
//!     tensorc::build::BuildModel::new("digits.onnx").range("batch", 1..=8).compile()
//! }
//! ```
//!
//! with `tensorc` among the `[build-dependencies]` and `tensorc-runtime` among the `[dependencies]`. The program
//! includes the bindings that this writes, a module with the name of the model:
//!
//! ```text
//! include!(concat!(env!("OUT_DIR"), "/digits.rs"));
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use tensorc_codegen::isa::Isa;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::{Shape, TensorType};

use crate::aot::link::{LinkError, LinkOutput, Tools, link};
use crate::aot::{self, AotRequest, ExtentRange, bindings};
use crate::binding;
use crate::compiler::{Compiler, Options};
use crate::error::Error;

/// A model to be compiled by a build script.
#[derive(Clone, Debug)]
pub struct BuildModel {
    path: PathBuf,
    params: Option<PathBuf>,
    name: String,
    shapes: BTreeMap<String, Vec<u64>>,
    ranges: BTreeMap<String, ExtentRange>,
    target: Option<String>,
    weights_in_file: bool,
    options: Options,
    tools: Tools,
    out_dir: Option<PathBuf>,
}

/// What was written.
#[derive(Clone, Debug)]
pub struct BuiltModel {
    /// The Rust bindings, `NAME.rs`.
    pub bindings: PathBuf,
    /// The static library, `libtensorc_NAME.a`.
    pub library: PathBuf,
    /// The file of weights, `NAME.weights`, if they are not in the library.
    pub weights: Option<PathBuf>,
    /// Instructions for Cargo, a line each.
    pub instructions: String,
}

/// Why a build script has no model. `Debug` is the message, too: what a failing `main` shows.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum BuildError {
    /// The model cannot be read, or not be compiled for these shapes.
    #[error("{}", named(model, source))]
    Model { model: PathBuf, source: Box<Error> },
    /// A shape or range of the build script's does not fit the model.
    #[error("{model}: {message}", model = model.display())]
    Shape { model: PathBuf, message: String },
    /// The artifact could not be linked.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A file cannot be written.
    #[error("{path}: {source}", path = path.display())]
    Write { path: PathBuf, source: std::io::Error },
    /// Outside of a build script, something is not given.
    #[error("{variable} is not set: outside of a build script, give {instead}")]
    Environment { variable: &'static str, instead: &'static str },
    /// A target that is not supported.
    #[error("unsupported target `{0}`; supported: Linux with glibc on {known}", known = Isa::NAMES[1..].join(", "))]
    Target(String),
}

/// The error with the model's path, which some errors have.
fn named(model: &Path, source: &Error) -> String {
    let (model, text) = (model.display().to_string(), source.to_string());
    if text.contains(&model) { text } else { format!("{model}: {text}") }
}

impl fmt::Debug for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl BuildModel {
    /// A model file, as [`Compiler::load`] takes it; relative to the package. Its name is that of the file.
    pub fn new(path: impl Into<PathBuf>) -> BuildModel {
        let path = path.into();
        BuildModel {
            name: bindings::identifier(&path.file_stem().unwrap_or_default().to_string_lossy()),
            path,
            params: None,
            shapes: BTreeMap::new(),
            ranges: BTreeMap::new(),
            target: None,
            weights_in_file: false,
            options: Options::default(),
            tools: Tools::default(),
            out_dir: None,
        }
    }

    /// The parameters of a symbol of MXNet.
    pub fn params(self, path: impl Into<PathBuf>) -> BuildModel {
        BuildModel { params: Some(path.into()), ..self }
    }

    /// The name of the bindings' file and module, and the beginning of all symbols; models of one program have
    /// different names.
    pub fn name(self, name: impl Into<String>) -> BuildModel {
        BuildModel { name: name.into(), ..self }
    }

    /// The extents of an input, or the one extent of a named dimension.
    pub fn shape(mut self, name: impl Into<String>, extents: &[u64]) -> BuildModel {
        self.shapes.insert(name.into(), extents.to_vec());
        self
    }

    /// A dimension that stays open, with any extent in the range; or a number that decides shapes, `k.0` for the first element of the
    /// tensor `k`.
    pub fn range(self, name: impl Into<String>, extents: RangeInclusive<u64>) -> BuildModel {
        self.range_by(name, extents, 1)
    }

    /// A dimension that stays open, with extents from the first to the last of a range in equal steps.
    pub fn range_by(mut self, name: impl Into<String>, extents: RangeInclusive<u64>, step: u64) -> BuildModel {
        let (first, last) = extents.into_inner();
        self.ranges.insert(name.into(), ExtentRange { first, last, step });
        self
    }

    /// What generated code may use: `native`, `x86_64`, `x86_64-v3`, `x86_64-v4`, `aarch64` or `riscv64`. By default
    /// what Cargo compiles the program for.
    pub fn target(self, target: impl Into<String>) -> BuildModel {
        BuildModel { target: Some(target.into()), ..self }
    }

    /// Leaves the weights out of the program: they go into a file, which `BuildModel::load` of the bindings takes.
    pub fn weights_in_file(self) -> BuildModel {
        BuildModel { weights_in_file: true, ..self }
    }

    /// How the model is compiled.
    pub fn options(self, options: Options) -> BuildModel {
        BuildModel { options, ..self }
    }

    /// `libtensorc_rt.a` for another machine than that of the compiler.
    pub fn runtime_library(mut self, path: impl Into<PathBuf>) -> BuildModel {
        self.tools.library = Some(path.into());
        self
    }

    /// Where everything is written; by default Cargo's `OUT_DIR`.
    pub fn out_dir(self, path: impl Into<PathBuf>) -> BuildModel {
        BuildModel { out_dir: Some(path.into()), ..self }
    }

    /// Compiles the model, writes library and bindings, and tells Cargo to link them.
    ///
    /// # Errors
    /// As [`BuildModel::write`].
    pub fn compile(self) -> Result<(), BuildError> {
        let built = self.write()?;
        print!("{}", built.instructions);
        Ok(())
    }

    /// Compiles the model and writes library and bindings.
    ///
    /// # Errors
    /// The model cannot be read or compiled, or not for these shapes; `ar` is missing, or there is no run-time library
    /// for the target; a file cannot be written.
    pub fn write(self) -> Result<BuiltModel, BuildError> {
        let fail = |source: Error| BuildError::Model { model: self.path.clone(), source: Box::new(source) };
        let out_dir = match &self.out_dir {
            Some(path) => path.clone(),
            None => variable("OUT_DIR", "`out_dir`")?.into(),
        };
        let target = self.resolved_target()?;
        let compiler = Compiler::new(self.options.clone()).map_err(fail)?;
        let model = compiler.load_with(&self.path, self.params.as_deref()).map_err(fail)?;
        self.check(model.graph())?;
        let request = AotRequest {
            name: self.name.clone(),
            shapes: self.shapes.clone(),
            ranges: self.ranges.clone(),
            target,
            gpu: None,
            embed_weights: !self.weights_in_file,
            program: false,
        };
        let artifact = aot::compile(&model, &request).map_err(fail)?;
        let put = |file: String, bytes: &[u8]| {
            let path = out_dir.join(file);
            let written = crate::write_file(&path, bytes);
            written.map_err(|error| BuildError::Write { path: path.clone(), source: error.source })?;
            Ok::<_, BuildError>(path)
        };
        let name = &self.name;
        let library = out_dir.join(format!("libtensorc_{name}.a"));
        link(LinkOutput::StaticLibrary, name, &artifact.object, target, &self.tools, &library)?;
        let bindings = put(format!("{name}.rs"), bindings::write(&artifact.manifest).as_bytes())?;
        let weights = artifact.weights.map(|bytes| put(format!("{name}.weights"), &bytes)).transpose()?;
        Ok(BuiltModel { bindings, library, weights, instructions: self.instructions(&out_dir) })
    }

    /// What Cargo has to know.
    fn instructions(&self, out_dir: &Path) -> String {
        let mut lines = format!(
            "cargo::rustc-link-search=native={}\ncargo::rustc-link-lib=static=tensorc_{}\ncargo::rustc-link-lib=m\n",
            out_dir.display(),
            self.name
        );
        let read = [Some(&self.path), self.params.as_ref(), self.tools.library.as_ref()];
        for path in read.into_iter().flatten() {
            lines += &format!("cargo::rerun-if-changed={}\n", path.display());
        }
        lines
    }

    /// The target that is asked for, or what Cargo says of the one of the program.
    fn resolved_target(&self) -> Result<Isa, BuildError> {
        let unknown = |text: &str| BuildError::Target(text.to_owned());
        if let Some(text) = &self.target {
            return text.parse().map_err(|_| unknown(text));
        }
        let triple = variable("TARGET", "`target`")?;
        let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
        let text = baseline(&triple, &features).ok_or_else(|| unknown(&triple))?;
        text.parse().map_err(|_| unknown(&triple))
    }

    /// Compares shapes and ranges with the model's inputs.
    fn check(&self, graph: &Graph) -> Result<(), BuildError> {
        let refuse = |message: String| Err(BuildError::Shape { model: self.path.clone(), message });
        if let Some((name, range)) = self.ranges.iter().find(|(_, range)| range.first > range.last) {
            return refuse(format!("the range {range} of `{name}` is empty"));
        }
        let mut bound = graph.clone();
        let firsts = self.ranges.iter().map(|(name, range)| (name, vec![range.first], range.to_string()));
        let shapes = self.shapes.iter().map(|(name, extents)| (name, extents.clone(), format!("{extents:?}")));
        for (name, extents, given) in shapes.chain(firsts) {
            let before = bound.clone();
            let fits = binding::bind(&mut bound, &BTreeMap::from([(name.clone(), extents)])).is_ok();
            if !fits && !aot::may_name_element(graph, name) {
                let inputs = signature(&before);
                return refuse(format!("{given} is no shape or range for `{name}`; the inputs are {inputs}"));
            }
        }
        let open = |node: &_| {
            let ty = bound.resolved(Value { node: *node, port: 0 });
            ty.shape.as_extents().is_none()
        };
        match bound.inputs().iter().any(open) {
            true => refuse(format!(
                "the shapes of inputs are open: {}; give a dimension `?name` a range with \
                 `.range(\"name\", 1..=8)` or an extent with `.shape(\"name\", &[1])`",
                signature(&bound)
            )),
            false => Ok(()),
        }
    }
}

/// The inputs of a graph with their types.
fn signature(graph: &Graph) -> String {
    let one = |node: &_| {
        let TensorType { dtype, shape } = graph.resolved(Value { node: *node, port: 0 });
        let dims = match &shape {
            Shape::Unranked => "*".to_owned(),
            Shape::Ranked(dims) => dims.iter().map(|d| graph.dims.display(*d)).collect::<Vec<_>>().join(", "),
        };
        format!("`{}` {}[{dims}]", graph.node(*node).name, dtype.map_or("?", |d| d.name()))
    };
    graph.inputs().iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A variable that Cargo sets for build scripts.
fn variable(variable: &'static str, instead: &'static str) -> Result<String, BuildError> {
    std::env::var(variable).map_err(|_| BuildError::Environment { variable, instead })
}

/// The level of instructions that Cargo's target and its features allow.
fn baseline(triple: &str, features: &str) -> Option<&'static str> {
    let has = |all: &[&str]| all.iter().all(|feature| features.split(',').any(|f| f == *feature));
    match triple.split('-').next().filter(|_| triple.ends_with("-linux-gnu"))? {
        "x86_64" if has(&["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]) => Some("x86_64-v4"),
        "x86_64" if has(&["avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe"]) => Some("x86_64-v3"),
        "x86_64" => Some("x86_64"),
        "aarch64" => Some("aarch64"),
        "riscv64gc" | "riscv64" => Some("riscv64"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_for_what_cargo_compiles_for() {
        let v3 = "avx,avx2,bmi1,bmi2,f16c,fma,fxsr,lzcnt,movbe,sse,sse2";
        let v4 = format!("{v3},avx512bw,avx512cd,avx512dq,avx512f,avx512vl");
        for (triple, features, level) in [
            ("x86_64-unknown-linux-gnu", "fxsr,sse,sse2", Some("x86_64")),
            ("x86_64-unknown-linux-gnu", v3, Some("x86_64-v3")),
            ("x86_64-unknown-linux-gnu", &v4, Some("x86_64-v4")),
            ("aarch64-unknown-linux-gnu", "neon", Some("aarch64")),
            ("riscv64gc-unknown-linux-gnu", "", Some("riscv64")),
            ("x86_64-unknown-linux-musl", "", None),
            ("x86_64-pc-windows-msvc", "", None),
            ("m68k-unknown-linux-gnu", "", None),
        ] {
            assert_eq!(baseline(triple, features), level, "{triple} {features}");
            assert!(level.is_none_or(|level| Isa::NAMES.contains(&level)));
        }
    }
}
