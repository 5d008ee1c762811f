//! Symbols: networks written down before they are run.
//!
//! A [`Symbol`] is a list of outputs of a graph of operators and variables. Operators are applied with
//! [`op`], whole networks with [`Symbol::compose`]; names, attributes and listings follow MXNet, whose
//! files they are read from and written to. [`Symbol::to_graph`] makes a graph for the compiler.

mod alias;
mod arith;
mod attrs;
mod compose;
mod control;
mod error;
mod flow;
mod json;
mod keys;
mod list;
mod lower;
mod node;
mod operator;
mod scope;
mod text;
mod variable;

use std::fmt;
use std::sync::Arc;

pub use alias::canonical;
pub use compose::{OpBuilder, op, op_in};
pub use error::SymbolError;
pub use flow::{Loop, cond, foreach, while_loop};
pub use keys::Attrs;
pub use lower::{InputType, Lowering, Random, SymbolGraph};
pub use node::Symbol;
pub use operator::{OperandSlot, Operator, operators};
pub use scope::{ScopeGuard, attr_scope, name_scope, prefix_scope};
pub use text::{AttrText, Expected, ParamProblem};
pub use variable::{VariableBuilder, variable};

use node::{NodeOutput, SymbolNode, post_order};

impl Symbol {
    /// A free variable without attributes but those of the scope.
    pub fn variable(name: &str) -> Symbol {
        Symbol::of(vec![NodeOutput::first(SymbolNode::variable(name, scope::scoped_attrs(Attrs::new())))])
    }

    /// The outputs of several symbols as one symbol.
    pub fn group<'a>(symbols: impl IntoIterator<Item = &'a Symbol>) -> Symbol {
        Symbol::of(symbols.into_iter().flat_map(|s| s.heads.iter().cloned()).collect())
    }

    fn of(heads: Vec<NodeOutput>) -> Symbol {
        Symbol { heads: heads.into() }
    }

    /// Every output of a node that users see.
    fn of_node(node: Arc<SymbolNode>) -> Symbol {
        let visible = node.results().visible as u32;
        let version = node.version();
        Symbol::of((0..visible).map(|index| NodeOutput { node: node.clone(), index, version }).collect())
    }

    /// Number of outputs.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether there are no outputs.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// The name of the node whose output, or outputs, this is; `None` if there are several nodes.
    pub fn name(&self) -> Option<&str> {
        let first = self.heads.first()?;
        let same = self.heads.iter().all(|e| Arc::ptr_eq(&e.node, &first.node));
        same.then_some(&*first.node.name)
    }

    /// For messages: the name, or the names of the outputs.
    fn title(&self) -> String {
        self.name().map_or_else(|| self.list_outputs().join(", "), str::to_owned)
    }

    fn nodes(&self) -> Vec<Arc<SymbolNode>> {
        post_order(&self.heads)
    }

    /// The one output this has.
    fn single(&self, symbol: &str, name: &str) -> Result<&NodeOutput, SymbolError> {
        match &*self.heads {
            [one] => Ok(one),
            heads => {
                Err(SymbolError::NotSingle { symbol: symbol.to_owned(), name: name.to_owned(), outputs: heads.len() })
            }
        }
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "<Symbol {name}>"),
            None => {
                let names: Vec<&str> = self.heads.iter().map(|e| &*e.node.name).collect();
                write!(f, "<Symbol group [{}]>", names.join(", "))
            }
        }
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
