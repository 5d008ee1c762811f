//! What ran when: spans of operations, tasks of the user's, markers and counters.
//!
//! A [`Profiler`] is a handle that can be cloned and given to whoever has something to record.
//! While it is off, that costs one relaxed load. What was recorded is read as a [`Recording`]:
//! a file for the trace viewers of Chrome and Perfetto ([`Recording::write_trace`]), or a table
//! ([`Recording::summary`]).

mod buffer;
mod name;
mod summary;
mod task;
mod trace;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::device::Device;
use buffer::Shared;

pub use name::SpanName;
pub use summary::{Summary, SummaryRow};
pub use task::{Counter, SpanGuard};
pub use trace::TraceError;

/// Where in its device's part of a trace an event is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TraceTrack {
    /// A thread by number, in the order in which threads first recorded something.
    Thread(u32),
    /// A queue of the device that executes one operation at a time.
    Stream(u32),
    /// None of them: the time may overlap anything, as that of an operation that ends elsewhere.
    Floating,
}

/// An operation that took time.
#[derive(Clone, Debug)]
pub struct Span {
    /// What the operation is called; spans of one name and category are a row of a [`Summary`].
    pub name: SpanName,
    /// What operations are grouped by: `operator`, `copy`, `compile`, a domain of the user's.
    pub category: SpanName,
    /// The device whose part of a trace it is shown in.
    pub device: Device,
    /// `None` for the thread that calls [`Profiler::record`].
    pub lane: Option<TraceTrack>,
    /// The worker of the device that executed it.
    pub worker: Option<u32>,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// Bytes read and written, or moved.
    pub bytes: u64,
    /// Why the operation failed.
    pub error: Option<Arc<str>>,
}

impl Span {
    /// A span of the first CPU device on the recording thread, without bytes and error.
    pub fn new(name: impl Into<SpanName>, category: impl Into<SpanName>, start: Instant, end: Instant) -> Span {
        Span {
            name: name.into(),
            category: category.into(),
            device: Device::default(),
            lane: None,
            worker: None,
            start,
            end,
            bytes: 0,
            error: None,
        }
    }
}

/// How much a [`Profiler`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfilerConfig {
    /// Most events kept, of at most 128 bytes each beside their names; later ones are counted and dropped.
    pub max_events: u64,
}

impl Default for ProfilerConfig {
    fn default() -> ProfilerConfig {
        ProfilerConfig { max_events: 1 << 20 }
    }
}

const OFF: u8 = 0;
const ON: u8 = 1;
const PAUSED: u8 = 2;

/// Records events from any thread. Clones record into the same place. Made switched off.
#[derive(Clone)]
pub struct Profiler {
    shared: Arc<Shared>,
}

impl Default for Profiler {
    fn default() -> Profiler {
        Profiler::new(ProfilerConfig::default())
    }
}

impl Profiler {
    /// A profiler that is off and has recorded nothing.
    pub fn new(config: ProfilerConfig) -> Profiler {
        Profiler { shared: Arc::new(Shared::new(OFF, config.max_events)) }
    }

    /// Whether events are recorded now.
    pub fn is_on(&self) -> bool {
        self.shared.state.load(Ordering::Relaxed) == ON
    }

    /// Records from now on, whatever it did before.
    pub fn start(&self) {
        self.shared.state.store(ON, Ordering::Relaxed);
    }

    /// Stops recording. What was recorded stays; [`Profiler::start`] adds to it.
    pub fn stop(&self) {
        self.shared.state.store(OFF, Ordering::Relaxed);
    }

    /// Stops recording until [`Profiler::resume`]; without effect unless it is on.
    pub fn pause(&self) {
        self.switch(ON, PAUSED);
    }

    /// Ends a pause; without effect on a profiler that is stopped.
    pub fn resume(&self) {
        self.switch(PAUSED, ON);
    }

