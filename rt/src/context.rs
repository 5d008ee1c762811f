//! The memory of one run at a time, and the run.
//!
//! A context is one block of memory: this record, the table of arguments, what plans for many shapes keep ([`crate::open`]),
//! the arena, in which every worker has working memory. Contexts of one model share its weights and nothing else. Without plans
//! for many shapes, every context has memory for any run; with them, a caller may give less, and larger runs are refused.

use core::ffi::{c_char, c_void};
use core::mem::{align_of, size_of};

use tensorc_abi::artifact::{Parallel, Status, Tensor, Weights, status};
use tensorc_abi::image::{Image, flow, slot, step, variant};
use tensorc_exec::{Code, Flow, Memory, Step, Tensors, Work, WorkerMemory, bind, run};

use crate::model::{ArtifactModel, Body, LINE_PAIR, Linked, Needs, enter, steps};
use crate::open::{OpenMemory, OpenNeeds};
use crate::pool::{Threads, workers};
use crate::signature::ImageSignature;
use crate::weights;

/// Alignment of a context's memory and of everything planned in it.
pub const ALIGN: usize = 64;
/// No page of memory is larger, but for those that are asked for.
const PAGE: usize = 1 << 16;

/// A context of a model on the processor, at the start of its block of memory.
#[repr(C)]
pub struct ArtifactContext {
    signature: ImageSignature,
    weights: *const u8,
    parallel: Parallel,
    arguments: *mut *mut u8,
    /// Entries of the table of arguments.
    slots: usize,
    arena: *mut u8,
    /// Bytes of the arena, at least what plans for one shape take.
    room: usize,
    /// The arena, if it lies in memory of its own: of a shape that takes more than was known to be the most; else null.
    grown: *mut u8,
    /// Where workers have working memory in plans for one shape.
    common: Option<WorkerMemory>,
    /// Bytes of the arena that the system has been asked for, if it is ours.
    committed: usize,
    /// Whether the memory is ours to free.
    owned: bool,
}

/// Where the parts of a context lie, in bytes from its start.
pub struct ContextLayout {
    arguments: usize,
    /// Entries of the table of arguments.
    slots: usize,
    /// What plans for many shapes keep.
    open: usize,
    needs: OpenNeeds,
    arena: usize,
    /// Where workers have working memory in every step of plans for one shape where that fits.
    common: Option<WorkerMemory>,
    /// Where the arena ends at the least: behind what plans for one shape take.
    least: usize,
    total: usize,
}

impl ContextLayout {
    /// An error if the model is damaged.
    pub fn new(model: &'static ArtifactModel, image: &Image<'static>, workers: usize) -> Result<ContextLayout, Status> {
        let needs = Needs::of(model, image, workers, |_, step| match step.work {
            Work::Launch { .. } | Work::Host(_) => Err(status::DAMAGED),
            _ => Ok(()),
        })?;
        let arguments = size_of::<ArtifactContext>().next_multiple_of(align_of::<*mut u8>());
        // Kernels read constants there.
        let open = (arguments + needs.slots * size_of::<*mut u8>()).next_multiple_of(ALIGN);
        let arena = (open + needs.open.bytes()).next_multiple_of(LINE_PAIR);
        let least = arena.checked_add(needs.arena).ok_or(status::MEMORY)?;
        let total = arena.checked_add(needs.open.arena).ok_or(status::MEMORY)?.max(least);
        let common = WorkerMemory::common(needs.arena, needs.stride, workers);
        Ok(ContextLayout { arguments, slots: needs.slots, open, needs: needs.open, arena, common, least, total })
    }

    /// Bytes of a context without its arena.
    pub fn head(&self) -> usize {
        self.arena
    }

    /// Bytes of the arena for runs of any shape.
    pub fn arena_bytes(&self) -> usize {
        self.total - self.arena
    }

    /// Makes a context at `base`, the arena of which lies elsewhere.
    ///
    /// # Safety
    /// `base` is a multiple of 64, [`ContextLayout::head`] bytes lie there, and `room` at `arena`, which nobody else uses in a run.
    /// `weights` point to the weights of the model. Model, memory and weights outlive the context.
    pub unsafe fn place(
        &self,
        (model, image): (&'static ArtifactModel, Image<'static>),
        base: *mut u8,
        (arena, room): (*mut u8, usize),
        (weights, parallel): (*const u8, Parallel),
        owned: bool,
    ) -> *mut ArtifactContext {
        // SAFETY: the memory is large enough for the plan, in which this part is aligned, and only the context uses it.
        let open = unsafe { OpenMemory::new(base.wrapping_add(self.open), &self.needs, workers(&parallel)) };
        let context = ArtifactContext {
            signature: ImageSignature::new(model, image, open, false),
            weights,
            parallel,
            arguments: base.wrapping_add(self.arguments).cast(),
            slots: self.slots,
            arena,
            room,
            grown: core::ptr::null_mut(),
            common: self.common,
            committed: 0,
            owned,
        };
        // SAFETY: the memory is large enough for the plan, which begins with the context, and aligned.
        unsafe { base.cast::<ArtifactContext>().write(context) };
        base.cast()
    }
}

