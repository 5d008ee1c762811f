//! Iterators made of others: what they give, errors that pass through them, and resuming at every position.

use tensorc_abi::DType;
use tensorc_data::iter::adapt::{Cast, Prefetch, Resize, Shard, ShuffleBuffer, SplitRows, Zip};
use tensorc_data::iter::epoch;
use tensorc_data::{Batch, Batches, DataDesc, DataError, DataIter, HostTensor, LastBatch, Position};

/// Batches of 3 of `n` numbers.
fn numbers(name: &str, n: usize) -> Batches {
    let x = HostTensor::from_slice(&[n as u64], &(0..n as i32).collect::<Vec<_>>()).unwrap();
    Batches::new([(name, x)], [], 3).unwrap()
}

fn values(batch: &Batch) -> Vec<i32> {
    batch.data[0].to_vec().unwrap()
}

/// The batches of some epochs with the position behind each.
fn run(iter: &mut dyn DataIter, epochs: u64) -> Vec<(Position, Batch)> {
    let end = iter.position().epoch + epochs;
    let mut all = vec![];
    while iter.position().epoch < end {
        match iter.next().unwrap() {
            Some(batch) => all.push((iter.position(), batch)),
            None => {
                assert_eq!(iter.next().unwrap(), None, "the end is given until a reset");
                iter.reset().unwrap();
            }
        }
    }
    all
}

/// What follows after going to a position is what followed it in a run from the beginning; positions count batches.
fn resumes(make: &dyn Fn() -> Box<dyn DataIter>) {
    let all = run(&mut make(), 3);
    let mut expected = Position::default();
    for (after, _) in &all {
        let next = Position::new(expected.epoch, expected.batch + 1);
        assert!(*after == next || *after == Position::new(expected.epoch + 1, 1), "{after} behind {expected}");
        expected = *after;
    }
    for at in all.iter().map(|(after, _)| *after).chain([Position::default(), Position::new(1, 0)]) {
        let mut resumed = make();
        resumed.next().unwrap();
        resumed.seek(at).unwrap();
        assert_eq!(resumed.position(), at);
        let rest: Vec<_> = all.iter().filter(|(after, _)| *after > at).cloned().collect();
        assert_eq!(run(&mut resumed, 3 - at.epoch), rest, "from {at}");
    }
    // A reset in the middle of an epoch.
    let mut left = make();
    left.next().unwrap();
    left.reset().unwrap();
    let second: Vec<_> = all.iter().filter(|(after, _)| after.epoch == 1).cloned().collect();
    assert_eq!(run(&mut left, 1), second);
}

#[test]
fn every_adapter_resumes_anywhere() {
    let shuffled = || numbers("x", 11).shuffle(3);
    let rolling = || numbers("x", 11).shuffle(3).last(LastBatch::RollOver);
    resumes(&|| Box::new(shuffled()));
    resumes(&|| Box::new(Prefetch::new(shuffled(), 2)));
    resumes(&|| Box::new(Prefetch::new(rolling(), 1)));
    resumes(&|| Box::new(Resize::new(shuffled(), 6)));
    resumes(&|| Box::new(Resize::new(shuffled(), 2)));
    resumes(&|| Box::new(Resize::new(rolling(), 5)));
    resumes(&|| Box::new(Resize::new(shuffled(), 2).restarting()));
    resumes(&|| Box::new(Resize::new(shuffled(), 6).restarting()));
    resumes(&|| Box::new(Shard::new(shuffled(), 1, 2).unwrap()));
    resumes(&|| Box::new(SplitRows::new(shuffled(), 2, 3).unwrap()));
    resumes(&|| Box::new(ShuffleBuffer::new(shuffled(), 5, 9)));
    resumes(&|| Box::new(Cast::data(shuffled(), DType::F16)));
    resumes(&|| Box::new(Zip::new(vec![Box::new(shuffled()), Box::new(numbers("y", 11))]).unwrap()));
    resumes(&|| Box::new(Prefetch::new(ShuffleBuffer::new(Resize::new(shuffled(), 3), 4, 1), 3)));
}

#[test]
fn resize_goes_on_where_it_was() {
    let of = |resize: &mut Resize<Batches>| -> Vec<Vec<i32>> {
        epoch(resize).map(|batch| values(&batch.unwrap())).collect()
    };
    let mut on = Resize::new(numbers("x", 9), 2);
    assert_eq!(of(&mut on), [[0, 1, 2], [3, 4, 5]]);
    assert_eq!(of(&mut on), [[6, 7, 8], [0, 1, 2]]);
    let mut again = Resize::new(numbers("x", 9), 2).restarting();
    assert_eq!([of(&mut again), of(&mut again)].concat(), [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5]]);
}

