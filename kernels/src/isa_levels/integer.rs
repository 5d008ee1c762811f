//! Products of bytes, one operand unsigned and one signed, with exact sums in i32: a register tile of twelve rows and 32
//! columns, four terms at a time.
//!
//! `vpdpbusd` adds four products to each lane where the processor has it (AVX-512 VNNI). Elsewhere bytes are widened to
//! 16 bits, whose products in pairs fit 32 bits (`vpmaddwd`): no sum saturates.

use super::MR;

/// Columns of a [`IntegerTile`].
pub(crate) const INTEGER_COLS: usize = 32;
/// Terms that lie side by side.
pub(crate) const TERMS: usize = 4;
/// Bytes of one group of terms of a panel of columns.
pub(crate) const GROUP_BYTES: usize = INTEGER_COLS * TERMS;

/// One tile of C: `C[i, j] (+)= Σ_k A[i, k]·B[k, j]` for `i < rows ≤ MR`, `j < cols ≤ INTEGER_COLS`, modulo 2³².
pub(crate) struct IntegerTile {
    /// Groups of four terms; terms beyond the last are 0 in B.
    pub groups: usize,
    /// Group g of row i at `a[i·a_row + 4·g]`, four readable bytes.
    pub a: *const u8,
    pub a_row: isize,
    pub rows: usize,
    /// Terms of column j of group g at `b[128·g + 4·j]`.
    pub b: *const u8,
    pub cols: usize,
    /// Element (i, j) at `c[i·ldc + j]`.
    pub c: *mut i32,
    pub ldc: isize,
    /// Whether the sum continues from what C holds instead of zero.
    pub continued: bool,
    /// Whether A is signed and B unsigned, and not the other way round.
    pub left_signed: bool,
}

/// Columns of B to be copied into panels, as an [`IntegerTile`] reads them, with zeros for terms and columns that there are
/// not.
pub(crate) struct IntegerPanel {
    pub terms: usize,
    /// Term k of column j at `from[k·row + j·step]`.
    pub from: *const u8,
    pub row: isize,
    pub step: isize,
    pub cols: usize,
    /// Whole groups of the first panel.
    pub to: *mut u8,
    /// Bytes from a panel to the next.
    pub panel: usize,
}

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn panel(p: &IntegerPanel) {
    for group in 0..p.terms.div_ceil(TERMS) {
        let terms = TERMS.min(p.terms - group * TERMS);
        for (at, column) in (0..p.cols).step_by(INTEGER_COLS).enumerate() {
            let cols = INTEGER_COLS.min(p.cols - column);
            let first = (group * TERMS) as isize * p.row + column as isize * p.step;
            let to = p.to.wrapping_add(at * p.panel + group * GROUP_BYTES);
            // SAFETY: the panel holds the group, and the columns hold its terms.
            unsafe { copy_group(p, p.from.wrapping_offset(first), [terms, cols], &mut *to.cast()) };
        }
    }
}

/// Copies the terms of one group of the columns of a panel.
///
/// # Safety
/// As [`super::IsaLevel`], with so many terms and columns from `from` on.
#[inline(always)]
unsafe fn copy_group(
    p: &IntegerPanel,
    from: *const u8,
    [terms, cols]: [usize; 2],
    to: &mut [[u8; TERMS]; INTEGER_COLS],
) {
    // SAFETY: by the caller's contract.
    unsafe {
        if (terms, cols) == (TERMS, INTEGER_COLS) && p.step == 1 {
            let row = |t: isize| from.wrapping_offset(t * p.row).cast::<[u8; INTEGER_COLS]>().read_unaligned();
            let [a, b, c, d] = [row(0), row(1), row(2), row(3)];
            for (j, to) in to.iter_mut().enumerate() {
                *to = [a[j], b[j], c[j], d[j]];
            }
        } else if terms == TERMS && p.row == 1 {
            for (j, to) in to.iter_mut().enumerate() {
                *to = match j < cols {
                    true => from.wrapping_offset(j as isize * p.step).cast::<[u8; TERMS]>().read_unaligned(),
                    false => [0; TERMS],
                };
            }
        } else {
            for (j, to) in to.iter_mut().enumerate() {
                *to = core::array::from_fn(|t| match j < cols && t < terms {
                    true => *from.wrapping_offset(t as isize * p.row + j as isize * p.step),
                    false => 0,
                });
            }
        }
    }
}

/// Sums of a tile, to and from C.
struct Sums([[i32; INTEGER_COLS]; MR]);

