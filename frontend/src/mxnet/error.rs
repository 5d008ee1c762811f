//! Everything that can be wrong with an MXNet file, as typed errors.

use std::fmt;
use std::path::PathBuf;

use tensorc_abi::DType;
use thiserror::Error;

use super::params::Version;

/// Why an NDArray list could not be read or written.
#[derive(Debug, Error)]
pub enum ParamsError {
    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    /// The writer that the caller passed failed.
    #[error("cannot write the arrays: {0}")]
    Stream(std::io::Error),
    /// The bytes are no valid NDArray list; `offset` is where the offending field begins.
    #[error("{site}, at byte {offset}: {problem}")]
    Format { site: Site, offset: u64, problem: FormatProblem },
    /// An array cannot be used or written as asked.
    #[error("{site}: {problem}")]
    Array { site: Site, problem: ArrayProblem },
    #[error("array {unnamed} of the list has no name while others have one; all arrays have names or none has")]
    MixedNames { unnamed: usize },
    /// A checkpoint holds arrays under names that say what they are.
    #[error("{site} is neither an argument nor an auxiliary state; names begin with `arg:` or `aux:`")]
    NotCheckpoint { site: Site },
    #[error("`{name}` is in the checkpoint twice")]
    Duplicate { name: String },
}

/// Which part of a list an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Site {
    Header,
    /// An array, by its position in the list and, where it is known, its name. Names follow the
    /// arrays in a file, so an error of reading an array knows the position only.
    Array {
        index: usize,
        name: Option<String>,
    },
    /// The number of names.
    Names,
    /// The name of the array at this position.
    Name {
        index: usize,
    },
    /// What follows the last name.
    End,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Site::Header => f.write_str("header"),
            Site::Array { index, name: None } => write!(f, "array {index}"),
            Site::Array { index, name: Some(name) } => write!(f, "array {index} `{name}`"),
            Site::Names => f.write_str("names"),
            Site::Name { index } => write!(f, "name of array {index}"),
            Site::End => f.write_str("end of the list"),
        }
    }
}

/// Why bytes are no valid NDArray list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatProblem {
    #[error("not an NDArray list (it begins with {found:#x} instead of 0x112)")]
    NotAList { found: u64 },
    #[error("not an NDArray list but {0}")]
    OtherFormat(&'static str),
    #[error("{what} needs {needed} bytes, {left} are left")]
    Truncated { what: &'static str, needed: u64, left: u64 },
    #[error("the rank is {0}")]
    BadRank(i32),
    #[error("dimension {index} is {value}")]
    BadDimension { index: usize, value: i64 },
    #[error("the shape {0:?} is too large")]
    TooLarge(Vec<u64>),
    #[error("storage type {0} is not defined (0 dense, 1 row_sparse, 2 csr)")]
    UnknownStorage(i32),
    #[error("a sparse array cannot be stored in version 3")]
    SparseInV3,
    #[error("device type {0} is not defined (1 cpu, 2 gpu, 3 cpu_pinned, 5 cpu_shared)")]
    UnknownDevice(i32),
    #[error("element type {code} of the {what} is not defined")]
    UnknownType { code: i32, what: &'static str },
    #[error("{names} names for {arrays} arrays; there must be one for each or none")]
    NameCount { arrays: u64, names: u64 },
    #[error("the name is not UTF-8 text")]
    NotUtf8,
    #[error("{0} bytes follow the list")]
    TrailingBytes(u64),
}

/// Why an array cannot be used or written as asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArrayProblem {
    #[error("the array is empty: it was saved without shape and data")]
    None,
    #[error("a {rank}-dimensional {kind} array is not defined")]
    SparseRank { kind: &'static str, rank: usize },
    #[error("{what} have shape {found:?}, {expected:?} is expected")]
    SparseShape { what: &'static str, expected: Vec<u64>, found: Vec<u64> },
    #[error("{what} are {dtype}, not integers")]
    IndexType { what: &'static str, dtype: DType },
    #[error("{what}[{position}] is {value}, outside of 0..{bound}")]
    IndexRange { what: &'static str, position: u64, value: i64, bound: u64 },
    #[error("{what}[{position}] does not follow the one before in increasing order")]
    IndexOrder { what: &'static str, position: u64 },
    #[error("the shape {0:?} is too large")]
    TooLarge(Vec<u64>),
    #[error("no memory for the {bytes} bytes of the dense array")]
    Allocation { bytes: u64 },
    #[error("a scalar can only be written in version 3, not in {0}")]
    Scalar(Version),
    #[error("a dimension of 0 can only be written in version 3, not in {0}")]
    ZeroDimension(Version),
    #[error("a {kind} array can only be written in version 2, not in {version}")]
    Sparse { kind: &'static str, version: Version },
}
