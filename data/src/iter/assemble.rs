//! One batch from its examples: read in parallel into recycled memory, those that fail reported or left out.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tensorc_abi::DType;
use tensorc_runtime::{HostTensor, TensorMut};

use super::Batch;
use super::memory::{Lease, Recycled};
use crate::dataset::{DataDesc, Dataset, Sample};
use crate::error::DataError;

/// What happens when an example cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnError {
    /// The batch is an error; the next call goes on with the next batch.
    #[default]
    Fail,
    /// The example is left out: those behind it move up, and the batch is filled up at the end with examples of its
    /// own, which do not count. A batch of which no example is left is left out.
    Skip,
    /// As [`OnError::Skip`], and [`super::Faults`] keeps what went wrong.
    Count,
}

/// A batch, none if each of its examples was skipped, and why examples were.
#[derive(Default)]
pub struct AssembledBatch {
    pub batch: Option<Batch>,
    pub skipped: Vec<DataError>,
}

/// Makes batches of the examples of a dataset.
pub struct Assembler {
    dataset: Box<dyn Dataset>,
    /// Of the part that is read: its first example.
    begin: usize,
    batch: usize,
    on_error: OnError,
    memory: Arc<Recycled>,
}

/// An example's part of the memory of a batch.
struct ExampleSlot<'a> {
    data: Vec<TensorMut<'a>>,
    labels: Vec<TensorMut<'a>>,
}

impl Assembler {
    /// `buffers` is the number of arrays whose memory is kept for the next batches.
    pub fn new(dataset: Box<dyn Dataset>, begin: usize, batch: usize, on_error: OnError, buffers: usize) -> Assembler {
        Assembler { dataset, begin, batch, on_error, memory: Recycled::new(buffers) }
    }

    pub fn name(&self) -> String {
        self.dataset.name()
    }

    /// The batch of these examples, of which the last `pad` only fill it up.
    ///
    /// # Errors
    /// The first example that cannot be read, unless such are skipped; memory is short.
    pub fn batch(&self, samples: &[Sample], pad: usize) -> Result<AssembledBatch, DataError> {
        let samples: Vec<Sample> =
            samples.iter().map(|s| Sample { index: s.index + self.begin, epoch: s.epoch }).collect();
        let mut data = self.lease(self.dataset.data())?;
        let mut labels = self.lease(self.dataset.labels())?;
        let rows = self.rows(&mut data, &mut labels);
        let outcomes: Vec<Result<(), DataError>> =
            rows.into_par_iter().zip(&samples).map(|(row, sample)| self.read(*sample, row)).collect();
        let mut index: Vec<u64> = samples.iter().map(|sample| self.dataset.id(sample.index)).collect();
        let mut counted = self.batch - pad.min(self.batch);
        let mut skipped = vec![];
        if outcomes.iter().any(Result::is_err) {
            let good: Vec<usize> = (0..self.batch).filter(|i| outcomes[*i].is_ok()).collect();
            let errors = outcomes.into_iter().take(counted).filter_map(Result::err);
            match self.on_error {
                // Examples that only fill the batch up are read elsewhere, too, where their errors count.
                OnError::Fail => errors.take(1).try_for_each(Err)?,
                OnError::Skip | OnError::Count => skipped.extend(errors),
            }
            counted = good.iter().filter(|i| **i < counted).count();
            if counted == 0 {
                return Ok(AssembledBatch { batch: None, skipped });
            }
            index = good.iter().cycle().take(self.batch).map(|i| index[*i]).collect();
            data.iter_mut().chain(&mut labels).for_each(|lease| self.gather(lease, &good));
        }
        let data = self.tensors(data, self.dataset.data())?;
        let labels = self.tensors(labels, self.dataset.labels())?;
        Ok(AssembledBatch { batch: Some(Batch { data, labels, pad: self.batch - counted, index }), skipped })
    }

    /// Moves the examples of these places, which ascend, to the front and repeats them behind.
    fn gather(&self, lease: &mut Lease, good: &[usize]) {
        let row = lease.as_ref().len() / self.batch;
        let bytes = lease.as_mut_slice();
        let moves = good.iter().copied().chain((good.len()..self.batch).map(|to| to % good.len()));
        moves.enumerate().for_each(|(to, from)| bytes.copy_within(from * row..(from + 1) * row, to * row));
    }

    fn lease(&self, descs: &[DataDesc]) -> Result<Vec<Lease>, DataError> {
        let bytes = |desc: &DataDesc| self.row_bytes(desc).and_then(|row| row.checked_mul(self.batch));
        let lease = |desc| Ok(self.memory.lease(bytes(desc).unwrap_or(usize::MAX))?);
        descs.iter().map(lease).collect()
    }

    fn row_bytes(&self, desc: &DataDesc) -> Option<usize> {
        tensorc_runtime::host_tensor::byte_len(desc.dtype, &desc.dims).and_then(|n| usize::try_from(n).ok())
    }

    fn rows<'a>(&'a self, data: &'a mut [Lease], labels: &'a mut [Lease]) -> Vec<ExampleSlot<'a>> {
        let mut rows: Vec<ExampleSlot<'a>> =
            (0..self.batch).map(|_| ExampleSlot { data: vec![], labels: vec![] }).collect();
        for (lease, desc) in data.iter_mut().zip(self.dataset.data()) {
            rows.iter_mut().zip(split(lease, desc, self.batch)).for_each(|(row, tensor)| row.data.push(tensor));
        }
        for (lease, desc) in labels.iter_mut().zip(self.dataset.labels()) {
            rows.iter_mut().zip(split(lease, desc, self.batch)).for_each(|(row, tensor)| row.labels.push(tensor));
        }
        rows
    }

    fn read(&self, sample: Sample, mut row: ExampleSlot<'_>) -> Result<(), DataError> {
        let read = || self.dataset.read(sample, &mut row.data, &mut row.labels);
        catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|payload| Err(panicked(self.name(), payload)))
    }

    fn tensors(&self, leases: Vec<Lease>, descs: &[DataDesc]) -> Result<Vec<HostTensor>, DataError> {
        let tensor = |(lease, desc): (Lease, &DataDesc)| {
            let desc = desc.batched(self.batch as u64);
            HostTensor::new(desc.dtype, &desc.dims, lease.share()).map_err(|e| DataError::source(self.name(), e))
        };
        leases.into_iter().zip(descs).map(tensor).collect()
    }
}

/// The error that code of a source panicked.
pub fn panicked(name: String, payload: Box<dyn Any + Send>) -> DataError {
    DataError::Panic { name, message: tensorc_abi::panic_text(payload, "unknown") }
}

/// The examples of an array of a batch.
fn split<'a>(lease: &'a mut Lease, desc: &'a DataDesc, batch: usize) -> impl Iterator<Item = TensorMut<'a>> {
    let (dtype, dims): (DType, &[u64]) = (desc.dtype, &desc.dims);
    let mut rest = lease.as_mut_slice();
    let row = rest.len() / batch;
    (0..batch).map(move |_| {
        let (row, behind) = std::mem::take(&mut rest).split_at_mut(row);
        rest = behind;
        TensorMut::new(dtype, dims, row)
    })
}
