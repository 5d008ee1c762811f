//! Initial values of parameters and auxiliary states.
//!
//! A variable's own `__init__` attribute comes first, then the ending of its name (`_bias` is zero,
//! `_gamma` one, …), and weights take the initialiser that was asked for, as in MXNet. Random values come
//! from the random stream of the runtime: the same seed and order of variables give the same numbers.

mod recurrent;
mod target;

use std::collections::BTreeMap;

pub use recurrent::{FusedRnn, RnnMode};
use serde::{Deserialize, Serialize};
use tensorc_runtime::Device;

use crate::error::{Error, TrainError};
use target::InitTarget;
use tensorc::{DType, Tensor};
use tensorc_nd::{NDArray, Runtime};

/// How the elements of an array are chosen. In JSON, MXNet's form: `["xavier", {"magnitude": 2.34}]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Initializer {
    /// Zeros.
    #[serde(alias = "zeros")]
    Zero {},
    /// Ones.
    #[serde(alias = "ones")]
    One {},
    /// Given values.
    Constant {
        /// One number for all elements, or a number for each.
        value: InitValue,
    },
    /// Uniform in `[-scale, scale)`.
    Uniform {
        /// Bound of the magnitude; 0.07 by default.
        #[serde(default = "defaults::uniform")]
        scale: f64,
    },
    /// Normal with mean 0 and standard deviation `sigma`.
    #[serde(alias = "gaussian")]
    Normal {
        /// Standard deviation; 0.01 by default.
        #[serde(default = "defaults::normal")]
        sigma: f64,
    },
    /// Rows (or columns, if there are fewer of them) orthogonal to each other and of length `scale`, the array
    /// being a matrix of its first axis and all others.
    Orthogonal {
        /// Length of the rows; 1.414 by default.
        #[serde(default = "defaults::orthogonal")]
        scale: f64,
        /// Distribution of the matrix that is made orthogonal.
        #[serde(default)]
        rand_type: RandomKind,
    },
    /// Uniform in `[-c, c)` or normal with standard deviation `c`, with `c = sqrt(magnitude / fan)`.
    Xavier {
        /// Distribution of the elements.
        #[serde(default)]
        rnd_type: RandomKind,
        /// Which fan divides the magnitude.
        #[serde(default)]
        factor_type: FanFactor,
        /// Numerator of `c²`; 3 by default.
        #[serde(default = "defaults::magnitude")]
        magnitude: f64,
    },
    /// Normal, as [`Initializer::Xavier`] with magnitude `2 / (1 + slope²)`: for layers followed by a
    /// rectifier of that slope.
    MsraPrelu {
        /// Which fan divides the magnitude.
        #[serde(default)]
        factor_type: FanFactor,
        /// Slope of the rectifier for negative arguments; 0.25 by default.
        #[serde(default = "defaults::slope")]
        slope: f64,
    },
    /// Interpolation kernels for upsampling, in the last two axes.
    Bilinear {},
    /// Zero, but `forget_bias` for the second quarter: the forget gate of an LSTM's bias.
    LstmBias {
        /// Bias of the forget gate; 1 by default.
        #[serde(default = "defaults::one")]
        forget_bias: f64,
    },
    /// The parameter vector of a recurrent layer: each matrix and bias by itself, see [`FusedRnn`].
    FusedRnn(FusedRnn),
    /// Saved arrays by name, with or without `arg:` and `aux:`. What is not there takes the other initialiser.
    #[serde(skip)]
    Load {
        /// The saved arrays.
        arrays: BTreeMap<String, Tensor>,
        /// Initialises variables without a saved array; `None` makes them an error.
        default: Option<Box<Initializer>>,
    },
    /// The initialiser of the first pattern that fits the name. In a pattern, `*` stands for any characters.
    #[serde(skip)]
    Mixed(Vec<(String, Initializer)>),
}

/// A number, or numbers in the order of the array's elements, nested or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum InitValue {
    /// A number.
    One(f64),
    /// Numbers, or lists of numbers.
    List(Vec<InitValue>),
}

/// Distribution of random initial values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RandomKind {
    /// Uniform, symmetric about 0.
    #[default]
    Uniform,
    /// Normal with mean 0.
    #[serde(alias = "normal")]
    Gaussian,
}

