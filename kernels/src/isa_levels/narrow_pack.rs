//! Packing of panels for ISA levels with vectors of four or eight lanes: rows are copied, columns transposed in
//! squares of vectors.
//!
//! What does not fill a last vector or square is part of one that ends with the panel and overlaps the one before.

use super::vector::Vector;
use super::{NR, Panel, portable};

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
pub(super) unsafe fn panel<X: Vector>(p: &Panel) {
    // SAFETY: passed on from the caller.
    unsafe {
        match (p.j_stride, p.k_stride) {
            (1, _) if p.width == NR => copy_rows::<X, true>(p),
            (1, _) if p.width >= X::LANES => copy_rows::<X, false>(p),
            (_, 1) if p.width >= X::LANES && p.k >= X::LANES => transpose::<X>(p),
            _ => return portable::panel(p),
        }
    }
    for k in 0..p.k {
        let row = p.dst.wrapping_offset(k as isize * p.ld);
        for j in p.width..p.pad {
            // SAFETY: the destination has `pad` columns.
            unsafe { *row.add(j) = 0.0 };
        }
    }
}

/// Copies rows whose elements lie side by side; all NR columns if `WHOLE`.
///
/// # Safety
/// As [`super::IsaLevel`], with at least a vector of columns.
#[inline(always)]
unsafe fn copy_rows<X: Vector, const WHOLE: bool>(p: &Panel) {
    let width = if WHOLE { NR } else { p.width };
    for k in 0..p.k as isize {
        let (src, dst) = (p.src.wrapping_offset(k * p.k_stride), p.dst.wrapping_offset(k * p.ld));
        for j in (0..width).step_by(X::LANES) {
            let j = j.min(width - X::LANES);
            // SAFETY: columns j.. of row k are in the source and the destination.
            unsafe { X::load(src.add(j)).store(dst.add(j)) };
        }
    }
}

/// Copies columns whose elements lie side by side.
///
/// # Safety
/// As [`super::IsaLevel`], with at least a vector of rows and of columns.
#[inline(always)]
unsafe fn transpose<X: Vector>(p: &Panel) {
    for k in (0..p.k).step_by(X::LANES) {
        let k = k.min(p.k - X::LANES) as isize;
        for j in (0..p.width).step_by(X::LANES) {
            let j = j.min(p.width - X::LANES) as isize;
            let (src, dst) = (p.src.wrapping_offset(k + j * p.j_stride), p.dst.wrapping_offset(k * p.ld + j));
            // SAFETY: the square is in the source and the destination.
            unsafe { X::copy_transposed(src, p.j_stride, dst, p.ld) };
        }
    }
}
