//! Epochs of a fixed number of batches.

use super::super::{Batch, DataIter, Position};
use crate::dataset::DataDesc;
use crate::error::DataError;

/// A source whose epochs have a given number of batches: where it ends it begins again, and where an epoch ends before it
/// the next one goes on there (or at its beginning, see [`Resize::restarting`]).
pub struct Resize<I> {
    iter: I,
    batches: u64,
    restarts: bool,
    position: Position,
}

/// Most epochs that are gone through one by one to resume.
const MAX_RESTARTS: u64 = 1 << 20;

impl<I: DataIter> Resize<I> {
    /// Of a source that stands at its beginning.
    pub fn new(iter: I, batches: u64) -> Resize<I> {
        Resize { iter, batches, restarts: false, position: Position::default() }
    }

    /// Every epoch begins with an epoch of the source, as MXNet's `reset_internal`.
    #[must_use]
    pub fn restarting(self) -> Resize<I> {
        Resize { restarts: true, ..self }
    }

    /// Takes the source `batches` batches further without reading them.
    fn skip(&mut self, mut batches: u64) -> Result<(), DataError> {
        while batches > 0 {
            let at = self.iter.position();
            let Some(length) = self.iter.batches() else {
                let why = "the length of the source's epochs is not known, so it cannot be resumed".to_owned();
                return Err(DataError::options("resize", why));
            };
            let left = length.saturating_sub(at.batch);
            if batches <= left {
                return self.iter.seek(Position::new(at.epoch, at.batch + batches));
            }
            batches -= left;
            self.iter.seek(Position::new(at.epoch + 1, 0))?;
            if self.iter.batches() == Some(0) && length == 0 {
                return Err(DataError::options("resize", "the source has no batches"));
            }
        }
        Ok(())
    }
}

impl<I: DataIter> DataIter for Resize<I> {
    fn provide_data(&self) -> &[DataDesc] {
        self.iter.provide_data()
    }

    fn provide_label(&self) -> &[DataDesc] {
        self.iter.provide_label()
    }

    fn next(&mut self) -> Result<Option<Batch>, DataError> {
        if self.position.batch >= self.batches {
            return Ok(None);
        }
        let mut batch = self.iter.next();
        if matches!(batch, Ok(None)) {
            self.iter.reset()?;
            batch = self.iter.next();
        }
        match batch {
            Ok(None) => Err(DataError::options("resize", "the source has no batches")),
            other => {
                self.position.batch += 1;
                other
            }
        }
    }

    fn reset(&mut self) -> Result<(), DataError> {
        let next = Position::new(self.position.epoch + 1, 0);
        let left = self.batches.saturating_sub(self.position.batch);
        match self.restarts {
            _ if self.position.batch == 0 => return Ok(()),
            true if left > 0 => return self.seek(next),
            true => self.iter.reset()?,
            false => self.skip(left)?,
        }
        self.position = next;
        Ok(())
    }

    fn position(&self) -> Position {
        self.position
    }

    fn seek(&mut self, position: Position) -> Result<(), DataError> {
        if position.batch > self.batches {
            return Err(DataError::options("resize", format!("an epoch has {} batches", self.batches)));
        }
        let too_far = || DataError::options("resize", format!("position {position} is too far"));
        match self.restarts {
            true if position.epoch > MAX_RESTARTS => return Err(too_far()),
            true => {
                // An epoch takes up as many of the source's as it needs.
                self.iter.seek(Position::default())?;
                for _ in 0..position.epoch {
                    self.skip(self.batches)?;
                    let at = self.iter.position();
                    if at.batch > 0 {
                        self.iter.seek(Position::new(at.epoch + 1, 0))?;
                    }
                }
                self.skip(position.batch)?;
            }
            false => {
                self.iter.seek(Position::default())?;
                let taken = position.epoch.checked_mul(self.batches).and_then(|n| n.checked_add(position.batch));
                self.skip(taken.ok_or_else(too_far)?)?;
            }
        }
        self.position = position;
        Ok(())
    }

    fn batches(&self) -> Option<u64> {
        Some(self.batches)
    }
}
