//! The loader over datasets made here: the same batches for any number of threads and after resuming, examples that fail,
//! parts, and memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tensorc_abi::DType;
use tensorc_data::iter::{Faults, LoaderBuilder, epoch};
use tensorc_data::{
    Batch, Cause, DataDesc, DataError, DataIter, Dataset, Draws, ExamplePlace, LastBatch, Loader, OnError, Position,
    Sample, Shuffle,
};
use tensorc_runtime::TensorMut;

/// Numbered examples with noise that depends on the epoch; those of `bad` fail, those of `wild` panic.
#[derive(Clone, Default)]
struct Numbers {
    count: usize,
    bad: Vec<usize>,
    wild: Vec<usize>,
    slow: bool,
    /// Examples read so far, and most batches' worth of them that were under way.
    read: Arc<AtomicUsize>,
    desc: Vec<DataDesc>,
    label: Vec<DataDesc>,
}

fn numbers(count: usize) -> Numbers {
    let desc = vec![DataDesc::new("data", DType::F32, &[2]), DataDesc::new("id", DType::I64, &[])];
    let label = vec![DataDesc::new("softmax_label", DType::F32, &[])];
    Numbers { count, desc, label, ..Numbers::default() }
}

impl Dataset for Numbers {
    fn name(&self) -> String {
        "numbers".into()
    }

    fn len(&self) -> usize {
        self.count
    }

    fn data(&self) -> &[DataDesc] {
        &self.desc
    }

    fn labels(&self) -> &[DataDesc] {
        &self.label
    }

    fn id(&self, index: usize) -> u64 {
        1000 + index as u64
    }

    fn read(&self, sample: Sample, data: &mut [TensorMut<'_>], labels: &mut [TensorMut<'_>]) -> Result<(), DataError> {
        if self.slow {
            std::thread::sleep(Duration::from_micros(10 * (sample.index as u64 % 7)));
        }
        self.read.fetch_add(1, Ordering::Relaxed);
        if self.bad.contains(&sample.index) {
            return Err(DataError::at(
                ExamplePlace::file("numbers").record(sample.index as u64),
                Cause::Format("bad".into()),
            ));
        }
        assert!(!self.wild.contains(&sample.index), "wild example {}", sample.index);
        let noise = Draws::new(5, sample.epoch, sample.index as u64).unit() as f32;
        data[0].write([sample.index as f32, noise]);
        data[1].write([sample.index as i64]);
        labels[0].write([-(sample.index as f32)]);
        Ok(())
    }
}

fn shuffled(dataset: Numbers, batch: usize) -> LoaderBuilder {
    Loader::of(dataset, batch).shuffle(Shuffle::EachEpoch(3))
}

fn ids(batch: &Batch) -> Vec<i64> {
    batch.data[1].to_vec().unwrap()
}

fn all(loader: &mut Loader, epochs: u64) -> Vec<Batch> {
    (0..epochs).flat_map(|_| epoch(loader).map(Result::unwrap).collect::<Vec<_>>()).collect()
}

#[test]
fn threads_and_prefetch_change_nothing() {
    for last in [LastBatch::Pad, LastBatch::Discard, LastBatch::RollOver, LastBatch::Round, LastBatch::Repeat] {
        let mut plain = shuffled(numbers(53), 8).last(last).threads(1).prefetch(1).build().unwrap();
        let expected = all(&mut plain, 3);
        assert_eq!(expected[0].data[0].dims(), [8, 2]);
        for (threads, prefetch) in [(Some(2), 4), (Some(4), 1), (Some(4), 9), (None, 3)] {
            let builder = shuffled(Numbers { slow: true, ..numbers(53) }, 8).last(last).prefetch(prefetch);
            let mut loader = threads.into_iter().fold(builder, |b, n| b.threads(n)).build().unwrap();
            assert_eq!(all(&mut loader, 3), expected, "{last:?}, {threads:?} threads, {prefetch} batches ahead");
        }
    }
}

