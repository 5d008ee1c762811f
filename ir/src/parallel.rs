//! Work of the compiler on several threads, within the limit that a caller states.
//!
//! The threads are rayon's, in a pool of the compiler's own. In rayon's global pool a compilation would wait for tasks
//! of the program around it, and these may wait for the compilation: a session being compiled is behind a lock.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rayon::ThreadPool;

use crate::extent::Scope;

/// Results of `work` for each item, in order. At most `threads` threads work, the calling one among them; with a limit
/// of one, no other takes part.
///
/// Items are begun in order. None is begun after one has failed, so that the error is the same on any number of
/// threads. There may be fewer threads than allowed: a call takes those that no other call uses, and none if they
/// cannot be started. A call inside `work` has only its own thread, which keeps all within the limit. So has a call
/// from a thread of any rayon pool, which would take up other tasks of that pool while it waits: what they need may be
/// locked further down on its stack.
///
/// # Errors
/// What the first item, in order, fails with; a panic is a failure, of which `panicked` makes the error.
pub fn try_map<T: Send, R: Send, E: Send>(
    items: Vec<T>,
    threads: usize,
    work: impl Fn(T) -> Result<R, E> + Sync,
    panicked: impl Fn(Box<dyn Any + Send>) -> E,
) -> Result<Vec<R>, E> {
    let helpers = threads.min(items.len()).saturating_sub(1);
    let queue = Mutex::new(items.into_iter().enumerate());
    let done = Mutex::new(vec![]);
    // A function of its own, so that the queue is not locked while an item is worked on.
    let next = || lock(&queue).next();
    let run = || {
        while let Some((index, item)) = next() {
            let result = catch_unwind(AssertUnwindSafe(|| work(item)));
            if !matches!(result, Ok(Ok(_))) {
                // What is left comes after this item.
                lock(&queue).by_ref().for_each(drop);
            }
            lock(&done).push((index, result));
        }
    };
    let scope = Scope::current();
    let help = || scope.enter(run);
    match Helpers::take(helpers) {
        Some(taken) => taken.helpers.pool.in_place_scope(|pool| {
            (0..taken.count).for_each(|_| pool.spawn(|_| help()));
            run();
        }),
        None => run(),
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result.unwrap_or_else(|payload| Err(panicked(payload)))).collect()
}

/// The threads that help those that call.
struct Helpers {
    pool: ThreadPool,
    /// How many of them nobody has taken. Every job has a thread at once, so no call waits for work of another.
    free: AtomicUsize,
}

thread_local! {
    /// Whether helpers work for a call of this thread.
    static HELPED: Cell<bool> = const { Cell::new(false) };
}

/// Some of the helpers, until the thread that took them drops this.
struct TakenHelpers {
    helpers: &'static Helpers,
    count: usize,
}

impl Helpers {
    /// Takes up to so many; `None` if there are none.
    fn take(wanted: usize) -> Option<TakenHelpers> {
        static ALL: OnceLock<Option<Helpers>> = OnceLock::new();
        if wanted == 0 || HELPED.get() || rayon::current_thread_index().is_some() {
            return None;
        }
        let helpers = ALL.get_or_init(Helpers::start).as_ref()?;
        let rest = |free: usize| Some(free.saturating_sub(wanted));
        let before = helpers.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).unwrap_or(0);
        let count = before.min(wanted);
        HELPED.set(count > 0);
        (count > 0).then_some(TakenHelpers { helpers, count })
    }

    fn start() -> Option<Helpers> {
        let count = std::thread::available_parallelism().map_or(1, |n| n.get());
        let builder = rayon::ThreadPoolBuilder::new().num_threads(count);
        let pool = builder.thread_name(|index| format!("tensorc-compile-{index}")).build().ok()?;
        Some(Helpers { pool, free: AtomicUsize::new(count) })
    }
}

