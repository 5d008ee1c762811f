//! Batched matrix products of f32 whose operands are rounded to bf16, with sums in f32. B is constant and was rounded when it
//! was packed; rows of A are rounded when a task copies them.

use core::mem::MaybeUninit;
use core::ops::Range;

use tensorc_abi::BatchedGemm;
use tensorc_abi::library::GEMM_BATCH_RANK;

use crate::blocking::{EvenSplit, LINE};
use crate::epilogue::EpilogueCall;
use crate::gemm::{batch_index, batch_offset};
use crate::grouped::GroupedTasks;
use crate::isa::{Isa, isa};
use crate::isa_levels::{CHUNK, IsaLevel, MR, NR, PAIR, Products, RoundedRow, RoundedTile, TILE_ROWS};

/// Panels of B that are multiplied with the same rows before others are.
const PANELS: usize = 4;
/// Chunks of pairs that are added up before the next ones where tiles have registers of their own: what a few rows have of them stays
/// in the first-level cache.
const DEPTH: usize = 8;
/// How many times the terms of a product of f32 are computed in the same time.
const SPEED: f64 = 2.0;

fn tasks_of(call: &BatchedGemm) -> GroupedTasks {
    GroupedTasks::new(call, PAIR, SPEED)
}

/// Bytes from a copied row of A to the next: a line of the cache more than its terms, as rows that are apart by a power of two
/// share the same few sets of the first-level cache.
fn row_bytes(schedule: &GroupedTasks) -> usize {
    (schedule.groups * size_of::<u32>()).next_multiple_of(LINE) + LINE
}

/// Number of tasks of a product of rounded operands; they may run in any order, on any threads.
pub fn rounded_tasks(call: &BatchedGemm) -> u64 {
    tasks_of(call).tasks() as u64
}

/// Number of tasks in turn that share the rows of A that one copies.
pub fn rounded_affinity(call: &BatchedGemm) -> u64 {
    tasks_of(call).panels.parts() as u64
}

/// Bytes of scratch one thread needs for [`rounded_run`].
pub fn rounded_scratch(call: &BatchedGemm) -> usize {
    let schedule = tasks_of(call);
    schedule.row_blocks.longest() * MR * row_bytes(&schedule)
}

/// Executes the tasks `tasks` of a product of rounded operands, and its epilogue on every block they finish.
///
/// # Safety
/// As for [`crate::gemm_run`], with A in memory and B in the form [`tensorc_abi::Packing::GemmB`] for rounded operands.
pub unsafe fn rounded_run(
    call: &BatchedGemm,
    operands: [*const f32; 2],
    c: *mut f32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    // SAFETY: passed on from the caller.
    unsafe { rounded_run_with(isa(), call, operands, c, epilogue, tasks, scratch) }
}

/// [`rounded_run`] with the kernels of one ISA level.
///
/// # Safety
/// As for [`rounded_run`].
///
/// # Panics
/// If the ISA level is not available.
pub unsafe fn rounded_run_with(
    isa: Isa,
    call: &BatchedGemm,
    [a, b]: [*const f32; 2],
    c: *mut f32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    let (products, schedule) = (Products::new(IsaLevel::new(isa)), tasks_of(call));
    let (row_blocks, col_parts) = (schedule.row_blocks.parts(), schedule.panels.parts());
    let mut copied = None;
    for task in tasks.start as usize..tasks.end as usize {
        let at = task / (row_blocks * col_parts);
        let batch = batch_index(call.batch, at);
        let row_block = task / col_parts % row_blocks;
        let a = a.wrapping_offset(batch_offset(&call.a, batch));
        let c = c.wrapping_offset(batch_offset(&call.c, batch));
        let product =
            RoundedProduct { products: &products, call, schedule: &schedule, a, b: b.cast(), c, rows: scratch };
        let panels = schedule.row_blocks.range(row_block);
        let span = schedule.rows.start(panels.start)..schedule.rows.start(panels.end);
        // SAFETY: the rows and columns are inside the call, and scratch holds the rows of a task.
        unsafe {
            if copied != Some((at, row_block)) {
                product.copy_rows(span.clone());
                copied = Some((at, row_block));
            }
            let columns = schedule.panels.range(task % col_parts);
            for panel in columns.clone().step_by(PANELS) {
                let last = columns.end.min(panel + PANELS);
                if products.panels_together() > 1 {
                    product.turns(panels.clone(), panel..last, (batch, epilogue));
                    continue;
                }
                for block in 0..schedule.depth.parts() {
                    // What the next block reads is fetched: the rest of the columns, or the first terms of the next ones.
                    let ahead = match block + 1 < schedule.depth.parts() {
                        true => (0, block + 1),
                        false => (last - panel, 0),
                    };
                    let at = schedule.depth.range(block);
                    let next = schedule.depth.start(ahead.1) as isize - at.start as isize;
                    let ahead = (ahead.0 * schedule.groups) as isize + next;
                    product.block(panels.clone(), panel..last, at, ahead);
                }
                EpilogueCall::finish(epilogue, batch, span.clone(), panel * NR..(call.n as usize).min(last * NR));
            }
        }
    }
}

/// Sums of a few rows, in whole lines of the cache.
#[repr(align(64))]
struct Sums([[MaybeUninit<f32>; PANELS * NR]; 2 * TILE_ROWS]);

