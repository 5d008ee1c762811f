//! Structured mutations: a model as messages, with one to three of its parts made extreme, exchanged, repeated or removed.
//!
//! What comes out is a well-formed file that rarely is a valid model. The same seed makes the same mutant.

use bytes::Bytes;
use tensorc::ir::Rng;
use tensorc_frontend::onnx::proto::{
    AttributeProto, AttributeType, DataType, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
};

/// Integers at which arithmetic on extents, axes and counts goes wrong.
const INTS: [i64; 22] = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    7,
    64,
    -65,
    255,
    1000,
    65_536,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    -(1 << 31),
    1 << 32,
    1 << 40,
    1 << 62,
    i64::MAX,
    i64::MIN,
    i64::MAX - 1,
];

const FLOATS: [f32; 12] =
    [0.0, -0.0, 1.0, -1.0, 1e-45, 1e30, -1e30, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.5];

/// Words that attributes of some operator accept, and others.
const TEXTS: [&str; 20] = [
    "",
    "SAME_UPPER",
    "SAME_LOWER",
    "VALID",
    "NOTSET",
    "linear",
    "cubic",
    "nearest",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "reflect",
    "wrap",
    "edge",
    "bidirectional",
    "reverse",
    "mean",
    "none",
    "ij,jk->ik",
    "...ii->...i",
];

/// What was done to a model, in words.
pub type Description = Vec<String>;

struct Mutator<'a> {
    rng: Rng,
    done: Description,
    operators: &'a [&'a str],
}

/// Changes one to three parts of a model; `operators` are the names that operator types are exchanged for.
pub fn mutate(model: &mut ModelProto, seed: u64, operators: &[&str]) -> Description {
    let mut m = Mutator { rng: Rng::new(seed), done: vec![], operators };
    let count = 1 + m.rng.below(3) / 2 + m.rng.below(2);
    for _ in 0..count {
        m.one(model);
    }
    m.done
}

