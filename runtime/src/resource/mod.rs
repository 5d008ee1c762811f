//! What operators need beside their operands: random keys and scratch memory.

mod random;

pub use random::{EntropyError, RandomState, RandomStreams, StreamState, threefry2x32};
