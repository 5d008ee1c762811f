//! Iterators made of other iterators.

mod cast;
mod prefetch;
mod resize;
mod shard;
mod shuffle;
mod zip;

pub use cast::Cast;
pub use prefetch::Prefetch;
pub use resize::Resize;
pub use shard::Shard;
pub use shuffle::ShuffleBuffer;
pub use zip::Zip;

use super::{Batch, DataIter, Position};
use crate::DataError;

/// Goes to a position by taking batches from the beginning of its epoch, for iterators whose state is what they read.
fn replay<I: DataIter>(
    iter: &mut I,
    position: Position,
    begin: impl FnOnce(&mut I) -> Result<(), DataError>,
) -> Result<(), DataError> {
    begin(iter)?;
    while iter.position() < position {
        let taken: Option<Batch> = iter.next()?;
        if taken.is_none() {
            let why = format!("epoch {} ends before position {position}", position.epoch);
            return Err(DataError::options("position", why));
        }
    }
    Ok(())
}
