//! Convolution of rows that are staged with their padding: every tap of every output column is readable, so that the inner loop has no
//! conditions. A tile of output channels, rows and vectors of columns stays in registers while the terms of the sum go by.

use core::ops::Range;

use super::vector::Lanes;
use super::{StagedLine, StagedRows};

/// Most vectors of columns of a tile.
const MAX_VECTORS: usize = 4;
/// Output channels of a tile that share what they read.
const PAIR: usize = 2;

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
pub(super) unsafe fn rows<X: Lanes>(t: &StagedRows<'_>) {
    let vectors = t.columns.div_ceil(X::LANES);
    let blocks = vectors.div_ceil(MAX_VECTORS).max(1);
    let mut channel = 0;
    while channel < t.channels {
        let pair = t.channels - channel >= PAIR;
        for block in 0..blocks {
            let range = vectors * block / blocks..vectors * (block + 1) / blocks;
            // SAFETY: passed on from the caller: channels below `channels`, vectors of the row.
            unsafe {
                match (pair, range.len()) {
                    (false, 1) => down::<X, 1, 8, 1>(t, channel, range),
                    (false, 2) => down::<X, 1, 4, 2>(t, channel, range),
                    (false, 3) => down::<X, 1, 3, 3>(t, channel, range),
                    (false, 4) => down::<X, 1, 2, 4>(t, channel, range),
                    (true, 1) => down::<X, PAIR, 4, 1>(t, channel, range),
                    (true, 2) => down::<X, PAIR, 2, 2>(t, channel, range),
                    (true, 3) => down::<X, PAIR, 1, 3>(t, channel, range),
                    (true, 4) => down::<X, PAIR, 1, 4>(t, channel, range),
                    _ => {}
                }
            }
        }
        channel += if pair { PAIR } else { 1 };
    }
}

/// All rows of some vectors of columns, `R` at a time.
///
/// # Safety
/// As [`rows`]; `C` vectors, and `O` channels from `channel` on.
#[inline(always)]
unsafe fn down<X: Lanes, const O: usize, const R: usize, const C: usize>(
    t: &StagedRows<'_>,
    channel: usize,
    vectors: Range<usize>,
) {
    let mut row = 0;
    // SAFETY: passed on from the caller.
    unsafe {
        while row + R <= t.rows {
            tile::<X, O, R, C>(t, channel, row, vectors.start);
            row += R;
        }
        while row < t.rows {
            tile::<X, O, 1, C>(t, channel, row, vectors.start);
            row += 1;
        }
    }
}

/// # Safety
/// As [`down`], with `R` rows from `row` on.
#[inline(always)]
unsafe fn tile<X: Lanes, const O: usize, const R: usize, const C: usize>(
    t: &StagedRows<'_>,
    channel: usize,
    row: usize,
    vector: usize,
) {
    let terms = t.terms.len();
    // SAFETY: staged rows are readable up to whole vectors; what lies behind the last column is not stored.
    unsafe {
        let x = t.x.add(row * t.row + vector * X::LANES);
        let w = t.w.add(channel * terms);
        let mut acc = [[[X::splat(0.0); O]; C]; R];
        for (k, &at) in t.terms.iter().enumerate() {
            let x = x.add(at as usize);
            let mut filters = [X::splat(0.0); O];
            for (o, filter) in filters.iter_mut().enumerate() {
                *filter = X::splat(*w.add(o * terms + k));
            }
            for (r, vectors) in acc.iter_mut().enumerate() {
                for (c, sums) in vectors.iter_mut().enumerate() {
                    let value = X::load(x.add(r * t.row + c * X::LANES));
                    for (sum, filter) in sums.iter_mut().zip(filters) {
                        *sum = value.mul_add(filter, *sum);
                    }
                }
            }
        }
        for (r, vectors) in acc.iter().enumerate() {
            for (c, sums) in vectors.iter().enumerate() {
                for (o, sum) in sums.iter().enumerate() {
                    let y = t.y.add((channel + o) * t.plane + (row + r) * t.columns);
                    store(*sum, y, (vector + c) * X::LANES, t.columns);
                }
            }
        }
    }
}

/// Stores the columns of a vector that there are.
///
/// # Safety
/// The row has so many columns, `first` among them.
#[inline(always)]
unsafe fn store<X: Lanes>(sum: X, y: *mut f32, first: usize, columns: usize) {
    // SAFETY: by the caller's contract.
    unsafe {
        if first + X::LANES <= columns {
            return sum.store(y.add(first));
        }
        let mut last = [0f32; super::LANES];
        sum.store(last.as_mut_ptr());
        core::ptr::copy_nonoverlapping(last.as_ptr(), y.add(first), columns - first);
    }
}

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn line(l: &StagedLine) {
    for phase in 0..l.step {
        let first = l.pad.saturating_sub(phase).div_ceil(l.step).min(l.width);
        let end = (l.columns + l.pad).saturating_sub(phase).div_ceil(l.step).clamp(first, l.width);
        // SAFETY: columns `step·q + phase - pad` for q in `first..end` are inside the row, and so many fit.
        unsafe {
            let to = l.to.add(phase * l.width);
            to.write_bytes(0, first);
            let x = l.x.wrapping_add(first * l.step + phase).wrapping_sub(l.pad);
            match l.step {
                1 => core::ptr::copy_nonoverlapping(x, to.add(first), end - first),
                2 => gather::<2>(x, to.add(first), end - first),
                step => (0..end - first).for_each(|i| *to.add(first + i) = *x.add(i * step)),
            }
            to.add(end).write_bytes(0, l.width - end);
        }
    }
}

/// Copies every `STEP`-th element, in blocks that the compiler makes vectors of.
///
/// # Safety
/// The elements that are copied are readable, and `to` has room for them.
#[inline(always)]
unsafe fn gather<const STEP: usize>(x: *const f32, to: *mut f32, count: usize) {
    const BLOCK: usize = 8;
    let whole = count.saturating_sub(1) / BLOCK * BLOCK;
    // SAFETY: of a whole block all elements up to the last that is copied are readable, and those between it and the next block.
    unsafe {
        for i in (0..whole).step_by(BLOCK) {
            let mut block = [[0f32; STEP]; BLOCK];
            core::ptr::copy_nonoverlapping(x.add(i * STEP), block.as_mut_ptr().cast(), BLOCK * STEP);
            to.add(i).cast::<[f32; BLOCK]>().write(block.map(|columns| columns[0]));
        }
        (whole..count).for_each(|i| *to.add(i) = *x.add(i * STEP));
    }
}

/// The kernels of an ISA level.
macro_rules! level {
    ($vector:ty $(, $feature:literal)?) => {
        /// # Safety
        /// As [`crate::isa_levels::IsaLevel`].
        $(#[target_feature(enable = $feature)])?
        pub(in crate::isa_levels) unsafe fn staged_rows(t: &super::StagedRows<'_>) {
            // SAFETY: passed on from the caller.
            unsafe { super::rows::<$vector>(t) }
        }

        /// # Safety
        /// As [`crate::isa_levels::IsaLevel`].
        $(#[target_feature(enable = $feature)])?
        pub(in crate::isa_levels) unsafe fn staged_line(l: &super::StagedLine) {
            // SAFETY: passed on from the caller.
            unsafe { super::line(l) }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    level!(core::arch::x86_64::__m512, "avx512f");
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    level!(core::arch::x86_64::__m256, "avx2,fma");
}

#[cfg(target_arch = "aarch64")]
pub(super) mod neon {
    level!(core::arch::aarch64::float32x4_t);
}

pub(super) mod portable {
    level!(f32);
}
