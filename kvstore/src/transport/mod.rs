//! Messages between ranks: what every kind of group offers.
//!
//! A transport is used by one thread, which never waits in it: sends and receives are begun, and [`Transport::poll`]
//! tells which receives have ended. Receives from one rank with one tag are given its messages in the order in which both
//! were begun; a long message may end after a short one that was begun later.

#[cfg(feature = "mpi")]
pub mod mpi;
pub mod threads;

use std::collections::VecDeque;

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
    /// The receive that is complete.
    pub id: ReceiveId,
    /// The memory that was given for it, cut to the length of the message.
    pub bytes: Vec<u8>,
}

/// What a transport refuses, or why it does not work any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The library of messages reports an error.
    #[error("{call}: {message}")]
    Library {
        /// The function of the library.
        call: &'static str,
        /// Its message.
        message: String,
    },
    /// A message is longer than the memory given for it. The memory is lost; other messages are not affected.
    #[error("a message of rank {from} with tag {tag} is longer than the {expected} bytes expected")]
    Truncated {
        /// The rank that sent.
        from: usize,
        /// The tag of the message.
        tag: Tag,
        /// Bytes that were expected.
        expected: usize,
    },
    /// A rank that the group does not have.
    #[error("rank {rank} is out of range for {size} ranks")]
    NoRank {
        /// The rank asked for.
        rank: usize,
        /// Number of ranks.
        size: usize,
    },
    /// A tag above [`MAX_TAG`].
    #[error("tag {tag} is above {MAX_TAG}")]
    NoTag {
        /// The tag of the message.
        tag: Tag,
    },
    /// A message, or the memory for one, that is longer than the transport carries.
    #[error("a message of {bytes} bytes is longer than the {limit} bytes that fit in one")]
    TooLong {
        /// Bytes of the message.
        bytes: usize,
        /// The largest number of bytes.
        limit: usize,
    },
    /// MPI was initialised in this process before; a process can do so once, even after MPI was finalised.
    #[error("MPI is already initialised, and a process can do so only once")]
    Initialised,
    /// The library of messages allows calls only by the thread that initialised it.
    #[error("{call} by another thread than the one that initialised MPI; the library allows only that one")]
    WrongThread {
        /// The call.
        call: &'static str,
    },
    /// The transport was closed, or its rank was cut off.
    #[error("the transport of rank {rank} is closed")]
    Closed {
        /// The rank that has left.
        rank: usize,
    },
}

/// Messages between the ranks of a group.
pub trait Transport: Send {
    /// The number of this member of the group, from 0.
    fn rank(&self) -> usize;

    /// Members of the group.
    fn size(&self) -> usize;

    /// Begins to send a message to a rank, which may be this one; keeps the bytes until they are sent.
    ///
    /// # Errors
    /// The transport failed or is closed, there is no such rank or tag, or the message is too long.
    fn send(&mut self, to: usize, tag: Tag, bytes: Bytes) -> Result<(), TransportError>;

    /// Begins to receive a message of a rank, of at most `into.len()` bytes.
    ///
    /// # Errors
    /// As [`Transport::send`].
    fn receive(&mut self, from: usize, tag: Tag, into: Vec<u8>) -> Result<ReceiveId, TransportError>;

    /// Makes progress without waiting, and appends the receives that have ended. Sends make progress only here, too.
    ///
    /// # Errors
    /// The transport failed or is closed, or a message was [`TransportError::Truncated`]; one error a call, the next with
    /// the next call. `received` is complete with an error, too.
    fn poll(&mut self, received: &mut Vec<Received>) -> Result<(), TransportError>;

    /// Sends that have not ended. A send may end only when its message is received.
    fn unsent(&self) -> usize;

    /// Ends the use of the group. With `orderly`, every rank calls it, no receive is left that has a message, and sends are
    /// waited for; otherwise messages under way are given up and no other rank is waited for.
    fn close(&mut self, orderly: bool);
}

/// Receives of one sender and tag, and their memory, in order.
type Receives = VecDeque<(ReceiveId, Vec<u8>)>;

/// Checks the other end of a message.
fn check(rank: usize, size: usize, tag: Tag) -> Result<(), TransportError> {
    if rank >= size {
        return Err(TransportError::NoRank { rank, size });
    }
    if tag > MAX_TAG {
        return Err(TransportError::NoTag { tag });
    }
    Ok(())
}
