//! Files of MXNet.
//!
//! Its NDArray lists, in which parameters are saved ([`params`]), and its codes of element types
//! ([`dtype`]).

pub(crate) mod dtype;
pub mod error;
pub mod params;

pub use crate::file::FileError;
pub use error::{ArrayProblem, FormatProblem, ParamsError, Site};
pub use params::{ArrayList, ArrayVersion, SavedArray};