impl Drop for TakenHelpers {
    fn drop(&mut self) {
        self.helpers.free.fetch_add(self.count, Ordering::Relaxed);
        HELPED.set(false);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used, reason = "failures are made on purpose")]

    use std::collections::BTreeSet;
    use std::thread::{current, sleep};
    use std::time::Duration;

    use super::*;

    /// The text of a panic.
    fn text(payload: Box<dyn Any + Send>) -> String {
        format!("panic: {}", payload.downcast_ref::<&str>().unwrap())
    }

    /// Names of the threads, and most at a time, that work on `count` items which take a while.
    fn threads_of(count: usize, threads: usize) -> (BTreeSet<String>, usize) {
        let names: Mutex<BTreeSet<String>> = Mutex::default();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |_| {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            lock(&names).insert(format!("{:?}", current().id()));
            sleep(Duration::from_micros(200));
            now.fetch_sub(1, Ordering::Relaxed);
            Ok(())
        };
        try_map((0..count).collect(), threads, work, text).unwrap();
        (names.into_inner().unwrap(), most.into_inner())
    }

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let expected: Vec<usize> = (0..100).map(|i| i * i).collect();
        for threads in [0, 1, 2, 7, 1000] {
            assert_eq!(try_map((0..100).collect(), threads, |i: usize| Ok(i * i), text), Ok(expected.clone()));
        }
        assert_eq!(try_map(vec![], 4, |i: usize| Ok(i), text), Ok(vec![]));
    }

    #[test]
    fn the_first_failure_in_order_is_the_error() {
        for threads in [1, 2, 7] {
            let work = |i: usize| {
                // Those that fail later in order are done sooner.
                sleep(Duration::from_micros(50 * (10 - i as u64 % 10)));
                if i % 10 >= 5 { Err(format!("item {i}")) } else { Ok(i) }
            };
            for _ in 0..20 {
                assert_eq!(try_map((0..40).collect(), threads, work, text), Err("item 5".to_owned()));
            }
        }
    }

    #[test]
    fn nothing_is_begun_after_a_failure() {
        for threads in [1, 2, 7] {
            let begun = AtomicUsize::new(0);
            let work = |i: usize| {
                begun.fetch_add(1, Ordering::Relaxed);
                if i == 3 { Err(String::new()) } else { Ok(()) }
            };
            assert!(try_map((0..1_000_000).collect(), threads, work, text).is_err());
            let begun = begun.into_inner();
            assert!(begun == 4 || threads > 1 && (4..1_000_000).contains(&begun), "{begun} on {threads} threads");
        }
    }

    #[test]
    fn a_panic_is_an_error_and_leaves_no_trace() {
        for threads in [1, 2, 7] {
            for first in 0..20 {
                let work = |i: usize| if i >= first { panic!("stop") } else { Ok(i) };
                assert_eq!(try_map((0..20).collect(), threads, work, text), Err("panic: stop".to_owned()));
                // An error before it comes first.
                let work = |i: usize| if i > first { panic!("stop") } else { Err::<(), _>("refused".to_owned()) };
                assert_eq!(try_map((0..20).collect(), threads, work, text), Err("refused".to_owned()));
                assert_eq!(try_map((0..5).collect(), threads, |i: usize| Ok(i), text), Ok(vec![0, 1, 2, 3, 4]));
            }
        }
        let helped = |_| threads_of(20, 2).0.len() == 2;
        assert!((0..1000).any(helped), "the helpers are back");
    }

    #[test]
    fn no_more_threads_work_than_allowed() {
        let own = BTreeSet::from([format!("{:?}", current().id())]);
        assert_eq!(threads_of(20, 1), (own.clone(), 1));
        assert_eq!(threads_of(1, 8), (own, 1));
        for threads in [2, 3, 8] {
            let (names, most) = threads_of(40, threads);
            assert!(names.len() <= threads && most <= threads, "{} of {threads}", names.len());
        }
    }

    #[test]
    fn a_call_within_another_has_its_own_thread_alone() {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let inner = |_| {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            sleep(Duration::from_micros(200));
            now.fetch_sub(1, Ordering::Relaxed);
            Ok(())
        };
        let outer = |_| try_map((0..10).collect::<Vec<usize>>(), 2, inner, text);
        assert!(try_map((0..20).collect::<Vec<usize>>(), 2, outer, text).is_ok());
        assert!(most.into_inner() <= 2);
        let foreign = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        assert_eq!(foreign.install(|| threads_of(10, 4)).1, 1);
    }

    #[test]
    fn calls_do_not_wait_for_each_other() {
        let all = std::thread::available_parallelism().unwrap().get() + 1;
        let (begun, release) = (AtomicUsize::new(0), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            let held = scope.spawn(|| {
                let work = |_| {
                    begun.fetch_add(1, Ordering::Relaxed);
                    while !release.load(Ordering::Relaxed) {
                        sleep(Duration::from_micros(100));
                    }
                    Ok(())
                };
                try_map((0..all).collect(), all, work, text)
            });
            while begun.load(Ordering::Relaxed) == 0 {
                sleep(Duration::from_micros(100));
            }
            let other = try_map((0..10).collect(), all, |i: usize| Ok(i), text);
            release.store(true, Ordering::Relaxed);
            assert_eq!(other, Ok((0..10).collect()));
            assert!(held.join().unwrap().is_ok());
        });
    }
}
