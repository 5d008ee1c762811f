//! Which examples make up which batch: a pure function of the position.
//!
//! The examples of all epochs form one endless sequence, `epoch * examples + place`; kinds of last batches differ in how
//! they cut it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Position;
use crate::dataset::Sample;
use crate::draws::Draws;
use crate::error::DataError;

/// What happens to the examples that are left over by whole batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LastBatch {
    /// They are filled up to a batch with the first examples of the epoch.
    #[default]
    Pad,
    /// They are left out of this epoch.
    Discard,
    /// They become the first examples of the next epoch.
    RollOver,
    /// They are filled up with the first examples of the next epoch, which begins behind those (MXNet's `round_batch`).
    Round,
    /// They are filled up with what stood in the same places of the batch before.
    Repeat,
}

/// In which order the examples of an epoch come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shuffle {
    /// In the order of the source.
    #[default]
    None,
    /// One order for all epochs.
    Once(u64),
    /// An order of its own for every epoch.
    EachEpoch(u64),
    /// An order of its own for every epoch, in which the examples of a block stay together: `ends` are the numbers of
    /// examples up to the end of each block. For files that are read faster in pieces than at random.
    Blocks {
        /// The seed of the order.
        seed: u64,
        /// Where each block ends, in examples.
        ends: Arc<[u32]>,
    },
}

/// The division of examples into batches.
#[derive(Clone, Debug)]
pub struct BatchSchedule {
    examples: usize,
    batch: usize,
    last: LastBatch,
    shuffle: Shuffle,
    /// Examples as which the number of batches is counted; more than `examples` where parts are made equal.
    counted: usize,
    /// Orders that were computed last.
    orders: Vec<(u64, Arc<[u32]>)>,
}

/// The examples of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The examples of the batch, in order.
    pub samples: Vec<Sample>,
    /// Examples at the end that do not count.
    pub pad: usize,
}

/// Orders that are kept: an epoch's, and its neighbours' for batches that reach over the border.
const MAX_CACHED_ORDERS: usize = 3;

/// The last epoch that there is a position in.
const MAX_EPOCH: u64 = 1 << 40;

impl BatchSchedule {
    /// # Errors
    /// There are no examples, or too few for a batch where it cannot be filled up.
    pub fn new(
        name: &str,
        examples: usize,
        batch: usize,
        last: LastBatch,
        shuffle: Shuffle,
    ) -> Result<BatchSchedule, DataError> {
        let fills = matches!(last, LastBatch::Pad | LastBatch::Repeat);
        if u32::try_from(examples).is_err() {
            return Err(DataError::options(name, format!("{examples} examples are more than 2³² - 1")));
        }
        if let Shuffle::Blocks { ends, .. } = &shuffle
            && !(ends.is_sorted() && ends.last().is_some_and(|end| *end as usize == examples))
        {
            return Err(DataError::options(name, format!("blocks that end at {ends:?} are not {examples} examples")));
        }
        if batch == 0 || examples == 0 || (examples < batch && !fills) {
            return Err(DataError::options(name, format!("{examples} examples for batches of {batch}")));
        }
        Ok(BatchSchedule { examples, batch, last, shuffle, counted: examples, orders: vec![] })
    }

    /// As many batches as if there were so many examples: those that are missing repeat the first ones and do not count.
    ///
    /// # Errors
    /// Batches reach over the end of the epoch, so that epochs differ in length.
    pub(crate) fn equal_to(mut self, name: &str, counted: usize) -> Result<BatchSchedule, DataError> {
        if matches!(self.last, LastBatch::RollOver | LastBatch::Round) {
            return Err(DataError::options(name, "parts of equal length need a last batch that ends with the epoch"));
        }
        self.counted = counted.max(self.examples);
        Ok(self)
    }

    pub(super) fn with_shuffle(self, shuffle: Shuffle) -> BatchSchedule {
        BatchSchedule { shuffle, orders: vec![], ..self }
    }

    /// There are enough examples for a batch.
    pub(super) fn with_last(self, last: LastBatch) -> BatchSchedule {
        BatchSchedule { last, ..self }
    }

    /// Number of examples of the source.
    pub fn examples(&self) -> usize {
        self.examples
    }

    /// Examples of a batch.
    pub fn batch_size(&self) -> usize {
        self.batch
    }

    /// Batches of an epoch.
    pub fn batches(&self, epoch: u64) -> u64 {
        let (n, b) = (self.counted as u128, self.batch as u128);
        let batches = match self.last {
            LastBatch::Pad | LastBatch::Repeat => n.div_ceil(b),
            LastBatch::Discard => n / b,
            LastBatch::RollOver => self.first(epoch + 1) / b - self.first(epoch) / b,
            LastBatch::Round => self.first(epoch + 1).div_ceil(b) - self.first(epoch).div_ceil(b),
        };
        batches as u64
    }

    /// The place of an epoch's first example in the sequence of all.
    fn first(&self, epoch: u64) -> u128 {
        u128::from(epoch) * self.counted as u128
    }

