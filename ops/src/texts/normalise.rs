//! Texts without stop words, in upper or lower case.

use std::sync::Arc;

use tensorc_ir::op::OpError;
use tensorc_ir::params::{ParamKind, Params};

use super::{HostValue, OperandType, ResultType, TextArray, TextOpDef, TextOperator, same_rank, single, standard};

/// `StringNormalizer`, with the case mapping of Unicode for every locale.
pub(super) const NORMALISER: TextOpDef = standard(
    "StringNormalizer",
    &[
        ("case_change_action", ParamKind::Str),
        ("is_case_sensitive", ParamKind::Int),
        ("locale", ParamKind::Str),
        ("stopwords", ParamKind::Strs),
    ],
    (1, 1),
    |params| Ok(Box::new(Normaliser::of(params)?)),
);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Kept,
    Lower,
    Upper,
}

#[derive(Debug)]
struct Normaliser {
    case: Case,
    /// Whether stop words are compared as they are.
    exact: bool,
    stop_words: Vec<String>,
}

impl Normaliser {
    fn of(params: &Params) -> Result<Normaliser, OpError> {
        let case = match params.str("case_change_action").unwrap_or("NONE") {
            "NONE" => Case::Kept,
            "LOWER" => Case::Lower,
            "UPPER" => Case::Upper,
            other => return Err(format!("`case_change_action` is {other:?}, not NONE, LOWER or UPPER").into()),
        };
        let exact = params.int("is_case_sensitive").unwrap_or(0) != 0;
        let compared = |word: &String| if exact { word.clone() } else { changed(word, Case::Lower) };
        let mut stop_words: Vec<String> = params.strs("stopwords").unwrap_or(&[]).iter().map(compared).collect();
        stop_words.sort();
        Ok(Normaliser { case, exact, stop_words })
    }

    fn is_stop_word(&self, text: &str) -> bool {
        let found = |text: &str| self.stop_words.binary_search_by(|word| word.as_str().cmp(text)).is_ok();
        !self.stop_words.is_empty() && if self.exact { found(text) } else { found(&changed(text, Case::Lower)) }
    }
}

/// A text in another case. A character stays as it is if it would become several.
fn changed(text: &str, case: Case) -> String {
    fn one(c: char, mut all: impl Iterator<Item = char>) -> char {
        match (all.next(), all.next()) {
            (Some(only), None) => only,
            _ => c,
        }
    }
    match case {
        Case::Kept => text.to_owned(),
        Case::Upper => text.chars().map(|c| one(c, c.to_uppercase())).collect(),
        // The dotted capital is the only one that becomes two, of which C's functions keep the first.
        Case::Lower => text.chars().map(|c| if c == 'İ' { 'i' } else { one(c, c.to_lowercase()) }).collect(),
    }
}

impl TextOperator for Normaliser {
    fn types(&self, operands: &[OperandType]) -> Vec<ResultType> {
        vec![ResultType { dtype: None, dims: operands.first().and_then(same_rank) }]
    }

    fn apply(&self, operands: &[HostValue]) -> Result<Vec<HostValue>, OpError> {
        let given = single(operands)?.texts()?;
        if !matches!(given.dims(), [_] | [1, _]) {
            return Err(format!("its operand has the shape {:?}, not [n] or [1, n]", given.dims()).into());
        }
        let kept = given.texts().iter().filter(|text| !self.is_stop_word(text));
        let mut kept: Vec<Arc<str>> = match self.case {
            Case::Kept => kept.cloned().collect(),
            case => kept.map(|text| changed(text, case).into()).collect(),
        };
        if kept.is_empty() {
            kept.push("".into());
        }
        let mut dims = given.dims().to_vec();
        dims.iter_mut().last().into_iter().for_each(|last| *last = kept.len() as u64);
        let result = TextArray::new(&dims, kept).ok_or("the shape of its operand is too large")?;
        Ok(vec![HostValue::Texts(result)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_stay_single() {
        assert_eq!(changed("Aß é ǆİ", Case::Upper), "Aß É ǄİI".replace("İI", "İ"));
        assert_eq!(changed("AÉİ", Case::Lower), "aéi");
    }
}
