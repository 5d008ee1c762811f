//! What an ONNX model states of itself: inputs, outputs, metadata.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tensorc::ir::TensorData;
use tensorc::{Compiler, DType, Error, Model, Replacements};
use tensorc_frontend::onnx::proto::{DataType, DimensionValue, TypeProto, TypeValue, ValueInfoProto};
use tensorc_frontend::onnx::tensor::data_type;
use tensorc_frontend::onnx::{OnnxError, OnnxModel};

use crate::element;
use crate::texts::TEXTS;

/// Where a model comes from, and what is replaced in it.
#[derive(Clone)]
pub struct ModelFile {
    from: Origin,
    replacements: Replacements,
}

#[derive(Clone)]
enum Origin {
    Path(PathBuf),
    Memory(Bytes),
}

/// What messages call a model that comes from memory.
const IN_MEMORY: &str = "<model in memory>";

impl ModelFile {
    /// A file.
    pub fn path(path: PathBuf) -> ModelFile {
        ModelFile { from: Origin::Path(path), replacements: Replacements::default() }
    }

    /// The bytes of an ONNX model.
    pub fn memory(bytes: Bytes) -> ModelFile {
        ModelFile { from: Origin::Memory(bytes), replacements: Replacements::default() }
    }

    /// The same model with other tensors in place of initializers.
    pub fn with_tensors(self, tensors: Vec<(String, TensorData)>) -> ModelFile {
        ModelFile { replacements: Replacements { tensors, ..self.replacements }, ..self }
    }

    /// The same model, of which these inputs with a default value are given in each run.
    pub fn with_inputs(&self, inputs: BTreeSet<String>) -> ModelFile {
        ModelFile { replacements: Replacements { inputs, ..self.replacements.clone() }, ..self.clone() }
    }

    /// Reads what the model states of itself. Symbols of MXNet and texts of the IR have no more than names and types.
    ///
    /// # Errors
    /// It cannot be read, or is no ONNX model.
    fn proto(&self) -> Result<OnnxModel, Error> {
        let (path, opened) = match &self.from {
            Origin::Path(path) => (path.clone(), OnnxModel::open(path)),
            Origin::Memory(bytes) => (IN_MEMORY.into(), OnnxModel::decode(bytes.clone(), None)),
        };
        opened.map_err(|source: OnnxError| Error::Onnx { path, source: Box::new(source) })
    }

    /// Loads the model.
    ///
    /// # Errors
    /// As [`Compiler::load`].
    pub fn load(&self, compiler: &Compiler) -> Result<Model, Error> {
        match &self.from {
            Origin::Path(path) if !self.is_onnx() => compiler.load(path),
            Origin::Path(path) => compiler.load_replacing(path, &self.replacements),
            Origin::Memory(bytes) => compiler.load_bytes_replacing(IN_MEMORY, bytes.clone(), &self.replacements),
        }
    }

    fn is_onnx(&self) -> bool {
        let other = |path: &PathBuf| path.extension().is_some_and(|end| end == "tc" || end == "json");
        !matches!(&self.from, Origin::Path(path) if other(path))
    }
}

/// An extent as a model states it.
#[derive(Clone)]
pub enum StatedExtent {
    Number(i64),
    Name(String),
    Unknown,
}

/// A number, a name, or `None`.
impl<'py> IntoPyObject<'py> for &StatedExtent {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            StatedExtent::Number(extent) => extent.into_pyobject(py)?.into_any(),
            StatedExtent::Name(name) => name.into_pyobject(py)?.into_any(),
            StatedExtent::Unknown => py.None().into_bound(py),
        })
    }
}

/// An input or output as a model states it.
#[derive(Clone)]
pub struct StatedValue {
    pub name: String,
    /// What ONNX Runtime calls the type.
    pub kind: String,
    /// `None` if there are no elements, or elements of a type that tensors do not have.
    pub dtype: Option<DType>,
    /// `None` if not even their number is known.
    pub shape: Option<Vec<StatedExtent>>,
    /// Whether it is a sequence, optional, or a map.
    pub is_list: bool,
}

