//! Kernels for NEON: vectors of four lanes, 32 registers of them, as every machine of the architecture has.
//!
//! What the compiler makes good vectors of is shared with the portable ISA level.

use core::arch::aarch64::*;

use crate::fused::Baseline;

use super::vector::{Lanes, Vector};
use super::{
    Depthwise, DepthwiseTile, Panel, RegisterTile, Skinny, Tile, narrow, narrow_blocked, narrow_depthwise, narrow_pack,
    portable,
};

impl Lanes for float32x4_t {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: every target of this architecture has the instruction; so below.
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { vld1q_f32(p) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: passed on from the caller.
        unsafe { vst1q_f32(p, self) }
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: as for `splat`.
        unsafe { vaddq_f32(self, b) }
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: as for `splat`.
        unsafe { vsubq_f32(self, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: as for `splat`.
        unsafe { vfmaq_f32(c, self, b) }
    }
}

impl Vector for float32x4_t {
    type First = usize;
    type Some = uint32x4_t;
    type Taps = u8;

    #[inline(always)]
    unsafe fn first(count: usize) -> usize {
        count
    }

    #[inline(always)]
    unsafe fn load_first(p: *const f32, first: usize) -> Self {
        // SAFETY: only the elements of the lanes are read.
        unsafe {
            if first == Self::LANES {
                return vld1q_f32(p);
            }
            let mut lanes = [0.0; 4];
            for (i, lane) in lanes.iter_mut().enumerate().take(first) {
                *lane = *p.add(i);
            }
            vld1q_f32(lanes.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, first: usize) {
        // SAFETY: only the elements of the lanes are written.
        unsafe {
            if first == Self::LANES {
                return vst1q_f32(p, self);
            }
            let mut lanes = [0.0; 4];
            vst1q_f32(lanes.as_mut_ptr(), self);
            for (i, lane) in lanes.iter().enumerate().take(first) {
                *p.add(i) = *lane;
            }
        }
    }

    #[inline(always)]
    unsafe fn lanes(bits: u8) -> uint32x4_t {
        let each = [1u32, 2, 4, 8];
        // SAFETY: as for `splat`.
        unsafe { vtstq_u32(vdupq_n_u32(bits.into()), vld1q_u32(each.as_ptr())) }
    }

    #[inline(always)]
    unsafe fn select(lanes: uint32x4_t, a: Self, b: Self) -> Self {
        // SAFETY: as for `splat`.
        unsafe { vbslq_f32(lanes, a, b) }
    }

    #[inline(always)]
    unsafe fn taps<const STEP: usize>(bits: u8) -> u8 {
        bits
    }

    #[inline(always)]
    unsafe fn load_taps<const STEP: usize>(p: *const f32, taps: u8) -> Self {
        // SAFETY: only the elements of the lanes are read.
        unsafe {
            match (taps, STEP) {
                (0xf, 1) => vld1q_f32(p),
                // Both loads have element 3, so that nothing behind the last is read.
                (0xf, _) => {
                    let (left, right) = (vld1q_f32(p), vld1q_f32(p.add(3)));
                    vcombine_f32(vget_low_f32(vuzp1q_f32(left, left)), vget_low_f32(vuzp2q_f32(right, right)))
                }
                _ => {
                    let mut lanes = [0.0; 4];
                    for (l, lane) in lanes.iter_mut().enumerate() {
                        if taps >> l & 1 == 1 {
                            *lane = *p.wrapping_add(l * STEP);
                        }
                    }
                    vld1q_f32(lanes.as_ptr())
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn copy_transposed(src: *const f32, stride: isize, dst: *mut f32, ld: isize) {
        // SAFETY: passed on from the caller.
        unsafe {
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| vld1q_f32(src.wrapping_offset(i * stride)));
            let (even, odd) = (vtrnq_f32(a, b), vtrnq_f32(c, d));
            let columns = [
                vcombine_f32(vget_low_f32(even.0), vget_low_f32(odd.0)),
                vcombine_f32(vget_low_f32(even.1), vget_low_f32(odd.1)),
                vcombine_f32(vget_high_f32(even.0), vget_high_f32(odd.0)),
                vcombine_f32(vget_high_f32(even.1), vget_high_f32(odd.1)),
            ];
            for (j, column) in columns.into_iter().enumerate() {
                column.store(dst.wrapping_offset(j as isize * ld));
            }
        }
    }
}

/// # Safety
/// As [`IsaLevel`].
pub(super) unsafe fn tile(t: &Tile) {
    // SAFETY: passed on from the caller.
    unsafe { narrow::tile::<float32x4_t>(t) }
}

/// # Safety
/// As [`IsaLevel`].
pub(super) unsafe fn panel(p: &Panel) {
    // SAFETY: passed on from the caller.
    unsafe { narrow_pack::panel::<float32x4_t>(p) }
}

/// # Safety
/// As [`IsaLevel`].
pub(super) unsafe fn skinny(s: &Skinny) {
    // SAFETY: passed on from the caller.
    unsafe { narrow::skinny::<float32x4_t>(s) }
}

/// # Safety
/// As [`IsaLevel`].
pub(super) unsafe fn register_tile(t: &RegisterTile) {
    // SAFETY: passed on from the caller.
    unsafe { narrow_blocked::register_tile::<float32x4_t, 4>(t) }
}

/// # Safety
/// As [`IsaLevel`].
pub(super) unsafe fn depthwise_tile(t: &DepthwiseTile) {
    // SAFETY: passed on from the caller.
    unsafe { narrow_blocked::depthwise_tile::<float32x4_t, 4>(t) }
}

/// # Safety
/// As [`IsaLevel`].
pub(super) unsafe fn depthwise(d: &Depthwise<'_>) {
    unsafe fn square<const STEP: usize, const K: usize, const LINES: usize>(d: &Depthwise<'_>) {
        // SAFETY: passed on from the caller.
        unsafe { narrow_depthwise::square::<float32x4_t, STEP, K, LINES>(d) }
    }
    let all = [square::<1, 3, 6>, square::<2, 3, 9>, square::<1, 5, 8>, square::<2, 5, 11>];
    // SAFETY: passed on from the caller.
    unsafe {
        match narrow_depthwise::usual(d, all) {
            Some(square) => square(d),
            None => portable::depthwise(d, Baseline),
        }
    }
}
