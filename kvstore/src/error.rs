//! Why a store refuses.

use tensorc_runtime::DType;

use crate::compress::Compression;
use crate::group::{GroupError, NoMemory};
use crate::key::Key;
use crate::kind::Kind;

/// What is wrong with a call of a store.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// A setting that is unknown or has a value that it cannot have.
    #[error("{name} {value:?}: expected {expected}")]
    Setting { name: String, value: String, expected: &'static str },
    #[error("a store `{kind}` needs the feature `{feature}`, which this program was built without")]
    Unavailable { kind: Kind, feature: &'static str },
    #[error("a store `{kind}` is of one process, it has no ranks")]
    NotDistributed { kind: Kind },
    #[error("key `{key}` has no value; `init` gives it one")]
    Unknown { key: Key },
    #[error("key `{key}` has a value already")]
    Duplicate { key: Key },
    #[error("key `{key}` is {found}, the keys of this store are {expected}")]
    KeyKind { key: Key, found: &'static str, expected: &'static str },
    #[error("{what} of key `{key}` without arrays")]
    NoArrays { key: Key, what: &'static str },
    #[error("{what} of key `{key}`: its value is {expected}, an array is {found}")]
    Type { key: Key, what: &'static str, expected: String, found: String },
    #[error("a store `{kind}` moves its values elsewhere, by an optimizer; it takes no function")]
    Updater { kind: Kind },
    #[error("the optimizer's states of a store `{kind}` are with its servers, and cannot be saved or loaded")]
    States { kind: Kind },
    #[error("the store has no optimizer; `set_optimizer` gives it one")]
    NoOptimizer,
    #[error("a store `{kind}` sends no gradients, so there is nothing to compress")]
    Compression { kind: Kind },
    #[error("compression {compression:?} is for gradients of f32, not of {dtype}")]
    CompressedType { compression: Compression, dtype: DType },
    /// A slice of another length than its use demands.
    #[error("{what}: expected {expected}, found {found}")]
    Length { what: &'static str, expected: usize, found: usize },
    /// Partial sums that do not make up the whole.
    #[error("partial sums of {found} do not make up {leaves} leaves")]
    Parts { leaves: u32, found: String },
    #[error(transparent)]
    Memory(#[from] NoMemory),
    #[error(transparent)]
    Group(#[from] GroupError),
}

impl KvError {
    /// A setting `name` that cannot have this value.
    pub(crate) fn setting(name: impl Into<String>, value: impl ToString, expected: &'static str) -> KvError {
        KvError::Setting { name: name.into(), value: value.to_string(), expected }
    }
}

/// Checks the length of a slice.
pub(crate) fn check_length(what: &'static str, expected: usize, found: usize) -> Result<(), KvError> {
    if expected == found { Ok(()) } else { Err(KvError::Length { what, expected, found }) }
}
