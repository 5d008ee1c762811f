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
    for v in 0..t.vectors {
        let mut acc = [0.0f32; LANES];
        // SAFETY: all addresses are of elements that the tile names.
        unsafe {
            let y = core::slice::from_raw_parts_mut(t.y.add(v * t.y_block), LANES);
            if t.continued {
                acc.copy_from_slice(y);
            }
            let mut w = t.w.add(v * LANES);
            for b in 0..t.blocks {
                for tap in 0..t.kernel[0] * t.kernel[1] {
                    let (r, s) = (tap / t.kernel[1], tap % t.kernel[1]);
                    let x = t.x.add(b * t.block + r * t.tap[0] + s * t.tap[1]);
                    for c in 0..t.channels {
                        let value = *x.add(c);
                        for (j, sum) in acc.iter_mut().enumerate() {
                            *sum = Baseline.mul_add(value, *w.add(j), *sum);
                        }
                        w = w.wrapping_add(t.vectors * LANES);
                    }
                }
            }
            y.copy_from_slice(&acc);
        }
    }
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
