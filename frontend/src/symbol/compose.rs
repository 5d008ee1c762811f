//! Applying operators, and putting networks into networks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tensorc_ir::op::Registry;
use tensorc_ir::params::Params;

use super::Symbol;
use super::error::SymbolError;
use super::keys::{Attrs, HIDDEN, stored_key};
use super::node::{Applied, NodeOutput, SymbolNode, VariableUses, key};
use super::operator::{NUM_ARGS, OperandSlot, Operator, operators};
use super::scope::{node_name, scoped_attrs};
use super::text::AttrText;

/// An application of an operator, by any of its names in MXNet or its name in the registry:
/// `op("Convolution").input(&x).param("kernel", [3, 3]).param("num_filter", 8).build()?`.
pub fn op(name: &str) -> OpBuilder<'static> {
    OpBuilder::new(name, None)
}

/// An application of an operator of the caller's registry.
pub fn op_in<'r>(registry: &'r Registry, name: &str) -> OpBuilder<'r> {
    OpBuilder::new(name, Some(registry))
}

/// Collects operands and parameters of an operator.
#[derive(Clone)]
#[must_use = "nothing is made before `build`"]
pub struct OpBuilder<'r> {
    op: String,
    registry: Option<&'r Registry>,
    name: Option<String>,
    inputs: Vec<Symbol>,
    keywords: Vec<(String, Symbol)>,
    attrs: Attrs,
}

impl<'r> OpBuilder<'r> {
    fn new(name: &str, registry: Option<&'r Registry>) -> OpBuilder<'r> {
        let (op, attrs) = (name.to_owned(), Attrs::new());
        OpBuilder { op, registry, name: None, inputs: vec![], keywords: vec![], attrs }
    }

    /// The next operand by position.
    pub fn input(mut self, symbol: &Symbol) -> Self {
        self.inputs.push(symbol.clone());
        self
    }

    /// Further operands by position.
    pub fn inputs<'a>(mut self, symbols: impl IntoIterator<Item = &'a Symbol>) -> Self {
        self.inputs.extend(symbols.into_iter().cloned());
        self
    }

    /// An operand by name.
    pub fn arg(mut self, name: &str, symbol: &Symbol) -> Self {
        self.keywords.push((name.to_owned(), symbol.clone()));
        self
    }

    /// A parameter, typed or as text: `("kernel", [3, 3])`, `("kernel", "(3, 3)")`.
    pub fn param(mut self, name: &str, value: impl AttrText) -> Self {
        self.attrs.insert(name.to_owned(), value.attr_text());
        self
    }

    /// An attribute that is not a parameter: `ctx_group`, `lr_mult`, `__x__`; or for the variable of an
    /// operand, `weight_lr_mult`.
    pub fn attr(mut self, key: &str, value: impl AttrText) -> Self {
        self.attrs.insert(stored_key(key), value.attr_text());
        self
    }

    /// The name of the node; made from that of the operator if not given.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Applies the operator. Operands that are not given become variables named after the node and the
    /// operand, with the attributes of the node.
    ///
    /// # Errors
    /// The operator is not known; a parameter is unknown, missing or wrong; there are too many operands,
    /// one of an unknown name, or one that is not a single value.
    pub fn build(self) -> Result<Symbol, SymbolError> {
        let registry = match self.registry {
            Some(registry) => registry,
            None => operators()?,
        };
        let Some(operator) = Operator::find(registry, &self.op) else {
            return Err(SymbolError::UnknownOperator { op: self.op, node: self.name.unwrap_or_default() });
        };
        let name = node_name(self.name.as_deref(), &hint(&self.op));
        let explicit = self.attrs.into_iter().map(|(key, value)| (stored_key(&key), value)).collect();
        let mut attrs = scoped_attrs(explicit);
        if operator.def().variadic && !self.inputs.is_empty() {
            attrs.entry(NUM_ARGS.to_owned()).or_insert_with(|| self.inputs.len().to_string());
        }
        let routed = split_routed(&operator, &mut attrs);
        let application = Application { operator, name, attrs, routed };
        application.compose(&self.inputs, &self.keywords)
    }
}

/// The stem of automatic names: the name of the operator as functions have it, in lower case.
fn hint(op: &str) -> String {
    let prefixes = ["_contrib_", "_linalg_", "_sparse_", "_image_"];
    let stem = prefixes.iter().find_map(|p| op.strip_prefix(p)).unwrap_or(op);
    stem.to_lowercase()
}

/// An attribute meant for the variable of an operand.
struct Routed {
    operand: String,
    key: String,
    value: String,
}

