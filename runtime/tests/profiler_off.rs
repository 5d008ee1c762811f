//! A profiler that is off costs no allocation.

#[path = "common/allocations.rs"]
mod allocations;

use std::time::Instant;

use tensorc_runtime::Device;
use tensorc_runtime::profiler::{Profiler, Span, SpanName};

/// Allocations of everything that can be recorded, a hundred times.
fn allocated(profiler: &Profiler, name: &SpanName) -> u64 {
    let counter = profiler.counter(name, Device::default());
    let (now, before) = (Instant::now(), allocations::count());
    for _ in 0..100 {
        profiler.record(Span::new(name, "span", now, now));
        profiler.marker(name, "marker", Device::default());
        drop(profiler.scope(name, "scope"));
        profiler.task(name, "task").fail(&"error");
        counter.add(1);
    }
    allocations::count() - before
}

#[test]
fn a_profiler_that_is_off_allocates_nothing() {
    let (profiler, name) = (Profiler::default(), SpanName::from("name".to_owned()));
    assert_eq!(allocated(&profiler, &name), 0);
    profiler.start();
    assert!(allocated(&profiler, &name) > 0);
    profiler.pause();
    assert_eq!(allocated(&profiler, &name), 0);
}
