//! What a symbol consists of: arguments, states, outputs, internals, children.

use std::collections::HashSet;
use std::sync::Arc;

use super::Symbol;
use super::error::SymbolError;
use super::node::{NodeOutput, SymbolNode, key};

/// A variable of a symbol.
pub(super) struct Variable {
    pub node: Arc<SymbolNode>,
    /// Whether an operator writes it.
    pub auxiliary: bool,
}

/// Every variable among nodes in visiting order.
pub(super) fn variables(nodes: &[Arc<SymbolNode>]) -> Vec<Variable> {
    let mut written: HashSet<usize> = HashSet::new();
    for node in nodes.iter().filter(|n| !n.is_variable()) {
        let states = (0..node.inputs.len()).filter(|i| node.writes(*i));
        written.extend(states.map(|i| key(&node.inputs[i].node)));
    }
    let of = |node: &Arc<SymbolNode>| Variable { node: node.clone(), auxiliary: written.contains(&key(node)) };
    nodes.iter().filter(|n| n.is_variable()).map(of).collect()
}

impl Symbol {
    fn variable_names(&self, wanted: impl Fn(&Variable) -> bool) -> Vec<String> {
        variables(&self.nodes()).iter().filter(|v| wanted(v)).map(|v| v.node.name.to_string()).collect()
    }

    /// Names of the variables that are only read, depth first in the order of operands.
    pub fn list_arguments(&self) -> Vec<String> {
        self.variable_names(|v| !v.auxiliary)
    }

    /// Names of the variables that operators write, such as moving averages.
    pub fn list_auxiliary_states(&self) -> Vec<String> {
        self.variable_names(|v| v.auxiliary)
    }

    /// Names of all variables.
    pub fn list_inputs(&self) -> Vec<String> {
        self.variable_names(|_| true)
    }

    /// Variables that operators take as one value whatever they hold, with that value: the gamma of a batch
    /// normalisation that fixes it.
    pub fn list_fixed(&self) -> Vec<(String, f64)> {
        let mut found: Vec<(String, f64)> = vec![];
        for node in self.nodes() {
            let Some(op) = &node.op else { continue };
            let Some(rule) = &op.operator.def().fixed else { continue };
            for (operand, entry) in op.operator.operands(&op.params, node.inputs.len()).iter().zip(&node.inputs) {
                let name = entry.node.name.to_string();
                match rule(&op.params, operand.slot) {
                    Some(value) if entry.node.is_variable() && found.iter().all(|(n, _)| *n != name) => {
                        found.push((name, value));
                    }
                    _ => {}
                }
            }
        }
        found
    }

    /// Names of the outputs: `node_output`, `node_output1`; a variable keeps its name.
    pub fn list_outputs(&self) -> Vec<String> {
        self.heads.iter().map(|e| e.node.output_name(e.index)).collect()
    }

    /// Every output of every node that users see, in visiting order.
    pub fn internals(&self) -> Symbol {
        let all = |node: Arc<SymbolNode>| {
            let visible = node.results().visible as u32;
            (0..visible).map(move |index| NodeOutput { node: node.clone(), index, version: 0 })
        };
        Symbol::of(self.nodes().into_iter().flat_map(all).collect())
    }

    /// The direct operands of the nodes whose outputs these are; `None` if they are variables.
    pub fn children(&self) -> Option<Symbol> {
        let mut seen = HashSet::new();
        let nodes = self.heads.iter().filter(|e| seen.insert(key(&e.node)));
        let entries: Vec<NodeOutput> = nodes.flat_map(|e| e.node.inputs.iter().cloned()).collect();
        (!entries.is_empty()).then(|| Symbol::of(entries))
    }

    /// The output of a name.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub fn get(&self, name: &str) -> Result<Symbol, SymbolError> {
        let outputs = self.list_outputs();
        let mut found = (0..outputs.len()).filter(|i| outputs[*i] == name);
        match (found.next(), found.next()) {
            (Some(i), None) => self.output(i),
            (None, _) => Err(SymbolError::UnknownOutput {
                symbol: self.title(),
                name: name.to_owned(),
                candidates: outputs.join(", "),
            }),
            (Some(_), Some(_)) => Err(SymbolError::AmbiguousOutput { symbol: self.title(), name: name.to_owned() }),
        }
    }

    /// The output of a number.
    ///
    /// # Errors
    /// There are fewer outputs.
    pub fn output(&self, index: usize) -> Result<Symbol, SymbolError> {
        let entry = self.heads.get(index).cloned();
        let wrong = || SymbolError::OutputRange { symbol: self.title(), index, outputs: self.len() };
        entry.map(|e| Symbol::of(vec![e])).ok_or_else(wrong)
    }

    /// Every output as a symbol of its own.
    pub fn outputs(&self) -> impl Iterator<Item = Symbol> + '_ {
        self.heads.iter().map(|e| Symbol::of(vec![e.clone()]))
    }
}
