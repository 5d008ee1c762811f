//! A model and its runs, as `tensorc.InferenceSession` needs them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use tensorc::runtime::TensorRef;
use tensorc::{Array, Compiler, Error, Model, Tensor};

use crate::arrays::BorrowedArray;
use crate::compilers::{self, Setting};
use crate::errors::{self, Class};
use crate::host_memory::numpy_array;
use crate::signals::StopFlag;
use crate::signature::{ModelFile, ModelSignature, StatedExtent, StatedValue};
use crate::texts::{FeedValue, TEXTS, array_of, dictionaries, is_text_array, map_parts, texts_of};
use crate::{element, signals};

/// A model that is loaded, and compiled for the shapes it is run with.
#[pyclass(frozen, module = "tensorc._tensorc")]
pub struct Session {
    file: ModelFile,
    compiler: Compiler,
    model: RwLock<Arc<Model>>,
    /// The model by the inputs with a default value that runs give.
    overriding: Mutex<BTreeMap<BTreeSet<String>, Arc<Model>>>,
    signature: Py<ModelSignature>,
}

/// A value for an input.
type Feed<'py> = (Bound<'py, PyString>, FeedValue);

#[pymethods]
impl Session {
    /// Loads a model from a path, or from `bytes` that hold an ONNX model, for runs on so many threads, 0 leaves the number to tensorc;
    /// `bf16` rounds operands of products. Initializers of the model may be replaced by arrays.
    #[new]
    #[pyo3(signature = (model, threads = 0, bf16 = false, initializers = vec![]))]
    fn new(
        py: Python<'_>,
        model: &Bound<'_, PyAny>,
        threads: usize,
        bf16: bool,
        initializers: Vec<(String, Bound<'_, PyAny>)>,
    ) -> PyResult<Session> {
        let tensor = |(name, value): (String, Bound<'_, PyAny>)| {
            let array = BorrowedArray::of(&value)?;
            let TensorRef { dtype, dims, data } = array.tensor();
            let tensor = Tensor::from_bytes(dtype, dims, data.to_vec());
            Ok((name, tensor.map_err(|error| errors::raised(py, &error))?.into()))
        };
        let tensors = initializers.into_iter().map(tensor).collect::<PyResult<_>>()?;
        let file = model_file(model)?.with_tensors(tensors);
        let load = || {
            let compiler = compilers::compiler(Setting { threads, bf16 })?;
            let model = file.load(&compiler)?;
            model.prepare()?;
            let signature = ModelSignature::of(&file, &model)?;
            Ok((compiler, model, signature))
        };
        let (compiler, model, signature) =
            signals::interruptible(py, load)?.map_err(|error| errors::raised(py, &error))?;
        let (model, signature) = (RwLock::new(Arc::new(model)), Py::new(py, signature)?);
        Ok(Session { file, compiler, model, overriding: Mutex::default(), signature })
    }

    #[getter]
    fn signature(&self, py: Python<'_>) -> Py<ModelSignature> {
        self.signature.clone_ref(py)
    }

    /// Runs on arrays by name; returns the outputs of the given names, all if there are none, as arrays. Ends early once `stop` is set.
    #[pyo3(signature = (outputs, feeds, stop = None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        outputs: Option<&Bound<'py, PyAny>>,
        feeds: &Bound<'py, PyAny>,
        stop: Option<&StopFlag>,
    ) -> PyResult<Bound<'py, PyList>> {
        let signature = self.signature.get();
        let wanted = outputs.map(|names| wanted(names, &signature.outputs)).transpose()?.unwrap_or_default();
        let inputs = inputs_of(signature, feeds)?;
        let model = match &inputs {
            Cow::Borrowed(_) => self.model(),
            Cow::Owned(all) => self.overriding(py, &all[signature.inputs.len()..])?,
        };
        let run = Run { model: &model, inputs: &inputs, stop };
        if model.has_lists() || signature.has_lists() {
            return self.run_lists(py, &run, &wanted, feeds);
        }
        let feeds = feeds_of(feeds, &inputs)?;
        check_feeds(py, &feeds, &inputs)?;
        let Some(arrays) = numbers(&feeds)?.filter(|_| !model.takes_or_gives_texts()) else {
            let arrays = owned(py, &feeds)?;
            let results = self.done(py, signals::stoppable(py, stop, || model.run_arrays(&arrays)))?;
            return chosen(py, results.iter().map(|(_, array)| array_of(py, array)), &wanted);
        };
        let results = self.done(py, signals::stoppable(py, stop, || model.run_on(&arrays)))?;
        chosen(py, results.into_iter().map(|output| numpy_array(py, output)), &wanted)
    }
}