/// Bytes of memory that a context for so many workers takes for runs of any shape; 0 if the model is damaged.
///
/// # Safety
/// `model` is what generated code hands over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_memory_bytes(model: &'static ArtifactModel, workers: u32) -> u64 {
    let plan = model.image().and_then(|image| ContextLayout::new(model, &image, workers.max(1) as usize));
    plan.map_or(0, |plan| plan.total as u64)
}

/// Bytes of memory that a context for so many workers takes for runs with inputs of some shapes, whose types and data are left
/// alone; 0 if the model has no plan for them or is damaged. Less is never taken than plans for one shape take.
///
/// It takes memory of the system's for as long as it runs: the only function that does so where a context is in the caller's.
///
/// # Safety
/// `model` is what generated code hands over; `inputs` is null or has an entry for every input of the model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_memory_for(model: &'static ArtifactModel, inputs: *const Tensor, workers: u32) -> u64 {
    // SAFETY: passed on from the caller.
    let bytes = unsafe { memory_for(model, inputs, workers.max(1) as usize) };
    bytes.map_or(0, |bytes| bytes as u64)
}

unsafe fn memory_for(model: &'static ArtifactModel, inputs: *const Tensor, workers: usize) -> Result<usize, Status> {
    let image = model.image()?;
    let plan = ContextLayout::new(model, &image, workers)?;
    // SAFETY: the size is not 0.
    let memory = unsafe { libc::malloc(plan.needs.bytes().max(1)) };
    if memory.is_null() {
        return Err(status::MEMORY);
    }
    // SAFETY: the memory is as large as is needed, aligned for words, and freed when nobody uses it any more; the rest is
    // passed on from the caller.
    unsafe {
        let mut signature =
            ImageSignature::new(model, image, OpenMemory::new(memory.cast(), &plan.needs, workers), false);
        let found = signature.variant_for(inputs);
        let arena = found.map(|v| v.map(|v| signature.open.shape(v).map_or(0, |shape| shape.arena)));
        libc::free(memory);
        match arena? {
            Some(arena) => plan.arena.checked_add(arena).map(|bytes| bytes.max(plan.least)).ok_or(status::MEMORY),
            None => Err(status::SHAPE),
        }
    }
}

/// Makes a context in the caller's memory, or in memory of its own if `memory` is null. That is enough for runs of any shape;
/// the caller's has to be as large only for models without plans for many shapes.
///
/// # Safety
/// `model` is what generated code hands over; `out` is valid for a write; `memory` is null or `bytes` bytes that
/// nobody else uses while the context lives; `weights` and `parallel` are null or valid, and outlive the context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_init(
    model: &'static ArtifactModel,
    out: *mut *mut ArtifactContext,
    memory: *mut c_void,
    bytes: u64,
    weights: *const Weights,
    parallel: *const Parallel,
) -> Status {
    if out.is_null() {
        return status::ARGUMENT;
    }
    // SAFETY: passed on from the caller; not null.
    unsafe { deliver(out, init(model, memory.cast(), bytes, weights.as_ref(), parallel.as_ref())) }
}

/// Enters a context that was made.
///
/// # Safety
/// `out` is valid for a write.
pub unsafe fn deliver<C>(out: *mut *mut C, made: Result<*mut C, Status>) -> Status {
    match made {
        Ok(context) => {
            // SAFETY: by the caller's contract.
            unsafe { *out = context };
            status::OK
        }
        Err(status) => status,
    }
}

/// Memory of a context: the caller's, or so many new bytes if there is none.
pub fn memory_or_new(given: *mut u8, bytes: usize) -> Result<*mut u8, Status> {
    let base = match given.is_null() {
        // SAFETY: the alignment divides the size.
        true => unsafe { libc::aligned_alloc(LINE_PAIR, bytes.next_multiple_of(LINE_PAIR)).cast::<u8>() },
        false => given,
    };
    let usable = !base.is_null() && (base as usize).is_multiple_of(ALIGN);
    usable.then_some(base).ok_or(status::MEMORY)
}

