//! The rules of ONNX for the form of a model, before any of it is imported: names, attributes, and where tensors have their
//! data. They hold inside functions and nested graphs, and for what no node uses, too.
//!
//! Where tools for ONNX read models that break a rule of the specification without doubt about what is meant, so does this:
//! nodes may be out of order, attributes without a type, and a branch may return a value from around it.

use std::collections::BTreeSet;

use super::error::{AttributeProblem, OnnxError, TensorProblem, TensorSite, describe_node};
use super::functions::Functions;
use super::load::{Opsets, STANDARD_DOMAIN, canonical_domain};
use super::proto::{AttributeProto, AttributeType, FunctionProto, GraphProto, NodeProto, SparseTensorProto};
use super::tensor;

/// Checks the main graph and the functions of a model.
///
/// # Errors
/// The first rule that is broken, with what breaks it.
pub(super) fn check_model(graph: &GraphProto, opsets: &Opsets, functions: &Functions) -> Result<(), OnnxError> {
    if graph.output.is_empty() {
        return Err(OnnxError::NoOutputs);
    }
    let scope = Scope { opsets, functions, holder: "model", function: false };
    for (function, opsets) in functions.iter() {
        let holder = format!("function {}", function.name());
        Scope { opsets, holder: &holder, function: true, ..scope }.function(function)?;
    }
    scope.graph(graph, None)
}

/// What holds where a graph stands.
#[derive(Clone, Copy)]
struct Scope<'a> {
    opsets: &'a Opsets,
    functions: &'a Functions,
    /// The model or function, for messages.
    holder: &'a str,
    /// Whether this is a function body, whose attributes may be references (`ref_attr_name`) to attributes of the call.
    function: bool,
}

/// The values that a graph has so far, and those around it.
struct Names<'a> {
    own: BTreeSet<&'a str>,
    outer: Option<&'a Names<'a>>,
}

impl<'a> Names<'a> {
    fn new(outer: Option<&'a Names<'a>>) -> Names<'a> {
        Names { own: BTreeSet::new(), outer }
    }

    /// Adds a value that must be new here and around.
    fn define(&mut self, name: &'a str, by: impl Fn() -> String) -> Result<(), OnnxError> {
        if !self.own.insert(name) {
            return Err(OnnxError::DefinedTwice { value: name.to_owned(), by: by() });
        }
        let mut around = std::iter::successors(self.outer, |names| names.outer);
        match around.any(|names| names.own.contains(name)) {
            true => Err(OnnxError::Hides { value: name.to_owned(), by: by() }),
            false => Ok(()),
        }
    }
}

/// Names that must be there, and differ.
fn distinct<'a>(names: impl IntoIterator<Item = &'a str>, what: &str) -> Result<(), OnnxError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() {
            return Err(OnnxError::NoName(what.to_owned()));
        }
        if !seen.insert(name) {
            return Err(OnnxError::DefinedTwice { value: name.to_owned(), by: what.to_owned() });
        }
    }
    Ok(())
}

fn sparse_name(sparse: &SparseTensorProto) -> &str {
    sparse.values.as_ref().map_or("", |v| v.name())
}

