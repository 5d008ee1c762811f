//! What every transport keeps to, checked by all ranks of a group at once.

use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tensorc_kvstore::transport::{MAX_TAG, ReceiveId, Received, Tag, Transport, TransportError};

/// Longer than any check takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Bytes that tell the messages of one test from each other.
pub fn content(from: usize, to: usize, tag: Tag, number: usize, length: usize) -> Vec<u8> {
    let seed = from * 7919 + to * 104_729 + usize::from(tag) * 31 + number * 613;
    (0..length).map(|i| ((seed + i * 131 + i / 251) % 256) as u8).collect()
}

/// Polls until receives and errors are `count` together, and everything is sent.
pub fn wait(t: &mut dyn Transport, count: usize) -> (Vec<Received>, Vec<TransportError>) {
    let (mut received, mut errors, start) = (vec![], vec![], Instant::now());
    while received.len() + errors.len() < count || t.unsent() > 0 {
        errors.extend(t.poll(&mut received).err());
        let (now, unsent) = (received.len(), t.unsent());
        assert!(start.elapsed() < LIMIT, "rank {}: {now} of {count} received, {unsent} unsent", t.rank());
        thread::yield_now();
    }
    received.sort_by_key(|r| r.id);
    (received, errors)
}

/// As [`wait`], without errors, for these receives.
fn expect(t: &mut dyn Transport, wanted: &[(ReceiveId, Vec<u8>)]) {
    let (received, errors) = wait(t, wanted.len());
    assert_eq!(errors, [], "rank {}", t.rank());
    for (got, (id, bytes)) in received.iter().zip(wanted) {
        assert_eq!(got.id, *id, "rank {}", t.rank());
        let (length, wanted) = (got.bytes.len(), bytes.len());
        assert!(got.bytes == *bytes, "rank {}: {id:?} has other bytes, {length} of {wanted}", t.rank());
    }
}

/// Runs every check.
pub fn check(t: &mut dyn Transport) {
    all_pairs_in_order(t);
    sizes_to_the_next_rank(t);
    many_outstanding(t);
    truncated(t);
    refused(t);
    everyone(t);
}

/// Waits until every rank is here.
fn everyone(t: &mut dyn Transport) {
    let mut wanted = vec![];
    for rank in 0..t.size() {
        t.send(rank, MAX_TAG, Bytes::new()).unwrap();
        wanted.push((t.receive(rank, MAX_TAG, vec![]).unwrap(), vec![]));
    }
    expect(t, &wanted);
}

/// Every rank sends to every rank, by three tags that are received in another order than sent.
fn all_pairs_in_order(t: &mut dyn Transport) {
    let (me, count) = (t.rank(), 40);
    for number in 0..count {
        for to in 0..t.size() {
            for tag in [3, 1, 2] {
                t.send(to, tag, content(me, to, tag, number, number * 3).into()).unwrap();
            }
        }
    }
    let mut wanted = vec![];
    for from in (0..t.size()).rev() {
        for tag in [1, 2, 3] {
            for number in 0..count {
                let id = t.receive(from, tag, vec![0xee; count * 3]).unwrap();
                wanted.push((id, content(from, me, tag, number, number * 3)));
            }
        }
    }
    expect(t, &wanted);
    everyone(t);
}

/// Sizes around the limits where libraries change their protocol; the memory is sometimes longer.
fn sizes_to_the_next_rank(t: &mut dyn Transport) {
    let (me, size) = (t.rank(), t.size());
    let (next, last) = ((me + 1) % size, (me + size - 1) % size);
    let mut wanted = vec![];
    for (number, length) in
        [0, 1, 63, 4095, 4096, 4097, 65_535, 65_536, 262_145, 1 << 20, 10 << 20].into_iter().enumerate()
    {
        let id = t.receive(last, 9, vec![0; length + number % 3]).unwrap();
        wanted.push((id, content(last, me, 9, number, length)));
        t.send(next, 9, content(me, next, 9, number, length).into()).unwrap();
    }
    expect(t, &wanted);
    everyone(t);
}

/// More receives and sends at once than a library keeps in its first table, some of them long; a send before its receive
/// and after it.
fn many_outstanding(t: &mut dyn Transport) {
    let (me, size, count) = (t.rank(), t.size(), 600);
    let (next, last) = ((me + 1) % size, (me + size - 1) % size);
    let length = |number: usize| if number.is_multiple_of(50) { 100_000 } else { 1 + number % 97 };
    let tag = |number: usize| (number * 37 % count) as Tag;
    let mut wanted = vec![];
    for number in 0..count / 2 {
        wanted.push((number, t.receive(last, tag(number), vec![0; 100_000]).unwrap()));
    }
    for number in (0..count).rev() {
        t.send(next, tag(number), content(me, next, tag(number), number, length(number)).into()).unwrap();
    }
    for number in count / 2..count {
        wanted.push((number, t.receive(last, tag(number), vec![0; 100_000]).unwrap()));
    }
    let bytes = |number| content(last, me, tag(number), number, length(number));
    let wanted: Vec<_> = wanted.into_iter().map(|(number, id)| (id, bytes(number))).collect();
    expect(t, &wanted);
    everyone(t);
}

/// A message that is too long is an error of its receive alone.
fn truncated(t: &mut dyn Transport) {
    let (me, size) = (t.rank(), t.size());
    let (next, last) = ((me + 1) % size, (me + size - 1) % size);
    for long in [100, 1 << 20] {
        let ids: Vec<_> = [10, 99, 10].map(|room| t.receive(last, 5, vec![0; room]).unwrap()).into();
        for (number, length) in [10, long, 7].into_iter().enumerate() {
            t.send(next, 5, content(me, next, 5, number, length).into()).unwrap();
        }
        let (received, errors) = wait(t, 3);
        assert_eq!(errors, [TransportError::Truncated { from: last, tag: 5, expected: 99 }]);
        let got: Vec<_> = received.into_iter().map(|r| (r.id, r.bytes)).collect();
        assert_eq!(got, [(ids[0], content(last, me, 5, 0, 10)), (ids[2], content(last, me, 5, 2, 7))]);
        everyone(t);
    }
}

/// Ranks and tags that no group has.
fn refused(t: &mut dyn Transport) {
    let size = t.size();
    let no_rank = TransportError::NoRank { rank: size, size };
    let no_tag = TransportError::NoTag { tag: MAX_TAG + 1 };
    assert_eq!(t.send(size, 0, Bytes::new()), Err(no_rank.clone()));
    assert_eq!(t.receive(size, 0, vec![]), Err(no_rank));
    assert_eq!(t.send(0, MAX_TAG + 1, Bytes::new()), Err(no_tag.clone()));
    assert_eq!(t.receive(0, MAX_TAG + 1, vec![]), Err(no_tag));
    assert_eq!(t.unsent(), 0);
}
