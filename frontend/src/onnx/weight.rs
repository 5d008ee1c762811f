//! Bytes that copies of nodes take. Texts and raw data of attributes are shared among copies; names and lists are not.

use bytes::Bytes;

use super::proto::{
    AttributeProto, Dimension, DimensionValue, GraphProto, NodeProto, SparseTensorProto, TensorProto, TypeProto,
    TypeValue, ValueInfoProto,
};

const STRING: usize = size_of::<String>();

/// Bytes of a node, with its attributes and the graphs in them.
pub(super) fn node_weight(node: &NodeProto) -> u64 {
    let names = node.input.iter().chain(&node.output).chain(&node.name).chain(&node.op_type).chain(&node.domain);
    let names: usize = names.map(|name| STRING + name.len()).sum();
    (size_of::<NodeProto>() + names) as u64 + node.attribute.iter().map(attribute).sum::<u64>()
}

fn attribute(a: &AttributeProto) -> u64 {
    let lists = 4 * a.floats.len() + 8 * a.ints.len() + size_of::<Bytes>() * a.strings.len();
    let tensors: u64 = a.t.iter().chain(&a.tensors).map(tensor).sum();
    let sparse: u64 = a.sparse_tensor.iter().chain(&a.sparse_tensors).map(sparse_tensor).sum();
    let graphs: u64 = a.g.iter().chain(&a.graphs).map(graph_weight).sum();
    let types: u64 = a.tp.iter().chain(&a.type_protos).map(value_type).sum();
    (size_of::<AttributeProto>() + lists + a.name().len()) as u64 + tensors + sparse + graphs + types
}

fn tensor(t: &TensorProto) -> u64 {
    let words = t.dims.len() + t.int64_data.len() + t.double_data.len() + t.uint64_data.len();
    let lists = 4 * (t.float_data.len() + t.int32_data.len()) + 8 * words + size_of::<Bytes>() * t.string_data.len();
    let texts: usize = t.external_data.iter().map(|e| 2 * STRING + e.key().len() + e.value().len()).sum();
    (size_of::<TensorProto>() + lists + texts + t.name().len()) as u64
}

fn sparse_tensor(s: &SparseTensorProto) -> u64 {
    let tensors: u64 = s.values.iter().chain(&s.indices).map(tensor).sum();
    (size_of::<SparseTensorProto>() + 8 * s.dims.len()) as u64 + tensors
}

/// Bytes of a graph.
pub(super) fn graph_weight(g: &GraphProto) -> u64 {
    let nodes: u64 = g.node.iter().map(node_weight).sum();
    let tensors: u64 = g.initializer.iter().map(tensor).sum();
    let sparse: u64 = g.sparse_initializer.iter().map(sparse_tensor).sum();
    let values: u64 = g.input.iter().chain(&g.output).chain(&g.value_info).map(value).sum();
    size_of::<GraphProto>() as u64 + nodes + tensors + sparse + values
}

fn value(v: &ValueInfoProto) -> u64 {
    (size_of::<ValueInfoProto>() + v.name().len()) as u64 + v.r#type.as_ref().map_or(0, value_type)
}

fn value_type(t: &TypeProto) -> u64 {
    let inner = match &t.value {
        Some(TypeValue::Tensor(tensor) | TypeValue::SparseTensor(tensor)) => {
            tensor.shape.iter().flat_map(|s| &s.dim).map(dimension).sum()
        }
        Some(TypeValue::Sequence(element) | TypeValue::Optional(element)) => {
            element.elem_type.as_deref().map_or(0, value_type)
        }
        Some(TypeValue::Map(map)) => map.value_type.as_deref().map_or(0, value_type),
        Some(TypeValue::Opaque(_)) | None => 0,
    };
    size_of::<TypeProto>() as u64 + inner
}

fn dimension(d: &Dimension) -> u64 {
    let name = match &d.value {
        Some(DimensionValue::Param(name)) => name.len(),
        Some(DimensionValue::Value(_)) | None => 0,
    };
    (size_of::<Dimension>() + name) as u64
}
