//! What a model needs, and models ahead of time.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensorc::aot::files::{ArtifactFile, identifier};
use tensorc::aot::link::{LinkOutput, Tools};
use tensorc::aot::{self, AotRequest, ExtentRange};
use tensorc::binding::with_extents;
use tensorc::inspect::Inspection;
use tensorc::report::{ModelReport, ReportRequest};
use tensorc::samples::random_inputs;
use tensorc::{Error, Isa, Tensor};

use crate::compilers::{self, Setting};
use crate::session::model_file;
use crate::{errors, signals};

/// Plans a model for extents by the names of inputs or dimensions; returns what it needs as JSON, as a table, and its memory plan as SVG.
#[pyfunction]
pub fn inspect(
    py: Python<'_>,
    model: &Bound<'_, PyAny>,
    shapes: BTreeMap<String, Vec<u64>>,
    threads: usize,
) -> PyResult<(String, String, String)> {
    let file = model_file(model)?;
    let work = || {
        let model = file.load(&compilers::compiler(Setting { threads, bf16: false })?)?;
        let inspection = Inspection::of(&model, &shapes).map_err(|error| *error.source)?;
        let table = inspection.table().map_err(|error| Error::Internal(error.to_string()))?;
        Ok((inspection.json().to_string(), table, inspection.memory_drawing()))
    };
    signals::interruptible(py, work)?.map_err(|error: Error| errors::raised(py, &error))
}

/// Writes a report about a model, run on made-up inputs for extents by the names of inputs or dimensions, as an HTML page. Without
/// `repeat` nothing is measured.
#[pyfunction]
pub fn report(
    py: Python<'_>,
    model: &Bound<'_, PyAny>,
    path: PathBuf,
    shapes: BTreeMap<String, Vec<u64>>,
    threads: usize,
    repeat: Option<u32>,
) -> PyResult<()> {
    let file = model_file(model)?;
    let work = || {
        let model = file.load(&compilers::compiler(Setting { threads, bf16: false })?)?;
        let inputs = random_inputs(&model, &with_extents(model.graph(), &shapes)?)?;
        let inputs: Vec<Tensor> = inputs.into_iter().map(|(_, tensor)| tensor).collect();
        let page = ModelReport::of(&model, &inputs, &ReportRequest { repeat })?.html();
        let written = tensorc::write_file(&path, page.as_bytes());
        written.map_err(|error| Error::Write { path: path.clone(), source: error.source })
    };
    signals::interruptible(py, work)?.map_err(|error: Error| errors::raised(py, &error))
}

/// Compiles a model ahead of time and writes files beside each other, whose paths it returns. `kinds` are names of the option
/// `--emit` of the command line; `ranges` are first and last extents and steps by the names of dimensions.
#[pyfunction]
#[pyo3(signature = (model, out, kinds, shapes, ranges, target, name, embed_weights, linker, runtime_library))]
#[allow(clippy::too_many_arguments, reason = "what the package passes on by name")]
pub fn compile_ahead(
    py: Python<'_>,
    model: &Bound<'_, PyAny>,
    out: PathBuf,
    kinds: Vec<String>,
    shapes: BTreeMap<String, Vec<u64>>,
    ranges: BTreeMap<String, (u64, u64, u64)>,
    target: &str,
    name: Option<String>,
    embed_weights: bool,
    linker: Option<PathBuf>,
    runtime_library: Option<PathBuf>,
) -> PyResult<Vec<PathBuf>> {
    let file = model_file(model)?;
    let files = kinds.iter().filter(|kind| *kind != "header").map(|kind| artifact_file(kind));
    let files = files.collect::<PyResult<Vec<_>>>()?;
    let target = target.parse::<Isa>().map_err(|error| PyValueError::new_err(format!("target: {error}")))?;
    let range = |(name, (first, last, step)): (String, (u64, u64, u64))| (name, ExtentRange { first, last, step });
    let request = AotRequest {
        name: name.unwrap_or_else(|| identifier(&out)),
        shapes,
        ranges: ranges.into_iter().map(range).collect(),
        target,
        gpu: None,
        embed_weights,
        program: files.contains(&ArtifactFile::Linked(LinkOutput::Program)),
    };
    let tools = Tools { linker: linker.map(PathBuf::into_os_string), library: runtime_library };
    let work = || {
        let model = file.load(&compilers::compiler(Setting::default())?)?;
        aot::compile(&model, &request)?.write(&request, &out, &files, &tools)
    };
    signals::interruptible(py, work)?.map_err(|error: Error| errors::raised(py, &error))
}

fn artifact_file(kind: &str) -> PyResult<ArtifactFile> {
    match kind {
        "obj" => Ok(ArtifactFile::Object),
        "static-lib" => Ok(ArtifactFile::Linked(LinkOutput::StaticLibrary)),
        "shared-lib" => Ok(ArtifactFile::Linked(LinkOutput::SharedLibrary)),
        "exe" => Ok(ArtifactFile::Linked(LinkOutput::Program)),
        "rust" => Ok(ArtifactFile::RustBindings),
        other => {
            let known = "obj, static-lib, shared-lib, exe, header and rust";
            Err(PyValueError::new_err(format!("`{other}` is no kind of output; there are {known}")))
        }
    }
}
