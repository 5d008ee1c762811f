//! The memory that a call takes on its thread, where [`Meter`] is the allocator of the program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, measured for each thread.
pub struct Meter;

fn change(bytes: i64) {
    HELD.set(HELD.get() + bytes);
    PEAK.set(PEAK.get().max(HELD.get()));
}

/// Counts `bytes` that are asked for, and takes them back if there is no memory.
fn counted(bytes: i64, request: impl FnOnce() -> *mut u8) -> *mut u8 {
    change(bytes);
    let pointer = request();
    if pointer.is_null() {
        change(-bytes);
    }
    pointer
}

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on from the caller.
        counted(layout.size() as i64, || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on from the caller.
        counted(layout.size() as i64, || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: passed on from the caller.
        counted(size as i64 - layout.size() as i64, || unsafe { System.realloc(pointer, layout, size) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        change(-(layout.size() as i64));
        // SAFETY: passed on from the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The result of a call, and the most bytes that it held at one time, requests that failed included. 0 in programs with
/// another allocator, and on other threads.
pub fn measured<R>(call: impl FnOnce() -> R) -> (R, u64) {
    let before = HELD.get();
    PEAK.set(before);
    let result = call();
    (result, (PEAK.get() - before).max(0) as u64)
}
