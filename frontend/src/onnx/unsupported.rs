//! The report of everything in a model that tensorc does not support.

use std::collections::BTreeMap;
use std::fmt;

use super::error::OnnxError;

/// A use of an operator that is not supported, with all nodes that it concerns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnsupportedOp {
    /// The operator.
    pub op: String,
    /// Its domain.
    pub domain: String,
    /// Version of the operator set; `None` if the model imports none of that domain.
    pub opset: Option<i64>,
    /// Why it is not supported.
    pub reason: String,
    /// Names of the nodes, sorted; for nodes without one that of the first result.
    pub nodes: Vec<String>,
}

/// Why an `If` is not supported whose branches more knowledge of the inputs would decide.
pub(super) const UNDECIDED: &str = "its condition and the types of its branches' results are not known at compile time";

/// Why an `If` is not supported that stays undecided while its branches have nothing in common.
pub(super) const UNLIKE: &str =
    "which of its branches is taken is not known, and they give results of different element types or ranks";

/// Why an input is not supported of which the caller has to say how many tensors there are.
pub(super) const UNKNOWN_LENGTH: &str = "it is a sequence or optional, and it is not known how many tensors it has";

/// Why a node is not imported that becomes others.
pub(super) enum Stop {
    Invalid(OnnxError),
    /// What is not supported.
    Unsupported(String),
    /// Something that it uses is not supported, and has been reported.
    Reported,
}

impl From<OnnxError> for Stop {
    fn from(error: OnnxError) -> Stop {
        Stop::Invalid(error)
    }
}

pub(super) fn unsupported<T>(reason: &str) -> Result<T, Stop> {
    Err(Stop::Unsupported(reason.to_owned()))
}

/// All at once, so that a model can be judged without importing it again and again.
#[derive(Clone, Debug, Default)]
pub struct Unsupported {
    nodes: BTreeMap<(String, String, Option<i64>, String), Vec<String>>,
    values: BTreeMap<(&'static str, String), String>,
}

impl Unsupported {
    pub(super) fn node(&mut self, op: &str, domain: &str, opset: Option<i64>, reason: String, name: &str) {
        let key = (op.to_owned(), domain.to_owned(), opset, reason);
        self.nodes.entry(key).or_default().push(name.to_owned());
    }

    pub(super) fn input(&mut self, name: &str, reason: String) {
        self.values.insert(("input", name.to_owned()), reason);
    }

    pub(super) fn value(&mut self, name: &str, reason: String) {
        self.values.insert(("value", name.to_owned()), reason);
    }

    pub(super) fn initializer(&mut self, name: &str, reason: String) {
        self.values.insert(("initializer", name.to_owned()), reason);
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.values.is_empty()
    }

    /// Whether all that is missing is to know which branches are taken, and how many tensors inputs have.
    pub fn only_undecided(&self) -> bool {
        self.values.values().all(|reason| reason == UNKNOWN_LENGTH)
            && self.nodes.keys().all(|(.., reason)| reason == UNDECIDED)
    }

    /// Whether more knowledge of inputs would help with something.
    pub fn any_undecided(&self) -> bool {
        self.nodes.keys().any(|(.., reason)| reason == UNDECIDED || reason == UNLIKE)
    }

    /// Operators, sorted by name, domain, version and reason.
    pub fn ops(&self) -> Vec<UnsupportedOp> {
        let entry = |((op, domain, opset, reason), nodes): (&(String, String, Option<i64>, String), &Vec<String>)| {
            let mut nodes = nodes.clone();
            nodes.sort();
            UnsupportedOp { op: op.clone(), domain: domain.clone(), opset: *opset, reason: reason.clone(), nodes }
        };
        self.nodes.iter().map(entry).collect()
    }

    /// Inputs, initialisers and other values: what they are, name and reason, sorted.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, &str, &str)> {
        self.values.iter().map(|((what, name), reason)| (*what, name.as_str(), reason.as_str()))
    }
}

/// Node names shown of one entry; [`Unsupported::ops`] has all.
const NAMES_SHOWN: usize = 6;

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for UnsupportedOp { op, domain, opset, reason, nodes } in self.ops() {
            let version = opset.map_or_else(|| "not imported".to_owned(), |v| format!("opset {v}"));
            let plural = if nodes.len() == 1 { "" } else { "s" };
            write!(f, "{separator}{op} ({domain}, {version}), {} node{plural}: ", nodes.len())?;
            for (i, node) in nodes.iter().take(NAMES_SHOWN).enumerate() {
                write!(f, "{}`{node}`", if i > 0 { ", " } else { "" })?;
            }
            if nodes.len() > NAMES_SHOWN {
                write!(f, " and {} more", nodes.len() - NAMES_SHOWN)?;
            }
            write!(f, ": {reason}")?;
            separator = "; ";
        }
        for (what, name, reason) in self.values() {
            write!(f, "{separator}{what} `{name}`: {reason}")?;
            separator = "; ";
        }
        Ok(())
    }
}