    /// The place of an epoch's first batch in the sequence of all.
    fn begin(&self, epoch: u64) -> u128 {
        let (first, b) = (self.first(epoch), self.batch as u128);
        match self.last {
            LastBatch::RollOver => first / b * b,
            LastBatch::Round => first.div_ceil(b) * b,
            _ => first,
        }
    }

    /// The position itself, or the beginning of the next epoch where this one has no more batches.
    pub fn normal(&self, position: Position) -> Position {
        match position.batch >= self.batches(position.epoch) {
            true => Position::new(position.epoch + 1, 0),
            false => position,
        }
    }

    /// # Errors
    /// The epoch has fewer batches.
    pub fn check(&self, name: &str, position: Position) -> Result<(), DataError> {
        if position.epoch > MAX_EPOCH {
            return Err(DataError::options(name, format!("there is no epoch {}", position.epoch)));
        }
        let batches = self.batches(position.epoch);
        match position.batch <= batches {
            true => Ok(()),
            false => {
                let why = format!("epoch {} has {batches} batches, there is no position {position}", position.epoch);
                Err(DataError::options(name, why))
            }
        }
    }

    /// The examples of a batch.
    pub fn cut(&mut self, position: Position) -> Cut {
        let begin = self.begin(position.epoch) + u128::from(position.batch) * self.batch as u128;
        let end = self.first(position.epoch + 1);
        let samples = (0..self.batch as u128).map(|slot| self.sample(position.epoch, begin + slot)).collect();
        let counts = match self.last {
            LastBatch::RollOver => self.batch as u128,
            _ => (end - (self.counted - self.examples) as u128).saturating_sub(begin),
        };
        Cut { samples, pad: (self.batch as u128).saturating_sub(counts) as usize }
    }

    fn sample(&mut self, epoch: u64, place: u128) -> Sample {
        let end = self.first(epoch + 1) - (self.counted - self.examples) as u128;
        let (of, at) = match self.last {
            LastBatch::RollOver | LastBatch::Round => {
                let n = self.examples as u128;
                ((place / n) as u64, (place % n) as usize)
            }
            LastBatch::Repeat if place >= end && place - self.first(epoch) >= self.batch as u128 => {
                (epoch, (place - self.batch as u128 - self.first(epoch)) as usize % self.examples)
            }
            _ => (epoch, (place - self.first(epoch)) as usize % self.examples),
        };
        let index = self.order(of).map_or(at, |order| order[at] as usize);
        Sample { index, epoch: of }
    }

    /// The order of an epoch's examples, if it is not that of their numbers.
    pub fn order(&mut self, epoch: u64) -> Option<Arc<[u32]>> {
        let key = match self.shuffle {
            Shuffle::None => return None,
            Shuffle::Once(_) => 0,
            _ => epoch,
        };
        if let Some((_, order)) = self.orders.iter().find(|(known, _)| *known == key) {
            return Some(order.clone());
        }
        let order: Arc<[u32]> = match &self.shuffle {
            Shuffle::None => return None,
            Shuffle::Once(seed) | Shuffle::EachEpoch(seed) => {
                Draws::of_epoch(*seed, key).permutation(self.examples).into()
            }
            Shuffle::Blocks { seed, ends } => in_blocks(self.examples, ends, *seed, key).into(),
        };
        self.orders.truncate(MAX_CACHED_ORDERS - 1);
        self.orders.insert(0, (key, order.clone()));
        Some(order)
    }
}

