//! Arrays as the run time sees them: memory with a variable of the engine.
//!
//! A [`Chunk`] is one allocation on one device, made when it is first needed. A [`ArrayView`] is a
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
pub use launch::{ArrayLaunch, LaunchError, LaunchOutput, ReadError, Tell, enqueue, launch, launch_releasing, read};
pub use lend::{LendError, lend};
pub use planned::{PlannedRun, duplicate, gather, repeat, run, run_here, scatter};
pub use region::{ArraySlice, SliceRows, Span};
pub use source::{ArrayOperand, Inline};
pub use space::ArraySpace;
pub use view::{ArrayView, Extents, ViewError, byte_len};
