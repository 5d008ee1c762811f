//! What some rows of the result read of an image, side by side.
//!
//! An image is staged in planes: one for each remainder of rows and columns by the strides that a tap has, with zeros for what
//! lies outside. There, what a tap reads for one pixel after the other lies side by side, also from the end of a row to the
//! next, with a halo of columns that are no pixels. Planes hold groups of four channels of a pixel, which a tile reads, or
//! bytes of one channel.
//!
//! Windows are copied from the planes: for each group of terms its four bytes of one pixel after the other.

use core::ops::Range;

use super::{ByteTasks, Staged};
use crate::isa_levels::{CHUNK, INTEGER_COLS, IntegerGroup, IsaLevel, TERMS};

/// Bytes that are copied at once: what lies behind the end of a row is overwritten by the next one.
pub(super) const COPIED: usize = 16;

/// Where planes and windows go, and what of.
pub(super) struct Staging<'a> {
    pub level: IsaLevel,
    pub t: &'a ByteTasks,
    /// The image.
    pub x: *const u8,
    /// Rows of the result.
    pub rows: Range<usize>,
    /// Where [`Staging::places`] are noted.
    pub places: *mut u32,
    pub planes: *mut u8,
    pub windows: *mut u8,
}

/// Elements of four bytes for planes and windows of so many rows, with room behind them that copies and tiles may touch.
pub(super) fn sizes(t: &ByteTasks, rows: usize) -> [usize; 2] {
    let planes = (t.phases[0] * t.phases[1] * t.plane(rows) * t.terms.channels).div_ceil(TERMS);
    match t.staged {
        Staged::Planes => [planes + INTEGER_COLS + 1, 0],
        Staged::Windows => [planes + 2 * COPIED, t.terms.groups() * t.tiled(rows) + INTEGER_COLS + COPIED],
        Staged::Panels => {
            let planes = if t.reads_image() { 0 } else { planes + 2 * COPIED };
            // Groups behind the last ones of a panel are read.
            let behind = (CHUNK + 1) * INTEGER_COLS;
            [planes, t.terms.groups() * t.tiled(rows).next_multiple_of(INTEGER_COLS) + behind]
        }
    }
}

