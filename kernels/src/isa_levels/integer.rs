//! Products of bytes, one operand unsigned and one signed, with exact sums in i32: a register tile of twelve rows and 32
//! columns, four terms at a time.
//!
//! `vpdpbusd` adds four products to each lane where the processor has it (AVX-512 VNNI). Elsewhere bytes are widened to
//! 16 bits, whose products in pairs fit 32 bits (`vpmaddwd`): no sum saturates.
//!
//! Weights are constant, and most of them small: of most pairs of neighbouring ones, and often of four, the sums of products with any
//! unsigned bytes fit 16 bits. AVX2 adds them up so where weights are narrowed ([`super::excess`]).

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;

use tensorc_abi::BYTE_TERMS;

use super::{IsaLevel, MR, Sums16};
#[cfg(target_arch = "x86_64")]
use crate::blocking::LINE;

/// Columns of a [`IntegerTile`].
pub(crate) const INTEGER_COLS: usize = 32;
/// Terms that lie side by side: a group.
pub(crate) const TERMS: usize = BYTE_TERMS as usize;
/// Groups of a row of A that lie side by side.
pub(crate) const CHUNK: usize = 16;

/// Tiles of C side by side: `C[i, j] (+)= Σ_k A[i, k]·B[k, j]` for `i < rows ≤ MR`, `j < cols`, modulo 2³². The terms come
/// in groups, and the groups in runs. In A, the groups of a run are
/// divided into chunks of [`CHUNK`] groups; the last chunk may have fewer.
pub(crate) struct IntegerTile<'a> {
    /// Groups of B from `b` to the first of each run.
    pub runs: &'a [u32],
    /// Groups of four terms in a run; terms beyond the last are 0 in B.
    pub groups: usize,
    /// Chunk c of run r of row i at `a[i·a_row + r·a_run + c·a_chunk]`, the rest with `a_rest_row`; groups of four readable bytes.
    pub a: *const u8,
    pub a_row: isize,
    pub a_rest_row: isize,
    pub a_chunk: usize,
    pub a_run: usize,
    pub rows: usize,
    /// Whether A has zeros behind the groups up to whole chunks, and B readable groups.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "for AMX"))]
    pub filled: bool,
    /// Copied ([`IntegerGroup`]): of group g of run r, column j of a tile is the group `runs[r] + g·b_step + j` from here. There are
    /// [`INTEGER_COLS`] readable columns. The next tile has its columns `b_tile` bytes behind.
    pub b: *const u8,
    pub b_step: usize,
    pub b_tile: usize,
    pub cols: usize,
    /// Element (i, j) at `c[i·ldc + j]`.
    pub c: *mut i32,
    pub ldc: isize,
    /// Whether the sum continues from what C holds instead of zero.
    pub continued: bool,
    /// What to fetch into the cache for later tiles: so many lines of it; the address need not be valid.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "for AMX and AVX-512"))]
    pub ahead: (*const u8, usize),
    /// Whether A is signed and B unsigned, and not the other way round.
    pub left_signed: bool,
    /// What sums the signed operand is [narrowed](super::NarrowedRow) for, if it is.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "for AVX2"))]
    pub narrowed: Option<Sums16>,
}

/// A second row panel of the left operand. Its rows of C follow those of the tile; the other parameters are the tile's.
#[derive(Clone, Copy)]
pub(crate) struct NextRows {
    pub a: *const u8,
    pub a_chunk: usize,
    pub rows: usize,
}

/// Columns of one group of terms of B to be copied, as an [`IntegerTile`] reads them, with zeros for terms that there are not.
pub(crate) struct IntegerGroup {
    /// At most [`TERMS`].
    pub terms: usize,
    /// Term k of column j at `rows[k][j·step]`.
    pub rows: [*const u8; TERMS],
    pub step: isize,
    pub cols: usize,
    /// [`TERMS`] bytes for each column.
    pub to: *mut u8,
}

/// A chunk of groups of a run: of A from `a` on, rows so many bytes apart, and of B from `b` on.
#[derive(Clone, Copy)]
struct Chunk {
    groups: usize,
    a: *const u8,
    a_row: isize,
    b: *const u8,
}