#[test]
fn shards_are_disjoint_and_of_equal_length() {
    for ranks in 1..5 {
        let mut shards: Vec<_> = (0..ranks).map(|r| Shard::new(numbers("x", 24), r, ranks).unwrap()).collect();
        let parts: Vec<Vec<i32>> =
            shards.iter_mut().map(|s| epoch(s).flat_map(|b| values(&b.unwrap())).collect()).collect();
        assert!(parts.iter().all(|part| part.len() == parts[0].len()));
        let mut seen = parts.concat();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 8 / ranks as usize * ranks as usize * 3);
    }
    assert!(Shard::new(numbers("x", 24), 2, 2).is_err());
}

/// The ranks' batches, concatenated, equal the source's batches: rows, example numbers and padding.
#[test]
fn split_batches_make_up_the_whole() {
    let make = || {
        let x = HostTensor::from_slice(&[10, 2], &(0..20).collect::<Vec<i32>>()).unwrap();
        let y = HostTensor::from_slice(&[10], &(0..10).collect::<Vec<i32>>()).unwrap();
        Batches::new([("x", x)], [("y", y)], 6).unwrap().shuffle(5)
    };
    for ranks in [1, 2, 3, 6] {
        let mut splits: Vec<_> = (0..ranks).map(|rank| SplitRows::new(make(), rank, ranks).unwrap()).collect();
        let rows = 6 / ranks;
        assert_eq!(splits[0].provide_data(), [DataDesc::new("x", DType::I32, &[rows, 2])]);
        assert_eq!(splits[0].provide_label(), [DataDesc::new("y", DType::I32, &[rows])]);
        assert_eq!((splits[0].batch_size() as u64, splits[0].batches()), (rows, Some(2)));
        let mut whole = make();
        for expected in epoch(&mut whole).map(Result::unwrap) {
            let parts: Vec<Batch> = splits.iter_mut().map(|split| split.next().unwrap().unwrap()).collect();
            let joined = |of: fn(&Batch) -> &HostTensor| -> Vec<i32> {
                parts.iter().flat_map(|part| of(part).to_vec::<i32>().unwrap()).collect()
            };
            assert_eq!(joined(|batch| &batch.data[0]), expected.data[0].to_vec::<i32>().unwrap());
            assert_eq!(joined(|batch| &batch.labels[0]), expected.labels[0].to_vec::<i32>().unwrap());
            assert_eq!(parts.iter().flat_map(|part| part.index.clone()).collect::<Vec<_>>(), expected.index);
            // What fills up is at the end: the ranks before have none of it.
            let counted: Vec<usize> = parts.iter().map(Batch::examples).collect();
            let expected: Vec<usize> = (0..ranks)
                .map(|rank| expected.examples().saturating_sub((rank * rows) as usize).min(rows as usize))
                .collect();
            assert_eq!(counted, expected);
        }
        assert!(splits.iter_mut().all(|split| split.next().unwrap().is_none()));
    }
    let refused = |rank, count| SplitRows::new(make(), rank, count).err().unwrap().to_string();
    assert_eq!(refused(2, 2), "split: rank 2 is out of range for 2 ranks");
    assert_eq!(refused(0, 0), "split: rank 0 is out of range for 0 ranks");
    assert_eq!(refused(0, 4), "split: `x` has 6 rows, which cannot be shared out evenly to 4 ranks");
}

#[test]
fn a_shuffle_buffer_gives_every_example_once() {
    let mut shuffled = ShuffleBuffer::new(numbers("x", 50), 16, 4);
    let mut epochs = vec![];
    for _ in 0..2 {
        let batches: Vec<Batch> = epoch(&mut shuffled).map(Result::unwrap).collect();
        assert_eq!((batches.len(), batches[16].pad), (17, 1));
        let order: Vec<i32> = batches.iter().flat_map(|b| values(b)[..b.examples()].to_vec()).collect();
        assert!(order.iter().enumerate().all(|(at, x)| *x < at as i32 + 19), "no example comes before it is read");
        let mut sorted = order.clone();
        sorted.sort();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
        epochs.push(order);
    }
    assert_ne!(epochs[0], epochs[1]);
}

#[test]
fn zipped_sources_stay_in_step() {
    let mut zip = Zip::new(vec![Box::new(numbers("x", 6)), Box::new(numbers("y", 6))]).unwrap();
    assert_eq!(zip.provide_data()[1], DataDesc::new("y", DType::I32, &[3]));
    let batch = zip.next().unwrap().unwrap();
    assert_eq!(batch.data[0], batch.data[1]);
    let mut uneven = Zip::new(vec![Box::new(numbers("x", 6)), Box::new(numbers("y", 9))]).unwrap();
    uneven.next().unwrap();
    uneven.next().unwrap();
    let error = uneven.next().unwrap_err().to_string();
    assert!(error.starts_with("zip: sources have epochs of different lengths"), "{error}");
    let same = Zip::new(vec![Box::new(numbers("x", 6)), Box::new(numbers("x", 6))]);
    assert_eq!(same.err().unwrap().to_string(), "zip: two arrays are called `x`");
}

