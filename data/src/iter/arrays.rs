//! Batches of arrays in memory, in order or shuffled.

use bytes::Bytes;
use tensorc_runtime::HostTensor;

use super::schedule::{BatchSchedule, Cut, LastBatch, Shuffle};
use super::{Batch, DataIter, Position};
use crate::dataset::DataDesc;
use crate::error::DataError;

/// An array with its name; the first axis counts examples.
pub type NamedArray = (String, HostTensor);

/// Arrays in memory, cut into batches of one size. In order, batches share the elements of the arrays.
#[derive(Clone, Debug)]
pub struct Batches {
    data: Vec<NamedArray>,
    labels: Vec<NamedArray>,
    data_desc: Vec<DataDesc>,
    label_desc: Vec<DataDesc>,
    batch: usize,
    schedule: BatchSchedule,
    position: Position,
}

fn examples(array: &HostTensor) -> usize {
    array.dims().first().map_or(0, |n| *n as usize)
}

/// What becomes a tensor in host memory without a copy: a [`HostTensor`], or a tensor of another crate.
pub trait ToHost: TryInto<HostTensor, Error: std::error::Error + Send + Sync + 'static> {}

impl<T: TryInto<HostTensor, Error: std::error::Error + Send + Sync + 'static>> ToHost for T {}

fn named<N: Into<String>, T: ToHost>(arrays: impl IntoIterator<Item = (N, T)>) -> Result<Vec<NamedArray>, DataError> {
    let named = |(name, array): (N, T)| {
        let name = name.into();
        let array = array.try_into().map_err(|e| DataError::source(&name, e))?;
        Ok((name, array))
    };
    arrays.into_iter().map(named).collect()
}

fn described(arrays: &[NamedArray], batch: usize) -> Vec<DataDesc> {
    let desc = |(name, array): &NamedArray| DataDesc::new(name.clone(), array.dtype(), &array.dims()[1..]);
    arrays.iter().map(|array| desc(array).batched(batch as u64)).collect()
}

impl Batches {
    /// Batches of `batch` examples of named data and labels. Every array has the same number of examples.
    ///
    /// # Errors
    /// The arrays disagree, or there are fewer examples than a batch has.
    pub fn new<N: Into<String>, T: ToHost>(
        data: impl IntoIterator<Item = (N, T)>,
        labels: impl IntoIterator<Item = (N, T)>,
        batch: usize,
    ) -> Result<Batches, DataError> {
        let (data, labels) = (named(data)?, named(labels)?);
        let Some((first, array)) = data.first() else {
            return Err(DataError::options("batches", "there is no data"));
        };
        let count = examples(array);
        for (name, array) in data.iter().chain(&labels) {
            let found = examples(array);
            if found != count || array.dims().is_empty() {
                let why = format!("it has {found} examples, `{first}` has {count}");
                return Err(DataError::options(format!("batches of `{name}`"), why));
            }
        }
        // Every kind of last batch is possible then.
        let (strictest, name) = (LastBatch::Discard, format!("batches of `{first}`"));
        let schedule = BatchSchedule::new(&name, count, batch, strictest, Shuffle::None)?.with_last(LastBatch::Pad);
        let (data_desc, label_desc) = (described(&data, batch), described(&labels, batch));
        let position = Position::default();
        Ok(Batches { data, labels, data_desc, label_desc, batch, schedule, position })
    }

    /// The usual case: an array `data` and labels `softmax_label`.
    ///
    /// # Errors
    /// As [`Batches::new`].
    pub fn labelled(data: impl ToHost, labels: impl ToHost, batch: usize) -> Result<Batches, DataError> {
        let (data, labels) = (named([("data", data)])?, named([("softmax_label", labels)])?);
        Batches::new(data, labels, batch)
    }

    /// Another order in every epoch, from a seed.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Batches {
        self.schedule = self.schedule.with_shuffle(Shuffle::EachEpoch(seed));
        self
    }

    /// What happens to the examples that whole batches leave over.
    #[must_use]
    pub fn last(mut self, last: LastBatch) -> Batches {
        self.schedule = self.schedule.with_last(last);
        self
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        self.schedule.examples()
    }

    fn rows(&self, (_, array): &NamedArray, desc: &DataDesc, cut: &Cut) -> Result<HostTensor, DataError> {
        let row = array.bytes().len() / self.examples().max(1);
        let first = cut.samples.first().map_or(0, |sample| sample.index);
        let in_order = cut.samples.iter().enumerate().all(|(i, sample)| sample.index == first + i);
        let bytes = match in_order {
            true => array.bytes().slice(first * row..(first + self.batch) * row),
            false => {
                let mut bytes = Vec::with_capacity(self.batch * row);
                let rows = cut.samples.iter().map(|sample| sample.index * row);
                rows.for_each(|at| bytes.extend_from_slice(&array.bytes()[at..at + row]));
                Bytes::from(bytes)
            }
        };
        HostTensor::new(desc.dtype, &desc.dims, bytes).map_err(|e| DataError::source(&desc.name, e))
    }
}

impl DataIter for Batches {
    fn provide_data(&self) -> &[DataDesc] {
        &self.data_desc
    }