impl IntegerTile<'_> {
    #[inline(always)]
    fn chunks(&self) -> impl Iterator<Item = Chunk> {
        let of_run = self.groups.div_ceil(CHUNK);
        self.runs.iter().enumerate().flat_map(move |(run, first)| {
            (0..of_run).map(move |chunk| {
                let groups = CHUNK.min(self.groups - chunk * CHUNK);
                Chunk {
                    groups,
                    a: self.a.wrapping_add(run * self.a_run + chunk * self.a_chunk),
                    a_row: if groups == CHUNK { self.a_row } else { self.a_rest_row },
                    b: self.b.wrapping_add(TERMS * (*first as usize + chunk * CHUNK * self.b_step)),
                }
            })
        })
    }
}

/// Lines that are fetched into the second-level cache while chunks are multiplied.
#[cfg(target_arch = "x86_64")]
pub(super) struct Fetch {
    next: *const u8,
    left: usize,
    of_chunk: usize,
}

#[cfg(target_arch = "x86_64")]
impl Fetch {
    pub fn new(t: &IntegerTile<'_>) -> Fetch {
        let chunks = t.groups.div_ceil(CHUNK) * t.runs.len() * t.cols.div_ceil(INTEGER_COLS);
        Fetch { next: t.ahead.0, left: t.ahead.1, of_chunk: t.ahead.1.div_ceil(chunks.max(1)) }
    }

    /// Fetches the lines of a chunk.
    #[inline(always)]
    pub fn chunk(&mut self) {
        use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let lines = self.of_chunk.min(self.left);
        for _ in 0..lines {
            // SAFETY: any address may be fetched.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.next.cast()) };
            self.next = self.next.wrapping_add(LINE);
        }
        self.left -= lines;
    }
}

impl IsaLevel {
    /// Whether pairs of products of bytes are added in 16 bits, or bytes are widened to that many.
    pub fn widens(self) -> bool {
        match self.isa() {
            #[cfg(target_arch = "x86_64")]
            crate::isa::Isa::Avx512 => !crate::isa::has_byte_products(),
            #[cfg(target_arch = "x86_64")]
            crate::isa::Isa::Avx2 => true,
            _ => false,
        }
    }
}

/// Copies the columns of a group from column `first` on.
///
/// # Safety
/// As [`IsaLevel`].
#[inline(always)]
unsafe fn copy_group(g: &IntegerGroup, first: usize) {
    // SAFETY: by the caller's contract.
    unsafe {
        let to = core::slice::from_raw_parts_mut(g.to.cast::<[u8; TERMS]>(), g.cols);
        for (j, to) in to.iter_mut().enumerate().skip(first) {
            *to = core::array::from_fn(|t| match t < g.terms {
                true => *g.rows[t].wrapping_offset(j as isize * g.step),
                false => 0,
            });
        }
    }
}

/// The bytes of four rows of sixteen columns, four columns in each vector.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "sse2")]
pub(super) fn interleaved(rows: [core::arch::x86_64::__m128i; TERMS]) -> [core::arch::x86_64::__m128i; 4] {
    use core::arch::x86_64::*;
    let [low, high] =
        [[rows[0], rows[1]], [rows[2], rows[3]]].map(|[x, y]| [_mm_unpacklo_epi8(x, y), _mm_unpackhi_epi8(x, y)]);
    [
        _mm_unpacklo_epi16(low[0], high[0]),
        _mm_unpackhi_epi16(low[0], high[0]),
        _mm_unpacklo_epi16(low[1], high[1]),
        _mm_unpackhi_epi16(low[1], high[1]),
    ]
}

/// Sums of a tile, to and from C.
struct Sums([[i32; INTEGER_COLS]; MR]);

