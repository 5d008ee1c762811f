//! Iterators over batches.

pub mod adapt;
mod arrays;
mod assemble;
mod loader;
mod memory;
pub(crate) mod schedule;

use std::str::FromStr;

use derive_more::Display;
use serde::{Deserialize, Serialize};
use tensorc_runtime::HostTensor;

pub use arrays::{Batches, NamedArray, ToHost};
pub(crate) use loader::DEFAULT_PREFETCH;
pub use loader::{Faults, Loader, LoaderBuilder, OnError};
pub use schedule::{BatchSchedule, LastBatch, Shuffle};

use crate::dataset::DataDesc;
use crate::error::DataError;

/// Examples that are taken at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// In the order of [`DataIter::provide_data`]; the first axis counts examples.
    pub data: Vec<HostTensor>,
    /// In the order of [`DataIter::provide_label`].
    pub labels: Vec<HostTensor>,
    /// Examples at the end that only fill the batch up and do not count.
    pub pad: usize,
    /// The numbers by which the source knows the examples, those that fill the batch up included; empty if it
    /// does not number them.
    pub index: Vec<u64>,
}

impl Batch {
    /// A batch of which every example counts, without numbers of examples.
    ///
    /// # Errors
    /// A tensor's bytes do not fill its shape.
    pub fn new<T: ToHost>(
        data: impl IntoIterator<Item = T>,
        labels: impl IntoIterator<Item = T>,
    ) -> Result<Batch, DataError> {
        let host = |tensor: T| tensor.try_into().map_err(|e| DataError::source("batch", e));
        let data = data.into_iter().map(host).collect::<Result<_, _>>()?;
        let labels = labels.into_iter().map(host).collect::<Result<_, _>>()?;
        Ok(Batch { data, labels, pad: 0, index: vec![] })
    }

    /// Examples, those that fill it up included.
    pub fn size(&self) -> usize {
        self.data.first().and_then(|tensor| tensor.dims().first()).map_or(0, |n| *n as usize)
    }

    /// Examples that count.
    pub fn examples(&self) -> usize {
        self.size().saturating_sub(self.pad)
    }
}

/// Where an iterator stands: the batch of an epoch that comes next.
///
/// Written as `EPOCH:BATCH`.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[display("{epoch}:{batch}")]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The batch of the epoch, from 0.
    pub batch: u64,
}

impl Position {
    /// A position in the stream of batches.
    pub fn new(epoch: u64, batch: u64) -> Position {
        Position { epoch, batch }
    }
}

impl FromStr for Position {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Position, DataError> {
        let parts = text.trim().split_once(':');
        let numbers = parts.and_then(|(epoch, batch)| Some(Position::new(epoch.parse().ok()?, batch.parse().ok()?)));
        numbers.ok_or_else(|| DataError::options("position", format!("`{text}` is not EPOCH:BATCH")))
    }
}

/// A source of batches, epoch after epoch.
///
/// After an error, the next call of [`DataIter::next`] goes on behind what failed.
pub trait DataIter: Send {
    /// The arrays of a batch that are data, batch size first.
    fn provide_data(&self) -> &[DataDesc];

    /// The arrays of a batch that are labels.
    fn provide_label(&self) -> &[DataDesc];

    /// The next batch, `None` at the end of the epoch, and again until [`DataIter::reset`].
    ///
    /// # Errors
    /// What the source met while reading this batch.
    fn next(&mut self) -> Result<Option<Batch>, DataError>;

    /// Goes to the beginning of the next epoch, or stays where no batch of the present one was taken.
    ///
    /// # Errors
    /// The source cannot begin again.
    fn reset(&mut self) -> Result<(), DataError>;

    /// The batch that [`DataIter::next`] will give: a number of batches equal to the epoch's at its end.
    fn position(&self) -> Position;

    /// Goes to a position: what follows is what would have followed there.
    ///
    /// # Errors
    /// The epoch has no such batch, or the source cannot go there.
    fn seek(&mut self, position: Position) -> Result<(), DataError>;

    /// Batches in the present epoch, if that is known before its end.
    fn batches(&self) -> Option<u64>;

    /// Examples in a batch.
    fn batch_size(&self) -> usize {
        self.provide_data().first().and_then(|desc| desc.dims.first()).map_or(0, |n| *n as usize)
    }
}

impl<I: DataIter + ?Sized> DataIter for Box<I> {
    fn provide_data(&self) -> &[DataDesc] {
        (**self).provide_data()
    }

    fn provide_label(&self) -> &[DataDesc] {
        (**self).provide_label()
    }

    fn next(&mut self) -> Result<Option<Batch>, DataError> {
        (**self).next()
    }

    fn reset(&mut self) -> Result<(), DataError> {
        (**self).reset()
    }

    fn position(&self) -> Position {
        (**self).position()
    }

    fn seek(&mut self, position: Position) -> Result<(), DataError> {
        (**self).seek(position)
    }

    fn batches(&self) -> Option<u64> {
        (**self).batches()
    }
}

/// The batches that are left of the present epoch; then the iterator is reset for the next one.
pub fn epoch<I: DataIter + ?Sized>(iter: &mut I) -> Epoch<'_, I> {
    Epoch { iter, ended: false }
}

/// See [`epoch`].
pub struct Epoch<'a, I: DataIter + ?Sized> {
    iter: &'a mut I,
    ended: bool,
}

impl<I: DataIter + ?Sized> Iterator for Epoch<'_, I> {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.iter.next().transpose();
        self.ended = next.is_none();
        match self.ended {
            true => self.iter.reset().err().map(Err),
            false => next,
        }
    }
}
