//! The blocked matrix product shared by GEMM and convolution.
//!
//! The loop nest is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix
//! Multiplication" (ACM TOMS 34, 2008): blocks of k outermost, then panels of 32 columns of B,
//! then panels of at most 12 rows of A.
//! Accumulators are reloaded from C between k blocks, so an element of C is always one chain of
//! fused multiply-adds over ascending k, whatever the blocking.

use core::ops::Range;

use crate::isa_levels::{Ahead, IsaLevel, LANES, MR, NR, Tile};

/// Most terms of k in one block: a panel of B of this depth and the panels of A stream from the second-level
/// cache, which takes a fraction of its speed.
pub(crate) const KC: usize = 576;

/// Elements of C in one epilogue call, about.
const EPILOGUE_ELEMENTS: usize = 24 * 1024;

/// Bytes of a line of the cache.
pub(crate) const LINE: usize = 64;

/// The next number of elements that fill whole cache lines: panels behind them in scratch are read a line at a
/// time.
pub(crate) fn whole_lines(elements: usize) -> usize {
    elements.next_multiple_of(LANES)
}

/// Tasks for so many times the work that is worth one: a power of two, which threads share evenly, of at most `most`.
pub(crate) fn tasks_worth(work: f64, most: usize) -> usize {
    (work as usize).clamp(1, most).next_power_of_two()
}

/// `total` items cut into `parts` runs whose lengths differ by at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EvenSplit {
    total: usize,
    parts: usize,
}

impl EvenSplit {
    /// The fewest parts of at most `most` items.
    pub(crate) fn by(total: usize, most: usize) -> Self {
        EvenSplit::into(total, total.div_ceil(most))
    }

    /// At least one part, and none empty unless `total` is zero.
    pub(crate) fn into(total: usize, parts: usize) -> Self {
        EvenSplit { total, parts: parts.clamp(1, total.max(1)) }
    }

    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// First item of part `i`; the total for `i == parts`.
    pub(crate) fn start(&self, i: usize) -> usize {
        i * self.total / self.parts
    }

    pub(crate) fn range(&self, i: usize) -> Range<usize> {
        self.start(i)..self.start(i + 1)
    }

    /// Length of the longest part.
    pub(crate) fn longest(&self) -> usize {
        self.total.div_ceil(self.parts)
    }
}

/// A rectangle of C and the division of its rows and of k.
pub(crate) struct Rect {
    /// All rows of the matrix cut into panels of A.
    pub rows: EvenSplit,
    /// The panels of this rectangle.
    pub panels: Range<usize>,
    pub cols: Range<usize>,
    /// Units of k cut into blocks.
    pub depth: EvenSplit,
    /// Terms of k in one unit.
    pub unit: usize,
}

/// Rows of A for one k block, counted from the first one of a rectangle.
pub(crate) enum Left {
    /// Panels of `mr` rows, each starting at `base[row·stride + skip·mr]`.
    Packed { base: *const f32, stride: usize, skip: usize },
    /// Rows where they lie: term k of one at `base[row·row_stride + k·step]`.
    InPlace { base: *const f32, row_stride: isize, step: isize },
}

impl Left {
    /// A panel of rows as [`Tile`] reads it: its address, and the distances between rows and between terms.
    fn panel(&self, row: usize, mr: usize) -> (*const f32, isize, isize) {
        match *self {
            Left::Packed { base, stride, skip } => (base.wrapping_add(row * stride + skip * mr), 1, mr as isize),
            Left::InPlace { base, row_stride, step } => {
                (base.wrapping_offset(row as isize * row_stride), row_stride, step)
            }
        }
    }
}

/// A panel of at most NR columns of B for one k block, as in [`Tile`].
pub(crate) struct Right {
    pub base: *const f32,
    pub ld: usize,
    pub padded: bool,
}