impl Sums {
    /// # Safety
    /// C is readable where the tile lies, if the sum continues.
    #[inline(always)]
    unsafe fn load(t: &IntegerTile<'_>) -> Sums {
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
    unsafe fn store(&self, t: &IntegerTile<'_>) {
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
    use super::{Chunk, Fetch, IntegerTile, TERMS};
    use crate::isa::{halves_are_cheaper, has_byte_products};

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn integer_tile(t: &IntegerTile<'_>) {
        // SAFETY: passed on from the caller; the instructions exist where they are used.
        unsafe {
            match has_byte_products() {
                true => dispatch(t),
                false => super::avx2::integer_tile(t),
            }
        }
    }

    /// Behind whole vectors a tile has nothing, half a vector, or a single column.
    const NOTHING: u8 = 0;
    const HALF: u8 = 1;
    const COLUMN: u8 = 2;

    /// # Safety
    /// As [`integer_tile`], with AVX-512 VNNI.
    #[target_feature(enable = "avx512f,avx512vl,avx512vnni")]
    unsafe fn dispatch(t: &IntegerTile<'_>) {
        const BEHIND_ONE: usize = LANES + 1;
        // SAFETY: passed on from the caller.
        unsafe {
            match (t.cols, t.cols.div_ceil(LANES / 2)) {
                (1, _) => rows::<0, COLUMN>(t),
                (BEHIND_ONE, _) => rows::<1, COLUMN>(t),
                (_, 0 | 1) if halves_are_cheaper() => rows::<0, HALF>(t),
                (_, 3) if halves_are_cheaper() => rows::<1, HALF>(t),
                (_, 0..=2) => rows::<1, NOTHING>(t),
                _ => rows::<2, NOTHING>(t),
            }
        }
    }

    /// # Safety
    /// As [`dispatch`], with the columns of [`block`].
    #[target_feature(enable = "avx512f,avx512vl,avx512vnni")]
    unsafe fn rows<const WHOLE: usize, const BEHIND: u8>(t: &IntegerTile<'_>) {
        macro_rules! rows {
            ($($m:literal)*) => {
                // SAFETY: passed on from the caller.
                unsafe {
                    match (t.rows, t.left_signed) {
                        $(
                            ($m, false) => block::<$m, WHOLE, BEHIND, false>(t),
                            ($m, true) => block::<$m, WHOLE, BEHIND, true>(t),
                        )*
                        (_, false) => block::<MR, WHOLE, BEHIND, false>(t),
                        (_, true) => block::<MR, WHOLE, BEHIND, true>(t),
                    }
                }
            };
        }
        rows!(1 2 3 4 5 6 7 8 9 10 11)
    }

    /// The first lanes of a vector, up to column `cols` of those from `first` on.
    fn lanes(cols: usize, first: usize) -> u16 {
        ((1u32 << cols.saturating_sub(first).min(LANES)) - 1) as u16
    }

    /// Adds products of unsigned with signed bytes, of which the left ones are signed or the right ones.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn added<const LEFT_SIGNED: bool>(sum: __m512i, left: __m512i, right: __m512i) -> __m512i {
        match LEFT_SIGNED {
            false => _mm512_dpbusd_epi32(sum, left, right),
            true => _mm512_dpbusd_epi32(sum, right, left),
        }
    }

    /// The sums of `M` rows for `WHOLE` vectors of columns, and what is behind them. The lanes of a single column are groups of terms.
    ///
    /// # Safety
    /// As [`dispatch`], with `t.rows == M` and no more columns.
    #[target_feature(enable = "avx512f,avx512vl,avx512vnni")]
    unsafe fn block<const M: usize, const WHOLE: usize, const BEHIND: u8, const LEFT_SIGNED: bool>(
        t: &IntegerTile<'_>,
    ) {
        let masks: [u16; WHOLE] = core::array::from_fn(|v| lanes(t.cols, v * LANES));
        let behind = WHOLE * LANES;
        let half_mask = lanes(t.cols, behind) as u8;
        let mut acc = [[_mm512_setzero_si512(); WHOLE]; M];
        let mut halves = [_mm256_setzero_si256(); M];
        let mut of_column = [_mm512_setzero_si512(); M];
        let lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let steps = _mm512_mullo_epi32(lane, _mm512_set1_epi32((TERMS * t.b_step) as i32));
        // SAFETY: lanes outside the tile are masked off in C, and groups that there are not in A and B, which are readable by the
        // caller's contract.
        unsafe {
            for (i, (row, half)) in acc.iter_mut().zip(&mut halves).enumerate().filter(|_| t.continued) {
                let c = t.c.offset(i as isize * t.ldc);
                for (v, sum) in row.iter_mut().enumerate() {
                    *sum = _mm512_maskz_loadu_epi32(masks[v], c.wrapping_add(v * LANES));
                }
                match BEHIND {
                    HALF => *half = _mm256_maskz_loadu_epi32(half_mask, c.wrapping_add(behind)),
                    COLUMN => of_column[i] = _mm512_maskz_set1_epi32(1, *c.wrapping_add(behind)),
                    _ => {}
                }
            }
            let mut fetch = Fetch::new(t);
            for Chunk { groups, mut a, a_row, mut b } in t.chunks() {
                fetch.chunk();
                if BEHIND == COLUMN {
                    let known = lanes(groups, 0);
                    let from = b.wrapping_add(TERMS * behind).cast();
                    let column = _mm512_mask_i32gather_epi32::<1>(_mm512_setzero_si512(), known, steps, from);
                    for (i, sum) in of_column.iter_mut().enumerate() {
                        let row = _mm512_maskz_loadu_epi32(known, a.wrapping_offset(i as isize * a_row).cast());
                        *sum = added::<LEFT_SIGNED>(*sum, row, column);
                    }
                }
                if WHOLE == 0 && BEHIND == COLUMN {
                    continue;
                }
                for _ in 0..groups {
                    let columns: [__m512i; WHOLE] = core::array::from_fn(|v| _mm512_loadu_si512(b.add(64 * v).cast()));
                    let last = match BEHIND {
                        HALF => _mm256_loadu_si256(b.add(TERMS * behind).cast()),
                        _ => _mm256_setzero_si256(),
                    };
                    for (i, (row, half)) in acc.iter_mut().zip(&mut halves).enumerate() {
                        let value = _mm512_set1_epi32(a.offset(i as isize * a_row).cast::<i32>().read_unaligned());
                        for (sum, column) in row.iter_mut().zip(columns) {
                            *sum = added::<LEFT_SIGNED>(*sum, value, column);
                        }
                        if BEHIND == HALF {
                            let value = _mm512_castsi512_si256(value);
                            *half = match LEFT_SIGNED {
                                false => _mm256_dpbusd_epi32(*half, value, last),
                                true => _mm256_dpbusd_epi32(*half, last, value),
                            };
                        }
                    }
                    a = a.wrapping_add(TERMS);
                    b = b.wrapping_add(TERMS * t.b_step);
                }
            }
            for (i, (row, half)) in acc.iter().zip(halves).enumerate() {
                let c = t.c.offset(i as isize * t.ldc);
                for (v, sum) in row.iter().enumerate() {
                    _mm512_mask_storeu_epi32(c.wrapping_add(v * LANES), masks[v], *sum);
                }
                match BEHIND {
                    HALF => _mm256_mask_storeu_epi32(c.wrapping_add(behind), half_mask, half),
                    COLUMN => *c.wrapping_add(behind) = _mm512_reduce_add_epi32(of_column[i]),
                    _ => {}
                }
            }
        }
    }
}

pub(super) mod portable {
    use super::{INTEGER_COLS, IntegerGroup, IntegerTile, Sums, TERMS, copy_group};

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn integer_group(g: &IntegerGroup) {
        // SAFETY: passed on from the caller.
        unsafe { copy_group(g, 0) }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn integer_tile(t: &IntegerTile<'_>) {
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
    unsafe fn tile(t: &IntegerTile<'_>, left: impl Fn(u8) -> i32, right: impl Fn(u8) -> i32) {
        // SAFETY: all columns of a group are readable, and A has four bytes for each row.
        unsafe {
            let mut sums = Sums::load(t);
            for (chunk, g) in t.chunks().flat_map(|chunk| (0..chunk.groups).map(move |g| (chunk, g))) {
                let b =
                    chunk.b.wrapping_add(TERMS * g * t.b_step).cast::<[[u8; TERMS]; INTEGER_COLS]>().read_unaligned();
                for (i, row) in sums.0.iter_mut().enumerate().take(t.rows) {
                    let a = chunk.a.offset(i as isize * chunk.a_row).wrapping_add(TERMS * g).cast::<[u8; TERMS]>();
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