/// A product of a batch.
struct RoundedProduct<'a> {
    products: &'a Products,
    call: &'a BatchedGemm,
    schedule: &'a GroupedTasks,
    a: *const f32,
    /// Pairs of terms, in panels of columns.
    b: *const u32,
    c: *mut f32,
    /// Memory for rows of A.
    rows: *mut u8,
}

impl RoundedProduct<'_> {
    /// Copies rows of A rounded, with a zero where their terms are odd in number.
    ///
    /// # Safety
    /// The rows are inside A, and scratch holds them.
    unsafe fn copy_rows(&self, rows: Range<usize>) {
        let stride = row_bytes(self.schedule);
        for (at, i) in rows.enumerate() {
            let row = RoundedRow {
                from: self.a.wrapping_offset(i as isize * self.call.a.row_stride as isize),
                step: self.call.a.col_stride as isize,
                terms: self.call.k as usize,
                scale: 1.0,
                to: self.rows.wrapping_add(at * stride).cast(),
            };
            // SAFETY: by the caller's contract; a row has room for whole pairs.
            unsafe { self.products.level().rounded_row(&row) };
        }
    }

    /// Adds the terms of some pairs to row panels of a few panels of columns, while fetching what lies so many pairs behind them.
    ///
    /// # Safety
    /// The rows have been copied, B has the panels, and the result is writable.
    unsafe fn block(&self, panels: Range<usize>, columns: Range<usize>, pairs: Range<usize>, ahead: isize) {
        let (call, schedule) = (self.call, self.schedule);
        let (first, stride) = (schedule.rows.start(panels.start), row_bytes(schedule));
        let ldc = call.c.row_stride as isize;
        let shares = EvenSplit::into(pairs.len(), panels.len());
        for (rows, share) in panels.enumerate().map(|(i, p)| (schedule.rows.range(p), shares.range(i))) {
            for panel in columns.clone() {
                let column = panel * NR;
                let b = self.b.wrapping_add((panel * schedule.groups + pairs.start) * NR);
                let next = b.wrapping_offset((ahead + share.start as isize) * NR as isize);
                let tile = RoundedTile {
                    pairs: pairs.len(),
                    a: self.rows.wrapping_add((rows.start - first) * stride).cast::<u32>().wrapping_add(pairs.start),
                    a_row: stride / size_of::<u32>(),
                    rows: rows.len(),
                    b,
                    b_tile: 0,
                    cols: NR.min(call.n as usize - column),
                    c: self.c.wrapping_offset(rows.start as isize * ldc).wrapping_add(column),
                    ldc,
                    continued: pairs.start > 0,
                    ahead: (next, share.len()),
                };
                // SAFETY: by the caller's contract.
                unsafe { self.products.rounded_tile(&tile, 0) };
            }
        }
    }

    /// Computes some row panels of a few panels of columns, a few rows at a time, and applies the epilogue to each of these. Sums are
    /// kept apart from C, whose rows may lie apart by a power of two, until they have all their terms.
    ///
    /// # Safety
    /// As for [`RoundedProduct::block`].
    unsafe fn turns(
        &self,
        panels: Range<usize>,
        columns: Range<usize>,
        (batch, epilogue): ([u64; GEMM_BATCH_RANK], Option<EpilogueCall>),
    ) {
        let (call, schedule) = (self.call, self.schedule);
        let (first, stride) = (schedule.rows.start(panels.start), row_bytes(schedule));
        let cols = columns.start * NR..(call.n as usize).min(columns.end * NR);
        let depth = EvenSplit::by(schedule.groups.div_ceil(CHUNK), DEPTH);
        let mut sums = Sums([[MaybeUninit::uninit(); PANELS * NR]; 2 * TILE_ROWS]);
        let turns = || self.products.rows_of(schedule.rows, panels.clone()).enumerate();
        // The next panels are fetched in parts.
        let shares = EvenSplit::into(columns.len() * schedule.groups, turns().count() * depth.parts());
        for (turn, (rows, together)) in turns() {
            let a = self.rows.wrapping_add((rows.start - first) * stride).cast::<u32>();
            for at in 0..depth.parts() {
                let (part, share) = (depth.range(at), shares.range(turn * depth.parts() + at));
                let pairs = part.start * CHUNK..schedule.groups.min(part.end * CHUNK);
                let tile = RoundedTile {
                    pairs: pairs.len(),
                    a: a.wrapping_add(pairs.start),
                    a_row: stride / size_of::<u32>(),
                    rows: together,
                    b: self.b.wrapping_add((columns.start * schedule.groups + pairs.start) * NR),
                    b_tile: schedule.groups * NR,
                    cols: cols.len(),
                    c: sums.0.as_mut_ptr().cast(),
                    ldc: (PANELS * NR) as isize,
                    continued: pairs.start > 0,
                    ahead: (self.b.wrapping_add((columns.end * schedule.groups + share.start) * NR), share.len()),
                };
                // SAFETY: by the caller's contract.
                unsafe { self.products.rounded_tile(&tile, rows.len() - together) };
            }
            for (i, sums) in rows.clone().zip(&sums.0) {
                let c = self.c.wrapping_offset(i as isize * call.c.row_stride as isize).wrapping_add(cols.start);
                // SAFETY: the columns are the result's, and have been computed.
                unsafe { core::ptr::copy_nonoverlapping(sums.as_ptr().cast(), c, cols.len()) };
            }
            // SAFETY: the rows are finished.
            unsafe { EpilogueCall::finish(epilogue, batch, rows, cols.clone()) };
        }
    }
}
