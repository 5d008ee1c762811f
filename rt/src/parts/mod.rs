//! Models that run in parts, since their shapes depend on values ([`tensorc_abi::image::parts`]).
//!
//! Every part is a model as others are, with an image and a context of its own. A context of the whole has these, the values that go
//! from one to the other, and the numbers that become known. Parts run one after the other, in the same arena. So run the bodies of
//! branches and loops that the host runs between two parts, each a model in parts with a context of its own. `layout` reads the tables
//! of the image and places the context, `run` is a call, `flow` a branch or loop in it.

mod flow;
mod layout;
mod run;

use core::ffi::{c_char, c_void};

use tensorc_abi::artifact::{Parallel, Status, Tensor, Weights, status};
use tensorc_abi::image::{Image, MAX_RANK, header, part};

use self::layout::{PartsLayout, PartsTables};
use self::run::{PartsRun, slice};
use crate::context::{ArtifactContext, ContextLayout, deliver, memory_or_new, tc_rt_memory_for};
use crate::message::ErrorText;
use crate::model::ArtifactModel;
use crate::pool::workers;
use crate::weights;

/// A context of a model that runs in parts, at the start of its block of memory.
pub struct PartsContext {
    image: Image<'static>,
    tables: PartsTables,
    contexts: *mut *mut ArtifactContext,
    bodies: *mut *mut PartsContext,
    values: *mut Tensor,
    extents: *mut [i64; MAX_RANK],
    numbers: *mut i64,
    /// What parts are called with.
    given: *mut Tensor,
    /// What values lie in.
    memory: *mut u8,
    words: *mut u64,
    owned: bool,
    message: ErrorText,
}

/// As `tc_rt_memory_bytes`.
///
/// # Safety
/// `model` is what generated code hands over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_memory_bytes(model: &'static ArtifactModel, workers: u32) -> u64 {
    let plan = model.image().and_then(|image| PartsLayout::new(model, &image, workers.max(1) as usize));
    plan.map_or(0, |plan| plan.total as u64)
}

/// Bytes of memory that a context takes for runs with inputs of some shapes, which are those for any shapes: how much is found does
/// not follow from the inputs. 0 if the model has no plan for them or is damaged.
///
/// # Safety
/// As `tc_rt_memory_for`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_memory_for(
    model: &'static ArtifactModel,
    inputs: *const Tensor,
    workers: u32,
) -> u64 {
    let first = model.image().and_then(|image| {
        let record = PartsTables::of(&image)?.part(&image, 0)?;
        model.part(record[part::IMAGE] as usize).ok_or(status::DAMAGED)
    });
    let Ok(first) = first else { return 0 };
    // SAFETY: it is used during the call alone; the rest is passed on from the caller.
    unsafe {
        let first = core::mem::transmute::<&ArtifactModel, &'static ArtifactModel>(&first);
        match tc_rt_memory_for(first, inputs, workers) {
            0 => 0,
            _ => tc_rt_parts_memory_bytes(model, workers),
        }
    }
}

/// As `tc_rt_init`. The caller's memory has to be as large as for runs of any shape.
///
/// # Safety
/// As `tc_rt_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_init(
    model: &'static ArtifactModel,
    out: *mut *mut PartsContext,
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

unsafe fn init(
    model: &'static ArtifactModel,
    memory: *mut u8,
    bytes: u64,
    weights: Option<&Weights>,
    parallel: Option<&Parallel>,
) -> Result<*mut PartsContext, Status> {
    let image = model.image()?;
    let parallel = parallel.copied().unwrap_or(Parallel::NONE);
    let plan = PartsLayout::new(model, &image, workers(&parallel))?;
    let weights = weights::base(model, &image, weights)?;
    let owned = memory.is_null();
    if !owned && bytes < plan.total as u64 {
        return Err(status::MEMORY);
    }
    let base = memory_or_new(memory, plan.total)?;
    // SAFETY: the memory is large enough for the plan and aligned, and only the context uses it.
    let made = unsafe { place(model, image, &plan, base, (weights, parallel), owned) };
    if made.is_err() && owned {
        // SAFETY: it came from `aligned_alloc`, and no context lies in it.
        unsafe { libc::free(base.cast()) };
    }
    made
}

