//! Groups of threads: the contract of transports, faults, and delays that depend on a seed.

use std::thread;

use crate::support::{check, content, wait};
use bytes::Bytes;
use proptest::prelude::*;
use tensorc_kvstore::transport::threads::{ThreadTransport, group, group_with_delays};
use tensorc_kvstore::transport::{ReceiveId, Received, Tag, Transport, TransportError};

fn run(group: Vec<ThreadTransport>) {
    let threads: Vec<_> = group
        .into_iter()
        .map(|mut t| {
            thread::spawn(move || {
                check(&mut t);
                t.close(true);
                assert_eq!(t.send(0, 0, Bytes::new()), Err(TransportError::Closed { rank: t.rank() }));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn groups_of_threads_keep_the_contract() {
    assert!(group(0).is_empty());
    (1..=4).for_each(|size| run(group(size)));
}

#[test]
fn groups_with_delays_keep_the_contract() {
    (1..=4).for_each(|size| run(group_with_delays(size, 11 * size as u64)));
}

/// Ranks 0 and 1, the latter with a receive begun.
fn pair() -> (ThreadTransport, ThreadTransport, ReceiveId) {
    let mut ranks = group(2);
    let (mut b, a) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let id = b.receive(0, 1, vec![0; 4]).unwrap();
    (a, b, id)
}

fn poll(t: &mut ThreadTransport) -> Vec<(ReceiveId, Vec<u8>)> {
    let mut received = vec![];
    t.poll(&mut received).unwrap();
    received.into_iter().map(|r| (r.id, r.bytes)).collect()
}

#[test]
fn a_send_ends_when_its_message_is_taken() {
    let (mut a, mut b, id) = pair();
    a.send(1, 1, Bytes::from_static(b"one")).unwrap();
    assert_eq!(a.unsent(), 1);
    assert_eq!(poll(&mut a), []);
    assert_eq!(poll(&mut b), [(id, b"one".to_vec())]);
    assert_eq!(a.unsent(), 0);
}

#[test]
fn a_silent_rank_neither_sends_nor_takes() {
    let (mut a, mut b, id) = pair();
    let back = a.receive(1, 2, vec![0; 4]).unwrap();
    b.send(0, 2, Bytes::from_static(b"back")).unwrap();
    a.send(1, 1, Bytes::from_static(b"1")).unwrap();
    let fault = a.fault();
    fault.silence();
    fault.silence();
    a.send(1, 1, Bytes::from_static(b"2")).unwrap();
    a.send(1, 1, Bytes::from_static(b"3")).unwrap();
    assert_eq!((poll(&mut a), a.unsent(), b.unsent()), (vec![], 3, 1));
    let more: Vec<_> = (0..2).map(|_| b.receive(0, 1, vec![0; 4]).unwrap()).collect();
    assert_eq!(poll(&mut b), [(id, b"1".to_vec())], "what was sent before arrives");
    fault.resume();
    assert_eq!(poll(&mut b), [(more[0], b"2".to_vec()), (more[1], b"3".to_vec())]);
    assert_eq!(poll(&mut a), [(back, b"back".to_vec())]);
    assert_eq!((a.unsent(), b.unsent()), (0, 0));
}

#[test]
fn a_rank_that_was_cut_off_stays_so() {
    let (mut a, mut b, id) = pair();
    let (fault, closed) = (a.fault(), Err(TransportError::Closed { rank: 0 }));
    a.send(1, 1, Bytes::from_static(b"1")).unwrap();
    fault.silence();
    a.send(1, 1, Bytes::from_static(b"2")).unwrap();
    b.receive(0, 1, vec![0; 4]).unwrap();
    fault.cut();
    fault.resume();
    assert_eq!(poll(&mut b), [(id, b"1".to_vec())]);
    assert_eq!(poll(&mut b), [], "what was held back is lost");
    assert_eq!(a.send(1, 1, Bytes::new()), closed);
    assert_eq!(a.poll(&mut vec![]), closed);
    assert_eq!(a.receive(1, 1, vec![]), Err(TransportError::Closed { rank: 0 }));
    b.send(0, 1, Bytes::new()).unwrap();
    assert_eq!((poll(&mut b), b.unsent()), (vec![], 1), "a send to it never ends");
}

#[test]
fn a_dropped_rank_takes_nothing_more() {
    let (mut a, b, _) = pair();
    drop(b);
    a.send(1, 1, Bytes::new()).unwrap();
    assert_eq!((poll(&mut a), a.unsent()), (vec![], 1));
}

/// Messages of one try: sender (of ranks 1 and 2), tag and length.
type Messages = Vec<(usize, Tag, usize)>;

/// Rank 0 receives the messages; in which order, as indices into them.
fn order(seed: Option<u64>, messages: &Messages) -> Vec<usize> {
    let mut ranks = seed.map_or_else(|| group(3), |seed| group_with_delays(3, seed));
    for (number, &(from, tag, length)) in messages.iter().enumerate() {
        ranks[from].send(0, tag, content(from, 0, tag, number, length).into()).unwrap();
    }
    let to = &mut ranks[0];
    let ids: Vec<_> = messages.iter().map(|&(from, tag, _)| to.receive(from, tag, vec![0; 300]).unwrap()).collect();
    let mut received: Vec<Received> = vec![];
    while received.len() < messages.len() {
        to.poll(&mut received).unwrap();
    }
    let ended: Vec<usize> = received.iter().map(|r| ids.iter().position(|id| *id == r.id).unwrap()).collect();
    for (received, &number) in received.iter().zip(&ended) {
        let (from, tag, length) = messages[number];
        assert_eq!(received.bytes, content(from, 0, tag, number, length));
    }
    assert!(ranks.iter().all(|rank| rank.unsent() == 0));
    ended
}

fn messages() -> impl Strategy<Value = Messages> {
    prop::collection::vec((1usize..3, 0u16..4, 0usize..300), 0..60)
}

proptest! {
    #[test]
    fn delays_follow_the_seed_and_keep_the_order_of_each_sender_and_tag(messages in messages(), seed in any::<u64>()) {
        let ended = order(Some(seed), &messages);
        prop_assert_eq!(&ended, &order(Some(seed), &messages));
        for sender in 1..3 {
            for tag in 0..4 {
                let of = |number: &&usize| (messages[**number].0, messages[**number].1) == (sender, tag);
                prop_assert!(ended.iter().filter(of).is_sorted());
            }
        }
        prop_assert_eq!(order(None, &messages).len(), messages.len());
    }

    #[test]
    fn faults_lose_nothing_until_a_cut(actions in prop::collection::vec((0u8..4, 0u16..3), 1..80)) {
        let mut ranks = group_with_delays(2, 5);
        let (mut b, mut a) = (ranks.pop().unwrap(), ranks.pop().unwrap());
        let fault = a.fault();
        let mut sent = vec![];
        for (number, (action, tag)) in actions.into_iter().enumerate() {
            match action {
                0 => fault.silence(),
                1 => fault.resume(),
                2 => prop_assert_eq!(poll(&mut b), []),
                _ => {
                    a.send(1, tag, content(0, 1, tag, number, number).into()).unwrap();
                    sent.push((tag, number));
                }
            }
        }
        fault.resume();
        let mut wanted = vec![];
        for (tag, number) in sent {
            wanted.push((b.receive(0, tag, vec![0; 80]).unwrap(), content(0, 1, tag, number, number)));
        }
        let (received, errors) = wait(&mut b, wanted.len());
        prop_assert_eq!(errors, []);
        let received: Vec<_> = received.into_iter().map(|r| (r.id, r.bytes)).collect();
        prop_assert_eq!(received, wanted);
        prop_assert_eq!(a.unsent(), 0);
    }
}

#[test]
fn seeds_give_different_orders() {
    let messages: Messages = (0..24).map(|n| (1 + n % 2, (n / 2 % 4) as Tag, n)).collect();
    let orders: std::collections::BTreeSet<_> = (0..20).map(|seed| order(Some(seed), &messages)).collect();
    assert!(orders.len() > 15, "{} orders of 20 seeds", orders.len());
}
