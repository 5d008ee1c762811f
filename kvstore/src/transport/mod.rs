//! Messages between ranks: what every kind of group offers.
//!
//! A transport is used by one thread, which never waits in it: sends and receives are begun, and [`Transport::poll`]
//! tells which receives have ended. Messages between two ranks with one tag arrive in the order in which they were sent.

use bytes::Bytes;

/// What messages are told apart by, besides their sender; at most [`MAX_TAG`].
pub type Tag = u16;

/// The largest tag that every implementation of MPI has.
pub const MAX_TAG: Tag = 32767;

/// A receive that was begun; numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiveId(pub u64);

/// A receive that has ended.
#[derive(Debug)]
pub struct Received {
    pub id: ReceiveId,
    /// The memory that was given for it, cut to the length of the message.
    pub bytes: Vec<u8>,
}

/// A transport that does not work any more.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TransportError {
    /// The library of messages reports an error.
    #[error("{call}: {message}")]
    Library { call: &'static str, message: String },
    /// A message is longer than the memory given for it.
    #[error("a message of rank {from} with tag {tag} is longer than the {expected} bytes expected")]
    Truncated { from: usize, tag: Tag, expected: usize },
    /// A rank that the group does not have.
    #[error("there is no rank {rank} in a group of {size}")]
    NoRank { rank: usize, size: usize },
}

/// Messages between the ranks of a group.
pub trait Transport: Send {
    /// The number of this member of the group, from 0.
    fn rank(&self) -> usize;

    /// Members of the group.
    fn size(&self) -> usize;

    /// Begins to send a message to another rank; keeps the bytes until they are sent.
    ///
    /// # Errors
    /// The transport failed, or there is no such rank.
    fn send(&mut self, to: usize, tag: Tag, bytes: Bytes) -> Result<(), TransportError>;

    /// Begins to receive a message of another rank, of at most `into.len()` bytes.
    ///
    /// # Errors
    /// As [`Transport::send`].
    fn receive(&mut self, from: usize, tag: Tag, into: Vec<u8>) -> Result<ReceiveId, TransportError>;

    /// Makes progress without waiting, and appends the receives that have ended.
    ///
    /// # Errors
    /// The transport failed.
    fn poll(&mut self, received: &mut Vec<Received>) -> Result<(), TransportError>;

    /// Sends that have not ended.
    fn unsent(&self) -> usize;

    /// Ends the use of the group. With `orderly`, every rank calls it and nothing is under way; otherwise messages under way
    /// are given up and no other rank is waited for.
    fn close(&mut self, orderly: bool);
}
