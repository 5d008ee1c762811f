//! A function to be called once, stored without an allocation if it is small.
//!
//! All unsafe code of the engine is here, but for one instruction in `prefetch`.

use std::mem::MaybeUninit;

use super::complete::Completion;
use super::error::Failure;
use super::op::RunContext;

/// Bytes of captured values that need no allocation.
pub const INLINE_BYTES: usize = 64;

type InlineStorage = [MaybeUninit<u64>; INLINE_BYTES / 8];

/// The result of an operation, or nothing if its [`Completion`] will bring it.
pub type Returned = Option<Result<(), Failure>>;

struct Table {
    /// Moves the function out of the storage and calls it.
    call: unsafe fn(*mut InlineStorage, &RunContext<'_>, Option<Completion>) -> Returned,
    /// Drops the function in the storage.
    drop: unsafe fn(*mut InlineStorage),
}

/// An erased `FnOnce`, until it is called.
pub struct ErasedFn {
    storage: InlineStorage,
    table: &'static Table,
}

// SAFETY: `ErasedFn::new` takes functions that are `Send`, and a task is nothing but its function.
unsafe impl Send for ErasedFn {}

/// Of a task that was called: there is nothing in the storage.
static CALLED: Table = Table { call: |_, _, _| None, drop: |_| {} };

struct TableOf<F>(F);

impl<F> TableOf<F>
where
    F: FnOnce(&RunContext<'_>, Option<Completion>) -> Returned + Send + 'static,
{
    const TABLE: Table = Table { call: call::<F>, drop: drop_in_storage::<F> };
}

/// # Safety
/// The storage holds an `F`, which is gone afterwards.
unsafe fn call<F>(storage: *mut InlineStorage, context: &RunContext<'_>, completion: Option<Completion>) -> Returned
where
    F: FnOnce(&RunContext<'_>, Option<Completion>) -> Returned,
{
    // SAFETY: the caller's promise; `ErasedFn::new` checked size and alignment.
    let f = unsafe { storage.cast::<F>().read() };
    f(context, completion)
}

/// # Safety
/// The storage holds an `F`, which is gone afterwards.
unsafe fn drop_in_storage<F>(storage: *mut InlineStorage) {
    // SAFETY: the caller's promise; `ErasedFn::new` checked size and alignment.
    unsafe { storage.cast::<F>().drop_in_place() }
}

impl ErasedFn {
    pub fn new<F>(f: F) -> ErasedFn
    where
        F: FnOnce(&RunContext<'_>, Option<Completion>) -> Returned + Send + 'static,
    {
        if size_of::<F>() <= size_of::<InlineStorage>() && align_of::<F>() <= align_of::<InlineStorage>() {
            ErasedFn::inline(f)
        } else {
            let boxed = Box::new(f);
            ErasedFn::inline(move |context: &RunContext<'_>, completion| boxed(context, completion))
        }
    }

    fn inline<F>(f: F) -> ErasedFn
    where
        F: FnOnce(&RunContext<'_>, Option<Completion>) -> Returned + Send + 'static,
    {
        const { assert!(INLINE_BYTES >= size_of::<usize>()) };
        assert!(size_of::<F>() <= size_of::<InlineStorage>() && align_of::<F>() <= align_of::<InlineStorage>());
        let mut storage: InlineStorage = [MaybeUninit::uninit(); INLINE_BYTES / 8];
        // SAFETY: the storage is large enough and aligned for `F`, as asserted.
        unsafe { storage.as_mut_ptr().cast::<F>().write(f) };
        ErasedFn { storage, table: &TableOf::<F>::TABLE }
    }

    /// Calls the function, if that was not done before.
    pub fn run(&mut self, context: &RunContext<'_>, completion: Option<Completion>) -> Returned {
        let table = std::mem::replace(&mut self.table, &CALLED);
        // SAFETY: the storage holds the function that the table was made for. The call takes it
        // out, also if it unwinds, and what replaces the table does not touch the storage.
        unsafe { (table.call)(&raw mut self.storage, context, completion) }
    }
}

impl Drop for ErasedFn {
    fn drop(&mut self) {
        // SAFETY: the storage holds the function that the table was made for, and is not used again.
        unsafe { (self.table.drop)(&raw mut self.storage) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::device::Device;

    fn context() -> RunContext<'static> {
        RunContext { op: "test", device: Device::cpu(0), worker: 0, stream: 0, running: None }
    }

    struct Count(Arc<AtomicU64>);

    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[repr(align(32))]
    struct Aligned(u64);

    #[test]
    fn captured_values_are_dropped_once_whether_run_or_not() {
        let drops = Arc::new(AtomicU64::new(0));
        for run in [true, false] {
            for size in 0..3 {
                let before = drops.load(Ordering::Relaxed);
                let guard = Count(drops.clone());
                let mut task = match size {
                    0 => ErasedFn::new(move |_, _| {
                        let _ = &guard;
                        Some(Ok(()))
                    }),
                    1 => {
                        let large = [7u64; 20];
                        ErasedFn::new(move |_, _| {
                            assert_eq!((large.iter().sum::<u64>(), Arc::strong_count(&guard.0) > 0), (140, true));
                            Some(Ok(()))
                        })
                    }
                    _ => {
                        let aligned = Aligned(5);
                        ErasedFn::new(move |_, _| {
                            let aligned = &aligned;
                            assert_eq!((aligned.0, &raw const *aligned as usize % 32), (5, 0));
                            let _ = &guard;
                            Some(Ok(()))
                        })
                    }
                };
                match run {
                    true => assert!(
                        matches!(task.run(&context(), None), Some(Ok(()))) && task.run(&context(), None).is_none()
                    ),
                    false => drop(task),
                }
                assert_eq!(drops.load(Ordering::Relaxed), before + 1);
            }
        }
    }

    #[test]
    fn a_panic_drops_captured_values_once() {
        let drops = Arc::new(AtomicU64::new(0));
        let guard = Count(drops.clone());
        let mut task = ErasedFn::new(move |_, _| {
            let _guard = &guard;
            panic!("stop")
        });
        let run = std::panic::AssertUnwindSafe(|| task.run(&context(), None));
        assert!(std::panic::catch_unwind(run).is_err());
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }
}
