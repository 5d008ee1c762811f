//! Rows of the input channels of a group, copied with their padding, so that the inner kernel of [`super::grouped`] has no conditions. With a
//! column stride `s`, columns that leave the same remainder lie side by side: what a tap reads of neighbouring output columns is a run of
//! elements.

use core::ops::Range;

use super::WindowShape;
use crate::isa_levels::{IsaLevel, LANES, StagedLine};

/// Elements that are staged together, about: they stay in the second-level cache.
const ELEMENTS: usize = 4 * 1024;
/// Output rows that are staged together at least, where there are so many: rows of the filter overlap.
const MIN_ROWS: usize = 8;

/// How the rows of a convolution are staged.
pub(super) struct Stage<'a> {
    shape: &'a WindowShape,
    /// Elements of a row of columns of one remainder.
    width: usize,
    /// Output rows that are staged together.
    pub rows: usize,
}

impl<'a> Stage<'a> {
    pub fn new(shape: &'a WindowShape) -> Stage<'a> {
        let reach = shape.kernel[1].saturating_sub(1) * shape.dilations[1] / shape.strides[1];
        let width = shape.output[1].next_multiple_of(LANES) + reach;
        let mut stage = Stage { shape, width, rows: 1 };
        let line = (shape.in_channels * stage.line()).max(1);
        let below = shape.kernel[0].saturating_sub(1) * shape.dilations[0] + 1;
        let fitting = (ELEMENTS / line).saturating_sub(below) / shape.strides[0];
        stage.rows = fitting.max(MIN_ROWS).min(shape.output[0]).max(1);
        stage
    }

    /// Elements of a staged row.
    fn line(&self) -> usize {
        self.shape.strides[1] * self.width
    }

    /// Rows of a channel that are staged together.
    fn lines(&self) -> usize {
        (self.rows - 1) * self.shape.strides[0] + self.shape.kernel[0].saturating_sub(1) * self.shape.dilations[0] + 1
    }

    /// Elements between what neighbouring output rows read.
    pub fn row(&self) -> usize {
        self.shape.strides[0] * self.line()
    }

    /// Elements of the staged rows.
    pub fn elements(&self) -> usize {
        self.shape.in_channels * self.lines() * self.line()
    }

    /// Lists where each term of the sum lies.
    pub fn list_terms(&self, terms: &mut [u32]) {
        let WindowShape { kernel: [down, across], dilations, strides, .. } = *self.shape;
        for (k, term) in terms.iter_mut().enumerate() {
            let (channel, tap) = (k / (down * across), k % (down * across));
            let (r, s) = (tap / across * dilations[0], tap % across * dilations[1]);
            let line = channel * self.lines() + r;
            *term = (line * self.line() + s % strides[1] * self.width + s / strides[1]) as u32;
        }
    }

    /// Copies what the output rows `rows` read, at most [`Stage::rows`] of them, of the channels from `x` on.
    ///
    /// # Safety
    /// `x` addresses the planes of the channels, and `to` room for [`Stage::elements`].
    pub unsafe fn fill(&self, level: IsaLevel, x: *const f32, rows: Range<usize>, to: *mut f32) {
        let shape = self.shape;
        let read = (rows.len() - 1) * shape.strides[0] + shape.kernel[0].saturating_sub(1) * shape.dilations[0] + 1;
        for channel in 0..shape.in_channels {
            for line in 0..read {
                let from = (rows.start * shape.strides[0] + line).wrapping_sub(shape.pads[0]);
                let to = to.wrapping_add((channel * self.lines() + line) * self.line());
                // SAFETY: the row is inside the plane, or not read; room is for all lines of all channels.
                unsafe {
                    if from >= shape.input[0] {
                        to.write_bytes(0, self.line());
                        continue;
                    }
                    level.staged_line(&StagedLine {
                        x: x.add(channel * shape.plane() + from * shape.input[1]),
                        columns: shape.input[1],
                        pad: shape.pads[1],
                        step: shape.strides[1],
                        to,
                        width: self.width,
                    });
                }
            }
        }
    }
}