/// A run, and what it is to look at.
struct Run<'a> {
    model: &'a Model,
    inputs: &'a [StatedValue],
    stop: Option<&'a StopFlag>,
}

impl Session {
    fn model(&self) -> Arc<Model> {
        self.model.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The result of work on the model, which may have ended early.
    fn done<T>(&self, py: Python<'_>, result: PyResult<Result<T, Error>>) -> PyResult<T> {
        match result {
            Ok(done) => done.map_err(|error| errors::raised(py, &error)),
            Err(raised) => {
                self.load_again();
                Err(raised)
            }
        }
    }

    /// The model of which these inputs are given, though it has values for them.
    fn overriding(&self, py: Python<'_>, given: &[StatedValue]) -> PyResult<Arc<Model>> {
        let names: BTreeSet<String> = given.iter().map(|stated| stated.name.clone()).collect();
        let known = || self.overriding.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = known().get(&names) {
            return Ok(model.clone());
        }
        let load = || self.file.with_inputs(names.clone()).load(&self.compiler);
        let model = signals::interruptible(py, load)?.map_err(|error| errors::raised(py, &error))?;
        Ok(known().entry(names).or_insert(model.into()).clone())
    }

    /// Forgets what was compiled: a compilation that was interrupted takes the model for one that cannot be compiled for many shapes.
    fn load_again(&self) {
        self.overriding.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if let Ok(model) = self.file.load(&self.compiler) {
            *self.model.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(model);
        }
    }

    /// Of a model with inputs or outputs that are sequences, which are lists of arrays, optional, which may be `None`, or maps, which are
    /// dictionaries.
    fn run_lists<'py>(
        &self,
        py: Python<'py>,
        &Run { model, inputs, stop }: &Run<'_>,
        wanted: &[usize],
        feeds: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let signature = self.signature.get();
        let mut given = vec![];
        for (name, value) in items(feeds)? {
            let stated = inputs.iter().find(|input| name == *input.name);
            match stated {
                Some(input) if input.kind.contains("seq(") && !value.is_none() => {
                    for (at, element) in value.try_iter()?.enumerate() {
                        let element = feed(&element?, input.kind.contains(TEXTS))?.owned(py)?;
                        given.push((format!("{name}[{at}]"), element));
                    }
                }
                _ if value.is_none() => {}
                Some(input) if input.kind.starts_with("map(") => {
                    given.extend(map_parts(name.to_str()?, &value, &input.kind)?)
                }
                _ => {
                    let is_text = stated.is_some_and(|input| input.kind.contains(TEXTS));
                    given.push((name.to_string(), feed(&value, is_text)?.owned(py)?));
                }
            }
        }
        let inputs: Vec<(&str, Array)> = given.iter().map(|(name, array)| (name.as_str(), array.clone())).collect();
        let results = self.done(py, signals::stoppable(py, stop, || model.run_arrays(&inputs)))?;
        let all = PyList::empty(py);
        for output in &signature.outputs {
            let elements = results.iter().filter(|(name, _)| is_element(name, &output.name));
            let arrays = elements.map(|(_, array)| array_of(py, array)).collect::<PyResult<Vec<_>>>()?;
            let keys = model.texts().and_then(|texts| texts.map_keys(&output.name));
            match (output.kind.contains("seq("), keys, &arrays[..]) {
                (true, Some(keys), [values]) => all.append(dictionaries(values, keys)?)?,
                (true, ..) => all.append(arrays)?,
                (false, ..) => all.append(arrays.into_iter().next())?,
            }
        }
        match wanted {
            [] => Ok(all),
            some => PyList::new(py, some.iter().map(|at| all.get_item(*at)).collect::<PyResult<Vec<_>>>()?),
        }
    }
}

/// Whether a result is an output of this name or one of its elements, `name[0]`, `name[1]`, ….
fn is_element(result: &str, output: &str) -> bool {
    result.strip_prefix(output).is_some_and(|rest| rest.is_empty() || rest.starts_with('[') && rest.ends_with(']'))
}

/// The model that an object of Python names or holds.
///
/// # Errors
/// It is neither a path nor bytes.
pub fn model_file(model: &Bound<'_, PyAny>) -> PyResult<ModelFile> {
    if let Ok(bytes) = model.cast::<PyBytes>() {
        return Ok(ModelFile::memory(Bytes::from_owner(PyBackedBytes::from(bytes.clone()))));
    }
    match model.extract::<PathBuf>() {
        Ok(path) => Ok(ModelFile::path(path)),
        Err(_) => Err(PyTypeError::new_err(format!("Unable to load from type '{}'", model.get_type()))),
    }
}

