//! Batched matrix products of bytes with exact sums in i32. Rows of A whose terms lie side by side are read where they
//! lie; columns of B lie in panels of four terms side by side: packed ahead of time, or copied.
//!
//! Where products of weights can be added up in 16 bits, a panel is narrowed before many rows are multiplied with it
//! ([`NarrowedRow`]).

use core::ops::Range;

use tensorc_abi::{BatchedGemm, GemmElements};

use crate::blocking::{EvenSplit, LINE};
use crate::epilogue::{EpilogueCall, SumBlock};
use crate::gemm::{batch_index, batch_offset};
use crate::grouped::GroupedTasks;
use crate::isa::{Isa, isa};
use crate::isa_levels::{
    CHUNK, INTEGER_COLS, IntegerTile, IsaLevel, MR, NarrowedRow, NextRows, Products, Sums16, TERMS,
};
use crate::weights::groups_of_bytes;

/// Most panels of B that are multiplied in turn: what is read of a row of B are whole lines of the cache.
const PANELS: usize = SumBlock::COLS / INTEGER_COLS;
/// Bytes of panels that are copied together, if one has no more: they stay in the second-level cache.
const COPIED_BYTES: usize = 256 * 1024;
/// Bytes of a group of a panel.
const GROUP: usize = INTEGER_COLS * TERMS;
/// Groups of terms that a tile adds up at a time: what it reads of a panel stays in the first-level cache.
const DEPTH: usize = 128;
/// Fewest rows that are worth narrowing a panel.
const NARROWED_ROWS: usize = 2 * MR;
/// Of how many weights one may have an excess, which is multiplied by itself, in sums of two weights and of four.
const EXCESS_SHARE: usize = 128;
const QUADS_SHARE: usize = 512;
/// How many times the terms of a product of f32 are computed in the same time.
const SPEED: f64 = 4.0;

/// Whether rows of A are read where they lie.
fn left_in_place(call: &BatchedGemm) -> bool {
    call.a.col_stride == 1 && (call.k as usize).is_multiple_of(TERMS)
}

fn tasks_of(call: &BatchedGemm) -> GroupedTasks {
    GroupedTasks::new(call, TERMS, SPEED)
}

/// The parts of scratch.
struct IntegerScratch {
    /// Panels that are copied or narrowed together.
    panels: usize,
    /// Bytes of a copied panel, and of what is listed of a narrowed one.
    panel: usize,
    listed: usize,
    /// Bytes of the rows of a task.
    rows: usize,
}

impl IntegerScratch {
    fn new(call: &BatchedGemm, schedule: &GroupedTasks) -> IntegerScratch {
        let rows = if left_in_place(call) { 0 } else { schedule.row_blocks.longest() * MR * schedule.groups * TERMS };
        let (panel, narrows) = (schedule.groups * GROUP, narrows(call));
        let panels = (COPIED_BYTES / panel.max(1)).clamp(1, PANELS);
        IntegerScratch {
            panels,
            panel: if narrows || !call.b_packed { panel } else { 0 },
            listed: if narrows { room(schedule.groups) * size_of::<[i32; 2]>() } else { 0 },
            rows: rows.next_multiple_of(LINE),
        }
    }

    fn bytes(&self) -> usize {
        self.panels * self.stride() + self.rows
    }

    /// Bytes from a panel to the next.
    fn stride(&self) -> usize {
        self.panel + self.listed.next_multiple_of(LINE)
    }

    /// The first bytes of a copied panel, and of its list.
    fn panel(&self, scratch: *mut u8, at: usize) -> [*mut u8; 2] {
        let panel = scratch.wrapping_add(at * self.stride());
        [panel, panel.wrapping_add(self.panel)]
    }
}

/// Whether panels of weights may be narrowed. What a run computes has as many large bytes as small ones.
fn narrows(call: &BatchedGemm) -> bool {
    call.b_packed && call.elements == GemmElements::U8I8 && call.m as usize >= NARROWED_ROWS
}

/// Most weights of a panel that have an excess.
fn room(groups: usize) -> usize {
    groups * GROUP / EXCESS_SHARE
}

