//! A profiler that is off costs no allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tensorc_runtime::Device;
use tensorc_runtime::profiler::{Name, Profiler, Span};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: passed on from the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: passed on from the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of everything that can be recorded, a hundred times.
fn allocations(profiler: &Profiler, name: &Name) -> u64 {
    let counter = profiler.counter(name, Device::default());
    let (now, before) = (Instant::now(), ALLOCATIONS.load(Ordering::Relaxed));
    for _ in 0..100 {
        profiler.record(Span::new(name, "span", now, now));
        profiler.marker(name, "marker", Device::default());
        drop(profiler.scope(name, "scope"));
        profiler.task(name, "task").fail(&"error");
        counter.add(1);
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// The only test of this binary: another one would be counted too.
#[test]
fn a_profiler_that_is_off_allocates_nothing() {
    let (profiler, name) = (Profiler::default(), Name::from("name".to_owned()));
    assert_eq!(allocations(&profiler, &name), 0);
    profiler.start();
    assert!(allocations(&profiler, &name) > 0);
    profiler.pause();
    assert_eq!(allocations(&profiler, &name), 0);
}
