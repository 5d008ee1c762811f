//! Arrays as the run time sees them: memory with a variable of the engine.
//!
//! A [`Chunk`] is one allocation on one device, made when it is first needed. A [`View`] is a
//! contiguous part of a chunk seen as a tensor; views of one chunk share memory and ordering.
//! [`launch`] pushes one operation over views: the engine orders it, and only inside it is memory
//! touched. Host code reads through [`read`], which is an operation as well, so that no access to a
//! chunk ever races another. On a driver's device, [`enqueue`] pushes work of the device, and what the host does there
//! works on copies. [`exchange`] is one operation on arrays of several such devices.

mod chunk;
mod driven;
mod enqueued;
mod exchange;
mod launch;
mod lend;
mod planned;
mod region;
mod source;
mod space;
mod staged;
mod uses;
mod view;

pub use chunk::Chunk;
pub use exchange::exchange;
pub use launch::{Launch, LaunchError, ReadError, Target, Tell, enqueue, launch, launch_releasing, read};
pub use lend::{LendError, lend};
pub use planned::{Run, duplicate, gather, repeat, run, run_here, scatter};
pub use region::{Piece, Region, Span};
pub use source::{Inline, Source};
pub use space::Space;
pub use view::{Extents, View, ViewError, byte_len};
