//! Texts as numbers, and numbers as texts, in C's notation: `Cast`.

use std::sync::Arc;

use tensorc_ir::op::OpError;
use tensorc_ir::params::ParamKind;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, TensorData};

use super::{HostValue, OperandType, ResultType, TextArray, TextOpDef, TextOperator, same_dims, single, standard};

/// `Cast` of texts.
pub(super) const NUMBERS_OF_TEXTS: TextOpDef = standard("Cast", &[("to", ParamKind::DType)], (1, 1), |params| {
    let to = params.dtype("to").ok_or("`to` is not given")?;
    match to {
        to if to.is_narrow() || matches!(to, DType::Bool | DType::BF16) => {
            Err(format!("texts do not become {to}").into())
        }
        to => Ok(Box::new(NumbersOfTexts(to))),
    }
});

/// `Cast` to texts.
pub(super) const TEXTS_OF_NUMBERS: TextOpDef = standard("Cast", &[], (1, 1), |_| Ok(Box::new(TextsOfNumbers)));

#[derive(Debug)]
struct NumbersOfTexts(DType);

/// Texts as numbers of a type.
///
/// # Errors
/// One of them is none.
pub(super) fn parsed(texts: &TextArray, to: DType) -> Result<TensorData, OpError> {
    let one =
        |text: &Arc<str>| number(text, to).ok_or_else(|| OpError(format!("the text {text:?} is no number of {to}")));
    let numbers = texts.texts().iter().map(one).collect::<Result<Vec<Scalar>, OpError>>()?;
    let made = TensorData::try_from_fn(DenseType::new(to, texts.dims()), |at| numbers[at as usize]);
    made.ok_or_else(|| OpError("there is no memory for its result".to_owned()))
}

fn number(text: &str, to: DType) -> Option<Scalar> {
    let text = text.trim_start();
    if to.is_float() {
        return longest(text, |text| text.parse::<f64>().ok()).map(|x| Scalar::from_f64(to, x));
    }
    let number = longest(text, |text| text.parse::<i128>().ok())?;
    match to {
        DType::U64 => u64::try_from(number).ok().map(|n| Scalar::from_i64(to, n as i64)),
        _ => i64::try_from(number).ok().map(|n| Scalar::from_i64(to, n)),
    }
}

/// Most bytes of a number with something behind it; others are not looked for.
const MAX_NUMBER: usize = 400;

/// The longest beginning that is a number: C's functions take no notice of what is behind it.
fn longest<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
    let beginning = |end: usize| parse(text.get(..end)?);
    parse(text).or_else(|| (0..text.len().min(MAX_NUMBER)).rev().find_map(beginning))
}

impl TextOperator for NumbersOfTexts {
    fn types(&self, operands: &[OperandType]) -> Vec<ResultType> {
        vec![ResultType { dtype: Some(self.0), dims: operands.first().and_then(same_dims) }]
    }

    fn apply(&self, operands: &[HostValue]) -> Result<Vec<HostValue>, OpError> {
        let numbers = parsed(single(operands)?.texts()?, self.0)?;
        Ok(vec![HostValue::Numbers(numbers)])
    }
}

#[derive(Debug)]
struct TextsOfNumbers;

/// Digits of a float.
const DIGITS: usize = 8;

fn text(x: Scalar) -> Arc<str> {
    match x.dtype {
        DType::Bool => u8::from(x.as_i64() != 0).to_string().into(),
        DType::U64 => (x.as_i64() as u64).to_string().into(),
        dtype if dtype.is_float() || dtype.is_narrow_float() => float(x.as_f64()).into(),
        _ => x.as_i64().to_string().into(),
    }
}

/// As C's `%.8g` writes it, with ONNX's names of what is not finite.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "INF" } else { "-INF" }.to_owned();
    }
    let scientific = format!("{x:.*e}", DIGITS - 1);
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let shortened = |digits: &str| match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    if exponent < -4 || exponent >= DIGITS as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", shortened(digits), exponent.abs());
    }
    shortened(&format!("{x:.*}", (DIGITS as i32 - 1 - exponent) as usize))
}

impl TextOperator for TextsOfNumbers {
    fn types(&self, operands: &[OperandType]) -> Vec<ResultType> {
        vec![ResultType { dtype: None, dims: operands.first().and_then(same_dims) }]
    }

    fn apply(&self, operands: &[HostValue]) -> Result<Vec<HostValue>, OpError> {
        match single(operands)? {
            HostValue::Texts(texts) => Ok(vec![HostValue::Texts(texts.map(Arc::clone))]),
            HostValue::Numbers(numbers) => {
                let made = TextArray::new(numbers.dims(), numbers.iter().map(text).collect());
                Ok(vec![HostValue::Texts(made.ok_or("its operand is open")?)])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_c_does() {
        let cases = [
            (1.5, "1.5"),
            (0.1, "0.1"),
            (1e10, "1e+10"),
            (123_456_789.0, "1.2345679e+08"),
            (1e-7, "1e-07"),
            (-0.0, "-0"),
            (3.0, "3"),
            (1.0 / 3.0, "0.33333333"),
            (1e22, "1e+22"),
            (12_345_678.0, "12345678"),
            (99_999_999.6, "1e+08"),
            (0.000_123_45, "0.00012345"),
        ];
        for (x, expected) in cases {
            assert_eq!(float(x), expected);
        }
    }
}
