//! ONNX models that are changed and written again.
//!
//! A model is taken apart into the fields of its messages as they are in the file. What is not changed is written as it was
//! read, with all that nothing here knows: documentation, annotations, fields of later versions. Fields are written in the
//! order of their numbers, as every known writer does.

use std::collections::BTreeSet;
use std::io::{self, Write};

use bytes::{BufMut, Bytes};
use prost::Message;

use super::error::{NotOnnx, OnnxError};
use super::proto::{
    DataLocation, GraphProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto, ValueInfoProto,
};
use super::wire::{LENGTH_DELIMITED, WireValue, next_field};

/// A message as its fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawMessage(Vec<RawField>);

/// A field: its number, its value, and both with the length as they are in the file.
#[derive(Clone, Debug, PartialEq)]
struct RawField {
    number: u32,
    value: Bytes,
    whole: Bytes,
}

impl RawMessage {
    /// Takes a message apart.
    ///
    /// # Errors
    /// The bytes are no message.
    pub fn decode(bytes: &Bytes) -> Result<RawMessage, OnnxError> {
        let (mut fields, mut rest) = (vec![], &bytes[..]);
        while !rest.is_empty() {
            let before = rest;
            let Some((number, value)) = next_field(&mut rest) else { return Err(no_message()) };
            let whole = bytes.slice_ref(&before[..before.len() - rest.len()]);
            let value = match value {
                WireValue::Bytes(value) => bytes.slice_ref(value),
                WireValue::Number => Bytes::new(),
                WireValue::Group => return Err(no_message()),
            };
            fields.push(RawField { number, value, whole });
        }
        Ok(RawMessage(fields))
    }

    /// The values of the fields of a number that hold bytes, texts or messages.
    pub fn values(&self, number: u32) -> impl Iterator<Item = &Bytes> {
        self.0.iter().filter(move |f| f.number == number).map(|f| &f.value)
    }

    /// Removes the fields of a number.
    pub fn remove(&mut self, number: u32) {
        self.0.retain(|f| f.number != number);
    }

    /// Adds a field that holds bytes, a text or a message.
    pub fn push(&mut self, number: u32, value: Bytes) {
        let mut whole = Vec::with_capacity(value.len() + 12);
        put_varint(&mut whole, u64::from(number) << 3 | LENGTH_DELIMITED);
        put_varint(&mut whole, value.len() as u64);
        whole.extend_from_slice(&value);
        self.0.push(RawField { number, value, whole: whole.into() });
    }

    /// Adds a field that holds an integer.
    pub fn push_int(&mut self, number: u32, value: i64) {
        let mut whole = vec![];
        put_varint(&mut whole, u64::from(number) << 3);
        put_varint(&mut whole, value as u64);
        self.0.push(RawField { number, value: Bytes::new(), whole: whole.into() });
    }

    /// The message as bytes.
    pub fn encode(&self) -> Bytes {
        let mut all: Vec<&RawField> = self.0.iter().collect();
        all.sort_by_key(|f| f.number);
        let mut bytes = Vec::with_capacity(self.len());
        all.into_iter().for_each(|f| bytes.put_slice(&f.whole));
        bytes.into()
    }

    /// Bytes of the encoded message.
    fn len(&self) -> usize {
        self.0.iter().map(|f| f.whole.len()).sum()
    }
}

