//! Options of data sources by the names that MXNet gives them: text to values, and what all structs of options have.

use std::path::PathBuf;
use std::str::FromStr;

use tensorc_abi::DType;

use crate::error::DataError;
use crate::iter::OnError;

/// # Errors
/// The text is no number of this type.
pub fn parse_number<T: FromStr>(name: &str, text: &str) -> Result<T, DataError> {
    text.trim().parse().map_err(|_| DataError::options(name, format!("`{text}` is not a number in its range")))
}

/// `True`, `true` or `1`, and their opposites.
///
/// # Errors
/// The text is none of them.
pub fn parse_bool(name: &str, text: &str) -> Result<bool, DataError> {
    match text.trim() {
        "True" | "true" | "1" => Ok(true),
        "False" | "false" | "0" => Ok(false),
        _ => Err(DataError::options(name, format!("`{text}` is neither True nor False"))),
    }
}

/// # Errors
/// The text is no number, or infinite.
fn parse_finite(name: &str, text: &str) -> Result<f64, DataError> {
    let number: f64 = parse_number(name, text)?;
    match number.is_finite() {
        true => Ok(number),
        false => Err(DataError::options(name, format!("`{text}` is not finite"))),
    }
}

/// Numbers with commas between them, in brackets or not: `(3,224,224)`, `(5,)`, `[2, 2]` or `7`.
///
/// # Errors
/// The text is none, or one is no number of the type.
pub fn parse_list<T: FromStr>(name: &str, text: &str) -> Result<Vec<T>, DataError> {
    let wrong = || DataError::options(name, format!("`{text}` is not a list of numbers such as (3,224,224)"));
    let trimmed = text.trim();
    let inside = match (trimmed.strip_prefix('('), trimmed.strip_prefix('[')) {
        (Some(rest), _) => rest.strip_suffix(')').ok_or_else(wrong)?,
        (_, Some(rest)) => rest.strip_suffix(']').ok_or_else(wrong)?,
        _ => trimmed,
    };
    let numbers = inside.trim().trim_end_matches(',');
    if numbers.is_empty() {
        return Ok(vec![]);
    }
    numbers.split(',').map(|number| number.trim().parse().map_err(|_| wrong())).collect()
}

/// An element type by its name in numpy (`float32`) or in the text format (`f32`).
///
/// # Errors
/// There is no such type.
pub fn parse_dtype(name: &str, text: &str) -> Result<DType, DataError> {
    let text = text.trim();
    let (kind, bits) = text.split_at(text.find(|c: char| c.is_ascii_digit()).unwrap_or(text.len()));
    let short = match kind {
        "float" => "f",
        "bfloat" => "bf",
        "int" => "i",
        "uint" => "u",
        other => other,
    };
    DType::from_name(&format!("{short}{bits}"))
        .ok_or_else(|| DataError::options(name, format!("unknown element type `{text}`")))
}

/// A value of an option that can be given as text.
pub trait Setting {
    /// # Errors
    /// The text is no such value.
    fn assign(&mut self, name: &str, text: &str) -> Result<(), DataError>;
}

macro_rules! setting {
    ($($type:ty => $parse:expr),* $(,)?) => { $(
        impl Setting for $type {
            fn assign(&mut self, name: &str, text: &str) -> Result<(), DataError> {
                let parse: fn(&str, &str) -> Result<$type, DataError> = $parse;
                *self = parse(name, text)?;
                Ok(())
            }
        }
    )* };
}

