//! The mutable state of one run, and the run itself.

mod nested;
mod run_end;
mod there;
mod threads;

pub(super) use there::word_in;

use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tensorc_abi::image::slot;
use tensorc_abi::{ExternError, ExternFn};
use tensorc_exec::{self as exec, Memory, Work, WorkerMemory, bind};

use super::arena::{SharedArena, Turn};
use super::bindings::{Bindings, Final, Interface, Phase};
use super::device::DeviceContext;
use super::error::RunError;
use super::executable::{Executable, Prepared};
use super::external;
use super::poison::Deaths;
use super::trace::{StepTrace, Unwatched, Watch};
use crate::device::Device;
use crate::interrupter::Interrupter;
use crate::pool::{Pool, TaskPanic};
use crate::profiler::Profiler;
use run_end::{RunEnd, RunEnds};
use tensorc_abi::memory::AlignedBuffer;
use threads::{HurriedThreads, Threads, is_brief, is_instant};

/// Every intermediate tensor of the plan, and the working memory of every worker.
enum Arena {
    Own {
        memory: AlignedBuffer,
        base: *mut u8,
    },
    /// With the number of this context among those that share it, and where it was at the last run.
    Shared {
        arena: SharedArena,
        context: u64,
        base: *mut u8,
    },
}

impl Arena {
    /// The first byte.
    fn base(&self) -> *mut u8 {
        let (Arena::Own { base, .. } | Arena::Shared { base, .. }) = self;
        *base
    }
}

/// Arena and argument addresses for running an [`Executable`].
///
/// One context runs one plan at a time; threads that run the same executable concurrently have a
/// context each.
pub struct Context {
    executable: Arc<Executable>,
    arena: Arena,
    /// Addresses for [`Executable::slots`]; those of the caller's tensors are those of the last run.
    arguments: Vec<*mut u8>,
    /// What the executable's device has of this context.
    device: Option<DeviceContext>,
    /// The first phase has ended, and nothing ran since.
    halfway: bool,
    /// What ends a run early.
    ends: RunEnds,
}

// SAFETY: the addresses point into memory that the context and its executable own, except those of
// the caller's tensors, which are used only during the call that sets them.
unsafe impl Send for Context {}

impl Context {
    /// Allocates the arena for the threads of `pool`: [`tensorc_abi::Plan::run_bytes`].
    ///
    /// # Errors
    /// Memory is short, here or on the device.
    pub fn new(executable: Arc<Executable>, pool: &Pool) -> Result<Context, RunError> {
        let here = if executable.device.is_some() { 0 } else { executable.plan().run_bytes(pool.threads()) };
        let mut memory = AlignedBuffer::zeroed(here, "arena")?;
        let base = memory.as_mut_ptr();
        Context::with_arena(executable, Arena::Own { memory, base }, base)
    }

    /// A context whose intermediate tensors lie in memory shared with others, of the same device. It is allocated by
    /// the first run. A run waits for those of the other contexts.
    ///
    /// # Errors
    /// The device's driver fails.
    pub fn in_arena(executable: Arc<Executable>, arena: &SharedArena) -> Result<Context, RunError> {
        let base = AlignedBuffer::dangling().as_ptr();
        let arena = Arena::Shared { arena: arena.clone(), context: arena.register(), base };
        Context::with_arena(executable, arena, base)
    }

    fn with_arena(executable: Arc<Executable>, arena: Arena, base: *mut u8) -> Result<Context, RunError> {
        let (arguments, device) = Context::bound(&executable, &arena, base)?;
        Ok(Context { executable, arena, arguments, device, halfway: false, ends: RunEnds::default() })
    }

    /// The arguments of steps as far as they are known before a run, and what a device has of the context.
    fn bound(
        executable: &Arc<Executable>,
        arena: &Arena,
        base: *mut u8,
    ) -> Result<(Vec<*mut u8>, Option<DeviceContext>), RunError> {
        let mut arguments = vec![AlignedBuffer::dangling().as_ptr(); executable.slots.len()];
        executable.bind_own(base, &mut arguments);
        let own = matches!(arena, Arena::Own { .. });
        let there = |program| DeviceContext::new(executable, program, own);
        Ok((arguments, executable.device.as_ref().map(there).transpose()?))
    }

    /// Lets further runs execute another plan, for which the arena may have to grow.
    ///
    /// # Errors
    /// The device's driver fails; the context executes the plan that it had.
    pub fn switch(&mut self, executable: &Arc<Executable>) -> Result<(), RunError> {
        if Arc::ptr_eq(&self.executable, executable) {
            return Ok(());
        }
        if executable.device.is_some() || self.device.is_some() {
            (self.arguments, self.device) = Context::bound(executable, &self.arena, self.arena.base())?;
        }
        self.executable = executable.clone();
        self.begin_again();
        Ok(())
    }