impl Staging<'_> {
    /// Elements of a plane of one channel, or groups of one of four.
    fn plane(&self) -> usize {
        self.t.plane(self.rows.len())
    }

    /// Bytes of planes before what a term reads of the first pixel.
    pub fn place(&self, term: usize) -> usize {
        let (t, terms) = (self.t, self.t.terms);
        let (tap, channel, together) = (term / terms.channels, term % terms.channels, terms.channels_together());
        let at = [tap / t.shape.kernel[1] * t.shape.dilations[0], tap % t.shape.kernel[1] * t.shape.dilations[1]];
        let [row, column] = [0, 1].map(|d| at[d] / t.shape.strides[d]);
        let phase = at[0] % t.shape.strides[0] * t.phases[1] + at[1] % t.shape.strides[1];
        let plane = (phase * terms.channels + channel) / together;
        (plane * self.plane() + row * t.width() + column) * together
    }

    /// Groups of four bytes from those that tiles read first to the first ones of each tap, or bytes to what is read of each term.
    ///
    /// # Safety
    /// So many have been noted.
    pub unsafe fn places(&self, count: usize) -> &[u32] {
        // SAFETY: by the caller's contract.
        unsafe { core::slice::from_raw_parts(self.places.cast_const(), count) }
    }

    /// Copies what the rows read, and notes where it is found.
    ///
    /// # Safety
    /// The image is as the call states, and planes and windows have the sizes of [`sizes`].
    pub unsafe fn stage(&self) {
        let (t, terms) = (self.t, self.t.terms);
        // SAFETY: passed on from the caller; the planes have been written where windows are copied from them.
        unsafe {
            if !t.reads_image() {
                self.stage_planes();
            }
            match t.staged {
                Staged::Windows => self.copy_windows(),
                Staged::Panels => self.copy_panels(),
                Staged::Planes => {
                    for tap in 0..terms.taps {
                        self.places.add(tap).write((self.place(tap * terms.channels) / TERMS) as u32);
                    }
                }
            }
        }
    }

    /// Copies what the rows read to planes.
    ///
    /// # Safety
    /// As [`Staging::stage`].
    unsafe fn stage_planes(&self) {
        let t = self.t;
        let bytes = t.terms.channels_together();
        let planes = t.terms.channels / bytes;
        for (phase, plane) in (0..t.phases[0] * t.phases[1]).flat_map(|phase| (0..planes).map(move |at| (phase, at))) {
            let to = self.planes.wrapping_add((phase * planes + plane) * self.plane() * bytes);
            let x = self.x.wrapping_add(plane * bytes * t.shape.input[0] * t.shape.input[1]);
            let phase = [phase / t.phases[1], phase % t.phases[1]];
            // SAFETY: the channels are the image's, and the planes have room for them.
            unsafe {
                match bytes {
                    TERMS => self.stage_plane::<TERMS>(phase, x, to),
                    _ => self.stage_plane::<1>(phase, x, to),
                }
            }
        }
    }

    /// Copies what the rows read of `N` channels with the given remainders by the strides.
    ///
    /// # Safety
    /// As [`Staging::stage`], with so many planes of the image from `x` on.
    unsafe fn stage_plane<const N: usize>(&self, phase: [usize; 2], x: *const u8, to: *mut u8) {
        let t = self.t;
        let width = t.width();
        let count = self.rows.len() + t.halo[0];
        // SAFETY: what is read lies in the image, and what is written in the plane.
        unsafe {
            let whole = width == t.shape.input[1] && self.rows.start + count <= t.shape.input[0];
            if whole && t.shape.strides == [1; 2] && t.shape.pads == [0; 2] {
                return self.pixels::<N>(x, self.rows.start * width, count * width, to);
            }
            // Columns of the plane that lie in the image.
            let first = (t.shape.pads[1].saturating_sub(phase[1])).div_ceil(t.shape.strides[1]).min(width);
            let inside = t.shape.input[1] + t.shape.pads[1];
            let last = inside.saturating_sub(phase[1]).div_ceil(t.shape.strides[1]).clamp(first, width);
            for row in 0..count {
                let to = to.wrapping_add(row * width * N);
                let padded = (self.rows.start + row) * t.shape.strides[0] + phase[0];
                let y = padded.wrapping_sub(t.shape.pads[0]);
                if y >= t.shape.input[0] || first == last {
                    to.write_bytes(0, width * N);
                    continue;
                }
                let column = first * t.shape.strides[1] + phase[1] - t.shape.pads[1];
                to.write_bytes(0, first * N);
                self.pixels::<N>(x, y * t.shape.input[1] + column, last - first, to.wrapping_add(first * N));
                to.wrapping_add(last * N).write_bytes(0, (width - last) * N);
            }
        }
    }

    /// Copies pixels of `N` channels, each a stride behind the one before it.
    ///
    /// # Safety
    /// They lie in the image, and `to` has room for them.
    unsafe fn pixels<const N: usize>(&self, x: *const u8, from: usize, count: usize, to: *mut u8) {
        let (from, step) = (x.wrapping_add(from), self.t.shape.strides[1]);
        // SAFETY: by the caller's contract.
        unsafe {
            if N == TERMS {
                let plane = self.t.shape.input[0] * self.t.shape.input[1];
                let rows = core::array::from_fn(|term| from.wrapping_add(term * plane));
                let step = step as isize;
                return self.level.integer_group(&IntegerGroup { terms: TERMS, rows, step, cols: count, to });
            }
            let to = core::slice::from_raw_parts_mut(to, count);
            match step {
                1 => to.copy_from_slice(core::slice::from_raw_parts(from, count)),
                2 if count > 0 => {
                    let pairs = core::slice::from_raw_parts(from, 2 * count - 1);
                    to[count - 1] = pairs[2 * count - 2];
                    to.iter_mut().zip(pairs.as_chunks::<2>().0).for_each(|(to, pair)| *to = pair[0]);
                }
                _ => to.iter_mut().enumerate().for_each(|(i, to)| *to = *from.wrapping_add(i * step)),
            }
        }
    }

    /// Copies the four bytes of each group of terms, which are of several taps, for one pixel after the other.
    ///
    /// # Safety
    /// The planes have been written, and there is room for the windows.
    unsafe fn copy_windows(&self) {
        let (t, terms) = (self.t, self.t.terms);
        let (pixels, rows) = (t.shape.output[1], self.rows.len());
        for group in 0..terms.groups() {
            let to = self.windows.wrapping_add(group * rows * pixels * TERMS);
            let from: [*const u8; TERMS] = core::array::from_fn(|i| {
                self.planes.wrapping_add(self.place(terms.readable(group * TERMS + i))).cast_const()
            });
            for row in 0..rows {
                let to = to.wrapping_add(row * pixels * TERMS);
                let rows = from.map(|from| from.wrapping_add(row * t.width()));
                let cols = pixels.next_multiple_of(COPIED);
                // SAFETY: planes and windows have room for a copy that goes beyond a row.
                unsafe { self.level.integer_group(&IntegerGroup { terms: TERMS, rows, step: 1, cols, to }) };
            }
        }
    }
}
