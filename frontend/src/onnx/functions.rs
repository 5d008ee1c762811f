//! Expansion of model-local functions into the nodes that call them.
//!
//! A function body sees nothing but its inputs and attributes, so a call is replaced by a copy of
//! the body in which formal names become the caller's names and all others get a prefix unique to
//! the call. Bodies may use other operator set versions than the model: every node of the result
//! carries its own.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::error::{FunctionProblem, OnnxError, describe_node};
use super::load::{Opsets, canonical_domain};
use super::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto};

/// Depth of calls within calls; deeper ones come only from broken or hostile models.
const MAX_DEPTH: usize = 64;
/// Nodes and calls in the whole expansion: a few functions that call each other twice grow
/// exponentially.
const MAX_NODES: usize = 1 << 18;

/// A node and the operator set versions in force where it was written.
#[derive(Clone, Debug)]
pub struct ScopedNode {
    /// The node.
    pub node: NodeProto,
    /// The versions of operators that hold where it stands.
    pub opsets: Rc<Opsets>,
}

type FunctionKey = (String, String, String);

/// The nodes of a graph with every call of a function replaced by its body, in order.
///
/// # Errors
/// A function is defined twice, calls itself, assigns its inputs, is called with too many values,
/// or uses an operator set version that is not supported; or the expansion is too large.
pub fn expand_functions(
    nodes: Vec<NodeProto>,
    opsets: &Rc<Opsets>,
    functions: &[FunctionProto],
) -> Result<Vec<ScopedNode>, OnnxError> {
    let mut expander = Expander { functions: BTreeMap::new(), taken: BTreeSet::new(), nodes: Vec::new(), calls: 0 };
    for function in functions {
        let entry = (function, Rc::new(Opsets::new(&function.opset_import)?));
        if expander.functions.insert(function_key(function), entry).is_some() {
            return Err(problem(function, FunctionProblem::Duplicate));
        }
    }
    if !functions.is_empty() {
        expander.taken = nodes.iter().flat_map(|n| n.input.iter().chain(&n.output)).cloned().collect();
    }
    for node in nodes {
        expander.place(ScopedNode { node, opsets: opsets.clone() }, &mut Vec::new())?;
    }
    Ok(expander.nodes)
}

fn function_key(f: &FunctionProto) -> FunctionKey {
    (canonical_domain(f.domain()).to_owned(), f.name().to_owned(), f.overload().to_owned())
}

fn problem(function: &FunctionProto, problem: FunctionProblem) -> OnnxError {
    OnnxError::Function { function: format!("{}.{}", canonical_domain(function.domain()), function.name()), problem }
}

struct Expander<'a> {
    functions: BTreeMap<FunctionKey, (&'a FunctionProto, Rc<Opsets>)>,
    /// Value names of the calling graph, which prefixes must not run into.
    taken: BTreeSet<String>,
    nodes: Vec<ScopedNode>,
    calls: usize,
}

impl Expander<'_> {
    /// Appends `scoped`, expanded if it is a call; `active` are the functions being expanded.
    fn place(&mut self, scoped: ScopedNode, active: &mut Vec<FunctionKey>) -> Result<(), OnnxError> {
        let node = &scoped.node;
        let key = (canonical_domain(node.domain()).to_owned(), node.op_type().to_owned(), node.overload().to_owned());
        let Some((function, opsets)) = self.functions.get(&key) else {
            self.nodes.push(scoped);
            return Ok(());
        };
        let (function, opsets) = (*function, opsets.clone());
        if active.contains(&key) {
            let through = active.last().map(|k| k.1.clone()).unwrap_or_default();
            return Err(problem(function, FunctionProblem::Recursive(through)));
        }
        if active.len() >= MAX_DEPTH {
            return Err(problem(function, FunctionProblem::TooDeep(MAX_DEPTH)));
        }
        opsets.require(&function.node, &format!("function {}", function.name()))?;
        let body = FunctionCall::new(self.prefix(node, active.is_empty()), function, node)?.body();
        active.push(key);
        for node in body {
            if self.nodes.len() + self.calls >= MAX_NODES {
                return Err(problem(function, FunctionProblem::TooManyNodes(MAX_NODES)));
            }
            self.place(ScopedNode { node, opsets: opsets.clone() }, active)?;
        }
        active.pop();
        Ok(())
    }

    /// A prefix for the names of one call's body. Calls within calls leave out the call's name,
    /// which has a prefix itself: names would grow with the depth.
    fn prefix(&mut self, call: &NodeProto, outermost: bool) -> String {
        let label = if outermost && !call.name().is_empty() { call.name() } else { call.op_type() };
        loop {
            let prefix = format!("{label}.{}/", self.calls);
            self.calls += 1;
            let clash = self.taken.range(prefix.clone()..).next().is_some_and(|name| name.starts_with(&prefix));
            if !clash {
                return prefix;
            }
        }
    }
}

