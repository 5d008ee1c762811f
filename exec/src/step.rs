//! A step: how it is recorded, the code that it calls, what it does.

use core::ops::Range;

use tensorc_abi::image::{scratch, step};
use tensorc_abi::{Contraction, KernelFn, MAX_SUM_ARGS};
#[cfg(feature = "plan")]
use tensorc_abi::{KernelId, Number, Plan, StepOp};
use tensorc_kernels::affinity_grain;

/// Chunks per worker that a step is cut into, so that a delayed worker costs little.
pub(crate) const CHUNKS_PER_WORKER: u64 = 4;
/// Bytes copied by one task of a copy.
const COPY_BLOCK: u64 = 1 << 16;

/// Where records find code.
pub trait Code {
    /// A generated kernel by its number.
    fn kernel(&self, number: u64) -> Option<KernelFn>;

    /// A library kernel by its position in [`tensorc_abi::image::LIBRARIES`].
    fn routine(&self, kind: usize) -> Option<&'static Routine>;

    /// The words of calls from a position on; none behind the last.
    fn words(&self, at: usize) -> &[u64];

    /// The working memory of the call whose words lie at a position, which needs so many bytes for each worker; `None` if
    /// nothing says where it is, or it is too small.
    fn scratch(&self, at: usize, needed: impl FnOnce() -> usize) -> Option<WorkerMemory>;
}

/// Where workers have working memory in the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerMemory {
    /// Where that of the first begins, in bytes.
    pub offset: usize,
    /// Bytes from one's to that of the next.
    pub stride: usize,
}

impl WorkerMemory {
    /// What a record of [`scratch`] says.
    pub fn of_record(record: &[u64; scratch::WORDS]) -> Option<WorkerMemory> {
        let [offset, stride] = [record[scratch::OFFSET], record[scratch::STRIDE]].map(usize::try_from);
        Some(WorkerMemory { offset: offset.ok()?, stride: stride.ok()? })
    }

    /// Working memory at the end of an arena of so many bytes, of which a step needs at most `stride` for each worker.
    /// Where it is apart from what a step uses, a worker has the same memory in every step: what its core has in the
    /// caches is not another core's. `None` for one worker, which has the caches for itself.
    pub fn common(arena_bytes: usize, stride: usize, workers: usize) -> Option<WorkerMemory> {
        const ALIGN: usize = 64;
        let offset = arena_bytes.checked_sub(stride.checked_mul(workers)?)?;
        (workers > 1).then_some(WorkerMemory { offset: offset / ALIGN * ALIGN, stride })
    }

    /// The common place, where that is behind what a step with this one uses.
    #[inline]
    pub(crate) fn or(self, common: Option<WorkerMemory>) -> WorkerMemory {
        common.filter(|common| self.offset <= common.offset).unwrap_or(self)
    }

    /// Where the working memory of a worker begins.
    #[inline]
    pub(crate) fn of_worker(&self, worker: usize) -> usize {
        self.offset + worker * self.stride
    }

    /// Where that of so many workers ends; `None` if no memory is as large.
    pub fn end(&self, workers: usize) -> Option<usize> {
        self.stride.checked_mul(workers)?.checked_add(self.offset)
    }
}

/// A step with its code.
#[derive(Clone, Copy)]
pub struct Step {
    /// What it does.
    pub work: Work,
    /// First of its consecutive entries in the table of arguments.
    pub first_slot: usize,
    /// Independent pieces of work, numbered from 0.
    pub tasks: u64,
    /// Least number of tasks worth handing to a thread.
    pub grain: u64,
    /// Tasks in turn that share what they compute or copy, or 1.
    pub affinity: u64,
    /// Estimated time on one core in nanoseconds, if known: by it steps that run side by side are divided.
    pub ns: u64,
    /// Its working memory, if it calls the library.
    pub scratch: WorkerMemory,
}

impl AsRef<Step> for Step {
    fn as_ref(&self) -> &Step {
        self
    }
}

/// What a step does.
#[derive(Clone, Copy)]
#[allow(clippy::large_enum_variant, reason = "there is no allocator to box with")]
pub enum Work {
    /// A generated kernel; a task is an iteration of its parallel loop.
    Kernel(KernelFn),
    /// A copy of so many bytes.
    Copy(u64),
    /// A kernel of the library.
    Library(LibraryCall),
    /// A kernel or a call of a vendor library on a device.
    Launch {
        /// Number of the kernel, or of the call.
        function: u64,
        /// How many arguments it takes.
        arguments: usize,
    },
    /// A function of the host, by its number, which the host calls itself.
    Host(u64),
    /// Nested plans, by the position of the words of the [`crate::Flow`]. The host executes them; its working memory is
    /// what the step's begins with.
    Flow(usize),
}

