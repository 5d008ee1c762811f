//! Tiles of products of bytes and of bf16, by tile registers where the ISA level has them, else by its vectors.

use core::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::{
    CHUNK, PAIR, TERMS,
    amx::{TileOp, TileRegisters},
};
use super::{INTEGER_COLS, IntegerTile, IsaLevel, NR, NextRows, RegisterTile, RoundedTile, TILE_ROWS};
use crate::blocking::EvenSplit;
#[cfg(target_arch = "x86_64")]
use crate::blocking::LINE;
#[cfg(target_arch = "x86_64")]
use crate::isa::Isa;

/// What a thread multiplies with. Tile registers are released when it is dropped.
pub(crate) struct Products {
    level: IsaLevel,
    #[cfg(target_arch = "x86_64")]
    registers: Option<TileRegisters>,
}

impl Products {
    pub fn new(level: IsaLevel) -> Products {
        Products {
            level,
            #[cfg(target_arch = "x86_64")]
            registers: (level.isa() == Isa::Amx).then(TileRegisters::new),
        }
    }

    pub fn level(&self) -> IsaLevel {
        self.level
    }

    /// Panels of rows that are best multiplied together.
    pub fn panels_together(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.registers.is_some() {
            return 2;
        }
        1
    }

    /// Rows of some panels, in the parts that are multiplied together, each with what is multiplied first.
    pub fn rows_of(&self, rows: EvenSplit, panels: Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
        let (first, end) = (rows.start(panels.start), rows.start(panels.end));
        let tiles = self.panels_together() > 1;
        let parts = if tiles { (end - first).div_ceil(2 * TILE_ROWS) } else { panels.len() };
        (0..parts).map(move |part| {
            if !tiles {
                let rows = rows.range(panels.start + part);
                return (rows.clone(), rows.len());
            }
            let first = first + part * 2 * TILE_ROWS;
            let rows = first..end.min(first + 2 * TILE_ROWS);
            (rows.clone(), rows.len().min(TILE_ROWS))
        })
    }

    /// Tiles, and the rows behind them.
    ///
    /// # Safety
    /// As [`IsaLevel`].
    pub unsafe fn integer_tiles(&self, t: &IntegerTile<'_>, next: Option<NextRows>) {
        #[cfg(target_arch = "x86_64")]
        if let Some(registers) = &self.registers {
            // SAFETY: passed on from the caller.
            return unsafe { registers.multiply(TileOp::Bytes, t, next) };
        }
        // What widens rows does it once for all tiles.
        let together = if self.level.widens() { t.cols.max(1) } else { INTEGER_COLS };
        for (tile, column) in (0..t.cols).step_by(together).enumerate() {
            let cols = together.min(t.cols - column);
            let (b, c) = (t.b.wrapping_add(tile * t.b_tile), t.c.wrapping_add(column));
            let none = (core::ptr::null(), 0);
            let ahead = if tile == 0 { t.ahead } else { none };
            // SAFETY: passed on from the caller.
            unsafe {
                self.level.integer_tile(&IntegerTile { b, c, cols, ahead, ..*t });
                if let Some(NextRows { a, a_chunk, rows }) = next {
                    let c = c.wrapping_offset(t.rows as isize * t.ldc);
                    self.level.integer_tile(&IntegerTile { a, a_chunk, rows, b, c, cols, ahead: none, ..*t });
                }
            }
        }
    }

    /// Tiles, and so many rows behind them if there are tile registers.
    ///
    /// # Safety
    /// As [`IsaLevel`].
    pub unsafe fn rounded_tile(&self, t: &RoundedTile, next: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(registers) = &self.registers {
            let row = (t.a_row * PAIR * size_of::<u16>()) as isize;
            let tile = IntegerTile {
                runs: &[0],
                groups: t.pairs,
                a: t.a.cast(),
                a_row: row,
                a_rest_row: row,
                a_chunk: CHUNK * TERMS,
                a_run: 0,
                rows: t.rows,
                filled: false,
                b: t.b.cast(),
                b_step: NR,
                b_tile: t.b_tile * TERMS,
                cols: t.cols,
                c: t.c.cast(),
                ldc: t.ldc,
                continued: t.continued,
                ahead: (t.ahead.0.cast(), t.ahead.1 * NR * TERMS / LINE),
                left_signed: false,
                narrowed: None,
            };
            let a = t.a.wrapping_add(t.rows * t.a_row).cast();
            let next = (next > 0).then_some(NextRows { a, a_chunk: CHUNK * TERMS, rows: next });
            // SAFETY: passed on from the caller.
            return unsafe { registers.multiply(TileOp::Rounded, &tile, next) };
        }
        debug_assert!(next == 0 && t.cols <= NR, "a tile");
        // SAFETY: passed on from the caller.
        unsafe { self.level.rounded_tile(t) }
    }

    /// # Safety
    /// As [`IsaLevel`].
    pub unsafe fn rounded_register_tile(&self, t: &RegisterTile) {
        #[cfg(target_arch = "x86_64")]
        if let Some(registers) = &self.registers {
            // SAFETY: passed on from the caller.
            return unsafe { registers.multiply_pixels(t) };
        }
        // SAFETY: passed on from the caller.
        unsafe { self.level.rounded_register_tile(t) }
    }
}
