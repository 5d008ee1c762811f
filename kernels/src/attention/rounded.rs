//! Attention whose operands are rounded to bf16: queries, keys, weights and values are pairs of terms in the places where
//! they would be numbers of f32.

use core::ops::Range;

use super::{AttentionTask, COLS, ROWS};
use crate::blocking::row_panels;
use crate::isa_levels::{NR, PAIR, RoundedPanel, RoundedRow, RoundedTile};

impl<const ROUNDED: bool> AttentionTask<'_, ROUNDED> {
    /// Words of a row of queries, which lie [`super::AttentionTasks::query_stride`] apart.
    fn pairs(&self) -> usize {
        self.schedule.depth.div_ceil(PAIR)
    }

    /// Copies the queries of a tile, scaled and rounded.
    ///
    /// # Safety
    /// As for [`AttentionTask::take_queries`].
    pub(super) unsafe fn round_queries(&self, tile: Range<usize>) {
        let (call, s) = (self.call, self.schedule);
        for row in tile {
            let from = (self.queries.start + row) as isize * call.q.row_stride as isize;
            let rounded = RoundedRow {
                from: self.q.wrapping_offset(from),
                step: call.q.col_stride as isize,
                terms: s.depth,
                scale: f32::from_bits(call.scale),
                to: self.memory.queries.wrapping_add(row * s.query_stride()).cast(),
            };
            // SAFETY: the rows are inside Q, and scratch holds them.
            unsafe { self.products.level().rounded_row(&rounded) };
        }
    }

    /// Packs a block of keys and values, rounded.
    ///
    /// # Safety
    /// As for [`AttentionTask::take_keys`].
    pub(super) unsafe fn round_keys(&self, keys: Range<usize>) {
        let (call, s) = (self.call, self.schedule);
        // SAFETY: the panels are inside the operands, and scratch holds a block.
        unsafe {
            for j in keys.clone().step_by(NR) {
                let from = self.k.wrapping_offset(j as isize * call.k.col_stride as isize);
                let steps = [call.k.row_stride as isize, call.k.col_stride as isize];
                let to = self.memory.keys.add((j - keys.start) / NR * NR * self.pairs());
                let columns = NR.min(keys.end - j);
                self.products.level().rounded_panel(&RoundedPanel {
                    from,
                    steps,
                    terms: s.depth,
                    columns,
                    to: to.cast(),
                });
            }
            let rows = self.v.wrapping_offset(keys.start as isize * call.v.row_stride as isize);
            for c in (0..s.size).step_by(NR) {
                let from = rows.wrapping_offset(c as isize * call.v.col_stride as isize);
                let steps = [call.v.row_stride as isize, call.v.col_stride as isize];
                let to = self.memory.values.add(c * keys.len().div_ceil(PAIR));
                let columns = NR.min(s.size - c);
                self.products.level().rounded_panel(&RoundedPanel {
                    from,
                    steps,
                    terms: keys.len(),
                    columns,
                    to: to.cast(),
                });
            }
        }
    }

    /// Computes a tile of scores.
    ///
    /// # Safety
    /// As for [`AttentionTask::score`].
    pub(super) unsafe fn score_rounded(&self, rows: Range<usize>, keys: &Range<usize>) {
        let (s, m) = (self.schedule, &self.memory);
        let panels = row_panels(rows.len());
        for j in (0..keys.len()).step_by(NR) {
            for (panel, together) in self.products.rows_of(panels, 0..panels.parts()) {
                let tile = RoundedTile {
                    pairs: self.pairs(),
                    a: m.queries.wrapping_add((rows.start + panel.start) * s.query_stride()).cast_const().cast(),
                    a_row: s.query_stride(),
                    rows: together,
                    b: m.keys.wrapping_add(j * self.pairs()).cast_const().cast(),
                    b_tile: 0,
                    cols: NR.min(keys.len() - j),
                    c: m.tile.wrapping_add(panel.start * COLS + j),
                    ldc: COLS as isize,
                    continued: false,
                    ahead: (core::ptr::null(), 0),
                };
                // SAFETY: packed queries and keys hold the tile's rows and columns.
                unsafe { self.products.rounded_tile(&tile, panel.len() - together) };
            }
        }
    }

    /// Adds the values of a block, weighted, to the sums.
    ///
    /// # Safety
    /// As for [`AttentionTask::accumulate`].
    pub(super) unsafe fn accumulate_rounded(&self, rows: Range<usize>, keys: &Range<usize>) {
        let (s, m) = (self.schedule, &self.memory);
        let pairs = keys.len().div_ceil(PAIR);
        for row in 0..rows.len() {
            let from = m.tile.wrapping_add(row * COLS).cast_const();
            let to = m.weights.wrapping_add(row * COLS / PAIR);
            // SAFETY: rows of the tile have the weights of the keys, and scratch holds them rounded.
            unsafe {
                self.products.level().rounded_row(&RoundedRow { from, step: 1, terms: keys.len(), scale: 1.0, to })
            };
        }
        let panels = row_panels(rows.len());
        for (panel, together) in self.products.rows_of(panels, 0..panels.parts()) {
            // SAFETY: the step has the weight of each row.
            if panel.clone().all(|i| unsafe { *m.step.add(ROWS + i) } == 0.0) {
                continue;
            }
            for c in (0..s.size).step_by(NR) {
                let tile = RoundedTile {
                    pairs,
                    a: m.weights.wrapping_add(panel.start * COLS / PAIR).cast_const(),
                    a_row: COLS / PAIR,
                    rows: together,
                    b: m.values.wrapping_add(c * pairs).cast_const().cast(),
                    b_tile: 0,
                    cols: NR.min(s.size - c),
                    c: m.sums.wrapping_add((rows.start + panel.start) * s.size + c),
                    ldc: s.size as isize,
                    continued: true,
                    ahead: (core::ptr::null(), 0),
                };
                // SAFETY: the weights and packed values hold the rows and columns.
                unsafe { self.products.rounded_tile(&tile, panel.len() - together) };
            }
        }
    }
}
