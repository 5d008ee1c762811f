//! Convolutions over channels in blocks without assumptions about the machine.

use crate::fused::{Baseline, FusedMultiplyAdd};

use super::{DepthwiseTile, LANES, RegisterTile};

impl RegisterTile {
    /// Computes the tile pixel by pixel.
    ///
    /// # Safety
    /// `pixel` computes tiles of a single pixel; as [`super::IsaLevel`].
    pub(super) unsafe fn each_pixel(&self, pixel: unsafe fn(&RegisterTile)) {
        for r in 0..self.rows {
            for p in 0..self.pixels {
                let x = self.x.wrapping_add(r * self.row + p * self.step);
                let y = self.y.wrapping_add((r * self.pixels + p) * self.y_step);
                // SAFETY: the pixel is one of the tile's.
                unsafe { pixel(&RegisterTile { x, y, rows: 1, pixels: 1, ..*self }) };
            }
        }
    }

    /// Computes a single pixel, whose sums of a block of channels `add` adds an element of x and its filters to.
    ///
    /// # Safety
    /// As [`super::IsaLevel`].
    #[inline(always)]
    pub(super) unsafe fn one_pixel(&self, add: impl Fn(&mut [f32; LANES], f32, &[f32; LANES])) {
        for v in 0..self.vectors {
            let mut sums = [0.0f32; LANES];
            // SAFETY: all addresses are of elements that the tile names.
            unsafe {
                let y = core::slice::from_raw_parts_mut(self.y.add(v * self.y_block), LANES);
                if self.continued {
                    sums.copy_from_slice(y);
                }
                let mut w = self.w.add(v * LANES);
                for b in 0..self.blocks {
                    for tap in 0..self.kernel[0] * self.kernel[1] {
                        let (r, s) = (tap / self.kernel[1], tap % self.kernel[1]);
                        let x = self.x.add(b * self.block + r * self.tap[0] + s * self.tap[1]);
                        for c in 0..self.channels {
                            add(&mut sums, *x.add(c), &*w.cast());
                            w = w.wrapping_add(self.vectors * LANES);
                        }
                    }
                }
                y.copy_from_slice(&sums);
            }
        }
    }
}

/// # Safety
/// As [`super::IsaLevel`].
pub(super) unsafe fn register_tile(t: &RegisterTile) {
    // SAFETY: passed on from the caller.
    unsafe { t.each_pixel(pixel) };
}

/// # Safety
/// As [`super::IsaLevel`], with a single pixel.
unsafe fn pixel(t: &RegisterTile) {
    let add = |sums: &mut [f32; LANES], x: f32, filters: &[f32; LANES]| {
        sums.iter_mut().zip(filters).for_each(|(sum, w)| *sum = Baseline.mul_add(x, *w, *sum));
    };
    // SAFETY: passed on from the caller.
    unsafe { t.one_pixel(add) };
}

/// # Safety
/// As [`super::IsaLevel`].
pub(super) unsafe fn depthwise_tile(t: &DepthwiseTile) {
    for p in 0..t.pixels {
        let mut acc = [0.0f32; LANES];
        // SAFETY: all addresses are of elements that the tile names.
        unsafe {
            for r in 0..t.kernel[0] {
                for s in 0..t.kernel[1] {
                    let x = t.x.add(p * t.step + r * t.tap[0] + s * t.tap[1]);
                    let w = t.w.add(r * t.w_row + s * LANES);
                    for (j, sum) in acc.iter_mut().enumerate() {
                        *sum = Baseline.mul_add(*x.add(j), *w.add(j), *sum);
                    }
                }
            }
            core::ptr::copy_nonoverlapping(acc.as_ptr(), t.y.add(p * t.y_step), LANES);
        }
    }
}
