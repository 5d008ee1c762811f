//! Options of data sources by the names that MXNet gives them: text to values, and one `set` for all structs of options.

use std::path::PathBuf;
use std::str::FromStr;

use tensorc_abi::DType;

use crate::DataError;

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

/// Extents such as `(3,224,224)`, `(5,)`, `[2, 2]` or `7`.
///
/// # Errors
/// The text is none, or an extent is no number from 0.
pub fn parse_shape(name: &str, text: &str) -> Result<Vec<u64>, DataError> {
    let wrong = || DataError::options(name, format!("`{text}` is not a shape such as (3,224,224)"));
    let trimmed = text.trim();
    let inside = match (trimmed.strip_prefix('('), trimmed.strip_prefix('[')) {
        (Some(rest), _) => rest.strip_suffix(')').ok_or_else(wrong)?,
        (_, Some(rest)) => rest.strip_suffix(']').ok_or_else(wrong)?,
        _ => trimmed,
    };
    let extents = inside.trim().trim_end_matches(',');
    if extents.is_empty() {
        return Ok(vec![]);
    }
    extents.split(',').map(|extent| extent.trim().parse().map_err(|_| wrong())).collect()
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
        .ok_or_else(|| DataError::options(name, format!("there is no element type `{text}`")))
}

/// An option that has no such name.
pub fn unknown(source: &str, name: &str, known: &[&str]) -> DataError {
    DataError::options(source, format!("there is no option `{name}`; there are {}", known.join(", ")))
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
    usize => parse_number,
    u64 => parse_number,
    bool => parse_bool,
    Vec<u64> => parse_shape,
    DType => parse_dtype,
    String => |_, text| Ok(text.to_owned()),
    PathBuf => |_, text| Ok(text.into()),
    // MXNet writes NULL for a file that is not given.
    Option<PathBuf> => |_, text| Ok((!matches!(text, "" | "NULL" | "None")).then(|| text.into())),
}

/// `set` of a struct whose fields are named as the options are.
macro_rules! set_by_name {
    ($options:expr, $source:literal, $name:expr, $text:expr, [$($field:ident),* $(,)?]) => {
        match $name {
            $(stringify!($field) => $crate::options::Setting::assign(&mut $options.$field, $name, $text),)*
            other => Err($crate::options::unknown($source, other, &[$(stringify!($field)),*])),
        }
    };
}
pub(crate) use set_by_name;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_python_writes_them() {
        for (text, shape) in [("(3,224,224)", vec![3, 224, 224]), ("(5,)", vec![5]), ("[2, 2]", vec![2, 2])] {
            assert_eq!(parse_shape("s", text).unwrap(), shape);
        }
        assert_eq!(parse_shape("s", "7").unwrap(), [7]);
        assert_eq!(parse_shape("s", "()").unwrap(), [0u64; 0]);
        for wrong in ["(3", "(a,)", "3,-1", "(1,,2)"] {
            assert!(parse_shape("s", wrong).is_err(), "{wrong}");
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
