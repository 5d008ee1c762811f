//! Groups of ranks that are threads: results, random schedules, and errors instead of hangs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use tensorc_kvstore::transport::threads::{self, Fault, ThreadTransport};
use tensorc_kvstore::{CollectiveCall, Group, GroupError, GroupOptions, tree};
use tensorc_runtime::DType;

const DEADLINE: Duration = Duration::from_millis(400);

fn joined(transports: Vec<ThreadTransport>, deadline: Duration) -> Vec<Group> {
    let join = |transport: ThreadTransport| {
        let options = GroupOptions { deadline, ..GroupOptions::default() };
        Group::join(move || Ok(Box::new(transport)), options).unwrap()
    };
    transports.into_iter().map(join).collect()
}

fn groups(size: usize) -> Vec<Group> {
    joined(threads::group(size), Duration::from_secs(20))
}

/// Groups with a short deadline, and what makes their ranks fail.
fn fragile(size: usize) -> (Vec<Group>, Vec<Fault>) {
    let transports = threads::group(size);
    let faults = transports.iter().map(ThreadTransport::fault).collect();
    (joined(transports, DEADLINE), faults)
}

/// Runs a program on every rank, each on its own thread.
fn on_all<T: Send>(groups: &[Group], program: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let program = &program;
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(move || program(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn floats(bytes: &[Bytes]) -> Vec<f32> {
    let all: Vec<u8> = bytes.iter().flatten().copied().collect();
    all.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

fn bytes(values: impl IntoIterator<Item = f32>) -> Bytes {
    values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>().into()
}

/// A value whose sums depend on their order.
fn value(leaf: u32, at: usize) -> f32 {
    (((leaf as usize * 7919 + at * 31) % 1009) as f32 - 504.0) / 7.0
}

/// What a rank contributes of an array whose leaves have these values.
fn parts(rank: usize, ranks: usize, leaves: u32, count: usize) -> Vec<Bytes> {
    let (all, begin) = (leaves * ranks as u32, rank as u32 * leaves);
    let sum = |range: std::ops::Range<u32>, at: usize| {
        let mut own = tree::Accumulator::new(all, range.clone());
        for leaf in range {
            let add = |left: &mut f32, right: f32| {
                *left += right;
                Ok::<(), ()>(())
            };
            own.push(value(leaf, at), add).unwrap();
        }
        own.into_parts()[0].1
    };
    let subtrees = tree::subtrees(all, begin, begin + leaves).into_iter();
    subtrees.map(|range| bytes((0..count).map(|at| sum(range.clone(), at)))).collect()
}

fn expected(leaves: u32, count: usize) -> Vec<f32> {
    let one = |at: usize| {
        let all = (0..leaves).map(|leaf| (leaf..leaf + 1, value(leaf, at))).collect();
        tree::combine(leaves, all, &mut |a, b| Ok(a + b)).unwrap()
    };
    (0..count).map(one).collect()
}

#[test]
fn sums_are_those_of_the_tree_for_any_number_of_ranks() {
    for ranks in 1..=5usize {
        let groups = groups(ranks);
        for (leaves, count) in [(1, 1), (1, 5000), (2, 100_003), (3, 2048), (4, 0), (6, 77)] {
            let expected = expected(leaves * ranks as u32, count);
            let found = on_all(&groups, |group| {
                let call = CollectiveCall::sum("x", DType::F32, count as u64, leaves);
                floats(&group.wait(call, parts(group.rank(), ranks, leaves, count)).unwrap())
            });
            found.iter().for_each(|found| assert_eq!(*found, expected, "{ranks} ranks, {leaves} leaves, {count}"));
        }
        on_all(&groups, |group| group.close().unwrap());
    }
}

#[test]
fn bytes_are_gathered_and_broadcast() {
    let groups = groups(4);
    on_all(&groups, |group| {
        let rank = group.rank();
        let all = group.gather("sizes", vec![rank as u8; rank * 1000]).unwrap();
        (0..4).for_each(|r| assert_eq!(all[r], vec![r as u8; r * 1000]));
        for root in 0..4u32 {
            let own = if rank == root as usize { vec![bytes((0..3000).map(|at| value(root, at)))] } else { vec![] };
            let found = group.wait(CollectiveCall::broadcast("w", root, DType::F32, 3000), own).unwrap();
            assert_eq!(floats(&found), (0..3000).map(|at| value(root, at)).collect::<Vec<_>>());
        }
        group.barrier("end").unwrap();
        group.close().unwrap();
    });
}

/// Starts several sums in an order of each rank's own; they end, and with the right results.
fn in_any_order(ranks: usize, seed: u64, calls: usize) {
    let groups = joined(threads::group_with_delays(ranks, seed), Duration::from_secs(20));
    on_all(&groups, |group| {
        let count = |call: usize| call * 977 % 5000;
        let tickets = (0..calls).map(|call| {
            let priority = (call * 7 % 3) as i32;
            (call, group.reserve(CollectiveCall::sum(format!("x{call}"), DType::F32, count(call) as u64, 1), priority))
        });
        let mut tickets: Vec<_> = tickets.collect();
        let mut random = seed ^ (group.rank() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut results: Vec<(usize, Receiver<_>)> = vec![];
        while !tickets.is_empty() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (call, ticket) = tickets.swap_remove((random >> 33) as usize % tickets.len());
            let (tell, told) = channel();
            let own = parts(group.rank(), ranks, 1, count(call));
            ticket.start(own, Box::new(move |result| tell.send(result).unwrap()));
            results.push((call, told));
        }
        for (call, told) in results {
            assert_eq!(floats(&told.recv().unwrap().unwrap()), expected(ranks as u32, count(call)));
        }
        group.close().unwrap();
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_starts_and_messages_ends_well(ranks in 2usize..5, seed in any::<u64>(), calls in 1usize..12) {
        in_any_order(ranks, seed, calls);
    }
}

/// Every rank's error, and how long the slowest took.
fn errors(groups: &[Group], program: impl Fn(&Group) -> Result<(), GroupError> + Sync) -> (Vec<GroupError>, Duration) {
    let began = Instant::now();
    let errors = on_all(groups, |group| program(group).unwrap_err());
    (errors, began.elapsed())
}

fn sum(group: &Group, key: &str, count: usize) -> Result<(), GroupError> {
    let call = CollectiveCall::sum(key, DType::F32, count as u64, 1);
    group.wait(call, parts(group.rank(), group.size(), 1, count)).map(drop)
}

#[test]
fn other_calls_at_the_same_place_are_errors_on_every_rank() {
    let (groups, _) = fragile(3);
    let (errors, took) = errors(&groups, |group| {
        sum(group, "a", 10)?;
        sum(group, "w", if group.rank() == 1 { 90 } else { 100 })
    });
    for error in &errors {
        let text = error.to_string();
        assert!(text.contains("collective 1") && text.contains("f32 × 100") && text.contains("f32 × 90"), "{text}");
    }
    assert!(took < DEADLINE, "it is not waited for");
    // The first error stays.
    assert!(sum(&groups[0], "z", 1).is_err());
    assert!(groups[2].failure().is_some());
}

#[test]
fn a_rank_with_one_call_more_is_an_error_on_every_rank() {
    for closes_first in [true, false] {
        let (groups, _) = fragile(3);
        let (errors, _) = errors(&groups, |group| {
            sum(group, "a", 10)?;
            if group.rank() == 2 {
                std::thread::sleep(Duration::from_millis(if closes_first { 50 } else { 0 }));
                return sum(group, "b", 10);
            }
            std::thread::sleep(Duration::from_millis(if closes_first { 0 } else { 50 }));
            group.close()
        });
        for error in &errors {
            let text = error.to_string();
            assert!(text.contains("rank 2 calls sum of `b`") && text.contains("has left"), "{text}");
        }
    }
}

#[test]
fn a_rank_that_stops_or_dies_is_an_error_within_the_deadline() {
    for dies in [false, true] {
        let (groups, faults) = fragile(4);
        let began = Instant::now();
        let survivors = on_all(&groups, |group| {
            for step in 0.. {
                if group.rank() == 3 && step == 5 {
                    if dies { faults[3].cut() } else { faults[3].silence() }
                }
                if let Err(error) = sum(group, &format!("step {step}"), 3000) {
                    return error;
                }
            }
            unreachable!()
        });
        assert!(began.elapsed() < 3 * DEADLINE);
        for error in &survivors[..3] {
            let text = error.to_string();
            assert!(text.contains("step 5") && text.contains("rank 3"), "{text}");
        }
    }
}

#[test]
fn what_a_rank_could_not_compute_reaches_all() {
    let (groups, _) = fragile(3);
    let (errors, took) = errors(&groups, |group| {
        let ticket = group.reserve(CollectiveCall::sum("w", DType::F32, 4, 1), 0);
        if group.rank() == 1 {
            drop(ticket.or_because(Box::new(|| "operator `softmax` of node `out`: no more paper".into())));
            return group.close();
        }
        let (tell, told) = channel();
        ticket.start(parts(group.rank(), 3, 1, 4), Box::new(move |result| tell.send(result).unwrap()));
        told.recv().unwrap().map(drop)
    });
    for error in &errors {
        let text = error.to_string();
        assert!(text.contains("rank 1 cannot take part: operator `softmax` of node `out`: no more paper"), "{text}");
    }
    assert!(took < DEADLINE);
}

#[test]
fn a_group_that_is_dropped_does_not_keep_the_others() {
    let (mut groups, _) = fragile(2);
    drop(groups.pop());
    let error = sum(&groups[0], "w", 4).unwrap_err();
    assert!(matches!(error, GroupError::Reported { rank: 1, .. }), "{error}");
}

/// Questions are answered in order, also one's own, and what cannot be answered is an error on every rank.
#[test]
fn questions_are_answered_in_order() {
    let groups = groups(3);
    on_all(&groups, |group| {
        let (rank, mut count) = (group.rank() as u64, [0u64; 3]);
        group.serve(Box::new(move |request| {
            let from = request.from;
            count[from] += 1;
            let [subject, detail] = [request.subject, request.detail].map(u64::to_le_bytes);
            let head = [rank.to_le_bytes(), count[from].to_le_bytes(), subject, detail].concat();
            request.reply.send(Ok([&head[..], &request.data].concat().into()));
        }));
        let mut answers = vec![];
        for at in 0..30u64 {
            let (to, (tell, told)) = (at as usize % 3, channel());
            let data = vec![at as u8; at as usize * 400];
            group.ask(to, at, rank, data.into(), Box::new(move |answer| tell.send(answer).unwrap()));
            answers.push(told);
        }
        for (at, told) in (0..30u64).zip(answers) {
            let answer = told.recv().unwrap().unwrap();
            let head = [at % 3, at / 3 + 1, at, rank].map(u64::to_le_bytes).concat();
            assert_eq!(answer, [&head[..], &vec![at as u8; at as usize * 400]].concat());
        }
        group.close().unwrap();
    });
    let (groups, _) = fragile(2);
    let (errors, _) = errors(&groups, |group| {
        group.serve(Box::new(|request| request.reply.send(Err("no such value".into()))));
        let (tell, told) = channel();
        let answer = Box::new(move |answer: Result<Bytes, GroupError>| tell.send(answer).unwrap());
        if group.rank() == 1 {
            return group.close();
        }
        group.ask(1, 0, 0, Bytes::new(), answer);
        told.recv().unwrap().map(drop)
    });
    for error in &errors {
        let text = error.to_string();
        assert!(text.contains("rank 1 cannot serve rank 0: no such value"), "{text}");
    }
}

#[test]
fn memory_of_messages_is_used_again() {
    let groups = groups(3);
    on_all(&groups, |group| {
        let mut addresses = std::collections::BTreeSet::new();
        for _ in 0..20 {
            let mut message = group.buffers().take(4 * 9000).unwrap();
            addresses.insert(message.as_ptr().addr());
            message.fill(0);
            group.wait(CollectiveCall::sum("w", DType::F32, 9000, 1), vec![message.into()]).unwrap();
            group.barrier("sent").unwrap();
        }
        // A message may still be held where it was sent when the next is taken.
        assert!(addresses.len() < 10, "{addresses:?}");
        group.close().unwrap();
    });
}

/// A contribution of another length, or none, is an error on every rank, and the group can be closed.
#[test]
fn contributions_that_do_not_fit_are_errors_on_every_rank() {
    for wrong in [vec![], vec![bytes([1.0])], vec![bytes([1.0, 2.0]), bytes([1.0, 2.0])]] {
        let groups = groups(2);
        let errors = on_all(&groups, |group| {
            let own = if group.rank() == 1 { wrong.clone() } else { vec![bytes([1.0, 2.0])] };
            group.wait(CollectiveCall::sum("w", DType::F32, 2, 1), own).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| error.contains("it takes")), "{errors:?}");
        on_all(&groups, |group| drop(group.close()));
    }
}