/// The inputs of a run: those without a value in the model, and the others that are given a value; these are owned, and last.
fn inputs_of<'s>(signature: &'s ModelSignature, feeds: &Bound<'_, PyAny>) -> PyResult<Cow<'s, [StatedValue]>> {
    let ModelSignature { inputs, overridable, .. } = signature;
    if overridable.is_empty() {
        return Ok(Cow::Borrowed(inputs));
    }
    // Old models list all weights as inputs: they are gone through only for names that are not inputs anyway.
    let mut given = items(feeds)?;
    given.retain(|(name, value)| !value.is_none() && !inputs.iter().any(|input| *name == *input.name));
    let is_given = |stated: &&StatedValue| given.iter().any(|(name, _)| *name == *stated.name);
    let overridden: Vec<StatedValue> =
        overridable.iter().filter(|_| !given.is_empty()).filter(is_given).cloned().collect();
    match overridden.is_empty() {
        true => Ok(Cow::Borrowed(inputs)),
        false => Ok(Cow::Owned(inputs.iter().cloned().chain(overridden).collect())),
    }
}

/// The positions of outputs.
fn wanted(names: &Bound<'_, PyAny>, outputs: &[StatedValue]) -> PyResult<Vec<usize>> {
    if names.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("names of outputs are a list"));
    }
    let one = |name: PyResult<Bound<'_, PyAny>>| {
        let name = name?;
        let name = name.cast::<PyString>()?;
        let found = outputs.iter().position(|output| *name == *output.name);
        found.ok_or_else(|| Class::InvalidArgument.error(name.py(), &format!("Invalid output name:{name}"), None))
    };
    names.try_iter()?.map(one).collect()
}

/// Names and values of a dictionary, or of another mapping.
fn items<'py>(feeds: &Bound<'py, PyAny>) -> PyResult<Vec<(Bound<'py, PyString>, Bound<'py, PyAny>)>> {
    if let Ok(feeds) = feeds.cast::<PyDict>() {
        return feeds.iter().map(|(name, value)| Ok((name.cast_into::<PyString>()?, value))).collect();
    }
    let pair = |item: PyResult<Bound<'py, PyAny>>| {
        let (name, value) = item?.extract::<(Bound<'py, PyAny>, Bound<'py, PyAny>)>()?;
        Ok((name.cast_into::<PyString>()?, value))
    };
    feeds.call_method0("items")?.try_iter()?.map(pair).collect()
}

fn feeds_of<'py>(feeds: &Bound<'py, PyAny>, inputs: &[StatedValue]) -> PyResult<Vec<Feed<'py>>> {
    let items = items(feeds)?;
    let given = |input: &&StatedValue| !items.iter().any(|(name, value)| *name == *input.name && !value.is_none());
    let missing: Vec<&str> = inputs.iter().filter(given).map(|input| input.name.as_str()).collect();
    if !missing.is_empty() {
        let names: Vec<String> = items.iter().map(|(name, _)| format!("'{name}'")).collect();
        let missing: Vec<String> = missing.iter().map(|name| format!("'{name}'")).collect();
        return Err(PyValueError::new_err(format!(
            "Required inputs ([{}]) are missing from input feed ([{}]).",
            missing.join(", "),
            names.join(", ")
        )));
    }
    let one = |(name, value): (Bound<'py, PyString>, Bound<'py, PyAny>)| match array_for(&name, &value, inputs) {
        Ok(array) => Ok((name, array)),
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
            let expected = inputs.iter().find(|input| name == *input.name).map_or("", |input| &input.kind);
            let message = error.value(value.py());
            let message = format!("Unexpected input data type. Input `{name}`: {message} , expected: ({expected})");
            Err(Class::InvalidArgument.error(value.py(), &message, None))
        }
        Err(error) => Err(error),
    };
    items.into_iter().map(one).collect()
}

