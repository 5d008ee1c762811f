//! A rank's share of the batches of a source.

use super::super::{Batch, DataIter, Position};
use crate::dataset::DataDesc;
use crate::error::DataError;

/// Every `count`-th batch of a source, beginning with number `rank`. All ranks have epochs of the same length: batches at
/// the end of which not every rank would get one are left out.
///
/// Each rank reads the batches of all: files are shared out before they are read by parts, see
/// [`crate::iter::LoaderBuilder::part`].
pub struct Shard<I> {
    iter: I,
    rank: u64,
    count: u64,
    position: Position,
    ended: bool,
}

impl<I: DataIter> Shard<I> {
    /// # Errors
    /// There is no such rank.
    pub fn new(iter: I, rank: u64, count: u64) -> Result<Shard<I>, DataError> {
        match rank < count {
            true => {
                let at = iter.position();
                Ok(Shard { iter, rank, count, position: Position::new(at.epoch, at.batch / count), ended: false })
            }
            false => Err(DataError::options("shard", format!("rank {rank} is out of range for {count} ranks"))),
        }
    }
}

impl<I: DataIter> DataIter for Shard<I> {
    fn provide_data(&self) -> &[DataDesc] {
        self.iter.provide_data()
    }

    fn provide_label(&self) -> &[DataDesc] {
        self.iter.provide_label()
    }

    fn next(&mut self) -> Result<Option<Batch>, DataError> {
        if self.ended {
            return Ok(None);
        }
        let (mut own, mut error) = (None, None);
        for rank in 0..self.count {
            match self.iter.next() {
                Ok(None) => {
                    self.ended = true;
                    return Ok(None);
                }
                Ok(batch) if rank == self.rank => own = batch,
                Err(e) if rank == self.rank => error = Some(e),
                // What another rank reads is its own.
                _ => {}
            }
        }
        self.position.batch += 1;
        error.map_or(Ok(own), Err)
    }

    fn reset(&mut self) -> Result<(), DataError> {
        if self.position.batch > 0 || self.ended {
            self.iter.reset()?;
            self.position = Position::new(self.iter.position().epoch, 0);
            self.ended = false;
        }
        Ok(())
    }

    fn position(&self) -> Position {
        self.position
    }

    fn seek(&mut self, position: Position) -> Result<(), DataError> {
        let batch = position.batch.checked_mul(self.count);
        let batch = batch.ok_or_else(|| DataError::options("shard", format!("position {position} is too far")))?;
        self.iter.seek(Position::new(position.epoch, batch))?;
        (self.position, self.ended) = (position, false);
        Ok(())
    }

    fn batches(&self) -> Option<u64> {
        self.iter.batches().map(|n| n / self.count)
    }
}
