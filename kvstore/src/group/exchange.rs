//! The part of a collective in which data move: what goes where, what is expected, and what comes of it.
//!
//! A sum of N ranks is a reduce-scatter and a gather: rank r receives the r-th part of every rank's arrays, adds them in
//! the order of the tree, and sends the result to all. Each rank sends and receives 2 (N − 1) / N of an array, which is the
//! least that an all-reduce can do. Short arrays are sent whole, and every rank adds them: between two ranks that is no more.

use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;

use super::call::{CallKind, CollectiveCall};
use super::message::CallHeader;
use crate::error::KvError;
use crate::tree;

/// Arrays of at most this many bytes are sent whole, one exchange instead of two, if a rank sends at most [`EXTRA`] more thereby.
const MAX_UNSPLIT_BYTES: u64 = 1 << 20;
const EXTRA: u64 = 64 << 10;

/// Shards begin at multiples of this many elements.
const SHARD_UNIT: u64 = 16;

/// What a message of data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataSlot {
    /// A rank's sum over one subtree, of the own shard.
    Contribution(usize),
    /// A rank's result.
    Result,
}

/// A message of data to expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub from: usize,
    pub slot: DataSlot,
    pub bytes: usize,
}

/// A message of data to send.
pub struct Outgoing {
    pub to: usize,
    pub slot: DataSlot,
    pub bytes: Bytes,
}

/// Data on their way. All ranks have come, and agree.
pub struct Exchange {
    pub began: Instant,
    /// Bytes of data that were sent.
    pub sent: u64,
    call: CollectiveCall,
    rank: usize,
    /// What each rank contributes: subtrees of the summation tree.
    subtrees: Vec<Vec<Range<u32>>>,
    /// Of the own shard: by rank, by part.
    contributions: Vec<Vec<Bytes>>,
    /// By rank; of a sum that is sent whole, the own one is all.
    results: Vec<Bytes>,
    expected: Vec<Expected>,
    reduced: bool,
}

impl Exchange {
    /// Begins to exchange the `parts` of this rank; appends what to send.
    pub fn begin(
        call: &CollectiveCall,
        headers: &[CallHeader],
        rank: usize,
        parts: &[Bytes],
        sends: &mut Vec<Outgoing>,
    ) -> Exchange {
        let leaves = call.leaves * headers.len() as u32;
        let subtrees =
            (0..headers.len() as u32).map(|r| tree::subtrees(leaves, r * call.leaves, (r + 1) * call.leaves));
        let mut exchange = Exchange {
            began: Instant::now(),
            sent: 0,
            call: call.clone(),
            rank,
            subtrees: subtrees.collect(),
            contributions: vec![],
            results: vec![Bytes::new(); headers.len()],
            expected: vec![],
            reduced: call.kind != CallKind::Sum,
        };
        match call.kind {
            CallKind::Sum => exchange.scatter(parts, sends),
            CallKind::Gather | CallKind::Broadcast { .. } | CallKind::Barrier => exchange.gather(headers, parts, sends),
        }
        exchange
    }

