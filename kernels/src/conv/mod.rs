//! Two-dimensional convolutions and their gradients: how one is cut into tasks, and how a task is
//! executed.
//!
//! `shape` brings a convolution and its data gradient into one form, windows that are moved over an
//! image; `windows` computes that form, `planar` a special case of it. `filters` provides the filter
//! matrix and `patches` the matrix of image patches. `correlate` computes the gradient of filters. `blocked` and `blocked_depthwise` are
//! for channels in blocks.

mod blocked;
mod blocked_depthwise;
mod correlate;
mod filters;
mod patches;
mod planar;
mod shape;
mod windows;

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvLayout, ConvPass};

use crate::tiers::tier;
use crate::{EpilogueCall, Isa, isa};

pub(crate) use planar::is_planar;
pub(crate) use shape::Shape;

/// The algorithms; which one computes a call is a function of the call alone.
enum Way {
    Windows,
    Planar,
    Correlate,
    Blocked,
    BlockedDepthwise,
}

fn way(call: &Conv2d) -> Way {
    match (call.layout, call.pass) {
        (ConvLayout::Planar, ConvPass::FilterGradient) => Way::Correlate,
        (ConvLayout::Planar, _) if is_planar(call) => Way::Planar,
        (ConvLayout::Planar, _) => Way::Windows,
        (ConvLayout::Blocked, _) if call.is_depthwise() => Way::BlockedDepthwise,
        _ => Way::Blocked,
    }
}

/// Writes the packed form of filters whose result is blocked.
///
/// # Safety
/// `src` addresses the filters, with any alignment, and `dst` has as many elements.
pub(crate) unsafe fn pack_blocked(call: &Conv2d, src: *const f32, dst: &mut [f32]) {
    // SAFETY: passed on from the caller.
    unsafe {
        match way(call) {
            Way::BlockedDepthwise => blocked_depthwise::pack(call, src, dst),
            _ => blocked::pack(call, src, dst),
        }
    }
}

/// The addresses of the two operands and the result.
#[derive(Clone, Copy)]
struct Tensors {
    left: *const f32,
    right: *const f32,
    result: *mut f32,
}

/// Number of tasks of a convolution; they may run in any order, on any threads.
pub fn conv_tasks(call: &Conv2d) -> u64 {
    (match way(call) {
        Way::Correlate => correlate::Schedule::new(call).tasks(),
        Way::Planar => planar::tasks(&Shape::forward(call)),
        Way::Windows => windows::Schedule::new(call).tasks(),
        Way::Blocked => blocked::Schedule::new(call).tasks(),
        Way::BlockedDepthwise => blocked_depthwise::Schedule::new(call).tasks(),
    }) as u64
}

/// Bytes of scratch one thread needs for [`conv_run`].
pub fn conv_scratch(call: &Conv2d) -> usize {
    let elements = match way(call) {
        Way::Correlate => correlate::Schedule::new(call).scratch(),
        Way::Planar => planar::scratch(&Shape::forward(call)),
        Way::BlockedDepthwise => blocked_depthwise::Schedule::new(call).scratch(),
        Way::Windows => windows::Schedule::new(call).scratch(),
        Way::Blocked => blocked::Schedule::new(call).scratch(),
    };
    elements * size_of::<f32>()
}

/// Executes the tasks `tasks` of a convolution, and its epilogue on every block they finish.
///
/// Consecutive tasks of one call share packed filters and fetched patches where they can.
///
/// # Safety
/// `left` and `right` address the operands and `result` the result that `call.pass` names, tensors of the
/// shapes and image distances `call` states; `result` overlaps neither operand and nothing else accesses
/// the tasks' part of it, `scratch` has [`conv_scratch`] bytes aligned for f32, `tasks` lies within
/// [`conv_tasks`], and the epilogue's arguments fit its code.
pub unsafe fn conv_run(
    call: &Conv2d,
    left: *const f32,
    right: *const f32,
    result: *mut f32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    // SAFETY: passed on from the caller.
    unsafe { conv_run_with(isa(), call, left, right, result, epilogue, tasks, scratch) }
}

/// [`conv_run`] with the kernels of one tier.
///
/// # Safety
/// As for [`conv_run`].
///
/// # Panics
/// If the tier is not available.
#[allow(clippy::too_many_arguments, reason = "the operands of a library call, as in `conv_run`")]
pub unsafe fn conv_run_with(
    isa: Isa,
    call: &Conv2d,
    left: *const f32,
    right: *const f32,
    result: *mut f32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    let tier = tier(isa);
    let tensors = Tensors { left, right, result };
    let tasks = tasks.start as usize..tasks.end as usize;
    // SAFETY: passed on from the caller.
    unsafe {
        match way(call) {
            Way::Correlate => {
                correlate::run(tier, &correlate::Schedule::new(call), tensors, epilogue, tasks, scratch.cast());
            }
            Way::Planar => planar::run(tier, &Shape::forward(call), tensors, epilogue, tasks, scratch.cast()),
            Way::Windows => windows::run(tier, &windows::Schedule::new(call), tensors, epilogue, tasks, scratch.cast()),
            Way::Blocked => blocked::run(tier, &blocked::Schedule::new(call), tensors, epilogue, tasks, scratch.cast()),
            Way::BlockedDepthwise => {
                let schedule = blocked_depthwise::Schedule::new(call);
                blocked_depthwise::run(tier, &schedule, tensors, epilogue, tasks, scratch.cast());
            }
        }
    }
}