    fn provide_label(&self) -> &[DataDesc] {
        &self.label_desc
    }

    fn next(&mut self) -> Result<Option<Batch>, DataError> {
        if self.position.batch >= self.schedule.batches(self.position.epoch) {
            return Ok(None);
        }
        let cut = self.schedule.cut(self.position);
        self.position.batch += 1;
        let all = |arrays: &[NamedArray], descs: &[DataDesc]| -> Result<Vec<HostTensor>, DataError> {
            arrays.iter().zip(descs).map(|(array, desc)| self.rows(array, desc, &cut)).collect()
        };
        let (data, labels) = (all(&self.data, &self.data_desc)?, all(&self.labels, &self.label_desc)?);
        let index = cut.samples.iter().map(|sample| sample.index as u64).collect();
        Ok(Some(Batch { data, labels, pad: cut.pad, index }))
    }

    fn reset(&mut self) -> Result<(), DataError> {
        if self.position.batch > 0 {
            self.position = Position::new(self.position.epoch + 1, 0);
        }
        Ok(())
    }

    fn position(&self) -> Position {
        self.position
    }

    fn seek(&mut self, position: Position) -> Result<(), DataError> {
        self.schedule.check("batches", position)?;
        self.position = position;
        Ok(())
    }

    fn batches(&self) -> Option<u64> {
        Some(self.schedule.batches(self.position.epoch))
    }
}

#[cfg(test)]
mod tests {
    use tensorc_abi::DType;

    use super::*;
    use crate::iter::epoch;

    fn ten() -> Batches {
        let x = HostTensor::from_slice(&[10, 2], &(0..20).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        let y = HostTensor::from_slice(&[10], &(0..10).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        Batches::labelled(x, y, 4).unwrap()
    }

    fn labels(batches: &mut Batches) -> Vec<Vec<f32>> {
        epoch(batches).map(|b| b.unwrap().labels[0].to_vec().unwrap()).collect()
    }

    #[test]
    fn the_last_batch_is_padded_left_out_or_rolled_over() {
        let mut batches = ten();
        for _ in 0..2 {
            assert_eq!(labels(&mut batches), [[0., 1., 2., 3.], [4., 5., 6., 7.], [8., 9., 0., 1.]]);
        }
        let last = epoch(&mut batches).last().unwrap().unwrap();
        assert_eq!((last.pad, last.examples(), last.index.clone()), (2, 2, vec![8, 9, 0, 1]));
        assert_eq!(last.data[0].to_vec::<f32>().unwrap(), [16., 17., 18., 19., 0., 1., 2., 3.]);
        assert_eq!(labels(&mut ten().last(LastBatch::Discard)), [[0., 1., 2., 3.], [4., 5., 6., 7.]]);
        let mut roll = ten().last(LastBatch::RollOver);
        assert_eq!(labels(&mut roll), [[0., 1., 2., 3.], [4., 5., 6., 7.]]);
        assert_eq!(labels(&mut roll), [[8., 9., 0., 1.], [2., 3., 4., 5.], [6., 7., 8., 9.]]);
        assert_eq!(labels(&mut roll), [[0., 1., 2., 3.], [4., 5., 6., 7.]]);
        assert_eq!(batches.provide_data(), [DataDesc::new("data", DType::F32, &[4, 2])]);
    }

    #[test]
    fn epochs_differ_follow_from_the_seed_and_resume_anywhere() {
        let mut batches = ten().shuffle(7);
        let (first, second) = (labels(&mut batches), labels(&mut batches));
        assert_ne!(first, second);
        for k in 0..=3u64 {
            let mut again = ten().shuffle(7);
            again.seek(Position::new(1, k)).unwrap();
            assert_eq!(again.position(), Position::new(1, k));
            assert_eq!(labels(&mut again), second[k as usize..]);
            assert_eq!(again.position(), Position::new(2, 0));
        }
        assert_ne!(labels(&mut ten().shuffle(8)), first);
        // Data and labels stay together.
        for batch in epoch(&mut ten().shuffle(3)) {
            let batch = batch.unwrap();
            let (x, y) = (batch.data[0].to_vec::<f32>().unwrap(), batch.labels[0].to_vec::<f32>().unwrap());
            assert!(x.chunks(2).zip(&y).all(|(x, y)| x[0] == 2.0 * y));
        }
    }

    #[test]
    fn a_reset_inside_of_an_epoch_goes_to_the_next_one() {
        let mut batches = ten();
        batches.reset().unwrap();
        assert_eq!(batches.position(), Position::new(0, 0));
        batches.next().unwrap();
        batches.reset().unwrap();
        assert_eq!(batches.position(), Position::new(1, 0));
        assert!(batches.seek(Position::new(0, 4)).is_err());
    }

    #[test]
    fn arrays_that_disagree_are_refused() {
        let (x, y) = (HostTensor::from_slice(&[2], &[0f32; 2]), HostTensor::from_slice(&[3], &[0f32; 3]));
        let error = Batches::labelled(x.unwrap(), y.unwrap(), 1).unwrap_err();
        assert_eq!(error.to_string(), "batches of `softmax_label`: it has 3 examples, `data` has 2");
    }
}
