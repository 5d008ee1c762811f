//! Execution of steps: on workers that share their tasks, or by a device in the order of its queue.

use core::ops::Range;

use tensorc_abi::image::slot;

use crate::step::{CHUNKS_PER_WORKER, Step, Work, WorkerMemory};

/// Most steps that run side by side: what a worker looks through to find its next chunk.
pub const MAX_STEPS: usize = 16;

/// Threads that share the work of steps.
pub trait Workers {
    /// Why work was not executed.
    type Error;

    /// How many there are, with the calling one.
    fn count(&self) -> u64;

    /// Into how many pieces a step is cut if it has as many tasks; `ns` is its estimated time, 0 if that is not known.
    #[inline(always)]
    fn pieces(&self, _ns: u64) -> u64 {
        match self.count() {
            1 => 1,
            count => count * CHUNKS_PER_WORKER,
        }
    }

    /// Executes `0..tasks` in pieces of `grain`, each with the number of its worker, and returns when all have ended. Pieces
    /// that run at the same time have different workers, below [`Workers::count`]; a worker that is alone gets all as one.
    ///
    /// # Errors
    /// A piece panicked.
    fn each(&self, tasks: u64, grain: u64, piece: &(dyn Fn(usize, Range<u64>) + Sync)) -> Result<(), Self::Error>;

    /// Executes a part of the step at a position of those that run side by side, by calling `part`.
    #[inline(always)]
    fn chunk(&self, _step: usize, part: impl FnOnce()) {
        part();
    }
}

/// What steps work on.
#[derive(Clone, Copy)]
pub struct Memory {
    /// The table of arguments: addresses of the arguments of every step, from [`Step::first_slot`] on.
    pub table: *const *mut u8,
    /// Start of the arena, in which steps have working memory.
    pub arena: *mut u8,
    /// Where workers have it in every step, if nothing else that the step uses lies behind the beginning.
    pub common: Option<WorkerMemory>,
}

// SAFETY: the table is not written during a run. What lies behind the addresses is accessed by tasks, which are free of
// data races: those of a step by the contract of `run`, those of steps side by side because neither writes what the other
// accesses. Workers use disjoint parts of the arena as working memory, chosen by their number.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// As for [`run`]: nobody else executes these tasks, or is this worker.
    #[inline]
    unsafe fn execute(&self, step: &Step, worker: usize, tasks: Range<u64>) {
        let scratch = self.arena.wrapping_add(step.scratch.or(self.common).of_worker(worker));
        // SAFETY: passed on from the caller.
        unsafe { step.execute(self.table.wrapping_add(step.first_slot), tasks, scratch) }
    }
}

/// Executes steps that do not depend on each other, split over workers where that is worth it; of several at most
/// [`MAX_STEPS`]. All of them are a processor's: hosts refuse others
/// when they load a plan.
///
/// # Errors
/// Those of the workers.
///
/// # Safety
/// The table has an entry for every argument of the steps, the address of memory of its buffer's size; kernels may be
/// called, access nothing but their arguments and have iterations free of data races; the arena reaches to the
/// [`WorkerMemory::end`] of every step and of the common memory, which has the largest stride, for as many workers as there
/// are; none of the steps writes what another accesses, nor has its working memory there, and all that have some have the
/// same.
#[inline]
pub unsafe fn run<W: Workers + Sync, S: AsRef<Step> + Sync>(
    steps: &[S],
    memory: Memory,
    workers: &W,
) -> Result<(), W::Error> {
    let [step] = steps else {
        // SAFETY: passed on from the caller.
        return unsafe { side_by_side(steps, memory, workers) };
    };
    let step = step.as_ref();
    if step.tasks == 0 {
        return Ok(());
    }
    let pieces = workers.pieces(step.ns);
    if pieces == 1 || step.grain >= step.tasks {
        // SAFETY: passed on from the caller.
        unsafe { memory.execute(step, 0, 0..step.tasks) };
        return Ok(());
    }
    workers.each(step.tasks, step.chunk(pieces), &|worker, tasks| {
        // SAFETY: passed on from the caller; pieces have no task in common.
        workers.chunk(0, || unsafe { memory.execute(step, worker, tasks) });
    })
}

/// [`run`] of several steps.
///
/// # Errors
/// As [`run`].
///
/// # Safety
/// As [`run`].
#[inline(never)]
unsafe fn side_by_side<W: Workers + Sync, S: AsRef<Step> + Sync>(
    steps: &[S],
    memory: Memory,
    workers: &W,
) -> Result<(), W::Error> {
    let chunks = Chunks::new(steps, workers.count() * CHUNKS_PER_WORKER);
    workers.each(chunks.count(), 1, &|worker, some| {
        for (step, tasks) in some.map(|chunk| chunks.get(chunk)) {
            // SAFETY: passed on from the caller; chunks have no task in common.
            workers.chunk(step, || unsafe { memory.execute(steps[step].as_ref(), worker, tasks) });
        }
    })
}

