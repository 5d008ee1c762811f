//! The mutable state of one run, and the run itself.

mod there;

use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorc_abi::{BufferId, ExternError, Home};

use super::arena::{SharedArena, Turn};
use super::bindings::{Bindings, Final, Interface, Phase};
use super::device::DeviceContext;
use super::error::RunError;
use super::executable::{COPY_BLOCK, Call, Executable, Prepared};
use super::external;
use super::poison::Deaths;
use super::region::Chunks;
use super::trace::{Trace, Unwatched, Watch};
use crate::{AlignedBuffer, AllocError, Device, Pool, Profiler, TaskPanic};

/// Chunks per thread that a split step is cut into, so that a delayed thread costs little.
pub(super) const CHUNKS_PER_THREAD: u64 = 4;

/// Every intermediate tensor of the plan.
enum Arena {
    Own {
        _memory: AlignedBuffer,
        base: *mut u8,
    },
    /// With the number of this context among those that share it, and where it was at the last run.
    Shared {
        arena: SharedArena,
        context: u64,
        base: *mut u8,
    },
}

/// Arena, scratch memory and argument addresses for running an [`Executable`].
///
/// One context runs one plan at a time; threads that run the same executable concurrently have a
/// context each.
pub struct Context {
    executable: Arc<Executable>,
    arena: Arena,
    scratch: Scratch,
    /// Addresses for [`Executable::slots`]; those of the caller's tensors are those of the last run.
    arguments: Vec<*mut u8>,
    /// What the executable's device has of this context.
    device: Option<DeviceContext>,
    /// The first phase has ended, and nothing ran since.
    halfway: bool,
}

// SAFETY: the addresses point into memory that the context and its executable own, except those of
// the caller's tensors, which are used only during the call that sets them.
unsafe impl Send for Context {}

impl Context {
    /// Allocates the arena, and scratch memory for the threads of `pool`.
    ///
    /// # Errors
    /// Memory is short, here or on the device.
    pub fn new(executable: Arc<Executable>, pool: &Pool) -> Result<Context, RunError> {
        let here = if executable.device.is_some() { 0 } else { executable.plan().arena_bytes };
        let mut arena = AlignedBuffer::zeroed(here, "arena")?;
        let base = arena.as_mut_ptr();
        Context::with_arena(executable, pool, Arena::Own { _memory: arena, base }, base)
    }

    /// A context whose intermediate tensors lie in memory shared with others, of the same device. It is allocated by
    /// the first run. A run waits for those of the other contexts.
    pub fn in_arena(executable: Arc<Executable>, pool: &Pool, arena: &SharedArena) -> Result<Context, RunError> {
        let base = AlignedBuffer::dangling().as_ptr();
        let arena = Arena::Shared { arena: arena.clone(), context: arena.register(), base };
        Context::with_arena(executable, pool, arena, base)
    }

    fn with_arena(executable: Arc<Executable>, pool: &Pool, arena: Arena, base: *mut u8) -> Result<Context, RunError> {
        let scratch = Scratch::new(executable.scratch_bytes, pool.threads())?;
        let plan = executable.plan();
        let address = |id: &BufferId| match plan.buffer(*id).home {
            // The verifier proved the offset to be inside the arena.
            Home::Arena(offset) => base.wrapping_add((offset + plan.byte_offset(*id)) as usize),
            Home::Weight(index) => {
                let start = executable.weight(index).as_slice().as_ptr().cast_mut();
                start.wrapping_add(plan.byte_offset(*id) as usize)
            }
            Home::Input(_) | Home::Output(_) | Home::State(_) => AlignedBuffer::dangling().as_ptr(),
        };
        let arguments = executable.slots.iter().map(address).collect();
        let own = matches!(arena, Arena::Own { .. });
        let there = |program| DeviceContext::new(&executable, program, own);
        let device = executable.device.as_ref().map(there).transpose()?;
        Ok(Context { executable, arena, scratch, arguments, device, halfway: false })
    }

    pub fn executable(&self) -> &Arc<Executable> {
        &self.executable
    }

    /// The arena, if others use it too. Whoever runs the context waits for its turn there.
    fn shared(&self) -> Option<SharedArena> {
        match &self.arena {
            Arena::Own { .. } => None,
            Arena::Shared { arena, .. } => Some(arena.clone()),
        }
    }