/// Number of tasks of a product of bytes; they may run in any order, on any threads.
pub fn integer_tasks(call: &BatchedGemm) -> u64 {
    tasks_of(call).tasks() as u64
}

/// Bytes of scratch one thread needs for [`integer_run`].
pub fn integer_scratch(call: &BatchedGemm) -> usize {
    IntegerScratch::new(call, &tasks_of(call)).bytes()
}

/// Executes the tasks `tasks` of a product of bytes, and its epilogue on every block they finish.
///
/// # Safety
/// As for [`crate::gemm_run`], of bytes and a result of i32, with operands in memory; if the epilogue's sums lie
/// [apart](EpilogueCall::apart), nothing is written to `c`.
pub unsafe fn integer_run(
    call: &BatchedGemm,
    operands: [*const u8; 2],
    c: *mut i32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    // SAFETY: passed on from the caller.
    unsafe { integer_run_with(isa(), call, operands, c, epilogue, tasks, scratch) }
}

/// [`integer_run`] with the kernels of one ISA level.
///
/// # Safety
/// As for [`integer_run`].
///
/// # Panics
/// If the ISA level is not available.
pub unsafe fn integer_run_with(
    isa: Isa,
    call: &BatchedGemm,
    [a, b]: [*const u8; 2],
    c: *mut i32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    let products = Products::new(IsaLevel::new(isa));
    let schedule = tasks_of(call);
    let layout = IntegerScratch::new(call, &schedule);
    let rows = scratch.wrapping_add(layout.bytes() - layout.rows);
    let in_place = left_in_place(call);
    let (row_blocks, col_parts) = (schedule.row_blocks.parts(), schedule.panels.parts());
    // SAFETY: passed on from the caller.
    let mut block = unsafe { SumBlock::new(epilogue) };
    let mut copied = None;
    for task in tasks.start as usize..tasks.end as usize {
        let at = task / (row_blocks * col_parts);
        let batch = batch_index(call.batch, at);
        let row_block = task / col_parts % row_blocks;
        let a = a.wrapping_offset(batch_offset(&call.a, batch));
        let b = if call.b_packed { b } else { b.wrapping_offset(batch_offset(&call.b, batch)) };
        let c = c.wrapping_offset(batch_offset(&call.c, batch));
        let product = IntegerProduct {
            products: &products,
            call,
            schedule: &schedule,
            layout: &layout,
            batch,
            a,
            b,
            c,
            scratch,
            rows,
        };
        let panels = schedule.row_blocks.range(row_block);
        // SAFETY: the rows and columns are inside the call, and scratch is as large as `integer_scratch` says.
        unsafe {
            if !in_place && copied != Some((at, row_block)) {
                product.copy_rows(schedule.rows.start(panels.start)..schedule.rows.start(panels.end));
                copied = Some((at, row_block));
            }
            let columns = schedule.panels.range(task % col_parts);
            for first in columns.clone().step_by(layout.panels) {
                product.columns(panels.clone(), first..columns.end.min(first + layout.panels), &mut block);
            }
        }
    }
}

/// A product of a batch.
struct IntegerProduct<'a> {
    products: &'a Products,
    call: &'a BatchedGemm,
    schedule: &'a GroupedTasks,
    layout: &'a IntegerScratch,
    batch: [u64; 3],
    a: *const u8,
    b: *const u8,
    c: *mut i32,
    scratch: *mut u8,
    /// Copied rows of A.
    rows: *mut u8,
}

/// A panel of B as it is multiplied.
#[derive(Clone, Copy)]
struct ColumnPanel {
    groups: *const u8,
    /// Bytes to the next one.
    bytes: usize,
    /// What it is narrowed for, and what its weights had before as (term, column and value), if it is.
    excess: Option<(Sums16, *const [i32; 2], usize)>,
}

