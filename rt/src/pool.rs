//! Work shared among threads: through the caller's `parallel_for`, or by threads that `tc_rt_threads_start` made.

use core::cell::UnsafeCell;
use core::convert::Infallible;
use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use tensorc_abi::artifact::{Parallel, Status, Task, status};
use tensorc_exec::Workers;

/// Turns a thread looks for work before it sleeps: some tens of microseconds.
const SPINS: u32 = 10_000;
/// Most threads of a pool.
const MAX_WORKERS: u32 = 256;

/// Threads that a context's work is shared among, with the calling one.
pub fn workers(parallel: &Parallel) -> usize {
    if parallel.parallel_for.is_some() { parallel.workers.clamp(1, MAX_WORKERS) as usize } else { 1 }
}

/// What the pieces of a region need.
struct PoolJob<'f> {
    body: &'f (dyn Fn(usize, Range<u64>) + Sync),
    tasks: u64,
    chunk: u64,
}

/// The threads of a context as workers of steps.
pub struct Threads<'p>(pub &'p Parallel);

// SAFETY: whoever gives a pool lets any thread of it use it.
unsafe impl Sync for Threads<'_> {}

impl Workers for Threads<'_> {
    type Error = Infallible;

    fn count(&self) -> u64 {
        workers(self.0) as u64
    }

    fn each(&self, tasks: u64, chunk: u64, body: &(dyn Fn(usize, Range<u64>) + Sync)) -> Result<(), Infallible> {
        match self.0.parallel_for.filter(|_| chunk < tasks) {
            Some(parallel_for) => {
                let mut region = PoolJob { body, tasks, chunk };
                // SAFETY: `execute` is given the region, which lives until all pieces are done.
                unsafe { parallel_for(self.0.pool, tasks.div_ceil(chunk), execute, (&raw mut region).cast()) };
            }
            None => body(0, 0..tasks),
        }
        Ok(())
    }
}

/// # Safety
/// `argument` is a region.
unsafe extern "C" fn execute(argument: *mut c_void, index: u64, worker: u32) {
    // SAFETY: by the caller's contract.
    let region = unsafe { &*argument.cast::<PoolJob<'_>>() };
    let begin = index.saturating_mul(region.chunk).min(region.tasks);
    (region.body)(worker as usize, begin..(begin + region.chunk).min(region.tasks));
}

/// What the threads are to do.
#[derive(Clone, Copy)]
struct ThreadCommand {
    task: Task,
    argument: *mut c_void,
    count: u64,
}

/// Threads that wait for work.
pub struct ArtifactPool {
    /// One region at a time; held by the thread whose region it is.
    turn: UnsafeCell<libc::pthread_mutex_t>,
    lock: UnsafeCell<libc::pthread_mutex_t>,
    wake: UnsafeCell<libc::pthread_cond_t>,
    job: UnsafeCell<Option<ThreadCommand>>,
    /// Grows with every job.
    generation: AtomicU64,
    /// The next piece.
    next: AtomicU64,
    /// Threads that have not finished with the job.
    busy: AtomicU32,
    stop: AtomicBool,
    /// Numbers given to threads so far.
    started: AtomicU32,
    workers: u32,
    threads: [libc::pthread_t; MAX_WORKERS as usize],
}

// SAFETY: the cells are used under the locks as their comments say.
unsafe impl Sync for ArtifactPool {}

/// Starts threads: with the calling one, `workers` execute the regions of all contexts that are given `out`.
///
/// # Safety
/// `out` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_threads_start(workers: u32, out: *mut Parallel) -> Status {
    if out.is_null() || workers == 0 || workers > MAX_WORKERS {
        return status::ARGUMENT;
    }
    // SAFETY: memory for one pool, or null.
    let pool = unsafe { libc::malloc(size_of::<ArtifactPool>()) }.cast::<ArtifactPool>();
    if pool.is_null() {
        return status::MEMORY;
    }
    let new = ArtifactPool {
        turn: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
        lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
        wake: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
        job: UnsafeCell::new(None),
        generation: AtomicU64::new(0),
        next: AtomicU64::new(0),
        busy: AtomicU32::new(0),
        stop: AtomicBool::new(false),
        started: AtomicU32::new(0),
        workers,
        // SAFETY: a number.
        threads: unsafe { core::mem::zeroed() },
    };
    // SAFETY: `pool` is memory for it.
    unsafe { pool.write(new) };
    for i in 1..workers as usize {
        // SAFETY: the pool lives until its threads have been joined.
        let failed = unsafe {
            let thread = &raw mut (*pool).threads[i];
            libc::pthread_create(thread, core::ptr::null(), work, pool.cast())
        };
        if failed != 0 {
            // SAFETY: threads below `i` were started, and nobody else has the pool.
            unsafe { end(pool, i) };
            return status::MEMORY;
        }
    }
    let parallel = Parallel { parallel_for: Some(parallel_for), pool: pool.cast(), workers };
    // SAFETY: valid by the caller's contract.
    unsafe { out.write(parallel) };
    status::OK
}

