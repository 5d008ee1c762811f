//! Convolutions over channels in blocks for ISA levels with vectors of four or eight lanes: a block of channels is `H`
//! vectors, six pixels of which are kept as accumulators.

use super::vector::Vector;
use super::{DepthwiseTile, LANES, RegisterTile};

/// Most pixels computed together.
const PIXELS: usize = 6;

/// # Safety
/// As [`super::IsaLevel`], with vectors that fill a block.
#[inline(always)]
pub(super) unsafe fn register_tile<X: Vector, const H: usize>(t: &RegisterTile) {
    let count = t.rows * t.pixels;
    let parts = count.div_ceil(PIXELS);
    for v in 0..t.vectors {
        for part in 0..parts {
            let (first, end) = (part * count / parts, (part + 1) * count / parts);
            // SAFETY: the pixels and the channel block are of the tile.
            unsafe {
                match end - first {
                    1 => pixels::<X, H, 1>(t, v, first),
                    2 => pixels::<X, H, 2>(t, v, first),
                    3 => pixels::<X, H, 3>(t, v, first),
                    4 => pixels::<X, H, 4>(t, v, first),
                    5 => pixels::<X, H, 5>(t, v, first),
                    _ => pixels::<X, H, 6>(t, v, first),
                }
            }
        }
    }
}

/// The vectors of a block.
///
/// # Safety
/// The block can be read.
#[inline(always)]
unsafe fn load<X: Vector, const H: usize>(p: *const f32) -> [X; H] {
    // SAFETY: H vectors are a block.
    unsafe {
        let mut block = [X::splat(0.0); H];
        for (h, vector) in block.iter_mut().enumerate() {
            *vector = X::load(p.wrapping_add(h * X::LANES));
        }
        block
    }
}

/// # Safety
/// As [`super::IsaLevel`], with pixels `first..first + P`, in row-major order, and block `v` in the tile.
#[inline(always)]
unsafe fn pixels<X: Vector, const H: usize, const P: usize>(t: &RegisterTile, v: usize, first: usize) {
    let y = t.y.wrapping_add(v * t.y_block + first * t.y_step);
    let at: [usize; P] = core::array::from_fn(|p| match first + p {
        pixel if pixel < t.pixels => pixel * t.step,
        pixel => t.row + (pixel - t.pixels) * t.step,
    });
    // SAFETY: all addresses are of elements that the tile names.
    unsafe {
        let mut acc = [[X::splat(0.0); H]; P];
        if t.continued {
            for (p, pixel) in acc.iter_mut().enumerate() {
                *pixel = load::<X, H>(y.add(p * t.y_step));
            }
        }
        let mut w = t.w.wrapping_add(v * LANES);
        for b in 0..t.blocks {
            for k in 0..t.kernel[0] {
                let line = t.x.wrapping_add(b * t.block + k * t.tap[0]);
                for s in 0..t.kernel[1] {
                    let mut x = line.wrapping_add(s * t.tap[1]);
                    for _ in 0..t.channels {
                        let filter = load::<X, H>(w);
                        for (pixel, at) in acc.iter_mut().zip(&at) {
                            let value = X::splat(*x.add(*at));
                            for (sum, filter) in pixel.iter_mut().zip(&filter) {
                                *sum = value.mul_add(*filter, *sum);
                            }
                        }
                        x = x.wrapping_add(1);
                        w = w.wrapping_add(t.vectors * LANES);
                    }
                }
            }
        }
        for (p, pixel) in acc.iter().enumerate() {
            for (h, sum) in pixel.iter().enumerate() {
                sum.store(y.add(p * t.y_step + h * X::LANES));
            }
        }
    }
}

/// # Safety
/// As [`super::IsaLevel`], with vectors that fill a block.
#[inline(always)]
pub(super) unsafe fn depthwise_tile<X: Vector, const H: usize>(t: &DepthwiseTile) {
    let mut done = 0;
    // SAFETY: pixels done.. of the tile.
    unsafe {
        while t.pixels - done >= 4 {
            depth_pixels::<X, H, 4>(t, done);
            done += 4;
        }
        while done < t.pixels {
            depth_pixels::<X, H, 1>(t, done);
            done += 1;
        }
    }
}

/// # Safety
/// As [`super::IsaLevel`], with pixels `first..first + P` in the tile.
#[inline(always)]
unsafe fn depth_pixels<X: Vector, const H: usize, const P: usize>(t: &DepthwiseTile, first: usize) {
    // SAFETY: all addresses are of elements that the tile names.
    unsafe {
        let mut acc = [[X::splat(0.0); H]; P];
        for r in 0..t.kernel[0] {
            for s in 0..t.kernel[1] {
                let x = t.x.wrapping_add(first * t.step + r * t.tap[0] + s * t.tap[1]);
                for h in 0..H {
                    let filter = X::load(t.w.add(r * t.w_row + s * LANES + h * X::LANES));
                    for (p, pixel) in acc.iter_mut().enumerate() {
                        let value = X::load(x.add(p * t.step + h * X::LANES));
                        pixel[h] = value.mul_add(filter, pixel[h]);
                    }
                }
            }
        }
        for (p, pixel) in acc.iter().enumerate() {
            for (h, sum) in pixel.iter().enumerate() {
                sum.store(t.y.add((first + p) * t.y_step + h * X::LANES));
            }
        }
    }
}
