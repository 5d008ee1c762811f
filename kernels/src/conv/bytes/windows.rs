//! Windows in panels of [`INTEGER_COLS`] columns, as tiles read them: of each panel its groups of terms one after the other, of a
//! group four bytes for each column.
//!
//! Groups of four channels are copied from planes of such. Others are put together of four terms, from planes of one channel
//! each, or from the image where a window is a pixel.

use super::staging::Staging;
use crate::isa_levels::{ColumnRun, INTEGER_COLS, QuadWindows, TERMS, TermWindows};

impl Staging<'_> {
    /// Copies the windows of the rows, panel by panel.
    ///
    /// # Safety
    /// The planes have been written unless windows are copied from the image, and there is room for the windows.
    pub(super) unsafe fn copy_panels(&self) {
        let (t, terms) = (self.t, self.t.terms);
        // SAFETY: by the caller's contract.
        let places = unsafe { self.note_places() };
        let total = t.tiled(self.rows.len());
        for columns in (0..total).step_by(INTEGER_COLS).map(|first| first..total.min(first + INTEGER_COLS)) {
            let mut runs = [ColumnRun::default(); INTEGER_COLS];
            let runs = self.runs(columns.start, columns.len(), &mut runs);
            let to = self.windows.wrapping_add(columns.start * terms.groups() * TERMS);
            // SAFETY: the columns are of the rows, and what they read has been noted.
            unsafe {
                if t.by_terms() {
                    let (from, readable) =
                        if t.reads_image() { (self.x, false) } else { (self.planes.cast_const(), true) };
                    self.level.term_windows(&TermWindows { runs, from, places, readable, to });
                    continue;
                }
                let groups = terms.channels / TERMS;
                for (tap, place) in places.iter().enumerate() {
                    self.level.quad_windows(&QuadWindows {
                        runs,
                        from: self.planes.wrapping_add(*place as usize),
                        step: t.plane(self.rows.len()) * TERMS,
                        groups,
                        to: to.wrapping_add(tap * groups * INTEGER_COLS * TERMS),
                    });
                }
            }
        }
    }

    /// Bytes of planes, or of the image, before what is read of each term, or of the first one of each tap, for the first pixel.
    ///
    /// # Safety
    /// Scratch has room for them.
    unsafe fn note_places(&self) -> &[u32] {
        let (t, terms) = (self.t, self.t.terms);
        let place = |term: usize| match t.reads_image() {
            true => term * t.shape.input[0] * t.shape.input[1],
            false => self.place(term),
        };
        let (count, step) = if t.by_terms() { (terms.groups() * TERMS, 1) } else { (terms.taps, terms.channels) };
        // SAFETY: by the caller's contract.
        unsafe {
            for i in 0..count {
                self.places.add(i).write(place(terms.readable(i * step)) as u32);
            }
            self.places(count)
        }
    }

    /// Divides `count` columns, from column `first` on, into runs of pixels that are contiguous in memory.
    fn runs<'a>(&self, first: usize, count: usize, runs: &'a mut [ColumnRun; INTEGER_COLS]) -> &'a [ColumnRun] {
        let (pixels, width) = (self.t.shape.output[1], self.t.width());
        if pixels == width {
            let before = if self.t.reads_image() { self.rows.start * width } else { 0 };
            runs[0] = ColumnRun { from: before + first, column: 0, len: count };
            return &runs[..1];
        }
        let (mut column, mut found) = (0, 0);
        while column < count {
            let (row, pixel) = ((first + column) / pixels, (first + column) % pixels);
            let len = (pixels - pixel).min(count - column);
            runs[found] = ColumnRun { from: row * width + pixel, column, len };
            (column, found) = (column + len, found + 1);
        }
        &runs[..found]
    }
}