/// The chunks of several steps, numbered through.
struct Chunks {
    /// One after the last chunk of each step.
    ends: [u64; MAX_STEPS],
    /// Tasks of a chunk of each step.
    sizes: [u64; MAX_STEPS],
    /// Tasks of each step.
    tasks: [u64; MAX_STEPS],
    steps: usize,
}

impl Chunks {
    /// Cuts at most [`MAX_STEPS`] steps into about `wanted` chunks of similar time.
    fn new<S: AsRef<Step>>(steps: &[S], wanted: u64) -> Chunks {
        let steps = &steps[..steps.len().min(MAX_STEPS)];
        let mut chunks =
            Chunks { ends: [0; MAX_STEPS], sizes: [1; MAX_STEPS], tasks: [0; MAX_STEPS], steps: steps.len() };
        let total = steps.iter().fold(0u64, |sum, step| sum.saturating_add(step.as_ref().ns)).max(1);
        let mut end = 0;
        for (i, step) in steps.iter().map(AsRef::as_ref).enumerate() {
            let size = step.chunk(wanted.saturating_mul(step.ns).div_ceil(total).max(1));
            end += step.tasks.div_ceil(size);
            (chunks.ends[i], chunks.sizes[i], chunks.tasks[i]) = (end, size, step.tasks);
        }
        chunks
    }

    fn count(&self) -> u64 {
        self.steps.checked_sub(1).map_or(0, |last| self.ends[last])
    }

    /// Step and tasks of a chunk below [`Chunks::count`].
    fn get(&self, chunk: u64) -> (usize, Range<u64>) {
        let step = self.ends[..self.steps].partition_point(|end| *end <= chunk);
        let first = if step == 0 { 0 } else { self.ends[step - 1] };
        let begin = (chunk - first) * self.sizes[step];
        (step, begin..self.tasks[step].min(begin + self.sizes[step]))
    }
}

/// A device that does what it is told in order, later.
pub trait Queue {
    /// Why the device refuses.
    type Error;

    /// Launches a function by its number.
    ///
    /// # Errors
    /// The device refuses.
    ///
    /// # Safety
    /// The arguments are addresses of the device's memory as large as the function takes, until the queue has passed.
    unsafe fn launch(&mut self, function: u64, arguments: &[*mut u8]) -> Result<(), Self::Error>;

    /// Copies inside the device's memory.
    ///
    /// # Errors
    /// The device refuses.
    ///
    /// # Safety
    /// Both are addresses of so many bytes of the device's memory, apart from each other, until the queue has passed.
    unsafe fn copy(&mut self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), Self::Error>;
}

/// A step of a device, whose arguments are known to lie in the table.
#[derive(Clone, Copy)]
pub struct DeviceStep {
    work: DeviceWork,
    /// First of its consecutive entries in the table of arguments.
    first_slot: usize,
}

/// What a step does on a device.
#[derive(Clone, Copy)]
enum DeviceWork {
    Launch {
        function: u64,
        arguments: usize,
    },
    /// A copy of so many bytes.
    Copy(usize),
}

impl DeviceStep {
    /// The number of the function that it launches, if it does.
    pub fn function(&self) -> Option<u64> {
        match self.work {
            DeviceWork::Launch { function, .. } => Some(function),
            DeviceWork::Copy(_) => None,
        }
    }

    /// A step as a device does it; `None` if it has no form there, or its arguments are not all among `slots` entries of
    /// the table.
    pub fn of(step: &Step, slots: usize) -> Option<DeviceStep> {
        let (work, count) = match step.work {
            Work::Launch { function, arguments } => (DeviceWork::Launch { function, arguments }, arguments),
            Work::Copy(bytes) => (DeviceWork::Copy(usize::try_from(bytes).ok()?), 2),
            _ => return None,
        };
        let fits = step.first_slot.checked_add(count).is_some_and(|end| end <= slots);
        fits.then_some(DeviceStep { work, first_slot: step.first_slot })
    }

