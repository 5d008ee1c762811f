//! Attributes of nodes to parameters of operators, and constants given by attributes.

use tensorc_ir::params::{ParamKind, ParamValue};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, TensorData};

use super::error::{OnnxError, TensorSite, describe_node};
use super::external::ExternalFiles;
use super::proto::{AttributeProto, AttributeType, NodeProto, SparseTensorProto, TensorProto};
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
    external: &mut ExternalFiles,
) -> Result<Result<ParamValue, String>, OnnxError> {
    use AttributeType as A;
    let Some(given) = attribute.kind() else { return Ok(Err("its type is not defined by ONNX".to_owned())) };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| "it is not UTF-8 text".to_owned());
    Ok(match (kind, given) {
        (ParamKind::Int, A::Int) => Ok(ParamValue::Int(attribute.i())),
        (ParamKind::Bool, A::Int) => Ok(ParamValue::Bool(attribute.i() != 0)),
        (ParamKind::Float, A::Float) => Ok(ParamValue::Float(attribute.f().into())),
        (ParamKind::Float, A::Int) => Ok(ParamValue::Float(attribute.i() as f64)),
        (ParamKind::Str | ParamKind::Choice(_), A::String) => text(attribute.s()).map(ParamValue::Str),
        (ParamKind::DType, A::Int) => data_type(attribute.i()).map(ParamValue::DType),
        (ParamKind::Ints, A::Ints) => Ok(ParamValue::Ints(attribute.ints.clone())),
        (ParamKind::Ints, A::Int) => Ok(ParamValue::Ints(vec![attribute.i()])),
        // An empty list may have lost its type.
        (ParamKind::Floats, A::Ints) if attribute.ints.is_empty() => Ok(ParamValue::Floats(vec![])),
        (ParamKind::Strs, A::Ints) if attribute.ints.is_empty() => Ok(ParamValue::Strs(vec![])),
        (ParamKind::Floats, A::Floats) => {
            Ok(ParamValue::Floats(attribute.floats.iter().map(|&f| f64::from(f)).collect()))
        }
        (ParamKind::Strs, A::Strings) => {
            attribute.strings.iter().map(|s| text(s)).collect::<Result<_, _>>().map(ParamValue::Strs)
        }
        (ParamKind::Tensor, A::Tensor) => {
            dense(attribute.t.as_ref().unwrap_or(&TensorProto::default()), site, external)?.map(ParamValue::Tensor)
        }
        (kind, given) => Err(format!("it is of type {}, expected {}", given.name(), kind.name())),
    })
}

/// The value of a `Constant` node; the inner error says why it is not supported.
///
/// # Errors
/// The data of its tensor is wrong.
pub fn constant(node: &NodeProto, external: &mut ExternalFiles) -> Result<Result<TensorData, String>, OnnxError> {
    let [attribute] = node.attribute.as_slice() else {
        return Ok(Err("it needs exactly one attribute".to_owned()));
    };
    let name = attribute.name();
    let site = TensorSite::Attribute { node: describe_node(node), name: name.to_owned() };
    Ok(match name {
        "value" => dense(attribute.t.as_ref().unwrap_or(&TensorProto::default()), site, external)?,
        "sparse_value" => {
            let default = SparseTensorProto::default();
            let proto = attribute.sparse_tensor.as_ref().unwrap_or(&default);
            supported(read_sparse_tensor(proto, site, external))?
        }
        "value_int" => Ok(TensorData::scalar(Scalar::i64(attribute.i()))),
        "value_float" => Ok(TensorData::scalar(Scalar::f32(attribute.f()))),
        "value_ints" => Ok(list(DType::I64, attribute.ints.len(), |i| Scalar::i64(attribute.ints[i]))),
        "value_floats" => Ok(list(DType::F32, attribute.floats.len(), |i| Scalar::f32(attribute.floats[i]))),
        _ => Err(format!("attribute `{name}` is not supported")),
    })
}

fn list(dtype: DType, len: usize, element: impl Fn(usize) -> Scalar) -> TensorData {
    TensorData::from_fn(DenseType::new(dtype, &[len as u64]), |i| element(i as usize))
}

fn dense(
    proto: &TensorProto,
    site: TensorSite,
    external: &mut ExternalFiles,
) -> Result<Result<TensorData, String>, OnnxError> {
    supported(read_tensor(proto, site, external))
}

/// Tells what tensorc does not support from what is wrong.
fn supported(tensor: Result<TensorData, OnnxError>) -> Result<Result<TensorData, String>, OnnxError> {
    match tensor {
        Ok(data) => Ok(Ok(data)),
        Err(OnnxError::Tensor { problem, .. }) if problem.is_unsupported() => Ok(Err(problem.to_string())),
        Err(error) => Err(error),
    }
}

fn data_type(code: i64) -> Result<DType, String> {
    let code = i32::try_from(code).map_err(|_| format!("element type {code} is not defined"))?;
    element_type(code).map_err(|p| p.to_string())
}