    /// Fills the table of arguments as far as they are known before a run.
    fn begin_again(&mut self) {
        self.arguments.clear();
        self.arguments.resize(self.executable.slots.len(), AlignedBuffer::dangling().as_ptr());
        self.executable.bind_own(self.arena.base(), &mut self.arguments);
        self.halfway = false;
    }

    /// Lets `change` give the plan, which runs on the processor, other numbers ([`Executable::renumber`]). `None` if the
    /// executable is used elsewhere, too.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn renumbered<E>(
        mut self,
        change: impl FnOnce(&mut Executable) -> Result<(), E>,
    ) -> Result<Option<Context>, E> {
        let Some(executable) = Arc::get_mut(&mut self.executable).filter(|one| one.device.is_none()) else {
            return Ok(None);
        };
        change(executable)?;
        self.begin_again();
        Ok(Some(self))
    }

    /// Lets runs on the processor take so long at most. It is looked at between the pieces that steps are cut into.
    #[must_use]
    pub fn within(mut self, limit: Option<Duration>) -> Context {
        self.ends.limit = limit;
        self
    }

    /// Lets the caller end runs on the processor. It is asked between the pieces that steps are cut into.
    #[must_use]
    pub fn interrupted_by(mut self, interrupter: Option<Interrupter>) -> Context {
        self.ends.interrupter = interrupter;
        self
    }

    /// The executable that it runs.
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

    /// Makes the arena ready for a run by so many workers: takes a shared one over from the context that ran last, and
    /// makes it larger if there were never as many.
    fn enter(&mut self, turn: Option<&mut Turn>, workers: usize) -> Result<(), RunError> {
        let plan = self.executable.plan();
        let (turn, context, base) = match (turn, &mut self.arena) {
            (Some(turn), Arena::Shared { context, base, .. }) => (turn, context, base),
            (_, Arena::Own { memory, base }) if self.device.is_none() => {
                let needed = plan.run_bytes(workers);
                let found = memory.len() as u64;
                if found < needed {
                    // Shapes may grow from run to run.
                    let ample = needed.max(found.saturating_add(found / 4));
                    let mut grow = |bytes| memory.grow(bytes, "arena", self.halfway);
                    grow(ample).or_else(|_| grow(needed))?;
                    *base = memory.as_mut_ptr();
                    let arena = |home, _| (home == slot::ARENA).then_some(*base);
                    bind(self.executable.slots.iter(), &mut self.arguments, arena);
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        if let Some(device) = &mut self.device {
            let (start, kept) = turn.take_there(&*device.driver, *context, plan.arena_bytes)?;
            self.halfway &= kept;
            if *base != start {
                *base = start;
                device.rebase(&self.executable, start);
            }
            return Ok(());
        }
        let (start, kept) = turn.take(*context, plan.run_bytes(workers))?;
        self.halfway &= kept;
        if *base != start {
            *base = start;
            let arena = |home, _| (home == slot::ARENA).then_some(start);
            bind(self.executable.slots.iter(), &mut self.arguments, arena);
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
    ///
    /// # Errors
    /// As [`Context::run`] or [`Context::run_phase`].
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
    ///
    /// # Errors
    /// As [`Context::run`] or [`Context::run_phase`].
    pub fn run_profiled(
        &mut self,
        phase: Option<Phase>,
        pool: &Pool,
        bindings: Bindings<'_, '_, '_>,
    ) -> Result<Vec<Duration>, RunError> {
        let shared = self.shared();
        let mut turn = shared.as_ref().map(SharedArena::turn);
        self.enter(turn.as_deref_mut(), pool.threads())?;
        let calls = self.bind(phase, bindings)?;
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
        let interrupted = AtomicBool::new(false);
        let run =
            RunView::new(pool, executable, &self.arguments, &self.arena, Unwatched, self.ends.begin(&interrupted));
        catching(executable, |current| {
            for (index, prepared) in calls.clone().zip(&executable.prepared[calls.clone()]) {
                current.set((index, 1));
                let start = Instant::now();
                run.steps(std::slice::from_ref(prepared))?;
                times[prepared.step] = start.elapsed();
                poison.after(std::slice::from_ref(prepared));
            }
            Ok(())
        })?;
        self.halfway = phase == Some(Phase::First);
        self.confirm(phase)?;
        Ok(times)
    }

    /// Looks at what a run on the processor has found of values; the arena is still this context's.
    fn confirm(&self, phase: Option<Phase>) -> Result<(), RunError> {
        let base = self.arena.base();
        // SAFETY: the verifier proved every word to lie inside the arena, aligned, and to live to the end of the run.
        let word = |check: usize| unsafe { base.add(self.executable.words[check].offset).cast::<i64>().read() };
        Ok(self.executable.confirm(phase, word)?)
    }

    /// Checks the caller's tensors and enters their addresses into the argument table; returns the
    /// positions of the calls.
    fn bind(&mut self, phase: Option<Phase>, bindings: Bindings<'_, '_, '_>) -> Result<Range<usize>, RunError> {
        self.interface(phase)?;
        let executable = self.executable.clone();
        let Some(interface) = executable.interface(phase) else { return Ok(0..0) };
        interface.bind(executable.plan(), &mut self.arguments, bindings)?;
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
        self.enter(turn.as_deref_mut(), pool.threads())?;
        let calls = self.bind(phase, bindings)?;
        match profiler {
            None => self.execute_bound(phase, calls, pool, Unwatched, observer)?,
            Some((profiler, device)) => {
                let executable = self.executable.clone();
                let trace = StepTrace { profiler, device, executable: &executable, names: executable.names() };
                self.execute_bound(phase, calls, pool, trace, observer)?;
            }
        }
        self.halfway = phase == Some(Phase::First);
        if self.device.is_none() { self.confirm(phase) } else { Ok(()) }
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
        let _share = pool.share();
        let interrupted = AtomicBool::new(false);
        let run = RunView::new(pool, executable, &self.arguments, &self.arena, watch, self.ends.begin(&interrupted));
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
                run.steps(steps)?;
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

/// The inverse of [`interface_of`].
pub(super) fn phase_of(interface: usize) -> Option<Phase> {
    [None, Some(Phase::First), Some(Phase::Second)].get(interface).copied().flatten()
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
        let poison = Poison(executable.deaths.as_ref().map(|deaths| (deaths, arena.base())));
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
            Stop::Time(limit) => RunError::Time { step, limit },
            Stop::Interrupted => RunError::Interrupted { step },
            Stop::Extern(ExternError { operator, message }) => RunError::Extern { step, operator, message },
        }
    })
}

/// Why a run ends early.
#[derive(derive_more::From)]
enum Stop {
    #[from]
    Panic(TaskPanic),
    #[from]
    Extern(ExternError),
    /// It takes longer than this.
    Time(Duration),
    /// The caller wants it to end.
    Interrupted,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("executable", &self.executable).finish_non_exhaustive()
    }
}

/// A run as its threads see it.
struct RunView<'a, W> {
    pool: &'a Pool,
    externs: &'a [ExternFn],
    memory: Memory,
    watch: W,
    end: Option<RunEnd<'a>>,
}

impl<'a, W: Watch> RunView<'a, W> {
    fn new(
        pool: &'a Pool,
        executable: &'a Executable,
        arguments: &[*mut u8],
        arena: &Arena,
        watch: W,
        end: Option<RunEnd<'a>>,
    ) -> RunView<'a, W> {
        let (plan, workers) = (executable.plan(), pool.threads());
        let stride = plan.scratch.iter().map(|scratch| scratch.bytes).max().unwrap_or(0);
        let common = WorkerMemory::common(plan.run_bytes(workers) as usize, stride as usize, workers);
        let memory = Memory { table: arguments.as_ptr(), arena: arena.base(), common };
        RunView { pool, externs: &executable.externs, memory, watch, end }
    }

    /// Executes a step, or steps that do not depend on each other.
    fn steps(&self, steps: &[Prepared]) -> Result<(), Stop> {
        if let [Prepared { flow: Some(flow), call, .. }] = steps {
            return self.flow(flow, call);
        }
        if let [Prepared { call: exec::Step { work: Work::Host(function), first_slot, .. }, .. }] = steps {
            // Loading has found every function that steps call.
            let function = &self.externs[*function as usize];
            // SAFETY: the slots of a step lie inside the argument table and are bound. No other step runs.
            return Ok(unsafe { external::call(function, self.memory.table.wrapping_add(*first_slot)) }?);
        }
        let threads = Threads { pool: self.pool, steps, watch: self.watch };
        if let Some(end) = self.end.filter(|_| !is_instant(steps)) {
            end.check()?;
            if !steps.iter().all(|step| is_brief(&step.call)) {
                // SAFETY: as below.
                return unsafe { exec::run(steps, self.memory, &HurriedThreads { threads, end }) };
            }
        }
        // SAFETY: the slots of the steps lie inside the argument table. They are bound and checked against the plan, whose
        // verifier proved that regions are independent and working memory is apart from what is live; `enter` has made the
        // arena large enough for the pool. The rest is the contract of `Executable::new`.
        Ok(unsafe { exec::run(steps, self.memory, &threads) }?)
    }
}
