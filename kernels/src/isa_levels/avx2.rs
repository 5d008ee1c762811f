//! Kernels for AVX2 with FMA: vectors of eight lanes, 16 registers of them.

use core::arch::x86_64::*;

use crate::fused::Fma;

use super::vector::{Lanes, Vector};
use super::{
    DepthwiseTile, InputWindow, NR, Panel, Plane, RegisterTile, Skinny, Tile, narrow, narrow_blocked, narrow_pack,
    portable, spread,
};

const LANES: usize = 8;

impl Lanes for __m256 {
    const LANES: usize = LANES;
    const SUMS: usize = 12;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: passed on from the caller, as below.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(p, self) }
    }

    #[inline(always)]
    unsafe fn load_few(p: *const f32, count: usize) -> Self {
        // SAFETY: as above.
        unsafe { if count >= LANES { _mm256_loadu_ps(p) } else { _mm256_maskload_ps(p, lane_mask(count)) } }
    }

    #[inline(always)]
    unsafe fn store_few(self, p: *mut f32, count: usize) {
        // SAFETY: as above.
        unsafe {
            match count {
                LANES.. => _mm256_storeu_ps(p, self),
                count => _mm256_maskstore_ps(p, lane_mask(count), self),
            }
        }
    }

    #[inline(always)]
    unsafe fn fetch(p: *const f32) {
        // SAFETY: any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn deinterleave(self, b: Self) -> [Self; 2] {
        // SAFETY: as above.
        unsafe {
            let ordered = |x| _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(_mm256_castps_pd(x)));
            [ordered(_mm256_shuffle_ps::<0x88>(self, b)), ordered(_mm256_shuffle_ps::<0xdd>(self, b))]
        }
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_add_ps(self, b) }
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_sub_ps(self, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_fmadd_ps(self, b, c) }
    }
}

impl Vector for __m256 {
    type First = __m256i;

    #[inline(always)]
    unsafe fn first(count: usize) -> __m256i {
        // SAFETY: as above.
        unsafe { lane_mask(count) }
    }

    #[inline(always)]
    unsafe fn load_first(p: *const f32, first: __m256i) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_maskload_ps(p, first) }
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, first: __m256i) {
        // SAFETY: as above.
        unsafe { _mm256_maskstore_ps(p, first, self) }
    }

    #[inline(always)]
    unsafe fn copy_transposed(src: *const f32, stride: isize, dst: *mut f32, ld: isize) {
        // SAFETY: as above; the halves of rows are in the square.
        unsafe {
            // Rows i and i + 4 of one half of the columns, side by side: what remains are two squares of four.
            let pair = |i: isize, half: usize| {
                let at = |i: isize| _mm_loadu_ps(src.wrapping_offset(i * stride).add(half));
                _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(at(i)), at(i + 4))
            };
            for half in [0, LANES / 2] {
                let [a, b, c, d] = [0, 1, 2, 3].map(|i| pair(i, half));
                let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
                let (ef, gh) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
                let columns = [
                    _mm256_shuffle_ps::<0x44>(ab, cd),
                    _mm256_shuffle_ps::<0xee>(ab, cd),
                    _mm256_shuffle_ps::<0x44>(ef, gh),
                    _mm256_shuffle_ps::<0xee>(ef, gh),
                ];
                for (j, column) in columns.into_iter().enumerate() {
                    column.store(dst.wrapping_offset((half + j) as isize * ld));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn fetch_far(p: *const f32) {
        // SAFETY: any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}

/// # Safety
/// As [`IsaLevel`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn tile(t: &Tile) {
    // SAFETY: passed on from the caller.
    unsafe { narrow::tile::<__m256>(t) }
}

/// # Safety
/// As [`IsaLevel`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn skinny(s: &Skinny) {
    // SAFETY: passed on from the caller.
    unsafe { narrow::skinny::<__m256>(s) }
}

/// # Safety
/// As [`IsaLevel`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn register_tile(t: &RegisterTile) {
    // SAFETY: passed on from the caller.
    unsafe { narrow_blocked::register_tile::<__m256, 2>(t) }
}

/// # Safety
/// As [`IsaLevel`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn depthwise_tile(t: &DepthwiseTile) {
    // SAFETY: passed on from the caller.
    unsafe { narrow_blocked::depthwise_tile::<__m256, 2>(t) }
}

