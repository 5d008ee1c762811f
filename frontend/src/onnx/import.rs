//! From a decoded model to a graph of registered operators.
//!
//! Nodes are taken in the order of data flow, brought into their newest form ([`super::upgrade`])
//! and looked up in the registry by ONNX name; attributes become parameters as the operator's
//! parameter specifications say. What cannot be imported is collected over the whole model and
//! reported at once. Weights are not copied.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use tensorc_abi::DType;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::infer::infer_node;
use tensorc_ir::op::{OpRef, Registry};
use tensorc_ir::params::Params;
use tensorc_ir::{Extents, TensorData, TensorType};

use super::attribute;
use super::check::check_model;
use super::declared::Declarations;
use super::error::{OnnxError, TensorSite, describe_node};
use super::files::ModelFiles;
use super::functions::{Functions, ScopedNode, short};
use super::load::{NEWEST_OPSET, OnnxModel, Opsets, STANDARD_DOMAIN, canonical_domain};
use super::meaning::{Meaning, element_name};
use super::order::data_flow_order;
use super::proto::{DataType, GraphProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto};
use super::scope::Scope;
use super::tensor::{read_sparse_tensor, read_tensor};
use super::texts::{ImportedTexts, Texts};
use super::unsupported::Unsupported;
use super::upgrade::{ValueFacts, WITHOUT_EFFECT, upgrade};

/// An imported model.
#[derive(Debug)]
pub struct Imported {
    /// The graph for the compiler.
    pub graph: Graph,
    /// Inputs that became constants because the model has a value for them; importing again with
    /// such a name among the overridden ones makes it an input of the graph.
    pub defaults: Vec<(String, TensorData)>,
    /// The texts of the model, which are numbers in the graph, and what computes with them outside of it.
    pub texts: ImportedTexts,
}

/// What is known of a value of a graph under construction.
#[derive(Clone, Debug, Default)]
pub struct ImportedValue {
    /// The type as far as it is known.
    pub ty: TensorType,
    /// The value itself, if it follows at compile time.
    pub value: Option<TensorData>,
}

/// Finds out about one value of an incomplete graph.
pub type Analysis<'a> = dyn Fn(&Graph, Value) -> ImportedValue + 'a;

/// Tells of the condition of an `If`, a value of an incomplete graph, whether it holds for all inputs; `None` if it holds for some of
/// them only, or that is not known.
pub type Decision<'a> = dyn Fn(&Graph, Value) -> Option<bool> + 'a;

/// What is fixed when a model is imported.
#[derive(Clone, Copy, Default)]
pub struct ImportOptions<'a> {
    /// Extents of inputs, which may depend on symbols; dimensions of the same name elsewhere follow.
    pub shapes: &'a [(&'a str, &'a Extents)],
    /// How many tensors there are of an input that is a sequence or optional. Those of `x` are the inputs `x[0]`, `x[1]`, …
    /// of the graph; an optional tensor is `x` itself.
    pub lengths: &'a [(&'a str, usize)],
    /// Inputs that become constants.
    pub values: &'a [(&'a str, TensorData)],
    /// Inference with constant folding, to decide the conditions of `If`. Without it only
    /// constants in the model are known.
    pub analysis: Option<&'a Analysis<'a>>,
    /// Asked of conditions of the main graph of which nothing else tells whether they hold.
    pub decision: Option<&'a Decision<'a>>,
    /// Whether the host runs branches and loops of which too little is known: each body is compiled by itself, when it comes up.
    pub hosted: bool,
    /// Whether a loop that cannot stay one is undecided if its copies are long.
    pub only_short: bool,
}

/// Imports the main graph of a model.
///
/// Inputs with a default value in the model become constants ([`Replacements`](super::Replacements) says otherwise).
///
/// # Errors
/// [`OnnxError::Unsupported`] lists everything that tensorc does not support; other errors say
/// where the model itself, or an option, is wrong.
pub fn import(model: OnnxModel, registry: &Registry, options: &ImportOptions<'_>) -> Result<Imported, OnnxError> {
    let OnnxModel { proto, graph, opsets, files } = model;
    let functions = Functions::new(proto.functions)?;
    check_model(&graph, &opsets, &functions)?;
    import_graph(graph, opsets, functions, files, registry, options)
}

