//! Typed operator parameters and their specifications.

use tensorc_abi::DType;

use crate::tensor::TensorData;

/// The value of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum ParamValue {
    Int(i64),
    Float(f64),
    Bool(bool),
    Str(String),
    DType(DType),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Strs(Vec<String>),
    Tensor(TensorData),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    Int,
    Float,
    Bool,
    Str,
    /// A string that is one of these.
    Choice(&'static [&'static str]),
    DType,
    Ints,
    Floats,
    Strs,
    Tensor,
}

impl ParamKind {
    pub const fn name(self) -> &'static str {
        match self {
            ParamKind::Int => "int",
            ParamKind::Float => "float",
            ParamKind::Bool => "bool",
            ParamKind::Str | ParamKind::Choice(_) => "string",
            ParamKind::DType => "dtype",
            ParamKind::Ints => "ints",
            ParamKind::Floats => "floats",
            ParamKind::Strs => "strings",
            ParamKind::Tensor => "tensor",
        }
    }
}

impl ParamValue {
    /// An element of [`ParamValue::Ints`] that stands for none given, as in `begin=(0, None)`.
    pub const NONE: i64 = i64::MIN;

    pub fn kind(&self) -> ParamKind {
        match self {
            ParamValue::Int(_) => ParamKind::Int,
            ParamValue::Float(_) => ParamKind::Float,
            ParamValue::Bool(_) => ParamKind::Bool,
            ParamValue::Str(_) => ParamKind::Str,
            ParamValue::DType(_) => ParamKind::DType,
            ParamValue::Ints(_) => ParamKind::Ints,
            ParamValue::Floats(_) => ParamKind::Floats,
            ParamValue::Strs(_) => ParamKind::Strs,
            ParamValue::Tensor(_) => ParamKind::Tensor,
        }
    }
}

macro_rules! from_value {
    ($($from:ty => $variant:ident $convert:expr;)*) => { $(
        impl From<$from> for ParamValue {
            fn from(value: $from) -> ParamValue {
                ParamValue::$variant($convert(value))
            }
        }
    )* };
}

from_value! {
    i64 => Int std::convert::identity;
    i32 => Int i64::from;
    f64 => Float std::convert::identity;
    bool => Bool std::convert::identity;
    &str => Str str::to_owned;
    DType => DType std::convert::identity;
    Vec<i64> => Ints std::convert::identity;
    Vec<f64> => Floats std::convert::identity;
    TensorData => Tensor std::convert::identity;
}

/// Declares one parameter of an operator.
#[derive(Clone, Debug)]
pub struct ParamSpec {
    pub name: &'static str,
    pub kind: ParamKind,
    /// `None`: the parameter may be absent, unless `required`.
    pub default: Option<ParamValue>,
    pub required: bool,
    /// Inclusive bounds of an integer or float.
    pub range: Option<(f64, f64)>,
    pub doc: &'static str,
}

/// Parameters by name, sorted. Holds only values given; defaults live in the specification.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Params(Vec<(&'static str, ParamValue)>);

impl Params {
    pub fn new() -> Params {
        Params::default()
    }

    pub fn with(mut self, name: &'static str, value: ParamValue) -> Params {
        self.set(name, value);
        self
    }

    pub fn set(&mut self, name: &'static str, value: ParamValue) {
        match self.0.binary_search_by(|(n, _)| n.cmp(&name)) {
            Ok(i) => self.0[i].1 = value,
            Err(i) => self.0.insert(i, (name, value)),
        }
    }

    pub fn get(&self, name: &str) -> Option<&ParamValue> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &ParamValue)> {
        self.0.iter().map(|(n, v)| (*n, v))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

macro_rules! getters {
    ($($name:ident: $variant:ident -> $t:ty, $map:expr;)*) => {
        impl Params {
            $(pub fn $name(&self, name: &str) -> Option<$t> {
                match self.get(name) {
                    Some(ParamValue::$variant(v)) => Some($map(v)),
                    _ => None,
                }
            })*
        }
    };
}

fn copy<T: Copy>(v: &T) -> T {
    *v
}

impl Params {
    /// Checks names, kinds, ranges and required parameters against the specifications and adds the
    /// defaults of those absent.
    pub fn complete(&mut self, specs: &[ParamSpec]) -> Result<(), String> {
        for (name, value) in &self.0 {
            let Some(spec) = specs.iter().find(|s| s.name == *name) else {
                return Err(format!("unknown parameter `{name}`"));
            };
            if let (ParamKind::Choice(of), ParamValue::Str(word)) = (spec.kind, value) {
                if !of.contains(&word.as_str()) {
                    return Err(format!("parameter `{name}` is `{word}`, expected one of {}", of.join(", ")));
                }
            } else if spec.kind != value.kind() {
                return Err(format!(
                    "parameter `{name}` is of type {}, expected {}",
                    value.kind().name(),
                    spec.kind.name()
                ));
            }
            let number = match value {
                ParamValue::Int(i) => Some(*i as f64),
                ParamValue::Float(x) => Some(*x),
                _ => None,
            };
            if let (Some(x), Some((lo, hi))) = (number, spec.range)
                && !(lo..=hi).contains(&x)
            {
                return Err(format!("parameter `{name}` is {x}, expected a value in [{lo}, {hi}]"));
            }
        }
        for spec in specs {
            match (&spec.default, self.get(spec.name)) {
                (Some(default), None) => self.set(spec.name, default.clone()),
                (None, None) if spec.required => return Err(format!("parameter `{}` is missing", spec.name)),
                _ => {}
            }
        }
        Ok(())
    }
}

getters! {
    int: Int -> i64, copy;
    float: Float -> f64, copy;
    bool: Bool -> bool, copy;
    dtype: DType -> DType, copy;
    str: Str -> &str, String::as_str;
    ints: Ints -> &[i64], Vec::as_slice;
    floats: Floats -> &[f64], Vec::as_slice;
    strs: Strs -> &[String], Vec::as_slice;
    tensor: Tensor -> &TensorData, std::convert::identity;
}
