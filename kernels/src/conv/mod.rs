//! Two-dimensional convolutions and their gradients: how one is cut into tasks, and how a task is
//! executed.
//!
//! `shape` brings a convolution and its data gradient into one form, windows that are moved over an
//! image; `windows` computes that form, `rows` and `grouped` (over `staged` rows) and `planar` special cases of it. `filters` provides the filter
//! matrix and `patches` the matrix of image patches. `correlate` computes the gradient of filters, `bytes` convolutions of bytes. `blocked`, `blocked_depthwise` and
//! `winograd` compute blocks of 16 channels, which may lie in blocks, last or, where they are copied, in planes.

mod blocked;
mod blocked_depthwise;
mod bytes;
mod correlate;
mod filters;
mod grouped;
mod patches;
mod planar;
mod planes;
mod rows;
mod shape;
mod staged;
mod windows;
mod winograd;

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvAlgorithm, ConvPass, ConvVariant};

use crate::epilogue::EpilogueCall;
use crate::isa;
use crate::isa::Isa;
use crate::isa_levels::{IsaLevel, LANES};
use crate::prologue::LeftOperand;
use crate::prologue::{Computed, table_bytes};

use grouped::has_small_groups;
pub(crate) use shape::WindowShape;

/// The kernel that computes a call: a function of the call alone.
pub fn conv_variant(call: &Conv2d) -> ConvVariant {
    match call.pass {
        ConvPass::Bytes | ConvPass::PackedBytes => ConvVariant::Bytes,
        _ if call.pass.tile().is_some() => ConvVariant::Winograd,
        _ if call.is_depthwise() && (!call.in_planes() || blocked_depthwise::takes_planes(call)) => {
            ConvVariant::BlockedDepthwise
        }
        ConvPass::Packed(ConvAlgorithm::Bf16) => ConvVariant::Rounded,
        _ if !call.in_planes() => ConvVariant::Blocked,
        ConvPass::FilterGradient => ConvVariant::Correlate,
        _ if rows::pays(call) => ConvVariant::Rows,
        _ if has_small_groups(call) => ConvVariant::Grouped,
        _ => ConvVariant::Windows,
    }
}

/// Elements of the packed form of filters.
pub(crate) fn packed_len(call: &Conv2d) -> usize {
    match conv_variant(call) {
        ConvVariant::Winograd => winograd::packed_len(call),
        ConvVariant::Blocked | ConvVariant::Rounded => blocked::packed_len(call),
        ConvVariant::BlockedDepthwise => blocked_depthwise::packed_len(call),
        ConvVariant::Bytes => bytes::packed_len(call),
        _ => (call.groups * call.out_channels * call.in_channels * call.kernel[0] * call.kernel[1]) as usize,
    }
}

/// Units of packed filters: panels of output channels; one where filters are copied.
pub(crate) fn pack_units(call: &Conv2d) -> usize {
    match conv_variant(call) {
        ConvVariant::Winograd => winograd::panels(call),
        ConvVariant::Blocked | ConvVariant::Rounded => blocked::panels(call),
        ConvVariant::Windows | ConvVariant::Rows => windows::panels(call),
        ConvVariant::Bytes => bytes::pack_units(call),
        _ => 1,
    }
}

/// The positions of the elements of filters that some units are made of.
pub(crate) fn pack_source(call: &Conv2d, units: Range<usize>) -> Range<usize> {
    let shape = WindowShape::forward(call);
    let depth = shape.depth();
    let channels = match conv_variant(call) {
        ConvVariant::Winograd | ConvVariant::Blocked | ConvVariant::Rounded => {
            let lanes = blocked::PANEL * LANES;
            units.start * lanes..shape.out_channels.min(units.end * lanes)
        }
        ConvVariant::Windows | ConvVariant::Rows => {
            windows::panel(call, units.start).start..windows::panel(call, units.end - 1).end
        }
        ConvVariant::Bytes => bytes::filters_of(call, units),
        _ => 0..shape.groups * shape.out_channels,
    };
    channels.start * depth..channels.end * depth
}

/// Writes some units of packed filters.
///
/// # Safety
/// `src` addresses the elements that the units are made of, with any alignment, and `dst` has [`packed_len`] elements.
pub(crate) unsafe fn pack(level: &IsaLevel, call: &Conv2d, units: Range<usize>, src: *const f32, dst: &mut [f32]) {
    // SAFETY: passed on from the caller; where filters are copied, there is one unit.
    unsafe {
        match conv_variant(call) {
            ConvVariant::BlockedDepthwise => blocked_depthwise::pack(call, src, dst),
            ConvVariant::Winograd => winograd::pack(call, units, src, dst),
            ConvVariant::Blocked => blocked::pack(level, call, units, src, dst),
            ConvVariant::Rounded => blocked::pack_rounded(level, call, units, src, dst),
            ConvVariant::Windows | ConvVariant::Rows => windows::pack(level, call, units, src, dst),
            ConvVariant::Bytes => bytes::pack(call, units, src.cast(), dst),
            ConvVariant::Planar | ConvVariant::Grouped | ConvVariant::Correlate => {
                // Bytes need no alignment.
                let bytes = packed_len(call) * size_of::<f32>();
                core::ptr::copy_nonoverlapping(src.cast::<u8>(), dst.as_mut_ptr().cast(), bytes);
            }
        }
    }
}

