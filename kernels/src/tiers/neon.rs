//! Kernels for NEON: vectors of four lanes, 32 registers of them, as every machine of the architecture has.
//!
//! What the compiler makes good vectors of is shared with the portable tier.

use core::arch::aarch64::*;

use super::vector::Vector;
use super::{DepthStrip, Skinny, Strip, Tile, narrow, narrow_blocked};

impl Vector for float32x4_t {
    const LANES: usize = 4;
    type First = usize;

    #[inline(always)]
    unsafe fn first(count: usize) -> usize {
        count
    }

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
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: passed on from the caller.
        unsafe { vst1q_f32(p, self) }
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
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: as for `splat`.
        unsafe { vfmaq_f32(c, self, b) }
    }
}

/// # Safety
/// As [`Tier`].
pub(super) unsafe fn tile(t: &Tile) {
    // SAFETY: passed on from the caller.
    unsafe { narrow::tile::<float32x4_t>(t) }
}

/// # Safety
/// As [`Tier`].
pub(super) unsafe fn skinny(s: &Skinny) {
    // SAFETY: passed on from the caller.
    unsafe { narrow::skinny::<float32x4_t>(s) }
}

/// # Safety
/// As [`Tier`].
pub(super) unsafe fn strip(t: &Strip) {
    // SAFETY: passed on from the caller.
    unsafe { narrow_blocked::strip::<float32x4_t, 4>(t) }
}

/// # Safety
/// As [`Tier`].
pub(super) unsafe fn depth_strip(t: &DepthStrip) {
    // SAFETY: passed on from the caller.
    unsafe { narrow_blocked::depth_strip::<float32x4_t, 4>(t) }
}
