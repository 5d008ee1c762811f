//! Fork-join parallelism over persistent threads.
//!
//! [`Pool::run`] splits `0..tasks` into chunks. Neighbouring chunks are a thread's home: it claims these first, then
//! what is left of the others', so that regions over the same rows find in a thread's caches what it wrote there. Who
//! executes a chunk is not determined; callers write results that do not depend on it. Workers spin for some tens of
//! microseconds after a region and then sleep.

mod gate;
pub(crate) mod sync;

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;

use gate::{Gate, GateEntry};
use sync::Backoff;

/// The function of a parallel region: called with the number of the executing thread in this
/// region and a half-open range of tasks.
pub type RegionFn<'a> = dyn Fn(usize, Range<u64>) + Sync + 'a;

/// Why a pool cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The system started no thread.
    #[error("cannot start worker thread {index} of {threads}")]
    Spawn {
        /// Number of the thread, from 1.
        index: usize,
        /// Threads of the pool, the caller included.
        threads: usize,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The number of threads is out of range.
    #[error("a pool has between 1 and {max} threads, not {threads}")]
    Threads {
        /// The number asked for.
        threads: usize,
        /// The largest number; the least is 1.
        max: usize,
    },
}

/// A task panicked; the remaining chunks of its region may not have run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task panicked: {message}")]
pub struct TaskPanic {
    /// The text of the panic.
    pub message: String,
}

impl TaskPanic {
    /// The error for a payload caught by [`catch_unwind`].
    pub fn from_payload(payload: Box<dyn Any + Send>) -> TaskPanic {
        TaskPanic { message: tensorc_abi::panic_text(payload, "payload that is not text") }
    }
}

/// Keeps what different threads write in different cache lines (and prefetched pairs of them).
#[repr(align(128))]
struct Padded<T>(T);

/// One parallel region: what those inside execute.
struct ParallelRegion {
    /// Borrowed from the caller of [`Pool::run`], which does not return while anyone is inside.
    task: *const RegionFn<'static>,
    tasks: u64,
    grain: u64,
    chunks: u64,
    /// Runs of chunks with a counter each.
    homes: usize,
}

impl ParallelRegion {
    /// First chunk of a home; the number of chunks for the one after the last.
    fn home_start(&self, home: usize) -> u64 {
        (u128::from(self.chunks) * home as u128 / self.homes as u128) as u64
    }
}

struct Shared {
    gate: Padded<Gate>,
    /// Next chunk to claim of each home.
    next: Box<[Padded<AtomicU64>]>,
    /// How many more workers may help in a region that has fewer homes than there are threads.
    places: Padded<AtomicI64>,
    /// Written by the caller while the gate is closed and empty, read by workers inside.
    region: Padded<UnsafeCell<Option<ParallelRegion>>>,
    panic: Mutex<Option<TaskPanic>>,
}

// SAFETY: `region` is written only while the gate is closed and empty and read only by threads
// inside it, and the task it points to is `Sync`; the gate orders the two. The rest is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is not tied to a thread.
unsafe impl Send for Shared {}