#[test]
fn what_comes_after_resuming_anywhere_is_what_would_have_come() {
    for last in [LastBatch::Pad, LastBatch::RollOver, LastBatch::Round] {
        let build = || shuffled(numbers(21), 4).last(last).threads(2).build().unwrap();
        let mut whole = build();
        let mut positions = vec![];
        let mut batches = vec![];
        for _ in 0..3 {
            loop {
                positions.push(whole.position());
                let Some(batch) = whole.next().unwrap() else { break };
                batches.push((whole.position(), batch));
            }
            whole.reset().unwrap();
        }
        for at in positions {
            let mut resumed = build();
            // Whatever was read ahead before does not matter.
            resumed.next().unwrap();
            resumed.seek(at.to_string().parse::<Position>().unwrap()).unwrap();
            let rest: Vec<&Batch> = batches.iter().filter(|(after, _)| *after > at).map(|(_, b)| b).collect();
            let mut found = vec![];
            while found.len() < rest.len() {
                match resumed.next().unwrap() {
                    Some(batch) => found.push(batch),
                    None => resumed.reset().unwrap(),
                }
            }
            assert_eq!(found.iter().collect::<Vec<_>>(), rest, "{last:?} from {at}");
        }
    }
    let mut loader = shuffled(numbers(21), 4).build().unwrap();
    let error = loader.seek(Position::new(2, 9)).unwrap_err();
    assert_eq!(error.to_string(), "numbers: epoch 2 has 6 batches, there is no position 2:9");
}

#[test]
fn an_example_that_fails_is_an_error_and_the_next_batches_come() {
    let dataset = Numbers { bad: vec![5, 6], wild: vec![9], ..numbers(16) };
    let mut loader = Loader::of(dataset, 4).threads(2).build().unwrap();
    assert_eq!(ids(&loader.next().unwrap().unwrap()), [0, 1, 2, 3]);
    assert_eq!(loader.next().unwrap_err().to_string(), "numbers, record 5: bad", "the first of the batch");
    let panicked = "numbers: panic while reading an example: wild example 9";
    assert_eq!(loader.next().unwrap_err().to_string(), panicked);
    assert_eq!(ids(&loader.next().unwrap().unwrap()), [12, 13, 14, 15]);
    assert_eq!(loader.next().unwrap(), None);
    loader.reset().unwrap();
    assert_eq!(ids(&loader.next().unwrap().unwrap()), [0, 1, 2, 3]);
}

#[test]
fn skipped_examples_make_room_for_those_behind_them() {
    let dataset = Numbers { bad: vec![1, 4, 5, 6, 7, 9], wild: vec![10], ..numbers(14) };
    for policy in [OnError::Skip, OnError::Count] {
        let mut loader = Loader::of(dataset.clone(), 4).on_error(policy).prefetch(8).threads(2).build().unwrap();
        let batches: Vec<Batch> = epoch(&mut loader).map(Result::unwrap).collect();
        // The second batch has no example left.
        let found: Vec<(Vec<i64>, usize)> = batches.iter().map(|b| (ids(b), b.pad)).collect();
        assert_eq!(found, [(vec![0, 2, 3, 0], 1), (vec![8, 11, 8, 11], 2), (vec![12, 13, 0, 12], 2)]);
        assert_eq!(batches[0].index, [1000, 1002, 1003, 1000]);
        assert_eq!(batches[0].labels[0].to_vec::<f32>().unwrap(), [0., -2., -3., 0.]);
        let Faults { skipped, first } = loader.faults();
        assert_eq!((*skipped, first.len()), (7, if policy == OnError::Count { 7 } else { 0 }));
    }
}

#[test]
fn parts_share_out_all_examples() {
    for (count, parts) in [(17, 4), (16, 4), (5, 3)] {
        let part = |i: usize| Loader::of(numbers(count), 1).part(i, parts).threads(1).build().unwrap();
        let mut seen: Vec<i64> = (0..parts).flat_map(|i| all(&mut part(i), 1)).flat_map(|b| ids(&b)).collect();
        seen.sort();
        assert_eq!(seen, (0..count as i64).collect::<Vec<_>>());
    }
    let equal = |i: usize| Loader::of(numbers(17), 2).part(i, 4).equal_parts().threads(1).build().unwrap();
    let lengths: Vec<(usize, usize)> =
        (0..4).map(|i| all(&mut equal(i), 1)).map(|b| (b.len(), b.iter().map(Batch::examples).sum())).collect();
    assert_eq!(lengths, [(3, 5), (3, 5), (3, 5), (3, 2)]);
    assert!(Loader::of(numbers(17), 2).part(4, 4).build().is_err());
}

