//! Attribute text and typed values.
//!
//! Symbols keep what operators are told as text, the way MXNet writes it: `(3, 3)`, `True`, `1e-05`,
//! `float16`, `None`. [`AttrText`] writes it, [`parse`] reads it by the kind of the parameter.

use std::fmt;

use tensorc_abi::DType;
use tensorc_ir::params::{ParamKind, ParamSpec, ParamValue};

/// What text should have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A value of this kind.
    Kind(ParamKind),
    /// A text of this form.
    Word(&'static str),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Expected::Kind(ParamKind::Int) => "an integer",
            Expected::Kind(ParamKind::Float) => "a number",
            Expected::Kind(ParamKind::Bool) => "True, False, 1 or 0",
            Expected::Kind(ParamKind::DType) => "an element type such as float32",
            Expected::Kind(ParamKind::Ints) => "integers such as (3, 3)",
            Expected::Kind(ParamKind::Floats) => "numbers such as (0.1, 0.2)",
            Expected::Kind(ParamKind::Strs) => "words such as ['a', 'b']",
            Expected::Kind(ParamKind::Tensor) => "no text: a tensor cannot be written as an attribute",
            Expected::Kind(ParamKind::Str | ParamKind::Choice(_)) => "a word",
            Expected::Word(what) => what,
        })
    }
}

/// What is wrong with the parameters of an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamProblem {
    /// A parameter that the operator does not have.
    #[error("there is no parameter `{name}`; it takes: {candidates}")]
    Unknown {
        /// The parameter.
        name: String,
        /// The parameters that there are, separated by commas.
        candidates: String,
    },
    /// A required parameter is missing.
    #[error("parameter `{name}` ({kind}) is required and not given")]
    Missing {
        /// The parameter.
        name: &'static str,
        /// The kind of its value.
        kind: &'static str,
    },
    /// A text that is no value of the parameter.
    #[error("parameter `{name}` is `{text}`, expected {expected}")]
    Format {
        /// The parameter.
        name: &'static str,
        /// The text given.
        text: String,
        /// What the value may be.
        expected: Expected,
    },
    /// A value out of range.
    #[error("parameter `{name}` is {text}, expected a value in [{low}, {high}]")]
    Range {
        /// The parameter.
        name: &'static str,
        /// The text given.
        text: String,
        /// The smallest value.
        low: String,
        /// The largest value.
        high: String,
    },
    /// A value that is none of the choices.
    #[error("parameter `{name}` is `{text}`, expected one of {choices}")]
    Choice {
        /// The parameter.
        name: &'static str,
        /// The text given.
        text: String,
        /// The values that there are, separated by commas.
        choices: String,
    },
}

/// A value as attribute text.
pub trait AttrText {
    /// The text of the value in MXNet's files.
    fn attr_text(&self) -> String;
}

impl AttrText for str {
    fn attr_text(&self) -> String {
        self.to_owned()
    }
}

impl AttrText for String {
    fn attr_text(&self) -> String {
        self.clone()
    }
}

impl AttrText for bool {
    fn attr_text(&self) -> String {
        if *self { "True" } else { "False" }.to_owned()
    }
}

impl AttrText for DType {
    fn attr_text(&self) -> String {
        dtype_name(*self).to_owned()
    }
}

impl AttrText for f64 {
    fn attr_text(&self) -> String {
        float_text(*self)
    }
}

impl AttrText for f32 {
    fn attr_text(&self) -> String {
        // The digits of the f32, not those of the f64 nearest to it.
        float_digits(&format!("{self:e}"), f64::from(*self))
    }
}

macro_rules! integers {
    ($($t:ty)*) => { $(impl AttrText for $t {
        fn attr_text(&self) -> String {
            self.to_string()
        }
    })* };
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64 usize);

impl<T: AttrText + ?Sized> AttrText for &T {
    fn attr_text(&self) -> String {
        (**self).attr_text()
    }
}

impl<T: AttrText> AttrText for Option<T> {
    fn attr_text(&self) -> String {
        self.as_ref().map_or_else(|| "None".to_owned(), T::attr_text)
    }
}

