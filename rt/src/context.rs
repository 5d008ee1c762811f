//! The memory of one run at a time, and the run.
//!
//! A context is one block of memory: this record, the table of arguments, scratch memory for every worker, the
//! arena. Contexts of one model share its weights and nothing else.

use core::ffi::{c_char, c_void};
use core::mem::{align_of, size_of};

use tensorc_abi::artifact::{Parallel, Status, Tensor, Weights, status};
use tensorc_abi::image::{Image, slot, step, variant};
use tensorc_abi::{Attention, BatchedGemm, Conv2d};
use tensorc_kernels::computed_grain;

use crate::library::{Call, Library};
use crate::model::{Model, steps, variants};
use crate::pool::{chunk, region, workers};
use crate::signature::Signature;
use crate::weights;

/// Alignment of a context's memory and of everything planned in it.
const ALIGN: usize = 64;
/// Scratch memory of different workers does not share pairs of cache lines.
const LINE_PAIR: usize = 128;
/// No page of memory is larger, but for those that are asked for.
const PAGE: usize = 1 << 16;
/// Bytes copied by one task of a copy.
const COPY_BLOCK: u64 = 1 << 16;

#[repr(C)]
pub struct Context {
    model: &'static Model,
    signature: Signature,
    weights: *const u8,
    parallel: Parallel,
    arguments: *mut *mut u8,
    scratch: *mut u8,
    scratch_stride: usize,
    arena: *mut u8,
    /// Bytes of the arena that the system has been asked for, if it is ours.
    committed: usize,
    /// Whether the memory is ours to free.
    owned: bool,
}

/// Where the parts of a context lie, in bytes from its start.
struct Plan {
    arguments: usize,
    scratch: usize,
    stride: usize,
    arena: usize,
    total: usize,
}

impl Plan {
    /// The largest of all variants. `None` if a call in the image is none.
    fn new(model: &'static Model, image: &Image<'static>, workers: usize) -> Option<Plan> {
        let (mut slots, mut arena, mut stride) = (0, 0, 0);
        for v in variants(image) {
            slots = slots.max(image.size(v + variant::SLOTS));
            arena = arena.max(image.size(v + variant::ARENA_BYTES));
            for s in steps(image, v) {
                if let Some((library, call)) = library_call(model, image, s)? {
                    stride = stride.max((library.scratch)(&call)?);
                }
            }
        }
        let stride = stride.next_multiple_of(LINE_PAIR);
        let arguments = size_of::<Context>().next_multiple_of(align_of::<*mut u8>());
        let scratch = (arguments + slots * size_of::<*mut u8>()).next_multiple_of(LINE_PAIR);
        let arena_at = scratch + stride.checked_mul(workers)?;
        Some(Plan { arguments, scratch, stride, arena: arena_at, total: arena_at.checked_add(arena)? })
    }
}

/// The library kernel of a step, if it calls one; `None` if it lacks one.
#[allow(clippy::option_option, reason = "a step without a library kernel and a damaged one differ")]
fn library_call(
    model: &'static Model,
    image: &Image<'static>,
    s: &[u64; step::WORDS],
) -> Option<Option<(&'static Library, Call)>> {
    let Some(kind) = s[step::KIND].checked_sub(step::LIBRARY) else { return Some(None) };
    let library = model.library(kind as usize)?;
    let len = *[BatchedGemm::WORDS, Attention::WORDS].get(kind as usize).unwrap_or(&Conv2d::WORDS);
    let words = image.words(s[step::CALL] as usize, len);
    let kernel = |function: u32| match function {
        0 => Some(None),
        function => model.kernel(image, u64::from(function) - 1).map(Some),
    };
    // Low halves are the epilogue's, high ones the prologue's.
    let (functions, args) = (s[step::FUNCTION], s[step::ARGS]);
    let epilogue = kernel(functions as u32)?;
    let prologue = kernel((functions >> 32) as u32)?.map(|f| (f, (args >> 32) as usize));
    Some(Some((library, Call { words, epilogue, args: args as u32 as usize, prologue })))
}

/// Bytes of memory that a context for so many workers takes; 0 if the model is damaged.
///
/// # Safety
/// `model` is what generated code hands over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_memory_bytes(model: &'static Model, workers: u32) -> u64 {
    let plan = model.image().ok().and_then(|image| Plan::new(model, &image, workers.max(1) as usize));
    plan.map_or(0, |plan| plan.total as u64)
}