/// The elements of an array, or of lists of numbers or texts, which become elements of the type that the model states.
fn array_for(name: &Bound<'_, PyString>, value: &Bound<'_, PyAny>, inputs: &[StatedValue]) -> PyResult<FeedValue> {
    let is_list = value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>();
    let stated = inputs.iter().find(|input| *name == *input.name);
    if let Some(stated) = stated.filter(|stated| !stated.is_text() && is_text_array(value)) {
        return Err(other_type(value.py(), TEXTS, stated));
    }
    let dtype = stated.and_then(|input| input.dtype);
    let array = match dtype.filter(|_| is_list) {
        Some(dtype) => {
            let py = value.py();
            let numbers = py.import("numpy")?.call_method1("asarray", (value, element::numpy_dtype(py, dtype)?))?;
            BorrowedArray::of(&numbers)
        }
        None => match feed(value, stated.is_some_and(StatedValue::is_text))? {
            FeedValue::Numbers(array) => Ok(array),
            texts @ FeedValue::Texts(_) => return Ok(texts),
        },
    };
    Ok(FeedValue::Numbers(array?.read_as(dtype)?))
}

/// A value for an input, which may be texts.
fn feed(value: &Bound<'_, PyAny>, is_text: bool) -> PyResult<FeedValue> {
    match if is_text { texts_of(value)? } else { None } {
        Some(texts) => Ok(FeedValue::Texts(texts)),
        None => BorrowedArray::of(value).map(FeedValue::Numbers),
    }
}

/// That an array is of another type than an input.
fn other_type(py: Python<'_>, actual: &str, stated: &StatedValue) -> PyErr {
    let (expected, name) = (&stated.kind, &stated.name);
    let message = format!("Unexpected input data type. Actual: ({actual}) , expected: ({expected}) for input: {name}");
    Class::InvalidArgument.error(py, &message, None)
}

/// Whether arrays have the types and shapes that the model states.
fn check_feeds(py: Python<'_>, feeds: &[Feed<'_>], inputs: &[StatedValue]) -> PyResult<()> {
    let invalid = |message: String| Err(Class::InvalidArgument.error(py, &message, None));
    for (name, value) in feeds {
        let Some(stated) = inputs.iter().find(|input| *name == *input.name) else {
            return invalid(format!("Invalid input name: {name}"));
        };
        let is_other = match value {
            FeedValue::Numbers(array) => stated.is_text() || stated.dtype.is_some_and(|dtype| dtype != array.dtype()),
            FeedValue::Texts(_) => !stated.is_text(),
        };
        if is_other {
            return Err(other_type(py, &value.kind(), stated));
        }
        if let Some(problem) = stated.shape.as_ref().and_then(|shape| misfit(name, value.dims(), shape)) {
            return invalid(format!("{problem} Please fix either the inputs/outputs or the model."));
        }
    }
    Ok(())
}

/// What is wrong with the shape of an array for an input.
fn misfit(name: &Bound<'_, PyString>, dims: &[u64], stated: &[StatedExtent]) -> Option<String> {
    if dims.len() != stated.len() {
        let (found, expected) = (dims.len(), stated.len());
        return Some(format!("Invalid rank for input: {name} Got: {found} Expected: {expected}"));
    }
    let differs = |(at, (found, expected)): (usize, (&u64, &StatedExtent))| match expected {
        StatedExtent::Number(expected) if *found != *expected as u64 => {
            Some(format!(" index: {at} Got: {found} Expected: {expected}\n"))
        }
        _ => None,
    };
    let wrong: String = dims.iter().zip(stated).enumerate().filter_map(differs).collect();
    let begin = || format!("Got invalid dimensions for input: {name} for the following indices\n");
    (!wrong.is_empty()).then(|| begin() + &wrong)
}

/// The tensors of feeds, if all are numbers.
fn numbers<'f>(feeds: &'f [Feed<'_>]) -> PyResult<Option<Vec<(&'f str, TensorRef<'f>)>>> {
    let one = |(name, value): &'f Feed<'_>| match value {
        FeedValue::Numbers(array) => Some(name.to_str().map(|name| (name, array.tensor()))),
        FeedValue::Texts(_) => None,
    };
    feeds.iter().map(one).collect::<Option<PyResult<Vec<_>>>>().transpose()
}

/// Copies of feeds.
fn owned<'f>(py: Python<'_>, feeds: &'f [Feed<'_>]) -> PyResult<Vec<(&'f str, Array)>> {
    feeds.iter().map(|(name, value)| Ok((name.to_str()?, value.owned(py)?))).collect()
}

/// Results as arrays: those at some positions, or all.
fn chosen<'py>(
    py: Python<'py>,
    results: impl Iterator<Item = PyResult<Bound<'py, PyAny>>>,
    wanted: &[usize],
) -> PyResult<Bound<'py, PyList>> {
    let all = results.collect::<PyResult<Vec<_>>>()?;
    match wanted {
        [] => PyList::new(py, all),
        some => PyList::new(py, some.iter().filter_map(|at| all.get(*at))),
    }
}
