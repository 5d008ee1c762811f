//! Operators that read or make texts. Graphs have no tensors of texts, so that these are not entries of the registry: the host computes
//! them between runs of graphs.

mod array;
mod grams;
mod map;
mod normalise;
mod number;
mod pattern;
mod split;

use std::fmt;

use tensorc_ir::op::{OnnxName, OpError};
use tensorc_ir::params::{ParamKind, Params};
use tensorc_ir::{DType, Dim, TensorData};

pub use array::TextArray;

/// An operand or result.
#[derive(Clone, Debug, PartialEq)]
pub enum HostValue {
    /// Texts.
    Texts(TextArray),
    /// Numbers.
    Numbers(TensorData),
}

impl HostValue {
    /// The extents, outermost first.
    pub fn dims(&self) -> &[u64] {
        match self {
            HostValue::Texts(texts) => texts.dims(),
            HostValue::Numbers(numbers) => numbers.dims(),
        }
    }

    /// The texts.
    ///
    /// # Errors
    /// They are numbers.
    pub fn texts(&self) -> Result<&TextArray, OpError> {
        match self {
            HostValue::Texts(texts) => Ok(texts),
            HostValue::Numbers(numbers) => Err(format!("an operand holds {}, not texts", numbers.dtype()).into()),
        }
    }
}

/// The type of a result as far as it follows from those of the operands.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultType {
    /// The type of numbers; `None` for texts.
    pub dtype: Option<DType>,
    /// The extents, of which some may be unknown; `None` if not even their number is known.
    pub dims: Option<Vec<Option<Dim>>>,
}

/// The type of an operand as far as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperandType {
    /// The type of numbers; `None` for texts.
    pub dtype: Option<DType>,
    /// The extents; `None` if not even their number is known.
    pub dims: Option<Vec<Dim>>,
}

/// An operator with its parameters.
pub trait TextOperator: fmt::Debug + Send + Sync {
    /// The types of the results.
    fn types(&self, operands: &[OperandType]) -> Vec<ResultType>;

    /// The results.
    ///
    /// # Errors
    /// The operands are not what the operator takes.
    fn apply(&self, operands: &[HostValue]) -> Result<Vec<HostValue>, OpError>;
}

/// Makes an operator of its parameters.
type Make = fn(&Params) -> Result<Box<dyn TextOperator>, OpError>;

/// An operator as models name it.
#[derive(Clone, Copy, Debug)]
pub struct TextOpDef {
    /// Its domain.
    pub domain: &'static str,
    /// Its name there.
    pub name: &'static str,
    /// The names and kinds of its parameters.
    pub params: &'static [(&'static str, ParamKind)],
    /// Fewest and most operands.
    pub operands: (usize, usize),
    make: Make,
}

impl TextOpDef {
    /// The operator for these parameters.
    ///
    /// # Errors
    /// One of them is missing or wrong.
    pub fn operator(&self, params: &Params) -> Result<Box<dyn TextOperator>, OpError> {
        (self.make)(params)
    }
}

/// All operators.
pub const OPERATORS: &[TextOpDef] = &[
    normalise::NORMALISER,
    split::CONCAT,
    split::SPLIT,
    pattern::FULL_MATCH,
    pattern::TOKENIZER,
    grams::VECTORIZER,
    map::VECTORIZER,
    map::CAST,
    number::NUMBERS_OF_TEXTS,
];

/// The operator of a name.
pub fn find(domain: &str, name: &str) -> Option<&'static TextOpDef> {
    OPERATORS.iter().find(|def| def.domain == domain && def.name == name)
}

/// The texts of numbers.
pub const TEXTS_OF_NUMBERS: TextOpDef = number::TEXTS_OF_NUMBERS;

/// An operator of the standard domain.
const fn standard(
    name: &'static str,
    params: &'static [(&'static str, ParamKind)],
    operands: (usize, usize),
    make: Make,
) -> TextOpDef {
    TextOpDef { domain: OnnxName::STANDARD, name, params, operands, make }
}

/// Extents of an operand of which nothing but their number is kept.
fn same_rank(operand: &OperandType) -> Option<Vec<Option<Dim>>> {
    operand.dims.as_ref().map(|dims| dims.iter().map(|_| None).collect())
}

/// The extents of an operand.
fn same_dims(operand: &OperandType) -> Option<Vec<Option<Dim>>> {
    operand.dims.as_ref().map(|dims| dims.iter().copied().map(Some).collect())
}

/// The one operand of an operator.
fn single(operands: &[HostValue]) -> Result<&HostValue, OpError> {
    operands.first().ok_or_else(|| OpError("its operand is missing".to_owned()))
}
