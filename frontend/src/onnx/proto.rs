//! The ONNX messages as Rust structs, written by hand from the field numbers of the ONNX
//! specification (`onnx-ml.proto`), so that no protobuf compiler takes part in the build.
//!
//! Fields that nothing here reads (documentation strings, quantisation annotations, device
//! configurations, training graphs) are left out; the decoder skips them. Byte fields are
//! `Bytes`: decoded from a memory map they point into the map.

#![allow(missing_docs, reason = "fields and numbers are those of onnx.proto, which documents them")]

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    #[prost(int64, optional, tag = "1")]
    pub ir_version: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub producer_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub producer_version: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub domain: Option<String>,
    #[prost(int64, optional, tag = "5")]
    pub model_version: Option<i64>,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    #[prost(int64, optional, tag = "2")]
    pub version: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "13")]
    pub value_info: Vec<ValueInfoProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub op_type: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    #[prost(string, optional, tag = "7")]
    pub domain: Option<String>,
    #[prost(string, optional, tag = "8")]
    pub overload: Option<String>,
}

/// A subroutine local to the model, called like an operator.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionProto {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(string, repeated, tag = "4")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub output: Vec<String>,
    /// Names of attributes without a default.
    #[prost(string, repeated, tag = "6")]
    pub attribute: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
    #[prost(message, repeated, tag = "9")]
    pub opset_import: Vec<OperatorSetIdProto>,
    #[prost(string, optional, tag = "10")]
    pub domain: Option<String>,
    /// Attributes with a default.
    #[prost(message, repeated, tag = "11")]
    pub attribute_proto: Vec<AttributeProto>,
    #[prost(string, optional, tag = "13")]
    pub overload: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Inside a function body: take the value of this attribute of the call.
    #[prost(string, optional, tag = "21")]
    pub ref_attr_name: Option<String>,
    /// An [`AttributeType`].
    #[prost(int32, optional, tag = "20")]
    pub r#type: Option<i32>,
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub s: Option<Bytes>,
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    #[prost(message, optional, tag = "6")]
    pub g: Option<GraphProto>,
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub floats: Vec<f32>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<Bytes>,
    #[prost(message, repeated, tag = "10")]
    pub tensors: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub graphs: Vec<GraphProto>,
    #[prost(message, optional, tag = "14")]
    pub tp: Option<TypeProto>,
    #[prost(message, repeated, tag = "15")]
    pub type_protos: Vec<TypeProto>,
    #[prost(message, optional, tag = "22")]
    pub sparse_tensor: Option<SparseTensorProto>,
    #[prost(message, repeated, tag = "23")]
    pub sparse_tensors: Vec<SparseTensorProto>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum AttributeType {
    Undefined = 0,
    Float = 1,
    Int = 2,
    String = 3,
    Tensor = 4,
    Graph = 5,
    Floats = 6,
    Ints = 7,
    Strings = 8,
    Tensors = 9,
    Graphs = 10,
    SparseTensor = 11,
    SparseTensors = 12,
    TypeProto = 13,
    TypeProtos = 14,
}

impl GraphProto {
    /// The names of the values that it declares or stores.
    pub(super) fn value_names(&mut self) -> impl Iterator<Item = &mut Option<String>> {
        let infos = self.input.iter_mut().chain(&mut self.output).chain(&mut self.value_info).map(|i| &mut i.name);
        let sparse = self.sparse_initializer.iter_mut().filter_map(|s| s.values.as_mut());
        infos.chain(self.initializer.iter_mut().chain(sparse).map(|t| &mut t.name))
    }
}

impl NodeProto {
    /// A node of the standard domain with one result.
    pub(super) fn of(op: &str, inputs: &[&str], output: &str, name: Option<String>) -> NodeProto {
        NodeProto {
            input: inputs.iter().map(|s| (*s).to_owned()).collect(),
            output: vec![output.to_owned()],
            name,
            op_type: Some(op.to_owned()),
            ..NodeProto::default()
        }
    }

    /// The graphs within the node: branches and bodies.
    pub fn nested(&self) -> impl Iterator<Item = &GraphProto> {
        self.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs))
    }
}

