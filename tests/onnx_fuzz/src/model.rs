//! A model under construction: its values with their elements, and its nodes.
//!
//! Each node is computed by the interpreter as soon as it is added, so that later nodes can be made for the shapes and
//! elements that there are. A node that tensorc refuses is left out.

use bytes::Bytes;
use tensorc::DType;
use tensorc::ir::op::Registry;
use tensorc::ir::{Rng, TensorData};
use tensorc_frontend::onnx::proto::{
    AttributeProto, AttributeType, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
};
use tensorc_frontend::onnx::tensor::data_type;

use crate::draw::{self, Elements};
use crate::evaluate::node_results;

/// A value of a model: an input, an initializer, or what a node computes.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its name.
    pub name: String,
    /// Its elements.
    pub data: TensorData,
}

impl Value {
    /// The extents.
    pub fn dims(&self) -> &[u64] {
        self.data.dims()
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.dims().len()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }
}

/// A node to be added.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// ONNX operator type.
    pub op: String,
    /// By formal position; `None` where an optional operand is absent.
    pub operands: Vec<Option<Value>>,
    /// Attributes given.
    pub attributes: Vec<AttributeProto>,
    /// Number of results asked for.
    pub outputs: usize,
}

impl NodeSpec {
    /// A node with one result and no attributes.
    pub fn new(op: &str, operands: Vec<Option<Value>>) -> NodeSpec {
        NodeSpec { op: op.to_owned(), operands, attributes: vec![], outputs: 1 }
    }

