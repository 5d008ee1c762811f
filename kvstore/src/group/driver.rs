//! The thread of a group: it alone uses the transport, and never waits in it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tensorc_runtime::Profiler;
use tensorc_runtime::profiler::Span;

use super::call::{CallKind, CollectiveCall};
use super::exchange::{DataSlot, Exchange, Outgoing, wrong_parts};
use super::message::{ANSWERED, ASKED, CONTROL, CallHeader, GroupMessage, MAX_SHORT_MESSAGE, Question};
use super::serve::{Answered, Desk, Server};
use super::{Done, GroupCommand, GroupOptions, GroupState};
use crate::buffers::Buffers;
use crate::error::GroupError;
use crate::transport::{ReceiveId, Received, Tag, Transport};

/// How the profiler groups what a group does.
const MOVING: &str = "communication";
const WAITING: &str = "waiting";

/// How long the thread polls without a pause while data move.
const POLL_SPIN: Duration = Duration::from_micros(20);
/// The shortest pause between polls: one takes some microseconds from a thread that computes on the same processor.
const MIN_NAP: Duration = Duration::from_micros(60);
/// The longest pauses between polls while data move, while ranks are waited for, and while there is nothing to do.
const MAX_BUSY_POLL_SLEEP: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_millis(1);
const MAX_IDLE_POLL_SLEEP: Duration = Duration::from_millis(5);
/// How long a failed group tries to tell the others.
const FAILURE_BROADCAST_TIMEOUT: Duration = Duration::from_millis(500);

/// What a receive that was begun is for.
enum Awaited {
    Control { from: usize },
    Data { from: usize, sequence: u64, slot: DataSlot },
    Question { from: usize, question: Question },
    Answer { id: u64 },
}

/// This rank's part of a collective.
struct Mine {
    parts: Vec<Bytes>,
    done: Done,
}

/// A collective that some rank has called.
struct Collective {
    /// What this rank calls, once it does.
    call: Option<(CollectiveCall, i32)>,
    mine: Option<Mine>,
    headers: Vec<Option<CallHeader>>,
    /// When this rank came, and since when it waits for the others.
    came: Instant,
    since: Instant,
    exchange: Option<Exchange>,
}

struct GroupThread {
    transport: Box<dyn Transport>,
    shared: Arc<GroupState>,
    buffers: Buffers,
    deadline: Duration,
    profiler: Option<Profiler>,
    rank: usize,
    size: usize,
    /// Calls of this rank so far.
    reserved: u64,
    running: BTreeMap<u64, Collective>,
    awaited: BTreeMap<ReceiveId, Awaited>,
    desk: Desk,
    /// Collectives after which a rank has left.
    left: Vec<Option<u64>>,
    /// Ranks that send nothing more, and whether this one has said so.
    gone: Vec<bool>,
    said_bye: bool,
    /// The last that each rank was seen to call.
    seen: Vec<Option<(u64, String)>>,
    failure: Option<GroupError>,
    closing: Option<(SyncSender<Result<(), GroupError>>, Instant)>,
    abandoned: bool,
}

/// Serves a group until it is closed.
pub fn drive(transport: Box<dyn Transport>, shared: Arc<GroupState>, buffers: Buffers, options: GroupOptions) {
    #[cfg(target_os = "linux")]
    // Sleeps would last 50 us longer. Where that cannot be changed, they do.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let (rank, size) = (transport.rank(), transport.size());
    let GroupOptions { deadline, profiler } = options;
    let mut driver = GroupThread {
        transport,
        shared,
        buffers,
        deadline,
        profiler,
        rank,
        size,
        reserved: 0,
        running: BTreeMap::new(),
        awaited: BTreeMap::new(),
        desk: Desk::default(),
        left: vec![None; size],
        gone: vec![false; size],
        said_bye: false,
        seen: vec![None; size],
        failure: None,
        closing: None,
        abandoned: false,
    };
    driver.run();
}