/// The inputs of a model in a graph of their own, and the names of its outputs: what is known of a model whose branches
/// are open.
///
/// # Errors
/// As [`import`], of inputs and of rules that the whole model breaks.
pub fn signature(
    model: OnnxModel,
    registry: &Registry,
    lengths: &[(&str, usize)],
) -> Result<(Graph, Vec<String>), OnnxError> {
    let OnnxModel { proto, mut graph, opsets, files } = model;
    let functions = Functions::new(proto.functions)?;
    check_model(&graph, &opsets, &functions)?;
    graph.node.clear();
    let outputs = std::mem::take(&mut graph.output).iter().map(|o| o.name().to_owned()).collect();
    let options = ImportOptions { lengths, ..ImportOptions::default() };
    Ok((import_graph(graph, opsets, functions, files, registry, &options)?.graph, outputs))
}

/// Imports a graph that keeps the rules.
fn import_graph(
    mut source: GraphProto,
    opsets: Opsets,
    functions: Functions,
    mut files: ModelFiles,
    registry: &Registry,
    options: &ImportOptions<'_>,
) -> Result<Imported, OnnxError> {
    let nodes = functions.expand(std::mem::take(&mut source.node), &opsets.into(), &mut files.budget)?;
    let name = if source.name().is_empty() { "main" } else { source.name() };
    let mut importer = Importer {
        registry,
        options,
        functions: Rc::new(functions),
        files,
        graph: Graph::new(name),
        values: BTreeMap::new(),
        stored: stored_values(source.initializer, source.sparse_initializer)?,
        taken: BTreeSet::new(),
        serial: 0,
        depth: 0,
        speculative: false,
        pending: vec![],
        unsupported: Unsupported::default(),
        texts: Texts::default(),
        outlines: false,
        made_inputs: vec![],
        declared: Declarations::default(),
        invalid: None,
        outer: vec![],
        captured: vec![],
    };
    let defaults = importer.inputs(&source.input)?;
    importer.check_options(&source.input)?;
    importer.nodes(nodes, &source.output)?;
    importer.declared.add("output", &source.output);
    importer.declared.add("value", &source.value_info);
    importer.declared.add("input", &source.input);
    importer.finish(&source.output, defaults)
}

/// A tensor of the model that no node computes.
pub(super) enum StoredTensor {
    Dense(Box<TensorProto>),
    Sparse(Box<SparseTensorProto>),
}

pub(super) fn stored_values(
    dense: Vec<TensorProto>,
    sparse: Vec<SparseTensorProto>,
) -> Result<BTreeMap<String, StoredTensor>, OnnxError> {
    let dense = dense.into_iter().map(|t| (t.name().to_owned(), StoredTensor::Dense(Box::new(t))));
    let sparse = sparse.into_iter().map(|t| {
        let name = t.values.as_ref().map_or("", |v| v.name());
        (name.to_owned(), StoredTensor::Sparse(Box::new(t)))
    });
    let mut stored = BTreeMap::new();
    for (name, value) in dense.chain(sparse) {
        if stored.insert(name.clone(), value).is_some() {
            return Err(OnnxError::DefinedTwice { value: name, by: "an initializer".to_owned() });
        }
    }
    Ok(stored)
}

pub(super) struct Importer<'a> {
    registry: &'a Registry,
    pub(super) options: &'a ImportOptions<'a>,
    pub(super) functions: Rc<Functions>,
    pub(super) files: ModelFiles,
    pub(super) graph: Graph,
    /// What the names of ONNX stand for.
    pub(super) values: BTreeMap<String, Meaning>,
    /// Initialisers that no node has used yet.
    pub(super) stored: BTreeMap<String, StoredTensor>,
    /// All names of values in the model and those made up here.
    pub(super) taken: BTreeSet<String>,
    serial: usize,
    /// Nested graphs being imported.
    pub(super) depth: usize,
    /// What is imported lies in a branch that may not be taken.
    pub(super) speculative: bool,
    /// Nodes whose types are not inferred yet: that is done only when a rule asks for one, and at the end.
    pub(super) pending: Vec<NodeId>,
    pub(super) unsupported: Unsupported,
    pub(super) texts: Texts,
    /// Whether bodies of branches and loops were taken out of the graph, and the inputs made up for them.
    pub(super) outlines: bool,
    pub(super) made_inputs: Vec<NodeId>,
    /// Types that the model states.
    pub(super) declared: Declarations,
    /// The first thing that is wrong with the model in the eyes of an operator.
    pub(super) invalid: Option<OnnxError>,
    /// The graphs around the one that is imported, outermost first, and the names that it uses of them.
    pub(super) outer: Vec<Scope>,
    pub(super) captured: Vec<String>,
}

