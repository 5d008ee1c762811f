//! A rank's rows of every batch of a source.

use tensorc_runtime::HostTensor;

use super::super::{Batch, DataIter, Position};
use crate::dataset::DataDesc;
use crate::error::DataError;

/// Rows `rank` of `count` equal parts of every batch of a source, in order: the ranks' batches, one after the other, are
/// the source's. So the examples of a step do not depend on the number of ranks.
///
/// Each rank reads the batches of all, as with [`super::Shard`], whose ranks take whole batches.
pub struct SplitRows<I> {
    iter: I,
    rank: u64,
    count: u64,
    data: Vec<DataDesc>,
    labels: Vec<DataDesc>,
}

impl<I: DataIter> SplitRows<I> {
    /// # Errors
    /// There is no such rank, or an array's rows cannot be divided evenly.
    pub fn new(iter: I, rank: u64, count: u64) -> Result<SplitRows<I>, DataError> {
        if rank >= count {
            return Err(DataError::options("split", format!("rank {rank} is out of range for {count} ranks")));
        }
        let part = |desc: &DataDesc| {
            let rows = share(&desc.name, &desc.dims, count)?;
            Ok(DataDesc { dims: with_rows(&desc.dims, rows), ..desc.clone() })
        };
        let data = iter.provide_data().iter().map(part).collect::<Result<_, DataError>>()?;
        let labels = iter.provide_label().iter().map(part).collect::<Result<_, DataError>>()?;
        Ok(SplitRows { iter, rank, count, data, labels })
    }

    fn parts(&self, tensors: &[HostTensor], descs: &[DataDesc]) -> Result<Vec<HostTensor>, DataError> {
        tensors.iter().zip(descs).map(|(tensor, desc)| self.part(tensor, &desc.name)).collect()
    }

    fn part(&self, tensor: &HostTensor, name: &str) -> Result<HostTensor, DataError> {
        let rows = share(name, tensor.dims(), self.count)?;
        let (rank, bytes) = (self.rank as usize, tensor.bytes().len() / self.count as usize);
        let own = tensor.bytes().slice(rank * bytes..(rank + 1) * bytes);
        HostTensor::new(tensor.dtype(), &with_rows(tensor.dims(), rows), own).map_err(|e| DataError::source(name, e))
    }

    fn own(&self, batch: &Batch) -> Result<Batch, DataError> {
        let rows = batch.size() / self.count as usize;
        let before = self.rank as usize * rows;
        Ok(Batch {
            data: self.parts(&batch.data, &self.data)?,
            labels: self.parts(&batch.labels, &self.labels)?,
            pad: rows - batch.examples().saturating_sub(before).min(rows),
            index: batch.index.iter().copied().skip(before).take(rows).collect(),
        })
    }
}

/// The rows of one rank.
fn share(name: &str, dims: &[u64], count: u64) -> Result<u64, DataError> {
    match dims.first() {
        Some(rows) if rows.is_multiple_of(count) => Ok(rows / count),
        Some(rows) => {
            let why = format!("`{name}` has {rows} rows, which cannot be shared out evenly to {count} ranks");
            Err(DataError::options("split", why))
        }
        None => Err(DataError::options("split", format!("`{name}` has no rows"))),
    }
}

fn with_rows(dims: &[u64], rows: u64) -> Vec<u64> {
    [rows].into_iter().chain(dims.iter().skip(1).copied()).collect()
}

impl<I: DataIter> DataIter for SplitRows<I> {
    fn provide_data(&self) -> &[DataDesc] {
        &self.data
    }

    fn provide_label(&self) -> &[DataDesc] {
        &self.labels
    }

    fn next(&mut self) -> Result<Option<Batch>, DataError> {
        self.iter.next()?.map(|batch| self.own(&batch)).transpose()
    }

    fn reset(&mut self) -> Result<(), DataError> {
        self.iter.reset()
    }

    fn position(&self) -> Position {
        self.iter.position()
    }

    fn seek(&mut self, position: Position) -> Result<(), DataError> {
        self.iter.seek(position)
    }

    fn batches(&self) -> Option<u64> {
        self.iter.batches()
    }
}
