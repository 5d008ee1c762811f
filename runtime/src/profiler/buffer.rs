//! Where threads put what they record: a log each, bounded together.
//!
//! A log is a list of segments under a mutex that only its thread and a reader of the recording
//! take, so a writer finds it free. Segments are paid from one budget, which is the only thing that
//! threads share, and touched once a segment.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use super::{Event, Recording, ThreadEvents, TraceTrack};

const FIRST_SEGMENT: u64 = 64;
const MAX_SEGMENT_EVENTS: u64 = 4096;

/// What the clones of a profiler share.
pub(super) struct Shared {
    pub state: AtomicU8,
    /// What times are counted from.
    pub epoch: Instant,
    /// Events that may still be paid for.
    budget: AtomicU64,
    /// Events lost before their thread had a log.
    homeless: AtomicU64,
    threads: Mutex<Vec<Arc<ThreadLog>>>,
}

/// What one thread recorded.
struct ThreadLog {
    /// Position in the order of first records.
    thread: u32,
    name: Option<String>,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    full: Vec<Arc<Vec<Event>>>,
    open: Vec<Event>,
    /// Events of `open` that the budget paid for.
    open_paid: u64,
    /// Events of all segments that the budget paid for.
    paid: u64,
    dropped: u64,
}

/// The log of this thread for one profiler.
struct LocalLog {
    /// Keeps the address taken while the entry exists, so that it identifies the profiler.
    profiler: Weak<Shared>,
    log: Arc<ThreadLog>,
}

thread_local! {
    static ENTRIES: RefCell<Vec<LocalLog>> = const { RefCell::new(Vec::new()) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(state: u8, max_events: u64) -> Shared {
        Shared {
            state: AtomicU8::new(state),
            epoch: Instant::now(),
            budget: AtomicU64::new(max_events),
            homeless: AtomicU64::new(0),
            threads: Mutex::default(),
        }
    }

    /// Adds an event to the log of the calling thread, or counts it as dropped.
    pub fn push(self: &Arc<Shared>, event: Event) {
        let mut event = Some(event);
        let pushed = ENTRIES.try_with(|entries| {
            let Ok(mut entries) = entries.try_borrow_mut() else { return false };
            let own = |entry: &&LocalLog| entry.profiler.as_ptr() == Arc::as_ptr(self);
            let log = match entries.iter().find(own) {
                Some(entry) => &entry.log,
                None => match self.register(&mut entries) {
                    Some(log) => log,
                    None => return false,
                },
            };
            if let Some(event) = event.take() {
                lock(&log.log).push(event, &self.budget);
            }
            true
        });
        if pushed != Ok(true) {
            self.homeless.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[cold]
    fn register<'e>(self: &Arc<Shared>, entries: &'e mut Vec<LocalLog>) -> Option<&'e Arc<ThreadLog>> {
        if self.budget.load(Ordering::Relaxed) == 0 {
            return None;
        }
        entries.retain(|entry| entry.profiler.strong_count() > 0);
        let mut threads = lock(&self.threads);
        let log = Arc::new(ThreadLog {
            thread: threads.last().map_or(0, |last| last.thread + 1),
            name: std::thread::current().name().map(str::to_owned),
            log: Mutex::default(),
        });
        threads.push(log.clone());
        entries.push(LocalLog { profiler: Arc::downgrade(self), log });
        entries.last().map(|entry| &entry.log)
    }

    pub fn snapshot(&self) -> Recording {
        let mut recording = Recording { threads: Vec::new(), dropped: self.homeless.load(Ordering::Relaxed) };
        for thread in lock(&self.threads).iter() {
            let log = lock(&thread.log);
            recording.dropped += log.dropped;
            let mut segments = log.full.clone();
            if !log.open.is_empty() {
                segments.push(Arc::new(log.open.clone()));
            }
            drop(log);
            recording.threads.push(ThreadEvents {
                lane: TraceTrack::Thread(thread.thread),
                name: thread.name.clone(),
                segments,
            });
        }
        recording
    }

    /// Forgets what was recorded, and threads that have ended.
    pub fn clear(&self) {
        self.homeless.store(0, Ordering::Relaxed);
        let mut threads = lock(&self.threads);
        for thread in threads.iter() {
            let log = std::mem::take(&mut *lock(&thread.log));
            self.budget.fetch_add(log.paid, Ordering::Relaxed);
        }
        // The last one stays, as new threads are numbered after it.
        let last = threads.len().saturating_sub(1);
        let mut index = 0;
        threads.retain(|thread| {
            index += 1;
            Arc::strong_count(thread) > 1 || index > last
        });
    }
}

impl Drop for Shared {
    /// Threads keep their logs until they record for another profiler; they need not keep the events.
    fn drop(&mut self) {
        self.clear();
    }
}

impl Log {
    fn push(&mut self, event: Event, budget: &AtomicU64) {
        if self.open.len() as u64 == self.open_paid && !self.grow(budget) {
            self.dropped += 1;
            return;
        }
        self.open.push(event);
    }

    /// Begins a segment, as long as the budget allows.
    #[cold]
    fn grow(&mut self, budget: &AtomicU64) -> bool {
        let wanted = (2 * self.open_paid).clamp(FIRST_SEGMENT, MAX_SEGMENT_EVENTS);
        let pay = |left: u64| (left > 0).then(|| left.saturating_sub(wanted));
        let Ok(left) = budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay) else { return false };
        let paid = left.min(wanted);
        let next = Vec::with_capacity(paid as usize);
        let full = std::mem::replace(&mut self.open, next);
        if !full.is_empty() {
            self.full.push(Arc::new(full));
        }
        self.open_paid = paid;
        self.paid += paid;
        true
    }
}
