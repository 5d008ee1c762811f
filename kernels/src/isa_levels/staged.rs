//! Convolution of rows that are staged with their padding: every tap of every output column is readable, so that the inner loop has no
//! conditions. A tile of output channels and vectors of columns, which may be of several rows, stays in registers while the terms of the sum go
//! by.

use super::vector::Lanes;
use super::{StagedLines, StagedRows};

/// Most vectors of columns of a tile.
const MAX_VECTORS: usize = 8;

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn rows<X: Lanes>(t: &StagedRows<'_>) {
    let vectors = t.columns.div_ceil(X::LANES);
    let total = t.rows * vectors;
    let parts = t.channels.div_ceil(X::SUMS / 2);
    for part in 0..parts {
        let channel = part * t.channels / parts;
        let channels = (part + 1) * t.channels / parts - channel;
        let most = (X::SUMS / channels).min(MAX_VECTORS);
        // As even as there are tiles for.
        let even = total.div_ceil(total.div_ceil(most).max(1));
        let mut first = 0;
        while first < total {
            let count = match (total - first).min(even) {
                3 if channels > 4 => 3,
                left => 1 << left.ilog2(),
            };
            macro_rules! tiles {
                ($(($channels:literal $($count:literal)*))*) => {
                    match (channels, count) {
                        $($(($channels, $count) => tile::<X, $channels, $count>(t, channel, vectors, first),)*)*
                        _ => {}
                    }
                };
            }
            // SAFETY: passed on from the caller: so many channels and vectors.
            unsafe {
                tiles!((1 1 2 4 8)(2 1 2 4 8)(3 1 2 4 8)(4 1 2 4)(5 1 2 3 4)(6 1 2 3 4)(7 1 2 3)(8 1 2 3)(9 1 2)(10 1 2)(11 1 2)(12 1 2));
            }
            first += count;
        }
    }
}

/// `M` channels of `V` vectors of columns, counted along rows from `first` on.
///
/// # Safety
/// As [`rows`]: there are so many.
#[inline(always)]
unsafe fn tile<X: Lanes, const M: usize, const V: usize>(
    t: &StagedRows<'_>,
    channel: usize,
    vectors: usize,
    first: usize,
) {
    if M * V > X::SUMS {
        return;
    }
    let (mut x, mut y, mut left) = ([t.x; V], [t.y; V], [t.columns; V]);
    let (mut row, mut column) = (first / vectors, first % vectors * X::LANES);
    for v in 0..V {
        x[v] = t.x.wrapping_add(row * t.row + column);
        y[v] = t.y.wrapping_add(channel * t.plane + row * t.columns + column);
        left[v] = t.columns - column;
        column += X::LANES;
        if column >= t.columns {
            (row, column) = (row + 1, 0);
        }
    }
    // SAFETY: passed on from the caller.
    unsafe {
        let mut acc = [[X::splat(0.0); V]; M];
        if t.continued {
            for (i, sums) in acc.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = X::load_few(y[v].wrapping_add(i * t.plane), left[v]);
                }
            }
        }
        let mut w = t.w.add(channel);
        for &term in t.terms {
            let mut values = [X::splat(0.0); V];
            for (value, x) in values.iter_mut().zip(x) {
                *value = X::load(x.add(term as usize));
            }
            for (i, sums) in acc.iter_mut().enumerate() {
                let filter = X::splat(*w.add(i));
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = value.mul_add(filter, *sum);
                }
            }
            w = w.wrapping_add(t.channels);
        }
        for (i, sums) in acc.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                sum.store_few(y[v].wrapping_add(i * t.plane), left[v]);
            }
        }
    }
}

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn lines<X: Lanes>(l: &StagedLines) {
    for line in 0..l.count {
        let from = l.first.wrapping_add(line);
        let to = l.to.wrapping_add(line * l.step * l.width);
        // SAFETY: passed on from the caller: the row is inside the plane, or not read.
        unsafe {
            if from >= l.input[0] {
                zero::<X>(to, l.step * l.width, 0..l.step * l.width);
                continue;
            }
            let x = l.x.add(from * l.input[1]);
            (0..l.input[1]).step_by(super::LANES).for_each(|i| X::fetch(x.wrapping_add(l.ahead + i)));
            for phase in 0..l.step {
                let to = to.add(phase * l.width);
                let (first, end) = l.columns(phase);
                zero::<X>(to, l.width, 0..first);
                zero::<X>(to, l.width, end..l.width);
            }
            match l.step {
                1 => {
                    let (first, end) = l.columns(0);
                    copy::<X>(x.wrapping_add(first).wrapping_sub(l.pad), to.add(first), end - first);
                }
                2 => halves::<X>(l, x, to),
                step => (0..step).for_each(|phase| {
                    let (first, end) = l.columns(phase);
                    let x = x.wrapping_add(phase).wrapping_sub(l.pad);
                    (first..end).for_each(|q| *to.add(phase * l.width + q) = *x.wrapping_add(q * step));
                }),
            }
        }
    }
}

