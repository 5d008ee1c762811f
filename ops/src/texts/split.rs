//! Texts that are joined and divided.

use std::sync::Arc;

use tensorc_ir::op::OpError;
use tensorc_ir::params::{ParamKind, Params};
use tensorc_ir::{DType, Dim, TensorData};

use super::array::room;
use super::{HostValue, OperandType, ResultType, TextArray, TextOpDef, TextOperator, same_dims, single, standard};

/// `StringConcat`.
pub(super) const CONCAT: TextOpDef = standard("StringConcat", &[], (2, 2), |_| Ok(Box::new(Joiner)));

/// `StringSplit`.
pub(super) const SPLIT: TextOpDef =
    standard("StringSplit", &[("delimiter", ParamKind::Str), ("maxsplit", ParamKind::Int)], (1, 1), |params| {
        Ok(Box::new(Splitter::of(params)))
    });

#[derive(Debug)]
struct Joiner;

impl TextOperator for Joiner {
    fn types(&self, operands: &[OperandType]) -> Vec<ResultType> {
        let ranks: Option<Vec<usize>> = operands.iter().map(|operand| Some(operand.dims.as_ref()?.len())).collect();
        let dims = ranks.and_then(|ranks| ranks.into_iter().max()).map(|rank| vec![None; rank]);
        vec![ResultType { dtype: None, dims }]
    }

    fn apply(&self, operands: &[HostValue]) -> Result<Vec<HostValue>, OpError> {
        let [a, b] = operands else { return Err("it takes two operands".into()) };
        let (a, b) = (a.texts()?, b.texts()?);
        let dims = common(a.dims(), b.dims())?;
        let count = dims.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim));
        let mut made = room(count.map(|count| count as usize))?;
        for at in 0..count.unwrap_or(0) {
            let text = |x: &TextArray| x.texts().get(source(at, &dims, x.dims()) as usize).cloned();
            let joined = [text(a), text(b)].into_iter().flatten().fold(String::new(), |all, text| all + &text);
            made.push(Arc::from(joined));
        }
        let made = TextArray::new(&dims, made).ok_or("the shape of the result is too large")?;
        Ok(vec![HostValue::Texts(made)])
    }
}

/// The shape to which two are broadcast.
fn common(a: &[u64], b: &[u64]) -> Result<Vec<u64>, OpError> {
    let rank = a.len().max(b.len());
    let extent = |dims: &[u64], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(1, |axis| dims[axis]);
    let one = |axis| match [extent(a, axis), extent(b, axis)] {
        [n, m] if n == m => Ok(n),
        [1, n] | [n, 1] => Ok(n),
        _ => Err(OpError(format!("its operands have the shapes {a:?} and {b:?}"))),
    };
    (0..rank).map(one).collect()
}

/// Where an element of a broadcast shape lies in an operand.
fn source(mut at: u64, dims: &[u64], own: &[u64]) -> u64 {
    let (mut position, mut stride) = (0, 1);
    for (axis, extent) in dims.iter().enumerate().rev() {
        let place = at % extent;
        at /= extent;
        if let Some(axis) = (axis + own.len()).checked_sub(dims.len()) {
            position += if own[axis] == 1 { 0 } else { place * stride };
            stride *= own[axis];
        }
    }
    position
}

#[derive(Debug)]
struct Splitter {
    /// What lies between parts; without one, any white space.
    delimiter: String,
    /// The most places where a text is divided.
    most: Option<usize>,
}

impl Splitter {
    fn of(params: &Params) -> Splitter {
        let most = params.int("maxsplit").and_then(|most| usize::try_from(most).ok());
        Splitter { delimiter: params.str("delimiter").unwrap_or("").to_owned(), most }
    }

    fn parts(&self, text: &str) -> Vec<Arc<str>> {
        if self.delimiter.is_empty() {
            return self.words(text);
        }
        match self.most {
            _ if text.is_empty() => vec![],
            Some(most) => text.splitn(most.saturating_add(1), &self.delimiter).map(Arc::from).collect(),
            None => text.split(&self.delimiter).map(Arc::from).collect(),
        }
    }

    fn words(&self, text: &str) -> Vec<Arc<str>> {
        let (mut rest, mut words) = (text.trim_start(), vec![]);
        while !rest.is_empty() && self.most.is_none_or(|most| words.len() < most) {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            words.push(rest[..end].into());
            rest = rest[end..].trim_start();
        }
        let rest = rest.trim_end();
        if !rest.is_empty() {
            words.push(rest.into());
        }
        words
    }
}

impl TextOperator for Splitter {
    fn types(&self, operands: &[OperandType]) -> Vec<ResultType> {
        let given = operands.first().and_then(same_dims);
        let parts = given.clone().map(|dims| dims.into_iter().chain([None::<Dim>]).collect());
        vec![ResultType { dtype: None, dims: parts }, ResultType { dtype: Some(DType::I64), dims: given }]
    }

    fn apply(&self, operands: &[HostValue]) -> Result<Vec<HostValue>, OpError> {
        let given = single(operands)?.texts()?;
        let rows: Vec<Vec<Arc<str>>> = given.texts().iter().map(|text| self.parts(text)).collect();
        let counts: Vec<i64> = rows.iter().map(|row| row.len() as i64).collect();
        let counts = TensorData::i64s(given.dims(), &counts).ok_or("the shape of its operand is too large")?;
        let parts = TextArray::of_rows(given.dims(), rows, &"".into())?;
        Ok(vec![HostValue::Texts(parts), HostValue::Numbers(counts)])
    }
}
