//! Parameter synchronisation: what a key-value store needs below its arrays.
//!
//! - [`group`]: collectives of ranks, with errors instead of hangs
//! - [`transport`]: messages between the ranks of a group: threads of a process, or processes of an MPI job
//! - [`tree`], [`sum`]: sums in an order that does not depend on who computes them
//! - [`compress`]: gradients in fewer bits
//! - [`place`]: which rank keeps which part of a value
//! - `key`, `kind`: what values and stores are called

pub mod compress;
mod error;
pub mod group;
mod key;
mod kind;
pub mod place;
pub mod sum;
pub mod transport;
pub mod tree;

pub use compress::Compression;
pub use error::KvError;
pub use group::{
    Answered, Buffers, Call, CallKind, Done, Group, GroupError, GroupOptions, NoMemory, Reply, Request, Ticket,
};
pub use key::{Key, Keys};
pub use kind::Kind;
pub use transport::{Transport, TransportError};
