//! Patterns: texts that match one, and the parts of texts that do.

use std::sync::Arc;

use regex_lite::Regex;
use tensorc_ir::op::{OnnxName, OpError};
use tensorc_ir::params::{ParamKind, Params};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, TensorData};

use super::{HostValue, OperandType, ResultType, TextArray, TextOpDef, TextOperator, same_dims, single, standard};

/// `RegexFullMatch`.
pub(super) const FULL_MATCH: TextOpDef = standard("RegexFullMatch", &[("pattern", ParamKind::Str)], (1, 1), |params| {
    let given = params.str("pattern").unwrap_or("");
    compiled(given)?;
    Ok(Box::new(FullMatch(compiled(&format!(r"\A(?:{given})\z"))?)))
});

/// `Tokenizer` of ONNX Runtime.
pub(super) const TOKENIZER: TextOpDef = TextOpDef {
    domain: OnnxName::MICROSOFT,
    name: "Tokenizer",
    params: &[
        ("mark", ParamKind::Int),
        ("mincharnum", ParamKind::Int),
        ("pad_value", ParamKind::Str),
        ("separators", ParamKind::Strs),
        ("tokenexp", ParamKind::Str),
    ],
    operands: (1, 1),
    make: |params| Ok(Box::new(Tokenizer::of(params)?)),
};

fn compiled(pattern: &str) -> Result<Regex, OpError> {
    Regex::new(pattern).map_err(|why| OpError(format!("the pattern {pattern:?} is not supported: {why}")))
}

#[derive(Debug)]
struct FullMatch(Regex);

impl TextOperator for FullMatch {
    fn types(&self, operands: &[OperandType]) -> Vec<ResultType> {
        vec![ResultType { dtype: Some(DType::Bool), dims: operands.first().and_then(same_dims) }]
    }

    fn apply(&self, operands: &[HostValue]) -> Result<Vec<HostValue>, OpError> {
        let given = single(operands)?.texts()?;
        let matches = |at: u64| Scalar::bool(given.texts().get(at as usize).is_some_and(|text| self.0.is_match(text)));
        let ty = DenseType::new(DType::Bool, given.dims());
        let found = TensorData::try_from_fn(ty, matches).ok_or("there is no memory for its result")?;
        Ok(vec![HostValue::Numbers(found)])
    }
}

/// What tokens are.
#[derive(Debug)]
enum Tokens {
    Characters,
    Matches(Regex),
    /// What lies between matches of these, one after the other.
    Between(Vec<Regex>),
}

#[derive(Debug)]
struct Tokenizer {
    tokens: Tokens,
    /// Whether tokens of a text stand between two marks.
    marks: bool,
    /// Fewest characters of a token.
    fewest: usize,
    filling: Arc<str>,
}

/// What stands before and behind the tokens of a text.
const MARKS: [&str; 2] = ["\u{2}", "\u{3}"];

impl Tokenizer {
    fn of(params: &Params) -> Result<Tokenizer, OpError> {
        let separators = params.strs("separators").unwrap_or(&[]);
        let tokens = match (params.str("tokenexp"), separators) {
            (Some(_), [_, ..]) => return Err("`separators` and `tokenexp` are both given".into()),
            (Some(pattern), []) => Tokens::Matches(compiled(pattern)?),
            (None, [only]) if only.is_empty() => Tokens::Characters,
            (None, []) => return Err("neither `separators` nor `tokenexp` is given".into()),
            (None, all) => Tokens::Between(all.iter().map(|pattern| compiled(pattern)).collect::<Result<_, _>>()?),
        };
        let fewest = params.int("mincharnum").unwrap_or(1);
        Ok(Tokenizer {
            tokens,
            marks: params.int("mark").unwrap_or(0) != 0,
            fewest: usize::try_from(fewest).ok().filter(|n| *n > 0).ok_or("`mincharnum` must be positive")?,
            filling: params.str("pad_value").unwrap_or("").into(),
        })
    }

    fn tokens(&self, text: &str) -> Vec<Arc<str>> {
        let long = |token: &&str| token.chars().nth(self.fewest - 1).is_some();
        match &self.tokens {
            Tokens::Characters => text.char_indices().map(|(at, c)| text[at..at + c.len_utf8()].into()).collect(),
            Tokens::Matches(pattern) => {
                pattern.find_iter(text).map(|found| found.as_str()).filter(long).map(Arc::from).collect()
            }
            Tokens::Between(separators) => {
                let mut parts = vec![text];
                for separator in separators {
                    parts = parts.into_iter().flat_map(|part| separator.split(part)).filter(long).collect();
                }
                parts.into_iter().map(Arc::from).collect()
            }
        }
    }
}

impl TextOperator for Tokenizer {
    fn types(&self, operands: &[OperandType]) -> Vec<ResultType> {
        let dims = operands.first().and_then(same_dims);
        vec![ResultType { dtype: None, dims: dims.map(|dims| dims.into_iter().chain([None]).collect()) }]
    }

    fn apply(&self, operands: &[HostValue]) -> Result<Vec<HostValue>, OpError> {
        let given = single(operands)?.texts()?;
        if !matches!(given.dims(), [_] | [_, _]) {
            return Err(format!("its operand has the shape {:?}, not [n] or [n, m]", given.dims()).into());
        }
        if given.texts().is_empty() {
            return Ok(vec![HostValue::Texts(given.clone())]);
        }
        let mut rows: Vec<Vec<Arc<str>>> = given.texts().iter().map(|text| self.tokens(text)).collect();
        if self.marks && rows.iter().any(|row| !row.is_empty()) {
            for row in &mut rows {
                row.insert(0, MARKS[0].into());
                row.push(MARKS[1].into());
            }
        }
        Ok(vec![HostValue::Texts(TextArray::of_rows(given.dims(), rows, &self.filling)?)])
    }
}