/// Ends the threads of `tc_rt_threads_start`.
///
/// # Safety
/// `parallel` is null or came from there; no context uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_threads_stop(parallel: *mut Parallel) {
    // SAFETY: by the caller's contract.
    let Some(parallel) = (unsafe { parallel.as_mut() }) else { return };
    let taken = core::mem::replace(parallel, Parallel::NONE);
    if !taken.pool.is_null() {
        let pool = taken.pool.cast::<ArtifactPool>();
        // SAFETY: all its threads were started.
        unsafe { end(pool, (*pool).workers as usize) };
    }
}

/// Joins the threads `1..started` and frees the pool.
///
/// # Safety
/// They were started, and nobody uses the pool.
unsafe fn end(pool: *mut ArtifactPool, started: usize) {
    // SAFETY: the pool is alive until it is freed at the end.
    unsafe {
        libc::pthread_mutex_lock((*pool).lock.get());
        (*pool).stop.store(true, Ordering::Release);
        libc::pthread_cond_broadcast((*pool).wake.get());
        libc::pthread_mutex_unlock((*pool).lock.get());
        for i in 1..started {
            libc::pthread_join((*pool).threads[i], core::ptr::null_mut());
        }
        libc::free(pool.cast());
    }
}

/// # Safety
/// `pool` is a [`ArtifactPool`].
unsafe extern "C" fn parallel_for(pool: *mut c_void, count: u64, task: Task, argument: *mut c_void) {
    // SAFETY: by the caller's contract; the job is written while no thread is busy with one, and the locks are
    // those of the pool.
    unsafe {
        let pool = &*pool.cast::<ArtifactPool>();
        libc::pthread_mutex_lock(pool.turn.get());
        let job = ThreadCommand { task, argument, count };
        libc::pthread_mutex_lock(pool.lock.get());
        *pool.job.get() = Some(job);
        pool.next.store(0, Ordering::Relaxed);
        pool.busy.store(pool.workers - 1, Ordering::Relaxed);
        pool.generation.fetch_add(1, Ordering::Release);
        libc::pthread_cond_broadcast(pool.wake.get());
        libc::pthread_mutex_unlock(pool.lock.get());
        pieces(pool, job, 0);
        let mut turns = 0u32;
        while pool.busy.load(Ordering::Acquire) > 0 {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(SPINS) {
                libc::sched_yield();
            }
            core::hint::spin_loop();
        }
        libc::pthread_mutex_unlock(pool.turn.get());
    }
}

/// Executes pieces until none is left.
///
/// # Safety
/// The job is the pool's.
unsafe fn pieces(pool: &ArtifactPool, job: ThreadCommand, worker: u32) {
    loop {
        let index = pool.next.fetch_add(1, Ordering::Relaxed);
        if index >= job.count {
            return;
        }
        // SAFETY: by the contract of whoever gave the task.
        unsafe { (job.task)(job.argument, index, worker) };
    }
}

extern "C" fn work(argument: *mut c_void) -> *mut c_void {
    // SAFETY: the pool outlives its threads.
    let pool = unsafe { &*argument.cast::<ArtifactPool>() };
    let worker = pool.started.fetch_add(1, Ordering::Relaxed) + 1;
    let mut seen = 0;
    loop {
        let mut turns = 0;
        while pool.generation.load(Ordering::Acquire) == seen && turns < SPINS {
            turns += 1;
            core::hint::spin_loop();
        }
        // SAFETY: the locks are the pool's, and the job is read under the lock.
        let job = unsafe {
            libc::pthread_mutex_lock(pool.lock.get());
            while pool.generation.load(Ordering::Relaxed) == seen && !pool.stop.load(Ordering::Relaxed) {
                libc::pthread_cond_wait(pool.wake.get(), pool.lock.get());
            }
            let job = *pool.job.get();
            libc::pthread_mutex_unlock(pool.lock.get());
            job
        };
        let generation = pool.generation.load(Ordering::Relaxed);
        if generation == seen {
            return core::ptr::null_mut();
        }
        seen = generation;
        if let Some(job) = job {
            // SAFETY: the job is the pool's, and lives until nobody is busy with it.
            unsafe { pieces(pool, job, worker) };
        }
        pool.busy.fetch_sub(1, Ordering::Release);
    }
}