#[test]
fn no_more_batches_are_begun_than_asked_for() {
    let dataset = numbers(1000);
    let read = dataset.read.clone();
    let mut loader = Loader::of(dataset, 10).threads(2).prefetch(3).build().unwrap();
    for taken in 1..5 {
        loader.next().unwrap();
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(read.load(Ordering::Relaxed), 10 * (taken + 3), "batches taken and three more");
    }
    loader.seek(Position::new(0, 50)).unwrap();
    assert_eq!(ids(&loader.next().unwrap().unwrap())[0], 500);
}

#[test]
fn batches_lie_in_memory_that_is_used_again() {
    let mut loader = Loader::of(numbers(4000), 10).threads(2).prefetch(2).build().unwrap();
    let mut addresses = std::collections::BTreeSet::new();
    for batch in epoch(&mut loader) {
        addresses.insert(batch.unwrap().data[0].bytes().as_ptr() as usize);
    }
    assert!(addresses.len() <= 8, "{} buffers for 400 batches", addresses.len());
}

/// A source whose numbers of examples panic.
struct Unnumbered(Numbers);

impl Dataset for Unnumbered {
    fn name(&self) -> String {
        self.0.name()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn data(&self) -> &[DataDesc] {
        self.0.data()
    }

    fn labels(&self) -> &[DataDesc] {
        self.0.labels()
    }

    fn id(&self, index: usize) -> u64 {
        [7, 8, 9, 10][index]
    }

    fn read(&self, sample: Sample, data: &mut [TensorMut<'_>], labels: &mut [TensorMut<'_>]) -> Result<(), DataError> {
        self.0.read(sample, data, labels)
    }
}

#[test]
fn a_panic_anywhere_in_a_source_is_an_error_of_its_batch() {
    let mut loader = Loader::of(Unnumbered(numbers(8)), 4).threads(2).build().unwrap();
    assert_eq!(loader.next().unwrap().unwrap().index, [7, 8, 9, 10]);
    let error = loader.next().unwrap_err().to_string();
    assert!(error.starts_with("a source of examples: panic while reading an example: index out of bounds"), "{error}");
}

#[test]
fn loaders_can_be_used_on_threads_that_read_for_them() {
    use rayon::prelude::*;
    let mut loaders: Vec<Loader> = (0..16).map(|_| Loader::of(numbers(40), 4).build().unwrap()).collect();
    let seen: Vec<Vec<i64>> =
        loaders.par_iter_mut().map(|loader| epoch(loader).flat_map(|batch| ids(&batch.unwrap())).collect()).collect();
    assert!(seen.iter().all(|ids| *ids == (0..40).collect::<Vec<_>>()));
}

#[test]
fn sizes_and_positions_out_of_range_are_errors() {
    let message = |builder: LoaderBuilder| builder.build().err().unwrap().to_string();
    assert_eq!(
        message(Loader::of(numbers(5), 1 << 30)),
        "numbers: 4 batches of 1073741824 examples are too many at once"
    );
    assert!(message(Loader::of(numbers(5), 1).prefetch(usize::MAX)).ends_with("are too many at once"));
    let blocks = |ends: &[u32]| Loader::of(numbers(5), 1).shuffle(Shuffle::Blocks { seed: 1, ends: ends.into() });
    for ends in [&[4][..], &[], &[3, 2, 5], &[2, 6]] {
        assert!(message(blocks(ends)).starts_with("numbers: blocks that end at"), "{ends:?}");
    }
    assert!(blocks(&[2, 2, 5]).build().is_ok());
    let mut loader = Loader::of(numbers(5), 1).build().unwrap();
    let error = loader.seek("18446744073709551615:0".parse().unwrap()).unwrap_err().to_string();
    assert_eq!(error, "numbers: there is no epoch 18446744073709551615");
}