impl AttributeProto {
    /// An attribute without its value.
    pub(super) fn of(name: &str, kind: AttributeType) -> AttributeProto {
        AttributeProto { name: Some(name.to_owned()), r#type: Some(kind as i32), ..AttributeProto::default() }
    }

    /// The declared type or, where a writer left it out, the type of the field that is set.
    ///
    /// `None` for a type that this version of the format does not define. An attribute without
    /// any value counts as an empty list of integers: writers drop the type only of old models,
    /// in which an empty list leaves no trace.
    pub fn kind(&self) -> Option<AttributeType> {
        match AttributeType::try_from(self.r#type.unwrap_or(0)) {
            Ok(AttributeType::Undefined) => Some(self.held().next().unwrap_or(AttributeType::Ints)),
            Ok(kind) => Some(kind),
            Err(_) => None,
        }
    }

    /// The types of the fields that are set; of an attribute that is right, at most one.
    pub fn held(&self) -> impl Iterator<Item = AttributeType> {
        let fields = [
            (self.f.is_some(), AttributeType::Float),
            (self.i.is_some(), AttributeType::Int),
            (self.s.is_some(), AttributeType::String),
            (self.t.is_some(), AttributeType::Tensor),
            (self.g.is_some(), AttributeType::Graph),
            (!self.floats.is_empty(), AttributeType::Floats),
            (!self.ints.is_empty(), AttributeType::Ints),
            (!self.strings.is_empty(), AttributeType::Strings),
            (!self.tensors.is_empty(), AttributeType::Tensors),
            (!self.graphs.is_empty(), AttributeType::Graphs),
            (self.sparse_tensor.is_some(), AttributeType::SparseTensor),
            (!self.sparse_tensors.is_empty(), AttributeType::SparseTensors),
            (self.tp.is_some(), AttributeType::TypeProto),
            (!self.type_protos.is_empty(), AttributeType::TypeProtos),
        ];
        fields.into_iter().filter(|(set, _)| *set).map(|(_, kind)| kind)
    }
}

impl AttributeType {
    /// What messages call it.
    pub const fn name(self) -> &'static str {
        match self {
            AttributeType::Undefined => "undefined",
            AttributeType::Float => "float",
            AttributeType::Int => "int",
            AttributeType::String => "string",
            AttributeType::Tensor => "tensor",
            AttributeType::Graph => "graph",
            AttributeType::Floats => "floats",
            AttributeType::Ints => "ints",
            AttributeType::Strings => "strings",
            AttributeType::Tensors => "tensors",
            AttributeType::Graphs => "graphs",
            AttributeType::SparseTensor => "sparse tensor",
            AttributeType::SparseTensors => "sparse tensors",
            AttributeType::TypeProto => "type",
            AttributeType::TypeProtos => "types",
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// A [`DataType`].
    #[prost(int32, optional, tag = "2")]
    pub data_type: Option<i32>,
    #[prost(message, optional, tag = "3")]
    pub segment: Option<Segment>,
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub string_data: Vec<Bytes>,
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    #[prost(string, optional, tag = "8")]
    pub name: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<Bytes>,
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// A [`DataLocation`].
    #[prost(int32, optional, tag = "14")]
    pub data_location: Option<i32>,
}

/// Part of a tensor stored in several pieces; no known writer makes them.
#[derive(Clone, PartialEq, Message)]
pub struct Segment {
    #[prost(int64, optional, tag = "1")]
    pub begin: Option<i64>,
    #[prost(int64, optional, tag = "2")]
    pub end: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum DataLocation {
    Default = 0,
    External = 1,
}

/// Element types of ONNX, those included that tensorc has no counterpart for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum DataType {
    Undefined = 0,
    Float = 1,
    Uint8 = 2,
    Int8 = 3,
    Uint16 = 4,
    Int16 = 5,
    Int32 = 6,
    Int64 = 7,
    String = 8,
    Bool = 9,
    Float16 = 10,
    Double = 11,
    Uint32 = 12,
    Uint64 = 13,
    Complex64 = 14,
    Complex128 = 15,
    Bfloat16 = 16,
    Float8e4m3fn = 17,
    Float8e4m3fnuz = 18,
    Float8e5m2 = 19,
    Float8e5m2fnuz = 20,
    Uint4 = 21,
    Int4 = 22,
    Float4e2m1 = 23,
    Float8e8m0 = 24,
    Uint2 = 25,
    Int2 = 26,
    Float6e2m3 = 27,
    Float6e3m2 = 28,
}

#[derive(Clone, PartialEq, Message)]
pub struct SparseTensorProto {
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
    #[prost(message, optional, tag = "2")]
    pub indices: Option<TensorProto>,
    #[prost(int64, repeated, packed = "false", tag = "3")]
    pub dims: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    #[prost(oneof = "TypeValue", tags = "1, 4, 5, 7, 8, 9")]
    pub value: Option<TypeValue>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum TypeValue {
    #[prost(message, tag = "1")]
    Tensor(TensorTypeProto),
    #[prost(message, tag = "4")]
    Sequence(Box<ElementTypeProto>),
    #[prost(message, tag = "5")]
    Map(Box<MapTypeProto>),
    #[prost(message, tag = "7")]
    Opaque(OpaqueTypeProto),
    #[prost(message, tag = "8")]
    SparseTensor(TensorTypeProto),
    #[prost(message, tag = "9")]
    Optional(Box<ElementTypeProto>),
}

impl TypeValue {
    /// What ONNX calls this kind of value.
    pub fn describe(&self) -> &'static str {
        match self {
            TypeValue::Tensor(_) => "tensor",
            TypeValue::Sequence(_) => "sequence",
            TypeValue::Map(_) => "map",
            TypeValue::Opaque(_) => "opaque value",
            TypeValue::SparseTensor(_) => "sparse tensor",
            TypeValue::Optional(_) => "optional",
        }
    }
}

/// `TypeProto.Tensor`, and `TypeProto.SparseTensor`, which has the same fields.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// A [`DataType`].
    #[prost(int32, optional, tag = "1")]
    pub elem_type: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// `TypeProto.Sequence`, and `TypeProto.Optional`, which has the same field.
#[derive(Clone, PartialEq, Message)]
pub struct ElementTypeProto {
    #[prost(message, optional, boxed, tag = "1")]
    pub elem_type: Option<Box<TypeProto>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MapTypeProto {
    #[prost(int32, optional, tag = "1")]
    pub key_type: Option<i32>,
    #[prost(message, optional, boxed, tag = "2")]
    pub value_type: Option<Box<TypeProto>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OpaqueTypeProto {
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub value: Option<DimensionValue>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum DimensionValue {
    #[prost(int64, tag = "1")]
    Value(i64),
    #[prost(string, tag = "2")]
    Param(String),
}
