//! A model as it is rewritten: its nodes, constants and who uses what.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tensorc_abi::DType;
use tensorc_frontend::onnx::edit::{EditedModel, EditedNode, EditedTensor};
use tensorc_frontend::onnx::error::TensorSite;
use tensorc_frontend::onnx::files::ModelFiles;
use tensorc_frontend::onnx::proto::{AttributeProto, AttributeType, GraphProto, NodeProto, TensorProto};
use tensorc_frontend::onnx::tensor::{embedded, read_tensor, stored_tensor};
use tensorc_frontend::onnx::{OnnxError, OnnxModel};
use tensorc_ir::TensorData;
use tensorc_ir::op::OnnxName;

use super::error::QuantizeError;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::model::Model;

/// A model whose main graph is rewritten. All its data is in memory.
#[derive(Clone)]
pub(super) struct Document {
    pub model: EditedModel,
    path: PathBuf,
    /// Tensors that no run changes, by name.
    constants: BTreeMap<String, TensorProto>,
    taken: BTreeSet<String>,
}

/// Who uses the values of a graph.
#[derive(Default)]
pub(super) struct Uses {
    /// Nodes and the positions of their operands, by value.
    nodes: BTreeMap<String, Vec<(usize, usize)>>,
    /// Values that are outputs, or used in nested graphs.
    outside: BTreeSet<String>,
}

impl Uses {
    /// The only use of a value, if it has one.
    pub fn only(&self, value: &str) -> Option<(usize, usize)> {
        match self.nodes.get(value).map(Vec::as_slice) {
            Some([one]) if !self.outside.contains(value) => Some(*one),
            _ => None,
        }
    }

    /// The nodes that read a value.
    pub fn of(&self, value: &str) -> impl Iterator<Item = usize> {
        self.nodes.get(value).into_iter().flatten().map(|(node, _)| *node)
    }

    /// Whether nothing reads a value.
    pub fn none(&self, value: &str) -> bool {
        !self.nodes.contains_key(value) && !self.outside.contains(value)
    }
}

impl Document {
    /// Reads a model with all its data.
    pub fn open(compiler: &Compiler, path: &Path) -> Result<Document, Error> {
        let ends_in = |extension: &str| path.extension().is_some_and(|e| e == extension);
        if ends_in("json") || ends_in("tc") {
            return Err(QuantizeError::NotOnnx { path: path.to_owned() }.into());
        }
        let read = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let wrong = |source: OnnxError| Error::Onnx { path: path.to_owned(), source: Box::new(source) };
        let bytes = Bytes::from(read);
        let folder = path.parent().map(|p| if p == Path::new("") { PathBuf::from(".") } else { p.to_owned() });
        let mut files = OnnxModel::decode_with(bytes.clone(), folder, compiler.read_options()).map_err(wrong)?.files;
        let mut model = EditedModel::decode(&bytes).map_err(wrong)?;
        for tensor in &mut model.initializers {
            let proto = tensor.proto();
            if proto.data_location.unwrap_or(0) != 0 {
                let site = TensorSite::Initializer(proto.name().to_owned());
                *tensor = EditedTensor::new(embedded(proto, site, &mut files).map_err(wrong)?);
            }
        }
        let taken = model.names();
        let mut document = Document { model, path: path.to_owned(), constants: BTreeMap::new(), taken };
        document.find_constants();
        Ok(document)
    }

    /// Looks for constants again, after inputs or tensors of the model were changed.
    pub fn find_constants(&mut self) {
        let inputs: BTreeSet<&str> = self.model.inputs.iter().map(|(info, _)| info.name()).collect();
        let stored = self.model.initializers.iter().map(EditedTensor::proto);
        let fixed = stored.filter(|t| !inputs.contains(t.name())).map(|t| (t.name().to_owned(), t.clone()));
        let nodes = self.model.nodes.iter().map(EditedNode::proto).filter(|n| is_standard(n, &["Constant"]));
        let computed = nodes.filter_map(|n| {
            let value = n.attribute.iter().find(|a| a.name() == "value")?.t.clone()?;
            Some((n.output.first()?.clone(), value))
        });
        self.constants = fixed.chain(computed).collect();
    }

    /// A node of the main graph.
    pub fn node(&self, at: usize) -> &NodeProto {
        self.model.nodes[at].proto()
    }

    /// What messages call a node: its name, or that of its first result.
    pub fn label(&self, at: usize) -> String {
        let node = self.node(at);
        match node.name() {
            "" => node.output.first().cloned().unwrap_or_default(),
            name => name.to_owned(),
        }
    }

    /// A value that is constant, if it is.
    pub fn constant(&self, name: &str) -> Option<TensorData> {
        let proto = self.constants.get(name)?;
        read_tensor(proto, TensorSite::Initializer(name.to_owned()), &mut ModelFiles::default()).ok()
    }

    /// Whether a value is constant.
    pub fn is_constant(&self, name: &str) -> bool {
        self.constants.contains_key(name)
    }

    /// A constant of f32 that is finite.
    pub fn weights(&self, name: &str) -> Option<TensorData> {
        let data = self.constant(name).filter(|d| d.dtype() == DType::F32 && !d.is_empty())?;
        data.to_f32s().iter().all(|x| x.is_finite()).then_some(data)
    }

