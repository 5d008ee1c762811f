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

/// What the types of the operands tell of the type of a result.
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

#[cfg(test)]
mod tests {
    use tensorc_ir::params::ParamValue;

    use super::*;

    fn texts(dims: &[u64], texts: &[&str]) -> HostValue {
        HostValue::Texts(TextArray::of(dims, texts).unwrap())
    }

    fn f32s(dims: &[u64], numbers: &[f32]) -> HostValue {
        HostValue::Numbers(TensorData::f32s(dims, numbers).unwrap())
    }

    fn i64s(dims: &[u64], numbers: &[i64]) -> HostValue {
        HostValue::Numbers(TensorData::i64s(dims, numbers).unwrap())
    }

    fn word(text: &str) -> ParamValue {
        ParamValue::Str(text.to_owned())
    }

    fn words(list: &[&str]) -> ParamValue {
        ParamValue::Strs(list.iter().map(|text| (*text).to_owned()).collect())
    }

    fn applied(domain: &str, name: &str, params: Params, operands: &[HostValue]) -> Vec<HostValue> {
        find(domain, name).unwrap().operator(&params).unwrap().apply(operands).unwrap()
    }

    /// What ONNX Runtime 1.31 computes.
    #[test]
    fn results_of_onnx_runtime() {
        let (std, ml, ms) = (OnnxName::STANDARD, OnnxName::ML, OnnxName::MICROSOFT);
        let token = |key, value| Params::new().with("pad_value", word("#")).with("mincharnum", 1i64).with(key, value);
        let lines = texts(&[3], &["Hello wor-ld! 42", "x", ""]);
        let found = applied(ms, "Tokenizer", token("tokenexp", word("[a-zA-Z0-9_]+")), &[lines]);
        let expected = ["Hello", "wor", "ld", "42", "x", "#", "#", "#", "#", "#", "#", "#"];
        assert_eq!(found, [texts(&[3, 4], &expected)]);
        let found =
            applied(ms, "Tokenizer", token("separators", words(&[" ", "-"])), &[texts(&[2], &["a b-c  d", "x-y"])]);
        assert_eq!(found, [texts(&[2, 4], &["a", "b", "c", "d", "x", "y", "#", "#"])]);
        let found =
            applied(std, "StringSplit", Params::new().with("maxsplit", 1i64), &[texts(&[3], &["a b  c", " x ", ""])]);
        assert_eq!(found, [texts(&[3, 2], &["a", "b  c", "x", "", "", ""]), i64s(&[3], &[2, 1, 0])]);
        let found = applied(
            std,
            "StringSplit",
            Params::new().with("delimiter", word(",")),
            &[texts(&[3], &["a,b,,c", ",x,", ""])],
        );
        let expected = ["a", "b", "", "c", "", "x", "", "", "", "", "", ""];
        assert_eq!(found, [texts(&[3, 4], &expected), i64s(&[3], &[4, 3, 0])]);
        let operands = [texts(&[2, 1], &["a", "b"]), texts(&[3], &["x", "y", "z"])];
        let found = applied(std, "StringConcat", Params::new(), &operands);
        assert_eq!(found, [texts(&[2, 3], &["ax", "ay", "az", "bx", "by", "bz"])]);
        let grams = Params::new()
            .with("mode", word("TFIDF"))
            .with("min_gram_length", 1i64)
            .with("max_gram_length", 2i64)
            .with("max_skip_count", 1i64)
            .with("pool_strings", words(&["a", "b", "c", "a", "b", "b", "c"]))
            .with("ngram_counts", ParamValue::Ints(vec![0, 3]))
            .with("ngram_indexes", ParamValue::Ints(vec![0, 1, 2, 3, 4]))
            .with("weights", ParamValue::Floats(vec![1.0, 2.0, 3.0, 4.0, 5.0]));
        let rows = texts(&[2, 4], &["a", "b", "c", "a", "b", "x", "c", "x"]);
        let found = applied(std, "TfIdfVectorizer", grams, &[rows]);
        assert_eq!(found, [f32s(&[2, 5], &[2.0, 2.0, 3.0, 4.0, 5.0, 0.0, 2.0, 3.0, 0.0, 5.0])]);
        let map = [texts(&[3], &["a", "z", "c"]), f32s(&[3], &[1.5, 2.0, 3.0])];
        let found =
            applied(ml, "DictVectorizer", Params::new().with("string_vocabulary", words(&["c", "b", "a"])), &map);
        assert_eq!(found, [f32s(&[1, 3], &[3.0, 0.0, 1.5])]);
        let map = [i64s(&[2], &[3, 1]), f32s(&[2], &[1.5, 2.5])];
        let found = applied(ml, "CastMap", Params::new().with("cast_to", word("TO_STRING")), &map);
        assert_eq!(found, [texts(&[1, 2], &["2.500000", "1.500000"])]);
        let sparse = Params::new().with("map_form", word("SPARSE")).with("max_map", 5i64);
        assert_eq!(applied(ml, "CastMap", sparse, &map), [f32s(&[1, 5], &[0.0, 2.5, 0.0, 1.5, 0.0])]);
        let found = applied(
            std,
            "Cast",
            Params::new().with("to", ParamValue::DType(DType::F32)),
            &[texts(&[3], &["1.5", " 3 ", "1e3"])],
        );
        assert_eq!(found, [f32s(&[3], &[1.5, 3.0, 1000.0])]);
        let normal = Params::new().with("stopwords", words(&["x"])).with("is_case_sensitive", 1i64);
        assert_eq!(
            applied(std, "StringNormalizer", normal, &[texts(&[1, 2], &["Ab", "x"])]),
            [texts(&[1, 1], &["Ab"])]
        );
    }

    /// Every distance behind the end of a row would take its time.
    #[test]
    fn more_elements_are_left_out_than_there_are() {
        let grams = Params::new()
            .with("mode", word("TF"))
            .with("min_gram_length", 2i64)
            .with("max_gram_length", 2i64)
            .with("max_skip_count", i64::MAX)
            .with("pool_strings", words(&["a", "b"]))
            .with("ngram_counts", ParamValue::Ints(vec![0, 0]))
            .with("ngram_indexes", ParamValue::Ints(vec![0]));
        let rows = texts(&[2, 3], &["a", "b", "b", "b", "a", "a"]);
        assert_eq!(applied(OnnxName::STANDARD, "TfIdfVectorizer", grams, &[rows]), [f32s(&[2, 1], &[2.0, 0.0])]);
    }
}
