//! Expansion of model-local functions into the nodes that call them.
//!
//! A function body sees nothing but its inputs and attributes, so a call is replaced by a copy of
//! the body in which formal names become the caller's names and all others get a prefix unique to
//! the call. Bodies may use other operator set versions than the model: every node of the result
//! carries its own.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::error::{FunctionProblem, OnnxError, describe_node};
use super::limits::Budget;
use super::load::{Opsets, canonical_domain};
use super::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto};
use super::weight::node_weight;

/// Depth of calls within calls; deeper ones come only from broken or hostile models.
const MAX_DEPTH: usize = 64;

/// A node and the operator set versions in force where it was written.
#[derive(Clone, Debug)]
pub struct ScopedNode {
    /// The node.
    pub node: NodeProto,
    /// The versions of operators that hold where it stands.
    pub opsets: Rc<Opsets>,
}

type FunctionKey = (String, String, String);

/// The functions of a model, none of which calls itself.
#[derive(Debug, Default)]
pub struct Functions {
    list: Vec<(FunctionProto, Rc<Opsets>)>,
    by_key: BTreeMap<FunctionKey, usize>,
}

impl Functions {
    /// # Errors
    /// A function is defined twice, calls itself, also in a nested graph or through others, or uses an operator set version
    /// that is not supported.
    pub fn new(protos: Vec<FunctionProto>) -> Result<Functions, OnnxError> {
        let mut functions = Functions::default();
        for proto in protos {
            let key =
                (canonical_domain(proto.domain()).to_owned(), proto.name().to_owned(), proto.overload().to_owned());
            if functions.by_key.insert(key, functions.list.len()).is_some() {
                return Err(problem(&proto, FunctionProblem::Duplicate));
            }
            let opsets = Rc::new(Opsets::new(&proto.opset_import)?);
            functions.list.push((proto, opsets));
        }
        let mut done = vec![false; functions.list.len()];
        (0..done.len()).try_for_each(|function| functions.follow(function, &mut done, &mut vec![]))?;
        Ok(functions)
    }

    /// All functions, with the operator set versions that they use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&FunctionProto, &Opsets)> {
        self.list.iter().map(|(proto, opsets)| (proto, &**opsets))
    }

    fn position(&self, call: &NodeProto) -> Option<usize> {
        if self.list.is_empty() {
            return None;
        }
        let key = (canonical_domain(call.domain()).to_owned(), call.op_type().to_owned(), call.overload().to_owned());
        self.by_key.get(&key).copied()
    }

    /// The function that a node calls.
    pub(super) fn get(&self, call: &NodeProto) -> Option<&FunctionProto> {
        Some(&self.list[self.position(call)?].0)
    }

    /// Follows the calls of a function; `active` are those that lead to it.
    fn follow(&self, function: usize, done: &mut [bool], active: &mut Vec<usize>) -> Result<(), OnnxError> {
        let proto = &self.list[function].0;
        if active.contains(&function) {
            let through = active.last().map(|&f| self.list[f].0.name().to_owned()).unwrap_or_default();
            return Err(problem(proto, FunctionProblem::Recursive(through)));
        }
        if active.len() >= MAX_DEPTH {
            return Err(problem(proto, FunctionProblem::TooDeep(MAX_DEPTH)));
        }
        if done[function] {
            return Ok(());
        }
        active.push(function);
        let mut calls = BTreeSet::new();
        self.calls(&proto.node, &mut calls);
        calls.into_iter().try_for_each(|callee| self.follow(callee, done, active))?;
        active.pop();
        done[function] = true;
        Ok(())
    }

    /// The functions that nodes call, in nested graphs too.
    fn calls(&self, nodes: &[NodeProto], found: &mut BTreeSet<usize>) {
        for node in nodes {
            found.extend(self.position(node));
            node.nested().for_each(|graph| self.calls(&graph.node, found));
        }
    }

    /// The nodes of a graph with every call of a function replaced by its body, in order.
    ///
    /// # Errors
    /// A function assigns its inputs, or is called with too many values; or the expansion is too large.
    pub fn expand(
        &self,
        nodes: Vec<NodeProto>,
        opsets: &Rc<Opsets>,
        budget: &mut Budget,
    ) -> Result<Vec<ScopedNode>, OnnxError> {
        let mut expander = Expander { functions: self, budget, taken: BTreeSet::new(), nodes: Vec::new(), calls: 0 };
        if !self.list.is_empty() {
            expander.taken = nodes.iter().flat_map(|n| n.input.iter().chain(&n.output)).cloned().collect();
        }
        for node in nodes {
            expander.place(ScopedNode { node, opsets: opsets.clone() }, 0)?;
        }
        Ok(expander.nodes)
    }
}

fn problem(function: &FunctionProto, problem: FunctionProblem) -> OnnxError {
    OnnxError::Function { function: format!("{}.{}", canonical_domain(function.domain()), function.name()), problem }
}

struct Expander<'a> {
    functions: &'a Functions,
    budget: &'a mut Budget,
    /// Value names of the calling graph, which prefixes must not run into.
    taken: BTreeSet<String>,
    nodes: Vec<ScopedNode>,
    calls: usize,
}

impl Expander<'_> {
    /// Appends `scoped`, expanded if it is a call; `depth` is how many calls lead to it.
    fn place(&mut self, scoped: ScopedNode, depth: usize) -> Result<(), OnnxError> {
        let node = &scoped.node;
        let Some(position) = self.functions.position(node) else {
            self.nodes.push(scoped);
            return Ok(());
        };
        let (function, opsets) = &self.functions.list[position];
        if depth >= MAX_DEPTH {
            return Err(problem(function, FunctionProblem::TooDeep(MAX_DEPTH)));
        }
        let call = FunctionCall::new(self.prefix(node, depth == 0), function, node)?;
        for index in 0..call.len() {
            // Functions that call each other twice grow exponentially.
            self.budget.allows_nodes((self.nodes.len() + self.calls) as u64)?;
            let node = call.node_at(index);
            self.budget.take_copy(node_weight(&node))?;
            self.place(ScopedNode { node, opsets: opsets.clone() }, depth + 1)?;
        }
        Ok(())
    }

    /// A prefix for the names of one call's body. Calls within calls leave out the call's name,
    /// which has a prefix itself: names would grow with the depth.
    fn prefix(&mut self, call: &NodeProto, outermost: bool) -> String {
        let label = short(if outermost && !call.name().is_empty() { call.name() } else { call.op_type() });
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

/// The beginning of a name, for prefixes: a long one would be copied to every value of a body.
pub(super) fn short(name: &str) -> &str {
    const MOST: usize = 128;
    &name[..name.floor_char_boundary(MOST)]
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

    /// Number of nodes that take the place of the call.
    fn len(&self) -> usize {
        self.function.node.len() + self.copies.len()
    }

    /// One of these nodes.
    fn node_at(&self, index: usize) -> NodeProto {
        match self.function.node.get(index) {
            Some(node) => self.node(node),
            None => {
                let (from, to) = &self.copies[index - self.function.node.len()];
                NodeProto::of("Identity", &[from], to, Some(format!("{}{}", self.prefix, to)))
            }
        }
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
        for name in graph.value_names() {
            *name = Some(self.value(name.as_deref().unwrap_or_default()));
        }
        graph
    }
}
