//! Kernels in plain Rust, for any machine; other ISA levels inline the same bodies under their own
//! target features where vectorisation by the compiler is good enough.

use crate::fused::{Baseline, FusedMultiplyAdd};

use super::{InputWindow, LANES, NR, Panel, Plane, Skinny, Tile};

/// Rows and columns of the portable register tile.
const ROWS: usize = 4;
const COLS: usize = 8;

/// # Safety
/// As [`IsaLevel`].
pub(super) unsafe fn tile(t: &Tile) {
    for i0 in (0..t.mr).step_by(ROWS) {
        for j0 in (0..t.nr).step_by(COLS) {
            // SAFETY: the block lies inside the tile.
            unsafe { block(t, i0, ROWS.min(t.mr - i0), j0, COLS.min(t.nr - j0)) };
        }
    }
}

/// # Safety
/// As [`IsaLevel`], with rows `i0..i0+rows` and columns `j0..j0+cols` inside the tile.
unsafe fn block(t: &Tile, i0: usize, rows: usize, j0: usize, cols: usize) {
    let mut acc = [[0.0f32; COLS]; ROWS];
    // SAFETY: all indices are inside the tile by the caller's contract.
    unsafe {
        let c = |i: usize, j: usize| t.c.offset((i0 + i) as isize * t.ldc).add(j0 + j);
        if t.continued {
            for (i, row) in acc.iter_mut().enumerate().take(rows) {
                for (j, sum) in row.iter_mut().enumerate().take(cols) {
                    *sum = *c(i, j);
                }
            }
        }
        for k in 0..t.k {
            let (a, b) = (t.a.offset(i0 as isize * t.a_row + k as isize * t.a_step), t.b.add(k * t.ldb + j0));
            for (i, row) in acc.iter_mut().enumerate().take(rows) {
                for (j, sum) in row.iter_mut().enumerate().take(cols) {
                    *sum = Baseline.mul_add(*a.offset(i as isize * t.a_row), *b.add(j), *sum);
                }
            }
        }
        for (i, row) in acc.iter().enumerate().take(rows) {
            for (j, sum) in row.iter().enumerate().take(cols) {
                *c(i, j) = *sum;
            }
        }
    }
}

/// # Safety
/// As [`IsaLevel`].
pub(super) unsafe fn skinny(s: &Skinny) {
    for i in 0..s.m {
        for j0 in (0..s.n).step_by(NR) {
            let cols = NR.min(s.n - j0);
            let mut acc = [0.0f32; NR];
            // SAFETY: row i, columns j0..j0+cols and every k are inside the operands.
            unsafe {
                let b = s.b.offset((j0 / NR) as isize * s.b_panel);
                for k in 0..s.k {
                    let a = *s.a.offset(i as isize * s.a_row + k as isize * s.a_col);
                    let row = b.offset(k as isize * s.b_row);
                    if cols == NR {
                        for (j, sum) in acc.iter_mut().enumerate() {
                            *sum = Baseline.mul_add(a, *row.add(j), *sum);
                        }
                    } else {
                        for (j, sum) in acc.iter_mut().enumerate().take(cols) {
                            *sum = Baseline.mul_add(a, *row.add(j), *sum);
                        }
                    }
                }
                let c = s.c.offset(i as isize * s.ldc).add(j0);
                core::ptr::copy_nonoverlapping(acc.as_ptr(), c, cols);
            }
        }
    }
}

/// # Safety
/// As [`IsaLevel`].
#[inline(always)]
pub(super) unsafe fn panel(p: &Panel) {
    /// Terms of k copied at a time, so that both sides stay within a few cache lines.
    const DEPTH: usize = 16;
    for k0 in (0..p.k).step_by(DEPTH) {
        let depth = DEPTH.min(p.k - k0);
        // SAFETY: k < p.k and j < p.width in the source, j < p.pad in the destination.
        unsafe {
            let src = p.src.offset(k0 as isize * p.k_stride);
            let dst = p.dst.offset(k0 as isize * p.ld);
            for j in 0..p.width {
                let column = src.offset(j as isize * p.j_stride);
                for k in 0..depth {
                    *dst.offset(k as isize * p.ld + j as isize) =
                        column.offset(k as isize * p.k_stride).read_unaligned();
                }
            }
            for j in p.width..p.pad {
                for k in 0..depth {
                    *dst.offset(k as isize * p.ld + j as isize) = 0.0;
                }
            }
        }
    }
}

/// # Safety
/// As [`IsaLevel`].
#[inline(always)]
pub(super) unsafe fn fetch(f: &InputWindow<'_>) {
    let step = f.strides[1];
    for tap in 0..f.taps() {
        let mut runs = [(f.src, 0, 0); LANES];
        for (run, segment) in runs.iter_mut().zip(f.segments) {
            let (column, mask) = f.columns(segment, tap % f.kernel[1]);
            if let Some(row) = f.row(segment, tap / f.kernel[1]) {
                let src = f.src.wrapping_add(segment.image + row * f.input[1]).wrapping_offset(column);
                *run = (src, mask.trailing_zeros() as usize, LANES - mask.leading_zeros() as usize);
            }
        }
        for channel in 0..f.channels {
            let mut lanes = [0.0f32; LANES];
            for &(src, first, end) in &runs[..f.segments.len()] {
                let src = src.wrapping_add(channel * f.plane());
                for (lane, value) in lanes.iter_mut().enumerate().take(end).skip(first) {
                    // SAFETY: the lanes of the mask lie inside the input row.
                    *value = unsafe { *src.wrapping_add(lane * step) };
                }
            }
            // SAFETY: the destination has a row of NR elements for each tap of each channel.
            unsafe {
                let dst = f.dst.add((channel * f.taps() + tap) * NR);
                core::ptr::copy_nonoverlapping(lanes.as_ptr(), dst, LANES);
            }
        }
    }
}

/// # Safety
/// As [`IsaLevel`].
pub(super) unsafe fn baseline_plane(d: &Plane<'_>) {
    // SAFETY: passed on from the caller.
    unsafe { plane(d, Baseline) }
}

/// # Safety
/// As [`IsaLevel`].
#[inline(always)]
pub(super) unsafe fn plane(d: &Plane<'_>, fused: impl FusedMultiplyAdd) {
    for p in d.rows.clone() {
        // SAFETY: p is an output row.
        let y = unsafe { core::slice::from_raw_parts_mut(d.y.add(p * d.output[1]), d.output[1]) };
        y.fill(0.0);
        for r in 0..d.kernel[0] {
            let ih = (p * d.strides[0] + r * d.dilations[0]).wrapping_sub(d.pads[0]);
            if ih >= d.input[0] {
                continue;
            }
            for (s, columns) in d.columns.iter().enumerate() {
                let [first, last] = columns.map(|column| column as usize);
                if first >= last {
                    continue;
                }
                // SAFETY: output columns first..last read inside row ih by the definition of `columns`.
                unsafe {
                    let w = *d.w.add(r * d.kernel[1] + s);
                    let column = first * d.strides[1] + s * d.dilations[1] - d.pads[1];
                    let x = d.x.add(ih * d.input[1] + column);
                    if d.strides[1] == 1 {
                        for (q, sum) in y[first..last].iter_mut().enumerate() {
                            *sum = fused.mul_add(*x.add(q), w, *sum);
                        }
                    } else {
                        for (q, sum) in y[first..last].iter_mut().enumerate() {
                            *sum = fused.mul_add(*x.add(q * d.strides[1]), w, *sum);
                        }
                    }
                }
            }
        }
    }
}
