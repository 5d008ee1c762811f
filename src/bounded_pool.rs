//! What threads take turns at: made on demand, used by one thread at a time, at most so many.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tensorc_runtime::Pool;

/// How long a waiting thread may be passed by others. Handing over at once would let a processor idle while the waiting
/// thread wakes up, which takes longer than a short run.
const MOST_PASSED: Duration = Duration::from_millis(1);

pub(crate) struct BoundedPool<T> {
    most: usize,
    /// What those that wait will start regions in.
    threads: Arc<Pool>,
    state: Mutex<PoolState<T>>,
}

/// Invariant: if there is room and somebody waits, the first that waits has been notified.
struct PoolState<T> {
    idle: Vec<T>,
    taken: usize,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    since: Instant,
    turn: Arc<Condvar>,
}

/// Room that a thread has taken, until it is dropped.
struct Room<'p, T>(&'p BoundedPool<T>);

impl<T> BoundedPool<T> {
    /// A pool of at most so many, one at least, whose users start regions in some threads.
    pub fn new(most: usize, threads: Arc<Pool>) -> BoundedPool<T> {
        let state = PoolState { idle: vec![], taken: 0, waiting: VecDeque::new() };
        BoundedPool { most: most.max(1), threads, state: Mutex::new(state) }
    }

    /// Calls `work` with one that is idle, or with a new one, or waits until there may be one. What a panic left behind is
    /// not used again.
    ///
    /// # Errors
    /// Those of `make` and `work`.
    pub fn with<R, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
        work: impl FnOnce(&mut T) -> Result<R, E>,
    ) -> Result<R, E> {
        let (_room, idle) = self.enter();
        let mut item = idle.map_or_else(make, Ok)?;
        let result = work(&mut item);
        self.lock().idle.push(item);
        result
    }

    /// Waits for room, and takes what is idle.
    fn enter(&self) -> (Room<'_, T>, Option<T>) {
        let mut state = self.lock();
        let may_pass = |state: &PoolState<T>| state.waiting.front().is_none_or(|w| w.since.elapsed() < MOST_PASSED);
        if state.taken == self.most || !may_pass(&state) {
            // Whoever waits follows at once: regions of others leave it its thread meanwhile, or a worker would wake up for a
            // few of them between two runs.
            let _share = self.threads.share();
            let turn = Arc::new(Condvar::new());
            state.waiting.push_back(Waiting { since: Instant::now(), turn: turn.clone() });
            let is_next = |state: &PoolState<T>| state.waiting.front().is_some_and(|w| Arc::ptr_eq(&w.turn, &turn));
            let may_not = |state: &mut PoolState<T>| state.taken == self.most || !is_next(state);
            state = turn.wait_while(state, may_not).unwrap_or_else(PoisonError::into_inner);
            state.waiting.pop_front();
        }
        state.taken += 1;
        self.notify(&state);
        (Room(self), state.idle.pop())
    }

    /// Wakes the first that waits if there is room.
    fn notify(&self, state: &PoolState<T>) {
        if let Some(next) = state.waiting.front().filter(|_| state.taken < self.most) {
            next.turn.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Room<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.taken -= 1;
        self.0.notify(&state);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn threads() -> Arc<Pool> {
        Arc::new(Pool::new(1).unwrap())
    }

    #[test]
    fn no_more_than_allowed_are_made_or_used_at_once() {
        let (pool, made, inside) = (BoundedPool::new(2, threads()), AtomicUsize::new(0), AtomicUsize::new(0));
        let one_turn = |pause: Duration| {
            let make = || Ok::<_, ()>(made.fetch_add(1, Ordering::SeqCst));
            pool.with(make, |item| {
                assert!(inside.fetch_add(1, Ordering::SeqCst) < 2);
                std::thread::sleep(pause);
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok(*item)
            })
        };
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let one_turn = &one_turn;
                scope.spawn(move || (0..50).for_each(|i| assert!(one_turn(Duration::from_micros(thread * i)).is_ok())));
            }
        });
        assert_eq!(made.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn who_waits_long_is_not_passed() {
        let (pool, turns, start) = (BoundedPool::new(1, threads()), AtomicUsize::new(0), Barrier::new(3));
        let turn = || {
            pool.with(
                || Ok::<_, ()>(()),
                |()| {
                    std::thread::sleep(3 * MOST_PASSED);
                    Ok(turns.fetch_add(1, Ordering::SeqCst))
                },
            )
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    start.wait();
                    let last = (0..20).map(|_| turn()).max();
                    assert!(last >= Some(Ok(30)), "one thread ended at turn {last:?} of 60");
                });
            }
        });
    }

    #[test]
    fn room_is_given_back_by_errors_and_panics() {
        let pool = BoundedPool::new(1, threads());
        assert_eq!(pool.with(|| Err::<u8, _>("no memory"), |_| Ok(())), Err("no memory"));
        assert_eq!(pool.with(|| Ok(1), |_| Err::<(), _>("wrong input")), Err("wrong input"));
        let panic = || pool.with(|| Ok::<_, &str>(2), |_| -> Result<(), _> { panic!("a kernel") });
        assert!(catch_unwind(AssertUnwindSafe(panic)).is_err());
        assert_eq!(pool.with(|| Ok::<_, &str>(3), |item| Ok(*item)), Ok(3));
    }
}
