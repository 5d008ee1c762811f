//! What the names of ONNX stand for: tensors, or what is known of a sequence or optional value.

use std::rc::Rc;

use tensorc_ir::graph::Value;

use super::error::OnnxError;
use super::import::Importer;
use super::packed::Packed;
use super::unsupported::{Stop, unsupported};

/// What a name of a model stands for.
#[derive(Clone, Debug)]
pub(super) enum Meaning {
    Tensor(Value),
    /// Names of tensors.
    Sequence(Rc<[Rc<str>]>),
    /// A sequence whose length a run decides.
    Packed(Rc<Packed>),
    /// A map: the names of its keys and values, vectors of the same length.
    Map([Rc<str>; 2]),
    /// An optional value without an element. One that has an element is that element.
    Absent,
    /// The result of a node that could not be imported, which has been reported.
    Reported,
}

impl Meaning {
    pub fn tensor(&self) -> Option<Value> {
        match self {
            Meaning::Tensor(value) => Some(*value),
            _ => None,
        }
    }

    /// What it is if it is known and not a tensor.
    pub fn other_than_tensor(&self) -> Option<&'static str> {
        match self {
            Meaning::Tensor(_) | Meaning::Reported => None,
            Meaning::Sequence(_) | Meaning::Packed(_) => Some("a sequence"),
            Meaning::Map(_) => Some("a map"),
            Meaning::Absent => Some("an optional value without an element"),
        }
    }
}

impl From<Option<Value>> for Meaning {
    fn from(value: Option<Value>) -> Meaning {
        value.map_or(Meaning::Reported, Meaning::Tensor)
    }
}

/// The name of an element of an input or output that is a sequence.
pub(super) fn element_name(list: &str, i: usize) -> String {
    format!("{list}[{i}]")
}

impl Importer<'_> {
    /// Ends the import of a node by what its results stand for; the inner error lists what is not supported.
    pub(super) fn settle(
        &mut self,
        outputs: Vec<String>,
        results: Result<Vec<Meaning>, Stop>,
    ) -> Result<Result<(), Vec<String>>, OnnxError> {
        match results {
            Ok(results) if results.len() < outputs.len() => {
                return Ok(Err(vec!["it has more results than its operator or body computes".to_owned()]));
            }
            Ok(results) => {
                self.values.extend(outputs.into_iter().zip(results).filter(|(output, _)| !output.is_empty()));
            }
            Err(Stop::Invalid(error)) => return Err(error),
            Err(Stop::Unsupported(reason)) => return Ok(Err(vec![reason])),
            Err(Stop::Reported) => self.give_up(outputs),
        }
        Ok(Ok(()))
    }

    /// What names stand for, if all of it could be imported.
    pub(super) fn meanings<'n>(&mut self, names: impl IntoIterator<Item = &'n String>) -> Result<Vec<Meaning>, Stop> {
        names.into_iter().map(|name| self.imported(name)).collect()
    }

    /// What a name stands for, if it could be imported.
    pub(super) fn imported(&mut self, name: &str) -> Result<Meaning, Stop> {
        match self.meaning(name)? {
            Meaning::Reported if name.is_empty() => unsupported("an operand is missing"),
            Meaning::Reported => Err(Stop::Reported),
            meaning => Ok(meaning),
        }
    }
}
