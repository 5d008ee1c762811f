//! The one vector of parameters of a recurrent layer, as MXNet lays it out: it is taken apart into the matrices and
//! biases of gates, each gets its own initial value, and they are put together again.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::target::InitTarget;
use super::{Initializer, Variable};
use crate::error::Error;
use tensorc_nd::NDArray;

/// What a recurrent layer computes in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RnnMode {
    /// An Elman layer with the rectifier.
    RnnRelu,
    /// An Elman layer with the hyperbolic tangent.
    RnnTanh,
    /// A long short-term memory with four gates.
    Lstm,
    /// A gated recurrent unit with three gates.
    Gru,
}

impl RnnMode {
    /// Names of the gates, in order.
    fn gates(self) -> &'static [&'static str] {
        match self {
            RnnMode::RnnRelu | RnnMode::RnnTanh => &[""],
            RnnMode::Lstm => &["_i", "_f", "_c", "_o"],
            RnnMode::Gru => &["_r", "_z", "_o"],
        }
    }
}

/// How the parameters of a recurrent layer begin. The numbers are those of the layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FusedRnn {
    /// Of the matrices; if there is none, the initialiser that weights get otherwise. Biases are zero.
    #[serde(default, serialize_with = "to_text", deserialize_with = "of_text")]
    pub init: Option<Box<Initializer>>,
    /// Hidden units of each layer and direction.
    pub num_hidden: u64,
    /// Number of stacked layers.
    pub num_layers: u64,
    /// Kind of cell, which gives the number of gates.
    pub mode: RnnMode,
    /// Whether each layer also runs from the end of the sequence to its beginning.
    #[serde(default)]
    pub bidirectional: bool,
    /// Of an LSTM, the two biases of the forget gate.
    #[serde(default = "super::defaults::one")]
    pub forget_bias: f64,
}

/// In MXNet's files the inner initialiser is text in the text.
fn to_text<S: Serializer>(init: &Option<Box<Initializer>>, to: S) -> Result<S::Ok, S::Error> {
    let text = init.as_ref().map(|init| init.to_text()).transpose();
    text.map_err(serde::ser::Error::custom)?.serialize(to)
}

fn of_text<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Box<Initializer>>, D::Error> {
    let text: Option<String> = Deserialize::deserialize(from)?;
    let init = text.map(|text| Initializer::parse(&text).map(Box::new)).transpose();
    init.map_err(serde::de::Error::custom)
}

/// A matrix or bias in the vector.
struct GateParameters {
    name: String,
    dims: Vec<u64>,
}

impl FusedRnn {
    /// The parts of a vector of `len` numbers, in order; `None` if no number of inputs gives that length.
    fn parts(&self, len: u64) -> Option<Vec<GateParameters>> {
        let (h, layers, gates) = (self.num_hidden, self.num_layers, self.mode.gates());
        let directions: &[&str] = if self.bidirectional { &["l", "r"] } else { &["l"] };
        let width = directions.len() as u64;
        let rows = h.checked_mul(gates.len() as u64)?.checked_mul(width).filter(|n| *n > 0)?;
        if layers == 0 || !len.is_multiple_of(rows) {
            return None;
        }
        // Columns of all layers side by side: inputs, states, and two biases.
        let above = (layers - 1).checked_mul(h.checked_mul(1 + width)?.checked_add(2)?)?;
        let inputs = (len / rows).checked_sub(above)?.checked_sub(h.checked_add(2)?).filter(|n| *n > 0)?;
        let mut found = vec![];
        for kind in ["weight", "bias"] {
            for layer in 0..layers {
                for (direction, from) in directions.iter().flat_map(|d| ["i2h", "h2h"].map(|from| (d, from))) {
                    let columns = match (from, layer) {
                        ("h2h", _) => h,
                        (_, 0) => inputs,
                        _ => h * width,
                    };
                    let dims = if kind == "weight" { vec![h, columns] } else { vec![h] };
                    let name = |gate: &&str| format!("{direction}{layer}_{from}{gate}_{kind}");
                    found.extend(gates.iter().map(|gate| GateParameters { name: name(gate), dims: dims.clone() }));
                }
            }
        }
        Some(found)
    }
}

/// The vector of a layer; `global` initialises what its own initialiser is missing for.
pub fn fused(parts: &FusedRnn, global: Option<&Initializer>, place: &InitTarget<'_>) -> Result<NDArray, Error> {
    let dims = place.variable.dims;
    let found = match dims {
        [len] => parts.parts(*len),
        _ => None,
    };
    let Some(found) = found else {
        let (h, layers, mode) = (parts.num_hidden, parts.num_layers, parts.mode);
        let why = format!("shape {dims:?} does not fit the parameters of {layers} {mode:?} layers of {h} units");
        return Err(place.error(why).into());
    };
    let Some(init) = parts.init.as_deref().or(global) else {
        return Err(place.error("no initialiser is given for the matrices of the layer").into());
    };
    let made = found.iter().map(|part| {
        let variable = Variable { name: &part.name, init: None, dims: &part.dims, ..place.variable };
        let forget = parts.mode == RnnMode::Lstm && part.name.ends_with("_f_bias");
        let array = match forget {
            true => place.rt.full(place.device, variable.dtype, variable.dims, parts.forget_bias)?,
            false => init.init(place.rt, place.device, variable)?,
        };
        Ok(array.reshape(&[-1])?)
    });
    let made = made.collect::<Result<Vec<_>, Error>>()?;
    Ok(place.rt.op("concat")?.args(&made).param("axis", 0i64).invoke()?)
}