/// Takes out attributes of the form `weight_lr_mult` whose first part is an operand.
fn split_routed(operator: &Operator, attrs: &mut Attrs) -> Vec<Routed> {
    let mut routed = vec![];
    attrs.retain(|key, value| {
        let found = HIDDEN.iter().find_map(|hidden| {
            let operand = key.strip_suffix(hidden)?.strip_suffix('_')?;
            operator.def().inputs.iter().any(|i| i.name == operand).then(|| (operand.to_owned(), stored_key(hidden)))
        });
        let Some((operand, key)) = found else { return true };
        routed.push(Routed { operand, key, value: value.clone() });
        false
    });
    routed
}

struct Application {
    operator: Operator,
    name: String,
    attrs: Attrs,
    routed: Vec<Routed>,
}

impl Application {
    fn op(&self) -> String {
        self.operator.name().to_string()
    }

    fn compose(self, inputs: &[Symbol], keywords: &[(String, Symbol)]) -> Result<Symbol, SymbolError> {
        let wrong = |problem| SymbolError::param(self.operator.name(), &self.name, problem);
        let params = self.operator.params(&self.attrs, false).map_err(wrong)?;
        let stated = self.attrs.get(NUM_ARGS).and_then(|n| n.parse::<u16>().ok()).map_or(0, usize::from);
        let operands = self.operator.operands(&params, inputs.len().max(stated));
        if inputs.len() > operands.len() {
            let (most, given) = (operands.len(), inputs.len());
            return Err(SymbolError::TooManyOperands { op: self.op(), node: self.name, most, given });
        }
        let mut given: BTreeMap<usize, NodeOutput> = BTreeMap::new();
        for (position, symbol) in inputs.iter().enumerate() {
            given.insert(position, symbol.single(&self.name, &operands[position].name)?.clone());
        }
        for (name, symbol) in keywords {
            let Some(position) = operands.iter().position(|o| o.name == *name) else {
                let candidates = names(&operands[inputs.len()..]);
                return Err(SymbolError::UnknownArgument { symbol: self.name, name: name.clone(), candidates });
            };
            if given.insert(position, symbol.single(&self.name, name)?.clone()).is_some() {
                return Err(SymbolError::OperandTwice { op: self.op(), node: self.name, operand: name.clone() });
            }
        }
        self.finish(params, operands, given)
    }

    fn finish(
        self,
        params: Params,
        operands: Vec<OperandSlot>,
        mut given: BTreeMap<usize, NodeOutput>,
    ) -> Result<Symbol, SymbolError> {
        let mut entries: Vec<NodeOutput> = vec![];
        for (position, operand) in operands.iter().enumerate() {
            let routed = || self.routed.iter().filter(|r| r.operand == operand.name);
            if let Some(entry) = given.remove(&position) {
                if let Some(r) = routed().next() {
                    let (op, node, operand, key) = (self.op(), self.name, operand.name.clone(), r.key.clone());
                    return Err(SymbolError::AttributeOfGiven { op, node, operand, key });
                }
                entries.push(entry);
            } else if operand.required {
                let mut attrs = self.attrs.clone();
                attrs.extend(routed().map(|r| (r.key.clone(), r.value.clone())));
                let name =
                    if self.name.is_empty() { operand.name.clone() } else { format!("{}_{}", self.name, operand.name) };
                entries.push(NodeOutput::first(SymbolNode::variable(name, attrs)));
            } else if !given.is_empty() {
                // Operands are told apart by position in files, so none before a given one may be left out.
                let (op, node) = (self.op(), self.name.clone());
                let (given, needed) = (entries.len(), operands.len());
                return Err(SymbolError::MissingOperands { op, node, needed, given, names: names(&operands) });
            }
        }
        let op = Applied { operator: self.operator, params, subgraphs: vec![] };
        apply(self.name.into(), self.attrs, op, entries).map(Symbol::of_node)
    }
}

