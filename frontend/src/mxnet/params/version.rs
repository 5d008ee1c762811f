//! Versions of the format of one array.

use std::fmt;

/// Versions of the format of one array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ArrayVersion {
    /// MXNet before 0.10: dense arrays with 32-bit dimensions.
    V0,
    /// MXNet 0.10 and 0.11: dense arrays.
    V1,
    /// MXNet from 0.12 on: dense and sparse arrays.
    V2,
    /// MXNet from 1.6 on with NumPy shapes: dense arrays, scalars, dimensions of 0.
    V3,
}

impl fmt::Display for ArrayVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}", *self as u8)
    }
}