impl IntegerProduct<'_> {
    /// Bytes of a copied row of A.
    fn stride(&self) -> usize {
        self.schedule.groups * TERMS
    }

    /// Copies rows of A with their terms side by side, and zeros up to whole groups.
    ///
    /// # Safety
    /// The rows are inside A, and scratch holds them.
    unsafe fn copy_rows(&self, rows: Range<usize>) {
        let [row, step] = [self.call.a.row_stride, self.call.a.col_stride].map(|stride| stride as isize);
        let k = self.call.k as usize;
        for (at, i) in rows.enumerate() {
            // SAFETY: by the caller's contract.
            unsafe {
                let to = core::slice::from_raw_parts_mut(self.rows.add(at * self.stride()), self.stride());
                let from = self.a.wrapping_offset(i as isize * row);
                to[k..].fill(0);
                for (term, to) in to[..k].iter_mut().enumerate() {
                    *to = *from.wrapping_offset(term as isize * step);
                }
            }
        }
    }

    /// Computes some row panels of the columns of a few panels, and applies the epilogue.
    ///
    /// # Safety
    /// They are inside the call, and the rows have been copied unless they are read in place.
    unsafe fn columns(&self, row_panels: Range<usize>, panels: Range<usize>, block: &mut SumBlock) {
        let (call, schedule) = (self.call, self.schedule);
        let cols = panels.start * INTEGER_COLS..(call.n as usize).min(panels.end * INTEGER_COLS);
        let first = schedule.rows.start(row_panels.start);
        let (a, a_row) = match left_in_place(call) {
            true => (self.a.wrapping_offset(first as isize * call.a.row_stride as isize), call.a.row_stride as isize),
            false => (self.rows.cast_const(), self.stride() as isize),
        };
        let many = schedule.rows.start(row_panels.end) - first >= NARROWED_ROWS;
        let mut memory = [ColumnPanel { groups: self.b, bytes: 0, excess: None }; PANELS];
        // SAFETY: the panels are inside B, scratch has room for them, and the result is writable.
        unsafe {
            for (at, panel) in panels.enumerate() {
                memory[at] = self.panel(panel, at, many);
            }
            let prepared = &memory[..cols.len().div_ceil(INTEGER_COLS)];
            let turns = || self.products.rows_of(schedule.rows, row_panels.clone()).enumerate();
            // The next panels are fetched in parts.
            let lines = if call.b_packed { prepared.len() * schedule.groups * GROUP / LINE } else { 0 };
            let shares = EvenSplit::into(lines, turns().count());
            for (turn, (rows, together)) in turns() {
                let share = shares.range(turn);
                let next = prepared[0].groups.wrapping_add((lines + share.start) * LINE);
                let a = a.wrapping_offset((rows.start - first) as isize * a_row);
                let ldc = call.c.row_stride as isize;
                let c = self.c.wrapping_offset(rows.start as isize * ldc).wrapping_add(cols.start);
                let (c, ldc) = block.place(c, ldc);
                // Panels that are not narrowed are multiplied together.
                let count = if self.products.level().widens() { 1 } else { prepared.len() };
                for (at, panel) in prepared.iter().enumerate().step_by(count) {
                    let columns = at * INTEGER_COLS..cols.len().min((at + count) * INTEGER_COLS);
                    if !columns.is_empty() {
                        let c = (c.wrapping_add(columns.start), ldc);
                        self.tile(*panel, (a, a_row), [rows.len(), together], c, columns.len(), (next, share.len()));
                    }
                }
                block.finish(self.batch, rows, cols.clone());
            }
        }
    }

    /// A panel: where it is packed, copied, or narrowed for many rows if that is of use and little is left.
    ///
    /// # Safety
    /// The panel is inside B, and scratch has room for it at this position.
    unsafe fn panel(&self, panel: usize, at: usize, many: bool) -> ColumnPanel {
        let groups = self.schedule.groups;
        let [to, list] = self.layout.panel(self.scratch, at);
        if !self.call.b_packed {
            let (column, k) = (panel * INTEGER_COLS, self.call.k as usize);
            let [row, step] = [self.call.b.row_stride, self.call.b.col_stride].map(|stride| stride as isize);
            let from = self.b.wrapping_offset(column as isize * step);
            let cols = INTEGER_COLS.min(self.call.n as usize - column);
            // SAFETY: by the caller's contract.
            unsafe { groups_of_bytes(self.products.level(), from, [row, step], [k, cols], to) };
            return ColumnPanel { groups: to, bytes: self.layout.stride(), excess: None };
        }
        let packed = self.b.wrapping_add(panel * groups * GROUP);
        let plain = ColumnPanel { groups: packed, bytes: groups * GROUP, excess: None };
        if !(many && narrows(self.call) && self.products.level().widens()) {
            return plain;
        }
        let excess = list.cast::<[i32; 2]>();
        let row = NarrowedRow {
            from: packed.cast(),
            terms: groups * GROUP,
            sums: Sums16::Quads,
            apart: GROUP,
            to: to.cast(),
            excess,
            room: room(groups),
            found: core::ptr::null_mut(),
        };
        // SAFETY: as above.
        unsafe {
            let shares = [(Sums16::Quads, QUADS_SHARE), (Sums16::Pairs, EXCESS_SHARE)];
            let Some((sums, found)) = self.products.level().narrowed(row, shares) else { return plain };
            for [place, value] in core::slice::from_raw_parts_mut(excess, found) {
                let (at, column) = (*place as usize / GROUP * TERMS + *place as usize % TERMS, *place as usize % GROUP);
                (*place, *value) = (at as i32, (column / TERMS) as i32 | *value << 8);
            }
            ColumnPanel { groups: to, excess: Some((sums, excess, found)), ..plain }
        }
    }

    /// The sums of some rows of A, which begin at `a`, so many of them together, for `cols` columns of a panel and those
    /// behind it, while fetching some lines for later ones.
    ///
    /// # Safety
    /// The rows are readable, and the sums writable.
    unsafe fn tile(
        &self,
        panel: ColumnPanel,
        (a, a_row): (*const u8, isize),
        [rows, together]: [usize; 2],
        (c, ldc): (*mut i32, isize),
        cols: usize,
        (next, lines): (*const u8, usize),
    ) {
        let depth = EvenSplit::by(self.schedule.groups.div_ceil(CHUNK), DEPTH / CHUNK);
        let shares = EvenSplit::into(lines, depth.parts());
        for (chunks, share) in (0..depth.parts()).map(|part| (depth.range(part), shares.range(part))) {
            let groups = chunks.start * CHUNK..self.schedule.groups.min(chunks.end * CHUNK);
            let tile = IntegerTile {
                runs: &[0],
                groups: groups.len(),
                a: a.wrapping_add(groups.start * TERMS),
                a_row,
                a_rest_row: a_row,
                a_chunk: CHUNK * TERMS,
                a_run: 0,
                rows: together,
                filled: false,
                b: panel.groups.wrapping_add(groups.start * GROUP),
                b_step: INTEGER_COLS,
                b_tile: panel.bytes,
                cols,
                c,
                ldc,
                continued: groups.start > 0,
                ahead: (next.wrapping_add(share.start * LINE), share.len()),
                left_signed: self.call.elements == GemmElements::I8U8,
                narrowed: panel.excess.map(|(sums, ..)| sums),
            };
            let next = (rows > together).then(|| NextRows {
                a: tile.a.wrapping_offset(together as isize * a_row),
                a_chunk: tile.a_chunk,
                rows: rows - together,
            });
            // SAFETY: by the caller's contract.
            unsafe { self.products.integer_tiles(&tile, next) };
        }
        let Some((_, excess, found)) = panel.excess else { return };
        // SAFETY: so many are listed; their terms are inside the rows, and columns that there are are written.
        unsafe {
            for [term, column_and_value] in core::slice::from_raw_parts(excess, found) {
                let (column, value) = ((column_and_value & 0xff) as usize, column_and_value >> 8);
                if column < cols {
                    for i in 0..rows as isize {
                        let x = i32::from(*a.wrapping_offset(i * a_row).wrapping_add(*term as usize));
                        let sum = c.wrapping_offset(i * ldc).wrapping_add(column);
                        *sum = (*sum).wrapping_add(x * value);
                    }
                }
            }
        }
    }
}
