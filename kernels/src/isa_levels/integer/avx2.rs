//! Tiles of products of bytes with AVX2, which has products with sums of two neighbours only.
//!
//! Narrowed weights ([`super::super::excess`]) are multiplied as bytes (`vpmaddubsw`), and added up in 16 bits before they are widened:
//! one group of terms, or two. Other operands are widened to 16 bits: terms 0 and 2 of a group, then 1 and 3 (`vpmaddwd`).

use core::arch::x86_64::*;
use core::mem::MaybeUninit;

use super::{CHUNK, Chunk, INTEGER_COLS, IntegerGroup, IntegerTile, TERMS, copy_group, interleaved};
use crate::blocking::EvenSplit;
use crate::isa_levels::{MR, Sums16};

/// Sums of a vector of columns.
const LANES: usize = 8;
/// Most rows whose sums are in registers, and vectors of columns that are multiplied together; with one row, all of a tile.
const ROWS: usize = 4;
const VECTORS: usize = 2;
const ALL_VECTORS: usize = INTEGER_COLS / LANES;
/// Most rows that are widened together with all columns.
const PLAIN_ROWS: usize = 2;
/// Chunks of rows that are widened together.
const WIDENED_CHUNKS: usize = 4;
/// Words between rows: what is read at a time of some rows lies in different banks of the cache.
const APART: usize = 2;
/// Columns that are copied together.
const COPIED: usize = 16;

/// # Safety
/// As [`super::super::IsaLevel`].
#[target_feature(enable = "avx2,fma")]
pub unsafe fn integer_tile(t: &IntegerTile<'_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        match (t.left_signed, t.narrowed) {
            (false, None) => plain(t),
            (true, None) => widened(t),
            (false, Some(Sums16::Pairs)) => narrowed::<false, false>(t),
            (false, Some(Sums16::Quads)) => narrowed::<false, true>(t),
            (true, Some(Sums16::Pairs)) => narrowed::<true, false>(t),
            (true, Some(Sums16::Quads)) => narrowed::<true, true>(t),
        }
    }
}

/// A part of some tiles: rows from `row` on, and columns of one tile from `column` on.
struct Part {
    row: usize,
    rows: usize,
    column: usize,
    vectors: usize,
    /// Bytes of B before the columns of a group.
    tile: usize,
}

/// Calls with the rows in parts of nearly equal number, and some vectors of columns.
#[inline(always)]
fn each_part(t: &IntegerTile<'_>, mut call: impl FnMut(Part)) {
    let rows = EvenSplit::by(t.rows, ROWS);
    for (tile, first) in (0..t.cols).step_by(INTEGER_COLS).enumerate() {
        let vectors = (t.cols - first).min(INTEGER_COLS).div_ceil(LANES);
        for rows in (0..rows.parts()).map(|part| rows.range(part)) {
            let together = if rows.len() == 1 { ALL_VECTORS } else { VECTORS };
            for v in (0..vectors).step_by(together) {
                call(Part {
                    row: rows.start,
                    rows: rows.len(),
                    column: first + v * LANES,
                    vectors: together.min(vectors - v),
                    tile: tile * t.b_tile + TERMS * v * LANES,
                });
            }
        }
    }
}

/// # Safety
/// As [`integer_tile`], with narrowed weights.
#[target_feature(enable = "avx2,fma")]
unsafe fn narrowed<const LEFT_SIGNED: bool, const QUADS: bool>(t: &IntegerTile<'_>) {
    each_part(t, |part| {
        // SAFETY: passed on from the caller.
        unsafe {
            match (part.rows, part.vectors) {
                (1, 1) => narrowed_part::<1, 1, LEFT_SIGNED, QUADS>(t, &part),
                (1, _) => narrowed_part::<1, ALL_VECTORS, LEFT_SIGNED, QUADS>(t, &part),
                (2, 1) => narrowed_part::<2, 1, LEFT_SIGNED, QUADS>(t, &part),
                (2, _) => narrowed_part::<2, VECTORS, LEFT_SIGNED, QUADS>(t, &part),
                (3, 1) => narrowed_part::<3, 1, LEFT_SIGNED, QUADS>(t, &part),
                (3, _) => narrowed_part::<3, VECTORS, LEFT_SIGNED, QUADS>(t, &part),
                (_, 1) => narrowed_part::<ROWS, 1, LEFT_SIGNED, QUADS>(t, &part),
                _ => narrowed_part::<ROWS, VECTORS, LEFT_SIGNED, QUADS>(t, &part),
            }
        }
    });
}

