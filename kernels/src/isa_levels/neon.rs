//! Kernels for NEON: vectors of four lanes, 32 registers of them, as every machine of the architecture has.
//!
//! What the compiler makes good vectors of is shared with the portable ISA level.

use core::arch::aarch64::*;

use super::vector::{Lanes, Vector};
use super::{DepthwiseTile, Panel, RegisterTile, Skinny, Tile, narrow, narrow_blocked, narrow_pack};

impl Lanes for float32x4_t {
    const LANES: usize = 4;
    const SUMS: usize = 24;

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
    unsafe fn load_few(p: *const f32, count: usize) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { Self::load_first(p, count.min(Self::LANES)) }
    }

    #[inline(always)]
    unsafe fn store_few(self, p: *mut f32, count: usize) {
        // SAFETY: passed on from the caller.
        unsafe { self.store_first(p, count.min(Self::LANES)) }
    }

    #[inline(always)]
    unsafe fn deinterleave(self, b: Self) -> [Self; 2] {
        // SAFETY: as for `splat`.
        unsafe { [vuzp1q_f32(self, b), vuzp2q_f32(self, b)] }
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