fn no_message() -> OnnxError {
    OnnxError::NotOnnx(NotOnnx::Damaged)
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// A node with all that the file says of it.
#[derive(Clone, Debug)]
pub struct EditedNode {
    proto: NodeProto,
    raw: RawMessage,
}

/// Fields of nodes, graphs and models that are edited.
const NODE_INPUT: u32 = 1;
const NODE_OUTPUT: u32 = 2;
const GRAPH_NODE: u32 = 1;
const GRAPH_INITIALIZER: u32 = 5;
const GRAPH_INPUT: u32 = 11;
const GRAPH_OUTPUT: u32 = 12;
const GRAPH_VALUE_INFO: u32 = 13;
const MODEL_IR_VERSION: u32 = 1;
const MODEL_GRAPH: u32 = 7;
const MODEL_OPSET: u32 = 8;

impl EditedNode {
    /// A new node.
    pub fn new(proto: NodeProto) -> EditedNode {
        // What was just encoded is a message.
        let raw = RawMessage::decode(&proto.encode_to_vec().into()).unwrap_or_default();
        EditedNode { proto, raw }
    }

    /// The node.
    pub fn proto(&self) -> &NodeProto {
        &self.proto
    }

    /// Reads another value as an operand; operands before it that the node did not have are left out.
    pub fn set_input(&mut self, at: usize, name: &str) {
        if self.proto.input.len() <= at {
            self.proto.input.resize(at + 1, String::new());
        }
        name.clone_into(&mut self.proto.input[at]);
        self.write(NODE_INPUT, self.proto.input.clone());
    }

    /// Gives a result another name.
    pub fn set_output(&mut self, at: usize, name: &str) {
        if let Some(output) = self.proto.output.get_mut(at) {
            name.clone_into(output);
            self.write(NODE_OUTPUT, self.proto.output.clone());
        }
    }

    fn write(&mut self, number: u32, names: Vec<String>) {
        self.raw.remove(number);
        names.into_iter().for_each(|name| self.raw.push(number, name.into()));
    }
}

/// A tensor of a graph.
#[derive(Clone, Debug)]
pub struct EditedTensor {
    proto: TensorProto,
    raw: Bytes,
}

impl EditedTensor {
    /// A new tensor.
    pub fn new(proto: TensorProto) -> EditedTensor {
        EditedTensor { raw: proto.encode_to_vec().into(), proto }
    }

    /// The tensor.
    pub fn proto(&self) -> &TensorProto {
        &self.proto
    }
}

/// A model of which the main graph can be changed.
#[derive(Clone, Debug)]
pub struct EditedModel {
    /// Everything but the IR version, the graph and the operator sets.
    rest: RawMessage,
    /// Everything of the graph that has no field of its own.
    graph: RawMessage,
    /// Version of the format.
    pub ir_version: i64,
    /// Operator sets that are used.
    pub opsets: Vec<OperatorSetIdProto>,
    /// Nodes of the graph.
    pub nodes: Vec<EditedNode>,
    /// Tensors of the graph.
    pub initializers: Vec<EditedTensor>,
    /// Inputs of the graph.
    pub inputs: Vec<(ValueInfoProto, Bytes)>,
    /// Outputs of the graph.
    pub outputs: Vec<(ValueInfoProto, Bytes)>,
    /// Types of values of the graph.
    pub value_infos: Vec<(ValueInfoProto, Bytes)>,
}

fn decoded<M: Message + Default>(message: &RawMessage, number: u32) -> Result<Vec<(M, Bytes)>, OnnxError> {
    let one = |bytes: &Bytes| Ok((decode(bytes)?, bytes.clone()));
    message.values(number).map(one).collect()
}

fn decode<M: Message + Default>(bytes: &Bytes) -> Result<M, OnnxError> {
    M::decode(bytes.clone()).map_err(|_| no_message())
}

impl EditedModel {
    /// Takes a model apart.
    ///
    /// # Errors
    /// The bytes are no model.
    pub fn decode(bytes: &Bytes) -> Result<EditedModel, OnnxError> {
        let mut rest = RawMessage::decode(bytes)?;
        let mut graphs = rest.values(MODEL_GRAPH);
        let graph = graphs.next().cloned().ok_or(OnnxError::NotOnnx(NotOnnx::NoGraph))?;
        if graphs.next().is_some() {
            // The parts of a message that is given twice belong together.
            return Err(no_message());
        }
        drop(graphs);
        let mut graph = RawMessage::decode(&graph)?;
        let node = |bytes: &Bytes| Ok(EditedNode { proto: decode(bytes)?, raw: RawMessage::decode(bytes)? });
        let nodes = graph.values(GRAPH_NODE).map(node).collect::<Result<_, OnnxError>>()?;
        let tensor = |(proto, raw)| EditedTensor { proto, raw };
        let initializers = decoded(&graph, GRAPH_INITIALIZER)?.into_iter().map(tensor).collect();
        let opsets = decoded(&rest, MODEL_OPSET)?.into_iter().map(|(opset, _)| opset).collect();
        let [inputs, outputs, value_infos] =
            [GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO].map(|number| decoded(&graph, number));
        let ir_version = decode::<ModelVersion>(bytes)?.ir_version.unwrap_or_default();
        [GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO]
            .into_iter()
            .for_each(|n| graph.remove(n));
        [MODEL_IR_VERSION, MODEL_GRAPH, MODEL_OPSET].into_iter().for_each(|n| rest.remove(n));
        let (inputs, outputs, value_infos) = (inputs?, outputs?, value_infos?);
        Ok(EditedModel { rest, graph, ir_version, opsets, nodes, initializers, inputs, outputs, value_infos })
    }

    /// Version of an operator set; of one that is imported several times, the newest.
    pub fn opset(&self, domain: &str) -> Option<i64> {
        let same = |known: &str| super::load::canonical_domain(known) == super::load::canonical_domain(domain);
        self.opsets.iter().filter(|o| same(o.domain())).map(|o| o.version()).max()
    }

    /// Uses a version of an operator set in place of any other.
    pub fn set_opset(&mut self, domain: &str, version: i64) {
        let same = |known: &str| super::load::canonical_domain(known) == super::load::canonical_domain(domain);
        let at = self.opsets.iter().position(|o| same(o.domain())).unwrap_or(self.opsets.len());
        self.opsets.retain(|o| !same(o.domain()));
        let entry = OperatorSetIdProto { domain: Some(domain.to_owned()), version: Some(version) };
        self.opsets.insert(at.min(self.opsets.len()), entry);
    }

    /// Adds an output without a stated type.
    pub fn add_output(&mut self, name: &str) {
        let info = ValueInfoProto { name: Some(name.to_owned()), r#type: None };
        let bytes = info.encode_to_vec().into();
        self.outputs.push((info, bytes));
    }

    /// The graph, decoded.
    pub fn graph(&self) -> GraphProto {
        let infos = |list: &[(ValueInfoProto, Bytes)]| list.iter().map(|(info, _)| info.clone()).collect();
        GraphProto {
            node: self.nodes.iter().map(|n| n.proto.clone()).collect(),
            initializer: self.initializers.iter().map(|t| t.proto.clone()).collect(),
            input: infos(&self.inputs),
            output: infos(&self.outputs),
            value_info: infos(&self.value_infos),
            ..GraphProto::default()
        }
    }

    /// The names of all values that the graph and those within it have, and of its nodes.
    pub fn names(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        names_of(&self.graph(), &mut found);
        found
    }

    /// The model as bytes.
    pub fn encode(&self) -> Bytes {
        let mut graph = self.graph.clone();
        self.nodes.iter().for_each(|n| graph.push(GRAPH_NODE, n.raw.encode()));
        self.initializers.iter().for_each(|t| graph.push(GRAPH_INITIALIZER, t.raw.clone()));
        let lists = [(GRAPH_INPUT, &self.inputs), (GRAPH_OUTPUT, &self.outputs), (GRAPH_VALUE_INFO, &self.value_infos)];
        for (number, list) in lists {
            list.iter().for_each(|(_, bytes)| graph.push(number, bytes.clone()));
        }
        let mut model = self.rest.clone();
        model.push_int(MODEL_IR_VERSION, self.ir_version);
        model.push(MODEL_GRAPH, graph.encode());
        self.opsets.iter().for_each(|o| model.push(MODEL_OPSET, o.encode_to_vec().into()));
        model.encode()
    }

    /// Moves the data of tensors of at least `least` bytes out of the model, to `data`, which is the file `location` beside it.
    ///
    /// # Errors
    /// `data` cannot be written.
    pub fn move_data(&mut self, least: usize, location: &str, data: &mut dyn Write) -> io::Result<()> {
        /// Where maps of files begin on every system.
        const ALIGNMENT: u64 = 4096;
        let mut offset = 0u64;
        for tensor in &mut self.initializers {
            let Some(raw) = tensor.proto.raw_data.take_if(|raw| raw.len() >= least) else { continue };
            let start = offset.next_multiple_of(ALIGNMENT);
            data.write_all(&vec![0; (start - offset) as usize])?;
            data.write_all(&raw)?;
            offset = start + raw.len() as u64;
            let entry =
                |key: &str, value: String| StringStringEntryProto { key: Some(key.to_owned()), value: Some(value) };
            let places =
                [("location", location.to_owned()), ("offset", start.to_string()), ("length", raw.len().to_string())];
            tensor.proto.external_data = places.into_iter().map(|(key, value)| entry(key, value)).collect();
            tensor.proto.data_location = Some(DataLocation::External as i32);
            tensor.raw = tensor.proto.encode_to_vec().into();
        }
        Ok(())
    }
}

/// The part of a model that is a number.
#[derive(Clone, PartialEq, Message)]
struct ModelVersion {
    #[prost(int64, optional, tag = "1")]
    ir_version: Option<i64>,
}

fn names_of(graph: &GraphProto, found: &mut BTreeSet<String>) {
    let infos = graph.input.iter().chain(&graph.output).chain(&graph.value_info);
    found.extend(infos.map(|i| i.name().to_owned()));
    found.extend(graph.initializer.iter().map(|t| t.name().to_owned()));
    for node in &graph.node {
        found.extend(node.input.iter().chain(&node.output).cloned());
        found.insert(node.name().to_owned());
        node.nested().for_each(|inner| names_of(inner, found));
    }
}