/// Which fan divides the magnitude: inputs per output, outputs per input, or the mean of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FanFactor {
    /// The mean of both.
    #[default]
    Avg,
    /// Inputs per output: the second extent times the extents after it.
    In,
    /// Outputs per input: the first extent times the extents after the second.
    Out,
}

mod defaults {
    pub fn uniform() -> f64 {
        0.07
    }
    pub fn normal() -> f64 {
        0.01
    }
    pub fn orthogonal() -> f64 {
        1.414
    }
    pub fn magnitude() -> f64 {
        3.0
    }
    pub fn slope() -> f64 {
        0.25
    }
    pub fn one() -> f64 {
        1.0
    }
}

/// The variable of a symbol for which an array is made.
#[derive(Clone, Copy, Debug)]
pub struct Variable<'a> {
    /// Its name, whose ending may decide the value.
    pub name: &'a str,
    /// Its attribute `__init__`, if it has one.
    pub init: Option<&'a str>,
    /// Its shape.
    pub dims: &'a [u64],
    /// A float type, except for constants.
    pub dtype: DType,
}

/// What the ending of a name says about initial values. The first that fits counts.
const ENDINGS: [(&str, Ending); 12] = [
    ("weight", Ending::Weight),
    ("bias", Ending::Value(0.0)),
    ("gamma", Ending::Value(1.0)),
    ("beta", Ending::Value(0.0)),
    ("moving_mean", Ending::Value(0.0)),
    ("running_mean", Ending::Value(0.0)),
    ("moving_inv_var", Ending::Value(0.0)),
    ("moving_var", Ending::Value(1.0)),
    ("running_var", Ending::Value(1.0)),
    ("moving_avg", Ending::Value(0.0)),
    ("min", Ending::Value(0.0)),
    ("max", Ending::Value(1.0)),
];

#[derive(Clone, Copy)]
enum Ending {
    Weight,
    Value(f64),
}

impl Initializer {
    /// [`Initializer::Uniform`] in `[-scale, scale)`.
    pub fn uniform(scale: f64) -> Initializer {
        Initializer::Uniform { scale }
    }

    /// [`Initializer::Normal`] with standard deviation `sigma`.
    pub fn normal(sigma: f64) -> Initializer {
        Initializer::Normal { sigma }
    }

    /// [`Initializer::Constant`] with one number for all elements.
    pub fn constant(value: f64) -> Initializer {
        Initializer::Constant { value: InitValue::One(value) }
    }

    /// [`Initializer::Xavier`], uniform, with the mean of both fans.
    pub fn xavier(magnitude: f64) -> Initializer {
        Initializer::Xavier { rnd_type: RandomKind::Uniform, factor_type: FanFactor::Avg, magnitude }
    }

    /// Reads MXNet's text of an initialiser: `["normal", {"sigma": 0.5}]`, or only a name.
    ///
    /// # Errors
    /// There is no such initialiser, or a setting of it is unknown or wrong.
    pub fn parse(text: &str) -> Result<Initializer, TrainError> {
        let wrong = |why: String| TrainError::Initializer { text: text.to_owned(), why };
        let (name, settings) = match text.trim_start().starts_with('[') {
            true => serde_json::from_str::<(String, serde_json::Value)>(text).map_err(|e| wrong(e.to_string()))?,
            false => (text.trim().to_owned(), serde_json::json!({})),
        };
        let mut variant = serde_json::Map::new();
        variant.insert(name.to_ascii_lowercase(), settings);
        serde_json::from_value(serde_json::Value::Object(variant)).map_err(|e| wrong(e.to_string()))
    }

    /// MXNet's text, for the attribute `__init__`.
    ///
    /// # Errors
    /// Saved arrays and patterns have no text.
    pub fn to_text(&self) -> Result<String, TrainError> {
        let wrong = |why: String| TrainError::Initializer { text: format!("{self:?}"), why };
        let value = serde_json::to_value(self).map_err(|e| wrong(e.to_string()))?;
        match value.as_object().and_then(|o| o.iter().next()) {
            Some((name, settings)) => Ok(serde_json::json!([name, settings]).to_string()),
            None => Err(wrong("it has no text".into())),
        }
    }