    /// Adds an integer attribute.
    pub fn int(self, name: &str, i: i64) -> NodeSpec {
        self.with(AttributeProto { r#type: Some(AttributeType::Int as i32), i: Some(i), ..named(name) })
    }

    /// Adds a float attribute.
    pub fn float(self, name: &str, f: f32) -> NodeSpec {
        self.with(AttributeProto { r#type: Some(AttributeType::Float as i32), f: Some(f), ..named(name) })
    }

    /// Adds a list of integers.
    pub fn ints(self, name: &str, ints: &[i64]) -> NodeSpec {
        self.with(AttributeProto { r#type: Some(AttributeType::Ints as i32), ints: ints.to_vec(), ..named(name) })
    }

    /// Adds a text attribute.
    pub fn text(self, name: &str, s: &str) -> NodeSpec {
        let s = Some(Bytes::copy_from_slice(s.as_bytes()));
        self.with(AttributeProto { r#type: Some(AttributeType::String as i32), s, ..named(name) })
    }

    /// Adds a tensor attribute.
    pub fn tensor(self, name: &str, t: &TensorData) -> NodeSpec {
        let t = Some(tensor_proto("", t));
        self.with(AttributeProto { r#type: Some(AttributeType::Tensor as i32), t, ..named(name) })
    }

    /// Adds an attribute.
    pub fn with(mut self, attribute: AttributeProto) -> NodeSpec {
        self.attributes.push(attribute);
        self
    }

    /// Asks for so many results.
    pub fn results(self, outputs: usize) -> NodeSpec {
        NodeSpec { outputs, ..self }
    }
}

fn named(name: &str) -> AttributeProto {
    AttributeProto { name: Some(name.to_owned()), ..AttributeProto::default() }
}

/// A tensor as ONNX stores it.
pub fn tensor_proto(name: &str, data: &TensorData) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: data.dims().iter().map(|d| *d as i64).collect(),
        data_type: Some(data_type(data.dtype())),
        raw_data: Some(data.bytes().clone()),
        ..TensorProto::default()
    }
}

/// How a model states extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stated {
    /// As numbers.
    Numbers,
    /// From two on as names, equal ones by the same.
    Names,
    /// Not at all.
    Nothing,
}

/// The type of a value as ONNX states it, and its name.
fn value_info(name: &str, data: &TensorData, stated: Stated) -> ValueInfoProto {
    let dim = |d: &u64| {
        let value = match stated {
            Stated::Names if *d >= 2 => Some(DimensionValue::Param(format!("n{d}"))),
            Stated::Numbers | Stated::Names => Some(DimensionValue::Value(*d as i64)),
            Stated::Nothing => None,
        };
        Dimension { value }
    };
    let shape = TensorShapeProto { dim: data.dims().iter().map(dim).collect() };
    let tensor = TensorTypeProto { elem_type: Some(data_type(data.dtype())), shape: Some(shape) };
    let ty = TypeProto { value: Some(TypeValue::Tensor(tensor)) };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(ty) }
}

/// A valid model, what it is run on, and what the interpreter made of its nodes.
#[derive(Clone, Debug)]
pub struct Model {
    /// The operator set.
    pub opset: i64,
    /// The nodes, in the order of data flow.
    pub nodes: Vec<NodeProto>,
    /// Values that are inputs.
    pub inputs: Vec<Value>,
    /// Values stored in the model.
    pub initializers: Vec<Value>,
    /// What the nodes compute.
    pub computed: Vec<Value>,
    /// Names of results that are outputs of the model.
    pub outputs: Vec<String>,
}

impl Model {
    /// The value of a name.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.inputs.iter().chain(&self.initializers).chain(&self.computed).find(|v| v.name == name)
    }

    /// The model as a message, with extents of inputs as stated. With `all`, every result of a node is an output.
    pub fn proto(&self, all: bool, stated: Stated) -> ModelProto {
        let shown = |v: &&Value| all || self.outputs.contains(&v.name);
        let graph = GraphProto {
            name: Some("random".into()),
            node: self.nodes.clone(),
            initializer: self.initializers.iter().map(|v| tensor_proto(&v.name, &v.data)).collect(),
            input: self.inputs.iter().map(|v| value_info(&v.name, &v.data, stated)).collect(),
            output: self.computed.iter().filter(shown).map(|v| value_info(&v.name, &v.data, Stated::Nothing)).collect(),
            ..GraphProto::default()
        };
        wrap(graph, self.opset)
    }
}

/// A model of a graph.
pub fn wrap(graph: GraphProto, opset: i64) -> ModelProto {
    ModelProto {
        ir_version: Some(10),
        producer_name: Some("tensorc-onnx-fuzz".into()),
        opset_import: vec![OperatorSetIdProto { domain: Some(String::new()), version: Some(opset) }],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

/// Adds nodes to a model.
pub struct Writer<'a> {
    /// Decides.
    pub rng: Rng,
    /// Operators.
    pub registry: &'a Registry,
    /// What is there.
    pub model: Model,
    /// Nodes that tensorc refused, with its reasons.
    pub refused: Vec<(Model, String)>,
    count: usize,
}

impl<'a> Writer<'a> {
    /// The newest operator set that is drawn.
    pub const DRAWN_OPSET: i64 = 26;
    /// Of models whose first operator it takes.
    pub const NEWEST_OPSET: i64 = 28;

    /// An empty model.
    pub fn new(seed: u64, registry: &'a Registry) -> Writer<'a> {
        let mut rng = Rng::new(seed);
        let opset = if rng.one_in(3) { Writer::DRAWN_OPSET } else { 21 };
        let model =
            Model { opset, nodes: vec![], inputs: vec![], initializers: vec![], computed: vec![], outputs: vec![] };
        Writer { rng, registry, model, refused: vec![], count: 0 }
    }

    fn name(&mut self, base: &str) -> String {
        self.count += 1;
        format!("{base}{}", self.count)
    }

    /// A value that no node computes: an input of the model, or stored in it.
    pub fn fresh(&mut self, data: TensorData) -> Value {
        let stored = self.rng.one_in(3);
        let name = self.name(if stored { "w" } else { "x" });
        let value = Value { name, data };
        if stored { &mut self.model.initializers } else { &mut self.model.inputs }.push(value.clone());
        value
    }

    /// A value of this type: one of the model, if its elements may be any, or a new one.
    pub fn operand(&mut self, dtype: DType, dims: &[u64], elements: Elements) -> Value {
        if elements == Elements::Any {
            let values = self.model.computed.iter().chain(&self.model.inputs);
            let fits: Vec<Value> = values.filter(|v| v.dtype() == dtype && v.dims() == dims).cloned().collect();
            if !fits.is_empty() && self.rng.one_in(2) {
                return self.rng.pick(&fits).clone();
            }
        }
        let data = draw::tensor(&mut self.rng, dtype, dims, elements);
        self.fresh(data)
    }

    /// A value of one of these types and of a rank: mostly the last that a node computed, if that fits.
    pub fn any(&mut self, dtypes: &[DType], least: usize, most: usize) -> Value {
        let fits = |v: &&Value| dtypes.contains(&v.dtype()) && (least..=most).contains(&v.rank());
        let found: Vec<Value> = self.model.computed.iter().rev().filter(fits).take(3).cloned().collect();
        if !found.is_empty() && !self.rng.one_in(4) {
            return self.rng.pick(&found).clone();
        }
        let dtype = draw::dtype(&mut self.rng, dtypes);
        let dims = draw::shape(&mut self.rng, least, most);
        self.operand(dtype, &dims, Elements::Any)
    }

    /// A value whose elements decide shapes: stored, or computed from what is stored, now and then an input.
    pub fn fixed(&mut self, data: TensorData) -> Value {
        match self.rng.below(16) {
            0 => {
                let value = Value { name: self.name("x"), data };
                self.model.inputs.push(value.clone());
                value
            }
            1 | 2 => {
                let spec = NodeSpec::new("Constant", vec![]).tensor("value", &data);
                self.add(spec).and_then(|mut r| r.pop()).unwrap_or_else(|| self.fresh(data))
            }
            3 => {
                let stored = self.stored(data);
                let spec = NodeSpec::new("Identity", vec![Some(stored.clone())]);
                self.add(spec).and_then(|mut r| r.pop()).unwrap_or(stored)
            }
            _ => self.stored(data),
        }
    }

    /// A value stored in the model.
    pub fn stored(&mut self, data: TensorData) -> Value {
        let value = Value { name: self.name("w"), data };
        self.model.initializers.push(value.clone());
        value
    }

    /// [`Writer::fixed`] of a list of integers.
    pub fn ints(&mut self, values: &[i64]) -> Option<Value> {
        let data = TensorData::i64s(&[values.len() as u64], values)?;
        Some(self.fixed(data))
    }

    /// One of these texts.
    pub fn word(&mut self, of: &[&'static str]) -> &'static str {
        self.rng.pick::<&'static str>(of)
    }

    /// One of `count` choices.
    pub fn choice(&mut self, count: u64) -> u64 {
        self.rng.below(count)
    }

    /// True in one of `n` cases.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.rng.one_in(n)
    }

    /// An axis of a value of this rank, counted from either end.
    pub fn axis(&mut self, rank: usize) -> i64 {
        let at = self.rng.below(rank as u64) as i64;
        if self.rng.one_in(3) { at - rank as i64 } else { at }
    }

    /// Adds a node and returns its results; `None` if tensorc refuses it.
    pub fn add(&mut self, spec: NodeSpec) -> Option<Vec<Value>> {
        let output: Vec<String> = (0..spec.outputs).map(|_| self.name("y")).collect();
        let mut input: Vec<String> =
            spec.operands.iter().map(|o| o.as_ref().map_or(String::new(), |v| v.name.clone())).collect();
        while input.last().is_some_and(String::is_empty) {
            input.pop();
        }
        let node = NodeProto {
            input,
            output: output.clone(),
            name: Some(format!("n{}", self.count)),
            op_type: Some(spec.op),
            attribute: spec.attributes,
            ..NodeProto::default()
        };
        let mut operands: Vec<Value> = vec![];
        for value in spec.operands.into_iter().flatten() {
            if !operands.iter().any(|o| o.name == value.name) {
                operands.push(value);
            }
        }
        match node_results(&node, &operands, self.model.opset, self.registry) {
            Ok(results) => {
                let values = output.into_iter().zip(results).map(|(name, data)| Value { name, data });
                let values: Vec<Value> = values.collect();
                self.model.computed.extend(values.iter().cloned());
                self.model.nodes.push(node);
                Some(values)
            }
            Err(why) => {
                let alone = Model {
                    opset: self.model.opset,
                    nodes: vec![node],
                    inputs: operands,
                    initializers: vec![],
                    computed: output
                        .iter()
                        .filter_map(|o| Some(Value { name: o.clone(), data: TensorData::i64s(&[0], &[])? }))
                        .collect(),
                    outputs: output,
                };
                self.refused.push((alone, why));
                None
            }
        }
    }

    /// The model without what no node uses; some of its results are outputs, those that nothing uses always.
    pub fn finish(mut self) -> Model {
        let used = |name: &str| self.model.nodes.iter().any(|n| n.input.iter().any(|i| i == name));
        let open: Vec<String> = self.model.computed.iter().map(|v| v.name.clone()).filter(|n| !used(n)).collect();
        self.model.inputs.retain(|v| used(&v.name));
        self.model.initializers.retain(|v| used(&v.name));
        let mut outputs = open;
        for value in &self.model.computed {
            if !outputs.contains(&value.name) && self.rng.one_in(5) {
                outputs.push(value.name.clone());
            }
        }
        self.model.outputs = outputs;
        self.model
    }
}