impl StagedLines {
    /// The staged columns of a remainder that are columns of the plane.
    #[inline(always)]
    fn columns(&self, phase: usize) -> (usize, usize) {
        let first = self.pad.saturating_sub(phase).div_ceil(self.step).min(self.width);
        (first, (self.input[1] + self.pad).saturating_sub(phase).div_ceil(self.step).clamp(first, self.width))
    }
}

/// Writes zero to a range of `len` elements, at least a vector of them, and to some of the others.
///
/// # Safety
/// So many elements are writable.
#[inline(always)]
unsafe fn zero<X: Lanes>(to: *mut f32, len: usize, range: core::ops::Range<usize>) {
    let mut at = range.start;
    while at < range.end {
        // SAFETY: the vector is inside.
        unsafe { X::splat(0.0).store(to.add(at.min(len - X::LANES))) };
        at += X::LANES;
    }
}

/// # Safety
/// So many elements are readable and writable.
#[inline(always)]
unsafe fn copy<X: Lanes>(x: *const f32, to: *mut f32, count: usize) {
    let whole = count / X::LANES * X::LANES;
    // SAFETY: by the caller's contract.
    unsafe {
        for i in (0..whole).step_by(X::LANES) {
            X::load(x.add(i)).store(to.add(i));
        }
        if whole < count {
            X::load_few(x.add(whole), count - whole).store_few(to.add(whole), count - whole);
        }
    }
}

/// A row of which every other column is staged apart.
///
/// # Safety
/// As [`lines`].
#[inline(always)]
unsafe fn halves<X: Lanes>(l: &StagedLines, x: *const f32, to: *mut f32) {
    // Where elements at even places go, and those at odd ones, and how many are staged.
    let [even, odd] = [l.pad, l.pad + 1].map(|column| {
        let (phase, first) = (column % 2, column / 2);
        (to.wrapping_add(phase * l.width + first), l.width.saturating_sub(first))
    });
    let counts = [(l.input[1].div_ceil(2)).min(even.1), (l.input[1] / 2).min(odd.1)];
    let most = counts[0].max(counts[1]);
    for i in (0..most).step_by(X::LANES) {
        let left = l.input[1] - 2 * i;
        // SAFETY: so many elements of the row are left, and so many are staged.
        unsafe {
            let a = X::load_few(x.add(2 * i), left);
            let b = X::load_few(x.wrapping_add(2 * i + X::LANES), left.saturating_sub(X::LANES));
            for ((values, count), (to, _)) in a.deinterleave(b).into_iter().zip(counts).zip([even, odd]) {
                if i < count {
                    values.store_few(to.add(i), count - i);
                }
            }
        }
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
        pub(in crate::isa_levels) unsafe fn staged_lines(l: &super::StagedLines) {
            // SAFETY: passed on from the caller.
            unsafe { super::lines::<$vector>(l) }
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