impl Mutator<'_> {
    fn note(&mut self, what: String) {
        self.done.push(what);
    }

    fn int(&mut self) -> i64 {
        *self.rng.pick(&INTS)
    }

    fn index(&mut self, len: usize) -> usize {
        self.rng.below(len as u64) as usize
    }

    fn one(&mut self, model: &mut ModelProto) {
        if self.rng.one_in(25) {
            return self.versions(model);
        }
        let functions = model.functions.len();
        if functions > 0 && self.rng.one_in(6) {
            let at = self.index(functions);
            return self.nodes(&mut model.functions[at].node);
        }
        let Some(graph) = &mut model.graph else { return };
        self.graph(graph);
    }

    fn versions(&mut self, model: &mut ModelProto) {
        match self.rng.below(4) {
            0 => {
                let version = 1 + self.rng.below(28) as i64;
                model.opset_import.iter_mut().for_each(|o| o.version = Some(version));
                self.note(format!("opset {version}"));
            }
            1 => {
                let version = self.int();
                let extra = OperatorSetIdProto { domain: Some(String::new()), version: Some(version) };
                model.opset_import.push(extra);
                self.note(format!("another opset {version}"));
            }
            2 => {
                model.ir_version = Some(self.int());
                self.note(format!("ir_version {:?}", model.ir_version));
            }
            _ => {
                model.opset_import.clear();
                self.note("no opset".into());
            }
        }
    }

    fn graph(&mut self, graph: &mut GraphProto) {
        match self.rng.below(16) {
            0..=5 => self.attribute_of(&mut graph.node),
            6..=8 => self.nodes(&mut graph.node),
            9..=12 => self.initializer(graph),
            13 | 14 => self.interface(graph),
            _ => self.names(graph),
        }
    }

    fn attribute_of(&mut self, nodes: &mut [NodeProto]) {
        if nodes.is_empty() {
            return;
        }
        let at = self.index(nodes.len());
        let node = &mut nodes[at];
        let op = node.op_type().to_owned();
        if node.attribute.is_empty() || self.rng.one_in(8) {
            let name = ["axis", "axes", "pads", "strides", "group", "kernel_shape", "dilations", "to", "keepdims"];
            let name = *self.rng.pick(&name);
            let mut attribute = AttributeProto { name: Some(name.into()), ..AttributeProto::default() };
            self.value(&mut attribute);
            self.note(format!("{op}: new {}", describe(&attribute)));
            node.attribute.push(attribute);
            return;
        }
        let which = self.index(node.attribute.len());
        match self.rng.below(12) {
            0 => {
                let gone = node.attribute.remove(which);
                self.note(format!("{op}: attribute {} removed", gone.name()));
            }
            1 => {
                let mut twin = node.attribute[which].clone();
                self.value(&mut twin);
                self.note(format!("{op}: attribute given twice, {}", describe(&twin)));
                node.attribute.push(twin);
            }
            2 => {
                let name = node.attribute[which].name.clone();
                let mut other = AttributeProto { name, ..AttributeProto::default() };
                self.value(&mut other);
                self.note(format!("{op}: attribute of another kind, {}", describe(&other)));
                node.attribute[which] = other;
            }
            3 => {
                node.attribute[which].r#type = Some(self.rng.below(16) as i32);
                self.note(format!("{op}: attribute {} called type {:?}", which, node.attribute[which].r#type));
            }
            _ => {
                if let Some(inner) = &mut node.attribute[which].g {
                    return self.graph(inner);
                }
                self.edge(&mut node.attribute[which]);
                self.note(format!("{op}: {}", describe(&node.attribute[which])));
            }
        }
    }

    /// A value of any kind.
    fn value(&mut self, attribute: &mut AttributeProto) {
        let kind =
            *self.rng.pick(&[AttributeType::Int, AttributeType::Ints, AttributeType::Float, AttributeType::String]);
        attribute.r#type = Some(kind as i32);
        match kind {
            AttributeType::Int => attribute.i = Some(self.int()),
            AttributeType::Ints => attribute.ints = (0..self.rng.below(5)).map(|_| self.int()).collect(),
            AttributeType::Float => attribute.f = Some(*self.rng.pick(&FLOATS)),
            _ => attribute.s = Some(Bytes::from_static(self.rng.pick(&TEXTS).as_bytes())),
        }
    }

    /// The value of an attribute at an edge of its range.
    fn edge(&mut self, attribute: &mut AttributeProto) {
        if let Some(tensor) = &mut attribute.t {
            return self.tensor(tensor);
        }
        if let Some(i) = &mut attribute.i {
            *i = self.nearby(*i);
        }
        if let Some(f) = &mut attribute.f {
            *f = *self.rng.pick(&FLOATS);
        }
        if attribute.s.is_some() {
            attribute.s = Some(match self.rng.below(8) {
                0 => Bytes::from_static(&[0xff, 0xfe]),
                _ => Bytes::from_static(self.rng.pick(&TEXTS).as_bytes()),
            });
        }
        if !attribute.ints.is_empty() {
            self.list(&mut attribute.ints);
        }
        if !attribute.floats.is_empty() {
            let at = self.index(attribute.floats.len());
            attribute.floats[at] = *self.rng.pick(&FLOATS);
        }
        if attribute.strings.len() > 1 {
            attribute.strings.pop();
        }
    }

    /// An extreme value, or one next to the given one.
    fn nearby(&mut self, i: i64) -> i64 {
        match self.rng.below(4) {
            0 => i.wrapping_add(1),
            1 => i.wrapping_neg(),
            _ => self.int(),
        }
    }

    fn list(&mut self, list: &mut Vec<i64>) {
        match self.rng.below(6) {
            0 => list.push(self.int()),
            1 => drop(list.pop()),
            2 => {
                let value = self.int();
                list.fill(value);
            }
            3 if list.len() > 1 => list.swap(0, 1),
            _ => {
                let at = self.index(list.len().max(1));
                if let Some(i) = list.get_mut(at) {
                    *i = self.nearby(*i);
                }
            }
        }
    }

    fn nodes(&mut self, nodes: &mut Vec<NodeProto>) {
        if nodes.is_empty() {
            return;
        }
        let at = self.index(nodes.len());
        let op = nodes[at].op_type().to_owned();
        match self.rng.below(6) {
            0 => {
                nodes.remove(at);
                self.note(format!("{op}: node removed"));
            }
            1 => {
                let mut copy = nodes[at].clone();
                if self.rng.one_in(2) {
                    copy.output.iter_mut().for_each(|o| o.push_str("_copy"));
                }
                nodes.insert(at, copy);
                self.note(format!("{op}: node repeated"));
            }
            2 | 3 => {
                let to = (*self.rng.pick(self.operators)).to_owned();
                self.note(format!("{op}: became {to}"));
                nodes[at].op_type = Some(to);
            }
            4 => {
                let other = self.index(nodes.len());
                nodes.swap(at, other);
                self.note("nodes exchanged".into());
            }
            _ => self.wiring(nodes, at, &op),
        }
    }

    fn wiring(&mut self, nodes: &mut [NodeProto], at: usize, op: &str) {
        let other = self.index(nodes.len());
        let taken = nodes[other].output.first().or(nodes[other].input.first()).cloned().unwrap_or_default();
        let choice = self.rng.below(7);
        let which = self.index(nodes[at].input.len().max(1));
        let node = &mut nodes[at];
        let count = node.input.len();
        match choice {
            0 if count > 1 => node.input.swap(0, count - 1),
            1 if count > 0 => drop(node.input.pop()),
            2 if count > 0 => node.input.push(node.input[which].clone()),
            3 if count > 0 => node.input[which] = String::new(),
            4 if count > 0 => node.input[which] = taken,
            5 => node.output.push(format!("{op}_more")),
            6 if !node.output.is_empty() => node.output[0] = taken,
            _ => return,
        }
        self.note(format!("{op}: wiring {choice} of operand {which}"));
    }

    fn initializer(&mut self, graph: &mut GraphProto) {
        if !graph.initializer.is_empty() && !self.rng.one_in(4) {
            let at = self.index(graph.initializer.len());
            let name = graph.initializer[at].name().to_owned();
            self.tensor(&mut graph.initializer[at]);
            return self.note(format!("in initializer {name}"));
        }
        let Some(input) = pick_at(&mut self.rng, &graph.input).cloned() else { return };
        let Some(TypeValue::Tensor(ty)) = input.r#type.as_ref().and_then(|t| t.value.as_ref()) else { return };
        let fixed = |d: &Dimension| match d.value {
            Some(DimensionValue::Value(n)) => n,
            _ => 2,
        };
        let dims: Vec<i64> = ty.shape.iter().flat_map(|s| &s.dim).map(fixed).collect();
        let count = dims.iter().try_fold(1i64, |n, d| n.checked_mul(*d)).filter(|n| (0..=4096).contains(n));
        let Some(count) = count else { return };
        let mut tensor = TensorProto { name: input.name, data_type: ty.elem_type, dims, ..TensorProto::default() };
        self.elements(&mut tensor, count);
        self.note(format!("input {} fixed as {:?}", tensor.name(), short(&tensor)));
        graph.initializer.push(tensor);
    }

    /// Elements in the field of their type, extreme ones and small ones.
    fn elements(&mut self, tensor: &mut TensorProto, count: i64) {
        let kind = DataType::try_from(tensor.data_type()).unwrap_or(DataType::Undefined);
        for _ in 0..count {
            let i = if self.rng.one_in(3) { self.int() } else { self.rng.below(4) as i64 };
            match kind {
                DataType::Float => tensor.float_data.push(*self.rng.pick(&FLOATS)),
                DataType::Double => tensor.double_data.push(f64::from(*self.rng.pick(&FLOATS))),
                DataType::Int64 => tensor.int64_data.push(i),
                DataType::Uint64 | DataType::Uint32 => tensor.uint64_data.push(i as u64),
                _ => tensor.int32_data.push((i & 0x7f) as i32),
            }
        }
    }

    fn tensor(&mut self, tensor: &mut TensorProto) {
        let choice = self.rng.below(9);
        match choice {
            0 => tensor.data_type = Some(self.rng.below(28) as i32),
            1 => {
                let cut = tensor.raw_data.as_ref().map_or(0, Bytes::len) / 2;
                tensor.raw_data = tensor.raw_data.take().map(|b| b.slice(..cut));
                tensor.float_data.truncate(1);
                tensor.int64_data.truncate(1);
            }
            2 => self.list(&mut tensor.dims),
            3 => {
                tensor.dims = (0..self.rng.below(9)).map(|_| self.int()).collect();
            }
            4 => {
                let extra = if tensor.dims.is_empty() { 1 } else { 0 };
                tensor.dims.resize(tensor.dims.len() + extra, 1);
                tensor.dims.push(1);
            }
            _ => self.content(tensor),
        }
        self.note(format!("tensor {choice}: {}", short(tensor)));
    }

    /// Other elements, as many as there were.
    fn content(&mut self, tensor: &mut TensorProto) {
        let Some(raw) = &tensor.raw_data else {
            if !tensor.int64_data.is_empty() {
                let at = self.index(tensor.int64_data.len());
                tensor.int64_data[at] = self.nearby(tensor.int64_data[at]);
            } else if !tensor.float_data.is_empty() {
                let at = self.index(tensor.float_data.len());
                tensor.float_data[at] = *self.rng.pick(&FLOATS);
            } else if !tensor.int32_data.is_empty() {
                let at = self.index(tensor.int32_data.len());
                tensor.int32_data[at] = self.int() as i32;
            }
            return;
        };
        let mut bytes = raw.to_vec();
        let width = match DataType::try_from(tensor.data_type()) {
            Ok(DataType::Int64 | DataType::Uint64 | DataType::Double) => 8,
            Ok(DataType::Float | DataType::Int32 | DataType::Uint32) => 4,
            _ => 1,
        };
        let elements = bytes.len() / width;
        for _ in 0..self.rng.below(2) + 1 {
            let at = self.index(elements.max(1)) * width;
            let value = match width {
                4 if tensor.data_type() == DataType::Float as i32 => self.rng.pick(&FLOATS).to_bits().into(),
                _ => self.int(),
            };
            if let Some(slot) = bytes.get_mut(at..at + width) {
                slot.copy_from_slice(&value.to_le_bytes()[..width]);
            }
        }
        tensor.raw_data = Some(bytes.into());
    }

    fn interface(&mut self, graph: &mut GraphProto) {
        let (what, list): (_, &mut Vec<ValueInfoProto>) = match self.rng.below(8) {
            0 => ("output", &mut graph.output),
            1 => ("value_info", &mut graph.value_info),
            _ => ("input", &mut graph.input),
        };
        let Some(at) = (!list.is_empty()).then(|| self.rng.below(list.len() as u64) as usize) else { return };
        match self.rng.below(10) {
            0 => {
                list.remove(at);
                self.note(format!("{what} {at} removed"));
            }
            1 => {
                list.push(list[at].clone());
                self.note(format!("{what} {at} given twice"));
            }
            2 => {
                list[at].r#type = None;
                self.note(format!("{what} {at} without a type"));
            }
            _ => {
                let Some(TypeValue::Tensor(ty)) = list[at].r#type.as_mut().and_then(|t| t.value.as_mut()) else {
                    return;
                };
                self.tensor_type(ty);
                self.note(format!("{what} {at} of type {}", type_text(ty)));
            }
        }
    }

    fn tensor_type(&mut self, ty: &mut TensorTypeProto) {
        match self.rng.below(6) {
            0 => ty.elem_type = Some(self.rng.below(28) as i32),
            1 => ty.shape = None,
            2 => {
                let dim = |n| Dimension { value: Some(DimensionValue::Value(n)) };
                let dims = (0..self.rng.below(8)).map(|_| dim(self.int()));
                ty.shape = Some(TensorShapeProto { dim: dims.collect() });
            }
            3 => {
                let shape = ty.shape.get_or_insert_default();
                shape.dim.iter_mut().for_each(|d| d.value = Some(DimensionValue::Param("n".into())));
            }
            _ => {
                let Some(shape) = &mut ty.shape else { return };
                let at = self.index(shape.dim.len().max(1));
                let n = self.int();
                match shape.dim.get_mut(at) {
                    Some(dim) => dim.value = Some(DimensionValue::Value(n)),
                    None => shape.dim.push(Dimension { value: Some(DimensionValue::Value(n)) }),
                }
            }
        }
    }

    fn names(&mut self, graph: &mut GraphProto) {
        match self.rng.below(4) {
            0 => {
                if let Some(node) = pick_at(&mut self.rng, &graph.node) {
                    let name = node.output.first().cloned().unwrap_or_default();
                    let ty = TypeProto { value: None };
                    graph.output.push(ValueInfoProto { name: Some(name.clone()), r#type: Some(ty) });
                    self.note(format!("{name} is an output"));
                }
            }
            1 => {
                if let Some(input) = graph.input.first_mut() {
                    input.name = Some(String::new());
                    self.note("input 0 has no name".into());
                }
            }
            2 => {
                if let (Some(input), Some(output)) = (graph.input.first(), graph.output.first_mut()) {
                    output.name = input.name.clone();
                    self.note("output 0 is input 0".into());
                }
            }
            _ => {
                graph.output.clear();
                self.note("no outputs".into());
            }
        }
    }
}

fn pick_at<'t, T>(rng: &mut Rng, items: &'t [T]) -> Option<&'t T> {
    (!items.is_empty()).then(|| rng.pick(items))
}

