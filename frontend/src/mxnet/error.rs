//! Everything that can be wrong with an MXNet file, as typed errors.

use std::fmt;

use tensorc_abi::DType;
use thiserror::Error;

use super::params::version::ArrayVersion;
use crate::file::FileError;

/// Why an NDArray list could not be read or written.
#[derive(Debug, Error)]
pub enum ParamsError {
    /// A file that cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The writer that the caller passed failed.
    #[error("cannot write the arrays: {0}")]
    Stream(std::io::Error),
    /// The bytes are no valid NDArray list; `offset` is where the offending field begins.
    #[error("{site}, at byte {offset}: {problem}")]
    Format {
        /// The part of the list.
        site: Site,
        /// The position of the field, in bytes.
        offset: u64,
        /// What is wrong with the bytes.
        problem: FormatProblem,
    },
    /// An array cannot be used or written as asked.
    #[error("{site}: {problem}")]
    Array {
        /// The array.
        site: Site,
        /// What is wrong with the array.
        problem: ArrayProblem,
    },
    /// Some arrays have names and others have none.
    #[error("array {unnamed} of the list has no name while others have one; all arrays have names or none has")]
    MixedNames {
        /// Position of the first array without a name.
        unnamed: usize,
    },
    /// A checkpoint holds arrays under names that say what they are.
    #[error("{site} is neither an argument nor an auxiliary state; names begin with `arg:` or `aux:`")]
    NotCheckpoint {
        /// The array.
        site: Site,
    },
    /// A name that stands twice in a checkpoint.
    #[error("`{name}` is in the checkpoint twice")]
    Duplicate {
        /// The name.
        name: String,
    },
}

/// Which part of a list an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Site {
    /// The header of the list.
    Header,
    /// An array, by its position in the list and, where it is known, its name. Names follow the
    /// arrays in a file, so an error of reading an array knows the position only.
    Array {
        /// Position in the list, from 0.
        index: usize,
        /// The name, where it is known.
        name: Option<String>,
    },
    /// The number of names.
    Names,
    /// The name of the array at this position.
    Name {
        /// Position in the list, from 0.
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
    /// The first word is not that of a list.
    #[error("not an NDArray list (it begins with {found:#x} instead of 0x112)")]
    NotAList {
        /// The first word of the file.
        found: u64,
    },
    /// A file of another format.
    #[error("not an NDArray list but {0}")]
    OtherFormat(&'static str),
    /// The file ends inside a field.
    #[error("{what} needs {needed} bytes, {left} are left")]
    Truncated {
        /// The field that is incomplete.
        what: &'static str,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// A rank that no array has.
    #[error("the rank is {0}")]
    BadRank(i32),
    /// A negative extent.
    #[error("dimension {index} is {value}")]
    BadDimension {
        /// The axis.
        index: usize,
        /// The extent in the file.
        value: i64,
    },
    /// An array whose size in bytes overflows.
    #[error("the shape {0:?} is too large")]
    TooLarge(Vec<u64>),
    /// A storage type that MXNet does not have.
    #[error("storage type {0} is not defined (0 dense, 1 row_sparse, 2 csr)")]
    UnknownStorage(i32),
    /// A sparse array in a list of version 3.
    #[error("a sparse array cannot be stored in version 3")]
    SparseInV3,
    /// A device type that MXNet does not have.
    #[error("device type {0} is not defined (1 cpu, 2 gpu, 3 cpu_pinned, 5 cpu_shared)")]
    UnknownDevice(i32),
    /// An element type that MXNet does not have.
    #[error("element type {code} of the {what} is not defined")]
    UnknownType {
        /// The number in the file.
        code: i32,
        /// Whose element type it is.
        what: &'static str,
    },
    /// Neither no names nor one for each array.
    #[error("{names} names for {arrays} arrays; there must be one for each or none")]
    NameCount {
        /// Number of arrays.
        arrays: u64,
        /// Number of names.
        names: u64,
    },
    /// A name that is not UTF-8.
    #[error("the name is not UTF-8 text")]
    NotUtf8,
    /// Bytes behind the end of the list.
    #[error("{0} bytes follow the list")]
    TrailingBytes(u64),
}

/// Why an array cannot be used or written as asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArrayProblem {
    /// An array without data, which MXNet writes for an uninitialised one.
    #[error("the array is empty: it was saved without shape and data")]
    None,
    /// A rank that a sparse array of this kind does not have.
    #[error("a {rank}-dimensional {kind} array is not defined")]
    SparseRank {
        /// `row_sparse` or `csr`.
        kind: &'static str,
        /// Its rank.
        rank: usize,
    },
    /// A part of a sparse array with a shape that does not fit.
    #[error("{what} have shape {found:?}, {expected:?} is expected")]
    SparseShape {
        /// The part of the sparse array.
        what: &'static str,
        /// The needed shape.
        expected: Vec<u64>,
        /// The shape found.
        found: Vec<u64>,
    },
    /// Indices of another type than i64.
    #[error("{what} are {dtype}, not integers")]
    IndexType {
        /// The part of the sparse array.
        what: &'static str,
        /// The type of the indices.
        dtype: DType,
    },
    /// An index outside of the array.
    #[error("{what}[{position}] is {value}, outside of 0..{bound}")]
    IndexRange {
        /// The part of the sparse array.
        what: &'static str,
        /// Position of the index.
        position: u64,
        /// The index.
        value: i64,
        /// Indices are below this.
        bound: u64,
    },
    /// Indices that do not ascend.
    #[error("{what}[{position}] does not follow the one before in increasing order")]
    IndexOrder {
        /// The part of the sparse array.
        what: &'static str,
        /// Position of the first index that is out of order.
        position: u64,
    },
    /// An array whose size in bytes overflows.
    #[error("the shape {0:?} is too large")]
    TooLarge(Vec<u64>),
    /// No memory for the array.
    #[error("no memory for the {bytes} bytes of the dense array")]
    Allocation {
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// A scalar in a version without scalars.
    #[error("a scalar can only be written in version 3, not in {0}")]
    Scalar(ArrayVersion),
    /// An extent of 0 in a version without them.
    #[error("a dimension of 0 can only be written in version 3, not in {0}")]
    ZeroDimension(ArrayVersion),
    /// A sparse array in a version without them.
    #[error("a {kind} array can only be written in version 2, not in {version}")]
    Sparse {
        /// `row_sparse` or `csr`.
        kind: &'static str,
        /// The version to be written.
        version: ArrayVersion,
    },
}
