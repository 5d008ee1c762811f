//! Why a store refuses.

use tensorc_runtime::DType;

use crate::compression::Compression;
use crate::group::buffers::NoMemory;
use crate::group::error::GroupError;
use crate::key::Key;
use crate::kind::StoreKind;

/// What is wrong with a call of a store.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// A setting that is unknown or has a value that it cannot have.
    #[error("{name} {value:?}: expected {expected}")]
    Setting {
        /// The setting.
        name: String,
        /// The value given.
        value: String,
        /// What is expected.
        expected: &'static str,
    },
    /// A kind of store that the build does not have.
    #[error("a store `{kind}` needs the feature `{feature}`, which this program was built without")]
    Unavailable {
        /// The kind of the store.
        kind: StoreKind,
        /// The feature of the build that is missing.
        feature: &'static str,
    },
    /// A question about ranks to a store of one process.
    #[error("a store `{kind}` is of one process, it has no ranks")]
    NotDistributed {
        /// The kind of the store.
        kind: StoreKind,
    },
    /// A key without a value.
    #[error("key `{key}` has no value; `init` gives it one")]
    Unknown {
        /// The key.
        key: Key,
    },
    /// A key that has a value already.
    #[error("key `{key}` has a value already")]
    Duplicate {
        /// The key.
        key: Key,
    },
    /// A key of another kind than those of the store.
    #[error("key `{key}` is {found}, the keys of this store are {expected}")]
    KeyKind {
        /// The key.
        key: Key,
        /// What was found.
        found: &'static str,
        /// What is expected.
        expected: &'static str,
    },
    /// A call without arrays.
    #[error("{what} of key `{key}` without arrays")]
    NoArrays {
        /// The key.
        key: Key,
        /// The call.
        what: &'static str,
    },
    /// An array of another type or shape than the value.
    #[error("{what} of key `{key}`: its value is {expected}, an array is {found}")]
    Type {
        /// The key.
        key: Key,
        /// The call.
        what: &'static str,
        /// What is expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A function as an updater of a store that takes an optimizer.
    #[error("a store `{kind}` moves its values elsewhere, by an optimizer; it takes no function")]
    Updater {
        /// The kind of the store.
        kind: StoreKind,
    },
    /// States of an optimizer that the servers hold.
    #[error("the optimizer's states of a store `{kind}` are with its servers, and cannot be saved or loaded")]
    States {
        /// The kind of the store.
        kind: StoreKind,
    },
    /// A call that needs an optimizer.
    #[error("the store has no optimizer; `set_optimizer` gives it one")]
    NoOptimizer,
    /// Compression of a store that sends no gradients.
    #[error("store `{kind}` does not support gradient compression")]
    Compression {
        /// The kind of the store.
        kind: StoreKind,
    },
    /// Compression of gradients that are not of f32.
    #[error("compression {compression:?} is for gradients of f32, not of {dtype}")]
    CompressedType {
        /// The compression.
        compression: Compression,
        /// The element type of the gradients.
        dtype: DType,
    },
    /// A slice of another length than its use demands.
    #[error("{what}: expected {expected}, found {found}")]
    Length {
        /// The slice.
        what: &'static str,
        /// What is expected.
        expected: usize,
        /// What was found.
        found: usize,
    },
    /// Partial sums that do not make up the whole.
    #[error("partial sums of {found} do not make up {leaves} leaves")]
    Parts {
        /// Leaves of the whole sum.
        leaves: u32,
        /// The partial sums given.
        found: String,
    },
    /// No memory for a message.
    #[error(transparent)]
    Memory(#[from] NoMemory),
    /// A failure of the group of ranks.
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