impl GroupThread {
    fn run(&mut self) {
        for from in self.others() {
            let listening = self.listen(from);
            self.check(listening);
        }
        let mut since = Instant::now();
        let mut received = vec![];
        while !self.is_over() {
            let busy = self.obey() | self.poll(&mut received) | self.advance();
            self.check_deadlines();
            match busy {
                true => since = Instant::now(),
                false => self.rest(since.elapsed()),
            }
        }
        self.end();
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.size).filter(move |other| *other != rank)
    }

    fn is_over(&mut self) -> bool {
        let idle = self.running.is_empty() && self.desk.is_idle();
        let everyone_left = self.closing.is_some() && self.others().all(|other| self.left[other].is_some());
        if everyone_left && idle && !self.said_bye && self.failure.is_none() {
            self.said_bye = true;
            self.tell_all(&GroupMessage::Bye);
        }
        let in_order = self.said_bye && self.others().all(|other| self.gone[other]) && self.transport.unsent() == 0;
        self.abandoned || self.closing.is_some() && (self.failure.is_some() || in_order)
    }

    /// Sleeps for a quarter of the time in which nothing has happened: what comes is noticed after 5/4 of its time, and polls take
    /// little from threads that compute. Ranks that wait for each other in turn would wait ever longer if that were much more.
    fn rest(&self, idle: Duration) {
        let exchanging = self.running.values().any(|one| one.exchange.is_some());
        let moving = exchanging || self.transport.unsent() > 0 || !self.desk.asked.is_empty();
        let quiet = self.running.is_empty() && self.closing.is_none() && self.desk.server.is_none();
        let longest = match (moving, quiet) {
            (true, _) if idle < POLL_SPIN => return std::thread::yield_now(),
            (true, _) => MAX_BUSY_POLL_SLEEP,
            (false, false) => NAP,
            (false, true) => MAX_IDLE_POLL_SLEEP,
        };
        let nap = (idle / 4).clamp(MIN_NAP, longest);
        let queue = self.shared.lock();
        if queue.commands.is_empty() {
            // Woken early or late, the loop looks at everything.
            drop(self.shared.bell.wait_timeout(queue, nap).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Carries out commands; whether there were any.
    fn obey(&mut self) -> bool {
        let commands: VecDeque<GroupCommand> = std::mem::take(&mut self.shared.lock().commands);
        let any = !commands.is_empty();
        for command in commands {
            match command {
                GroupCommand::Reserve { call, priority } => self.reserve(call, priority),
                GroupCommand::Start { sequence, parts, done } => self.start(sequence, parts, done),
                GroupCommand::Fail { sequence, why } => self.give_up(sequence, why()),
                GroupCommand::Serve { server } => self.serve(server),
                GroupCommand::Ask { to, subject, detail, data, done } => self.ask(to, subject, detail, data, done),
                GroupCommand::Answer { to, id, answer } => self.answer(to, id, answer),
                GroupCommand::Close { reply } => self.close(reply),
                GroupCommand::Abandon => self.abandoned = true,
            }
        }
        any
    }

    fn collective(&mut self, sequence: u64) -> &mut Collective {
        let (size, now) = (self.size, Instant::now());
        self.running.entry(sequence).or_insert_with(|| Collective {
            call: None,
            mine: None,
            headers: vec![None; size],
            came: now,
            since: now,
            exchange: None,
        })
    }

    fn reserve(&mut self, call: CollectiveCall, priority: i32) {
        let sequence = self.reserved;
        self.reserved += 1;
        if self.failure.is_some() {
            return;
        }
        self.collective(sequence).call = Some((call, priority));
        self.compare(sequence);
    }

    fn start(&mut self, sequence: u64, parts: Vec<Bytes>, done: Done) {
        if let Some(failure) = &self.failure {
            return done(Err(failure.clone()));
        }
        let (rank, ranks, now) = (self.rank, self.size, Instant::now());
        let bytes = parts.first().map_or(0, |part| part.len() as u64);
        let one = self.collective(sequence);
        (one.came, one.since) = (now, now);
        one.mine = Some(Mine { parts, done });
        let Some((call, _)) = one.call.clone() else { return };
        let wrong = wrong_parts(&call, ranks as u32, rank as u32, one.mine.as_ref().map_or(&[], |mine| &mine.parts));
        if let Some(why) = wrong {
            return self.give_up(sequence, why);
        }
        let header = CallHeader { sequence, call: call.clone(), bytes };
        one.headers[rank] = Some(header.clone());
        if let Some((peer, last)) = self.others().find_map(|other| Some((other, self.left[other]?))) {
            return self.fail(GroupError::Left { sequence, rank, call: call.to_string(), peer, last });
        }
        self.tell_all(&GroupMessage::Header(header));
    }

    /// A contribution of this rank will not come.
    fn give_up(&mut self, sequence: u64, why: String) {
        if self.failure.is_some() {
            return;
        }
        let call = self.collective(sequence).call.as_ref().map_or(String::new(), |(call, _)| call.to_string());
        let rank = self.rank;
        self.fail(GroupError::Failed { sequence, rank, call, why });
    }

    fn close(&mut self, reply: SyncSender<Result<(), GroupError>>) {
        self.closing = Some((reply, Instant::now()));
        self.tell_all(&GroupMessage::Leave(self.reserved));
        let more = self.running.iter().find_map(|(sequence, one)| {
            let header = one.call.is_none().then(|| one.headers.iter().flatten().next()).flatten()?;
            let peer = one.headers.iter().position(Option::is_some)?;
            Some((*sequence, peer, header.call.to_string()))
        });
        if let Some((sequence, peer, call)) = more {
            self.calls_after_leaving(sequence, peer, call);
        }
    }

    /// A rank calls something that this one, which leaves, does not.
    fn calls_after_leaving(&mut self, sequence: u64, peer: usize, call: String) {
        let (rank, last) = (self.rank, self.reserved);
        self.fail(GroupError::Left { sequence, rank: peer, call, peer: rank, last });
    }

    fn tell_all(&mut self, message: &GroupMessage) {
        let bytes = Bytes::from(message.encode());
        for other in self.others() {
            let sent = self.transport.send(other, CONTROL, bytes.clone());
            self.check(sent);
        }
    }

    fn listen(&mut self, from: usize) -> Result<(), crate::transport::TransportError> {
        let id = self.transport.receive(from, CONTROL, vec![0; MAX_SHORT_MESSAGE])?;
        self.awaited.insert(id, Awaited::Control { from });
        Ok(())
    }

    fn check<T>(&mut self, result: Result<T, crate::transport::TransportError>) -> Option<T> {
        result.map_err(|source| self.fail(GroupError::Transport { rank: self.rank, source })).ok()
    }

    /// Takes what has arrived; whether anything has.
    fn poll(&mut self, received: &mut Vec<Received>) -> bool {
        let polled = self.transport.poll(received);
        self.check(polled);
        let any = !received.is_empty();
        for Received { id, bytes } in received.drain(..) {
            match self.awaited.remove(&id) {
                None => {}
                Some(Awaited::Control { from }) => {
                    self.hear(from, &bytes);
                    if !self.gone[from] {
                        let listening = self.listen(from);
                        self.check(listening);
                    }
                }
                Some(Awaited::Data { from, sequence, slot }) => {
                    if let Some(exchange) = self.running.get_mut(&sequence).and_then(|one| one.exchange.as_mut()) {
                        exchange.arrived(from, slot, Bytes::from(bytes));
                    }
                    self.go_on(sequence);
                }
                Some(Awaited::Question { from, question }) => {
                    self.desk.hand_over(&self.shared, from, question, Bytes::from(bytes));
                }
                Some(Awaited::Answer { id }) => self.answered(id, Bytes::from(bytes)),
            }
        }
        any
    }

    fn serve(&mut self, server: Server) {
        self.desk.open(server);
    }

    fn ask(&mut self, to: usize, subject: u64, detail: u64, data: Bytes, done: Answered) {
        if let Some(failure) = &self.failure {
            return done(Err(failure.clone()));
        }
        let id = self.desk.ask(to, done);
        let question = Question { id, subject, detail, bytes: data.len() as u64 };
        if to == self.rank {
            return self.desk.hand_over(&self.shared, to, question, data);
        }
        self.tell(to, &GroupMessage::Ask(question), ASKED, data);
    }

    fn answer(&mut self, to: usize, id: u64, answer: Result<Bytes, String>) {
        self.desk.open = self.desk.open.saturating_sub(1);
        match answer {
            Err(why) => self.fail(GroupError::Refused { rank: self.rank, peer: to, why }),
            Ok(data) if to == self.rank => self.answered(id, data),
            Ok(data) => self.tell(to, &GroupMessage::Answer { id, bytes: data.len() as u64 }, ANSWERED, data),
        }
    }

    fn answered(&mut self, id: u64, data: Bytes) {
        if let Some(asked) = self.desk.asked.remove(&id) {
            (asked.done)(Ok(data));
        }
    }

    /// Sends a short message to one rank, and data that belong to it.
    fn tell(&mut self, to: usize, message: &GroupMessage, tag: Tag, data: Bytes) {
        let told = self.transport.send(to, CONTROL, message.encode().into());
        if self.check(told).is_some() && !data.is_empty() {
            let sent = self.transport.send(to, tag, data);
            self.check(sent);
        }
    }

    /// Awaits data that a short message has announced.
    fn expect(&mut self, from: usize, tag: Tag, bytes: u64, awaited: Awaited) {
        let Ok(buffer) = self.buffers.take(bytes as usize) else {
            return self.fail(GroupError::Memory { rank: self.rank, sequence: self.reserved, bytes });
        };
        let begun = self.transport.receive(from, tag, buffer);
        if let Some(id) = self.check(begun) {
            self.awaited.insert(id, awaited);
        }
    }

    /// A short message of another rank.
    fn hear(&mut self, from: usize, bytes: &[u8]) {
        match GroupMessage::decode(bytes) {
            None => self.fail(GroupError::Message { rank: self.rank, peer: from }),
            Some(GroupMessage::Failure(message)) => self.end_with(GroupError::Reported { rank: from, message }),
            Some(GroupMessage::Bye) => self.gone[from] = true,
            Some(GroupMessage::Ask(question)) if question.bytes == 0 => {
                self.desk.hand_over(&self.shared, from, question, Bytes::new());
            }
            Some(GroupMessage::Ask(question)) => {
                self.expect(from, ASKED, question.bytes, Awaited::Question { from, question });
            }
            Some(GroupMessage::Answer { id, bytes: 0 }) => self.answered(id, Bytes::new()),
            Some(GroupMessage::Answer { id, bytes }) => self.expect(from, ANSWERED, bytes, Awaited::Answer { id }),
            Some(GroupMessage::Leave(last)) => {
                self.left[from] = Some(last);
                let rank = self.rank;
                let needs = self.running.iter().find(|(sequence, one)| **sequence >= last && one.mine.is_some());
                if let Some((sequence, Collective { call: Some((call, _)), .. })) = needs {
                    let (sequence, call) = (*sequence, call.to_string());
                    self.fail(GroupError::Left { sequence, rank, call, peer: from, last });
                }
            }
            Some(GroupMessage::Header(header)) => {
                let sequence = header.sequence;
                self.seen[from] = Some((sequence, header.call.to_string()));
                if self.closing.is_some() && sequence >= self.reserved {
                    return self.calls_after_leaving(sequence, from, header.call.to_string());
                }
                self.collective(sequence).headers[from] = Some(header);
                self.compare(sequence);
            }
        }
    }

    /// Fails where another rank calls something else at the same place.
    fn compare(&mut self, sequence: u64) {
        let Some(one) = self.running.get(&sequence) else { return };
        let Some((call, _)) = &one.call else { return };
        let other = one.headers.iter().enumerate().find_map(|(peer, header)| {
            let header = header.as_ref().filter(|header| !header.agrees(call))?;
            Some((peer, header.call.to_string()))
        });
        if let Some((peer, other)) = other {
            let (rank, call) = (self.rank, call.to_string());
            self.fail(GroupError::Mismatch { sequence, rank, call, peer, other });
        }
    }

    /// Begins the exchange of what every rank has come to, the highest priority first; whether there was any.
    fn advance(&mut self) -> bool {
        let ready =
            |one: &Collective| one.exchange.is_none() && one.mine.is_some() && one.headers.iter().all(Option::is_some);
        let mut all: Vec<(i32, u64)> = vec![];
        for (sequence, one) in &self.running {
            if let Some((_, priority)) = one.call.as_ref().filter(|_| ready(one)) {
                all.push((-priority, *sequence));
            }
        }
        all.sort_unstable();
        for (_, sequence) in &all {
            self.begin(*sequence);
        }
        !all.is_empty()
    }

    fn begin(&mut self, sequence: u64) {
        let rank = self.rank;
        let Some(one) = self.running.get_mut(&sequence) else { return };
        let (Some((call, _)), Some(mine)) = (&one.call, &one.mine) else { return };
        let headers: Vec<CallHeader> = one.headers.iter().flatten().cloned().collect();
        record(self.profiler.as_ref(), call, WAITING, one.came, 0);
        let mut sends = vec![];
        let exchange = Exchange::begin(call, &headers, rank, &mine.parts, &mut sends);
        let expected = exchange.expected().to_vec();
        one.since = exchange.began;
        one.exchange = Some(exchange);
        for expected in expected {
            let Ok(buffer) = self.buffers.take(expected.bytes) else {
                return self.fail(GroupError::Memory { rank, sequence, bytes: expected.bytes as u64 });
            };
            let begun = self.transport.receive(expected.from, tag_of(sequence, expected.slot), buffer);
            let Some(id) = self.check(begun) else { return };
            self.awaited.insert(id, Awaited::Data { from: expected.from, sequence, slot: expected.slot });
        }
        self.send(sequence, sends);
        self.go_on(sequence);
    }

    fn send(&mut self, sequence: u64, sends: Vec<Outgoing>) {
        if let Some(exchange) = self.running.get_mut(&sequence).and_then(|one| one.exchange.as_mut()) {
            exchange.sent += sends.iter().map(|one| one.bytes.len() as u64).sum::<u64>();
        }
        for Outgoing { to, slot, bytes } in sends {
            let sent = self.transport.send(to, tag_of(sequence, slot), bytes);
            if self.check(sent).is_none() {
                return;
            }
        }
    }

    /// Does what the data at hand allow, and ends the collective if that is all.
    fn go_on(&mut self, sequence: u64) {
        let mut sends = vec![];
        let reduced = match self.running.get_mut(&sequence).and_then(|one| one.exchange.as_mut()) {
            None => return,
            Some(exchange) => exchange.reduce(&mut sends),
        };
        match reduced {
            Ok(used) => used.into_iter().for_each(|bytes| self.buffers.give_later(bytes)),
            Err(error) => return self.give_up(sequence, error.to_string()),
        }
        self.send(sequence, sends);
        let done = self.running.get(&sequence).and_then(|one| one.exchange.as_ref()).is_some_and(Exchange::is_done);
        let Some(one) = (if done { self.running.remove(&sequence) } else { None }) else { return };
        let (Some((call, _)), Some(Mine { parts, done }), Some(exchange)) = (one.call, one.mine, one.exchange) else {
            return;
        };
        parts.into_iter().for_each(|part| self.buffers.give_later(part));
        record(self.profiler.as_ref(), &call, MOVING, exchange.began, exchange.sent);
        let results = exchange.into_results();
        if call.kind != CallKind::Gather {
            results.iter().for_each(|result| self.buffers.give_later(result.clone()));
        }
        done(Ok(results));
    }

    /// Fails if a rank has been waited for too long.
    fn check_deadlines(&mut self) {
        let (rank, limit) = (self.rank, self.deadline);
        if self.failure.is_some() {
            return;
        }
        let late = self.running.iter().find(|(_, one)| one.mine.is_some() && one.since.elapsed() > limit);
        if let Some((sequence, one)) = late {
            let absent = |peer: &usize| match &one.exchange {
                None => one.headers[*peer].is_none(),
                Some(exchange) => exchange.expected().iter().any(|expected| expected.from == *peer),
            };
            let mut peers: Vec<usize> = self.others().filter(absent).collect();
            if peers.is_empty() {
                peers = self.others().collect();
            }
            let call = one.call.as_ref().map_or(String::new(), |(call, _)| call.to_string());
            let (sequence, seen) = (*sequence, self.seen_last(&peers));
            return self.fail(GroupError::Late { sequence, rank, call, peers, limit, seen });
        }
        if let Some(peer) = self.desk.late(limit) {
            let seen = self.seen_last(&[peer]);
            return self.fail(GroupError::NoAnswer { rank, peer, limit, seen });
        }
        if self.closing.as_ref().is_some_and(|(_, since)| since.elapsed() > limit) {
            let peers: Vec<usize> = self.others().filter(|other| !self.gone[*other]).collect();
            let (sequence, seen) = (self.reserved, self.seen_last(&peers));
            self.fail(GroupError::Late { sequence, rank, call: "end of the group".into(), peers, limit, seen });
        }
    }

    fn seen_last(&self, peers: &[usize]) -> String {
        let one = |peer: &usize| match &self.seen[*peer] {
            None => format!("rank {peer} has called nothing"),
            Some((sequence, call)) => format!("the last call of rank {peer} was {sequence}, {call}"),
        };
        peers.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Fails, and tells the others.
    fn fail(&mut self, error: GroupError) {
        if self.failure.is_some() {
            return;
        }
        let message = GroupMessage::Failure(error.to_string());
        self.end_with(error);
        self.tell_all(&message);
    }

    /// Answers everything with an error from now on.
    fn end_with(&mut self, error: GroupError) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error.clone());
        self.shared.lock().failure = Some(error.clone());
        for (_, one) in std::mem::take(&mut self.running) {
            if let Some(mine) = one.mine {
                (mine.done)(Err(error.clone()));
            }
        }
        for (_, asked) in std::mem::take(&mut self.desk.asked) {
            (asked.done)(Err(error.clone()));
        }
    }

    /// The last things: telling a failure, leaving, answering what is still asked.
    fn end(&mut self) {
        let in_order = self.failure.is_none() && self.closing.is_some();
        if !in_order && !self.abandoned_alone() {
            self.fail(GroupError::Closed);
            let (began, mut received) = (Instant::now(), vec![]);
            while self.transport.unsent() > 0 && began.elapsed() < FAILURE_BROADCAST_TIMEOUT {
                if self.transport.poll(&mut received).is_err() {
                    break;
                }
                std::thread::sleep(NAP);
            }
        }
        self.transport.close(in_order);
        let mut queue = self.shared.lock();
        queue.ended = true;
        let commands = std::mem::take(&mut queue.commands);
        drop(queue);
        let failure = self.failure.clone().unwrap_or(GroupError::Closed);
        commands.into_iter().for_each(|command| command.refuse(failure.clone()));
        if let Some((reply, _)) = self.closing.take() {
            // A receiver that is gone waits for nothing.
            let _ = reply.send(if in_order { Ok(()) } else { Err(failure) });
        }
    }

    fn abandoned_alone(&self) -> bool {
        self.abandoned && self.size == 1
    }
}

/// The tag of a collective's data. Where tags repeat, the order of messages tells them apart.
fn tag_of(sequence: u64, slot: DataSlot) -> Tag {
    let round = u64::from(slot == DataSlot::Result);
    1 + ((2 * sequence + round) % u64::from(ASKED - 1)) as Tag
}

fn record(profiler: Option<&Profiler>, call: &CollectiveCall, category: &'static str, since: Instant, bytes: u64) {
    let Some(profiler) = profiler.filter(|profiler| profiler.is_on()) else { return };
    let span = Span::new(call.key.clone(), category, since, Instant::now());
    profiler.record(Span { lane: Some(tensorc_runtime::profiler::TraceTrack::Floating), bytes, ..span });
}