    /// Takes the shared arena over from the context that ran last.
    fn enter(&mut self, turn: Option<&mut Turn>) -> Result<(), RunError> {
        let (Some(turn), Arena::Shared { context, base, .. }) = (turn, &mut self.arena) else { return Ok(()) };
        let plan = self.executable.plan();
        if let Some(device) = &mut self.device {
            let (start, kept) = turn.take_there(&*device.driver, *context, plan.arena_bytes)?;
            self.halfway &= kept;
            if *base != start {
                *base = start;
                device.rebase(&self.executable, start);
            }
            return Ok(());
        }
        let (start, kept) = turn.take(*context, plan.arena_bytes)?;
        self.halfway &= kept;
        if *base != start {
            *base = start;
            for (argument, id) in self.arguments.iter_mut().zip(&self.executable.slots) {
                if let Home::Arena(offset) = plan.buffer(*id).home {
                    *argument = start.wrapping_add((offset + plan.byte_offset(*id)) as usize);
                }
            }
        }
        Ok(())
    }

    /// Runs the plan, both phases if there are two: reads the inputs, changes the states, fills the
    /// outputs, each in the order of the plan's lists.
    ///
    /// Results have the same bits for every number of threads. Nothing is allocated unless `pool`
    /// has more threads than any pool this context saw before.
    ///
    /// # Errors
    /// A tensor's number, element type, shape, size or alignment is not the plan's, or a kernel of
    /// the library panicked.
    pub fn run(&mut self, pool: &Pool, bindings: Bindings<'_, '_, '_>) -> Result<(), RunError> {
        self.execute(None, pool, bindings, None, None)
    }

    /// Runs one of two phases, with the tensors it uses ([`Executable::needs`]). The second follows
    /// the first directly, once, and finds the intermediate tensors the first has left; together
    /// they do what [`Context::run`] does.
    ///
    /// # Errors
    /// As [`Context::run`]; the plan has one phase only, or the first did not run before the second.
    pub fn run_phase(&mut self, phase: Phase, pool: &Pool, bindings: Bindings<'_, '_, '_>) -> Result<(), RunError> {
        self.execute(Some(phase), pool, bindings, None, None)
    }

    /// As [`Context::run`], or with a phase as [`Context::run_phase`], and records what ran when:
    /// every step, or steps that ran side by side, as a span of category `step`, and the parts that
    /// threads executed as spans of category `chunk`. Allocates.
    pub fn run_traced(
        &mut self,
        phase: Option<Phase>,
        pool: &Pool,
        bindings: Bindings<'_, '_, '_>,
        profiler: &Profiler,
        device: Device,
    ) -> Result<(), RunError> {
        self.execute(phase, pool, bindings, Some((profiler, device)), None)
    }

    /// As [`Context::run`] or with a phase as [`Context::run_phase`], recorded as by [`Context::run_traced`] if there is a
    /// profiler. Calls `observer` with the position of an output in `bindings` once the run does not touch it any more,
    /// on the calling thread and while the run goes on. Every output is told at most once; those that are not told become
    /// final when the run ends, which are all of them on a device.
    ///
    /// # Errors
    /// As [`Context::run`]; outputs that were told are complete all the same.
    pub fn run_observed(
        &mut self,
        phase: Option<Phase>,
        pool: &Pool,
        bindings: Bindings<'_, '_, '_>,
        profiler: Option<(&Profiler, Device)>,
        observer: &mut dyn FnMut(usize),
    ) -> Result<(), RunError> {
        self.execute(phase, pool, bindings, profiler, Some(observer))
    }

