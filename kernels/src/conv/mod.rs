//! Two-dimensional convolutions: how one is cut into tasks, and how a task is executed.
//!
//! A general convolution is, for every image and group, the product of the filter matrix
//! (output channels × (input channel, filter row, filter column)) and the matrix of image patches.
//! The latter is never stored: panels of it are fetched into scratch when they are needed.

mod patches;
mod planar;

use std::ops::Range;

use tensorc_abi::Conv2d;

use crate::blocking::{KC, Left, Operands, Rect, Right, Split, Target, multiply, reads_in_place, row_panels};
use crate::tiers::{MR, NR, Tier, tier};
use crate::{EpilogueCall, Isa, isa};

pub(crate) use planar::is_planar;

/// Most row panels of one task: 648 KiB of filters for each block of k.
const TASK_ROW_PANELS: usize = 24;
/// Most column panels of one task.
const TASK_COL_PANELS: usize = 8;
/// Floating-point operations that are worth a task of their own.
const TASK_FLOPS: f64 = 4e6;
/// Tasks wanted of a large convolution.
const TASKS: usize = 16;
/// Most elements of fetched patches kept for the following tasks.
const KEPT_ELEMENTS: usize = 1 << 20;

/// A convolution in machine integers, with pointwise ones seen as one long row of pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub batch: usize,
    pub groups: usize,
    pub in_channels: usize,
    pub out_channels: usize,
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub pads: [usize; 2],
    /// Whether output pixels are input pixels.
    pub pointwise: bool,
}

impl Shape {
    pub(crate) fn new(call: &Conv2d) -> Self {
        let pair = |p: [u64; 2]| [p[0] as usize, p[1] as usize];
        let mut shape = Shape {
            batch: call.batch as usize,
            groups: call.groups as usize,
            in_channels: call.in_channels as usize,
            out_channels: call.out_channels as usize,
            input: pair(call.input),
            output: pair(call.output),
            kernel: pair(call.kernel),
            strides: pair(call.strides),
            dilations: pair(call.dilations),
            pads: pair(call.pads),
            pointwise: call.is_pointwise(),
        };
        if shape.pointwise {
            shape.input = [1, shape.pixels()];
            shape.output = shape.input;
        }
        shape
    }

    /// Output pixels of one channel.
    pub(crate) fn pixels(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Input pixels of one channel.
    pub(crate) fn plane(&self) -> usize {
        self.input[0] * self.input[1]
    }

    /// Taps of one filter plane.
    pub(crate) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Terms of the sum of one output element.
    pub(crate) fn depth(&self) -> usize {
        self.in_channels * self.taps()
    }

    fn flops(&self) -> f64 {
        2.0 * (self.batch * self.groups * self.out_channels) as f64 * (self.pixels() * self.depth()) as f64
    }

    fn is_empty(&self) -> bool {
        self.batch * self.groups * self.out_channels * self.pixels() == 0
    }
}

/// The division of a general convolution into tasks; a function of the call alone.
struct Schedule {
    shape: Shape,
    rows: Split,
    row_blocks: Split,
    col_blocks: Split,
    /// Input channels cut into blocks.
    depth: Split,
}

impl Schedule {
    fn new(shape: Shape) -> Self {
        let rows = row_panels(shape.out_channels);
        let panels = shape.pixels().div_ceil(NR);
        let want = ((shape.flops() / TASK_FLOPS) as usize).clamp(1, TASKS);
        let want = want.div_ceil((shape.batch * shape.groups).max(1));
        let cols = panels.div_ceil(TASK_COL_PANELS).max(want.min(panels / 2));
        let by_rows = want.div_ceil(cols.max(1)).min(rows.parts() / 2);
        let row_blocks = rows.parts().div_ceil(TASK_ROW_PANELS).max(by_rows);
        let channels = (KC / shape.taps().max(1)).max(1);
        Schedule {
            shape,
            rows,
            row_blocks: Split::into(rows.parts(), row_blocks),
            col_blocks: Split::into(panels, cols),
            depth: Split::by(shape.in_channels, channels),
        }
    }

    fn tasks(&self) -> usize {
        if self.shape.is_empty() {
            return 0;
        }
        self.shape.batch * self.shape.groups * self.row_blocks.parts() * self.col_blocks.parts()
    }

    /// Whether the image itself is the patch matrix, and copying its panels would not pay.
    fn reads_in_place(&self) -> bool {
        let (pixels, channels) = (self.shape.pixels(), self.shape.out_channels);
        self.shape.pointwise && (pixels >= 2 * NR || channels <= 2 * NR) && reads_in_place(pixels, channels)
    }

    /// Whether fetched patches are kept for the other row blocks of the same pixels.
    fn keeps_right(&self) -> bool {
        self.row_blocks.parts() > 1 && self.col_blocks.longest() * NR * self.shape.depth() <= KEPT_ELEMENTS
    }

    fn right_elements(&self) -> usize {
        if self.keeps_right() {
            self.col_blocks.longest() * NR * self.shape.depth()
        } else {
            NR * self.depth.longest() * self.shape.taps()
        }
    }

