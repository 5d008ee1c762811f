//! Counts of sequences of texts or integers: `TfIdfVectorizer`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_ir::op::OpError;
use tensorc_ir::params::{ParamKind, Params};
use tensorc_ir::{DType, Dim, TensorData};

use super::array::room;
use super::{HostValue, OperandType, ResultType, TextOpDef, TextOperator, single, standard};

/// `TfIdfVectorizer`.
pub(super) const VECTORIZER: TextOpDef = standard(
    "TfIdfVectorizer",
    &[
        ("max_gram_length", ParamKind::Int),
        ("max_skip_count", ParamKind::Int),
        ("min_gram_length", ParamKind::Int),
        ("mode", ParamKind::Str),
        ("ngram_counts", ParamKind::Ints),
        ("ngram_indexes", ParamKind::Ints),
        ("pool_int64s", ParamKind::Ints),
        ("pool_strings", ParamKind::Strs),
        ("weights", ParamKind::Floats),
    ],
    (1, 1),
    |params| Ok(Box::new(Vectorizer::of(params)?)),
);

/// Most columns of a result.
const MAX_COLUMNS: usize = 1 << 24;

/// Numbers of the elements that sequences consist of.
#[derive(Debug)]
enum Vocabulary {
    Texts(BTreeMap<Arc<str>, u32>),
    Integers(BTreeMap<i64, u32>),
}

/// Sequences with a common beginning.
#[derive(Debug, Default)]
struct Gram {
    /// The column in which the sequence itself is counted.
    column: Option<usize>,
    longer: BTreeMap<u32, Gram>,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Counts,
    Presence,
    WeightedCounts,
}

#[derive(Debug)]
struct Vectorizer {
    vocabulary: Vocabulary,
    grams: Gram,
    lengths: (usize, usize),
    /// Most elements left out between two of a sequence.
    skips: usize,
    mode: Mode,
    /// The weight of each column.
    weights: Vec<f32>,
}

impl Vectorizer {
    fn of(params: &Params) -> Result<Vectorizer, OpError> {
        let length = |name: &str, given: Option<i64>| {
            let length = given.ok_or_else(|| OpError(format!("`{name}` is not given")))?;
            usize::try_from(length).map_err(|_| OpError(format!("`{name}` is {length}")))
        };
        let lengths = (
            length("min_gram_length", params.int("min_gram_length"))?,
            length("max_gram_length", params.int("max_gram_length"))?,
        );
        if lengths.0 == 0 || lengths.0 > lengths.1 {
            return Err(format!("sequences of {} to {} elements are asked for", lengths.0, lengths.1).into());
        }
        let mode = match params.str("mode").unwrap_or("") {
            "TF" => Mode::Counts,
            "IDF" => Mode::Presence,
            "TFIDF" => Mode::WeightedCounts,
            other => return Err(format!("`mode` is {other:?}, not TF, IDF or TFIDF").into()),
        };
        let (vocabulary, pool) = match (params.strs("pool_strings"), params.ints("pool_int64s")) {
            (Some(texts @ [_, ..]), None | Some([])) => {
                let (known, pool) = numbered(texts.iter().map(|text| Arc::from(text.as_str())));
                (Vocabulary::Texts(known), pool)
            }
            (None | Some([]), Some(integers @ [_, ..])) => {
                let (known, pool) = numbered(integers.iter().copied());
                (Vocabulary::Integers(known), pool)
            }
            _ => return Err("one of `pool_strings` and `pool_int64s` must be given".into()),
        };
        let indexes = params.ints("ngram_indexes").unwrap_or(&[]);
        let grams = grams(&pool, params.ints("ngram_counts").unwrap_or(&[]), indexes, lengths)?;
        let columns = indexes.iter().max().map_or(0, |most| usize::try_from(*most).map_or(usize::MAX, |most| most + 1));
        if columns > MAX_COLUMNS {
            return Err(format!("`ngram_indexes` has {}; the most are {MAX_COLUMNS}", columns - 1).into());
        }
        let given = params.floats("weights").unwrap_or(&[]);
        if !given.is_empty() && given.len() != indexes.len() {
            let why = format!("there are {} weights for {} sequences", given.len(), indexes.len());
            return Err(why.into());
        }
        let mut weights = vec![1.0; columns];
        for (column, weight) in indexes.iter().zip(given) {
            if let Some(own) = usize::try_from(*column).ok().and_then(|column| weights.get_mut(column)) {
                *own = *weight as f32;
            }
        }
        let skips = length("max_skip_count", params.int("max_skip_count"))?;
        Ok(Vectorizer { vocabulary, grams, lengths, skips, mode, weights })
    }

    /// Numbers of the elements of an operand; `None` for those that no sequence has.
    fn elements(&self, operand: &HostValue) -> Result<Vec<Option<u32>>, OpError> {
        match (&self.vocabulary, operand) {
            (Vocabulary::Texts(known), HostValue::Texts(given)) => {
                Ok(given.texts().iter().map(|text| known.get(text).copied()).collect())
            }
            (Vocabulary::Integers(known), HostValue::Numbers(given))
                if matches!(given.dtype(), DType::I32 | DType::I64) =>
            {
                Ok(given.iter().map(|x| known.get(&x.as_i64()).copied()).collect())
            }
            (Vocabulary::Texts(_), HostValue::Numbers(given)) => {
                Err(format!("its sequences consist of texts, its operand of {}", given.dtype()).into())
            }
            (Vocabulary::Integers(_), _) => Err("its sequences consist of integers, its operand does not".into()),
        }
    }

