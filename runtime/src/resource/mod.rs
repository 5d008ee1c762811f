//! What operators need beside their operands: random keys and scratch memory.

mod random;
mod temp;
#[cfg(test)]
mod tests;

pub use random::{EntropyError, RandomState, RandomStreams, StreamState, threefry2x32};
pub use temp::{Scratch, TempCopy, TempSpace, TempSpaceConfig};