/// Copies up to [`LANES`] channels of a pixel, in pieces of known size.
///
/// # Safety
/// Both sides have so many elements and do not overlap.
#[inline(never)]
unsafe fn copy_channels(from: *const f32, to: *mut f32, channels: usize) {
    // SAFETY: by the caller's contract; the pieces add up to the channels.
    unsafe {
        if channels == LANES {
            return to.cast::<[f32; LANES]>().write(from.cast::<[f32; LANES]>().read());
        }
        let mut done = 0;
        if channels & 8 != 0 {
            to.cast::<[f32; 8]>().write(from.cast::<[f32; 8]>().read());
            done = 8;
        }
        if channels & 4 != 0 {
            to.add(done).cast::<[f32; 4]>().write(from.add(done).cast::<[f32; 4]>().read());
            done += 4;
        }
        if channels & 2 != 0 {
            to.add(done).cast::<[f32; 2]>().write(from.add(done).cast::<[f32; 2]>().read());
            done += 2;
        }
        if channels & 1 != 0 {
            *to.add(done) = *from.add(done);
        }
    }
}

/// The addresses of the two operands and the result.
#[derive(Clone, Copy)]
struct Tensors {
    left: *const f32,
    /// What computes the left operand, if it has no address.
    computed: Option<Computed>,
    right: *const f32,
    result: *mut f32,
}

/// Writes neighbouring pixels of a block of channels of a computed image, or of one channel if channels lie in
/// planes of so many pixels.
///
/// # Safety
/// The pixels are in the image, and `to` has room for them.
unsafe fn compute_pixels(
    computed: Computed,
    (image, block): (usize, usize),
    pixels: Range<usize>,
    plane: Option<usize>,
    to: *mut f32,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        match plane {
            None => computed.block([image as u64, block as u64, 0], pixels, 0..LANES, LANES, to),
            Some(plane) => computed.block([image as u64, 0, 0], block..block + 1, pixels, plane, to),
        }
    }
}

/// Number of tasks of a convolution; they may run in any order, on any threads.
pub fn conv_tasks(call: &Conv2d) -> u64 {
    conv_tasks_by(conv_variant(call), call)
}

/// [`conv_tasks`] where the variant is known: what other ways need is not linked.
#[inline(always)]
pub fn conv_tasks_by(variant: ConvVariant, call: &Conv2d) -> u64 {
    (match variant {
        ConvVariant::Correlate => correlate::CorrelationTasks::new(call).tasks(),
        ConvVariant::Bytes => bytes::tasks(call),
        ConvVariant::Planar => planar::tasks(&WindowShape::forward(call)),
        ConvVariant::Grouped => grouped::tasks(&WindowShape::forward(call)),
        ConvVariant::Rows => rows::plane_tasks(&WindowShape::forward(call)).tasks(),
        ConvVariant::Windows => windows::WindowTasks::new(call).tasks(),
        ConvVariant::Blocked | ConvVariant::Rounded => blocked::BlockedTasks::new(call).tasks(),
        ConvVariant::BlockedDepthwise => blocked_depthwise::DepthwiseTasks::new(call).tasks(),
        ConvVariant::Winograd => winograd::WinogradTasks::new(call).tasks(),
    }) as u64
}

/// Number of tasks in turn that share what is copied of a left operand, or made of it if it is `computed`.
pub fn conv_affinity(call: &Conv2d, computed: bool) -> u64 {
    conv_affinity_by(conv_variant(call), call, computed)
}

/// [`conv_affinity`] where the variant is known: what other ways need is not linked.
#[inline(always)]
pub fn conv_affinity_by(variant: ConvVariant, call: &Conv2d, computed: bool) -> u64 {
    (match variant {
        ConvVariant::Bytes => bytes::affinity(call),
        ConvVariant::Blocked | ConvVariant::Rounded if computed => blocked::BlockedTasks::new(call).affinity(),
        ConvVariant::Winograd if computed => winograd::WinogradTasks::new(call).affinity(),
        _ => 1,
    }) as u64
}

/// Bytes of scratch one thread needs for [`conv_run`], with the left operand computed from so many arguments or in
/// memory.
pub fn conv_scratch(call: &Conv2d, prologue: Option<usize>) -> usize {
    conv_scratch_by(conv_variant(call), call, prologue)
}