unsafe fn init(
    model: &'static ArtifactModel,
    memory: *mut u8,
    bytes: u64,
    weights: Option<&Weights>,
    parallel: Option<&Parallel>,
) -> Result<*mut ArtifactContext, Status> {
    let image = model.image()?;
    let parallel = parallel.copied().unwrap_or(Parallel::NONE);
    let workers = workers(&parallel);
    let plan = ContextLayout::new(model, &image, workers)?;
    let weights = weights::base(model, &image, weights)?;
    let owned = memory.is_null();
    let end = if owned { plan.total } else { usize::try_from(bytes).unwrap_or(usize::MAX).min(plan.total) };
    if end < plan.least {
        return Err(status::MEMORY);
    }
    let base = memory_or_new(memory, plan.total)?;
    let arena = (base.wrapping_add(plan.arena), end - plan.arena);
    // SAFETY: the memory is large enough for the plan and aligned, and only the context uses it.
    Ok(unsafe { plan.place((model, image), base, arena, (weights, parallel), owned) })
}

/// Ends a context. Memory of the caller's is the caller's again.
///
/// # Safety
/// `context` is null or came from `tc_rt_init`, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_free(_: &'static ArtifactModel, context: *mut ArtifactContext) {
    // SAFETY: by the caller's contract.
    if unsafe { context.as_ref() }.is_some_and(|context| context.owned) {
        // SAFETY: it came from `aligned_alloc`.
        unsafe {
            (*context).free_grown();
            libc::free(context.cast());
        }
    }
}

/// What went wrong in the last call with this context, ended by a zero; empty if nothing did.
///
/// # Safety
/// `context` came from `tc_rt_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_error(_: &'static ArtifactModel, context: *const ArtifactContext) -> *const c_char {
    // SAFETY: by the caller's contract.
    let text = unsafe { context.as_ref() }.map(ArtifactContext::message);
    text.unwrap_or(status::text(status::ARGUMENT).as_ptr())
}

/// Gives the element types, shapes and sizes of the outputs for inputs of some shapes. Data is left alone, and
/// the inputs need none. The extents lie in the model or in the context, and are valid until the next call with the context.
///
/// # Safety
/// `context` came from `tc_rt_init`; the arrays have an entry for every input and output of the model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_describe(
    _: &'static ArtifactModel,
    context: *mut ArtifactContext,
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
    _: &'static ArtifactModel,
    context: *mut ArtifactContext,
    inputs: *const Tensor,
    outputs: *mut Tensor,
) -> Status {
    // SAFETY: by the caller's contract.
    let Some(context) = (unsafe { context.as_mut() }) else { return status::ARGUMENT };
    // SAFETY: passed on from the caller.
    unsafe { context.run(inputs, outputs) }.err().unwrap_or(status::OK)
}

/// What the steps of a plan and of those nested in it are executed with.
struct PlanRun<'a> {
    linked: &'a Linked<'a>,
    parallel: &'a Parallel,
    weights: *mut u8,
    /// Constants of the shape, if the plan is for many.
    constants: *mut u8,
}

impl<'a> PlanRun<'a> {
    /// Executes steps in order.
    ///
    /// # Safety
    /// As for [`run`], of every step.
    unsafe fn steps(
        &self,
        records: impl Iterator<Item = &'a [u64; step::WORDS]>,
        memory: Memory,
    ) -> Result<(), Status> {
        for record in records {
            let step = Step::resolve(record, self.linked).ok_or(status::DAMAGED)?;
            match step.work {
                // SAFETY: passed on from the caller.
                Work::Flow(call) => unsafe { self.flow(&step, call, memory)? },
                _ => {
                    // SAFETY: passed on from the caller.
                    let Ok(()) = unsafe { run(&[step], memory, &Threads(self.parallel)) };
                }
            }
        }
        Ok(())
    }

    /// Executes a step with nested plans.
    ///
    /// # Safety
    /// As for [`PlanRun::steps`].
    unsafe fn flow(&self, step: &Step, call: usize, outer: Memory) -> Result<(), Status> {
        let flow = Flow::read(self.linked.words(call)).ok_or(status::DAMAGED)?;
        let memory = outer.arena.wrapping_add(step.scratch.offset);
        let mut each = |i: usize, tensors: Tensors<'_>| {
            let body = Body::of(self.linked, &flow, i).ok_or(status::DAMAGED)?;
            let arena = memory.wrapping_add(body.arena_offset().ok_or(status::DAMAGED)?);
            let table = memory.wrapping_add(flow::HEADER_BYTES).cast::<*mut u8>();
            // SAFETY: the table lies before the arena of the nested plan, in working memory that was measured for it.
            let entries = unsafe { core::slice::from_raw_parts_mut(table, body.slots().count()) };
            bind(body.slots(), entries, |home, index| {
                Some(match home {
                    slot::WEIGHTS => self.weights,
                    slot::ARENA => arena,
                    slot::REGION => self.constants,
                    home => tensors(home, index),
                })
            });
            // SAFETY: the table is bound, and the working memory as large as was measured.
            unsafe { self.steps(body.steps(), Memory { table: table.cast_const(), arena, common: None }) }
        };
        // SAFETY: the slots of the step are bound to tensors as large as its record says.
        unsafe { flow.run(outer.table.wrapping_add(step.first_slot), memory, &mut each) }
    }
}

