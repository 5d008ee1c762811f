//! Reading the attributes of symbols.

use std::collections::BTreeMap;

use super::Symbol;
use super::keys::{Attrs, HIDDEN};
use super::node::SymbolNode;

/// The attributes of a node, those with two spellings under both.
fn both_spellings(node: &SymbolNode) -> Attrs {
    let own = node.attributes();
    let mut attrs = own.clone().into_owned();
    for key in HIDDEN {
        if let Some(value) = own.get(&format!("__{key}__")) {
            attrs.insert(key.to_owned(), value.clone());
        }
    }
    attrs
}

impl Symbol {
    /// An attribute of the node this is an output of. `lr_mult` and the like may be asked for with and
    /// without underscores, and as `weight_lr_mult` for the variable of an operand.
    pub fn attr(&self, key: &str) -> Option<String> {
        self.name()?;
        let node = &self.heads.first()?.node;
        let attrs = node.attributes();
        if let Some(value) = attrs.get(key).or_else(|| attrs.get(&format!("__{key}__"))) {
            return Some(value.clone());
        }
        let (operand, hidden) = HIDDEN.iter().find_map(|h| Some((key.strip_suffix(h)?.strip_suffix('_')?, h)))?;
        let op = node.op.as_ref()?;
        let operands = op.operator.operands(&op.params, node.inputs.len());
        let position = operands.iter().position(|o| o.name == operand)?;
        node.inputs.get(position)?.node.attrs.get(&format!("__{hidden}__")).cloned()
    }

    /// The attributes of the node this is an output of; empty for a group.
    pub fn list_attr(&self) -> Attrs {
        match (self.name(), self.heads.first()) {
            (Some(_), Some(entry)) => both_spellings(&entry.node),
            _ => Attrs::new(),
        }
    }

    /// The attributes of every node that has any, by name of the node.
    pub fn attr_dict(&self) -> BTreeMap<String, Attrs> {
        let nodes = self.nodes();
        let with = nodes.iter().filter(|n| !n.attributes().is_empty());
        with.map(|n| (n.name.to_string(), both_spellings(n))).collect()
    }
}