impl StatedValue {
    /// Whether it is a tensor of texts.
    pub fn is_text(&self) -> bool {
        self.kind == TEXTS
    }
}

/// Inputs, outputs and metadata of a model.
#[pyclass(frozen, module = "tensorc._tensorc")]
pub struct ModelSignature {
    pub inputs: Vec<StatedValue>,
    pub outputs: Vec<StatedValue>,
    /// Inputs with a value in the model.
    pub overridable: Vec<StatedValue>,
    texts: Vec<(&'static str, String)>,
    version: i64,
    custom: Vec<(String, String)>,
}

impl ModelSignature {
    /// What a model states.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(file: &ModelFile, model: &Model) -> Result<ModelSignature, Error> {
        if !file.is_onnx() {
            return Ok(ModelSignature::of_graph(model));
        }
        let OnnxModel { proto, graph, .. } = file.proto()?;
        let stored: BTreeSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
        let (overridable, inputs): (Vec<_>, Vec<_>) = graph.input.iter().partition(|info| stored.contains(info.name()));
        let all = |infos: Vec<&ValueInfoProto>| infos.into_iter().map(stated).collect();
        let inferred = model.outputs();
        let output = |info| completed(stated(info), &inferred);
        let texts = vec![
            ("producer_name", proto.producer_name().to_owned()),
            ("graph_name", graph.name().to_owned()),
            ("domain", proto.domain().to_owned()),
        ];
        let custom = proto.metadata_props.iter().map(|entry| (entry.key().to_owned(), entry.value().to_owned()));
        Ok(ModelSignature {
            inputs: all(inputs),
            outputs: graph.output.iter().map(output).collect(),
            overridable: all(overridable),
            texts,
            version: proto.model_version.unwrap_or(i64::MAX),
            custom: custom.collect(),
        })
    }

    /// Whether inputs or outputs are sequences, optional, or maps.
    pub fn has_lists(&self) -> bool {
        self.inputs.iter().chain(&self.outputs).any(|stated| stated.is_list)
    }

    /// Of a model in another format.
    fn of_graph(model: &Model) -> ModelSignature {
        let one = |(name, ty): (String, tensorc::ir::TensorType)| typed(name, &ty);
        ModelSignature {
            inputs: model.inputs().into_iter().map(one).collect(),
            outputs: model.outputs().into_iter().map(one).collect(),
            overridable: vec![],
            texts: vec![("graph_name", model.graph().name.to_string())],
            version: i64::MAX,
            custom: vec![],
        }
    }
}

#[pymethods]
impl ModelSignature {
    /// Triples of name, shape and type.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        listed(py, &self.inputs)
    }

    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        listed(py, &self.outputs)
    }

    #[getter]
    fn overridable<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        listed(py, &self.overridable)
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (key, value) in &self.texts {
            all.set_item(key, value)?;
        }
        all.set_item("version", self.version)?;
        let custom = PyDict::new(py);
        for (key, value) in &self.custom {
            custom.set_item(key, value)?;
        }
        all.set_item("custom_metadata_map", custom)?;
        Ok(all)
    }
}

fn listed<'py>(py: Python<'py>, values: &[StatedValue]) -> PyResult<Bound<'py, PyList>> {
    let all = PyList::empty(py);
    for value in values {
        all.append((&value.name, value.shape.as_ref(), &value.kind))?;
    }
    Ok(all)
}

fn stated(info: &ValueInfoProto) -> StatedValue {
    let value = info.r#type.as_ref().and_then(|ty| ty.value.as_ref());
    let (dtype, shape) = match value {
        Some(TypeValue::Tensor(tensor)) => {
            let shape = tensor.shape.as_ref();
            let extents = |shape: &tensorc_frontend::onnx::proto::TensorShapeProto| {
                shape.dim.iter().map(|dim| stated_extent(dim.value.as_ref())).collect()
            };
            (stated_dtype(tensor.elem_type()), shape.map(extents))
        }
        _ => (None, None),
    };
    let is_list = matches!(value, Some(TypeValue::Sequence(_) | TypeValue::Optional(_) | TypeValue::Map(_)));
    StatedValue { name: info.name().to_owned(), kind: kind(value), dtype, shape, is_list }
}