/// A permutation of the blocks, each of which is permuted inside.
fn in_blocks(n: usize, ends: &[u32], seed: u64, epoch: u64) -> Vec<u32> {
    let mut order = Vec::with_capacity(n);
    for block in Draws::of_epoch(seed, epoch).permutation(ends.len()) {
        let at = block as usize;
        let (begin, end) = (at.checked_sub(1).map_or(0, |before| ends[before]), ends[at]);
        let inside = Draws::new(seed, epoch, block.into()).permutation((end - begin) as usize);
        order.extend(inside.into_iter().map(|i| begin + i));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(n: usize, last: LastBatch, shuffle: Shuffle) -> BatchSchedule {
        BatchSchedule::new("test", n, 4, last, shuffle).unwrap()
    }

    /// Numbers of the examples of an epoch's batches, and the pad of the last.
    fn epoch(schedule: &mut BatchSchedule, epoch: u64) -> (Vec<Vec<usize>>, usize) {
        let cuts: Vec<Cut> = (0..schedule.batches(epoch)).map(|k| schedule.cut(Position::new(epoch, k))).collect();
        assert!(cuts.iter().rev().skip(1).all(|cut| cut.pad == 0));
        (
            cuts.iter().map(|cut| cut.samples.iter().map(|s| s.index).collect()).collect(),
            cuts.last().map_or(0, |cut| cut.pad),
        )
    }

    #[test]
    fn last_batches_are_those_of_mxnet() {
        let whole = vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]];
        let with = |last: [usize; 4]| [whole.clone(), vec![last.to_vec()]].concat();
        let mut pad = schedule(10, LastBatch::Pad, Shuffle::None);
        let mut discard = schedule(10, LastBatch::Discard, Shuffle::None);
        let mut repeat = schedule(10, LastBatch::Repeat, Shuffle::None);
        for e in 0..3 {
            assert_eq!(epoch(&mut pad, e), (with([8, 9, 0, 1]), 2));
            assert_eq!(epoch(&mut discard, e), (whole.clone(), 0));
            assert_eq!(epoch(&mut repeat, e), (with([8, 9, 6, 7]), 2));
        }
        let mut roll = schedule(10, LastBatch::RollOver, Shuffle::None);
        assert_eq!(epoch(&mut roll, 0), (whole.clone(), 0));
        assert_eq!(epoch(&mut roll, 1), (vec![vec![8, 9, 0, 1], vec![2, 3, 4, 5], vec![6, 7, 8, 9]], 0));
        assert_eq!(epoch(&mut roll, 2), (whole.clone(), 0));
        let mut round = schedule(10, LastBatch::Round, Shuffle::None);
        assert_eq!(epoch(&mut round, 0), (with([8, 9, 0, 1]), 2));
        assert_eq!(epoch(&mut round, 1), (vec![vec![2, 3, 4, 5], vec![6, 7, 8, 9]], 0));
        assert_eq!(epoch(&mut round, 2), (with([8, 9, 0, 1]), 2));
    }

    #[test]
    fn every_example_of_an_epoch_comes_once_whatever_the_order() {
        let blocks = Shuffle::Blocks { seed: 3, ends: [4, 5, 11].into() };
        for shuffle in [Shuffle::None, Shuffle::Once(3), Shuffle::EachEpoch(3), blocks] {
            let mut pad = schedule(11, LastBatch::Pad, shuffle.clone());
            let mut orders = vec![];
            for e in 0..4 {
                let (batches, pad) = epoch(&mut pad, e);
                let order = batches.concat();
                assert_eq!(order[11..], order[..pad]);
                let mut sorted = order[..11].to_vec();
                sorted.sort();
                assert_eq!(sorted, (0..11).collect::<Vec<_>>());
                orders.push(order);
            }
            let same = matches!(shuffle, Shuffle::None | Shuffle::Once(_));
            assert_eq!(orders[0] == orders[1], same, "{shuffle:?}");
            // Nothing depends on what was asked for before.
            let fresh = schedule(11, LastBatch::Pad, shuffle.clone()).cut(Position::new(3, 1));
            assert_eq!(fresh.samples.iter().map(|s| s.index).collect::<Vec<_>>(), orders[3][4..8]);
            // Over the border of epochs, too, none is lost.
            for last in [LastBatch::RollOver, LastBatch::Round] {
                let mut schedule = schedule(11, last, shuffle.clone());
                let all: Vec<usize> = (0..12).flat_map(|e| epoch(&mut schedule, e).0).flatten().collect();
                let mut counts = [0; 11];
                all.iter().for_each(|i| counts[*i] += 1);
                assert!(counts.iter().all(|c| *c == all.len() / 11), "{last:?} {shuffle:?} {counts:?}");
            }
        }
    }

    #[test]
    fn blocks_stay_together() {
        let mut schedule = schedule(11, LastBatch::Pad, Shuffle::Blocks { seed: 1, ends: [4, 5, 11].into() });
        let order = schedule.order(2).unwrap();
        let block = |i: &u32| [4, 5, 11].iter().position(|end| i < end).unwrap();
        let mut runs: Vec<usize> = order.iter().map(block).collect();
        runs.dedup();
        assert_eq!(runs.len(), 3, "{order:?}");
    }

    #[test]
    fn parts_are_made_equal_with_examples_that_do_not_count() {
        let mut part = schedule(6, LastBatch::Pad, Shuffle::None).equal_to("test", 14).unwrap();
        let cuts: Vec<Cut> = (0..part.batches(0)).map(|k| part.cut(Position::new(0, k))).collect();
        assert_eq!(cuts.iter().map(|cut| cut.pad).collect::<Vec<_>>(), [0, 2, 4, 4]);
        assert!(schedule(6, LastBatch::Round, Shuffle::None).equal_to("test", 14).is_err());
    }

    #[test]
    fn few_examples_fill_a_batch_several_times() {
        let mut few = BatchSchedule::new("test", 3, 8, LastBatch::Pad, Shuffle::None).unwrap();
        assert_eq!(
            few.cut(Position::default()).samples.iter().map(|s| s.index).collect::<Vec<_>>(),
            [0, 1, 2, 0, 1, 2, 0, 1]
        );
        assert!(BatchSchedule::new("test", 3, 8, LastBatch::Discard, Shuffle::None).is_err());
        assert!(few.check("test", Position::new(0, 2)).is_err());
    }

    #[test]
    fn permutations_are_even() {
        // Each of the 6 orders of 3 comes up as often as the others: 5 standard deviations.
        let mut counts = std::collections::BTreeMap::new();
        for epoch in 0..6000 {
            *counts.entry(Draws::of_epoch(1, epoch).permutation(3)).or_insert(0i32) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|c| (c - 1000).abs() < 145), "{counts:?}");
    }
}
