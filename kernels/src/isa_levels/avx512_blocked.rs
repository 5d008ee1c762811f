//! Convolutions over channels in blocks for AVX-512: a block of channels is one vector.
//!
//! Up to 14 pixels by two blocks of output channels are kept as accumulators. With the distance of
//! pixels known at compile time, one address register reaches all pixels of a row.

use core::arch::x86_64::*;

use super::{DepthwiseTile, LANES, RegisterTile, TILE_PIXELS};

type RegisterTileFn = unsafe fn(&RegisterTile);

/// Strips of 1 to 14 pixels in one row.
macro_rules! one_row {
    ($vectors:literal, $step:literal) => {
        [
            pixels::<$vectors, 1, 1, $step>,
            pixels::<$vectors, 1, 2, $step>,
            pixels::<$vectors, 1, 3, $step>,
            pixels::<$vectors, 1, 4, $step>,
            pixels::<$vectors, 1, 5, $step>,
            pixels::<$vectors, 1, 6, $step>,
            pixels::<$vectors, 1, 7, $step>,
            pixels::<$vectors, 1, 8, $step>,
            pixels::<$vectors, 1, 9, $step>,
            pixels::<$vectors, 1, 10, $step>,
            pixels::<$vectors, 1, 11, $step>,
            pixels::<$vectors, 1, 12, $step>,
            pixels::<$vectors, 1, 13, $step>,
            pixels::<$vectors, 1, 14, $step>,
        ]
    };
}

/// The same for distances that are rarer: a tile that is neither short nor of all pixels is two short ones, which spares
/// code.
macro_rules! one_row_by_halves {
    ($vectors:literal, $step:literal) => {
        [
            pixels::<$vectors, 1, 1, $step>,
            pixels::<$vectors, 1, 2, $step>,
            pixels::<$vectors, 1, 3, $step>,
            pixels::<$vectors, 1, 4, $step>,
            pixels::<$vectors, 1, 5, $step>,
            pixels::<$vectors, 1, 6, $step>,
            pixels::<$vectors, 1, 7, $step>,
            halves,
            halves,
            halves,
            halves,
            halves,
            halves,
            pixels::<$vectors, 1, 14, $step>,
        ]
    };
}

/// Strips of 1 to 7 pixels in each of two rows.
macro_rules! two_rows {
    ($vectors:literal, $step:literal) => {
        [
            pixels::<$vectors, 2, 1, $step>,
            pixels::<$vectors, 2, 2, $step>,
            pixels::<$vectors, 2, 3, $step>,
            pixels::<$vectors, 2, 4, $step>,
            pixels::<$vectors, 2, 5, $step>,
            pixels::<$vectors, 2, 6, $step>,
            pixels::<$vectors, 2, 7, $step>,
        ]
    };
}

/// By the distance of pixels, one or two blocks of output channels.
static ONE_ROW: [(usize, [[RegisterTileFn; TILE_PIXELS]; 2]); 4] = [
    (16, [one_row!(1, 16), one_row!(2, 16)]),
    (32, [one_row_by_halves!(1, 32), one_row_by_halves!(2, 32)]),
    (1, [one_row!(1, 1), one_row!(2, 1)]),
    (2, [one_row_by_halves!(1, 2), one_row_by_halves!(2, 2)]),
];
static TWO_ROWS: [(usize, [[RegisterTileFn; TILE_PIXELS / 2]; 2]); 2] =
    [(16, [two_rows!(1, 16), two_rows!(2, 16)]), (32, [two_rows!(1, 32), two_rows!(2, 32)])];

/// # Safety
/// As [`super::IsaLevel`].
pub(super) unsafe fn register_tile(t: &RegisterTile) {
    let special = match t.rows {
        1 => ONE_ROW.iter().find(|(step, _)| *step == t.step).map(|(_, table)| table[t.vectors - 1][t.pixels - 1]),
        _ => TWO_ROWS.iter().find(|(step, _)| *step == t.step).map(|(_, table)| table[t.vectors - 1][t.pixels - 1]),
    };
    // SAFETY: passed on from the caller; a single pixel has no distance to others.
    unsafe {
        match special {
            Some(special) => special(t),
            None => t.each_pixel(ONE_ROW[0].1[t.vectors - 1][0]),
        }
    }
}

/// A tile of one row as two.
///
/// # Safety
/// As [`super::IsaLevel`].
unsafe fn halves(t: &RegisterTile) {
    let first = t.pixels / 2;
    let (x, y) = (t.x.wrapping_add(first * t.step), t.y.wrapping_add(first * t.y_step));
    // SAFETY: both are parts of the tile.
    unsafe {
        register_tile(&RegisterTile { pixels: first, ..*t });
        register_tile(&RegisterTile { x, y, pixels: t.pixels - first, ..*t });
    }
}

