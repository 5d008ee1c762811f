//! Rows of the input channels of a group, copied with their padding, so that the inner kernel of [`super::rows`] and [`super::grouped`] has no
//! conditions. With a column stride `s`, columns that leave the same remainder lie side by side: what a tap reads of neighbouring output columns
//! is a run of elements.

use core::ops::Range;

use super::planes::PlaneTasks;
use super::{Tensors, WindowShape};
use crate::blocking::{EvenSplit, whole_lines};
use crate::epilogue::EpilogueCall;
use crate::isa_levels::{IsaLevel, LANES, StagedLines, StagedRows};

/// Elements that are staged together, about, of all channels and of parts of them: they stay in the first-level cache.
const ELEMENTS: usize = 4 * 1024;
const PART_ELEMENTS: usize = 6 * 1024;
/// Output rows that are staged together at least, where there are so many: rows of the filter overlap.
const MIN_ROWS: usize = 8;
/// Terms of a sum at least, where there are so many, that are added before it is stored.
const MIN_TERMS: usize = 64;

/// How the rows of a convolution are staged.
pub(super) struct Stage<'a> {
    shape: &'a WindowShape,
    /// Elements of a row of columns of one remainder.
    width: usize,
    /// Output rows that are staged together.
    rows: usize,
    /// Input channels of a group, of which parts are staged together.
    channels: EvenSplit,
}

impl<'a> Stage<'a> {
    /// With all input channels of a group together.
    pub fn of_all(shape: &'a WindowShape) -> Stage<'a> {
        let mut stage = Stage { shape, width: 0, rows: 1, channels: EvenSplit::into(shape.in_channels, 1) };
        stage.width = stage.columns();
        stage.rows = stage.rows_within(ELEMENTS, shape.in_channels);
        stage
    }

    /// With parts of the input channels in turn.
    pub fn of_parts(shape: &'a WindowShape) -> Stage<'a> {
        let mut stage = Stage::of_all(shape);
        stage.width = whole_lines(stage.columns());
        let least = MIN_TERMS.div_ceil(shape.taps().max(1)).clamp(1, shape.in_channels.max(1));
        stage.rows = stage.rows_within(PART_ELEMENTS, least);
        let most = (PART_ELEMENTS / stage.channel()).max(least);
        stage.channels = EvenSplit::by(shape.in_channels, most);
        stage
    }

    /// Columns of one remainder that are read.
    fn columns(&self) -> usize {
        let WindowShape { output, kernel, dilations, strides, .. } = self.shape;
        output[1].next_multiple_of(LANES) + kernel[1].saturating_sub(1) * dilations[1] / strides[1]
    }

    /// Output rows of which what so many channels need is about so many elements.
    fn rows_within(&self, elements: usize, channels: usize) -> usize {
        let line = (channels * self.line()).max(1);
        let fitting = (elements / line).saturating_sub(self.below()) / self.shape.strides[0];
        fitting.max(MIN_ROWS).min(self.shape.output[0]).max(1)
    }

    /// Elements of a staged row.
    fn line(&self) -> usize {
        self.shape.strides[1] * self.width
    }

    /// Rows of a channel that one output row reads, with those between them.
    fn below(&self) -> usize {
        self.shape.kernel[0].saturating_sub(1) * self.shape.dilations[0] + 1
    }

    /// Rows of a channel that so many output rows read.
    fn lines(&self, rows: usize) -> usize {
        (rows - 1) * self.shape.strides[0] + self.below()
    }

    /// Elements between channels.
    fn channel(&self) -> usize {
        self.lines(self.rows) * self.line()
    }

    fn elements(&self) -> usize {
        self.channels.longest() * self.channel()
    }

    fn terms(&self) -> usize {
        self.channels.longest() * self.shape.taps()
    }

    /// Elements of scratch: for the staged rows, and a list of the terms of the sum.
    pub fn scratch(&self) -> usize {
        self.elements() + self.terms()
    }

    /// Lists where each term of the sum lies.
    fn list_terms(&self, terms: &mut [u32]) {
        let WindowShape { kernel: [down, across], dilations, strides, .. } = *self.shape;
        for (k, term) in terms.iter_mut().enumerate() {
            let (channel, tap) = (k / (down * across), k % (down * across));
            let (r, s) = (tap / across * dilations[0], tap % across * dilations[1]);
            let line = channel * self.channel() + r * self.line();
            *term = (line + s % strides[1] * self.width + s / strides[1]) as u32;
        }
    }

    /// Copies what some output rows read of the channels from `x` on.
    ///
    /// # Safety
    /// `x` addresses the planes of the channels, and `to` room for [`Stage::elements`].
    unsafe fn fill(&self, level: IsaLevel, x: *const f32, channels: usize, rows: &Range<usize>, to: *mut f32) {
        let shape = self.shape;
        for channel in 0..channels {
            let lines = StagedLines {
                x: x.wrapping_add(channel * shape.plane()),
                input: shape.input,
                first: (rows.start * shape.strides[0]).wrapping_sub(shape.pads[0]),
                count: self.lines(rows.len()),
                pad: shape.pads[1],
                step: shape.strides[1],
                to: to.wrapping_add(channel * self.channel()),
                width: self.width,
                ahead: shape.plane(),
            };
            // SAFETY: the plane is readable, and room is for all rows of all channels.
            unsafe { level.staged_lines(&lines) };
        }
    }
}

/// A convolution over staged rows.
pub(super) struct StagedConvolution<'a> {
    pub shape: &'a WindowShape,
    pub stage: Stage<'a>,
    /// The filters of a group, in panels as they are packed.
    pub panels: EvenSplit,
    pub tasks: PlaneTasks<'a>,
}

impl StagedConvolution<'_> {
    /// # Safety
    /// As for [`super::conv_run`], with [`Stage::scratch`] elements of scratch.
    pub unsafe fn run(
        self,
        level: IsaLevel,
        tensors: Tensors,
        epilogue: Option<EpilogueCall>,
        tasks: Range<usize>,
        scratch: *mut f32,
    ) {
        let StagedConvolution { shape, stage, panels, tasks: division } = self;
        // SAFETY: passed on from the caller; so below.
        let reader = unsafe { Reader::new(stage, scratch) };
        let compute = |image: usize, channel: usize, rows: Range<usize>| {
            let group = channel / shape.out_channels;
            let planes = GroupPlanes {
                x: tensors.left.wrapping_add(image * shape.image() + group * shape.in_channels * shape.plane()),
                w: tensors.right.wrapping_add(channel * shape.depth()),
                y: tensors.result.wrapping_add(image * shape.images[1] + channel * shape.pixels()),
            };
            // SAFETY: the planes and the filters are inside their tensors.
            unsafe { reader.rows(level, planes, panels, rows) };
        };
        // SAFETY: as above.
        unsafe { division.run(tasks, epilogue, compute) };
    }
}