#[test]
fn casts_announce_what_they_give() {
    let mut cast = Cast::data(numbers("x", 6), DType::F32);
    assert_eq!(cast.provide_data(), [DataDesc::new("x", DType::F32, &[3])]);
    assert_eq!(cast.next().unwrap().unwrap().data[0].to_vec::<f32>().unwrap(), [0., 1., 2.]);
}

/// Fails at some batches, and panics at one.
struct Faulty {
    inner: Batches,
    panics: bool,
}

impl DataIter for Faulty {
    fn provide_data(&self) -> &[DataDesc] {
        self.inner.provide_data()
    }

    fn provide_label(&self) -> &[DataDesc] {
        self.inner.provide_label()
    }

    fn next(&mut self) -> Result<Option<Batch>, DataError> {
        let batch = self.inner.next();
        match self.inner.position().batch {
            2 => Err(DataError::options("faulty", "broken")),
            3 if self.panics => panic!("wild"),
            _ => batch,
        }
    }

    fn reset(&mut self) -> Result<(), DataError> {
        self.inner.reset()
    }

    fn position(&self) -> Position {
        self.inner.position()
    }

    fn seek(&mut self, position: Position) -> Result<(), DataError> {
        self.inner.seek(position)
    }

    fn batches(&self) -> Option<u64> {
        self.inner.batches()
    }
}

#[test]
fn errors_reach_the_caller_at_their_batch_and_the_rest_follows() {
    let mut ahead = Prefetch::new(Faulty { inner: numbers("x", 12), panics: false }, 3);
    for _ in 0..2 {
        assert_eq!(values(&ahead.next().unwrap().unwrap()), [0, 1, 2]);
        assert_eq!(ahead.next().unwrap_err().to_string(), "faulty: broken");
        assert_eq!(values(&ahead.next().unwrap().unwrap()), [6, 7, 8]);
        assert_eq!(values(&ahead.next().unwrap().unwrap()), [9, 10, 11]);
        assert_eq!(ahead.next().unwrap(), None);
        ahead.reset().unwrap();
    }
    let mut wild = Prefetch::new(Faulty { inner: numbers("x", 12), panics: true }, 3);
    let errors: Vec<String> = (0..4).filter_map(|_| wild.next().err()).map(|e| e.to_string()).collect();
    let panicked = "prefetch: panic while reading an example: the source panicked";
    assert_eq!(errors, ["faulty: broken", panicked, panicked]);
    assert!(wild.seek(Position::default()).is_err());
}

#[test]
fn a_position_that_is_none_changes_nothing() {
    let mut ahead = Prefetch::new(numbers("x", 12), 3);
    assert_eq!(values(&ahead.next().unwrap().unwrap()), [0, 1, 2]);
    assert!(ahead.seek(Position::new(0, 99)).is_err());
    assert_eq!(ahead.position(), Position::new(0, 1));
    assert_eq!(values(&ahead.next().unwrap().unwrap()), [3, 4, 5]);
    for position in [Position::new(u64::MAX, 1), Position::new(1 << 50, 0)] {
        assert!(Resize::new(numbers("x", 12), 1 << 40).seek(position).is_err());
        assert!(Resize::new(numbers("x", 12), 4).restarting().seek(position).is_err());
        assert!(Shard::new(numbers("x", 12), 0, 2).unwrap().seek(position).is_err());
    }
}

#[test]
fn a_run_with_errors_is_resumed_behind_them() {
    let make = || ShuffleBuffer::new(Faulty { inner: numbers("x", 30), panics: false }, 4, 7);
    let mut whole = make();
    let mut batches = vec![];
    loop {
        match whole.next() {
            Ok(Some(batch)) => batches.push((whole.position(), values(&batch))),
            Ok(None) => break,
            Err(error) => assert_eq!(error.to_string(), "faulty: broken"),
        }
    }
    assert_eq!(batches.len(), 9, "one batch of three was lost");
    for (at, (after, _)) in batches.iter().enumerate() {
        let mut resumed = make();
        resumed.seek(*after).unwrap();
        let rest: Vec<Vec<i32>> = std::iter::from_fn(|| resumed.next().unwrap()).map(|batch| values(&batch)).collect();
        let expected: Vec<Vec<i32>> = batches[at + 1..].iter().map(|(_, values)| values.clone()).collect();
        assert_eq!(rest, expected);
    }
}
