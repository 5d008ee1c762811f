//! Why a group of ranks cannot go on.

use std::time::Duration;

use crate::transport::TransportError;

/// The first failure of a group. Every later call of every rank returns it, or what another rank says of it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Two ranks are at the same place of their programs with different calls.
    #[error("collective {sequence}: rank {rank} calls {call}, rank {peer} calls {other}")]
    Mismatch { sequence: u64, rank: usize, call: String, peer: usize, other: String },
    /// Ranks did not take part in time: they ended, were killed or stopped, or do something else.
    #[error(
        "collective {sequence}, {call}: rank {rank} has waited {} s for {}; {seen}",
        limit.as_secs_f64(),
        ranks(peers)
    )]
    Late { sequence: u64, rank: usize, call: String, peers: Vec<usize>, limit: Duration, seen: String },
    /// What a rank was to contribute could not be computed.
    #[error("collective {sequence}, {call}: rank {rank} cannot take part: {why}")]
    Failed { sequence: u64, rank: usize, call: String, why: String },
    /// A rank has ended its part while another still needs it.
    #[error("collective {sequence}: rank {rank} calls {call}, rank {peer} has left the group after collective {last}")]
    Left { sequence: u64, rank: usize, call: String, peer: usize, last: u64 },
    /// A rank could not do what another asked for.
    #[error("rank {rank} cannot serve rank {peer}: {why}")]
    Refused { rank: usize, peer: usize, why: String },
    /// A rank did not answer in time.
    #[error("rank {rank} has waited {} s for an answer of rank {peer}; {seen}", limit.as_secs_f64())]
    NoAnswer { rank: usize, peer: usize, limit: Duration, seen: String },
    /// Another rank reported a failure first.
    #[error("reported by rank {rank}: {message}")]
    Reported { rank: usize, message: String },
    /// Memory for a message is short.
    #[error("rank {rank}: no memory for {bytes} bytes of collective {sequence}")]
    Memory { rank: usize, sequence: u64, bytes: u64 },
    /// A message that no rank of this version sends.
    #[error("rank {rank} received a message of rank {peer} that is none of this version")]
    Message { rank: usize, peer: usize },
    #[error("rank {rank}: {source}")]
    Transport { rank: usize, source: TransportError },
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