setting! {
    u8 => parse_number,
    u32 => parse_number,
    i32 => parse_number,
    usize => parse_number,
    u64 => parse_number,
    f64 => parse_finite,
    Option<f64> => |name, text| if text.trim() == "None" { Ok(None) } else { parse_finite(name, text).map(Some) },
    Option<u64> => |name, text| if text.trim() == "None" { Ok(None) } else { parse_number(name, text).map(Some) },
    Option<usize> => |name, text| if text.trim() == "None" { Ok(None) } else { parse_number(name, text).map(Some) },
    Vec<i32> => parse_list,
    [u32; 3] => |name, text| {
        let wrong = |_| DataError::options(name, format!("`{text}` is not a shape such as (3,224,224)"));
        parse_list(name, text)?.try_into().map_err(wrong)
    },
    bool => parse_bool,
    Vec<u64> => parse_list,
    DType => parse_dtype,
    OnError => |name, text| match text.trim() {
        "fail" => Ok(OnError::Fail),
        "skip" => Ok(OnError::Skip),
        "count" => Ok(OnError::Count),
        other => Err(DataError::options(name, format!("`{other}` is not fail, skip or count"))),
    },
    String => |_, text| Ok(text.to_owned()),
    PathBuf => |_, text| Ok(text.into()),
    // MXNet writes NULL for a file that is not given.
    Option<PathBuf> => |_, text| Ok((!matches!(text, "" | "NULL" | "None")).then(|| text.into())),
}

/// Defines a structure of options from its fields and their defaults, with the names of the fields and `set`; `$source` is what
/// errors call it. Fields behind `and` have no text.
macro_rules! options {
    (
        $source:literal,
        $(#[$meta:meta])*
        pub struct $options:ident {
            $($(#[$doc:meta])* pub $name:ident: $type:ty = $default:expr,)*
            $(and $($(#[$other_doc:meta])* pub $other:ident: $other_type:ty,)*)?
        }
    ) => {
        $(#[$meta])*
        #[derive(serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $options {
            $($(#[$doc])* pub $name: $type,)*
            $($($(#[$other_doc])* pub $other: $other_type,)*)?
        }

        impl Default for $options {
            fn default() -> $options {
                $options { $($name: $default,)* $($($other: Default::default(),)*)? }
            }
        }

        impl $options {
            /// The names of all options.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Sets an option by its name. Ranges are checked where the options are used.
            ///
            /// # Errors
            /// There is no such option, or the text is no value of it.
            pub fn set(&mut self, name: &str, text: &str) -> Result<(), $crate::error::DataError> {
                match name {
                    $(stringify!($name) => $crate::options::Setting::assign(&mut self.$name, name, text),)*
                    other => Err($crate::options::unknown($source, other, Self::NAMES)),
                }
            }
        }
    };
}
pub(crate) use options;

pub fn unknown(source: &str, name: &str, known: &[&str]) -> DataError {
    DataError::options(source, format!("unknown option `{name}`; there are {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_python_writes_them() {
        for (text, shape) in [("(3,224,224)", vec![3, 224, 224]), ("(5,)", vec![5]), ("[2, 2]", vec![2, 2])] {
            assert_eq!(parse_list::<u64>("s", text).unwrap(), shape);
        }
        assert_eq!(parse_list::<u64>("s", "7").unwrap(), [7]);
        assert_eq!(parse_list::<u64>("s", "()").unwrap(), [0u64; 0]);
        for wrong in ["(3", "(a,)", "3,-1", "(1,,2)"] {
            assert!(parse_list::<u64>("s", wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_bool("b", "True").unwrap(), parse_bool("b", "0").unwrap()), (true, false));
        assert_eq!(parse_bool("b", "yes").unwrap_err().to_string(), "b: `yes` is neither True nor False");
        for (text, dtype) in [("float32", DType::F32), ("bfloat16", DType::BF16), ("int64", DType::I64)] {
            assert_eq!(parse_dtype("d", text).unwrap(), dtype);
            assert_eq!(parse_dtype("d", dtype.name()).unwrap(), dtype);
        }
        assert_eq!(parse_dtype("d", "bool").unwrap(), DType::Bool);
        assert!(parse_dtype("d", "float31").is_err());
        assert!(parse_number::<usize>("n", "-1").is_err());
    }
}
