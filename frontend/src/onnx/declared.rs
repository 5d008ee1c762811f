//! The types that a model states of its values, compared with those that follow.
//!
//! A declared type may be less precise than the inferred one: unknown shape, symbolic extents. It is an error if the element
//! types, the ranks, or two constant extents differ.

use std::collections::BTreeMap;
use std::fmt::Write;

use tensorc_abi::DType;
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::{Dim, Shape, TensorType};

use super::error::OnnxError;
use super::meaning::Meaning;
use super::proto::{DataType, DimensionValue, ElementTypeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto};
use super::tensor::{element_name, element_type};

/// Types that a model states, by name of the value.
#[derive(Debug, Default)]
pub(super) struct Declarations(Vec<(&'static str, ValueInfoProto)>);

impl Declarations {
    /// Adds what the model states of values of some kind.
    pub(super) fn add(&mut self, what: &'static str, values: &[ValueInfoProto]) {
        self.0.extend(values.iter().filter(|v| v.r#type.is_some()).map(|v| (what, v.clone())));
    }

    /// Number of statements.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets all but the first.
    pub(super) fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Compares with the types of a graph; without `shapes`, element types alone: the extents of inputs may be others than the
    /// model was written for.
    ///
    /// # Errors
    /// The first contradiction.
    pub(super) fn compare(
        &self,
        graph: &Graph,
        values: &BTreeMap<String, Meaning>,
        shapes: bool,
    ) -> Result<(), OnnxError> {
        for (what, info) in &self.0 {
            let Some(value) = values.get(info.name()).and_then(Meaning::tensor) else { continue };
            let Some(declared) = info.r#type.as_ref().and_then(|t| t.value.as_ref()) else { continue };
            let found = graph.resolved(value);
            if contradicts(declared, &found, shapes) {
                return Err(OnnxError::Declared {
                    what,
                    value: info.name().to_owned(),
                    declared: describe(declared),
                    by: describe_origin(graph, value),
                    found: describe_found(graph, &found),
                });
            }
        }
        Ok(())
    }
}

/// Whether a value of the one type cannot be of the other.
fn contradicts(declared: &TypeValue, found: &TensorType, shapes: bool) -> bool {
    match declared {
        TypeValue::Tensor(tensor) => {
            other_element(tensor.elem_type(), found.dtype) || (shapes && other_shape(tensor, &found.shape))
        }
        // An optional that is there is its element.
        TypeValue::Optional(element) => match element.elem_type.as_deref() {
            Some(TypeProto { value: Some(inner) }) => contradicts(inner, found, shapes),
            _ => false,
        },
        // Of maps with the same keys, a tensor holds the values.
        TypeValue::Sequence(element) if is_map(element) => false,
        TypeValue::Sequence(_) | TypeValue::Map(_) | TypeValue::Opaque(_) | TypeValue::SparseTensor(_) => true,
    }
}

fn is_map(element: &ElementTypeProto) -> bool {
    let inner = element.elem_type.as_deref().and_then(|ty| ty.value.as_ref());
    matches!(inner, Some(TypeValue::Map(_)))
}

/// A code of 0 states nothing. Texts are numbers.
fn other_element(code: i32, found: Option<DType>) -> bool {
    let texts = code == DataType::String as i32 && found == Some(DType::I64);
    code != 0 && !texts && found.is_some_and(|found| element_type(code).ok() != Some(found))
}

fn other_shape(declared: &TensorTypeProto, found: &Shape) -> bool {
    let (Some(declared), Some(found)) = (&declared.shape, found.dims()) else { return false };
    let other = |declared: &Option<DimensionValue>, found: &Dim| match (declared, found) {
        // Writers put negative numbers for extents that they do not know.
        (Some(DimensionValue::Value(n)), Dim::Const(m)) => u64::try_from(*n).is_ok_and(|n| n != *m),
        _ => false,
    };
    declared.dim.len() != found.len() || declared.dim.iter().zip(found).any(|(d, f)| other(&d.value, f))
}

fn describe(declared: &TypeValue) -> String {
    let TypeValue::Tensor(tensor) = declared else { return format!("a {}", declared.describe()) };
    let element = element_name(tensor.elem_type());
    let Some(shape) = &tensor.shape else { return element };
    let dims = shape.dim.iter().map(|d| match &d.value {
        Some(DimensionValue::Value(n)) if *n >= 0 => n.to_string(),
        Some(DimensionValue::Param(name)) if !name.is_empty() => name.clone(),
        _ => "?".to_owned(),
    });
    format!("{element}[{}]", dims.collect::<Vec<_>>().join(", "))
}

/// What makes a value: a node, by its name in the model, or a constant.
fn describe_origin(graph: &Graph, value: Value) -> String {
    let node = graph.node(value.node);
    match &node.kind {
        NodeKind::Op(op) => format!("node `{}` ({})", node.name, op.def.name),
        NodeKind::Const(_) => format!("the data of `{}`", node.name),
        _ => format!("`{}`", node.name),
    }
}

fn describe_found(graph: &Graph, found: &TensorType) -> String {
    let mut text = found.dtype.map_or("?", DType::name).to_owned();
    if let Some(dims) = found.shape.dims() {
        let dims: Vec<String> = dims.iter().map(|d| graph.dims.display(*d)).collect();
        let _ = write!(text, "[{}]", dims.join(", "));
    }
    text
}