    /// As [`Context::run`], or with a phase as [`Context::run_phase`], but one step after the other;
    /// returns the time each step of the plan took, zero for those of the other phase.
    pub fn run_profiled(
        &mut self,
        phase: Option<Phase>,
        pool: &Pool,
        bindings: Bindings<'_, '_, '_>,
    ) -> Result<Vec<Duration>, RunError> {
        let shared = self.shared();
        let mut turn = shared.as_ref().map(SharedArena::turn);
        self.enter(turn.as_deref_mut())?;
        let calls = self.bind(phase, pool, bindings)?;
        let executable = &*self.executable;
        let mut times = vec![Duration::ZERO; executable.plan().steps.len()];
        if self.device.is_some() {
            let mut start = Instant::now();
            let mut after =
                |call: &Prepared| times[call.step] = std::mem::replace(&mut start, Instant::now()).elapsed();
            self.run_there(phase, Some(&mut after))?;
            self.halfway = phase == Some(Phase::First);
            return Ok(times);
        }
        let poison = Poison::begin(executable, &self.arena, &calls);
        let run = Run::new(pool, &self.arguments, &mut self.scratch, Unwatched);
        catching(executable, |current| {
            for (index, prepared) in calls.clone().zip(&executable.prepared[calls.clone()]) {
                current.set((index, 1));
                let start = Instant::now();
                run.alone(prepared)?;
                times[prepared.step] = start.elapsed();
                poison.after(std::slice::from_ref(prepared));
            }
            Ok(())
        })?;
        self.halfway = phase == Some(Phase::First);
        Ok(times)
    }

    /// Checks the caller's tensors and enters their addresses into the argument table; returns the
    /// positions of the calls.
    fn bind(
        &mut self,
        phase: Option<Phase>,
        pool: &Pool,
        bindings: Bindings<'_, '_, '_>,
    ) -> Result<Range<usize>, RunError> {
        self.interface(phase)?;
        let executable = self.executable.clone();
        let Some(interface) = executable.interface(phase) else { return Ok(0..0) };
        interface.bind(executable.plan(), &mut self.arguments, bindings)?;
        if pool.threads() > self.scratch.threads {
            self.scratch = Scratch::new(self.executable.scratch_bytes, pool.threads())?;
        }
        // From here on the arena changes.
        self.halfway = false;
        Ok(interface.calls.clone())
    }

    /// What a phase takes, if it can run now.
    fn interface(&self, phase: Option<Phase>) -> Result<&Interface, RunError> {
        let fail = |why| Err(RunError::Phase { plan: self.executable.plan().name.clone(), why });
        match self.executable.interface(phase) {
            None => fail("the plan has one phase only"),
            Some(_) if phase == Some(Phase::Second) && !self.halfway => {
                fail("the second phase follows the first, which has not run")
            }
            Some(interface) => Ok(interface),
        }
    }

    fn execute(
        &mut self,
        phase: Option<Phase>,
        pool: &Pool,
        bindings: Bindings<'_, '_, '_>,
        profiler: Option<(&Profiler, Device)>,
        observer: Option<&mut dyn FnMut(usize)>,
    ) -> Result<(), RunError> {
        let shared = self.shared();
        let mut turn = shared.as_ref().map(SharedArena::turn);
        self.enter(turn.as_deref_mut())?;
        let calls = self.bind(phase, pool, bindings)?;
        match profiler {
            None => self.execute_bound(phase, calls, pool, Unwatched, observer)?,
            Some((profiler, device)) => {
                let executable = self.executable.clone();
                let trace = Trace { profiler, device, executable: &executable, names: executable.names() };
                self.execute_bound(phase, calls, pool, trace, observer)?;
            }
        }
        self.halfway = phase == Some(Phase::First);
        Ok(())
    }

    /// Executes bound calls in order, and tells which outputs become final thereby.
    fn execute_bound<W: Watch>(
        &mut self,
        phase: Option<Phase>,
        calls: Range<usize>,
        pool: &Pool,
        watch: W,
        observer: Option<&mut dyn FnMut(usize)>,
    ) -> Result<(), RunError> {
        if self.device.is_some() {
            let start = watch.begin();
            self.run_there(phase, None)?;
            // What a stream executes is one span.
            watch.steps(start, &self.executable.prepared[calls]);
            return Ok(());
        }
        let executable = &*self.executable;
        let poison = Poison::begin(executable, &self.arena, &calls);
        let run = Run::new(pool, &self.arguments, &mut self.scratch, watch);
        let mut finals = observer.map(|observer| Finals { left: executable.finals(phase).iter(), observer });
        let parallel = pool.threads() > 1;
        catching(executable, |current| {
            let mut index = calls.start;
            while index < calls.end {
                let prepared = &executable.prepared[index];
                let count = if parallel { prepared.region } else { 1 };
                current.set((index, count));
                let start = watch.begin();
                let steps = &executable.prepared[index..index + count];
                match count {
                    1 => run.alone(prepared)?,
                    _ => run.together(steps)?,
                }
                watch.steps(start, steps);
                poison.after(steps);
                index += count;
                if let Some(finals) = &mut finals {
                    finals.tell(index);
                }
            }
            Ok(())
        })
    }
}

