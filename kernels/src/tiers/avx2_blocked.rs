//! Convolutions over blocked channels for AVX2: a block of channels is two vectors, six pixels of which
//! are kept as accumulators.

use core::arch::x86_64::*;

use super::{DepthStrip, LANES, Strip};

const HALF: usize = LANES / 2;
/// Most pixels computed together.
const PIXELS: usize = 6;

/// # Safety
/// As [`super::Tier`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn strip(t: &Strip) {
    for v in 0..t.vectors {
        for r in 0..t.rows {
            let parts = t.pixels.div_ceil(PIXELS);
            for part in 0..parts {
                let (first, end) = (part * t.pixels / parts, (part + 1) * t.pixels / parts);
                // SAFETY: the pixels and the channel block are of the strip.
                unsafe {
                    match end - first {
                        1 => pixels::<1>(t, v, r, first),
                        2 => pixels::<2>(t, v, r, first),
                        3 => pixels::<3>(t, v, r, first),
                        4 => pixels::<4>(t, v, r, first),
                        5 => pixels::<5>(t, v, r, first),
                        _ => pixels::<6>(t, v, r, first),
                    }
                }
            }
        }
    }
}

/// # Safety
/// As [`super::Tier`], with pixels `first..first + P` of row `r` and block `v` in the strip.
#[target_feature(enable = "avx2,fma")]
unsafe fn pixels<const P: usize>(t: &Strip, v: usize, r: usize, first: usize) {
    let mut acc = [[_mm256_setzero_ps(); 2]; P];
    let y = t.y.wrapping_add(v * t.y_block + (r * t.pixels + first) * LANES);
    // SAFETY: all addresses are of elements that the strip names.
    unsafe {
        if t.continued {
            for (p, pixel) in acc.iter_mut().enumerate() {
                for (h, sum) in pixel.iter_mut().enumerate() {
                    *sum = _mm256_loadu_ps(y.add(p * LANES + h * HALF));
                }
            }
        }
        let mut w = t.w.wrapping_add(v * LANES);
        for b in 0..t.blocks {
            for k in 0..t.kernel[0] {
                let line = t.x.wrapping_add(b * t.block + k * t.tap[0] + r * t.row + first * t.step);
                for s in 0..t.kernel[1] {
                    let mut x = line.wrapping_add(s * t.tap[1]);
                    for _ in 0..t.channels {
                        let filter = [_mm256_loadu_ps(w), _mm256_loadu_ps(w.wrapping_add(HALF))];
                        for (p, pixel) in acc.iter_mut().enumerate() {
                            let value = _mm256_set1_ps(*x.add(p * t.step));
                            for (sum, filter) in pixel.iter_mut().zip(&filter) {
                                *sum = _mm256_fmadd_ps(value, *filter, *sum);
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
                _mm256_storeu_ps(y.add(p * LANES + h * HALF), *sum);
            }
        }
    }
}

/// # Safety
/// As [`super::Tier`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn depth_strip(t: &DepthStrip) {
    let mut done = 0;
    // SAFETY: pixels done.. of the strip.
    unsafe {
        while t.pixels - done >= 4 {
            depth_pixels::<4>(t, done);
            done += 4;
        }
        while done < t.pixels {
            depth_pixels::<1>(t, done);
            done += 1;
        }
    }
}

/// # Safety
/// As [`super::Tier`], with pixels `first..first + P` in the strip.
#[target_feature(enable = "avx2,fma")]
unsafe fn depth_pixels<const P: usize>(t: &DepthStrip, first: usize) {
    let mut acc = [[_mm256_setzero_ps(); 2]; P];
    // SAFETY: all addresses are of elements that the strip names.
    unsafe {
        for r in 0..t.kernel[0] {
            for s in 0..t.kernel[1] {
                let x = t.x.wrapping_add(first * t.step + r * t.tap[0] + s * t.tap[1]);
                for h in 0..2 {
                    let filter = _mm256_loadu_ps(t.w.add(r * t.w_row + s * LANES + h * HALF));
                    for (p, pixel) in acc.iter_mut().enumerate() {
                        let value = _mm256_loadu_ps(x.add(p * t.step + h * HALF));
                        pixel[h] = _mm256_fmadd_ps(value, filter, pixel[h]);
                    }
                }
            }
        }
        for (p, pixel) in acc.iter().enumerate() {
            for (h, sum) in pixel.iter().enumerate() {
                _mm256_storeu_ps(t.y.add((first + p) * LANES + h * HALF), *sum);
            }
        }
    }
}
