//! Iterators made of other iterators.

mod cast;
mod prefetch;
mod resize;
mod shard;
mod shuffle;
mod split;
mod zip;

pub use cast::Cast;
pub use prefetch::Prefetch;
pub use resize::Resize;
pub use shard::Shard;
pub use shuffle::ShuffleBuffer;
pub use split::SplitRows;
pub use zip::Zip;

use super::{DataIter, Position};
use crate::error::DataError;

/// Errors in a row after which a source is given up.
const MAX_FAILED: u32 = 1000;

/// Goes to a position by taking batches from the beginning of its epoch, for iterators whose state is what they read.
fn replay<I: DataIter>(
    iter: &mut I,
    position: Position,
    begin: impl FnOnce(&mut I) -> Result<(), DataError>,
) -> Result<(), DataError> {
    begin(iter)?;
    let mut failed = 0;
    while iter.position() < position {
        match iter.next() {
            Ok(Some(_)) => failed = 0,
            Ok(None) => {
                let why = format!("epoch {} ends before position {position}", position.epoch);
                return Err(DataError::options("position", why));
            }
            // The run that is repeated went on behind it.
            Err(error) => {
                failed += 1;
                if failed > MAX_FAILED {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}
