//! Parameter synchronisation: what a key-value store needs below its arrays.
//!
//! - [`group`]: collectives of ranks, with errors instead of hangs
//! - [`transport`]: messages between the ranks of a group: threads of a process, or processes of an MPI job
//! - [`tree`], [`sum`]: sums in an order that does not depend on who computes them
//! - [`compress`]: gradients in fewer bits
//! - [`place`]: which rank keeps which part of a value
//! - `key`, `kind`: what values and stores are called
//!
//! ```
//! use tensorc_kvstore::sum::sum_into;
//! use tensorc_runtime::DType;
//!
//! let (a, b) = (1.5f32.to_le_bytes(), 2.0f32.to_le_bytes());
//! let mut sum = [0; 4];
//! sum_into(&mut sum, &[&a, &b], DType::F32)?;
//! assert_eq!(f32::from_le_bytes(sum), 3.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod buffers;
mod compress;
mod compression;
mod error;
mod group;
mod key;
mod keys;
mod kind;
pub mod place;
mod settings;
pub mod sum;
pub mod transport;
pub mod tree;

pub use buffers::{Buffers, NoMemory};
pub use compression::Compression;
pub use error::{GroupError, KvError};
pub use group::{Answered, CallKind, CollectiveCall, Done, Group, GroupOptions, Reply, ServeRequest, Ticket};
pub use key::Key;
pub use keys::Keys;
pub use kind::StoreKind;
pub use transport::{Transport, TransportError};