/// The position of a phase's interface among those of the executable.
fn interface_of(phase: Option<Phase>) -> usize {
    phase.map_or(0, |phase| 1 + phase as usize)
}

/// Outputs that become final during a run, and who wants to know.
struct Finals<'e, 'o> {
    left: std::slice::Iter<'e, Final>,
    observer: &'o mut dyn FnMut(usize),
}

impl Finals<'_, '_> {
    /// All calls before one have ended.
    fn tell(&mut self, next: usize) {
        while let Some(Final { output, .. }) = self.left.as_slice().first().filter(|first| first.from <= next) {
            self.left.next();
            (self.observer)(*output);
        }
    }
}

/// The filling of dead memory during a run, if the executable asks for it.
struct Poison<'e>(Option<(&'e Deaths, *mut u8)>);

impl<'e> Poison<'e> {
    /// At the start of a run of some calls: where the first is among them, nothing lives yet.
    fn begin(executable: &'e Executable, arena: &Arena, calls: &Range<usize>) -> Poison<'e> {
        let (Arena::Own { base, .. } | Arena::Shared { base, .. }) = *arena;
        let poison = Poison(executable.deaths.as_ref().map(|deaths| (deaths, base)));
        if let (Some((deaths, base)), 0) = (poison.0, calls.start) {
            // SAFETY: the arena is this run's, and no step has begun.
            unsafe { deaths.fill_all(base) };
        }
        poison
    }

    fn after(&self, calls: &[Prepared]) {
        let Some((deaths, base)) = self.0 else { return };
        for prepared in calls {
            // SAFETY: the calls have ended, and the next ones have not begun.
            unsafe { deaths.fill(base, prepared.step) };
        }
    }
}

/// Calls `all`. If it panics, the error names the steps it has set last, as position and number.
fn catching(
    executable: &Executable,
    all: impl FnOnce(&Cell<(usize, usize)>) -> Result<(), Stop>,
) -> Result<(), RunError> {
    let current = Cell::new((0, 0));
    let result = catch_unwind(AssertUnwindSafe(|| all(&current)));
    result.unwrap_or_else(|payload| Err(TaskPanic::from_payload(payload).into())).map_err(|stop| {
        let (first, count) = current.get();
        let step = executable.names_of(&executable.prepared[first..first + count]);
        match stop {
            Stop::Panic(panic) => RunError::Panic { step, panic },
            Stop::Extern(ExternError { operator, message }) => RunError::Extern { step, operator, message },
        }
    })
}

/// Why a run ends early.
enum Stop {
    Panic(TaskPanic),
    Extern(ExternError),
}

impl From<ExternError> for Stop {
    fn from(error: ExternError) -> Stop {
        Stop::Extern(error)
    }
}

impl From<TaskPanic> for Stop {
    fn from(panic: TaskPanic) -> Stop {
        Stop::Panic(panic)
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("executable", &self.executable).finish_non_exhaustive()
    }
}

/// Working memory of library calls, one part per thread.
struct Scratch {
    memory: AlignedBuffer,
    threads: usize,
    /// Bytes between the parts of two threads.
    stride: usize,
}

impl Scratch {
    fn new(bytes_per_thread: usize, threads: usize) -> Result<Scratch, AllocError> {
        const LINE_PAIR: usize = 128;
        let stride = bytes_per_thread.next_multiple_of(LINE_PAIR);
        let bytes = (stride as u64).saturating_mul(threads as u64);
        Ok(Scratch { memory: AlignedBuffer::zeroed(bytes, "scratch")?, threads, stride })
    }

