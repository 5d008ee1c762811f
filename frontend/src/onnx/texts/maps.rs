//! Maps. An input `x` that is one is two vectors, `x.keys` and `x.values`; a result that is one for each row is the tensor of the values.

use super::super::attribute::{ints, texts};
use super::super::error::OnnxError;
use super::super::import::Importer;
use super::super::meaning::Meaning;
use super::super::proto::{
    DataType, Dimension, DimensionValue, MapTypeProto, NodeProto, TensorShapeProto, TensorTypeProto, TypeProto,
    TypeValue,
};

/// The keys of maps, in the order of their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapKeys {
    /// Texts.
    Texts(Vec<String>),
    /// Integers.
    Integers(Vec<i64>),
}

impl MapKeys {
    /// The keys of the maps that a `ZipMap` gives, if it states them.
    pub(super) fn of(node: &NodeProto) -> Option<MapKeys> {
        let list = |name: &str| node.attribute.iter().find(|a| a.name() == name);
        let given = list("classlabels_strings").and_then(|a| texts(a).ok()).filter(|all| !all.is_empty());
        given.map(MapKeys::Texts).or_else(|| Some(MapKeys::Integers(ints(list("classlabels_int64s")?).ok()?)))
    }
}

/// Types that keys may have, and values.
const KEYS: [DataType; 2] = [DataType::String, DataType::Int64];
const VALUES: [DataType; 4] = [DataType::Float, DataType::Double, DataType::Int64, DataType::String];

impl Importer<'_> {
    /// Adds the inputs of the graph that a map is; the inner error says why it is not supported.
    pub(in super::super) fn map_input(
        &mut self,
        name: &str,
        declared: &MapTypeProto,
    ) -> Result<Result<Meaning, String>, OnnxError> {
        let value = match declared.value_type.as_deref() {
            Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) }) => tensor.elem_type(),
            _ => return Ok(Err("its type is a map of values that are no tensors".to_owned())),
        };
        let key = declared.key_type();
        let is_one_of = |all: &[DataType], code: i32| all.iter().any(|ty| *ty as i32 == code);
        if !is_one_of(&KEYS, key) || !is_one_of(&VALUES, value) {
            let why = "its type is a map, but not of texts or i64 to f32, f64, i64 or texts";
            return Ok(Err(why.to_owned()));
        }
        let names = ["keys", "values"].map(|part| format!("{name}.{part}"));
        for (part, code) in names.iter().zip([key, value]) {
            let pairs = Dimension { value: Some(DimensionValue::Param(format!("{name}.pairs"))) };
            let shape = Some(TensorShapeProto { dim: vec![pairs] });
            match self.tensor_input(part, &TensorTypeProto { elem_type: Some(code), shape })? {
                Ok(tensor) => self.define_input(part, tensor)?,
                Err(why) => return Ok(Err(why)),
            }
        }
        Ok(Ok(Meaning::Map(names.map(Into::into))))
    }
}
