//! Typed operator parameters and their specifications.

use tensorc_abi::DType;

use crate::tensor::TensorData;

/// The value of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum ParamValue {
    /// An integer.
    Int(i64),
    /// A real number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Str(String),
    /// An element type.
    DType(DType),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A list of real numbers.
    Floats(Vec<f64>),
    /// A list of texts.
    Strs(Vec<String>),
    /// A tensor.
    Tensor(TensorData),
}

/// The kind of a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// [`ParamValue::Int`].
    Int,
    /// [`ParamValue::Float`].
    Float,
    /// [`ParamValue::Bool`].
    Bool,
    /// [`ParamValue::Str`].
    Str,
    /// A string that is one of these.
    Choice(&'static [&'static str]),
    /// [`ParamValue::DType`].
    DType,
    /// [`ParamValue::Ints`].
    Ints,
    /// [`ParamValue::Floats`].
    Floats,
    /// [`ParamValue::Strs`].
    Strs,
    /// [`ParamValue::Tensor`].
    Tensor,
}

impl ParamKind {
    /// The name in messages.
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

    /// The kind of the value.
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

/// A Rust type that parameters are read as.
pub trait FromParam: Sized {
    /// The content of a value of this kind, `None` for another kind.
    fn from_param(value: &ParamValue) -> Option<Self>;
}

macro_rules! from_param {
    ($($variant:ident => $to:ty;)*) => { $(
        impl FromParam for $to {
            fn from_param(value: &ParamValue) -> Option<$to> {
                match value {
                    ParamValue::$variant(v) => Some(v.clone()),
                    _ => None,
                }
            }
        }
    )* };
}

from_param! {
    Int => i64;
    Float => f64;
    Bool => bool;
    Str => String;
    DType => DType;
    Ints => Vec<i64>;
    Floats => Vec<f64>;
    Strs => Vec<String>;
    Tensor => TensorData;
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
    String => Str std::convert::identity;
    DType => DType std::convert::identity;
    Vec<i64> => Ints std::convert::identity;
    Vec<f64> => Floats std::convert::identity;
    Vec<String> => Strs std::convert::identity;
    TensorData => Tensor std::convert::identity;
}

/// Declares one parameter of an operator.
#[derive(Clone, Debug)]
pub struct ParamSpec {
    /// The name.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: ParamKind,
    /// `None`: the parameter may be absent, unless `required`.
    pub default: Option<ParamValue>,
    /// Whether it must be given.
    pub required: bool,
    /// Inclusive bounds of an integer or float.
    pub range: Option<(f64, f64)>,
    /// What the parameter means.
    pub doc: &'static str,
}

impl ParamSpec {
    /// Type, presence and default in MXNet's words: `float, optional, default=0`, `int, required`,
    /// `{'avg', 'max'},optional, default='max'`.
    pub fn type_text(&self) -> String {
        let kind = match self.kind {
            ParamKind::Int => "int".to_owned(),
            ParamKind::Float => "float".to_owned(),
            ParamKind::Bool => "boolean".to_owned(),
            ParamKind::Str => "string".to_owned(),
            ParamKind::Choice(of) => {
                format!("{{{}}}", of.iter().map(|w| format!("'{w}'")).collect::<Vec<_>>().join(", "))
            }
            ParamKind::DType => "dtype".to_owned(),
            ParamKind::Ints => "Shape(tuple)".to_owned(),
            ParamKind::Floats => "tuple of <float>".to_owned(),
            ParamKind::Strs => "tuple of <string>".to_owned(),
            ParamKind::Tensor => "tensor".to_owned(),
        };
        let gap = if matches!(self.kind, ParamKind::Choice(_)) { "," } else { ", " };
        match &self.default {
            Some(default) => format!("{kind}{gap}optional, default={default}"),
            None if self.required => format!("{kind}, required"),
            None => format!("{kind} or None{gap}optional, default=None"),
        }
    }
}

impl std::fmt::Display for ParamValue {
    /// As MXNet writes defaults.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fn list<T>(f: &mut std::fmt::Formatter<'_>, items: &[T], text: impl Fn(&T) -> String) -> std::fmt::Result {
            write!(f, "[{}]", items.iter().map(text).collect::<Vec<_>>().join(","))
        }
        match self {
            ParamValue::Int(i) => write!(f, "{i}"),
            ParamValue::Float(x) => write!(f, "{x}"),
            ParamValue::Bool(b) => write!(f, "{}", u8::from(*b)),
            ParamValue::Str(s) => write!(f, "'{s}'"),
            ParamValue::DType(d) => write!(f, "'{d}'"),
            ParamValue::Ints(items) => list(f, items, |i| match *i {
                ParamValue::NONE => "None".to_owned(),
                i => i.to_string(),
            }),
            ParamValue::Floats(items) => list(f, items, f64::to_string),
            ParamValue::Strs(items) => list(f, items, |s| format!("'{s}'")),
            ParamValue::Tensor(data) => write!(f, "{}", data.ty),
        }
    }
}

/// Parameters by name, sorted. Holds only values given; defaults live in the specification.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Params(Vec<(&'static str, ParamValue)>);

impl Params {
    /// No parameters.
    pub fn new() -> Params {
        Params::default()
    }

    /// Adds a parameter.
    pub fn with(mut self, name: &'static str, value: impl Into<ParamValue>) -> Params {
        self.set(name, value.into());
        self
    }

    /// Sets a parameter, in place of an earlier value.
    pub fn set(&mut self, name: &'static str, value: ParamValue) {
        match self.0.binary_search_by(|(n, _)| n.cmp(&name)) {
            Ok(i) => self.0[i].1 = value,
            Err(i) => self.0.insert(i, (name, value)),
        }
    }

    /// The value of a parameter, if it is set.
    pub fn get(&self, name: &str) -> Option<&ParamValue> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// The value of a parameter in the type it was declared with.
    ///
    /// # Errors
    /// It is absent or of another type.
    pub fn read<T: FromParam>(&self, name: &str) -> Result<T, String> {
        let value = self.get(name).ok_or_else(|| format!("parameter `{name}` is not given"))?;
        T::from_param(value).ok_or_else(|| format!("parameter `{name}` is of type {}", value.kind().name()))
    }

    /// Whether a truth value is set and true.
    pub fn flag(&self, name: &str) -> bool {
        self.bool(name) == Some(true)
    }

    /// All parameters by name, in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &ParamValue)> {
        self.0.iter().map(|(n, v)| (*n, v))
    }

    /// Whether no parameter is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

macro_rules! getters {
    ($($name:ident: $variant:ident -> $t:ty, $map:expr;)*) => {
        impl Params {
            $(#[doc = concat!("The value of a parameter, if it is set and a [`ParamValue::", stringify!($variant), "`].")]
            pub fn $name(&self, name: &str) -> Option<$t> {
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
                let known: Vec<&str> = specs.iter().map(|s| s.name).collect();
                return Err(match known.as_slice() {
                    [] => format!("unknown parameter `{name}`; it takes none"),
                    known => format!("unknown parameter `{name}`; it takes: {}", known.join(", ")),
                });
            };
            if let (ParamKind::Choice(of), ParamValue::Str(word)) = (spec.kind, value) {
                if !of.contains(&word.as_str()) {
                    return Err(format!("parameter `{name}` is `{word}`, expected one of {}", of.join(", ")));
                }
            } else if spec.kind != value.kind() {
                return Err(format!(
                    "parameter `{name}` is {value}, of type {}, expected {}",
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
                (None, None) if spec.required => {
                    return Err(format!("parameter `{}` ({}) is missing", spec.name, spec.type_text()));
                }
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