    fn ranks(&self) -> usize {
        self.results.len()
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.ranks()).filter(move |other| *other != rank)
    }

    fn is_whole(&self) -> bool {
        let (ranks, bytes) = (self.ranks() as u64, self.call.bytes());
        // N - 1 arrays instead of 2 (N - 1) / N.
        ranks == 1 || bytes <= MAX_UNSPLIT_BYTES && bytes * (ranks - 1) * (ranks - 2) <= EXTRA * ranks
    }

    /// The bytes of a rank's shard.
    fn shard(&self, rank: usize) -> Range<usize> {
        let (count, ranks) = (self.call.count, self.ranks() as u64);
        let bound = |r: u64| match r == ranks {
            true => count,
            false => (u128::from(count) * u128::from(r) / u128::from(ranks)) as u64 / SHARD_UNIT * SHARD_UNIT,
        };
        let range = if self.is_whole() { 0..count } else { bound(rank as u64)..bound(rank as u64 + 1) };
        let size = self.call.dtype.size();
        range.start as usize * size..range.end as usize * size
    }

    /// Sends every rank its shard of the parts.
    fn scatter(&mut self, parts: &[Bytes], sends: &mut Vec<Outgoing>) {
        let own = self.shard(self.rank);
        self.contributions = self.subtrees.iter().map(|of| vec![Bytes::new(); of.len()]).collect();
        self.contributions[self.rank] = parts.iter().map(|part| part.slice(own.clone())).collect();
        for other in self.others() {
            if !own.is_empty() {
                let expected = |at| Expected { from: other, slot: DataSlot::Contribution(at), bytes: own.len() };
                self.expected.extend((0..self.subtrees[other].len()).map(expected));
            }
            let shard = self.shard(other);
            if !shard.is_empty() {
                let part = |(at, part): (usize, &Bytes)| {
                    let bytes = part.slice(shard.clone());
                    Outgoing { to: other, slot: DataSlot::Contribution(at), bytes }
                };
                sends.extend(parts.iter().enumerate().map(part));
                if !self.is_whole() {
                    self.expected.push(Expected { from: other, slot: DataSlot::Result, bytes: shard.len() });
                }
            }
        }
    }

    /// Sends every rank what this one has.
    fn gather(&mut self, headers: &[CallHeader], parts: &[Bytes], sends: &mut Vec<Outgoing>) {
        let bytes = |from: usize| match self.call.kind {
            CallKind::Broadcast { root } if root as usize == from => self.call.bytes(),
            CallKind::Gather => headers[from].bytes,
            _ => 0,
        } as usize;
        for other in self.others().filter(|other| bytes(*other) > 0) {
            self.expected.push(Expected { from: other, slot: DataSlot::Result, bytes: bytes(other) });
        }
        if let Some(own) = parts.first().filter(|_| bytes(self.rank) > 0) {
            self.results[self.rank] = own.clone();
            self.send_result(sends);
        }
    }

    fn send_result(&self, sends: &mut Vec<Outgoing>) {
        let own = &self.results[self.rank];
        sends.extend(self.others().map(|to| Outgoing { to, slot: DataSlot::Result, bytes: own.clone() }));
    }

    /// Messages that have not come.
    pub fn expected(&self) -> &[Expected] {
        &self.expected
    }

    /// A message came.
    pub fn arrived(&mut self, from: usize, slot: DataSlot, bytes: Bytes) {
        self.expected.retain(|expected| (expected.from, expected.slot) != (from, slot));
        match slot {
            DataSlot::Contribution(at) => self.contributions[from][at] = bytes,
            DataSlot::Result => self.results[from] = bytes,
        }
    }

    /// Adds the contributions once all are there, and appends what to send; returns contributions that are used up.
    ///
    /// # Errors
    /// Contributions are not what the ranks said, or memory is short.
    pub fn reduce(&mut self, sends: &mut Vec<Outgoing>) -> Result<Vec<Bytes>, KvError> {
        let waits = self.expected.iter().any(|expected| matches!(expected.slot, DataSlot::Contribution(_)));
        if self.reduced || waits {
            return Ok(vec![]);
        }
        self.reduced = true;
        let contributions = std::mem::take(&mut self.contributions);
        let named = self.subtrees.iter().flatten().cloned().zip(contributions.into_iter().flatten());
        let (leaves, mut used) = (self.call.leaves * self.ranks() as u32, vec![]);
        self.results[self.rank] = tree::sum(leaves, named.collect(), self.call.dtype, &mut used)?;
        if !self.is_whole() && !self.results[self.rank].is_empty() {
            self.send_result(sends);
        }
        Ok(used)
    }

    pub fn is_done(&self) -> bool {
        self.reduced && self.expected.is_empty()
    }

    /// The sum as consecutive pieces; what each rank gave to a gathering; what was broadcast.
    pub fn into_results(self) -> Vec<Bytes> {
        match self.call.kind {
            CallKind::Sum | CallKind::Broadcast { .. } => self.results.into_iter().filter(|b| !b.is_empty()).collect(),
            CallKind::Gather | CallKind::Barrier => self.results,
        }
    }
}

/// What is wrong with a rank's contribution to a call.
pub fn wrong_parts(call: &CollectiveCall, ranks: u32, rank: u32, parts: &[Bytes]) -> Option<String> {
    let (leaves, bytes) = (call.leaves, call.bytes());
    let (count, lengths) = match call.kind {
        CallKind::Sum => (tree::subtrees(leaves * ranks, rank * leaves, (rank + 1) * leaves).len(), Some(bytes)),
        CallKind::Broadcast { root } if root == rank => (1, Some(bytes)),
        CallKind::Gather => (1, None),
        CallKind::Broadcast { .. } | CallKind::Barrier => return None,
    };
    let unlike = parts.iter().find(|part| lengths.is_some_and(|bytes| part.len() as u64 != bytes));
    match unlike {
        _ if parts.len() != count => Some(format!("{} contributions are given, it takes {count}", parts.len())),
        Some(part) => Some(format!("a contribution of {} bytes is given, it takes {bytes}", part.len())),
        None => None,
    }
}