impl<T: AttrText> AttrText for [T] {
    fn attr_text(&self) -> String {
        tuple(self.iter().map(T::attr_text))
    }
}

impl<T: AttrText, const N: usize> AttrText for [T; N] {
    fn attr_text(&self) -> String {
        self.as_slice().attr_text()
    }
}

impl<T: AttrText> AttrText for Vec<T> {
    fn attr_text(&self) -> String {
        self.as_slice().attr_text()
    }
}

impl<A: AttrText, B: AttrText> AttrText for (A, B) {
    fn attr_text(&self) -> String {
        tuple([self.0.attr_text(), self.1.attr_text()].into_iter())
    }
}

/// `(1, 2)`, `(1,)`, `()`.
pub(super) fn tuple(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    match &items[..] {
        [one] => format!("({one},)"),
        _ => format!("({})", items.join(", ")),
    }
}

/// A number as Python writes it: shortest digits, `1.0`, `1e-05`, `1e+16`.
pub(super) fn float_text(x: f64) -> String {
    float_digits(&format!("{x:e}"), x)
}

/// From shortest digits in scientific form to Python's choice of form.
fn float_digits(scientific: &str, x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific.to_owned() };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |d| ("-", d));
        let all: String = digits.chars().filter(|c| *c != '.').collect();
        return match exponent {
            e if e < 0 => format!("{sign}0.{}{all}", "0".repeat(-(e + 1) as usize)),
            e => {
                let whole = e as usize + 1;
                let padded = format!("{all:0<whole$}");
                let (left, right) = padded.split_at(whole);
                format!("{sign}{left}.{}", if right.is_empty() { "0" } else { right })
            }
        };
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

const DTYPES: [(DType, &str); 13] = [
    (DType::F32, "float32"),
    (DType::F64, "float64"),
    (DType::F16, "float16"),
    (DType::BF16, "bfloat16"),
    (DType::U8, "uint8"),
    (DType::U16, "uint16"),
    (DType::U32, "uint32"),
    (DType::U64, "uint64"),
    (DType::I8, "int8"),
    (DType::I16, "int16"),
    (DType::I32, "int32"),
    (DType::I64, "int64"),
    (DType::Bool, "bool"),
];

/// MXNet's name of an element type; our own of a narrow one, which it does not have.
pub(crate) fn dtype_name(dtype: DType) -> &'static str {
    DTYPES.iter().find(|(d, _)| *d == dtype).map_or(dtype.name(), |(_, name)| name)
}

/// The element type of such a name.
pub(crate) fn dtype_of_name(name: &str) -> Option<DType> {
    let known = DTYPES.iter().find(|(_, n)| *n == name).map(|(d, _)| *d);
    known.or_else(|| DType::from_name(name).filter(|d| d.is_narrow()))
}

/// Reads attribute text as a parameter. `None`: the text says that the parameter is absent.
pub(super) fn parse(spec: &ParamSpec, text: &str) -> Result<Option<ParamValue>, ParamProblem> {
    let name = spec.name;
    let trimmed = text.trim();
    if trimmed == "None" && !spec.required && !lists_none(spec) {
        // Where there is a default, none is another choice than leaving the parameter out.
        let chosen = matches!((spec.kind, &spec.default), (ParamKind::Int, Some(_)));
        return Ok(chosen.then_some(ParamValue::Int(ParamValue::NONE)));
    }
    let value = match spec.kind {
        ParamKind::Int => trimmed.parse().ok().map(ParamValue::Int),
        ParamKind::Float => float(trimmed).map(ParamValue::Float),
        ParamKind::Bool => boolean(trimmed).map(ParamValue::Bool),
        ParamKind::Str => Some(ParamValue::Str(text.to_owned())),
        ParamKind::Choice(of) if of.contains(&text) => Some(ParamValue::Str(text.to_owned())),
        ParamKind::Choice(of) => {
            return Err(ParamProblem::Choice { name, text: text.to_owned(), choices: of.join(", ") });
        }
        ParamKind::DType => dtype(trimmed).map(ParamValue::DType),
        ParamKind::Ints => list(trimmed, optional_integer).map(ParamValue::Ints),
        ParamKind::Floats => list(trimmed, float).map(ParamValue::Floats),
        ParamKind::Strs => list(trimmed, word).map(ParamValue::Strs),
        ParamKind::Tensor => None,
    };
    let Some(value) = value else {
        return Err(ParamProblem::Format { name, text: text.to_owned(), expected: Expected::Kind(spec.kind) });
    };
    let number = match &value {
        ParamValue::Int(i) => Some(*i as f64),
        ParamValue::Float(x) => Some(*x),
        _ => None,
    };
    match (number, spec.range) {
        (Some(x), Some((low, high))) if !(low..=high).contains(&x) => {
            Err(ParamProblem::Range { name, text: text.to_owned(), low: low.to_string(), high: high.to_string() })
        }
        _ => Ok(Some(value)),
    }
}