/// The sums of `M` rows for `V` vectors of columns.
///
/// # Safety
/// As [`narrowed`], with the rows inside the tile and no more columns.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn narrowed_part<const M: usize, const V: usize, const LEFT_SIGNED: bool, const QUADS: bool>(
    t: &IntegerTile<'_>,
    part: &Part,
) {
    let mut acc = [[_mm256_setzero_si256(); V]; M];
    let ones = _mm256_set1_epi16(1);
    let step = TERMS * t.b_step;
    // SAFETY: all columns of a group are readable, and A has four bytes for each row.
    unsafe {
        for Chunk { groups, a, a_row, b } in t.chunks() {
            let mut a = a.wrapping_offset(part.row as isize * a_row);
            let mut b = b.wrapping_add(part.tile);
            let columns = |b: *const u8| -> [__m256i; V] {
                core::array::from_fn(|v| _mm256_loadu_si256(b.add(TERMS * LANES * v).cast()))
            };
            let product = |i: usize, a: *const u8, column: __m256i| {
                let value = _mm256_set1_epi32(a.offset(i as isize * a_row).cast::<i32>().read_unaligned());
                match LEFT_SIGNED {
                    true => _mm256_maddubs_epi16(column, value),
                    false => _mm256_maddubs_epi16(value, column),
                }
            };
            let pairs = if QUADS { groups / 2 } else { 0 };
            for _ in 0..pairs {
                let [first, second] = [columns(b), columns(b.wrapping_add(step))];
                for (i, row) in acc.iter_mut().enumerate() {
                    for (v, sum) in row.iter_mut().enumerate() {
                        let second = product(i, a.wrapping_add(TERMS), second[v]);
                        let four = _mm256_add_epi16(product(i, a, first[v]), second);
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(four, ones));
                    }
                }
                a = a.wrapping_add(2 * TERMS);
                b = b.wrapping_add(2 * step);
            }
            for _ in 2 * pairs..groups {
                let group = columns(b);
                for (i, row) in acc.iter_mut().enumerate() {
                    for (v, sum) in row.iter_mut().enumerate() {
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(product(i, a, group[v]), ones));
                    }
                }
                a = a.wrapping_add(TERMS);
                b = b.wrapping_add(step);
            }
        }
        for (i, sums) in acc.into_iter().enumerate() {
            for (v, sums) in sums.into_iter().enumerate() {
                store(t, sums, [part.row + i, part.column + v * LANES], t.continued);
            }
        }
    }
}

/// Rows of some chunks in 16 bits: of each group the pair of terms 0 and 2 and, apart from these, that of terms 1 and 3.
struct WidenedRows([[[MaybeUninit<i32>; WIDENED_CHUNKS * CHUNK + APART]; 2]; MR]);

impl WidenedRows {
    /// Writes the rows of a chunk of a tile, as groups from `first` on.
    ///
    /// # Safety
    /// The rows are readable.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn put(&mut self, t: &IntegerTile<'_>, chunk: &Chunk, first: usize) {
        let whole = chunk.groups.next_multiple_of(if t.filled { LANES } else { 1 }) / LANES * LANES;
        for (i, row) in self.0.iter_mut().enumerate().take(t.rows) {
            let [even, odd] = row.each_mut().map(|pairs| pairs[first..first + CHUNK].as_mut_ptr().cast::<i32>());
            let a = chunk.a.wrapping_offset(i as isize * chunk.a_row).cast::<i32>();
            // SAFETY: by the caller's contract.
            unsafe {
                for g in (0..whole).step_by(LANES) {
                    let groups = _mm256_loadu_si256(a.add(g).cast());
                    _mm256_storeu_si256(even.add(g).cast(), terms::<0, true>(groups));
                    _mm256_storeu_si256(odd.add(g).cast(), terms::<1, true>(groups));
                }
                for g in whole..chunk.groups {
                    let group = _mm256_set1_epi32(a.add(g).read_unaligned());
                    even.add(g).write(_mm256_cvtsi256_si32(terms::<0, true>(group)));
                    odd.add(g).write(_mm256_cvtsi256_si32(terms::<1, true>(group)));
                }
            }
        }
    }
}

/// The even bytes of a vector in 16 bits, or the odd ones.
#[inline]
#[target_feature(enable = "avx2")]
fn terms<const ODD: usize, const SIGNED: bool>(bytes: __m256i) -> __m256i {
    match (ODD, SIGNED) {
        (0, false) => _mm256_and_si256(bytes, _mm256_set1_epi16(0xff)),
        (0, true) => _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes)),
        (_, false) => _mm256_srli_epi16::<8>(bytes),
        (_, true) => _mm256_srai_epi16::<8>(bytes),
    }
}