/// # Safety
/// As [`super::IsaLevel`], with the rows, pixels, blocks and distance of the instance.
#[target_feature(enable = "avx512f")]
unsafe fn pixels<const V: usize, const R: usize, const P: usize, const STEP: usize>(t: &RegisterTile) {
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
            for k in 0..t.kernel[0] {
                let line = t.x.wrapping_add(b * t.block + k * t.tap[0]);
                for s in 0..t.kernel[1] {
                    let first = line.wrapping_add(s * t.tap[1]);
                    let mut x = [first; R];
                    for (r, x) in x.iter_mut().enumerate() {
                        *x = first.wrapping_add(r * t.row);
                    }
                    for _ in 0..t.channels {
                        _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                        ahead = ahead.wrapping_add(LANES);
                        let mut filters = [_mm512_setzero_ps(); V];
                        for (v, filter) in filters.iter_mut().enumerate() {
                            *filter = _mm512_loadu_ps(w.add(v * LANES));
                        }
                        for (row, x) in acc.iter_mut().zip(&mut x) {
                            for (p, pixel) in row.iter_mut().enumerate() {
                                let value = _mm512_set1_ps(*x.add(p * STEP));
                                for (sum, filter) in pixel.iter_mut().zip(&filters) {
                                    *sum = _mm512_fmadd_ps(value, *filter, *sum);
                                }
                            }
                            *x = x.wrapping_add(1);
                        }
                        w = w.wrapping_add(V * LANES);
                    }
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

type DepthwiseFn = unsafe fn(&DepthwiseTile, usize);

/// 1 to 14 pixels.
macro_rules! depth_pixels {
    ($step:literal) => {
        [
            depth_pixels::<1, $step>,
            depth_pixels::<2, $step>,
            depth_pixels::<3, $step>,
            depth_pixels::<4, $step>,
            depth_pixels::<5, $step>,
            depth_pixels::<6, $step>,
            depth_pixels::<7, $step>,
            depth_pixels::<8, $step>,
            depth_pixels::<9, $step>,
            depth_pixels::<10, $step>,
            depth_pixels::<11, $step>,
            depth_pixels::<12, $step>,
            depth_pixels::<13, $step>,
            depth_pixels::<14, $step>,
        ]
    };
}

/// By the distance of pixels.
static DEPTHWISE: [(usize, [DepthwiseFn; TILE_PIXELS]); 2] = [(16, depth_pixels!(16)), (32, depth_pixels!(32))];

/// # Safety
/// As [`super::IsaLevel`].
pub(super) unsafe fn depthwise_tile(t: &DepthwiseTile) {
    let special = DEPTHWISE.iter().find(|(step, _)| *step == t.step).map(|(_, table)| table);
    let most = if special.is_some() { TILE_PIXELS } else { 8 };
    let tiles = t.pixels.div_ceil(most);
    for tile in 0..tiles {
        let first = tile * t.pixels / tiles;
        let pixels = (tile + 1) * t.pixels / tiles - first;
        // SAFETY: the pixels are of the tile.
        unsafe {
            match (special, pixels) {
                (Some(table), pixels) => table[pixels - 1](t, first),
                (None, 8) => depth_pixels::<8, 0>(t, first),
                (None, _) => {
                    let middle = pixels / 4 * 4;
                    (0..middle).step_by(4).for_each(|i| depth_pixels::<4, 0>(t, first + i));
                    (middle..pixels).for_each(|i| depth_pixels::<1, 0>(t, first + i));
                }
            }
        }
    }
}

/// `P` pixels at a distance of `STEP`, or of what the tile says if that is 0.
///
/// # Safety
/// As [`super::IsaLevel`], with pixels `first..first + P` in the tile.
#[target_feature(enable = "avx512f")]
unsafe fn depth_pixels<const P: usize, const STEP: usize>(t: &DepthwiseTile, first: usize) {
    let step = if STEP == 0 { t.step } else { STEP };
    let mut acc = [_mm512_setzero_ps(); P];
    // SAFETY: all addresses are of elements that the tile names.
    unsafe {
        let (mut x, mut w) = (t.x.wrapping_add(first * step), t.w);
        for _ in 0..t.kernel[0] {
            let mut at = x;
            for s in 0..t.kernel[1] {
                let filter = _mm512_loadu_ps(w.add(s * LANES));
                for (p, sum) in acc.iter_mut().enumerate() {
                    *sum = _mm512_fmadd_ps(_mm512_loadu_ps(at.add(p * step)), filter, *sum);
                }
                at = at.wrapping_add(t.tap[1]);
            }
            x = x.wrapping_add(t.tap[0]);
            w = w.wrapping_add(t.w_row);
        }
        for (p, sum) in acc.iter().enumerate() {
            _mm512_storeu_ps(t.y.add((first + p) * t.y_step), *sum);
        }
    }
}
