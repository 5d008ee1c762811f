//! The handshake between the caller of a parallel region and the pool's workers.
//!
//! All of it is one atomic word plus two condition variables for threads that gave up spinning:
//!
//! | bits   | field    | meaning |
//! |--------|----------|---------|
//! | 0..16  | active   | workers inside the region |
//! | 16..32 | sleepers | workers that sleep or are about to |
//! | 32     | open     | workers may enter |
//! | 33     | waiting  | the caller sleeps until `active` is zero |
//! | 34     | shutdown | workers must end |
//! | 35..64 | epoch    | number of the region, wrapping |
//!
//! A worker enters a region only while it is open, so the caller never waits for a worker that the
//! operating system has not scheduled: it does the work itself, closes the region and waits for
//! those inside. Because every transition is a read-modify-write of the same word, a publication
//! sees each sleeper that registered before it and no sequentially consistent fence is needed.
//!
//! The synchronisation types come from the parent module's `sync`, so that the model checker in
//! `tests/gate_model.rs` compiles this file against its own.

use super::sync::{Backoff, Condvar, Mutex, atomic::AtomicU64, atomic::Ordering, lock, wait};

const ACTIVE: u64 = 1;
const ACTIVE_MASK: u64 = 0xffff;
const SLEEPER: u64 = 1 << 16;
const SLEEPER_MASK: u64 = 0xffff << 16;
const OPEN: u64 = 1 << 32;
const WAITING: u64 = 1 << 33;
const SHUTDOWN: u64 = 1 << 34;
const EPOCH: u64 = 1 << 35;

fn epoch(state: u64) -> u64 {
    state / EPOCH
}

/// Outcome of [`Gate::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateEntry {
    /// Inside the region; [`Gate::leave`] must follow.
    Entered,
    /// No region that this worker has not yet seen.
    Idle,
    Shutdown,
}

pub struct Gate {
    state: AtomicU64,
    sleep: Mutex<()>,
    wake: Condvar,
    join: Mutex<()>,
    joined: Condvar,
}

impl Gate {
    /// Most workers one gate can count.
    pub const MAX_WORKERS: usize = ACTIVE_MASK as usize;

    pub fn new() -> Gate {
        Gate {
            state: AtomicU64::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            join: Mutex::new(()),
            joined: Condvar::new(),
        }
    }

    /// Opens a region and wakes up to `helpers` sleeping workers.
    ///
    /// The gate must be closed and empty; everything written before is visible to those who enter.
    pub fn open(&self, helpers: usize) {
        let before = self.state.fetch_add(EPOCH + OPEN, Ordering::AcqRel);
        let sleepers = ((before & SLEEPER_MASK) / SLEEPER) as usize;
        if sleepers == 0 {
            return;
        }
        // A registered sleeper that does not hold the lock yet will see the new epoch under it.
        drop(lock(&self.sleep));
        if helpers >= sleepers {
            self.wake.notify_all();
        } else {
            (0..helpers).for_each(|_| self.wake.notify_one());
        }
    }

    /// Closes the region and returns when nobody is inside, with their writes visible.
    pub fn close(&self) {
        let before = self.state.fetch_sub(OPEN, Ordering::AcqRel);
        if before & ACTIVE_MASK == 0 {
            return;
        }
        let occupied = || self.state.load(Ordering::Acquire) & ACTIVE_MASK != 0;
        let mut backoff = Backoff::new();
        while backoff.spin() {
            if !occupied() {
                return;
            }
        }
        self.state.fetch_or(WAITING, Ordering::AcqRel);
        let mut guard = lock(&self.join);
        while occupied() {
            guard = wait(&self.joined, guard);
        }
        drop(guard);
        self.state.fetch_and(!WAITING, Ordering::AcqRel);
    }

    /// Enters the open region unless `seen`, the epoch this worker last saw, is its own.
    pub fn enter(&self, seen: &mut u64) -> GateEntry {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state & SHUTDOWN != 0 {
                return GateEntry::Shutdown;
            }
            let current = epoch(state);
            if state & OPEN == 0 || current == *seen {
                *seen = current;
                return GateEntry::Idle;
            }
            match self.state.compare_exchange_weak(state, state + ACTIVE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    *seen = current;
                    return GateEntry::Entered;
                }
                Err(actual) => state = actual,
            }
        }
    }

    /// Leaves the region entered last. Nothing that belongs to the region may be touched after.
    pub fn leave(&self) {
        let before = self.state.fetch_sub(ACTIVE, Ordering::AcqRel);
        if before & ACTIVE_MASK == ACTIVE && before & WAITING != 0 {
            drop(lock(&self.join));
            self.joined.notify_one();
        }
    }

    /// Sleeps until a region newer than `seen` opens or the gate shuts down.
    pub fn sleep(&self, seen: u64) {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state & SHUTDOWN != 0 || epoch(state) != seen {
                return;
            }
            match self.state.compare_exchange_weak(state, state + SLEEPER, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(actual) => state = actual,
            }
        }
        let mut guard = lock(&self.sleep);
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state & SHUTDOWN != 0 || epoch(state) != seen {
                break;
            }
            guard = wait(&self.wake, guard);
        }
        drop(guard);
        self.state.fetch_sub(SLEEPER, Ordering::AcqRel);
    }

    /// Makes every worker's next [`Gate::enter`] return [`GateEntry::Shutdown`]. The gate is closed.
    pub fn shut_down(&self) {
        self.state.fetch_or(SHUTDOWN, Ordering::AcqRel);
        drop(lock(&self.sleep));
        self.wake.notify_all();
    }
}
