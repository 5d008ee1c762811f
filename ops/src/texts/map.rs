//! Maps, which are two vectors, keys and values: `DictVectorizer` and `CastMap`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_ir::op::{OnnxName, OpError};
use tensorc_ir::params::{ParamKind, Params};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, Dim, TensorData};

use super::number::parsed;
use super::{HostValue, OperandType, ResultType, TextArray, TextOpDef, TextOperator};

/// `DictVectorizer`.
pub(super) const VECTORIZER: TextOpDef = TextOpDef {
    domain: OnnxName::ML,
    name: "DictVectorizer",
    params: &[("int64_vocabulary", ParamKind::Ints), ("string_vocabulary", ParamKind::Strs)],
    operands: (2, 2),
    make: |params| Ok(Box::new(Vectorizer::of(params)?)),
};

/// `CastMap`.
pub(super) const CAST: TextOpDef = TextOpDef {
    domain: OnnxName::ML,
    name: "CastMap",
    params: &[("cast_to", ParamKind::Str), ("map_form", ParamKind::Str), ("max_map", ParamKind::Int)],
    operands: (2, 2),
    make: |params| Ok(Box::new(MapCast::of(params)?)),
};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Text(Arc<str>),
    Integer(i64),
}

/// The keys of a map, and its values in the order of the keys.
fn entries(operands: &[HostValue]) -> Result<(Vec<Key>, &HostValue), OpError> {
    let [keys, values] = operands else { return Err("its operand is no map".into()) };
    let count = |dims: &[u64]| dims.iter().product::<u64>();
    if count(keys.dims()) != count(values.dims()) {
        return Err(format!("{} keys are given for {} values", count(keys.dims()), count(values.dims())).into());
    }
    let keys = match keys {
        HostValue::Texts(texts) => texts.texts().iter().cloned().map(Key::Text).collect(),
        HostValue::Numbers(numbers) => numbers.to_i64s().into_iter().map(Key::Integer).collect(),
    };
    Ok((keys, values))
}

/// A row of values, or of zeros or empty texts where there are none.
fn row(values: &HostValue, places: &[Option<usize>]) -> Result<HostValue, OpError> {
    let dims = [1, places.len() as u64];
    let made = match values {
        HostValue::Texts(texts) => {
            let text = |at: &Option<usize>| at.and_then(|at| texts.texts().get(at).cloned()).unwrap_or_default();
            TextArray::new(&dims, places.iter().map(text).collect()).map(HostValue::Texts)
        }
        HostValue::Numbers(numbers) => {
            let zero = Scalar::from_i64(numbers.dtype(), 0);
            let number = |column: u64| places[column as usize].map_or(zero, |at| numbers.get(at as u64));
            TensorData::try_from_fn(DenseType::new(numbers.dtype(), dims), number).map(HostValue::Numbers)
        }
    };
    made.ok_or_else(|| OpError("there is no memory for its result".to_owned()))
}

/// Values of the keys of a vocabulary, in its order.
#[derive(Debug)]
struct Vectorizer {
    columns: BTreeMap<Key, usize>,
    count: usize,
}

impl Vectorizer {
    fn of(params: &Params) -> Result<Vectorizer, OpError> {
        let texts = params.strs("string_vocabulary").unwrap_or(&[]).iter().map(|text| Key::Text(text.as_str().into()));
        let integers = params.ints("int64_vocabulary").unwrap_or(&[]).iter().map(|key| Key::Integer(*key));
        let keys: Vec<Key> = texts.chain(integers).collect();
        if keys.is_empty()
            || params.strs("string_vocabulary").is_some_and(|all| !all.is_empty() && all.len() < keys.len())
        {
            return Err("one of `string_vocabulary` and `int64_vocabulary` must be given".into());
        }
        Ok(Vectorizer { count: keys.len(), columns: keys.into_iter().zip(0..).collect() })
    }
}

impl TextOperator for Vectorizer {
    fn types(&self, operands: &[OperandType]) -> Vec<ResultType> {
        let dims = vec![Some(Dim::Const(1)), Some(Dim::Const(self.count as u64))];
        vec![ResultType { dtype: operands.get(1).and_then(|values| values.dtype), dims: Some(dims) }]
    }