fn stated_extent(value: Option<&DimensionValue>) -> StatedExtent {
    match value {
        Some(DimensionValue::Value(extent)) if *extent >= 0 => StatedExtent::Number(*extent),
        Some(DimensionValue::Param(name)) if !name.is_empty() => StatedExtent::Name(name.clone()),
        _ => StatedExtent::Unknown,
    }
}

/// What ONNX Runtime calls a type: `tensor(float)`, `seq(tensor(int64))`.
fn kind(value: Option<&TypeValue>) -> String {
    let inner = |ty: Option<&TypeProto>| kind(ty.and_then(|ty| ty.value.as_ref()));
    match value {
        None => String::new(),
        Some(TypeValue::Tensor(tensor)) => match stated_dtype(tensor.elem_type()) {
            Some(dtype) => element::onnx_name(dtype),
            None => format!("tensor({})", other_element(tensor.elem_type())),
        },
        Some(TypeValue::Sequence(element)) => format!("seq({})", inner(element.elem_type.as_deref())),
        Some(TypeValue::Optional(element)) => format!("optional({})", inner(element.elem_type.as_deref())),
        Some(TypeValue::SparseTensor(tensor)) => match stated_dtype(tensor.elem_type()) {
            Some(dtype) => format!("sparse_{}", element::onnx_name(dtype)),
            None => format!("sparse_tensor({})", other_element(tensor.elem_type())),
        },
        Some(TypeValue::Map(map)) => {
            format!("map({},{})", other_element(map.key_type()), inner(map.value_type.as_deref()))
        }
        Some(TypeValue::Opaque(_)) => "opaque".to_owned(),
    }
}

fn stated_dtype(number: i32) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| data_type(*dtype) == number)
}

fn other_element(number: i32) -> String {
    DataType::try_from(number).map_or_else(|_| number.to_string(), |other| format!("{other:?}").to_lowercase())
}

/// A value of a graph.
fn typed(name: String, ty: &tensorc::ir::TensorType) -> StatedValue {
    let extents = |dims: &[tensorc::ir::Dim]| dims.iter().map(|dim| StatedExtent::of(*dim)).collect();
    let kind = ty.dtype.map(element::onnx_name).unwrap_or_default();
    StatedValue { name, kind, dtype: ty.dtype, shape: ty.shape.dims().map(extents), is_list: false }
}

impl StatedExtent {
    fn of(dim: tensorc::ir::Dim) -> StatedExtent {
        match dim.as_const() {
            Some(extent) => StatedExtent::Number(extent as i64),
            None => StatedExtent::Unknown,
        }
    }
}

/// An output with what follows from the model where it states nothing.
fn completed(stated: StatedValue, inferred: &[(String, tensorc::ir::TensorType)]) -> StatedValue {
    let Some((_, ty)) = inferred.iter().find(|(name, _)| *name == stated.name) else { return stated };
    let from_graph = typed(stated.name.clone(), ty);
    let kind = if stated.kind.is_empty() { from_graph.kind } else { stated.kind };
    let shape = completed_shape(stated.shape, from_graph.shape);
    StatedValue { kind, dtype: stated.dtype.or(from_graph.dtype), shape, ..stated }
}

/// The stated extents, with numbers that follow from the model where it states none.
fn completed_shape(
    stated: Option<Vec<StatedExtent>>,
    inferred: Option<Vec<StatedExtent>>,
) -> Option<Vec<StatedExtent>> {
    let (Some(stated), Some(inferred)) = (&stated, &inferred) else { return stated.or(inferred) };
    if stated.len() != inferred.len() {
        return Some(stated.clone());
    }
    let one = |(stated, inferred): (&StatedExtent, &StatedExtent)| match inferred {
        StatedExtent::Number(_) => inferred.clone(),
        _ => stated.clone(),
    };
    Some(stated.iter().zip(inferred).map(one).collect())
}
