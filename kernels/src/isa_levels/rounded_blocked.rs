//! Convolutions over channels in blocks, of operands rounded to bf16: tiles of which x and filters are words of two
//! neighbouring channels.

use super::rounded::halves;
use super::{LANES, RegisterTile};

/// # Safety
/// As [`super::IsaLevel`], with a single pixel.
#[inline(always)]
unsafe fn pixel(t: &RegisterTile) {
    let add = |sums: &mut [f32; LANES], x: f32, filters: &[f32; LANES]| {
        let [low, high] = halves(x.to_bits());
        for (sum, word) in sums.iter_mut().zip(filters) {
            let [first, second] = halves(word.to_bits());
            *sum += low * first;
            *sum += high * second;
        }
    };
    // SAFETY: passed on from the caller.
    unsafe { t.one_pixel(add) };
}

pub(super) mod portable {
    use super::RegisterTile;

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn rounded_register_tile(t: &RegisterTile) {
        // SAFETY: passed on from the caller.
        unsafe { t.each_pixel(super::pixel) };
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use super::RegisterTile;

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn rounded_register_tile(t: &RegisterTile) {
        // SAFETY: passed on from the caller.
        unsafe { t.each_pixel(pixel) };
    }

    /// # Safety
    /// As [`super::super::IsaLevel`], with a single pixel.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn pixel(t: &RegisterTile) {
        // SAFETY: passed on from the caller.
        unsafe { super::pixel(t) };
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use core::arch::x86_64::*;

    use super::super::{LANES, RegisterTile, TILE_PIXELS};
    use crate::isa::has_bf16_products;

    type RegisterTileFn = unsafe fn(&RegisterTile);

    /// Strips of 1 to 14 pixels in one row.
    macro_rules! one_row {
        ($vectors:literal) => {
            [
                pixels::<$vectors, 1, 1>,
                pixels::<$vectors, 1, 2>,
                pixels::<$vectors, 1, 3>,
                pixels::<$vectors, 1, 4>,
                pixels::<$vectors, 1, 5>,
                pixels::<$vectors, 1, 6>,
                pixels::<$vectors, 1, 7>,
                pixels::<$vectors, 1, 8>,
                pixels::<$vectors, 1, 9>,
                pixels::<$vectors, 1, 10>,
                pixels::<$vectors, 1, 11>,
                pixels::<$vectors, 1, 12>,
                pixels::<$vectors, 1, 13>,
                pixels::<$vectors, 1, 14>,
            ]
        };
    }

    /// Strips of 1 to 7 pixels in each of two rows.
    macro_rules! two_rows {
        ($vectors:literal) => {
            [
                pixels::<$vectors, 2, 1>,
                pixels::<$vectors, 2, 2>,
                pixels::<$vectors, 2, 3>,
                pixels::<$vectors, 2, 4>,
                pixels::<$vectors, 2, 5>,
                pixels::<$vectors, 2, 6>,
                pixels::<$vectors, 2, 7>,
            ]
        };
    }

    /// By the blocks of output channels, and the pixels of a row.
    static ONE_ROW: [[RegisterTileFn; TILE_PIXELS]; 2] = [one_row!(1), one_row!(2)];
    static TWO_ROWS: [[RegisterTileFn; TILE_PIXELS / 2]; 2] = [two_rows!(1), two_rows!(2)];

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn rounded_register_tile(t: &RegisterTile) {
        let tile = match t.rows {
            1 => ONE_ROW[t.vectors - 1][t.pixels - 1],
            _ => TWO_ROWS[t.vectors - 1][t.pixels - 1],
        };
        // SAFETY: passed on from the caller; the instructions exist where they are used.
        unsafe {
            match has_bf16_products() {
                true => tile(t),
                false => super::avx2::rounded_register_tile(t),
            }
        }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`], with AVX-512 BF16 and the rows, pixels and blocks of the instance.
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn pixels<const V: usize, const R: usize, const P: usize>(t: &RegisterTile) {
        let mut acc = [[[_mm512_setzero_ps(); V]; P]; R];
        let y = |r: usize, p: usize, v: usize| t.y.wrapping_add(v * t.y_block + (r * P + p) * t.y_step);
        // SAFETY: all addresses are of elements that the tile names.
        unsafe {
            if t.continued {
                for (r, row) in acc.iter_mut().enumerate() {
                    for (p, pixel) in row.iter_mut().enumerate() {
                        for (v, sum) in pixel.iter_mut().enumerate() {
                            *sum = _mm512_loadu_ps(y(r, p, v));
                        }
                    }
                }
            }
            let (mut w, mut ahead) = (t.w, t.ahead);
            for b in 0..t.blocks {
                for tap in 0..t.kernel[0] * t.kernel[1] {
                    let (k, s) = (tap / t.kernel[1], tap % t.kernel[1]);
                    let mut x = t.x.wrapping_add(b * t.block + k * t.tap[0] + s * t.tap[1]);
                    for _ in 0..t.channels {
                        _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                        ahead = ahead.wrapping_add(LANES);
                        let filters: [__m512bh; V] =
                            core::array::from_fn(|v| core::mem::transmute(_mm512_loadu_si512(w.add(v * LANES).cast())));
                        for (r, row) in acc.iter_mut().enumerate() {
                            for (p, pixel) in row.iter_mut().enumerate() {
                                let word = _mm512_set1_epi32(*x.wrapping_add(r * t.row + p * t.step).cast::<i32>());
                                let value = core::mem::transmute::<__m512i, __m512bh>(word);
                                for (sum, filter) in pixel.iter_mut().zip(filters) {
                                    *sum = _mm512_dpbf16_ps(*sum, value, filter);
                                }
                            }
                        }
                        x = x.wrapping_add(1);
                        w = w.wrapping_add(V * LANES);
                    }
                }
            }
            for (r, row) in acc.iter().enumerate() {
                for (p, pixel) in row.iter().enumerate() {
                    for (v, sum) in pixel.iter().enumerate() {
                        _mm512_storeu_ps(y(r, p, v), *sum);
                    }
                }
            }
        }
    }
}