/// Makes a context in the caller's memory, or in memory of its own if `memory` is null.
///
/// # Safety
/// `model` is what generated code hands over; `out` is valid for a write; `memory` is null or `bytes` bytes that
/// nobody else uses while the context lives; `weights` and `parallel` are null or valid, and outlive the context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_init(
    model: &'static Model,
    out: *mut *mut Context,
    memory: *mut c_void,
    bytes: u64,
    weights: *const Weights,
    parallel: *const Parallel,
) -> Status {
    // SAFETY: passed on from the caller.
    match unsafe { init(model, memory.cast(), bytes, weights.as_ref(), parallel.as_ref()) } {
        Ok(_) if out.is_null() => status::ARGUMENT,
        Ok(context) => {
            // SAFETY: not null, and valid by the caller's contract.
            unsafe { *out = context };
            status::OK
        }
        Err(status) => status,
    }
}

unsafe fn init(
    model: &'static Model,
    memory: *mut u8,
    bytes: u64,
    weights: Option<&Weights>,
    parallel: Option<&Parallel>,
) -> Result<*mut Context, Status> {
    let image = model.image()?;
    let parallel = parallel.copied().unwrap_or(Parallel::NONE);
    let plan = Plan::new(model, &image, workers(&parallel)).ok_or(status::DAMAGED)?;
    let weights = weights::base(model, &image, weights)?;
    let owned = memory.is_null();
    let base = if owned {
        // SAFETY: the alignment divides the size.
        unsafe { libc::aligned_alloc(LINE_PAIR, plan.total.next_multiple_of(LINE_PAIR)).cast::<u8>() }
    } else {
        memory
    };
    let fits = owned || bytes >= plan.total as u64;
    if base.is_null() || !fits || !(base as usize).is_multiple_of(ALIGN) {
        return Err(status::MEMORY);
    }
    let context = Context {
        model,
        signature: Signature::new(image, false),
        weights,
        parallel,
        arguments: base.wrapping_add(plan.arguments).cast(),
        scratch: base.wrapping_add(plan.scratch),
        scratch_stride: plan.stride,
        arena: base.wrapping_add(plan.arena),
        committed: 0,
        owned,
    };
    // SAFETY: the memory is large enough for the plan, which begins with the context, and aligned.
    unsafe { base.cast::<Context>().write(context) };
    Ok(base.cast())
}

/// Ends a context. Memory of the caller's is the caller's again.
///
/// # Safety
/// `context` is null or came from `tc_rt_init`, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_free(_: &'static Model, context: *mut Context) {
    // SAFETY: by the caller's contract.
    if unsafe { context.as_ref() }.is_some_and(|context| context.owned) {
        // SAFETY: it came from `aligned_alloc`.
        unsafe { libc::free(context.cast()) };
    }
}

/// What went wrong in the last call with this context, ended by a zero; empty if nothing did.
///
/// # Safety
/// `context` came from `tc_rt_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_error(_: &'static Model, context: *const Context) -> *const c_char {
    // SAFETY: by the caller's contract.
    let text = unsafe { context.as_ref() }.map(|context| context.signature.message.as_ptr().cast());
    text.unwrap_or(status::text(status::ARGUMENT).as_ptr())
}

/// Gives the element types, shapes and sizes of the outputs for inputs of some shapes. Data is left alone, and
/// the inputs need none.
///
/// # Safety
/// `context` came from `tc_rt_init`; the arrays have an entry for every input and output of the model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_describe(
    _: &'static Model,
    context: *mut Context,
    inputs: *const Tensor,
    outputs: *mut Tensor,
) -> Status {
    // SAFETY: by the caller's contract.
    let Some(context) = (unsafe { context.as_mut() }) else { return status::ARGUMENT };
    // SAFETY: passed on from the caller.
    let described = unsafe { context.signature.outputs_for(inputs, outputs) };
    described.err().unwrap_or(status::OK)
}

/// Runs the model: reads the inputs, fills the outputs. One call at a time with one context.
///
/// # Safety
/// As `tc_rt_describe`, and every tensor's data is valid for its bytes; outputs overlap neither one another nor
/// inputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_run(
    _: &'static Model,
    context: *mut Context,
    inputs: *const Tensor,
    outputs: *mut Tensor,
) -> Status {
    // SAFETY: by the caller's contract.
    let Some(context) = (unsafe { context.as_mut() }) else { return status::ARGUMENT };
    // SAFETY: passed on from the caller.
    match unsafe { context.run(inputs, outputs) } {
        Ok(()) => status::OK,
        Err(status) => status,
    }
}

impl Context {
    unsafe fn run(&mut self, inputs: *const Tensor, outputs: *mut Tensor) -> Result<(), Status> {
        // SAFETY: passed on from the caller.
        let (v, inputs, outputs) = unsafe { self.signature.check_all(inputs, outputs)? };
        self.bind(v, inputs, outputs);
        for s in steps(&self.signature.image, v) {
            // SAFETY: the tensors are as large as the plan says, which the compiler has verified.
            unsafe { self.step(s)? };
        }
        Ok(())
    }