    /// A name that is not in use.
    pub fn fresh(&mut self, base: &str) -> String {
        let numbered = (2..).map(|i| format!("{base}_{i}"));
        let free = std::iter::once(base.to_owned()).chain(numbered).find(|name| !self.taken.contains(name));
        let name = free.unwrap_or_default();
        self.taken.insert(name.clone());
        name
    }

    /// Makes a name one that is in use.
    pub fn take(&mut self, name: &str) {
        self.taken.insert(name.to_owned());
    }

    /// Adds a constant under a name made from `base`, and returns the name.
    pub fn add_constant(&mut self, base: &str, data: &TensorData) -> String {
        let name = self.fresh(base);
        let proto = stored_tensor(&name, data);
        self.constants.insert(name.clone(), proto.clone());
        self.model.initializers.push(EditedTensor::new(proto));
        name
    }

    /// Who uses what.
    pub fn uses(&self) -> Uses {
        let mut uses = Uses::default();
        for (i, node) in self.model.nodes.iter().map(EditedNode::proto).enumerate() {
            for (at, name) in node.input.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                uses.nodes.entry(name.clone()).or_default().push((i, at));
            }
            node.nested().for_each(|graph| used_in(graph, &mut uses.outside));
        }
        uses.outside.extend(self.model.outputs.iter().map(|(info, _)| info.name().to_owned()));
        uses
    }

    /// The node that computes each value.
    pub fn makers(&self) -> BTreeMap<String, usize> {
        let nodes = self.model.nodes.iter().map(EditedNode::proto).enumerate();
        nodes.flat_map(|(i, n)| n.output.iter().filter(|o| !o.is_empty()).map(move |o| (o.clone(), i))).collect()
    }

    /// Puts nodes in place of the nodes of some positions. Constants and types of values that nothing uses any more are removed.
    pub fn replace(&mut self, mut replaced: BTreeMap<usize, Vec<EditedNode>>) {
        let before = self.uses();
        let mut nodes = vec![];
        for (i, node) in std::mem::take(&mut self.model.nodes).into_iter().enumerate() {
            match replaced.remove(&i) {
                Some(others) => nodes.extend(others),
                None => nodes.push(node),
            }
        }
        self.model.nodes = nodes;
        let now = self.uses();
        let gone = |name: &str| now.none(name) && !before.none(name);
        self.model
            .nodes
            .retain(|n| !(is_standard(n.proto(), &["Constant"]) && n.proto().output.iter().all(|o| gone(o))));
        let inputs: BTreeSet<String> = self.model.inputs.iter().map(|(info, _)| info.name().to_owned()).collect();
        self.model.initializers.retain(|t| inputs.contains(t.proto().name()) || !gone(t.proto().name()));
        let makers = self.makers();
        self.model.value_infos.retain(|(info, _)| makers.contains_key(info.name()) || !gone(info.name()));
        self.find_constants();
    }

    /// The bytes of the model with some more values as outputs. Inputs and constants are not added.
    pub fn with_outputs<'a>(&self, values: impl IntoIterator<Item = &'a str>) -> Bytes {
        let makers = self.makers();
        let mut model = self.model.clone();
        let mut known: BTreeSet<String> = model.outputs.iter().map(|(info, _)| info.name().to_owned()).collect();
        for value in values.into_iter().filter(|value| makers.contains_key(*value)) {
            if known.insert(value.to_owned()) {
                model.add_output(value);
            }
        }
        model.encode()
    }

    /// The model of some bytes of this document.
    pub fn load(&self, compiler: &Compiler, bytes: Bytes) -> Result<Model, Error> {
        compiler.load_bytes(&self.path.display().to_string(), bytes)
    }
}

/// Whether a node is one of some standard operators.
pub(super) fn is_standard(node: &NodeProto, ops: &[&str]) -> bool {
    ["", OnnxName::STANDARD].contains(&node.domain()) && ops.contains(&node.op_type())
}

/// Collects all names that are read in a graph.
fn used_in(graph: &GraphProto, found: &mut BTreeSet<String>) {
    found.extend(graph.output.iter().map(|o| o.name().to_owned()));
    for node in &graph.node {
        found.extend(node.input.iter().cloned());
        node.nested().for_each(|inner| used_in(inner, found));
    }
}

/// A standard node with a name.
pub(super) fn node(op: &str, name: &str, inputs: &[&str], output: &str, attribute: Vec<AttributeProto>) -> EditedNode {
    EditedNode::new(NodeProto {
        op_type: Some(op.to_owned()),
        name: Some(name.to_owned()),
        input: inputs.iter().map(|s| (*s).to_owned()).collect(),
        output: vec![output.to_owned()],
        attribute,
        ..NodeProto::default()
    })
}

/// An attribute that is an integer.
pub(super) fn int(name: &str, value: i64) -> AttributeProto {
    let r#type = Some(AttributeType::Int as i32);
    AttributeProto { name: Some(name.to_owned()), r#type, i: Some(value), ..AttributeProto::default() }
}

/// An integer attribute of a node, or its default.
pub(super) fn int_of(node: &NodeProto, name: &str, default: i64) -> i64 {
    node.attribute.iter().find(|a| a.name() == name).map_or(default, AttributeProto::i)
}

/// A float attribute of a node, or its default.
pub(super) fn float_of(node: &NodeProto, name: &str, default: f32) -> f32 {
    node.attribute.iter().find(|a| a.name() == name).map_or(default, AttributeProto::f)
}