    /// Counts the sequences of a row.
    fn count(&self, row: &[Option<u32>], counts: &mut [f32]) {
        // Elements further apart than the row is long are none.
        for distance in 1..=self.skips.saturating_add(1).min(row.len()) {
            // Elements that stand alone are counted once.
            let shortest = if distance == 1 { self.lengths.0 } else { self.lengths.0.max(2) };
            for first in 0..row.len() {
                let mut at = &self.grams;
                for length in 1..=self.lengths.1 {
                    let element = row.get(first + (length - 1) * distance).copied().flatten();
                    let Some(longer) = element.and_then(|element| at.longer.get(&element)) else { break };
                    at = longer;
                    let counted = at.column.filter(|_| length >= shortest).and_then(|column| counts.get_mut(column));
                    counted.into_iter().for_each(|count| *count += 1.0);
                }
            }
        }
    }

    fn weighted(&self, weight: f32, count: f32) -> f32 {
        match self.mode {
            Mode::Counts => count,
            Mode::Presence if count > 0.0 => weight,
            Mode::Presence => 0.0,
            Mode::WeightedCounts => count * weight,
        }
    }
}

/// Numbers of distinct elements, and the elements as numbers.
fn numbered<T: Ord>(elements: impl Iterator<Item = T>) -> (BTreeMap<T, u32>, Vec<u32>) {
    let mut known = BTreeMap::new();
    let pool = elements.map(|element| {
        let next = known.len() as u32;
        *known.entry(element).or_insert(next)
    });
    let pool = pool.collect();
    (known, pool)
}

/// The n-grams of a pool, as a tree. `counts[n - 1]` is the position in the pool where the n-grams of n elements begin.
fn grams(pool: &[u32], counts: &[i64], indexes: &[i64], lengths: (usize, usize)) -> Result<Gram, OpError> {
    let (mut all, mut indexes) = (Gram::default(), indexes.iter());
    let start = |at: Option<&i64>| match at {
        None => Ok(pool.len()),
        Some(at) => usize::try_from(*at)
            .ok()
            .filter(|at| *at <= pool.len())
            .ok_or_else(|| OpError(format!("`ngram_counts` has {at}, the pool {} elements", pool.len()))),
    };
    for (i, begin) in counts.iter().enumerate() {
        let (begin, end, length) = (start(Some(begin))?, start(counts.get(i + 1))?, i + 1);
        if begin > end || (end - begin) % length != 0 {
            return Err(format!("elements {begin} to {end} of the pool are no sequences of {length}").into());
        }
        for sequence in pool[begin..end].chunks_exact(length) {
            let column = indexes.next().ok_or("`ngram_indexes` has fewer entries than there are sequences")?;
            let column = usize::try_from(*column).map_err(|_| OpError(format!("`ngram_indexes` has {column}")))?;
            if (lengths.0..=lengths.1).contains(&length) {
                let gram = sequence.iter().fold(&mut all, |at, element| at.longer.entry(*element).or_default());
                gram.column = Some(column);
            }
        }
    }
    match indexes.next() {
        Some(_) => Err("`ngram_indexes` has more entries than there are sequences".into()),
        None => Ok(all),
    }
}

impl TextOperator for Vectorizer {
    fn types(&self, operands: &[OperandType]) -> Vec<ResultType> {
        let columns = Some(Dim::Const(self.weights.len() as u64));
        let dims = match operands.first().and_then(|operand| operand.dims.as_deref()) {
            Some([rows, _]) => Some(vec![Some(*rows), columns]),
            Some([_]) => Some(vec![columns]),
            _ => None,
        };
        vec![ResultType { dtype: Some(DType::F32), dims }]
    }

    fn apply(&self, operands: &[HostValue]) -> Result<Vec<HostValue>, OpError> {
        let given = single(operands)?;
        let columns = self.weights.len() as u64;
        let (rows, length, dims) = match given.dims() {
            [n] => (1, *n, vec![columns]),
            [rows, n] => (*rows, *n, vec![*rows, columns]),
            dims => return Err(format!("its operand has the shape {dims:?}, not [n] or [rows, n]").into()),
        };
        let elements = self.elements(given)?;
        let mut counts = vec![0.0; self.weights.len()];
        let mut made: Vec<f32> = room((rows as usize).checked_mul(self.weights.len()))?;
        for row in 0..rows as usize {
            counts.fill(0.0);
            self.count(&elements[row * length as usize..][..length as usize], &mut counts);
            made.extend(self.weights.iter().zip(&counts).map(|(weight, count)| self.weighted(*weight, *count)));
        }
        let made = TensorData::f32s(&dims, &made).ok_or("its result is too large")?;
        Ok(vec![HostValue::Numbers(made)])
    }
}