/// One call: how names and attributes of the body are replaced.
struct FunctionCall<'a> {
    function: &'a FunctionProto,
    prefix: String,
    values: BTreeMap<&'a str, String>,
    attributes: BTreeMap<&'a str, &'a AttributeProto>,
    /// Outputs that need a copy: the formal's value is already known by another name.
    copies: Vec<(String, String)>,
}

impl<'a> FunctionCall<'a> {
    fn new(prefix: String, function: &'a FunctionProto, call: &'a NodeProto) -> Result<FunctionCall<'a>, OnnxError> {
        let (given, taken) = (call.input.len(), function.input.len());
        if given > taken {
            let too_many = FunctionProblem::TooManyInputs { node: describe_node(call), given, taken };
            return Err(problem(function, too_many));
        }
        let (given, returned) = (call.output.len(), function.output.len());
        if given > returned {
            let too_many = FunctionProblem::TooManyOutputs { node: describe_node(call), given, returned };
            return Err(problem(function, too_many));
        }
        let mut values: BTreeMap<&str, String> = BTreeMap::new();
        for (i, formal) in function.input.iter().enumerate() {
            values.insert(formal, call.input.get(i).cloned().unwrap_or_default());
        }
        let assigned = function.node.iter().flat_map(|n| &n.output).find(|o| values.contains_key(o.as_str()));
        if let Some(name) = assigned.filter(|name| !name.is_empty()) {
            return Err(problem(function, FunctionProblem::AssignsInput(name.clone())));
        }
        let mut copies = Vec::new();
        for (formal, actual) in function.output.iter().zip(&call.output) {
            if actual.is_empty() {
                continue;
            }
            match values.get(formal.as_str()) {
                Some(known) => copies.push((known.clone(), actual.clone())),
                None => {
                    values.insert(formal, actual.clone());
                }
            }
        }
        let mut attributes: BTreeMap<&str, &AttributeProto> = BTreeMap::new();
        for attribute in function.attribute_proto.iter().chain(&call.attribute) {
            attributes.insert(attribute.name(), attribute);
        }
        Ok(FunctionCall { function, prefix, values, attributes, copies })
    }

    fn body(&self) -> Vec<NodeProto> {
        let mut nodes: Vec<NodeProto> = self.function.node.iter().map(|n| self.node(n)).collect();
        for (from, to) in &self.copies {
            nodes.push(NodeProto {
                input: vec![from.clone()],
                output: vec![to.clone()],
                name: Some(format!("{}{}", self.prefix, to)),
                op_type: Some("Identity".to_owned()),
                ..NodeProto::default()
            });
        }
        nodes
    }

    fn value(&self, name: &str) -> String {
        match self.values.get(name) {
            Some(actual) => actual.clone(),
            None if name.is_empty() => String::new(),
            None => format!("{}{name}", self.prefix),
        }
    }

    fn node(&self, node: &NodeProto) -> NodeProto {
        NodeProto {
            input: node.input.iter().map(|name| self.value(name)).collect(),
            output: node.output.iter().map(|name| self.value(name)).collect(),
            name: Some(format!("{}{}", self.prefix, node.name())),
            attribute: node.attribute.iter().filter_map(|a| self.attribute(a)).collect(),
            op_type: node.op_type.clone(),
            domain: node.domain.clone(),
            overload: node.overload.clone(),
        }
    }

    /// An attribute of a body node; `None` when it refers to one that the call does not give.
    fn attribute(&self, attribute: &AttributeProto) -> Option<AttributeProto> {
        let mut resolved = match attribute.ref_attr_name() {
            "" => attribute.clone(),
            reference => {
                let given = *self.attributes.get(reference)?;
                AttributeProto { name: attribute.name.clone(), ref_attr_name: None, ..given.clone() }
            }
        };
        // A graph that came by reference belongs to the caller: its names are the caller's.
        if attribute.ref_attr_name().is_empty() {
            resolved.g = resolved.g.map(|g| self.graph(g));
            resolved.graphs = resolved.graphs.into_iter().map(|g| self.graph(g)).collect();
        }
        Some(resolved)
    }

    fn graph(&self, mut graph: GraphProto) -> GraphProto {
        graph.node = graph.node.iter().map(|n| self.node(n)).collect();
        for info in graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info) {
            info.name = Some(self.value(info.name()));
        }
        for tensor in &mut graph.initializer {
            tensor.name = Some(self.value(tensor.name()));
        }
        for sparse in &mut graph.sparse_initializer {
            if let Some(values) = &mut sparse.values {
                values.name = Some(self.value(values.name()));
            }
        }
        graph
    }
}
