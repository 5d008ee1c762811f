//! The synchronisation primitives of the pool, from the standard library.

use std::time::{Duration, Instant};

pub use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic};

/// How long a thread looks for work before it sleeps.
///
/// Long enough to bridge a step that is not worth splitting, short enough that an idle process
/// uses no processor time.
const SPIN_TIME: Duration = Duration::from_micros(50);
/// How long it keeps the processor for itself before offering it to other threads between looks.
const EXCLUSIVE_SPIN_TIME: Duration = Duration::from_micros(5);
/// Looks between two readings of the clock.
const SPINS_PER_CLOCK_READ: u32 = 16;

/// Acquires the lock; a poisoned one holds no data that could be broken.
pub fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn wait<'a>(condvar: &Condvar, guard: MutexGuard<'a, ()>) -> MutexGuard<'a, ()> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Bounded busy waiting: spin, then spin and yield, then give up.
pub struct Backoff {
    looks: u32,
    start: Option<Instant>,
    yielding: bool,
}

impl Backoff {
    pub fn new() -> Backoff {
        Backoff { looks: 0, start: None, yielding: false }
    }

    /// Waits a moment; false when it is time to sleep instead.
    pub fn spin(&mut self) -> bool {
        self.looks += 1;
        if self.looks.is_multiple_of(SPINS_PER_CLOCK_READ) || self.yielding {
            let waited = self.start.get_or_insert_with(Instant::now).elapsed();
            if waited > SPIN_TIME {
                return false;
            }
            self.yielding = waited > EXCLUSIVE_SPIN_TIME;
        }
        if self.yielding {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        true
    }
}