/// A kind of library kernel. Its functions take calls that its `read` gives; of others they do nothing.
pub struct Routine {
    /// The call that words say; `None` if they say none.
    pub(crate) read: fn(&[u64]) -> Option<Contraction>,
    /// Number of tasks.
    pub(crate) tasks: fn(&Contraction) -> u64,
    /// Bytes of working memory for each worker, with the numbers of arguments of the epilogue and, if there is one, of the
    /// prologue.
    pub(crate) scratch: fn(&Contraction, usize, Option<usize>) -> usize,
    /// Tasks in turn that share what they compute of the left operand, if that is computed, or copy of it.
    pub(crate) affinity: fn(&Contraction, bool) -> u64,
    /// Executes some of the tasks, as [`crate::Step`] does.
    pub(crate) run: unsafe fn(&LibraryCall, *const *mut u8, Range<u64>, *mut u8),
}

/// A call of the kernel library. Its arguments are the two or three operands, but for a left one that is computed, and the
/// result, followed by those of the epilogue and of the prologue.
#[derive(Clone, Copy)]
pub struct LibraryCall {
    /// What is computed.
    pub contraction: Contraction,
    /// What is applied to blocks of the result, or to tiles of scores.
    pub epilogue: Option<KernelFn>,
    /// Number of arguments of the epilogue.
    pub args: usize,
    /// Whether the sums that the epilogue reads lie apart from the result.
    pub apart: bool,
    /// What computes the left operand, and the number of its arguments.
    pub prologue: Option<(KernelFn, usize)>,
    routine: &'static Routine,
}

/// Where a plan is executed.
#[cfg(feature = "plan")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the processor, by threads of the host.
    Processor,
    /// On a GPU, in the order of a stream.
    Device,
}

/// What the record of a step says that depends on its kind, at the positions in [`step`] of these names.
#[cfg(feature = "plan")]
pub(crate) struct Recorded<N> {
    pub kind: u64,
    pub function: u64,
    pub tasks: N,
    pub call: u64,
}

#[cfg(feature = "plan")]
impl<N: Number> Recorded<N> {
    /// Of a step that calls neither the kernel library nor a vendor's; `None` if it has no form there.
    pub fn of(plan: &Plan<N>, op: &StepOp<N>, place: Place, number: &dyn Fn(KernelId) -> u64) -> Option<Recorded<N>> {
        let one = N::from(1);
        let (kind, function, tasks) = match (op, place) {
            (StepOp::Launch { kernel, extent, .. }, Place::Processor) => (step::KERNEL, number(*kernel), *extent),
            (StepOp::Launch { kernel, extent, .. }, Place::Device) => {
                (step::LAUNCH, number(*kernel), (*extent).min(one))
            }
            (StepOp::Copy { dst, .. }, _) => (step::COPY, 0, plan.buffer(*dst).bytes()),
            (StepOp::Extern { function, .. }, Place::Processor) => (step::HOST, u64::from(*function), one),
            (StepOp::Flow { .. }, Place::Processor) => (step::FLOW, 0, one),
            _ => return None,
        };
        Some(Recorded { kind, function, tasks, call: 0 })
    }
}

impl LibraryCall {
    /// The call of a record; `None` if that calls code that does not exist, has more arguments than there may be, or its words
    /// are no call.
    fn resolve(record: &[u64; step::WORDS], kind: usize, code: &impl Code) -> Option<LibraryCall> {
        let routine = code.routine(kind)?;
        let kernel = |function: u32| match function {
            0 => Some(None),
            function => code.kernel(u64::from(function) - 1).map(Some),
        };
        // Low halves are the epilogue's, high ones the prologue's.
        let functions = record[step::FUNCTION];
        let ([args, of_prologue], apart) = (step::arguments(record[step::ARGS]), record[step::ARGS] & step::APART != 0);
        if apart && args > MAX_SUM_ARGS {
            return None;
        }
        Some(LibraryCall {
            contraction: (routine.read)(code.words(record[step::CALL] as usize))?,
            epilogue: kernel(functions as u32)?,
            args,
            apart,
            prologue: kernel((functions >> 32) as u32)?.map(|f| (f, of_prologue)),
            routine,
        })
    }

    /// Bytes that a worker needs.
    fn scratch_bytes(&self) -> usize {
        (self.routine.scratch)(&self.contraction, self.args, self.prologue.map(|p| p.1))
    }
}

