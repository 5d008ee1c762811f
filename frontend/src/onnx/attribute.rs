//! Attributes of nodes to parameters of operators, and constants given by attributes.

use tensorc_ir::params::{ParamKind, ParamValue};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, TensorData};

use super::error::{OnnxError, TensorSite, describe_node};
use super::files::ModelFiles;
use super::proto::{AttributeProto, AttributeType, NodeProto, TensorProto};
use super::tensor::{element_type, read_sparse_tensor, read_tensor};

/// An attribute as a parameter of the kind an operator declares; the inner error says why it is
/// none.
///
/// # Errors
/// The attribute is a tensor whose data is wrong.
pub fn parameter(
    attribute: &AttributeProto,
    kind: ParamKind,
    site: TensorSite,
    files: &mut ModelFiles,
) -> Result<Result<ParamValue, String>, OnnxError> {
    Ok(match kind {
        ParamKind::Int => int(attribute).map(ParamValue::Int),
        ParamKind::Bool => int(attribute).map(|i| ParamValue::Bool(i != 0)),
        ParamKind::Float => float(attribute).map(ParamValue::Float),
        ParamKind::Str | ParamKind::Choice(_) => text(attribute).map(ParamValue::Str),
        ParamKind::DType => int(attribute).and_then(data_type).map(ParamValue::DType),
        ParamKind::Ints => ints(attribute).map(ParamValue::Ints),
        ParamKind::Floats => {
            floats(attribute).map(|list| ParamValue::Floats(list.into_iter().map(f64::from).collect()))
        }
        ParamKind::Strs => texts(attribute).map(ParamValue::Strs),
        ParamKind::Tensor => match (attribute.kind(), &attribute.t) {
            (Some(AttributeType::Tensor), Some(proto)) => dense(proto, site, files)?.map(ParamValue::Tensor),
            _ => Err(other_type(attribute, kind.name())),
        },
    })
}

fn other_type(attribute: &AttributeProto, expected: &str) -> String {
    let given = attribute.kind().map_or("not defined", AttributeType::name);
    format!("it is of type {given}, expected {expected}")
}

/// The value of an attribute that is an integer.
///
/// # Errors
/// What it is instead.
pub(super) fn int(attribute: &AttributeProto) -> Result<i64, String> {
    match attribute.kind() {
        Some(AttributeType::Int) => Ok(attribute.i()),
        _ => Err(other_type(attribute, "int")),
    }
}

/// The value of an attribute that is a number.
///
/// # Errors
/// What it is instead.
pub(super) fn float(attribute: &AttributeProto) -> Result<f64, String> {
    match attribute.kind() {
        Some(AttributeType::Float) => Ok(attribute.f().into()),
        Some(AttributeType::Int) => Ok(attribute.i() as f64),
        _ => Err(other_type(attribute, "float")),
    }
}

/// The value of an attribute that is a text.
///
/// # Errors
/// What it is instead.
pub(super) fn text(attribute: &AttributeProto) -> Result<String, String> {
    match attribute.kind() {
        Some(AttributeType::String) => utf8(attribute.s()),
        _ => Err(other_type(attribute, "text")),
    }
}

fn utf8(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| "it is not UTF-8 text".to_owned())
}

/// The value of an attribute that is a list of integers, or one.
///
/// # Errors
/// What it is instead.
pub(super) fn ints(attribute: &AttributeProto) -> Result<Vec<i64>, String> {
    match attribute.kind() {
        Some(AttributeType::Ints) => Ok(attribute.ints.clone()),
        Some(AttributeType::Int) => Ok(vec![attribute.i()]),
        _ => Err(other_type(attribute, "list of ints")),
    }
}

/// The value of an attribute that is a list of numbers; an empty one may have lost its type.
///
/// # Errors
/// What it is instead.
pub(super) fn floats(attribute: &AttributeProto) -> Result<Vec<f32>, String> {
    match attribute.kind() {
        Some(AttributeType::Floats) => Ok(attribute.floats.clone()),
        Some(AttributeType::Ints) if attribute.ints.is_empty() => Ok(vec![]),
        _ => Err(other_type(attribute, "list of floats")),
    }
}

/// The value of an attribute that is a list of texts; an empty one may have lost its type.
///
/// # Errors
/// What it is instead.
pub(super) fn texts(attribute: &AttributeProto) -> Result<Vec<String>, String> {
    match attribute.kind() {
        Some(AttributeType::Strings) => attribute.strings.iter().map(|s| utf8(s)).collect(),
        Some(AttributeType::Ints) if attribute.ints.is_empty() => Ok(vec![]),
        _ => Err(other_type(attribute, "list of texts")),
    }
}

/// The value of a `Constant` node; the inner error says why it is not supported.
///
/// # Errors
/// The data of its tensor is wrong.
pub fn constant(node: &NodeProto, files: &mut ModelFiles) -> Result<Result<TensorData, String>, OnnxError> {
    let [attribute] = node.attribute.as_slice() else {
        return Ok(Err("it needs exactly one attribute".to_owned()));
    };
    let name = attribute.name();
    let site = TensorSite::Attribute { node: describe_node(node), name: name.to_owned() };
    let one = |value: Result<Scalar, String>| value.map(TensorData::scalar);
    let value = match name {
        "value" => match &attribute.t {
            Some(proto) => dense(proto, site, files)?,
            None => Err(other_type(attribute, "tensor")),
        },
        "sparse_value" => match &attribute.sparse_tensor {
            Some(proto) => supported(read_sparse_tensor(proto, site, files))?,
            None => Err(other_type(attribute, "sparse tensor")),
        },
        "value_int" => one(int(attribute).map(Scalar::i64)),
        "value_float" => one(float(attribute).map(|f| Scalar::f32(f as f32))),
        "value_ints" => ints(attribute).map(|v| list(DType::I64, v.len(), |i| Scalar::i64(v[i]))),
        "value_floats" => floats(attribute).map(|v| list(DType::F32, v.len(), |i| Scalar::f32(v[i]))),
        _ => return Ok(Err(format!("attribute `{name}` is not supported"))),
    };
    Ok(value.map_err(|why| format!("attribute `{name}`: {why}")))
}

fn list(dtype: DType, len: usize, element: impl Fn(usize) -> Scalar) -> TensorData {
    TensorData::from_fn(DenseType::new(dtype, [len as u64]), |i| element(i as usize))
}

fn dense(
    proto: &TensorProto,
    site: TensorSite,
    files: &mut ModelFiles,
) -> Result<Result<TensorData, String>, OnnxError> {
    supported(read_tensor(proto, site, files))
}

/// Tells what tensorc does not support from what is wrong.
fn supported(tensor: Result<TensorData, OnnxError>) -> Result<Result<TensorData, String>, OnnxError> {
    match tensor {
        Ok(data) => Ok(Ok(data)),
        Err(OnnxError::Tensor { problem, .. }) if problem.is_unsupported() => Ok(Err(problem.to_string())),
        Err(error) => Err(error),
    }
}

/// The element type with a code of ONNX.
///
/// # Errors
/// It is not defined or not supported.
pub(super) fn data_type(code: i64) -> Result<DType, String> {
    let code = i32::try_from(code).map_err(|_| format!("element type {code} is not defined"))?;
    element_type(code).map_err(|p| p.to_string())
}
