//! Messages between ranks that are threads of one process.
//!
//! A group keeps the messages that no rank has taken in one place behind a lock. A send ends when its message is taken, so
//! that a program which works here does not rely on buffers of a library. For tests, ranks can be stopped, and messages
//! of different ranks and tags can be delayed, each in a way that depends only on a seed and the message.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{ReceiveId, Received, Receives, Tag, Transport, TransportError, check};

/// Delays of a group with a seed are below this many polls.
const MAX_DELAY_POLLS: u64 = 8;

/// A group of `size` ranks, in order.
pub fn group(size: usize) -> Vec<ThreadTransport> {
    make(size, None)
}

/// As [`group`], but a message that is the next of its sender and tag stays unseen for some polls of its receiver, fewer
/// than 8. Their number depends on the seed, both ranks, the tag and the number of the message. So messages of different
/// senders or tags overtake each other, and do so again with the same seed and the same calls.
pub fn group_with_delays(size: usize, seed: u64) -> Vec<ThreadTransport> {
    make(size, Some(seed))
}

fn make(size: usize, seed: Option<u64>) -> Vec<ThreadTransport> {
    let ranks = (0..size).map(|_| Member::default()).collect();
    let group = Arc::new(ThreadGroup { seed, size, ranks: Mutex::new(ranks) });
    let transport = |rank| ThreadTransport {
        group: group.clone(),
        rank,
        receives: BTreeMap::new(),
        errors: VecDeque::new(),
        next: 0,
    };
    (0..size).map(transport).collect()
}

/// A member of a group of threads; see [`group`]. Dropping it closes it.
pub struct ThreadTransport {
    group: Arc<ThreadGroup>,
    rank: usize,
    /// Receives that have not ended, in order, by sender and tag.
    receives: BTreeMap<(usize, Tag), Receives>,
    /// Errors that [`Transport::poll`] has not reported.
    errors: VecDeque<TransportError>,
    next: u64,
}

/// Stops a rank of a group of threads, as if it was a process that is stopped or killed. For tests.
#[derive(Clone)]
pub struct Fault {
    group: Arc<ThreadGroup>,
    rank: usize,
}

struct ThreadGroup {
    seed: Option<u64>,
    size: usize,
    ranks: Mutex<Vec<Member>>,
}

#[derive(Default)]
struct Member {
    state: ThreadState,
    /// Sends while the rank was silent.
    held: VecDeque<ThreadMessage>,
    /// Messages to this rank that were not taken, by sender and tag.
    mail: BTreeMap<(usize, Tag), MessageStream>,
    /// Messages of this rank that were not taken.
    unsent: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum ThreadState {
    #[default]
    Running,
    Silent,
    Closed,
}

struct ThreadMessage {
    to: usize,
    tag: Tag,
    bytes: Bytes,
}

#[derive(Default)]
struct MessageStream {
    /// Messages so far, taken or not.
    sent: u64,
    /// Messages, each with the polls that do not see it.
    queue: VecDeque<(u64, Bytes)>,
}

/// A message and the receive that takes it.
struct MatchedMessage {
    id: ReceiveId,
    from: usize,
    tag: Tag,
    into: Vec<u8>,
    bytes: Bytes,
}

impl ThreadGroup {
    fn lock(&self) -> MutexGuard<'_, Vec<Member>> {
        // The counts and queues are whole after every statement that can panic.
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message where its receiver finds it; a closed one never does.
    fn deliver(&self, ranks: &mut [Member], from: usize, message: ThreadMessage) {
        let ThreadMessage { to, tag, bytes } = message;
        if ranks[to].state != ThreadState::Closed {
            let stream = ranks[to].mail.entry((from, tag)).or_default();
            let number = stream.sent;
            stream.sent += 1;
            let parts = [from as u64, to as u64, u64::from(tag), number];
            let delay =
                self.seed.map_or(0, |seed| parts.into_iter().fold(mix(seed), |h, p| mix(h ^ p)) % MAX_DELAY_POLLS);
            stream.queue.push_back((delay, bytes));
        }
    }