impl Sums {
    /// # Safety
    /// C is readable where the tile lies, if the sum continues.
    #[inline(always)]
    unsafe fn load(t: &IntegerTile) -> Sums {
        let mut sums = Sums([[0; INTEGER_COLS]; MR]);
        for (i, row) in sums.0.iter_mut().enumerate().take(if t.continued { t.rows } else { 0 }) {
            // SAFETY: by the caller's contract.
            unsafe { core::ptr::copy_nonoverlapping(t.c.offset(i as isize * t.ldc), row.as_mut_ptr(), t.cols) };
        }
        sums
    }

    /// # Safety
    /// C is writable where the tile lies.
    #[inline(always)]
    unsafe fn store(&self, t: &IntegerTile) {
        for (i, row) in self.0.iter().enumerate().take(t.rows) {
            // SAFETY: by the caller's contract.
            unsafe { core::ptr::copy_nonoverlapping(row.as_ptr(), t.c.offset(i as isize * t.ldc), t.cols) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use core::arch::x86_64::*;

    use super::super::{LANES, MR};
    use super::{GROUP_BYTES, INTEGER_COLS, IntegerTile};
    use crate::isa::has_byte_products;

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn integer_tile(t: &IntegerTile) {
        // SAFETY: passed on from the caller; the instructions exist where they are used.
        unsafe {
            match has_byte_products() {
                true => dispatch(t),
                false => super::avx2::integer_tile(t),
            }
        }
    }

    /// # Safety
    /// As [`integer_tile`], with AVX-512 VNNI.
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn dispatch(t: &IntegerTile) {
        macro_rules! rows {
            ($($m:literal)*) => {
                // SAFETY: passed on from the caller.
                unsafe {
                    match (t.rows, t.left_signed) {
                        $(($m, false) => block::<$m, false>(t), ($m, true) => block::<$m, true>(t),)*
                        (_, false) => block::<MR, false>(t),
                        (_, true) => block::<MR, true>(t),
                    }
                }
            };
        }
        rows!(1 2 3 4 5 6 7 8 9 10 11)
    }

    /// # Safety
    /// As [`dispatch`], with `t.rows == M`.
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn block<const M: usize, const LEFT_SIGNED: bool>(t: &IntegerTile) {
        const V: usize = INTEGER_COLS / LANES;
        let masks: [u16; V] = core::array::from_fn(|v| {
            let lanes = t.cols.saturating_sub(v * LANES).min(LANES);
            ((1u32 << lanes) - 1) as u16
        });
        let mut acc = [[_mm512_setzero_si512(); V]; M];
        // SAFETY: lanes outside the tile are masked off in C; A and B are readable by the caller's contract.
        unsafe {
            for (i, row) in acc.iter_mut().enumerate().filter(|_| t.continued) {
                for (v, sum) in row.iter_mut().enumerate() {
                    let c = t.c.offset(i as isize * t.ldc).wrapping_add(v * LANES);
                    *sum = _mm512_maskz_loadu_epi32(masks[v], c);
                }
            }
            let (mut a, mut b) = (t.a, t.b);
            for _ in 0..t.groups {
                let columns: [__m512i; V] = core::array::from_fn(|v| _mm512_loadu_si512(b.add(64 * v).cast()));
                for (i, row) in acc.iter_mut().enumerate() {
                    let value = _mm512_set1_epi32(a.offset(i as isize * t.a_row).cast::<i32>().read_unaligned());
                    for (sum, column) in row.iter_mut().zip(columns) {
                        *sum = match LEFT_SIGNED {
                            false => _mm512_dpbusd_epi32(*sum, value, column),
                            true => _mm512_dpbusd_epi32(*sum, column, value),
                        };
                    }
                }
                a = a.wrapping_add(4);
                b = b.wrapping_add(GROUP_BYTES);
            }
            for (i, row) in acc.iter().enumerate() {
                for (v, sum) in row.iter().enumerate() {
                    let c = t.c.offset(i as isize * t.ldc).wrapping_add(v * LANES);
                    _mm512_mask_storeu_epi32(c, masks[v], *sum);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use core::arch::x86_64::*;

    use super::{GROUP_BYTES, INTEGER_COLS, IntegerPanel, IntegerTile, Sums};

    /// Columns of a vector of pairs of terms: two sums of pairs for each.
    const WIDTH: usize = 4;
    /// Rows and vectors whose sums are in registers.
    const ROWS: usize = 3;
    const VECTORS: usize = 4;

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn integer_tile(t: &IntegerTile) {
        // SAFETY: passed on from the caller.
        unsafe {
            match t.left_signed {
                false => tile::<false>(t),
                true => tile::<true>(t),
            }
        }
    }

    /// # Safety
    /// As [`integer_tile`].
    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile<const LEFT_SIGNED: bool>(t: &IntegerTile) {
        // SAFETY: passed on from the caller.
        unsafe {
            let mut sums = Sums::load(t);
            for i in (0..t.rows).step_by(ROWS) {
                for j in (0..INTEGER_COLS).step_by(WIDTH * VECTORS).take_while(|j| *j < t.cols) {
                    match t.rows - i {
                        1 => part::<1, LEFT_SIGNED>(t, &mut sums, i, j),
                        2 => part::<2, LEFT_SIGNED>(t, &mut sums, i, j),
                        _ => part::<ROWS, LEFT_SIGNED>(t, &mut sums, i, j),
                    }
                }
            }
            sums.store(t);
        }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx2")]
    pub unsafe fn integer_panel(p: &IntegerPanel) {
        // SAFETY: passed on from the caller.
        unsafe { super::panel(p) }
    }

    /// Sixteen bytes in 16 bits each.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn widened<const SIGNED: bool>(bytes: __m128i) -> __m256i {
        if SIGNED { _mm256_cvtepi8_epi16(bytes) } else { _mm256_cvtepu8_epi16(bytes) }
    }

    /// # Safety
    /// As [`integer_tile`], with rows `i0..i0 + M` and columns from `j0` on inside the tile.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn part<const M: usize, const LEFT_SIGNED: bool>(t: &IntegerTile, sums: &mut Sums, i0: usize, j0: usize) {
        let mut acc = [[_mm256_setzero_si256(); VECTORS]; M];
        // SAFETY: the panel holds all columns of a group, and A four bytes of each row.
        unsafe {
            let (mut a, mut b) = (t.a.wrapping_offset(i0 as isize * t.a_row), t.b.wrapping_add(4 * j0));
            for _ in 0..t.groups {
                let left: [__m256i; M] = core::array::from_fn(|i| {
                    let terms = a.offset(i as isize * t.a_row).cast::<i32>().read_unaligned();
                    let terms = _mm_set1_epi32(terms);
                    if LEFT_SIGNED { widened::<true>(terms) } else { widened::<false>(terms) }
                });
                for v in 0..VECTORS {
                    let bytes = _mm_loadu_si128(b.add(16 * v).cast());
                    let column = if LEFT_SIGNED { widened::<false>(bytes) } else { widened::<true>(bytes) };
                    for (row, value) in acc.iter_mut().zip(left) {
                        row[v] = _mm256_add_epi32(row[v], _mm256_madd_epi16(value, column));
                    }
                }
                a = a.wrapping_add(4);
                b = b.wrapping_add(GROUP_BYTES);
            }
            for (i, row) in acc.iter().enumerate() {
                for (v, pairs) in row.iter().enumerate() {
                    let mut halves = [0i32; 2 * WIDTH];
                    _mm256_storeu_si256(halves.as_mut_ptr().cast(), *pairs);
                    let to = &mut sums.0[i0 + i][j0 + v * WIDTH..][..WIDTH];
                    for (sum, pair) in to.iter_mut().zip(halves.as_chunks::<2>().0) {
                        *sum = sum.wrapping_add(pair[0]).wrapping_add(pair[1]);
                    }
                }
            }
        }
    }
}

pub(super) mod portable {
    use super::{GROUP_BYTES, INTEGER_COLS, IntegerPanel, IntegerTile, Sums, TERMS};

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn integer_panel(p: &IntegerPanel) {
        // SAFETY: passed on from the caller.
        unsafe { super::panel(p) }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn integer_tile(t: &IntegerTile) {
        // SAFETY: passed on from the caller.
        unsafe {
            match t.left_signed {
                false => tile(t, i32::from, |y| i32::from(y as i8)),
                true => tile(t, |x| i32::from(x as i8), i32::from),
            }
        }
    }

    /// # Safety
    /// As [`integer_tile`].
    #[inline(always)]
    unsafe fn tile(t: &IntegerTile, left: impl Fn(u8) -> i32, right: impl Fn(u8) -> i32) {
        // SAFETY: the panel holds all columns of a group, and A four bytes of each row.
        unsafe {
            let mut sums = Sums::load(t);
            for g in 0..t.groups {
                let b = t.b.wrapping_add(g * GROUP_BYTES).cast::<[[u8; TERMS]; INTEGER_COLS]>().read_unaligned();
                for (i, row) in sums.0.iter_mut().enumerate().take(t.rows) {
                    let a = t.a.offset(i as isize * t.a_row).wrapping_add(TERMS * g).cast::<[u8; TERMS]>();
                    let a = a.read_unaligned().map(&left);
                    for (sum, terms) in row.iter_mut().zip(&b) {
                        for (x, y) in a.iter().zip(terms) {
                            *sum = sum.wrapping_add(x * right(*y));
                        }
                    }
                }
            }
            sums.store(t);
        }
    }
}