    /// Fills the table of arguments.
    fn bind(&mut self, v: usize, inputs: &[Tensor], outputs: &[Tensor]) {
        let (count, first) =
            (self.signature.image.size(v + variant::SLOTS), self.signature.image.size(v + variant::SLOTS + 1));
        let known = self.signature.bound == v;
        for i in 0..count {
            let Some(record) = self.signature.image.record::<{ slot::WORDS }>(first + i * slot::WORDS) else { break };
            let index = record[slot::INDEX] as usize;
            let base = match record[slot::HOME] {
                slot::INPUT => inputs.get(index).map(|t| t.data),
                slot::OUTPUT => outputs.get(index).map(|t| t.data),
                _ if known => continue,
                slot::WEIGHTS => Some(self.weights.cast_mut()),
                _ => Some(self.arena),
            };
            let address = base.unwrap_or(core::ptr::null_mut()).wrapping_add(record[slot::OFFSET] as usize);
            // SAFETY: the table has as many entries as the variant with most slots.
            unsafe { *self.arguments.add(i) = address };
        }
        self.signature.bound = v;
        if !known {
            self.commit(self.signature.image.size(v + variant::ARENA_BYTES));
        }
    }

    /// Asks for memory of the arena at once, which takes a fraction of the time of one fault after the other.
    fn commit(&mut self, bytes: usize) {
        if !self.owned || bytes <= self.committed {
            return;
        }
        let first = (self.arena as usize + self.committed).next_multiple_of(PAGE);
        let len = ((self.arena as usize + bytes) / PAGE * PAGE).saturating_sub(first);
        // SAFETY: these are whole pages of the context's memory. Systems that do not know the request refuse it.
        unsafe { libc::madvise(first as *mut c_void, len, libc::MADV_POPULATE_WRITE) };
        self.committed = bytes;
    }

    /// Executes a step.
    ///
    /// # Safety
    /// The table of arguments is bound for its variant.
    unsafe fn step(&self, s: &[u64; step::WORDS]) -> Result<(), Status> {
        let arguments = Shared(self.arguments.wrapping_add(s[step::FIRST_SLOT] as usize).cast_const());
        let (tasks, grain) = (s[step::TASKS], s[step::GRAIN]);
        match s[step::KIND] {
            step::KERNEL => {
                let kernel = self.model.kernel(&self.signature.image, s[step::FUNCTION]).ok_or(status::DAMAGED)?;
                region(&self.parallel, tasks, grain, &|_, range| {
                    let scalars = [range.start as i64, range.end as i64];
                    // SAFETY: the compiler made the kernel for these arguments; iterations are free of data races.
                    unsafe { kernel(arguments.get(), scalars.as_ptr()) };
                });
            }
            step::COPY => {
                // SAFETY: the table holds source and destination.
                let [src, dst] = unsafe { [*arguments.get(), *arguments.get().add(1)] };
                let (src, dst) = (Shared(src.cast_const()), Shared(dst.cast_const()));
                let blocks = tasks.div_ceil(COPY_BLOCK);
                region(&self.parallel, blocks, grain.div_ceil(COPY_BLOCK).max(1), &|_, range| {
                    let (begin, end) = (range.start * COPY_BLOCK, (range.end * COPY_BLOCK).min(tasks));
                    let (from, to) = (src.get().wrapping_add(begin as usize), dst.get().wrapping_add(begin as usize));
                    // SAFETY: both buffers have `tasks` bytes, and the plan keeps them apart.
                    unsafe { core::ptr::copy_nonoverlapping(from, to.cast_mut(), (end - begin) as usize) };
                });
            }
            _ => {
                let (library, call) =
                    library_call(self.model, &self.signature.image, s).flatten().ok_or(status::DAMAGED)?;
                let scratch = Shared(self.scratch.cast_const());
                let grain = match call.prologue {
                    Some(_) => {
                        let workers = workers(&self.parallel) as u64;
                        computed_grain(chunk(tasks, grain, workers), (library.together)(&call), tasks, workers)
                    }
                    None => grain,
                };
                region(&self.parallel, tasks, grain, &|worker, range| {
                    let own = scratch.get().wrapping_add(worker * self.scratch_stride).cast_mut();
                    // SAFETY: the compiler made the call for these arguments; every worker has scratch of its own.
                    unsafe { (library.run)(&call, arguments.get(), range, own) };
                });
            }
        }
        Ok(())
    }
}

// SAFETY: workers only read the context; what lies behind its addresses is accessed by tasks, which are free of
// data races.
unsafe impl Sync for Context {}

/// An address that workers share.
#[derive(Clone, Copy)]
struct Shared<T>(*const T);

// SAFETY: as for the context.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn get(&self) -> *const T {
        self.0
    }
}