fn names(operands: &[OperandSlot]) -> String {
    operands.iter().map(|o| o.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Makes a node. A variable that it writes counts one writer more, and each use remembers how many there
/// were.
pub(super) fn apply(
    name: Arc<str>,
    attrs: Attrs,
    op: Applied,
    mut inputs: Vec<NodeOutput>,
) -> Result<Arc<SymbolNode>, SymbolError> {
    op.check_results(&name)?;
    let count = inputs.len();
    for (position, entry) in inputs.iter_mut().enumerate().filter(|(_, e)| e.node.is_variable()) {
        entry.version = entry.node.version();
        if let Some(value) = asked_initializer(op.operator.name(), position) {
            entry.node.ask_initializer(value);
        }
    }
    let states = op.operator.def().states(&op.params);
    if !states.is_empty() {
        let operands = op.operator.operands(&op.params, count);
        let written = |slot: usize| states.iter().any(|(state, _)| *state == slot);
        for (entry, operand) in inputs.iter_mut().zip(&operands).filter(|(_, o)| written(o.slot)) {
            if !entry.node.is_variable() {
                let (op, node) = (op.operator.name().to_string(), name.to_string());
                return Err(SymbolError::StateNotVariable { op, node, operand: operand.name.clone() });
            }
            entry.version = entry.node.add_writer();
        }
    }
    Ok(Arc::new(SymbolNode { name, attrs, op: Some(op), inputs, control: vec![], uses: VariableUses::default() }))
}

/// The first value that an operator asks for in the variable at an operand position.
pub(super) fn asked_initializer(op: &str, position: usize) -> Option<&'static str> {
    match (op, position) {
        ("BatchNorm" | "BatchNorm_v1" | "_contrib_SyncBatchNorm", 3) => Some("[\"zero\", {}]"),
        ("BatchNorm" | "BatchNorm_v1" | "_contrib_SyncBatchNorm", 4) => Some("[\"one\", {}]"),
        ("LeakyReLU", 1) => Some("[\"Constant\", {\"value\": 0.25}]"),
        _ => None,
    }
}

impl Symbol {
    /// Replaces free variables by outputs of other symbols, in a copy: `net2.compose(&[("data", &net1)])`.
    ///
    /// # Errors
    /// There is no variable of a name, or a replacement is not a single value.
    pub fn compose(&self, replacements: &[(&str, &Symbol)]) -> Result<Symbol, SymbolError> {
        self.replace(None, replacements)
    }

    /// As [`Symbol::compose`], and names the node of the result.
    ///
    /// # Errors
    /// As [`Symbol::compose`].
    pub fn compose_as(&self, name: &str, replacements: &[(&str, &Symbol)]) -> Result<Symbol, SymbolError> {
        self.replace(Some(name), replacements)
    }

    fn replace(&self, name: Option<&str>, replacements: &[(&str, &Symbol)]) -> Result<Symbol, SymbolError> {
        let nodes = self.nodes();
        let mut by_name: BTreeMap<&str, NodeOutput> = BTreeMap::new();
        for (name, symbol) in replacements {
            if !nodes.iter().any(|n| n.is_variable() && &*n.name == *name) {
                let candidates = self.list_inputs().join(", ");
                return Err(SymbolError::UnknownArgument {
                    symbol: self.title(),
                    name: (*name).to_owned(),
                    candidates,
                });
            }
            by_name.insert(name, symbol.single(&self.title(), name)?.clone());
        }
        let renamed = name.zip(self.heads.first()).map(|(name, head)| (key(&head.node), Arc::<str>::from(name)));
        let mut new: HashMap<usize, Moved> = HashMap::new();
        for node in &nodes {
            if let Some(entry) = node.is_variable().then(|| by_name.get(&*node.name)).flatten() {
                new.insert(key(node), Moved::Value(entry.clone()));
                continue;
            }
            let name = renamed.as_ref().filter(|(k, _)| *k == key(node)).map(|(_, name)| name.clone());
            let stale = |n: &Arc<SymbolNode>| new.contains_key(&key(n));
            if name.is_some() || node.inputs.iter().any(|e| stale(&e.node)) || node.control.iter().any(stale) {
                let copy = rebuilt(node, name, &new)?;
                new.insert(key(node), Moved::Node(copy));
            }
        }
        Ok(Symbol::of(self.heads.iter().map(|e| moved(e, &new)).collect()))
    }
}

/// What stands for a node in a copy.
enum Moved {
    /// A variable was replaced by this.
    Value(NodeOutput),
    /// The node has other operands now.
    Node(Arc<SymbolNode>),
}

fn moved(entry: &NodeOutput, new: &HashMap<usize, Moved>) -> NodeOutput {
    match new.get(&key(&entry.node)) {
        None => entry.clone(),
        Some(Moved::Value(value)) => value.clone(),
        Some(Moved::Node(node)) => NodeOutput { node: node.clone(), index: entry.index, version: entry.version },
    }
}

fn rebuilt(
    node: &SymbolNode,
    name: Option<Arc<str>>,
    new: &HashMap<usize, Moved>,
) -> Result<Arc<SymbolNode>, SymbolError> {
    let inputs: Vec<NodeOutput> = node.inputs.iter().map(|e| moved(e, new)).collect();
    let control = node.control.iter().map(|n| match new.get(&key(n)) {
        None => n.clone(),
        Some(Moved::Value(entry)) => entry.node.clone(),
        Some(Moved::Node(copy)) => copy.clone(),
    });
    let name = name.unwrap_or_else(|| node.name.clone());
    let wrong = (0..inputs.len()).find(|i| node.writes(*i) && !inputs[*i].node.is_variable());
    if let (Some(position), Some(op)) = (wrong, &node.op) {
        let operands = op.operator.operands(&op.params, inputs.len());
        let (op, node) = (op.operator.name().to_string(), name.to_string());
        return Err(SymbolError::StateNotVariable { op, node, operand: operands[position].name.clone() });
    }
    let uses = VariableUses::default();
    Ok(Arc::new(SymbolNode {
        name,
        attrs: node.attrs.clone(),
        op: node.op.clone(),
        inputs,
        control: control.collect(),
        uses,
    }))
}