impl ArtifactContext {
    /// What went wrong in the last call; empty if nothing did.
    pub fn message(&self) -> *const c_char {
        self.signature.message.as_ptr().cast()
    }

    /// The model that it runs.
    pub fn model(&self) -> &'static ArtifactModel {
        self.signature.model
    }

    /// Frees what runs allocated; nothing runs any more.
    pub fn free_grown(&mut self) {
        // SAFETY: null, or from `aligned_alloc`; no run uses it now.
        unsafe { libc::free(self.grown.cast()) };
        self.grown = core::ptr::null_mut();
    }

    unsafe fn run(&mut self, inputs: *const Tensor, outputs: *mut Tensor) -> Result<(), Status> {
        // SAFETY: passed on from the caller.
        let (v, inputs, outputs) = unsafe { self.signature.check_all(inputs, outputs)? };
        let common = match self.signature.open.shape(v).copied() {
            Some(shape) => {
                if shape.arena > self.room {
                    self.grow(shape.arena)?;
                }
                shape.common
            }
            None => self.common,
        };
        self.bind(v, inputs, outputs);
        let linked = Linked { model: self.signature.model, image: self.signature.image_of(v), variant: v };
        let memory = Memory { table: self.arguments.cast_const(), arena: self.arena, common };
        let (weights, constants) = (self.weights.cast_mut(), self.signature.open.constants());
        let plan = PlanRun { linked: &linked, parallel: &self.parallel, weights, constants };
        // SAFETY: the table is bound for the variant; the tensors are as large as the plan says, which the compiler has
        // verified; the arena is large enough for the working memory of every worker.
        unsafe { plan.steps(steps(&linked.image, v), memory)? };
        let arena = self.arena;
        // SAFETY: every word lies inside the arena, which was checked when it was measured, and aligned.
        self.signature.confirm(v, |_, offset| Ok(unsafe { arena.add(offset).cast::<i64>().read() }))
    }

    /// Makes a larger arena, unless the memory is the caller's.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, needed: usize) -> Result<(), Status> {
        if !self.owned {
            return Err(self.too_small(needed));
        }
        // SAFETY: the alignment divides the size.
        let arena = unsafe { libc::aligned_alloc(LINE_PAIR, needed.next_multiple_of(LINE_PAIR)).cast::<u8>() };
        if arena.is_null() {
            return Err(status::MEMORY);
        }
        self.free_grown();
        (self.arena, self.grown, self.room, self.committed) = (arena, arena, needed, 0);
        // The table has addresses of the old one.
        self.signature.bound = 0;
        Ok(())
    }

    /// Explains that a run takes a larger arena than there is.
    #[cold]
    #[inline(never)]
    fn too_small(&mut self, needed: usize) -> Status {
        let before = self.arena as usize - core::ptr::from_ref(self) as usize;
        let [needed, given] = [needed, self.room].map(|arena| before.saturating_add(arena) as u64);
        self.signature.message.text("a run of these shapes takes ").number(needed);
        self.signature.message.text(" bytes of memory, the context has ").number(given);
        status::MEMORY
    }

    /// Fills the table of arguments.
    fn bind(&mut self, v: usize, inputs: &[Tensor], outputs: &[Tensor]) {
        let (image, constants) = (self.signature.image_of(v), self.signature.open.constants());
        let arena = self.signature.open.shape(v).map_or(image.size(v + variant::ARENA_BYTES), |shape| shape.arena);
        let known = self.signature.bound == v;
        // SAFETY: the context's own table, which no run uses now.
        let table = unsafe { core::slice::from_raw_parts_mut(self.arguments, self.slots) };
        let own = [self.weights.cast_mut(), self.arena].map(|base| (!known).then_some(base));
        enter(&image, v, table, own, |home, index| match home {
            slot::REGION => Some(constants),
            home => if home == slot::INPUT { inputs } else { outputs }.get(index).map(|tensor| tensor.data),
        });
        self.signature.bound = v;
        if !known {
            self.commit(arena);
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
}