/// [`conv_scratch`] where the variant is known: what other ways need is not linked.
#[inline(always)]
pub fn conv_scratch_by(variant: ConvVariant, call: &Conv2d, prologue: Option<usize>) -> usize {
    let computed = prologue.is_some();
    let elements = match variant {
        ConvVariant::Correlate => correlate::CorrelationTasks::new(call).scratch(),
        ConvVariant::Bytes => bytes::scratch(call),
        ConvVariant::Planar => planar::scratch(&WindowShape::forward(call)),
        ConvVariant::Grouped => grouped::scratch(&WindowShape::forward(call)),
        ConvVariant::BlockedDepthwise => blocked_depthwise::DepthwiseTasks::new(call).scratch(computed),
        ConvVariant::Rows => rows::scratch(&WindowShape::forward(call)),
        ConvVariant::Windows => windows::WindowTasks::new(call).scratch(),
        ConvVariant::Blocked | ConvVariant::Rounded => blocked::BlockedTasks::new(call).scratch(computed),
        ConvVariant::Winograd => winograd::WinogradTasks::new(call).scratch(computed),
    };
    prologue.map_or(0, table_bytes) + elements * size_of::<f32>()
}

/// Executes the tasks `tasks` of a convolution, and its epilogue on every block they finish.
///
/// Consecutive tasks of one call share packed filters and fetched patches where they can.
///
/// # Safety
/// `left` and `right` address the operands and `result` the result that `call.pass` names, tensors of the
/// shapes and image distances `call` states; the left operand is computed only if [`Conv2d::takes_computed`]; `result`
/// overlaps neither operand and nothing else accesses the tasks' part of it, `scratch` has [`conv_scratch`] bytes
/// aligned for f32 (for addresses if an operand is computed), `tasks` lies within [`conv_tasks`], and the arguments of
/// epilogue and prologue fit their code.
pub unsafe fn conv_run(
    call: &Conv2d,
    left: impl Into<LeftOperand>,
    right: *const f32,
    result: *mut f32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    // SAFETY: passed on from the caller.
    unsafe { conv_run_with(isa(), call, left, right, result, epilogue, tasks, scratch) }
}

/// [`conv_run`] where the variant is known: what other ways need is not linked.
///
/// # Safety
/// As for [`conv_run`], and `variant` is what [`conv_variant`] says of the call.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the operands of a library call, as in `conv_run`")]
pub unsafe fn conv_run_by(
    variant: ConvVariant,
    call: &Conv2d,
    left: impl Into<LeftOperand>,
    right: *const f32,
    result: *mut f32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    // SAFETY: passed on from the caller.
    unsafe { run(IsaLevel::new(isa()), variant, call, (left.into(), right, result), epilogue, tasks, scratch) }
}

/// [`conv_run`] with the kernels of one ISA level.
///
/// # Safety
/// As for [`conv_run`].
///
/// # Panics
/// If the ISA level is not available.
#[allow(clippy::too_many_arguments, reason = "the operands of a library call, as in `conv_run`")]
pub unsafe fn conv_run_with(
    isa: Isa,
    call: &Conv2d,
    left: impl Into<LeftOperand>,
    right: *const f32,
    result: *mut f32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    // SAFETY: passed on from the caller.
    unsafe { run(IsaLevel::new(isa), conv_variant(call), call, (left.into(), right, result), epilogue, tasks, scratch) }
}

/// # Safety
/// As for [`conv_run_by`].
#[inline(always)]
unsafe fn run(
    level: IsaLevel,
    variant: ConvVariant,
    call: &Conv2d,
    (left, right, result): (LeftOperand, *const f32, *mut f32),
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    let tasks = tasks.start as usize..tasks.end as usize;
    // SAFETY: scratch is as large as `conv_scratch` says.
    let (left, computed, scratch) = unsafe { left.bind(scratch) };
    let tensors = Tensors { left, computed, right, result };
    debug_assert!(computed.is_none() || call.takes_computed(), "a variant that reads its operand in memory");
    // SAFETY: passed on from the caller.
    unsafe {
        match variant {
            ConvVariant::Correlate => {
                correlate::run(level, &correlate::CorrelationTasks::new(call), tensors, epilogue, tasks, scratch);
            }
            ConvVariant::Bytes => {
                let tensors = bytes::ByteTensors { x: left.cast(), filters: right.cast(), y: result.cast() };
                bytes::run(level, call, &tensors, epilogue, tasks, scratch);
            }
            ConvVariant::Planar => planar::run(level, &WindowShape::forward(call), tensors, epilogue, tasks, scratch),
            ConvVariant::Grouped => grouped::run(level, &WindowShape::forward(call), tensors, epilogue, tasks, scratch),
            ConvVariant::Rows => rows::run(level, &WindowShape::forward(call), tensors, epilogue, tasks, scratch),
            ConvVariant::Windows => {
                windows::run(level, &windows::WindowTasks::new(call), tensors, epilogue, tasks, scratch)
            }
            ConvVariant::Blocked => {
                blocked::run::<false>(level, &blocked::BlockedTasks::new(call), tensors, epilogue, tasks, scratch)
            }
            ConvVariant::Rounded => {
                blocked::run::<true>(level, &blocked::BlockedTasks::new(call), tensors, epilogue, tasks, scratch)
            }
            ConvVariant::Winograd => {
                winograd::run(level, &winograd::WinogradTasks::new(call), tensors, epilogue, tasks, scratch)
            }
            ConvVariant::BlockedDepthwise => {
                let schedule = blocked_depthwise::DepthwiseTasks::new(call);
                blocked_depthwise::run(level, &schedule, tensors, epilogue, tasks, scratch);
            }
        }
    }
}
