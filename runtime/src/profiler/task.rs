//! Tasks and counters of the user's.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use super::{EventKind, Profiler, Span, SpanName, TraceTrack};
use crate::device::Device;

/// A span that ends when this is dropped. Records nothing if the profiler was off when it began or
/// is when it ends.
#[must_use = "the task ends when this is dropped"]
pub struct SpanGuard(Option<(Profiler, Span)>);

impl SpanGuard {
    pub(super) fn begin(
        profiler: &Profiler,
        name: impl Into<SpanName>,
        category: impl Into<SpanName>,
        lane: Option<TraceTrack>,
    ) -> SpanGuard {
        SpanGuard(profiler.begin().map(|start| {
            let span = Span { lane, ..Span::new(name, category, start, start) };
            (profiler.clone(), span)
        }))
    }

    /// Shows the task with this device's instead of the first CPU's.
    pub fn on(mut self, device: Device) -> SpanGuard {
        if let Some((_, span)) = &mut self.0 {
            span.device = device;
        }
        self
    }

    /// Adds to the bytes that the task has moved.
    pub fn add_bytes(&mut self, bytes: u64) {
        if let Some((_, span)) = &mut self.0 {
            span.bytes = span.bytes.saturating_add(bytes);
        }
    }

    /// Marks the task as failed.
    pub fn fail(&mut self, error: &dyn std::fmt::Display) {
        if let Some((_, span)) = &mut self.0 {
            span.error = Some(error.to_string().into());
        }
    }
}

impl Drop for SpanGuard {
    fn drop(&mut self) {
        if let Some((profiler, span)) = self.0.take()
            && profiler.is_on()
        {
            profiler.record(Span { end: Instant::now(), ..span });
        }
    }
}

/// A number that changes over time, such as bytes in use. Clones are the same number; it changes
/// whether or not the profiler is on, and every change is recorded while it is.
#[derive(Clone)]
pub struct Counter {
    profiler: Profiler,
    name: SpanName,
    device: Device,
    value: Arc<AtomicI64>,
}

impl Counter {
    pub(super) fn new(profiler: &Profiler, name: SpanName, device: Device) -> Counter {
        Counter { profiler: profiler.clone(), name, device, value: Arc::default() }
    }

    /// The number now.
    pub fn value(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Sets the number.
    pub fn set(&self, value: i64) {
        self.value.store(value, Ordering::Relaxed);
        self.record(value);
    }

    /// Adds a number, possibly negative; wraps around at the ends of the range.
    pub fn add(&self, change: i64) {
        let before = self.value.fetch_add(change, Ordering::Relaxed);
        self.record(before.wrapping_add(change));
    }

    fn record(&self, value: i64) {
        self.profiler.record_now(&self.name, SpanName::from_static("counter"), self.device, EventKind::Counter(value));
    }
}
