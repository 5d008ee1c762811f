//! Nodes of a symbol's graph, and the order in which they are visited.
//!
//! Nodes never change once they are made, so symbols share them and cloning is cheap.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use tensorc_ir::op::ResultCount;
use tensorc_ir::params::Params;

use super::error::SymbolError;
use super::keys::INIT;
use super::operator::Operator;
use crate::symbol::Attrs;

/// One output of one node.
#[derive(Clone)]
pub(super) struct NodeOutput {
    pub node: Arc<SymbolNode>,
    pub index: u32,
    /// How often the variable had been written when it was used.
    pub version: u32,
}

/// An application of an operator.
#[derive(Clone)]
pub(super) struct Applied {
    pub operator: Operator,
    /// The attributes, parsed. Defaults are filled in.
    pub params: Params,
    /// Graphs that the node runs, of operators for control flow.
    pub subgraphs: Vec<Symbol>,
}

pub(super) struct SymbolNode {
    pub name: Arc<str>,
    pub attrs: Attrs,
    /// `None`: a variable.
    pub op: Option<Applied>,
    pub inputs: Vec<NodeOutput>,
    /// Nodes that run before this one although it uses none of their results.
    pub control: Vec<Arc<SymbolNode>>,
    /// For a variable, what its uses say about it.
    pub uses: VariableUses,
}

/// What the operators that use a variable say about it, the only part of a node that grows.
#[derive(Default)]
pub(super) struct VariableUses {
    /// The number of nodes that write the variable so far.
    writers: AtomicU32,
    /// The first value an operator asks for.
    initializer: OnceLock<&'static str>,
}

impl NodeOutput {
    /// The only result of a variable that no node has written.
    pub fn first(node: Arc<SymbolNode>) -> NodeOutput {
        NodeOutput { node, index: 0, version: 0 }
    }
}

impl Applied {
    /// Refuses numbers of results that no graph can have.
    pub fn check_results(&self, node: &str) -> Result<(), SymbolError> {
        let (results, most) = (self.operator.def().result_count(&self.params).listed, usize::from(u16::MAX));
        let (op, node) = (self.operator.name().to_string(), node.to_owned());
        if results > most { Err(SymbolError::TooManyResults { op, node, results, most }) } else { Ok(()) }
    }
}

impl SymbolNode {
    pub fn variable(name: impl Into<Arc<str>>, attrs: Attrs) -> Arc<SymbolNode> {
        let name = name.into();
        Arc::new(SymbolNode { name, attrs, op: None, inputs: vec![], control: vec![], uses: VariableUses::default() })
    }

    pub fn is_variable(&self) -> bool {
        self.op.is_none()
    }

    /// Number of results: those users see, and all that are numbered.
    pub fn results(&self) -> ResultCount {
        match &self.op {
            Some(op) => op.operator.def().result_count(&op.params),
            None => ResultCount { visible: 1, listed: 1 },
        }
    }

    /// The name of one result: `node_output`, `node_output1`; variables keep theirs.
    pub fn output_name(&self, index: u32) -> String {
        let Some(op) = &self.op else { return self.name.to_string() };
        let names = &op.operator.def().result_names;
        let result = match names.get(index as usize) {
            Some(name) => (*name).to_owned(),
            None if self.results().listed == 1 => "output".to_owned(),
            None => format!("output{index}"),
        };
        if self.name.is_empty() { result } else { format!("{}_{result}", self.name) }
    }

    /// Whether the operand at a position is written by the operator.
    pub fn writes(&self, position: usize) -> bool {
        self.op.as_ref().is_some_and(|op| op.operator.writes(&op.params, self.inputs.len(), position))
    }

    /// The attributes, with what an operator asks for in a variable that says nothing itself.
    pub fn attributes(&self) -> Cow<'_, Attrs> {
        match self.uses.initializer.get() {
            Some(value) if !self.attrs.contains_key(INIT) => {
                let mut attrs = self.attrs.clone();
                attrs.insert(INIT.to_owned(), (*value).to_owned());
                Cow::Owned(attrs)
            }
            _ => Cow::Borrowed(&self.attrs),
        }
    }

    /// Asks for the first value of a variable. The first to ask decides.
    pub fn ask_initializer(&self, value: &'static str) {
        self.uses.initializer.get_or_init(|| value);
    }

    /// The number of writers a new use of this node sees.
    pub fn version(&self) -> u32 {
        self.uses.writers.load(Ordering::Relaxed)
    }

    /// Counts a writer more and returns their number.
    pub fn add_writer(&self) -> u32 {
        self.uses.writers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts at least this many writers.
    pub fn at_least_writers(&self, count: u32) {
        self.uses.writers.fetch_max(count, Ordering::Relaxed);
    }
}

impl Drop for SymbolNode {
    /// Long chains of nodes are taken apart in a loop, not by recursion.
    fn drop(&mut self) {
        let mut orphans: Vec<Arc<SymbolNode>> = self.inputs.drain(..).map(|e| e.node).collect();
        orphans.append(&mut self.control);
        while let Some(node) = orphans.pop() {
            if let Some(mut last) = Arc::into_inner(node) {
                orphans.extend(last.inputs.drain(..).map(|e| e.node));
                orphans.append(&mut last.control);
            }
        }
    }
}

/// The address of a node, which tells nodes apart while a symbol holds them.
pub(super) fn key(node: &Arc<SymbolNode>) -> usize {
    Arc::as_ptr(node) as usize
}

/// Every node that the entries need, operands first: depth first, in the order of operands, each at
/// its first visit.
pub(super) fn post_order(heads: &[NodeOutput]) -> Vec<Arc<SymbolNode>> {
    let mut seen: HashSet<usize> = HashSet::new();
    let mut order = vec![];
    let mut stack: Vec<(&Arc<SymbolNode>, usize)> = vec![];
    for head in heads {
        if seen.insert(key(&head.node)) {
            stack.push((&head.node, 0));
        }
        while let Some((node, next)) = stack.pop() {
            let child = match next.checked_sub(node.inputs.len()) {
                None => Some(&node.inputs[next].node),
                Some(beyond) => node.control.get(beyond),
            };
            match child {
                Some(child) => {
                    stack.push((node, next + 1));
                    if seen.insert(key(child)) {
                        stack.push((child, 0));
                    }
                }
                None => order.push(node.clone()),
            }
        }
    }
    order
}

/// A network, or several values of one. Cloning shares it.
///
/// A symbol has no value, so it is no condition (A039):
///
/// ```compile_fail
/// # use tensorc_frontend::symbol::Symbol;
/// if Symbol::variable("x") {}
/// ```
#[derive(Clone)]
pub struct Symbol {
    pub(super) heads: Arc<[NodeOutput]>,
}