impl Importer<'_> {
    /// Imports the nodes of one graph; `outputs` must be among the values then known.
    pub(super) fn nodes(&mut self, nodes: Vec<ScopedNode>, outputs: &[ValueInfoProto]) -> Result<(), OnnxError> {
        self.files.budget.take_nodes(nodes.len() as u64)?;
        let nodes = self.with_quantised_groups(nodes, outputs)?;
        let available = |name: &str| {
            let known = self.values.contains_key(name) || self.stored.contains_key(name);
            known || self.outer.iter().any(|scope| scope.has(name))
        };
        let order = data_flow_order(&nodes, available, outputs)?;
        self.taken.extend(nodes.iter().flat_map(|n| n.node.output.iter()).cloned());
        let mut nodes: Vec<Option<ScopedNode>> = nodes.into_iter().map(Some).collect();
        for index in order {
            if let Some(scoped) = nodes[index].take() {
                self.node(scoped)?;
            }
        }
        Ok(())
    }

    /// The tensor of a name, if it stands for one; initialisers become constants at their first use.
    pub(super) fn lookup(&mut self, name: &str) -> Result<Option<Value>, OnnxError> {
        self.load(name)?;
        Ok(self.tensor(name))
    }

    /// What a name stands for; initialisers become constants at their first use.
    pub(super) fn meaning(&mut self, name: &str) -> Result<Meaning, OnnxError> {
        self.load(name)?;
        Ok(self.values.get(name).cloned().unwrap_or(Meaning::Reported))
    }

    pub(super) fn load(&mut self, name: &str) -> Result<(), OnnxError> {
        if self.values.contains_key(name) { Ok(()) } else { self.capture(name) }
    }

    /// The tensor that a name is known to stand for.
    pub(super) fn tensor(&self, name: &str) -> Option<Value> {
        self.values.get(name).and_then(Meaning::tensor)
    }

    /// Adds a constant under a name that is free.
    pub(super) fn define(&mut self, name: String, data: TensorData) {
        let value = self.graph.add_const(name.as_str(), data);
        self.values.insert(name, Meaning::Tensor(value));
    }

    /// Turns an initialiser into a constant.
    pub(super) fn stored_constant(&mut self, name: &str) -> Result<Option<TensorData>, OnnxError> {
        let Some(stored) = self.stored.remove(name) else { return Ok(None) };
        let site = TensorSite::Initializer(name.to_owned());
        let data = match &stored {
            StoredTensor::Dense(proto) if proto.data_type() == DataType::String as i32 => {
                match self.text_constant(name, proto) {
                    Ok(data) => Ok(data),
                    Err(reason) => {
                        self.unsupported.initializer(name, reason);
                        self.values.insert(name.to_owned(), Meaning::Reported);
                        return Ok(None);
                    }
                }
            }
            StoredTensor::Dense(proto) => read_tensor(proto, site, &mut self.files),
            StoredTensor::Sparse(proto) => read_sparse_tensor(proto, site, &mut self.files),
        };
        let data = match data {
            Ok(data) => Some(data),
            Err(OnnxError::Tensor { problem, .. }) if problem.is_unsupported() => {
                self.unsupported.initializer(name, problem.to_string());
                None
            }
            Err(error) => return Err(error),
        };
        let value = data.as_ref().map(|data| self.graph.add_const(name, data.clone()));
        self.values.insert(name.to_owned(), value.into());
        Ok(data)
    }

    pub(super) fn node(&mut self, scoped: ScopedNode) -> Result<(), OnnxError> {
        let ScopedNode { mut node, opsets } = scoped;
        let domain = canonical_domain(node.domain()).to_owned();
        let opset = opsets.version(&domain);
        let label: Arc<str> = match node.name() {
            "" => node.output.iter().find(|o| !o.is_empty()).map_or("", String::as_str).into(),
            name => name.into(),
        };
        let (op, outputs) = (node.op_type().to_owned(), node.output.clone());
        let texts = self.with_texts(&mut node);
        let result = match (texts, domain.as_str()) {
            (Err(reason), _) => Err(vec![reason]),
            (Ok(Some(call)), _) => self.text_call(&node, call, &label)?,
            (_, STANDARD_DOMAIN) => self.standard_node(node, &opsets, &label)?,
            (_, "ai.onnx.preview") if op == "FlexAttention" => self.flex_attention(node, &opsets, &label)?,
            (..) => self.registered_node(node, opset.unwrap_or(1), &label)?,
        };
        if let Err(reasons) = result {
            for reason in reasons {
                self.unsupported.node(&op, &domain, opset, reason, &label);
            }
            self.give_up(outputs);
        }
        Ok(())
    }

    /// For results of a node that could not be imported.
    pub(super) fn give_up(&mut self, outputs: Vec<String>) {
        self.values.extend(outputs.into_iter().filter(|o| !o.is_empty()).map(|o| (o, Meaning::Reported)));
    }

    /// Imports a node of the standard domain; the inner error lists what is not supported.
    fn standard_node(
        &mut self,
        node: NodeProto,
        opsets: &Rc<Opsets>,
        label: &Arc<str>,
    ) -> Result<Result<(), Vec<String>>, OnnxError> {
        match node.op_type() {
            "Constant" => return self.constant_node(&node, label),
            "If" => return self.if_node(node, opsets, label),
            "Loop" | "Scan" => return self.repeated(node, opsets, label),
            _ => {}
        }
        for input in node.input.iter().filter(|i| !i.is_empty()) {
            self.load(input)?;
        }
        if self.is_list_node(&node) {
            return self.list_node(node, opsets, label);
        }
        // Copies of function results are the only nodes that may lack an operator set.
        let opset = opsets.version(STANDARD_DOMAIN).unwrap_or(NEWEST_OPSET);
        self.registered_node(node, opset, label)
    }

    /// Adds what the rules and the registry make of a node; the inner error lists what is not supported.
    fn registered_node(
        &mut self,
        node: NodeProto,
        opset: i64,
        label: &Arc<str>,
    ) -> Result<Result<(), Vec<String>>, OnnxError> {
        // Operands must be constants before rules can look at them.
        for input in node.input.iter().filter(|i| !i.is_empty()) {
            if let Some(what) = self.meaning(input)?.other_than_tensor() {
                return Ok(Err(vec![format!("its operand `{input}` is {what}")]));
            }
        }
        let original = node.op_type().to_owned();
        let upgraded = match upgrade(node, opset, self) {
            Ok(upgraded) => upgraded,
            Err(reason) => return Ok(Err(vec![reason])),
        };
        for (name, data) in upgraded.constants {
            self.define(name, data);
        }
        let newest = if upgraded.rewritten { NEWEST_OPSET } else { opset };
        self.all(&original, &upgraded.nodes, newest, label)
    }

    /// Adds the nodes that an operator became; the inner error lists what is not supported.
    pub(super) fn all(
        &mut self,
        original: &str,
        nodes: &[NodeProto],
        opset: i64,
        label: &Arc<str>,
    ) -> Result<Result<(), Vec<String>>, OnnxError> {
        let mut reasons = vec![];
        for node in nodes {
            match self.prepare(node, opset)? {
                Ok((def, params)) => self.add(node, label, &def, params)?,
                Err(more) if node.op_type() == original => reasons.extend(more),
                Err(more) => reasons.extend(more.iter().map(|why| format!("as {}: {why}", node.op_type()))),
            }
        }
        Ok(if reasons.is_empty() { Ok(()) } else { Err(reasons) })
    }

    /// The registry's entry and the parameters of a node.
    fn prepare(&mut self, node: &NodeProto, opset: i64) -> Result<Result<(OpRef, Params), Vec<String>>, OnnxError> {
        let (domain, op) = (canonical_domain(node.domain()), node.op_type());
        // A rule would have changed the node if older versions differed from the newest.
        let of = |opset: i64| self.registry.onnx(domain, op, opset as u32);
        let found = of(opset).or_else(|| of(NEWEST_OPSET));
        let Some(def) = found.cloned() else { return Ok(Err(vec!["the operator is not known".to_owned()])) };
        let (mut params, mut reasons) = (Params::new(), vec![]);
        for proto in &node.attribute {
            let Some(spec) = def.params.iter().find(|s| s.name == proto.name()) else {
                if !WITHOUT_EFFECT.contains(&(op, proto.name())) {
                    reasons.push(format!("attribute `{}` is not supported", proto.name()));
                }
                continue;
            };
            let site = TensorSite::Attribute { node: describe_node(node), name: proto.name().to_owned() };
            match attribute::parameter(proto, spec.kind, site, &mut self.files)? {
                Ok(value) => params.set(spec.name, value),
                Err(reason) => reasons.push(format!("attribute `{}`: {reason}", proto.name())),
            }
        }
        let most = def.outputs.1;
        if let Some(output) = node.output.iter().skip(most).find(|o| !o.is_empty()) {
            reasons.push(format!("result {} (`{output}`) is not supported", most + 1));
        }
        Ok(if reasons.is_empty() { Ok((def, params)) } else { Err(reasons) })
    }

    /// Adds a supported node; its results are unknown if an operand's are.
    fn add(&mut self, node: &NodeProto, label: &Arc<str>, def: &OpRef, params: Params) -> Result<(), OnnxError> {
        let (mut operands, mut complete) = (vec![], true);
        let given = node.input.iter().rposition(|i| !i.is_empty()).map_or(0, |i| i + 1);
        for input in &node.input[..given] {
            let operand = if input.is_empty() { None } else { self.lookup(input)? };
            complete &= input.is_empty() || operand.is_some();
            operands.push(operand);
        }
        let named = node.output.iter().rposition(|o| !o.is_empty()).map_or(0, |i| i + 1);
        let count = named.clamp(def.outputs.0, def.outputs.1);
        let added = match complete {
            true => match self.graph.add_op(label.clone(), def, &operands, params, count) {
                Ok(id) => {
                    if self.speculative {
                        self.graph.set_unchecked(id);
                    }
                    Some(id)
                }
                Err(diagnostic) => {
                    self.invalid.get_or_insert(OnnxError::Invalid(diagnostic));
                    None
                }
            },
            false => None,
        };
        self.pending.extend(added);
        for (port, output) in node.output[..named].iter().enumerate().filter(|(_, o)| !o.is_empty()) {
            let value = added.map(|node| Value { node, port: port as u16 });
            self.values.insert(output.clone(), value.into());
        }
        Ok(())
    }

    fn constant_node(&mut self, node: &NodeProto, label: &Arc<str>) -> Result<Result<(), Vec<String>>, OnnxError> {
        let data = match attribute::constant(node, &mut self.files)? {
            Ok(data) => data,
            Err(reason) => return Ok(Err(vec![reason])),
        };
        let value = self.graph.add_const(label.clone(), data);
        if let Some(output) = node.output.first() {
            self.values.insert(output.clone(), Meaning::Tensor(value));
        }
        Ok(Ok(()))
    }

    /// Ends the import: outputs, what is wrong or not supported, and the types that the model states.
    fn finish(
        mut self,
        outputs: &[ValueInfoProto],
        defaults: Vec<(String, TensorData)>,
    ) -> Result<Imported, OnnxError> {
        for info in outputs {
            self.output(info.name())?;
        }
        if !self.unsupported.is_empty() {
            return Err(OnnxError::Unsupported(self.unsupported));
        }
        if let Some(error) = self.invalid {
            return Err(error);
        }
        self.infer();
        let bound = !self.options.shapes.is_empty() || !self.options.values.is_empty();
        self.declared.compare(&self.graph, &self.values, !bound)?;
        if self.outlines {
            self.graph.remove_dead();
            self.made_inputs.iter().for_each(|input| self.graph.remove_input(*input));
        }
        let texts = self.texts.finish(self.graph.inputs().iter().map(|node| &*self.graph.node(*node).name));
        Ok(Imported { graph: self.graph, defaults, texts })
    }

    /// Adds the outputs of the graph that an output of the model is.
    fn output(&mut self, name: &str) -> Result<(), OnnxError> {
        match self.meaning(name)? {
            Meaning::Tensor(value) => self.named_output(name, name, value),
            Meaning::Sequence(tensors) => {
                for (i, tensor) in tensors.iter().enumerate() {
                    let element = element_name(name, i);
                    if self.values.contains_key(&element) {
                        let by = format!("the sequence `{name}`, an output");
                        return Err(OnnxError::DefinedTwice { value: element, by });
                    }
                    if let Some(value) = self.lookup(tensor)? {
                        self.named_output(&element, tensor, value);
                    }
                }
            }
            Meaning::Packed(list) => {
                for (what, tensor) in [("elements", &list.elements), ("shapes", &list.shapes)] {
                    if let Some(value) = self.lookup(tensor)? {
                        self.graph.add_output(format!("{name}.{what}"), value);
                    }
                }
            }
            Meaning::Map(_) => self.unsupported.value(name, "an output that is a map is not supported".to_owned()),
            Meaning::Absent | Meaning::Reported => {}
        }
        Ok(())
    }

    /// Adds an output of the graph for a tensor of the model.
    fn named_output(&mut self, name: &str, tensor: &str, value: Value) {
        if self.is_text(tensor) {
            self.texts.add_output(name);
        }
        self.graph.add_output(name, value);
    }

    /// The type of a value as far as the graph before it determines it.
    pub(super) fn known_type(&mut self, name: &str) -> Option<TensorType> {
        let value = self.tensor(name)?;
        self.infer();
        Some(self.graph.resolved(value))
    }

    /// Infers the types of the nodes added since the last time.
    pub(super) fn infer(&mut self) {
        for node in std::mem::take(&mut self.pending) {
            // A contradiction is reported by inference proper, which has the whole graph.
            let _ = infer_node(&mut self.graph, node, &|graph, v| graph.constant(v).cloned());
        }
    }

    /// A constant of the graph, also where nodes hand it on as it is.
    pub(super) fn handed_on(&self, mut value: Value) -> Option<TensorData> {
        while let NodeKind::Op(op) = &self.graph.node(value.node).kind
            && op.def.name == "identity"
        {
            value = self.graph.operands(value.node).first().copied().flatten()?;
        }
        self.graph.constant(value).cloned()
    }

    /// What inference with constant folding finds out about a value.
    pub(super) fn analyse(&mut self, name: &str) -> Result<ImportedValue, OnnxError> {
        let Some(value) = self.tensor(name) else { return Ok(ImportedValue::default()) };
        let Some(analysis) = self.options.analysis else {
            let ty = self.known_type(name).unwrap_or_default();
            return Ok(ImportedValue { ty, value: self.graph.constant(value).cloned() });
        };
        self.files.budget.take_analysis(self.graph.node_count() as u64)?;
        Ok(analysis(&self.graph, value))
    }

    /// What is known of a type, by inference with constant folding where inference does not suffice.
    pub(super) fn analysed_type(&mut self, name: &str) -> Result<TensorType, OnnxError> {
        match self.known_type(name).filter(|ty| ty.dense().is_some()) {
            Some(ty) => Ok(ty),
            None => Ok(self.analyse(name)?.ty),
        }
    }
}

impl ValueFacts for Importer<'_> {
    fn dims(&mut self, value: &str) -> Option<Vec<Option<u64>>> {
        let ty = self.known_type(value)?;
        Some(ty.shape.dims()?.iter().map(|d| d.as_const()).collect())
    }

    fn dtype(&mut self, value: &str) -> Option<DType> {
        self.known_type(value)?.dtype
    }

    fn constant(&mut self, value: &str) -> Option<TensorData> {
        self.graph.constant(self.tensor(value)?).cloned()
    }

    fn fresh_name(&mut self, base: &str) -> String {
        loop {
            let name = format!("{}~{}", short(base), self.serial);
            self.serial += 1;
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}
