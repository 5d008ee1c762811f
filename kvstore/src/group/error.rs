//! Why a group of ranks cannot go on.

use std::time::Duration;

use crate::transport::TransportError;

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