/// Makes a context at `base`.
///
/// # Safety
/// As many bytes lie there as the plan has, which nobody else uses; they and `weights` outlive the context.
unsafe fn place(
    model: &'static ArtifactModel,
    image: Image<'static>,
    plan: &PartsLayout,
    base: *mut u8,
    (weights, parallel): (*const u8, Parallel),
    owned: bool,
) -> Result<*mut PartsContext, Status> {
    let at = |offset: usize| base.wrapping_add(offset);
    let context = PartsContext {
        image,
        tables: plan.tables,
        contexts: at(plan.contexts).cast(),
        bodies: at(plan.bodies).cast(),
        values: at(plan.values).cast(),
        extents: at(plan.extents).cast(),
        numbers: at(plan.numbers).cast(),
        given: at(plan.given).cast(),
        memory: at(plan.memory),
        words: at(plan.words).cast(),
        owned,
        message: ErrorText::EMPTY,
    };
    let mut head = at(plan.heads);
    for i in 0..plan.tables.parts {
        let record = plan.tables.part(&image, i)?;
        let own = model.part(record[part::IMAGE] as usize).ok_or(status::DAMAGED)?;
        // SAFETY: every place lies in the memory as planned, which outlives the contexts of parts.
        unsafe {
            let place = at(plan.models).cast::<ArtifactModel>().add(i);
            place.write(own);
            let own: &'static ArtifactModel = &*place;
            let image = own.image()?;
            let layout = ContextLayout::new(own, &image, workers(&parallel))?;
            let arena = (at(plan.arena), plan.arena_bytes);
            let made = layout.place((own, image), head, arena, (weights, parallel), owned);
            context.contexts.add(i).write(made);
            head = head.wrapping_add(layout.head());
        }
    }
    let mut head = at(plan.body_heads);
    for i in 0..plan.tables.bodies {
        let own = plan.tables.body(model, &image, i)?;
        // SAFETY: as for parts.
        unsafe {
            let place_of = at(plan.models).cast::<ArtifactModel>().add(plan.tables.parts + i);
            place_of.write(own);
            let own: &'static ArtifactModel = &*place_of;
            let image = own.image()?;
            let layout = PartsLayout::new(own, &image, workers(&parallel))?;
            context.bodies.add(i).write(place(own, image, &layout, head, (weights, parallel), owned)?);
            head = head.wrapping_add(layout.bytes());
        }
    }
    // SAFETY: the tables have as many entries, and the memory begins with the context.
    unsafe {
        context.values.write_bytes(0, plan.tables.values);
        context.numbers.write_bytes(0, plan.tables.numbers);
        base.cast::<PartsContext>().write(context);
    }
    Ok(base.cast())
}

/// As `tc_rt_free`.
///
/// # Safety
/// `context` is null or came from `tc_rt_parts_init`, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_free(_: &'static ArtifactModel, context: *mut PartsContext) {
    // SAFETY: by the caller's contract.
    if let Some(own) = unsafe { context.as_ref() }.filter(|context| context.owned) {
        // SAFETY: it came from `aligned_alloc`, and no run uses it any more.
        unsafe {
            own.free_grown();
            libc::free(context.cast());
        }
    }
}

impl PartsContext {
    /// Frees what runs allocated.
    ///
    /// # Safety
    /// Nothing runs any more.
    unsafe fn free_grown(&self) {
        // SAFETY: the contexts of parts and bodies are in order as long as this one.
        unsafe {
            (0..self.tables.parts).for_each(|i| (**self.contexts.add(i)).free_grown());
            (0..self.tables.bodies).for_each(|i| (**self.bodies.add(i)).free_grown());
        }
    }
}

/// As `tc_rt_error`.
///
/// # Safety
/// `context` is null or came from `tc_rt_parts_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_error(_: &'static ArtifactModel, context: *const PartsContext) -> *const c_char {
    // SAFETY: by the caller's contract.
    let text = unsafe { context.as_ref() }.map(|context| context.message.as_ptr().cast());
    text.unwrap_or(status::text(status::ARGUMENT).as_ptr())
}

/// As `tc_rt_describe`, with the greatest extents that outputs have where these depend on values.
///
/// # Safety
/// As `tc_rt_describe`, with a context of `tc_rt_parts_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_describe(
    _: &'static ArtifactModel,
    context: *mut PartsContext,
    inputs: *const Tensor,
    outputs: *mut Tensor,
) -> Status {
    // SAFETY: passed on from the caller.
    unsafe { with(context, inputs, outputs, |run| run.describe()) }
}

/// As `tc_rt_run`. Behind it, the outputs have the extents that were found, which are valid until the next call with the context.
///
/// # Safety
/// As `tc_rt_run`, with a context of `tc_rt_parts_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_run(
    _: &'static ArtifactModel,
    context: *mut PartsContext,
    inputs: *const Tensor,
    outputs: *mut Tensor,
) -> Status {
    // SAFETY: passed on from the caller.
    unsafe { with(context, inputs, outputs, |run| run.run()) }
}

/// # Safety
/// As `tc_rt_parts_describe`.
unsafe fn with(
    context: *mut PartsContext,
    inputs: *const Tensor,
    outputs: *mut Tensor,
    work: impl FnOnce(&mut PartsRun<'_>) -> Result<(), Status>,
) -> Status {
    // SAFETY: by the caller's contract.
    let Some(context) = (unsafe { context.as_mut() }) else { return status::ARGUMENT };
    context.message.clear();
    let [reads, writes] = [header::INPUTS, header::OUTPUTS].map(|at| context.image.size(at));
    if (inputs.is_null() && reads > 0) || (outputs.is_null() && writes > 0) {
        context.message.text("the tensors are null");
        return status::ARGUMENT;
    }
    // SAFETY: by the caller's contract there are as many tensors; the tables are the context's own, and as long as planned.
    let mut run = unsafe {
        let PartsTables { parts, values, numbers, bytes, words, bodies, .. } = context.tables;
        PartsRun {
            image: context.image,
            tables: context.tables,
            contexts: slice(context.contexts, parts),
            bodies: slice(context.bodies, bodies),
            values: slice(context.values, values),
            extents: slice(context.extents, values),
            numbers: slice(context.numbers, numbers),
            given: context.given,
            memory: (context.memory, bytes),
            words: slice(context.words, words),
            message: &mut context.message,
            inputs: slice(inputs.cast_mut(), reads),
            outputs: slice(outputs, writes),
        }
    };
    work(&mut run).err().unwrap_or(status::OK)
}