/// Whether `None` is a word of its own for this parameter.
fn lists_none(spec: &ParamSpec) -> bool {
    matches!(spec.kind, ParamKind::Choice(of) if of.contains(&"None"))
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" => Some(true),
        "0" => Some(false),
        _ if text.eq_ignore_ascii_case("true") => Some(true),
        _ if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

fn float(text: &str) -> Option<f64> {
    text.parse().ok()
}

/// An integer, also in the form `3L` of older Pythons, or `None`.
fn optional_integer(text: &str) -> Option<i64> {
    match text {
        "None" => Some(ParamValue::NONE),
        _ => text.strip_suffix('L').unwrap_or(text).parse().ok(),
    }
}

fn word(text: &str) -> Option<String> {
    let quoted = |q: char| text.strip_prefix(q).and_then(|t| t.strip_suffix(q));
    Some(quoted('\'').or_else(|| quoted('"')).unwrap_or(text).to_owned())
}

fn dtype(text: &str) -> Option<DType> {
    dtype_of_name(text).or_else(|| crate::mxnet::dtype::dtype_of_code(text.parse().ok()?))
}

/// `(a, b)`, `[a, b]`, `(a,)`, `()`, or one item alone.
pub(super) fn list<T>(text: &str, item: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let inner = match (text.as_bytes().first(), text.as_bytes().last()) {
        (Some(b'('), Some(b')')) | (Some(b'['), Some(b']')) if text.len() >= 2 => &text[1..text.len() - 1],
        (Some(b'(' | b'['), _) | (_, Some(b')' | b']')) => return None,
        _ => return item(text).map(|one| vec![one]),
    };
    let inner = inner.trim();
    if inner.is_empty() {
        return Some(vec![]);
    }
    let inner = inner.strip_suffix(',').unwrap_or(inner);
    inner.split(',').map(|part| item(part.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.5, "-0.5"),
            (1e-5, "1e-05"),
            (2e-5, "2e-05"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123456.789, "123456.789"),
            (1e100, "1e+100"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (f64::INFINITY, "inf"),
        ];
        for (x, text) in cases {
            assert_eq!(float_text(x), text);
        }
        assert_eq!(0.1f32.attr_text(), "0.1");
        assert_eq!([3, 3].attr_text(), "(3, 3)");
        assert_eq!([3].attr_text(), "(3,)");
        assert_eq!([Some(1), None].attr_text(), "(1, None)");
    }

    #[test]
    fn lists_have_many_spellings() {
        let ints = |t| list(t, optional_integer);
        assert_eq!(ints("(3, 3)"), Some(vec![3, 3]));
        assert_eq!(ints("[3,3]"), Some(vec![3, 3]));
        assert_eq!(ints("(3,)"), Some(vec![3]));
        assert_eq!(ints("3"), Some(vec![3]));
        assert_eq!(ints("(1L, 2L)"), Some(vec![1, 2]));
        assert_eq!(ints("()"), Some(vec![]));
        assert_eq!(ints("(None, 2)"), Some(vec![ParamValue::NONE, 2]));
        for wrong in ["(1,x)", "(1, 2", "1, 2)", "(1,,2)", "", "(,)"] {
            assert_eq!(ints(wrong), None, "{wrong}");
        }
    }
}
