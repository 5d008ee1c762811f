//! Batches of arrays in memory, in order or shuffled.
//!
//! The order of an epoch is a function of the seed and the number of the epoch.

use tensorc_runtime::resource::threefry2x32;

use super::TrainError;
use crate::{DType, Error, Tensor};

/// What happens to the examples that are left over by whole batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastBatch {
    /// They are filled up to a batch with the first examples of the epoch.
    #[default]
    Pad,
    /// They are left out of this epoch.
    Discard,
}

/// Arrays with a name, whose first axis counts examples.
pub type Source = (String, Tensor);

/// Examples cut into batches of one size.
#[derive(Clone, Debug)]
pub struct Batches {
    data: Vec<Source>,
    labels: Vec<Source>,
    examples: usize,
    batch: usize,
    last: LastBatch,
    seed: Option<u64>,
    epoch: u64,
}

/// One batch, in the order of the sources.
#[derive(Clone, Debug)]
pub struct Batch {
    pub data: Vec<Tensor>,
    pub labels: Vec<Tensor>,
    /// Examples at the end that fill it up and belong to the beginning of the epoch.
    pub pad: usize,
}

impl Batch {
    /// Examples, those that fill it up included.
    pub fn size(&self) -> usize {
        self.data.first().and_then(|tensor| tensor.dims().first()).map_or(0, |n| *n as usize)
    }

    /// Examples that do not fill it up.
    pub fn examples(&self) -> usize {
        self.size().saturating_sub(self.pad)
    }
}

impl Batches {
    /// Batches of `batch` examples. Every array has the same number of them.
    ///
    /// # Errors
    /// The arrays disagree, or there are fewer examples than a batch has.
    pub fn new(data: Vec<Source>, labels: Vec<Source>, batch: usize) -> Result<Batches, Error> {
        let wrong = |name: &str, why: String| TrainError::Batches { source_name: format!("`{name}`"), why };
        let Some((first, tensor)) = data.first() else {
            return Err(wrong("", "there is no data".into()).into());
        };
        let examples = tensor.dims().first().map_or(0, |n| *n as usize);
        if batch == 0 || examples < batch {
            return Err(wrong(first, format!("{examples} examples for batches of {batch}")).into());
        }
        for (name, tensor) in data.iter().chain(&labels) {
            let found = tensor.dims().first().map_or(0, |n| *n as usize);
            if found != examples {
                return Err(wrong(name, format!("it has {found} examples, `{first}` has {examples}")).into());
            }
        }
        Ok(Batches { data, labels, examples, batch, last: LastBatch::Pad, seed: None, epoch: 0 })
    }

    /// The usual case: an array `data` and labels `softmax_label`.
    ///
    /// # Errors
    /// As [`Batches::new`].
    pub fn labelled(data: Tensor, labels: Tensor, batch: usize) -> Result<Batches, Error> {
        Batches::new(vec![("data".into(), data)], vec![("softmax_label".into(), labels)], batch)
    }

    /// Another order in every epoch, from a seed.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Batches {
        self.seed = Some(seed);
        self
    }

    #[must_use]
    pub fn last(mut self, last: LastBatch) -> Batches {
        self.last = last;
        self
    }

    pub fn examples(&self) -> usize {
        self.examples
    }

    pub fn batch_size(&self) -> usize {
        self.batch
    }

    /// Batches in an epoch.
    pub fn len(&self) -> usize {
        match self.last {
            LastBatch::Pad => self.examples.div_ceil(self.batch),
            LastBatch::Discard => self.examples / self.batch,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names, element types and shapes of the data of a batch.
    pub fn data_types(&self) -> Vec<(String, DType, Vec<u64>)> {
        self.types(&self.data)
    }

    /// Names, element types and shapes of the labels of a batch.
    pub fn label_types(&self) -> Vec<(String, DType, Vec<u64>)> {
        self.types(&self.labels)
    }

    fn types(&self, sources: &[Source]) -> Vec<(String, DType, Vec<u64>)> {
        let ty = |(name, tensor): &Source| {
            let mut dims = tensor.dims().to_vec();
            dims[0] = self.batch as u64;
            (name.clone(), tensor.dtype(), dims)
        };
        sources.iter().map(ty).collect()
    }

    /// Which epoch comes next. Setting it takes up a run that was interrupted.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// The batches of the next epoch.
    pub fn epoch(&mut self) -> impl ExactSizeIterator<Item = Batch> + use<'_> {
        let order = self.seed.map(|seed| permutation(self.examples, seed, self.epoch));
        self.epoch += 1;
        let this = &*self;
        (0..self.len()).map(move |i| this.cut(order.as_deref(), i * this.batch))
    }

    fn cut(&self, order: Option<&[u32]>, begin: usize) -> Batch {
        let at = |i: usize| order.map_or(i % self.examples, |order| order[i % self.examples] as usize);
        let rows = |(_, tensor): &Source| {
            let row = tensor.bytes().len() / self.examples;
            let mut dims = tensor.dims().to_vec();
            dims[0] = self.batch as u64;
            let end = begin + self.batch;
            // Examples in order share the elements of the whole.
            if order.is_none() && end <= self.examples {
                let bytes = tensor.0.bytes().slice(begin * row..end * row);
                return Tensor::from_bytes(tensor.dtype(), &dims, bytes);
            }
            let mut bytes = Vec::with_capacity(self.batch * row);
            (begin..end).for_each(|i| bytes.extend_from_slice(&tensor.bytes()[at(i) * row..(at(i) + 1) * row]));
            Tensor::from_bytes(tensor.dtype(), &dims, bytes)
        };
        // The bytes fill the shape by construction.
        let cut = |sources: &[Source]| sources.iter().filter_map(|source| rows(source).ok()).collect();
        let pad = (begin + self.batch).saturating_sub(self.examples);
        Batch { data: cut(&self.data), labels: cut(&self.labels), pad }
    }
}