    fn share(&mut self) -> SharedScratch {
        SharedScratch { base: self.memory.as_mut_ptr(), stride: self.stride }
    }
}

#[derive(Clone, Copy)]
struct SharedScratch {
    base: *mut u8,
    stride: usize,
}

// SAFETY: threads use disjoint parts, chosen by their number in the region.
unsafe impl Sync for SharedScratch {}

impl SharedScratch {
    fn of_thread(&self, thread: usize) -> *mut u8 {
        self.base.wrapping_add(thread * self.stride)
    }
}

/// Addresses of arguments.
#[derive(Clone, Copy)]
struct Arguments(*const *mut u8);

// SAFETY: the table is not written during a run; what lies behind the addresses is accessed by
// tasks, which are free of data races: those of a step by the contract of `Executable::new`, those
// of steps that run side by side because neither writes what the other accesses.
unsafe impl Sync for Arguments {}

impl Arguments {
    fn table(&self) -> *const *mut u8 {
        self.0
    }
}

/// A run as its threads see it.
struct Run<'a, W> {
    pool: &'a Pool,
    /// Of all steps.
    arguments: Arguments,
    scratch: SharedScratch,
    watch: W,
}

impl<'a, W: Watch> Run<'a, W> {
    fn new(pool: &'a Pool, arguments: &'a [*mut u8], scratch: &mut Scratch, watch: W) -> Run<'a, W> {
        Run { pool, arguments: Arguments(arguments.as_ptr()), scratch: scratch.share(), watch }
    }

    /// Executes one step, split over the pool if that is worth it.
    fn alone(&self, prepared: &Prepared) -> Result<(), Stop> {
        if let Call::Extern(function) = &prepared.call {
            // SAFETY: the slots of a step lie inside the argument table and are bound. No other step runs.
            return Ok(unsafe { external::call(function, self.arguments.table().add(prepared.first_slot)) }?);
        }
        if prepared.least_grain >= prepared.tasks || self.pool.threads() == 1 {
            self.call(prepared, 0, 0..prepared.tasks);
            return Ok(());
        }
        let grain = prepared.grain(chunks(self.pool));
        Ok(self.pool.run(prepared.tasks, grain, &|thread, tasks| self.chunk(prepared, thread, tasks))?)
    }

    /// Executes steps that do not depend on each other.
    fn together(&self, steps: &[Prepared]) -> Result<(), TaskPanic> {
        let chunks = Chunks::new(steps, chunks(self.pool));
        let execute = |thread: usize, range: Range<u64>| {
            for chunk in range {
                let (step, tasks) = chunks.get(chunk);
                self.chunk(&steps[step], thread, tasks);
            }
        };
        self.pool.run(chunks.count(), 1, &execute)
    }

    /// Executes a part of a step, and records it.
    fn chunk(&self, prepared: &Prepared, thread: usize, tasks: Range<u64>) {
        let start = self.watch.begin();
        self.call(prepared, thread, tasks);
        self.watch.chunk(start, prepared);
    }

    fn call(&self, prepared: &Prepared, thread: usize, tasks: Range<u64>) {
        // SAFETY: the slots of a step lie inside the argument table. They are bound and checked
        // against the plan; tasks are executed once each, and a thread number is used by one thread
        // at a time.
        unsafe {
            let arguments = self.arguments.table().add(prepared.first_slot);
            invoke(&prepared.call, arguments, tasks, self.scratch.of_thread(thread));
        }
    }
}

/// Pieces that work is cut into for the threads of a pool.
fn chunks(pool: &Pool) -> u64 {
    pool.threads() as u64 * CHUNKS_PER_THREAD
}

/// Executes some tasks of a step on the calling thread.
///
/// # Safety
/// `arguments` points to the addresses of the step's arguments, each valid for its buffer's size;
/// no other thread executes the same tasks or uses the same scratch memory.
unsafe fn invoke(call: &Call, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
    match call {
        Call::Kernel(kernel) => {
            let range = [tasks.start as i64, tasks.end as i64];
            // SAFETY: passed on from the caller; the kernel is callable as the executable lives.
            unsafe { kernel(arguments, range.as_ptr()) }
        }
        // Never part of a region, so never divided; launches are their device's.
        Call::Extern(_) | Call::Launch(_) => {}
        // SAFETY: passed on from the caller.
        Call::Library(library) => unsafe { library.run(arguments, tasks, scratch) },
        Call::Copy(bytes) => {
            let begin = tasks.start * COPY_BLOCK;
            let end = (tasks.end * COPY_BLOCK).min(*bytes);
            // SAFETY: both buffers have `bytes` bytes and do not overlap, as the verifier checked.
            unsafe {
                let (source, target) = (*arguments, *arguments.add(1));
                let count = (end - begin) as usize;
                std::ptr::copy_nonoverlapping(source.add(begin as usize), target.add(begin as usize), count);
            }
        }
    }
}