impl Step {
    /// A step of some work without tasks.
    pub(crate) fn of(work: Work) -> Step {
        Step { work, first_slot: 0, tasks: 0, grain: 0, affinity: 1, ns: 0, scratch: WorkerMemory::default() }
    }

    /// The step of a record; `None` if that is of no known kind, calls code that does not exist, or its words are no call
    /// or give it too little working memory.
    pub fn resolve(record: &[u64; step::WORDS], code: &impl Code) -> Option<Step> {
        let [tasks, grain, function] = [step::TASKS, step::GRAIN, step::FUNCTION].map(|at| record[at]);
        let of = |work| Step { first_slot: record[step::FIRST_SLOT] as usize, tasks, grain, ..Step::of(work) };
        Some(match record[step::KIND] {
            step::KERNEL => of(Work::Kernel(code.kernel(function)?)),
            // The record counts bytes.
            step::COPY => {
                let (blocks, grain) = (tasks.div_ceil(COPY_BLOCK), grain.div_ceil(COPY_BLOCK));
                Step { tasks: blocks, grain, ..of(Work::Copy(tasks)) }
            }
            step::LAUNCH => of(Work::Launch { function, arguments: record[step::ARGS] as usize }),
            step::HOST => of(Work::Host(function)),
            step::FLOW => {
                let call = usize::try_from(record[step::CALL]).ok()?;
                Step { scratch: code.scratch(call, || 0)?, ..of(Work::Flow(call)) }
            }
            kind => {
                let call = LibraryCall::resolve(record, kind.checked_sub(step::LIBRARY)? as usize, code)?;
                let affinity = (call.routine.affinity)(&call.contraction, call.prologue.is_some());
                let scratch = code.scratch(record[step::CALL] as usize, || call.scratch_bytes())?;
                // The library of the writer may have divided the call otherwise.
                let tasks = (call.routine.tasks)(&call.contraction);
                Step { tasks, affinity, scratch, ..of(Work::Library(call)) }
            }
        })
    }

    /// Tasks of a chunk when the step is cut into about `chunks`: rather more of them than fewer, which could not be
    /// shared evenly.
    pub(crate) fn chunk(&self, chunks: u64) -> u64 {
        let (grain, workers) = ((self.tasks / chunks).max(self.grain).max(1), chunks.div_ceil(CHUNKS_PER_WORKER));
        affinity_grain(grain, self.affinity, self.tasks, workers)
    }

    /// Executes some tasks of a processor's step on the calling thread.
    ///
    /// # Safety
    /// `arguments` points to the addresses of the step's arguments, each valid for its buffer's size; no other thread
    /// executes the same tasks or uses the same scratch memory, which is the worker's.
    #[inline]
    pub(crate) unsafe fn execute(&self, arguments: *const *mut u8, tasks: Range<u64>, scratch: *mut u8) {
        match &self.work {
            Work::Kernel(kernel) => {
                let range = [tasks.start as i64, tasks.end as i64];
                // SAFETY: passed on from the caller.
                unsafe { kernel(arguments, range.as_ptr()) }
            }
            Work::Copy(bytes) => {
                let (begin, end) = (tasks.start * COPY_BLOCK, (tasks.end * COPY_BLOCK).min(*bytes));
                // SAFETY: both buffers have `bytes` bytes and do not overlap, as the plan's verifier checked.
                unsafe {
                    let (source, target) = (*arguments, *arguments.add(1));
                    let count = (end - begin) as usize;
                    core::ptr::copy_nonoverlapping(source.add(begin as usize), target.add(begin as usize), count);
                }
            }
            // SAFETY: passed on from the caller.
            Work::Library(call) => unsafe { (call.routine.run)(call, arguments, tasks, scratch) },
            // No host that loads a plan for processors accepts a launch; functions of the host and nested plans are
            // executed by it.
            Work::Launch { .. } | Work::Host(_) | Work::Flow(_) => debug_assert!(false, "a step of a processor"),
        }
    }
}

/// Bytes from the working memory of one worker to that of the next. Workers share no pair of cache lines. A gap follows
/// large working memory, because the hardware prefetcher runs past the end of a strided sweep, into lines that another
/// core writes: without a gap, convolutions with 64 KB of patches took 6 % longer on 2 threads.
pub const fn worker_stride(scratch_bytes: usize) -> usize {
    const LINE_PAIR: usize = 128;
    const LARGE: usize = 32 << 10;
    const GAP: usize = 16 << 10;
    let gap = if scratch_bytes >= LARGE { GAP } else { 0 };
    scratch_bytes.next_multiple_of(LINE_PAIR) + gap
}