thread_local! {
    /// Whether this thread is executing a task of some pool.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Threads that execute parallel regions one at a time.
///
/// Safe to share: while one thread's region runs, a region started by another thread, or by a task,
/// is executed by the thread that started it alone. Threads that announce a run ([`Pool::share`]) count as threads of the
/// pool: each takes one from the regions of the others.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held by the thread whose region is running.
    busy: Mutex<()>,
    /// Runs that have been announced and go on.
    sharing: Padded<AtomicUsize>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] being one of them.
    ///
    /// The count is taken as given; [`crate::threads::resolve_threads`] bounds it by what the process
    /// may use.
    ///
    /// # Errors
    /// The count is 0 or too large, or the system starts no more threads.
    pub fn new(threads: usize) -> Result<Pool, PoolError> {
        if threads == 0 || threads > Gate::MAX_WORKERS {
            return Err(PoolError::Threads { threads, max: Gate::MAX_WORKERS });
        }
        let shared = Arc::new(Shared {
            gate: Padded(Gate::new()),
            next: (0..threads).map(|_| Padded(AtomicU64::new(0))).collect(),
            places: Padded(AtomicI64::new(0)),
            region: Padded(UnsafeCell::new(None)),
            panic: Mutex::new(None),
        });
        let mut pool = Pool {
            shared,
            busy: Mutex::new(()),
            sharing: Padded(AtomicUsize::new(0)),
            workers: Vec::with_capacity(threads - 1),
        };
        // Spinning workers beyond the processors at hand would take time from those that work.
        let spin = threads <= crate::threads::available_threads();
        for index in 1..threads {
            let shared = pool.shared.clone();
            let worker = std::thread::Builder::new()
                .name(format!("tensorc-{index}"))
                .spawn(move || worker_loop(&shared, index, spin))
                .map_err(|source| PoolError::Spawn { index, threads, source })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Announces that the calling thread starts regions until the share is dropped.
    pub fn share(&self) -> PoolShare<'_> {
        self.sharing.0.fetch_add(1, Ordering::Relaxed);
        PoolShare(self)
    }

    /// How many threads may help in a region now.
    fn helpers(&self) -> usize {
        self.threads().saturating_sub(self.sharing.0.load(Ordering::Relaxed).max(1))
    }

    /// Calls `task(thread, range)` for ranges of `grain` tasks (the last may be shorter) that
    /// together cover `0..tasks` once, and returns when all are done.
    ///
    /// `thread` is below [`Pool::threads`] and no two concurrent calls of one region share it. A
    /// region of one chunk, in a pool of one thread, of a busy pool, inside a task, or beside as many runs as there are threads, runs on the
    /// calling thread alone, as thread 0, in one call.
    ///
    /// # Errors
    /// [`TaskPanic`] when a task panicked; chunks not yet begun were skipped.
    pub fn run(&self, tasks: u64, grain: u64, task: &RegionFn<'_>) -> Result<(), TaskPanic> {
        if tasks == 0 {
            return Ok(());
        }
        let chunks = tasks.div_ceil(grain.max(1));
        let free = self.helpers();
        if chunks == 1 || free == 0 || INSIDE.get() {
            return run_alone(tasks, task);
        }
        let _busy = match self.busy.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return run_alone(tasks, task),
        };
        let shared = &*self.shared;
        let task: *const RegionFn<'_> = task;
        // SAFETY: only the lifetime changes. The pointer is used by threads inside the gate, and
        // this function returns after the gate is closed and empty; nothing in between unwinds.
        let task = unsafe { std::mem::transmute::<*const RegionFn<'_>, *const RegionFn<'static>>(task) };
        let helpers = usize::try_from(chunks - 1).unwrap_or(usize::MAX).min(free);
        let region = ParallelRegion { task, tasks, grain: grain.max(1), chunks, homes: helpers + 1 };
        for (home, next) in shared.next.iter().enumerate().take(region.homes) {
            next.0.store(region.home_start(home), Ordering::Relaxed);
        }
        shared.places.0.store(helpers as i64, Ordering::Relaxed);
        // SAFETY: `busy` is held and the gate is closed and empty, so no other thread has access.
        unsafe { *shared.region.0.get() = Some(region) };
        shared.gate.0.open(helpers);
        INSIDE.set(true);
        execute(shared, 0);
        INSIDE.set(false);
        shared.gate.0.close();
        match shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            None => Ok(()),
            Some(panic) => Err(panic),
        }
    }
}

/// A run that uses a pool.
pub struct PoolShare<'p>(&'p Pool);

impl Drop for PoolShare<'_> {
    fn drop(&mut self) {
        self.0.sharing.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.gate.0.shut_down();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks; there is nothing to report here.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

fn run_alone(tasks: u64, task: &RegionFn<'_>) -> Result<(), TaskPanic> {
    catch_unwind(AssertUnwindSafe(|| task(0, 0..tasks))).map_err(TaskPanic::from_payload)
}

/// Claims and executes chunks of the current region until none is left. Never unwinds.
fn execute(shared: &Shared, thread: usize) {
    // SAFETY: the calling thread is inside the gate, or is the caller that opened it, so the region
    // is set and not written until it has left.
    let Some(region) = (unsafe { &*shared.region.0.get() }) else { return };
    // A worker that spins enters every region.
    let surplus = thread > 0 && region.homes < shared.next.len();
    if surplus && shared.places.0.fetch_sub(1, Ordering::Relaxed) <= 0 {
        return;
    }
    // SAFETY: the caller keeps the task alive while anyone is inside the gate.
    let task = unsafe { &*region.task };
    let work = || {
        for home in (thread..thread + region.homes).map(|home| home % region.homes) {
            let end = region.home_start(home + 1);
            loop {
                let chunk = shared.next[home].0.fetch_add(1, Ordering::Relaxed);
                if chunk >= end {
                    break;
                }
                let begin = chunk * region.grain;
                task(thread, begin..region.tasks.min(begin.saturating_add(region.grain)));
            }
        }
    };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
        for next in &shared.next {
            next.0.fetch_max(region.chunks, Ordering::Relaxed);
        }
        let mut first = shared.panic.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(TaskPanic::from_payload(payload));
    }
}

fn worker_loop(shared: &Shared, thread: usize, spin: bool) {
    INSIDE.set(true);
    let gate = &shared.gate.0;
    let mut seen = 0;
    let mut backoff = Backoff::new();
    loop {
        match gate.enter(&mut seen) {
            GateEntry::Entered => {
                execute(shared, thread);
                gate.leave();
                backoff = Backoff::new();
            }
            GateEntry::Shutdown => return,
            GateEntry::Idle if spin && backoff.spin() => {}
            GateEntry::Idle => {
                gate.sleep(seen);
                backoff = Backoff::new();
            }
        }
    }
}

#[cfg(test)]
mod tests;