/// What is read and written for a group of an image.
#[derive(Clone, Copy)]
struct GroupPlanes {
    pub x: *const f32,
    /// Panels of filters: term k of filter i of one at `k·filters + i`.
    pub w: *const f32,
    pub y: *mut f32,
}

/// Staged rows in memory, with the list of the terms.
struct Reader<'a> {
    stage: Stage<'a>,
    terms: &'a [u32],
    memory: *mut f32,
}

impl<'a> Reader<'a> {
    /// # Safety
    /// `memory` has [`Stage::scratch`] elements, which nothing else uses.
    unsafe fn new(stage: Stage<'a>, memory: *mut f32) -> Reader<'a> {
        let count = stage.terms();
        // SAFETY: the scratch is aligned for four bytes, and holds the terms, which are written before they are read, behind the rows.
        let terms = unsafe {
            let terms = memory.add(stage.elements()).cast::<u32>();
            terms.write_bytes(0, count);
            core::slice::from_raw_parts_mut(terms, count)
        };
        stage.list_terms(terms);
        Reader { stage, terms, memory }
    }

    /// Computes some rows of output channels that read the same input channels, of which each panel has so many as it says.
    ///
    /// # Safety
    /// The planes and the filters are inside their tensors.
    unsafe fn rows(&self, level: IsaLevel, planes: GroupPlanes, panels: EvenSplit, rows: Range<usize>) {
        let Stage { shape, channels, .. } = self.stage;
        let taps = shape.taps();
        for first in rows.clone().step_by(self.stage.rows) {
            let rows = first..rows.end.min(first + self.stage.rows);
            for part in (0..channels.parts()).map(|part| channels.range(part)) {
                let x = planes.x.wrapping_add(part.start * shape.plane());
                // SAFETY: passed on from the caller.
                unsafe { self.stage.fill(level, x, part.len(), &rows, self.memory) };
                for panel in (0..panels.parts()).map(|panel| panels.range(panel)) {
                    let y = planes.y.wrapping_add(panel.start * shape.pixels() + first * shape.output[1]);
                    let staged = StagedRows {
                        x: self.memory,
                        row: shape.strides[0] * self.stage.line(),
                        terms: &self.terms[..part.len() * taps],
                        w: planes.w.wrapping_add(panel.start * shape.depth() + part.start * taps * panel.len()),
                        channels: panel.len(),
                        rows: rows.len(),
                        columns: shape.output[1],
                        y,
                        plane: shape.pixels(),
                        continued: part.start > 0,
                    };
                    // SAFETY: the rows are staged, and the rest passed on from the caller.
                    unsafe { level.staged_rows(&staged) };
                }
            }
        }
    }
}