/// # Safety
/// As [`integer_tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn widened(t: &IntegerTile<'_>) {
    let mut left = WidenedRows([[[MaybeUninit::uninit(); WIDENED_CHUNKS * CHUNK + APART]; 2]; MR]);
    let mut all = t.chunks();
    let mut continued = t.continued;
    loop {
        let chunks: [Option<Chunk>; WIDENED_CHUNKS] = core::array::from_fn(|_| all.next());
        // A sum of no terms is written, too.
        if chunks[0].is_none() && continued {
            return;
        }
        // SAFETY: passed on from the caller; of each chunk so many groups are written.
        unsafe {
            for (at, chunk) in chunks.iter().flatten().enumerate() {
                left.put(t, chunk, at * CHUNK);
            }
            each_part(t, |part| {
                let tile = WidenedTile { t, left: &left, chunks: &chunks, part: &part, continued };
                match (part.rows, part.vectors) {
                    (1, 1) => tile.sums::<1, 1>(),
                    (1, _) => tile.sums::<1, ALL_VECTORS>(),
                    (2, 1) => tile.sums::<2, 1>(),
                    (2, _) => tile.sums::<2, VECTORS>(),
                    (3, 1) => tile.sums::<3, 1>(),
                    (3, _) => tile.sums::<3, VECTORS>(),
                    (_, 1) => tile.sums::<ROWS, 1>(),
                    _ => tile.sums::<ROWS, VECTORS>(),
                }
            });
        }
        continued = true;
    }
}

/// The sums of some chunks of signed rows and unsigned columns.
struct WidenedTile<'a> {
    t: &'a IntegerTile<'a>,
    left: &'a WidenedRows,
    chunks: &'a [Option<Chunk>],
    part: &'a Part,
    continued: bool,
}

impl WidenedTile<'_> {
    /// The sums of `M` rows for `V` vectors of columns.
    ///
    /// # Safety
    /// As [`widened`], with `M` rows inside the tile.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn sums<const M: usize, const V: usize>(&self) {
        let mut acc = [[_mm256_setzero_si256(); V]; M];
        let left: [_; M] = core::array::from_fn(|i| &self.left.0[self.part.row + i]);
        // SAFETY: all columns of a group are readable; rows have been written for the groups.
        unsafe {
            for (at, chunk) in self.chunks.iter().flatten().enumerate() {
                let mut b = chunk.b.wrapping_add(self.part.tile);
                for group in at * CHUNK..at * CHUNK + chunk.groups {
                    // One half of the terms after the other: both would not fit the registers.
                    macro_rules! half {
                        ($odd:literal) => {
                            let columns: [__m256i; V] = core::array::from_fn(|v| {
                                let bytes = _mm256_loadu_si256(b.add(TERMS * LANES * v).cast());
                                terms::<$odd, false>(bytes)
                            });
                            for (row, left) in acc.iter_mut().zip(&left) {
                                let value = _mm256_set1_epi32(left[$odd].get_unchecked(group).assume_init_read());
                                for (sum, column) in row.iter_mut().zip(columns) {
                                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(value, column));
                                }
                            }
                        };
                    }
                    half!(0);
                    half!(1);
                    b = b.wrapping_add(TERMS * self.t.b_step);
                }
            }
            for (i, sums) in acc.into_iter().enumerate() {
                for (v, sums) in sums.into_iter().enumerate() {
                    store(self.t, sums, [self.part.row + i, self.part.column + v * LANES], self.continued);
                }
            }
        }
    }
}

/// Tiles of unsigned rows, of which few are multiplied with a panel of weights before the next one.
///
/// # Safety
/// As [`integer_tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn plain(t: &IntegerTile<'_>) {
    for (tile, column) in (0..t.cols).step_by(INTEGER_COLS).enumerate() {
        for row in (0..t.rows).step_by(PLAIN_ROWS) {
            let part = Part {
                row,
                rows: t.rows - row,
                column,
                vectors: (t.cols - column).div_ceil(LANES),
                tile: tile * t.b_tile,
            };
            // SAFETY: passed on from the caller.
            unsafe {
                match (part.rows, part.vectors) {
                    (1, _) => plain_part::<1, ALL_VECTORS>(t, &part),
                    (_, 1) => plain_part::<PLAIN_ROWS, 1>(t, &part),
                    (_, 2) => plain_part::<PLAIN_ROWS, 2>(t, &part),
                    (_, 3) => plain_part::<PLAIN_ROWS, 3>(t, &part),
                    _ => plain_part::<PLAIN_ROWS, ALL_VECTORS>(t, &part),
                }
            }
        }
    }
}