/// Where the packed operands of a rectangle come from.
pub(crate) trait PackedOperands {
    /// Rows of A, for the terms `k`.
    ///
    /// # Safety
    /// The operands the implementer was made from are valid.
    unsafe fn left(&mut self, rect: &Rect, k: Range<usize>) -> Left;

    /// Columns `cols` (at most NR, starting at a multiple of NR) of B, for the terms `k`. The
    /// result is valid until the next call.
    ///
    /// # Safety
    /// As for `left`.
    unsafe fn right(&mut self, k: Range<usize>, cols: Range<usize>) -> Right;

    /// What the tile of row panel `p` and the columns up to `cols.end` should fetch into the cache for later
    /// ones, given the panel's address.
    fn ahead(&self, rect: &Rect, k: &Range<usize>, cols: &Range<usize>, p: usize, a: *const f32) -> Ahead;
}

/// The matrix C: element (i, j) at `base[i·ld + j]`, rows and columns counted from its origin.
#[derive(Clone, Copy)]
pub(crate) struct OutputMatrix {
    pub base: *mut f32,
    pub ld: isize,
}

/// Computes the rectangle and calls `finish(rows, cols)` once for each of the blocks it is
/// finished in. With k = 0 the rectangle is zero.
///
/// # Safety
/// The ISA level is available, the operands cover the rectangle, and C is writable there.
pub(crate) unsafe fn multiply(
    level: IsaLevel,
    rect: &Rect,
    operands: &mut impl PackedOperands,
    c: OutputMatrix,
    finish: &mut impl FnMut(Range<usize>, Range<usize>),
) {
    let first_row = rect.rows.start(rect.panels.start);
    let rows = first_row..rect.rows.start(rect.panels.end);
    let group = NR * (EPILOGUE_ELEMENTS / (NR * rows.len().max(1))).max(2);
    let last_block = rect.depth.parts() - 1;
    for block in 0..=last_block {
        let units = rect.depth.range(block);
        let k = units.start * rect.unit..units.end * rect.unit;
        // SAFETY: the operands are valid by the caller's contract.
        let left = unsafe { operands.left(rect, k.clone()) };
        for g0 in rect.cols.clone().step_by(group) {
            let g1 = rect.cols.end.min(g0 + group);
            for j0 in (g0..g1).step_by(NR) {
                let cols = j0..g1.min(j0 + NR);
                // SAFETY: as above.
                let right = unsafe { operands.right(k.clone(), cols.clone()) };
                for p in rect.panels.clone() {
                    let rows = rect.rows.range(p);
                    let (a, a_row, a_step) = left.panel(rows.start - first_row, rows.len());
                    let tile = Tile {
                        k: k.len(),
                        a,
                        a_row,
                        a_step,
                        ahead: operands.ahead(rect, &k, &cols, p, a),
                        mr: rows.len(),
                        b: right.base,
                        ldb: right.ld,
                        nr: cols.len(),
                        c: c.base.wrapping_offset(rows.start as isize * c.ld).wrapping_add(j0),
                        ldc: c.ld,
                        continued: block > 0,
                        padded: right.padded,
                    };
                    // SAFETY: the panels hold these rows, columns and terms; C is the caller's.
                    unsafe { level.tile(&tile) };
                }
            }
            if block == last_block {
                finish(rows.clone(), g0..g1);
            }
        }
    }
}

/// Packed panels of A take at most this many rows.
pub(crate) fn row_panels(m: usize) -> EvenSplit {
    EvenSplit::by(m, MR)
}

/// Whether contiguous rows of B are better read where they lie than copied into panels, for `m` rows of A.
///
/// A copy costs a few cycles for each row of a panel, and each panel of A that is multiplied with it takes a
/// dozen. Without it the rows of a panel are far apart: they fall into few sets of the caches and on many pages,
/// and no prefetcher follows them.
pub(crate) fn reads_in_place(m: usize) -> bool {
    m <= 2 * MR
}