    fn cols(&self, block: usize) -> Range<usize> {
        let panels = self.col_blocks.range(block);
        panels.start * NR..self.shape.pixels().min(panels.end * NR)
    }
}

/// Number of tasks of a convolution; they may run in any order, on any threads.
pub fn conv_tasks(call: &Conv2d) -> u64 {
    let shape = Shape::new(call);
    if is_planar(&shape) { planar::tasks(&shape) as u64 } else { Schedule::new(shape).tasks() as u64 }
}

/// Bytes of scratch one thread needs for [`conv_run`].
pub fn conv_scratch(call: &Conv2d) -> usize {
    let shape = Shape::new(call);
    if is_planar(&shape) || shape.is_empty() {
        return 0;
    }
    Schedule::new(shape).right_elements() * size_of::<f32>()
}

/// Executes the tasks `tasks` of a convolution, and its epilogue on every block they finish.
///
/// Consecutive tasks of one call share fetched patches where they can.
///
/// # Safety
/// `x` and `y` address whole tensors of the shapes `call` states and `w` its packed filters, `y`
/// overlaps neither and nothing else accesses the tasks' part of it, `scratch` has
/// [`conv_scratch`] bytes aligned for f32, `tasks` lies within [`conv_tasks`], and the epilogue's
/// arguments fit its code.
pub unsafe fn conv_run(
    call: &Conv2d,
    x: *const f32,
    w: *const f32,
    y: *mut f32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    // SAFETY: passed on from the caller.
    unsafe { conv_run_with(isa(), call, x, w, y, epilogue, tasks, scratch) }
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
    x: *const f32,
    w: *const f32,
    y: *mut f32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    let shape = Shape::new(call);
    let tier = tier(isa);
    let tasks = tasks.start as usize..tasks.end as usize;
    if is_planar(&shape) {
        // SAFETY: passed on from the caller.
        unsafe { planar::run(tier, &shape, planar::Tensors { x, w, y }, epilogue, tasks) };
        return;
    }
    let schedule = Schedule::new(shape);
    let (row_blocks, col_blocks) = (schedule.row_blocks.parts(), schedule.col_blocks.parts());
    let mut operands =
        ConvOperands { schedule: &schedule, tier, x, w, first_col: 0, right: scratch.cast(), kept: None, fresh: true };
    for task in tasks {
        let row_block = task % row_blocks;
        let col_block = task / row_blocks % col_blocks;
        let plane = task / (row_blocks * col_blocks);
        let (image, group) = (plane / shape.groups, plane % shape.groups);
        let panels = schedule.row_blocks.range(row_block);
        let cols = schedule.cols(col_block);
        let channel = group * shape.out_channels;
        operands.x = x.wrapping_add(plane * shape.in_channels * shape.plane());
        operands.w = w.wrapping_add((channel + schedule.rows.start(panels.start)) * shape.depth());
        operands.first_col = cols.start;
        operands.fresh = !schedule.keeps_right() || operands.kept != Some((plane, col_block));
        let rect = Rect { rows: schedule.rows, panels, cols, depth: schedule.depth, unit: shape.taps() };
        let c =
            Target { base: y.wrapping_add(plane * shape.out_channels * shape.pixels()), ld: shape.pixels() as isize };
        // SAFETY: the operands cover the block and `y` is the caller's; the epilogue fits.
        unsafe {
            multiply(tier, &rect, &mut operands, c, &mut |rows, cols| {
                let rows = channel + rows.start..channel + rows.end;
                EpilogueCall::finish(epilogue, [image as u64, 0, 0], rows, cols);
            });
        }
        operands.kept = Some((plane, col_block));
    }
}

/// Packed filters, and patches fetched into scratch.
struct ConvOperands<'a> {
    schedule: &'a Schedule,
    tier: &'static Tier,
    /// First input channel of the image and group.
    x: *const f32,
    /// First row of the task.
    w: *const f32,
    first_col: usize,
    right: *mut f32,
    /// Image and group, and column block, whose patches `right` holds.
    kept: Option<(usize, usize)>,
    /// Whether the patches must be fetched.
    fresh: bool,
}

impl Operands for ConvOperands<'_> {
    unsafe fn left(&mut self, _rect: &Rect, k: Range<usize>) -> Left {
        Left { base: self.w, stride: self.schedule.shape.depth(), skip: k.start }
    }

    unsafe fn right(&mut self, k: Range<usize>, cols: Range<usize>) -> Right {
        let shape = &self.schedule.shape;
        if self.schedule.reads_in_place() {
            let base = self.x.wrapping_add(k.start * shape.plane() + cols.start);
            return Right { base, ld: shape.plane(), padded: false };
        }
        let base = if self.schedule.keeps_right() {
            self.right.wrapping_add((cols.start - self.first_col) * shape.depth() + k.start * NR)
        } else {
            self.right
        };
        if self.fresh {
            let channels = k.start / shape.taps().max(1)..k.end / shape.taps().max(1);
            // SAFETY: the channels and pixels are inside the image, and scratch holds the panel.
            unsafe { patches::fetch(self.tier, shape, self.x, channels, cols, base) };
        }
        Right { base, ld: NR, padded: true }
    }

    fn ahead(&self, rect: &Rect, k: &Range<usize>, cols: &Range<usize>, p: usize, a: *const f32) -> *const f32 {
        // The filters of the next block follow those of this one.
        if cols.end == rect.cols.end { a.wrapping_add(k.len() * rect.rows.range(p).len()) } else { a }
    }
}

const _: () = assert!(MR <= 16 && NR == 32, "tiles are addressed by 16-bit lane masks");
