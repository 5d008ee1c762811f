//! Examples of a stream in a random order, with a buffer.

use bytes::Bytes;
use tensorc_runtime::HostTensor;

use super::super::{Batch, DataIter, Position};
use super::replay;
use crate::dataset::DataDesc;
use crate::draws::Draws;
use crate::error::DataError;

/// An example: the bytes of its data and labels.
struct Example {
    arrays: Vec<Vec<u8>>,
    id: Option<u64>,
}

/// Takes each example from a random place of a buffer that the source refills: an order between that of the source (a
/// buffer of 1) and any order (a buffer of all). The last batch is filled up with examples of its own, which do not count.
///
/// To resume inside of an epoch, the source is read again from the epoch's beginning.
pub struct ShuffleBuffer<I> {
    iter: I,
    seed: u64,
    size: usize,
    buffer: Vec<Example>,
    /// Buffers of examples that were handed out.
    free: Vec<Example>,
    /// Whether the source has ended.
    drained: bool,
    position: Position,
    taken: u64,
}

impl<I: DataIter> ShuffleBuffer<I> {
    /// A buffer of `size` examples, at least 1.
    pub fn new(iter: I, size: usize, seed: u64) -> ShuffleBuffer<I> {
        let position = Position::new(iter.position().epoch, 0);
        let size = size.max(1);
        ShuffleBuffer { iter, seed, size, buffer: vec![], free: vec![], drained: false, position, taken: 0 }
    }

    fn descs(&self) -> impl Iterator<Item = &DataDesc> {
        self.iter.provide_data().iter().chain(self.iter.provide_label())
    }

    fn refill(&mut self) -> Result<(), DataError> {
        while !self.drained && self.buffer.len() < self.size.max(self.iter.batch_size()) {
            match self.iter.next()? {
                None => self.drained = true,
                Some(batch) => self.take_in(&batch),
            }
        }
        Ok(())
    }

    fn take_in(&mut self, batch: &Batch) {
        let size = batch.size().max(1);
        for i in 0..batch.examples() {
            let arrays = batch.data.len() + batch.labels.len();
            let mut example = self.free.pop().unwrap_or_else(|| Example { arrays: vec![vec![]; arrays], id: None });
            for (to, tensor) in example.arrays.iter_mut().zip(batch.data.iter().chain(&batch.labels)) {
                let row = tensor.bytes().len() / size;
                to.clear();
                to.extend_from_slice(&tensor.bytes()[i * row..(i + 1) * row]);
            }
            example.id = batch.index.get(i).copied();
            self.buffer.push(example);
        }
    }

    fn joined(&self, examples: &[Example]) -> Result<Batch, DataError> {
        let size = self.iter.batch_size();
        let mut tensors = vec![];
        for (k, desc) in self.descs().enumerate() {
            let rows = examples.iter().cycle().take(size);
            let bytes: Vec<u8> = rows.flat_map(|example| example.arrays[k].iter().copied()).collect();
            let tensor = HostTensor::new(desc.dtype, &desc.dims, Bytes::from(bytes));
            tensors.push(tensor.map_err(|e| DataError::source(&desc.name, e))?);
        }
        let labels = tensors.split_off(self.iter.provide_data().len());
        let ids: Option<Vec<u64>> = examples.iter().cycle().take(size).map(|example| example.id).collect();
        Ok(Batch { data: tensors, labels, pad: size - examples.len(), index: ids.unwrap_or_default() })
    }
}

impl<I: DataIter> DataIter for ShuffleBuffer<I> {
    fn provide_data(&self) -> &[DataDesc] {
        self.iter.provide_data()
    }

    fn provide_label(&self) -> &[DataDesc] {
        self.iter.provide_label()
    }

    fn next(&mut self) -> Result<Option<Batch>, DataError> {
        let mut examples = vec![];
        while examples.len() < self.iter.batch_size() {
            if let Err(error) = self.refill() {
                // What was taken out goes on with the next batch.
                self.buffer.extend(examples);
                return Err(error);
            }
            if self.buffer.is_empty() {
                break;
            }
            let at = Draws::new(self.seed, self.position.epoch, self.taken).below(self.buffer.len() as u64);
            examples.push(self.buffer.swap_remove(at as usize));
            self.taken += 1;
        }
        if examples.is_empty() {
            return Ok(None);
        }
        let batch = self.joined(&examples)?;
        self.free.extend(examples);
        self.position.batch += 1;
        Ok(Some(batch))
    }

    fn reset(&mut self) -> Result<(), DataError> {
        if self.position.batch > 0 || self.drained {
            self.iter.reset()?;
            self.free.append(&mut self.buffer);
            (self.drained, self.taken) = (false, 0);
            self.position = Position::new(self.position.epoch + 1, 0);
        }
        Ok(())
    }

    fn position(&self) -> Position {
        self.position
    }

    fn seek(&mut self, position: Position) -> Result<(), DataError> {
        replay(self, position, |this| {
            let begin = Position::new(position.epoch, 0);
            this.iter.seek(begin)?;
            this.free.append(&mut this.buffer);
            (this.drained, this.taken, this.position) = (false, 0, begin);
            Ok(())
        })
    }

    fn batches(&self) -> Option<u64> {
        None
    }
}