    fn switch(&self, from: u8, to: u8) {
        // A failure says that there is nothing to switch.
        let _ = self.shared.state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The time, if the profiler is on: where the span of an operation begins.
    pub fn begin(&self) -> Option<Instant> {
        self.is_on().then(Instant::now)
    }

    /// Records a span that has ended, unless the profiler is off.
    ///
    /// The name is kept, not copied. Times before the profiler was made count as its making.
    pub fn record(&self, span: Span) {
        if !self.is_on() {
            return;
        }
        let Span { name, category, device, lane, worker, start, end, bytes, error } = span;
        let start = self.since_epoch(start);
        let end = self.since_epoch(end).max(start);
        let kind = EventKind::Span { end, bytes, worker, error };
        self.shared.push(Event { name, category, device, lane, time: start, kind });
    }

    /// Records that something happened now.
    pub fn marker(&self, name: impl Into<SpanName>, category: impl Into<SpanName>, device: Device) {
        self.record_now(name, category, device, EventKind::Marker);
    }

    fn record_now(&self, name: impl Into<SpanName>, category: impl Into<SpanName>, device: Device, kind: EventKind) {
        if let Some(now) = self.begin() {
            let (name, category, time) = (name.into(), category.into(), self.since_epoch(now));
            self.shared.push(Event { name, category, device, lane: None, time, kind });
        }
    }

    /// A task that runs on the calling thread until the value is dropped there.
    pub fn scope(&self, name: impl Into<SpanName>, category: impl Into<SpanName>) -> SpanGuard {
        SpanGuard::begin(self, name, category, None)
    }

    /// A task that may end on another thread, or overlap others: from now until the value is dropped.
    pub fn task(&self, name: impl Into<SpanName>, category: impl Into<SpanName>) -> SpanGuard {
        SpanGuard::begin(self, name, category, Some(TraceTrack::Floating))
    }

    /// A number of a device's that changes over time, 0 at first.
    pub fn counter(&self, name: impl Into<SpanName>, device: Device) -> Counter {
        Counter::new(self, name.into(), device)
    }

    /// What was recorded so far.
    pub fn recording(&self) -> Recording {
        self.shared.snapshot()
    }

    /// Forgets what was recorded.
    pub fn clear(&self) {
        self.shared.clear();
    }

    fn since_epoch(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.shared.epoch).as_nanos() as u64
    }
}

impl std::fmt::Debug for Profiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match self.shared.state.load(Ordering::Relaxed) {
            ON => "on",
            PAUSED => "paused",
            _ => "off",
        };
        f.debug_tuple("Profiler").field(&state).finish()
    }
}

/// Something recorded. Times are nanoseconds since the profiler was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Name of the span, marker or counter.
    pub name: SpanName,
    /// What events are grouped by.
    pub category: SpanName,
    /// The device whose part of a trace it is shown in.
    pub device: Device,
    lane: Option<TraceTrack>,
    /// When it happened or began.
    pub time: u64,
    /// What happened.
    pub kind: EventKind,
}

/// What an [`Event`] says.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// Something that took time, from [`Event::time`] on.
    Span {
        /// When it ended, in ns since the profiler was made.
        end: u64,
        /// Bytes read and written, or moved.
        bytes: u64,
        /// The worker of the device that executed it.
        worker: Option<u32>,
        /// Why it failed, if it did.
        error: Option<Arc<str>>,
    },
    /// A moment.
    Marker,
    /// The new value of a counter.
    Counter(i64),
}

/// What a profiler recorded up to a moment.
#[derive(Clone, Debug)]
pub struct Recording {
    threads: Vec<ThreadEvents>,
    /// Events that were not kept.
    dropped: u64,
}

#[derive(Clone, Debug)]
struct ThreadEvents {
    lane: TraceTrack,
    name: Option<String>,
    segments: Vec<Arc<Vec<Event>>>,
}

impl ThreadEvents {
    fn events(&self) -> impl Iterator<Item = (TraceTrack, &Event)> {
        let events = self.segments.iter().flat_map(|segment| segment.iter());
        events.map(|event| (event.lane.unwrap_or(self.lane), event))
    }
}

impl Recording {
    /// Events that were not kept, because there were more than the profiler's limit.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Every event with its lane, by time, then device and lane, of those that begin together the longest first.
    pub fn events(&self) -> Vec<(TraceTrack, &Event)> {
        let mut events: Vec<(TraceTrack, &Event)> = self.threads.iter().flat_map(ThreadEvents::events).collect();
        let end = |event: &Event| match event.kind {
            EventKind::Span { end, .. } => end,
            EventKind::Marker | EventKind::Counter(_) => event.time,
        };
        events.sort_by_key(|(lane, event)| (event.time, event.device, *lane, std::cmp::Reverse(end(event))));
        events
    }
}

#[cfg(test)]
mod tests;