    /// A new array with the variable's initial value.
    ///
    /// # Errors
    /// Neither its name nor an attribute says what it is, or the initialiser does not suit its shape.
    pub fn init(&self, rt: &Runtime, device: Device, variable: Variable<'_>) -> Result<NDArray, Error> {
        let place = InitTarget { rt, device, variable };
        match self {
            Initializer::Load { arrays, default } => return load(arrays, default.as_deref(), &place),
            Initializer::Mixed(patterns) => {
                let found = patterns.iter().find(|(pattern, _)| fits(pattern, variable.name));
                return match found {
                    Some((_, initializer)) => initializer.init(rt, device, variable),
                    None => Err(place.error("no pattern fits its name; add `*` at the end").into()),
                };
            }
            _ => {}
        }
        if let Some(own) = variable.init.filter(|text| !text.is_empty()) {
            return match Initializer::parse(own)? {
                Initializer::FusedRnn(parts) => recurrent::fused(&parts, Some(self), &place),
                own => own.fill(&place),
            };
        }
        match ENDINGS.iter().find(|(ending, _)| variable.name.ends_with(ending)) {
            Some((_, Ending::Weight)) => self.fill(&place),
            Some((_, Ending::Value(value))) => Ok(rt.full(device, variable.dtype, variable.dims, *value)?),
            None => {
                let endings: Vec<&str> = ENDINGS.iter().map(|(ending, _)| *ending).collect();
                let why = format!("its name ends with none of {}; give it an initialiser", endings.join(", "));
                Err(place.error(why).into())
            }
        }
    }

    /// Elements by an initialiser of one array, whatever its variable is called.
    fn fill(&self, place: &InitTarget<'_>) -> Result<NDArray, Error> {
        let Variable { dims, dtype, .. } = place.variable;
        match self {
            Initializer::Zero {} => place.full(0.0),
            Initializer::One {} => place.full(1.0),
            Initializer::Constant { value } => place.constant(value),
            Initializer::Uniform { scale } => place.random(RandomKind::Uniform, *scale, dims, dtype),
            Initializer::Normal { sigma } => place.random(RandomKind::Gaussian, *sigma, dims, dtype),
            Initializer::Orthogonal { scale, rand_type } => place.orthogonal(*scale, *rand_type),
            Initializer::Xavier { rnd_type, factor_type, magnitude } => {
                place.xavier(*rnd_type, *factor_type, *magnitude)
            }
            Initializer::MsraPrelu { factor_type, slope } => {
                place.xavier(RandomKind::Gaussian, *factor_type, 2.0 / (1.0 + slope * slope))
            }
            Initializer::Bilinear {} => place.bilinear(),
            Initializer::LstmBias { forget_bias } => place.lstm_bias(*forget_bias),
            Initializer::FusedRnn(parts) => recurrent::fused(parts, None, place),
            Initializer::Load { .. } | Initializer::Mixed(_) => self.init(place.rt, place.device, place.variable),
        }
    }
}

fn load(
    arrays: &BTreeMap<String, Tensor>,
    default: Option<&Initializer>,
    place: &InitTarget<'_>,
) -> Result<NDArray, Error> {
    let variable = place.variable;
    let with = |prefix: &str| arrays.get(&format!("{prefix}{}", variable.name));
    match (["", "arg:", "aux:"].into_iter().find_map(with), default) {
        (Some(saved), _) if saved.dims() != variable.dims || saved.dtype() != variable.dtype => {
            let expected = tensorc_ir::DenseType::new(variable.dtype, variable.dims);
            let why = format!("it is {expected}, the saved array {}", saved.data().ty);
            Err(place.error(why).into())
        }
        (Some(saved), _) => Ok(place.rt.from_tensor(saved, place.device)?),
        (None, Some(default)) => default.init(place.rt, place.device, variable),
        (None, None) => Err(place.error("it is not among the saved arrays").into()),
    }
}

/// Whether a name is what a pattern describes.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, rest)) => name.strip_prefix(head).is_some_and(|name| {
            let ends = name.char_indices().map(|(i, _)| i).chain([name.len()]);
            ends.into_iter().any(|i| fits(rest, &name[i..]))
        }),
    }
}