/// An attribute in a few words.
fn describe(attribute: &AttributeProto) -> String {
    let mut text = format!("{}=", attribute.name());
    if let Some(i) = attribute.i {
        text += &i.to_string();
    }
    if let Some(f) = attribute.f {
        text += &format!("{f:?}");
    }
    if let Some(s) = &attribute.s {
        text += &String::from_utf8_lossy(s);
    }
    if let Some(t) = &attribute.t {
        text += &short(t);
    }
    if !attribute.ints.is_empty() {
        text += &format!("{:?}", attribute.ints);
    }
    if !attribute.floats.is_empty() {
        text += &format!("{:?}", attribute.floats);
    }
    text
}

fn short(tensor: &TensorProto) -> String {
    let mut text = format!("type {:?} dims {:?}", tensor.data_type.unwrap_or(0), tensor.dims);
    if (1..=8).contains(&tensor.int64_data.len()) {
        text += &format!(" {:?}", tensor.int64_data);
    }
    match &tensor.raw_data {
        Some(raw) if raw.len() <= 64 && tensor.data_type() == DataType::Int64 as i32 => {
            let values = raw.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
            text + &format!(" {:?}", values.collect::<Vec<_>>())
        }
        Some(raw) if raw.len() <= 32 && tensor.data_type() == DataType::Float as i32 => {
            let values = raw.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
            text + &format!(" {:?}", values.collect::<Vec<_>>())
        }
        _ => text,
    }
}

fn type_text(ty: &TensorTypeProto) -> String {
    let dim = |d: &Dimension| match &d.value {
        Some(DimensionValue::Value(n)) => n.to_string(),
        Some(DimensionValue::Param(name)) => name.clone(),
        None => "?".into(),
    };
    let dims = ty.shape.as_ref().map(|s| s.dim.iter().map(dim).collect::<Vec<_>>().join(", "));
    format!("{} [{}]", ty.elem_type(), dims.unwrap_or_else(|| "no rank".into()))
}