/// The sums of `M` rows for `V` vectors of columns.
///
/// # Safety
/// As [`plain`], with the rows inside the tile and no more columns.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn plain_part<const M: usize, const V: usize>(t: &IntegerTile<'_>, part: &Part) {
    let mut acc = [[_mm256_setzero_si256(); V]; M];
    // SAFETY: all columns of a group are readable, and A has four bytes for each row.
    unsafe {
        for Chunk { groups, a, a_row, b } in t.chunks() {
            let mut a = a.wrapping_offset(part.row as isize * a_row);
            let mut b = b.wrapping_add(part.tile);
            for _ in 0..groups {
                let left: [[__m256i; 2]; M] = core::array::from_fn(|i| {
                    let group = _mm256_set1_epi32(a.offset(i as isize * a_row).cast::<i32>().read_unaligned());
                    [terms::<0, false>(group), terms::<1, false>(group)]
                });
                for v in 0..V {
                    let bytes = _mm256_loadu_si256(b.add(TERMS * LANES * v).cast());
                    let column = [terms::<0, true>(bytes), terms::<1, true>(bytes)];
                    for (row, left) in acc.iter_mut().zip(left) {
                        let [even, odd] = [0, 1].map(|half| _mm256_madd_epi16(left[half], column[half]));
                        row[v] = _mm256_add_epi32(row[v], _mm256_add_epi32(even, odd));
                    }
                }
                a = a.wrapping_add(TERMS);
                b = b.wrapping_add(TERMS * t.b_step);
            }
        }
        for (i, sums) in acc.into_iter().enumerate() {
            for (v, sums) in sums.into_iter().enumerate() {
                store(t, sums, [part.row + i, part.column + v * LANES], t.continued);
            }
        }
    }
}

/// Adds the sums of a row and the columns from this one on to C, or writes them there.
///
/// # Safety
/// C is writable where the tile lies, and readable if the sums continue.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn store(t: &IntegerTile<'_>, sums: __m256i, [row, column]: [usize; 2], continued: bool) {
    let c = t.c.wrapping_offset(row as isize * t.ldc).wrapping_add(column);
    // SAFETY: by the caller's contract.
    unsafe {
        if column + LANES <= t.cols {
            let c = c.cast::<__m256i>();
            let before = if continued { _mm256_loadu_si256(c) } else { _mm256_setzero_si256() };
            _mm256_storeu_si256(c, _mm256_add_epi32(before, sums));
            return;
        }
        let mut values = [0i32; LANES];
        _mm256_storeu_si256(values.as_mut_ptr().cast(), sums);
        for (j, value) in values.iter().enumerate().take(t.cols.saturating_sub(column)) {
            let c = c.wrapping_add(j);
            let before = if continued { *c } else { 0 };
            *c = before.wrapping_add(*value);
        }
    }
}

/// # Safety
/// As [`super::super::IsaLevel`].
#[target_feature(enable = "avx2")]
pub unsafe fn integer_group(g: &IntegerGroup) {
    // SAFETY: the columns exist, and so does room for them.
    unsafe {
        let mut done = 0;
        while let Some(columns) = columns(g, done) {
            for (v, columns) in columns.into_iter().enumerate() {
                _mm_storeu_si128(g.to.add(TERMS * done + size_of::<__m128i>() * v).cast(), columns);
            }
            done += COPIED;
        }
        copy_group(g, done);
    }
}

/// The terms of sixteen columns from `first` on, four columns in each vector, if they can be read together.
///
/// # Safety
/// As [`super::super::IsaLevel`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn columns(g: &IntegerGroup, first: usize) -> Option<[__m128i; 4]> {
    if g.terms < TERMS {
        return None;
    }
    // SAFETY: sixteen columns are read; with a step of 2 also one byte after them, where the next column makes it readable.
    unsafe {
        let row = |t: usize| g.rows[t].wrapping_offset(first as isize * g.step).cast::<__m128i>();
        let rows: [__m128i; TERMS] = match g.step {
            1 if first + COPIED <= g.cols => core::array::from_fn(|t| _mm_loadu_si128(row(t))),
            2 if first + COPIED < g.cols => core::array::from_fn(|t| {
                let row = row(t);
                let even = _mm_set1_epi16(0xff);
                let half = |i: usize| _mm_and_si128(_mm_loadu_si128(row.add(i)), even);
                _mm_packus_epi16(half(0), half(1))
            }),
            _ => return None,
        };
        Some(interleaved(rows))
    }
}