impl Scope<'_> {
    fn graph(&self, graph: &GraphProto, outer: Option<&Names<'_>>) -> Result<(), OnnxError> {
        let inputs = || graph.input.iter().map(|i| i.name());
        let dense = graph.initializer.iter().map(|t| t.name());
        let stored = || dense.clone().chain(graph.sparse_initializer.iter().map(sparse_name));
        distinct(inputs(), "a graph input")?;
        distinct(stored(), "an initializer")?;
        distinct(graph.output.iter().map(|o| o.name()), "a graph output")?;
        let mut names = Names::new(outer);
        for name in inputs() {
            names.define(name, || "a graph input".to_owned())?;
        }
        let inputs = names.own.clone();
        // An initializer of an input's name is its default.
        for name in stored().filter(|name| !inputs.contains(name)) {
            names.define(name, || "an initializer".to_owned())?;
        }
        for tensor in &graph.initializer {
            let site = || TensorSite::Initializer(tensor.name().to_owned());
            tensor::check(tensor).map_err(|problem| OnnxError::Tensor { tensor: site().into(), problem })?;
        }
        for sparse in &graph.sparse_initializer {
            let site = || TensorSite::Initializer(sparse_name(sparse).to_owned());
            check_sparse(sparse).map_err(|problem| OnnxError::Tensor { tensor: site().into(), problem })?;
        }
        self.nodes(&graph.node, names)
    }

    fn function(&self, function: &FunctionProto) -> Result<(), OnnxError> {
        let what = |part: &str| format!("{part} of {}", self.holder);
        distinct(function.input.iter().map(String::as_str), &what("an input"))?;
        distinct(function.output.iter().map(String::as_str), &what("an output"))?;
        let defaults = function.attribute_proto.iter().map(|a| a.name());
        distinct(function.attribute.iter().map(String::as_str).chain(defaults), &what("an attribute"))?;
        let outside = Scope { function: false, ..*self };
        for attribute in &function.attribute_proto {
            outside.attribute(attribute, self.holder, &Names::new(None))?;
        }
        let mut names = Names::new(None);
        names.own.extend(function.input.iter().map(String::as_str));
        self.nodes(&function.node, names)
    }

    /// Checks nodes in the order given; `names` are the values before them.
    fn nodes<'a>(&self, nodes: &'a [NodeProto], mut names: Names<'a>) -> Result<(), OnnxError> {
        for node in nodes {
            self.node(node, &names)?;
            for output in node.output.iter().filter(|o| !o.is_empty()) {
                names.define(output, || describe_node(node))?;
            }
        }
        Ok(())
    }

    fn node(&self, node: &NodeProto, names: &Names<'_>) -> Result<(), OnnxError> {
        let domain = canonical_domain(node.domain());
        // Other operators that are not known are reported together.
        let known = domain == STANDARD_DOMAIN || self.functions.get(node).is_some();
        if known && self.opsets.version(domain).is_none() {
            let (holder, domain) = (self.holder.to_owned(), domain.to_owned());
            return Err(OnnxError::NoOpset { holder, domain });
        }
        let mut seen = BTreeSet::new();
        for attribute in &node.attribute {
            if !seen.insert(attribute.name()) {
                let (node, attribute) = (describe_node(node), attribute.name().to_owned());
                return Err(OnnxError::Attribute { node, attribute, problem: AttributeProblem::Twice });
            }
            self.attribute(attribute, &describe_node(node), names)?;
        }
        Ok(())
    }

    fn attribute(&self, attribute: &AttributeProto, node: &str, names: &Names<'_>) -> Result<(), OnnxError> {
        let name = attribute.name().to_owned();
        if name.is_empty() {
            return Err(OnnxError::NoName(format!("an attribute of {node}")));
        }
        check_value(attribute, self.function).map_err(|problem| {
            let attribute = name.clone();
            OnnxError::Attribute { node: node.to_owned(), attribute, problem }
        })?;
        let wrong = |problem| {
            let tensor = TensorSite::Attribute { node: node.to_owned(), name: name.clone() };
            OnnxError::Tensor { tensor: tensor.into(), problem }
        };
        attribute.t.iter().chain(&attribute.tensors).try_for_each(tensor::check).map_err(wrong)?;
        attribute.sparse_tensor.iter().chain(&attribute.sparse_tensors).try_for_each(check_sparse).map_err(wrong)?;
        attribute.g.iter().chain(&attribute.graphs).try_for_each(|graph| self.graph(graph, Some(names)))
    }
}

/// Checks that an attribute has one value, of the type that it states, or refers to one.
fn check_value(attribute: &AttributeProto, in_function: bool) -> Result<(), AttributeProblem> {
    let held: Vec<AttributeType> = attribute.held().collect();
    let reference = attribute.ref_attr_name();
    if !reference.is_empty() {
        return match (in_function, held.is_empty()) {
            (false, _) => Err(AttributeProblem::NotInFunction(reference.to_owned())),
            (true, false) => Err(AttributeProblem::ReferenceAndValue(reference.to_owned())),
            (true, true) => Ok(()),
        };
    }
    let declared = AttributeType::try_from(attribute.r#type.unwrap_or(0))
        .map_err(|_| AttributeProblem::UnknownType(attribute.r#type.unwrap_or(0)))?;
    match held.as_slice() {
        [] => Ok(()),
        [found] if declared == *found || declared == AttributeType::Undefined => Ok(()),
        [found] => Err(AttributeProblem::WrongType { declared: declared.name(), found: found.name() }),
        several => {
            let names: Vec<&str> = several.iter().map(|kind| kind.name()).collect();
            Err(AttributeProblem::SeveralValues(names.join(", ")))
        }
    }
}

fn check_sparse(sparse: &SparseTensorProto) -> Result<(), TensorProblem> {
    sparse.values.iter().chain(&sparse.indices).try_for_each(tensor::check)
}
