//! Products with few columns: rows of A are the lanes, so that vectors are full, and columns of B their factors. Each
//! element of C is the same chain of multiply-adds as in other products.

use core::ops::Range;

use tensorc_abi::BatchedGemm;

use super::{GemmTask, GemmTasks, batch_offset};
use crate::epilogue::EpilogueCall;
use crate::isa_levels::{Ahead, LANES, NR, Panel, Tile, terms_before_line};

/// Most columns. With more, vectors that are not full cost less than turning A.
pub(super) const FEW_COLUMNS: usize = 8;
/// Fewest rows: a vector of every width.
const FEWEST_ROWS: u64 = NR as u64;
/// Terms turned at a time, which stay in the first-level cache with the rows they come from.
const TERMS: usize = 128;
/// Columns by which a product of few is priced: turning A takes as long as several.
pub(super) const PRICED_COLUMNS: usize = 8;

/// Whether a product is computed like this. Sums of one column would wait for each other.
pub(super) fn applies(call: &BatchedGemm) -> bool {
    (2..=FEW_COLUMNS as u64).contains(&call.n) && call.m >= FEWEST_ROWS
}

/// Elements of working memory: terms of a panel of rows, and their sums.
pub(super) const ELEMENTS: usize = NR * (TERMS + FEW_COLUMNS);

impl GemmTask<'_> {
    /// A block of rows of C, with [`ELEMENTS`] at `scratch`.
    ///
    /// # Safety
    /// As for [`super::gemm_run`], with the block inside C.
    pub(super) unsafe fn run_few_columns(&self, batch: [u64; 3], row_block: usize, scratch: *mut f32) {
        let GemmTasks { rows, row_blocks, n, .. } = *self.schedule;
        let panels = row_blocks.range(row_block);
        for p in panels.clone() {
            // SAFETY: passed on from the caller.
            unsafe { self.panel_of_rows(batch, rows.range(p), scratch) };
        }
        // SAFETY: the rows are finished.
        unsafe { EpilogueCall::finish(self.epilogue, batch, rows.start(panels.start)..rows.start(panels.end), 0..n) };
    }

    /// # Safety
    /// As for [`GemmTask::run_few_columns`], with a panel of at most [`NR`] rows.
    unsafe fn panel_of_rows(&self, batch: [u64; 3], rows: Range<usize>, scratch: *mut f32) {
        let (call, n, depth) = (self.call, self.schedule.n, self.schedule.k);
        let (a, a_row, a_col) = match self.computed {
            None => {
                let a = self.a.wrapping_offset(batch_offset(&call.a, batch));
                let row = call.a.row_stride as isize;
                (a.wrapping_offset(rows.start as isize * row), row, call.a.col_stride as isize)
            }
            Some((computed, to)) => {
                // SAFETY: the memory holds a panel of rows.
                unsafe { computed.block(batch, rows.clone(), 0..depth, depth, to) };
                (to.cast_const(), depth as isize, 1)
            }
        };
        let (b, b_row, b_col) = match call.b_packed {
            true => (self.b, NR as isize, 1),
            false => {
                let b = self.b.wrapping_offset(batch_offset(&call.b, batch));
                (b, call.b.row_stride as isize, call.b.col_stride as isize)
            }
        };
        let (turned, sums) = (scratch.wrapping_add(NR * FEW_COLUMNS), scratch);
        let lead = if a_col == 1 { terms_before_line(a, a_row) } else { 0 };
        let mut k = 0;
        while k == 0 || k < depth {
            let terms = if k == 0 && lead > 0 { TERMS - LANES + lead } else { TERMS }.min(depth - k);
            let src = a.wrapping_offset(k as isize * a_col);
            let panel = Panel {
                src,
                k_stride: a_col,
                j_stride: a_row,
                k: terms,
                width: rows.len(),
                dst: turned,
                ld: NR as isize,
                pad: NR,
            };
            let tile = Tile {
                k: terms,
                a: b.wrapping_offset(k as isize * b_row),
                a_row: b_col,
                a_step: b_row,
                mr: n,
                b: turned,
                ldb: NR,
                nr: NR,
                c: sums,
                ldc: NR as isize,
                continued: k > 0,
                padded: true,
                ahead: Ahead::NOTHING,
            };
            // SAFETY: the rows, columns and terms are inside the operands, and scratch holds what is written.
            unsafe {
                self.level.panel(&panel);
                self.level.tile(&tile);
            }
            k += terms.max(1);
        }
        let c = self.c.wrapping_offset(batch_offset(&call.c, batch));
        for (i, row) in rows.enumerate() {
            for j in 0..n {
                // SAFETY: the element is the caller's, and scratch holds its sum.
                unsafe { *c.wrapping_offset(row as isize * call.c.row_stride as isize).add(j) = *sums.add(j * NR + i) };
            }
        }
    }
}