/// The first `count` of eight lanes.
#[target_feature(enable = "avx2")]
fn lane_mask(count: usize) -> __m256i {
    _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// Both halves of a vector of sixteen pixels: where they come from and which elements are read, one
/// vector of them for each column of the stride.
#[derive(Clone, Copy)]
struct PixelRun<const STEP: usize> {
    src: *const f32,
    masks: [[__m256i; STEP]; 2],
}

/// # Safety
/// As [`IsaLevel`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn fetch(f: &InputWindow<'_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        match f.strides[1] {
            1 => fetch_runs::<1>(f),
            2 => fetch_runs::<2>(f),
            _ => portable::fetch(f),
        }
    }
}

/// # Safety
/// As [`IsaLevel`], with the column stride `STEP`, 1 or 2.
#[target_feature(enable = "avx2,fma")]
unsafe fn fetch_runs<const STEP: usize>(f: &InputWindow<'_>) {
    let none = PixelRun { src: f.src, masks: [[_mm256_setzero_si256(); STEP]; 2] };
    let mut runs = [none; 2 * LANES];
    for tap in 0..f.taps() {
        let count = runs_of(f, tap, &mut runs);
        for channel in 0..f.channels {
            let mut halves = [_mm256_setzero_ps(); 2];
            // SAFETY: only elements in the image are read; the destination has a row for each tap.
            unsafe {
                for run in &runs[..count] {
                    let [low, high] = run.read(channel * f.plane());
                    halves = [_mm256_or_ps(halves[0], low), _mm256_or_ps(halves[1], high)];
                }
                let dst = f.dst.add((channel * f.taps() + tap) * NR);
                _mm256_storeu_ps(dst, halves[0]);
                _mm256_storeu_ps(dst.add(LANES), halves[1]);
            }
        }
    }
}

/// The runs of pixels that a tap reads, and how many they are.
#[target_feature(enable = "avx2")]
fn runs_of<const STEP: usize>(f: &InputWindow<'_>, tap: usize, runs: &mut [PixelRun<STEP>; 2 * LANES]) -> usize {
    let mut count = 0;
    for segment in f.segments {
        let (column, mask) = f.columns(segment, tap % f.kernel[1]);
        let Some(row) = f.row(segment, tap / f.kernel[1]) else { continue };
        if mask != 0 {
            let run = &mut runs[count];
            run.src = f.src.wrapping_offset((segment.image + row * f.input[1]) as isize + column);
            for (h, masks) in run.masks.iter_mut().enumerate() {
                let half = (mask >> (h * LANES)) as u8;
                for (v, elements) in masks.iter_mut().enumerate() {
                    let bits = if STEP == 1 { half } else { (spread(half) >> (v * LANES)) as u8 };
                    *elements = bit_mask(bits);
                }
            }
            count += 1;
        }
    }
    count
}

impl<const STEP: usize> PixelRun<STEP> {
    /// Both halves of the pixels, `offset` elements on; zero where there are none.
    ///
    /// # Safety
    /// As [`IsaLevel`], with the elements of the masks readable there.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn read(&self, offset: usize) -> [__m256; 2] {
        let src = self.src.wrapping_add(offset);
        let half = |h: usize| {
            let src = src.wrapping_add(h * LANES * STEP);
            // SAFETY: by the caller's contract.
            unsafe {
                let first = _mm256_maskload_ps(src, self.masks[h][0]);
                if STEP == 1 {
                    return first;
                }
                let second = _mm256_maskload_ps(src.wrapping_add(LANES), self.masks[h][STEP - 1]);
                let even = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(first, second));
                _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(even))
            }
        };
        [half(0), half(1)]
    }
}

/// Lane l is set if bit l is.
#[target_feature(enable = "avx2")]
fn bit_mask(bits: u8) -> __m256i {
    let each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits as i32), each), each)
}

/// # Safety
/// As [`IsaLevel`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn panel(p: &Panel) {
    // SAFETY: passed on from the caller.
    unsafe { narrow_pack::panel::<__m256>(p) }
}

/// # Safety
/// As [`IsaLevel`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn plane(p: &Plane<'_>) {
    // SAFETY: passed on from the caller.
    unsafe { portable::plane(p, Fma::new()) }
}