    fn close(&self, rank: usize) {
        let member = &mut self.lock()[rank];
        *member = Member { state: ThreadState::Closed, ..Member::default() };
    }
}

/// The output function of the generator SplitMix64.
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Fault {
    /// Holds back the messages that the rank sends from now on, and those that it would take, until [`Fault::resume`].
    /// Its calls still return: it sees a group in which nothing happens.
    pub fn silence(&self) {
        let member = &mut self.group.lock()[self.rank];
        if member.state == ThreadState::Running {
            member.state = ThreadState::Silent;
        }
    }

    /// Ends [`Fault::silence`]: what was held back arrives, in order. A rank that was cut off stays so.
    pub fn resume(&self) {
        let ranks = &mut *self.group.lock();
        if ranks[self.rank].state == ThreadState::Silent {
            ranks[self.rank].state = ThreadState::Running;
            for message in std::mem::take(&mut ranks[self.rank].held) {
                self.group.deliver(ranks, self.rank, message);
            }
        }
    }

    /// Cuts the rank off for ever. Messages that it sent before can be received, unless they were held back; messages to it
    /// are never taken, and its own calls give [`TransportError::Closed`].
    pub fn cut(&self) {
        self.group.close(self.rank);
    }
}

impl ThreadTransport {
    /// A way to stop this rank from outside of its thread.
    pub fn fault(&self) -> Fault {
        Fault { group: self.group.clone(), rank: self.rank }
    }

    fn closed(&self) -> TransportError {
        TransportError::Closed { rank: self.rank }
    }

    /// Takes every message that a receive waits for and whose delay is over.
    fn take(&mut self) -> Result<Vec<MatchedMessage>, TransportError> {
        let mut taken = vec![];
        let ranks = &mut *self.group.lock();
        match ranks[self.rank].state {
            ThreadState::Closed => return Err(self.closed()),
            ThreadState::Silent => return Ok(taken),
            ThreadState::Running => {}
        }
        for (&(from, tag), receives) in &mut self.receives {
            let Some(stream) = ranks[self.rank].mail.get_mut(&(from, tag)) else { continue };
            while let (Some((delay, _)), false) = (stream.queue.front_mut(), receives.is_empty()) {
                if *delay > 0 {
                    *delay -= 1;
                    break;
                }
                if let (Some((_, bytes)), Some((id, into))) = (stream.queue.pop_front(), receives.pop_front()) {
                    taken.push(MatchedMessage { id, from, tag, into, bytes });
                }
            }
        }
        for message in &taken {
            // A rank that was closed has none.
            ranks[message.from].unsent = ranks[message.from].unsent.saturating_sub(1);
        }
        self.receives.retain(|_, receives| !receives.is_empty());
        Ok(taken)
    }
}

impl Transport for ThreadTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.group.size
    }

    fn send(&mut self, to: usize, tag: Tag, bytes: Bytes) -> Result<(), TransportError> {
        check(to, self.group.size, tag)?;
        let ranks = &mut *self.group.lock();
        let message = ThreadMessage { to, tag, bytes };
        match ranks[self.rank].state {
            ThreadState::Closed => return Err(self.closed()),
            ThreadState::Silent => ranks[self.rank].held.push_back(message),
            ThreadState::Running => self.group.deliver(ranks, self.rank, message),
        }
        ranks[self.rank].unsent += 1;
        Ok(())
    }

    fn receive(&mut self, from: usize, tag: Tag, into: Vec<u8>) -> Result<ReceiveId, TransportError> {
        check(from, self.group.size, tag)?;
        if self.group.lock()[self.rank].state == ThreadState::Closed {
            return Err(self.closed());
        }
        let id = ReceiveId(self.next);
        self.next += 1;
        self.receives.entry((from, tag)).or_default().push_back((id, into));
        Ok(id)
    }

    fn poll(&mut self, received: &mut Vec<Received>) -> Result<(), TransportError> {
        for MatchedMessage { id, from, tag, mut into, bytes } in self.take()? {
            if bytes.len() > into.len() {
                self.errors.push_back(TransportError::Truncated { from, tag, expected: into.len() });
                continue;
            }
            into.truncate(bytes.len());
            into.copy_from_slice(&bytes);
            received.push(Received { id, bytes: into });
        }
        self.errors.pop_front().map_or(Ok(()), Err)
    }

    fn unsent(&self) -> usize {
        self.group.lock()[self.rank].unsent
    }

    /// Waits for nothing: messages that were sent stay for their receivers.
    fn close(&mut self, _orderly: bool) {
        self.group.close(self.rank);
        self.receives.clear();
    }
}

impl Drop for ThreadTransport {
    fn drop(&mut self) {
        self.close(false);
    }
}
