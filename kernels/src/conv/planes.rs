//! The division of convolutions that are computed plane by plane.

use core::ops::Range;

use super::WindowShape;
use crate::blocking::EvenSplit;
use crate::epilogue::EpilogueCall;

/// Output elements of one epilogue call, about.
const EPILOGUE_ELEMENTS: usize = 8 * 1024;
/// Multiply-adds that are worth a task of their own.
const TASK_TERMS: usize = 150_000;

/// Tasks are runs of planes, or bands of rows of large planes.
pub(super) struct PlaneTasks<'a> {
    shape: &'a WindowShape,
    /// Neighbouring output channels that are computed together: a unit.
    channels: usize,
    /// Units of all images, cut into runs.
    runs: EvenSplit,
    /// Output rows of a plane, cut into bands.
    bands: EvenSplit,
}

impl<'a> PlaneTasks<'a> {
    /// `channels` divides the output channels of a group; bands have at least so many rows, if there are as many.
    pub fn new(shape: &'a WindowShape, channels: usize, rows: usize) -> PlaneTasks<'a> {
        let channels = channels.max(1);
        let terms = (channels * shape.pixels() * shape.depth()).max(1);
        let bands = EvenSplit::into(shape.output[0], (terms / TASK_TERMS).min(shape.output[0] / rows));
        let together = if bands.parts() > 1 { 1 } else { (TASK_TERMS / terms).max(1) };
        let units = shape.batch * shape.groups * shape.out_channels / channels;
        PlaneTasks { shape, channels, runs: EvenSplit::by(units, together), bands }
    }

    pub fn tasks(&self) -> usize {
        if self.shape.is_empty() { 0 } else { self.runs.parts() * self.bands.parts() }
    }

    /// Executes tasks: `compute` is given an image, the first channel of a unit and the output rows. The epilogue follows on what is in the
    /// cache.
    ///
    /// # Safety
    /// `compute` finishes what it is given, and the epilogue fits.
    pub unsafe fn run(
        &self,
        tasks: Range<usize>,
        epilogue: Option<EpilogueCall>,
        mut compute: impl FnMut(usize, usize, Range<usize>),
    ) {
        let units = self.shape.groups * self.shape.out_channels / self.channels;
        for task in tasks {
            let rows = self.bands.range(task % self.bands.parts());
            let cols = rows.start * self.shape.output[1]..rows.end * self.shape.output[1];
            let run = self.runs.range(task / self.bands.parts());
            let together = (EPILOGUE_ELEMENTS / (self.channels * cols.len()).max(1)).max(1);
            let mut unit = run.start;
            while unit < run.end {
                let (image, first) = (unit / units, unit % units);
                let count = (run.end - unit).min(together).min(units - first);
                (first..first + count).for_each(|unit| compute(image, unit * self.channels, rows.clone()));
                let channels = first * self.channels..(first + count) * self.channels;
                // SAFETY: the block is finished; the epilogue fits by the caller's contract.
                unsafe { EpilogueCall::finish(epilogue, [image as u64, 0, 0], channels, cols.clone()) };
                unit += count;
            }
        }
    }
}