/// Fisher-Yates with numbers of a counter-based generator.
fn permutation(n: usize, seed: u64, epoch: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    let words = |x: u64| [x as u32, (x >> 32) as u32];
    let key = threefry2x32(words(seed), words(epoch));
    for i in (1..n).rev() {
        let [low, high] = threefry2x32(key, words(i as u64));
        let draw = (u128::from(u64::from(high) << 32 | u64::from(low)) * (i as u128 + 1)) >> 64;
        order.swap(i, draw as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ten() -> Batches {
        let x = Tensor::from_f32(&[10, 2], &(0..20).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        let y = Tensor::from_f32(&[10], &(0..10).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        Batches::labelled(x, y, 4).unwrap()
    }

    fn labels(batches: &mut Batches) -> Vec<Vec<f32>> {
        batches.epoch().map(|b| b.labels[0].to_f32().unwrap()).collect()
    }

    #[test]
    fn the_last_batch_is_padded_from_the_beginning_or_left_out() {
        let mut batches = ten();
        assert_eq!(labels(&mut batches), [[0., 1., 2., 3.], [4., 5., 6., 7.], [8., 9., 0., 1.]]);
        let last = batches.epoch().last().unwrap();
        assert_eq!((last.pad, last.data[0].to_f32().unwrap()), (2, vec![16., 17., 18., 19., 0., 1., 2., 3.]));
        assert_eq!(labels(&mut ten().last(LastBatch::Discard)), [[0., 1., 2., 3.], [4., 5., 6., 7.]]);
        assert_eq!(batches.data_types(), [("data".to_owned(), DType::F32, vec![4, 2])]);
    }

    #[test]
    fn epochs_differ_and_follow_from_the_seed() {
        let mut batches = ten().shuffle(7);
        let (first, second) = (labels(&mut batches), labels(&mut batches));
        assert_ne!(first, second);
        let mut seen: Vec<f32> = first.concat()[..10].to_vec();
        assert_eq!(first.concat()[10..], first.concat()[..2]);
        seen.sort_by(f32::total_cmp);
        assert_eq!(seen, (0..10).map(|i| i as f32).collect::<Vec<_>>());
        let mut again = ten().shuffle(7);
        again.set_epoch(1);
        assert_eq!(labels(&mut again), second);
        assert_ne!(labels(&mut ten().shuffle(8)), first);
        // Data and labels stay together.
        for batch in ten().shuffle(3).epoch() {
            let (x, y) = (batch.data[0].to_f32().unwrap(), batch.labels[0].to_f32().unwrap());
            assert!(x.chunks(2).zip(&y).all(|(x, y)| x[0] == 2.0 * y));
        }
    }

    #[test]
    fn permutations_are_even() {
        // Each of the 6 orders of 3 comes up as often as the others: 5 standard deviations.
        let mut counts = std::collections::BTreeMap::new();
        for epoch in 0..6000 {
            *counts.entry(permutation(3, 1, epoch)).or_insert(0i32) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|c| (c - 1000).abs() < 145), "{counts:?}");
    }
}