    fn apply(&self, operands: &[HostValue]) -> Result<Vec<HostValue>, OpError> {
        let (keys, values) = entries(operands)?;
        let mut places = vec![None; self.count];
        for (at, key) in keys.iter().enumerate() {
            if let Some(column) = self.columns.get(key) {
                places[*column] = Some(at);
            }
        }
        Ok(vec![row(values, &places)?])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Float,
    Integer,
    Text,
}

/// Values in the order of their keys, or at positions that are the keys.
#[derive(Debug)]
struct MapCast {
    to: Target,
    /// Columns of a sparse map.
    columns: Option<usize>,
}

/// Most columns of a result.
const MAX_COLUMNS: i64 = 1 << 24;

impl MapCast {
    fn of(params: &Params) -> Result<MapCast, OpError> {
        let to = match params.str("cast_to").unwrap_or("TO_FLOAT") {
            "TO_FLOAT" => Target::Float,
            "TO_INT64" => Target::Integer,
            "TO_STRING" => Target::Text,
            other => return Err(format!("`cast_to` is {other:?}, not TO_FLOAT, TO_INT64 or TO_STRING").into()),
        };
        let most = params.int("max_map").unwrap_or(1);
        let columns = match params.str("map_form").unwrap_or("DENSE") {
            "DENSE" => None,
            "SPARSE" if (1..=MAX_COLUMNS).contains(&most) => Some(most as usize),
            "SPARSE" => return Err(format!("`max_map` is {most}, not 1 to {MAX_COLUMNS}").into()),
            other => return Err(format!("`map_form` is {other:?}, not DENSE or SPARSE").into()),
        };
        Ok(MapCast { to, columns })
    }

    /// The values, converted to the type of the result.
    fn cast(&self, values: &HostValue) -> Result<HostValue, OpError> {
        let dtype = match self.to {
            Target::Float => DType::F32,
            Target::Integer => DType::I64,
            Target::Text => DType::F64,
        };
        match values {
            HostValue::Texts(texts) if self.to == Target::Text => Ok(HostValue::Texts(texts.clone())),
            HostValue::Texts(texts) => parsed(texts, dtype).map(HostValue::Numbers),
            HostValue::Numbers(numbers) if self.to == Target::Text => {
                let written = numbers.to_f64s().into_iter().map(|x| format!("{x:.6}").into()).collect();
                let made = TextArray::new(numbers.dims(), written);
                made.map(HostValue::Texts).ok_or_else(|| OpError("its operand is too large".to_owned()))
            }
            HostValue::Numbers(numbers) => {
                let ty = DenseType::new(dtype, numbers.dims());
                let made = TensorData::try_from_fn(ty, |at| numbers.get(at).cast(dtype));
                made.map(HostValue::Numbers).ok_or_else(|| OpError("there is no memory for its result".to_owned()))
            }
        }
    }
}

impl TextOperator for MapCast {
    fn types(&self, operands: &[OperandType]) -> Vec<ResultType> {
        let pairs = operands.first().and_then(|keys| keys.dims.as_ref()?.first().copied());
        let columns = self.columns.map(|columns| Dim::Const(columns as u64)).or(pairs);
        let dtype = match self.to {
            Target::Float => Some(DType::F32),
            Target::Integer => Some(DType::I64),
            Target::Text => None,
        };
        vec![ResultType { dtype, dims: Some(vec![Some(Dim::Const(1)), columns]) }]
    }

    fn apply(&self, operands: &[HostValue]) -> Result<Vec<HostValue>, OpError> {
        let (keys, values) = entries(operands)?;
        let mut order: Vec<(i64, usize)> = vec![];
        for (at, key) in keys.iter().enumerate() {
            match key {
                Key::Integer(key) => order.push((*key, at)),
                Key::Text(_) => return Err("the keys of its map are texts, not integers".into()),
            }
        }
        order.sort_unstable();
        let places = match self.columns {
            None => order.into_iter().map(|(_, at)| Some(at)).collect(),
            Some(columns) => {
                let mut places = vec![None; columns];
                for (key, at) in order {
                    let column = usize::try_from(key).map_err(|_| OpError(format!("the key {key} is negative")))?;
                    places.get_mut(column).into_iter().for_each(|place| *place = Some(at));
                }
                places
            }
        };
        Ok(vec![row(&self.cast(values)?, &places)?])
    }
}