    /// Puts the step into the queue of a device.
    ///
    /// # Errors
    /// Those of the queue.
    ///
    /// # Safety
    /// `table` has at least the entries that [`DeviceStep::of`] was told of: the addresses of all arguments, memory of the
    /// device as large as the plan says until the queue has passed.
    pub unsafe fn enqueue<Q: Queue>(&self, table: &[*mut u8], queue: &mut Q) -> Result<(), Q::Error> {
        match self.work {
            // SAFETY: passed on from the caller, as below.
            DeviceWork::Launch { function, arguments } => unsafe {
                queue.launch(function, table.get_unchecked(self.first_slot..self.first_slot + arguments))
            },
            // SAFETY: as above; the plan's verifier proved that both are apart.
            DeviceWork::Copy(bytes) => unsafe {
                let [source, target] = [0, 1].map(|i| *table.get_unchecked(self.first_slot + i));
                queue.copy(source, target, bytes)
            },
        }
    }
}

/// Enters addresses into the table of arguments: those of slots whose storage class and position have a base.
pub fn bind<'s>(
    slots: impl Iterator<Item = &'s [u64; slot::WORDS]>,
    table: &mut [*mut u8],
    base: impl Fn(u64, usize) -> Option<*mut u8>,
) {
    for (entry, slot) in table.iter_mut().zip(slots) {
        if let Some(base) = base(slot[slot::HOME], slot[slot::INDEX] as usize) {
            *entry = base.wrapping_add(slot[slot::OFFSET] as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    unsafe extern "C" fn nothing(_: *const *mut u8, _: *const i64) {}

    fn step(tasks: u64, grain: u64, ns: u64) -> Step {
        Step { tasks, grain, ns, ..Step::of(Work::Kernel(nothing)) }
    }

    #[test]
    fn workers_have_one_place_where_it_fits() {
        let steps =
            [(0, 640), (1024, 128), (4096, 640), (5120, 256)].map(|(offset, stride)| WorkerMemory { offset, stride });
        for workers in [1, 2, 3, 64] {
            let arena = steps.iter().filter_map(|own| own.end(workers)).max().unwrap();
            let common = WorkerMemory::common(arena, 640, workers);
            let used = steps.map(|own| own.or(common));
            for (own, used) in steps.iter().zip(used) {
                assert!(used.offset >= own.offset && used.stride >= own.stride && used.offset.is_multiple_of(64));
                assert!(used.end(workers).unwrap() <= arena);
            }
            match workers {
                1 => assert_eq!(used, steps),
                _ => assert!(used[0] == used[1] && used[1].offset > 1024, "{used:?}"),
            }
        }
        assert_eq!(WorkerMemory::common(1000, 640, 2), None);
    }

    #[test]
    fn chunks_cover_every_task_once() {
        let sizes = [(1, 1, 5), (1000, 10, 1 << 40), (7, 7, 20_000), (64, 1, u64::MAX), (3, 1, 0)];
        for count in 1..=sizes.len() {
            let steps: Vec<Step> = sizes[..count].iter().map(|(tasks, grain, ns)| step(*tasks, *grain, *ns)).collect();
            for wanted in [1, 2, 8, 1000] {
                let chunks = Chunks::new(&steps, wanted);
                let mut next = [0; 5];
                for chunk in 0..chunks.count() {
                    let (step, tasks) = chunks.get(chunk);
                    assert!(tasks.start == next[step] && tasks.start < tasks.end);
                    assert!(tasks.end - tasks.start >= sizes[step].1 || tasks.end == sizes[step].0);
                    next[step] = tasks.end;
                }
                assert!(next[..count].iter().zip(sizes).all(|(end, size)| *end == size.0), "{wanted}: {next:?}");
            }
        }
    }

    #[test]
    fn a_device_takes_launches_and_copies_whose_arguments_are_there() {
        let launch = Step { first_slot: 2, ..Step::of(Work::Launch { function: 7, arguments: 3 }) };
        assert_eq!(DeviceStep::of(&launch, 5).and_then(|step| step.function()), Some(7));
        assert!(DeviceStep::of(&launch, 4).is_none());
        let copy = Step { first_slot: 1, ..Step::of(Work::Copy(8)) };
        assert!(DeviceStep::of(&copy, 3).is_some_and(|step| step.function().is_none()));
        assert!(DeviceStep::of(&copy, 2).is_none());
        assert!(DeviceStep::of(&Step { first_slot: usize::MAX, ..copy }, 3).is_none());
        for work in [Work::Kernel(nothing), Work::Host(0)] {
            assert!(DeviceStep::of(&Step::of(work), 5).is_none());
        }
    }

    #[test]
    fn large_steps_get_more_chunks() {
        let steps = [step(100, 1, 60_000), step(100, 1, 20_000)];
        let chunks = Chunks::new(&steps, 8);
        let of_first = (0..chunks.count()).filter(|chunk| chunks.get(*chunk).0 == 0).count();
        assert_eq!((of_first, chunks.count()), (7, 9));
    }
}
