//! Options set by name, from text: the names and the notation of values are those of MXNet.

use crate::DataError;

/// A value that can be read from text.
pub(super) trait Value: Sized {
    /// What the text must be.
    const WHAT: &'static str;

    fn parse(text: &str) -> Option<Self>;
}

impl Value for bool {
    const WHAT: &'static str = "true, false, 1 or 0";

    fn parse(text: &str) -> Option<bool> {
        match text {
            "1" | "true" | "True" => Some(true),
            "0" | "false" | "False" => Some(false),
            _ => None,
        }
    }
}

impl Value for i32 {
    const WHAT: &'static str = "an integer";

    fn parse(text: &str) -> Option<i32> {
        text.parse().ok()
    }
}

impl Value for u32 {
    const WHAT: &'static str = "an integer that is not negative";

    fn parse(text: &str) -> Option<u32> {
        text.parse().ok()
    }
}

impl Value for u8 {
    const WHAT: &'static str = "an integer from 0 to 255";

    fn parse(text: &str) -> Option<u8> {
        text.parse().ok()
    }
}

impl Value for f64 {
    const WHAT: &'static str = "a finite number";

    fn parse(text: &str) -> Option<f64> {
        text.parse().ok().filter(|x: &f64| x.is_finite())
    }
}

impl Value for Option<f64> {
    const WHAT: &'static str = "a finite number or None";

    fn parse(text: &str) -> Option<Option<f64>> {
        if text == "None" { Some(None) } else { f64::parse(text).map(Some) }
    }
}

impl Value for Vec<i32> {
    const WHAT: &'static str = "integers with commas between them";

    fn parse(text: &str) -> Option<Vec<i32>> {
        numbers(text)
    }
}

impl Value for [u32; 3] {
    const WHAT: &'static str = "(channels, height, width)";

    fn parse(text: &str) -> Option<[u32; 3]> {
        numbers(text)?.try_into().ok()
    }
}

/// Numbers with commas between them, in brackets or not.
fn numbers<T: Value>(text: &str) -> Option<Vec<T>> {
    let inner = text.trim_start_matches(['(', '[']).trim_end_matches([')', ']']);
    inner.split(',').map(str::trim).filter(|part| !part.is_empty()).map(T::parse).collect()
}

pub(super) fn invalid(name: &str, value: &str, what: &str) -> DataError {
    DataError::options(name, format!("`{value}` is not {what}"))
}

pub(super) fn unknown(name: &str, known: &[&str]) -> DataError {
    DataError::options(name, format!("no such option; there are {}", known.join(", ")))
}

/// Defines `set` and the list of names for a structure of options.
macro_rules! settable {
    ($options:ty { $($name:ident),* $(,)? }) => {
        impl $options {
            /// The names of all options.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Sets an option by its name.
            ///
            /// # Errors
            /// There is no such option, or the value is of another type. Ranges are checked where the options are used.
            pub fn set(&mut self, name: &str, value: &str) -> Result<(), $crate::DataError> {
                fn parse<T: $crate::image::names::Value>(name: &str, value: &str) -> Result<T, $crate::DataError> {
                    T::parse(value.trim()).ok_or_else(|| $crate::image::names::invalid(name, value, T::WHAT))
                }
                match name {
                    $(stringify!($name) => self.$name = parse(name, value)?,)*
                    _ => return Err($crate::image::names::unknown(name, Self::NAMES)),
                }
                Ok(())
            }
        }
    };
}

pub(super) use settable;
