//! Why a store refuses, and why a group of ranks cannot go on.

use std::time::Duration;

use tensorc_runtime::DType;

use crate::buffers::NoMemory;
use crate::compression::Compression;
use crate::key::Key;
use crate::kind::StoreKind;
use crate::transport::TransportError;

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
    /// An array of elements that cannot be added.
    #[error("key `{key}`: elements of {dtype} cannot be added")]
    Elements {
        /// The key.
        key: Key,
        /// Their type.
        dtype: DType,
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

/// The first failure of a group. Every later call of every rank returns it, or what another rank says of it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Two ranks are at the same place of their programs with different calls.
    #[error("collective {sequence}: rank {rank} calls {call}, rank {peer} calls {other}")]
    Mismatch {
        /// The position of the collective in the program.
        sequence: u64,
        /// The rank that reports the failure.
        rank: usize,
        /// The call of the rank.
        call: String,
        /// The other rank.
        peer: usize,
        /// The call of the other rank.
        other: String,
    },
    /// Ranks did not take part in time: they ended, were killed or stopped, or do something else.
    #[error(
        "collective {sequence}, {call}: rank {rank} has waited {} s for {}; {seen}",
        limit.as_secs_f64(),
        ranks(peers)
    )]
    Late {
        /// The position of the collective in the program.
        sequence: u64,
        /// The rank that reports the failure.
        rank: usize,
        /// The call of the rank.
        call: String,
        /// The ranks that are missing.
        peers: Vec<usize>,
        /// How long the rank waited.
        limit: Duration,
        /// What the rank had received.
        seen: String,
    },
    /// What a rank was to contribute could not be computed.
    #[error("collective {sequence}, {call}: rank {rank} cannot take part: {why}")]
    Failed {
        /// The position of the collective in the program.
        sequence: u64,
        /// The rank that reports the failure.
        rank: usize,
        /// The call of the rank.
        call: String,
        /// The reason.
        why: String,
    },
    /// A rank has ended its part while another still needs it.
    #[error("collective {sequence}: rank {rank} calls {call}, rank {peer} has left the group after collective {last}")]
    Left {
        /// The position of the collective in the program.
        sequence: u64,
        /// The rank that reports the failure.
        rank: usize,
        /// The call of the rank.
        call: String,
        /// The other rank.
        peer: usize,
        /// The last collective the other rank took part in.
        last: u64,
    },
    /// A rank could not do what another asked for.
    #[error("rank {rank} cannot serve rank {peer}: {why}")]
    Refused {
        /// The rank that reports the failure.
        rank: usize,
        /// The other rank.
        peer: usize,
        /// The reason.
        why: String,
    },
    /// A rank did not answer in time.
    #[error("rank {rank} has waited {} s for an answer of rank {peer}; {seen}", limit.as_secs_f64())]
    NoAnswer {
        /// The rank that reports the failure.
        rank: usize,
        /// The other rank.
        peer: usize,
        /// How long the rank waited.
        limit: Duration,
        /// What the rank had received.
        seen: String,
    },
    /// Another rank reported a failure first.
    #[error("reported by rank {rank}: {message}")]
    Reported {
        /// The rank that reports the failure.
        rank: usize,
        /// Its message.
        message: String,
    },
    /// Memory for a message is short.
    #[error("rank {rank}: no memory for {bytes} bytes of collective {sequence}")]
    Memory {
        /// The rank that reports the failure.
        rank: usize,
        /// The position of the collective in the program.
        sequence: u64,
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// A message that no rank of this version sends.
    #[error("rank {rank}: a message of rank {peer} has another protocol version")]
    Message {
        /// The rank that reports the failure.
        rank: usize,
        /// The other rank.
        peer: usize,
    },
    /// The transport failed.
    #[error("rank {rank}: {source}")]
    Transport {
        /// The rank that reports the failure.
        rank: usize,
        /// The error of the transport.
        source: TransportError,
    },
    /// The group's thread is gone, or was never started.
    #[error("the group is closed")]
    Closed,
}

fn ranks(list: &[usize]) -> String {
    let list: Vec<String> = list.iter().map(usize::to_string).collect();
    match &list[..] {
        [one] => format!("rank {one}"),
        _ => format!("ranks {}", list.join(", ")),
    }
}
