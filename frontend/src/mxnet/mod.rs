//! Files of MXNet.
//!
//! Its NDArray lists, in which parameters are saved ([`params`]), its codes of element types
//! ([`dtype`]), and the way files are replaced without a moment in which they are incomplete
//! ([`file`]).

pub(crate) mod dtype;
pub mod error;
pub(crate) mod file;
pub mod params;

pub use error::{ArrayProblem, FormatProblem, ParamsError, Site};
pub use file::FileError;
pub use params::{ArrayList, ArrayVersion, SavedArray};
