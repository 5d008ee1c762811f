//! Batched matrix products of bytes with exact sums in i32. Rows of A whose terms lie side by side are read where they
//! lie; columns of B are copied into panels of four terms side by side.

use core::ops::Range;

use tensorc_abi::{BatchedGemm, GemmElements};

use crate::epilogue::EpilogueCall;
use crate::gemm::{batch_index, batch_offset};
use crate::grouped::GroupedTasks;
use crate::isa::{Isa, isa};
use crate::isa_levels::{INTEGER_COLS, IntegerGroup, IntegerTile, IsaLevel, MOST_GROUP_BYTES, MR, TERMS};

/// Panels of B that are copied together: what is read of a row of B are whole lines of the cache.
const PANELS: usize = 4;
/// How many times the terms of a product of f32 are computed in the same time.
const SPEED: f64 = 4.0;
/// Scratch is aligned for cache lines.
const LINE: usize = 64;

/// Whether rows of A are read where they lie.
fn left_in_place(call: &BatchedGemm) -> bool {
    call.a.col_stride == 1 && (call.k as usize).is_multiple_of(TERMS)
}

fn tasks_of(call: &BatchedGemm) -> GroupedTasks {
    GroupedTasks::new(call, TERMS, SPEED)
}

/// Bytes of panels of B, and of the rows of a task.
fn parts(call: &BatchedGemm, schedule: &GroupedTasks) -> [usize; 2] {
    let rows = if left_in_place(call) { 0 } else { schedule.row_blocks.longest() * MR * schedule.groups * TERMS };
    [PANELS * schedule.depth.longest() * INTEGER_COLS * MOST_GROUP_BYTES, rows.next_multiple_of(LINE)]
}

/// Number of tasks of a product of bytes; they may run in any order, on any threads.
pub fn integer_tasks(call: &BatchedGemm) -> u64 {
    tasks_of(call).tasks() as u64
}

/// Bytes of scratch one thread needs for [`integer_run`].
pub fn integer_scratch(call: &BatchedGemm) -> usize {
    parts(call, &tasks_of(call)).iter().sum()
}

/// Executes the tasks `tasks` of a product of bytes, and its epilogue on every block they finish.
///
/// # Safety
/// As for [`crate::gemm_run`], of bytes and a result of i32, with operands in memory of which none is packed.
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
    let level = IsaLevel::new(isa);
    let schedule = tasks_of(call);
    let rows = scratch.wrapping_add(parts(call, &schedule)[0]);
    let in_place = left_in_place(call);
    let (row_blocks, col_parts) = (schedule.row_blocks.parts(), schedule.panels.parts());
    let mut copied = None;
    for task in tasks.start as usize..tasks.end as usize {
        let at = task / (row_blocks * col_parts);
        let batch = batch_index(call.batch, at);
        let row_block = task / col_parts % row_blocks;
        let [a, b] = [(a, &call.a), (b, &call.b)].map(|(x, layout)| x.wrapping_offset(batch_offset(layout, batch)));
        let c = c.wrapping_offset(batch_offset(&call.c, batch));
        let product = IntegerProduct { level, call, schedule: &schedule, a, b, c, panels: scratch, rows };
        let panels = schedule.row_blocks.range(row_block);
        let span = schedule.rows.start(panels.start)..schedule.rows.start(panels.end);
        // SAFETY: the rows and columns are inside the call, and scratch holds a panel and the rows of a task.
        unsafe {
            if !in_place && copied != Some((at, row_block)) {
                product.copy_rows(span.clone());
                copied = Some((at, row_block));
            }
            let columns = schedule.panels.range(task % col_parts);
            for panel in columns.clone().step_by(PANELS) {
                let last = columns.end.min(panel + PANELS);
                let cols = panel * INTEGER_COLS..(call.n as usize).min(last * INTEGER_COLS);
                for block in 0..schedule.depth.parts() {
                    product.block(panels.clone(), cols.clone(), schedule.depth.range(block));
                }
                EpilogueCall::finish(epilogue, batch, span.clone(), cols);
            }
        }
    }
}

/// A product of a batch.
struct IntegerProduct<'a> {
    level: IsaLevel,
    call: &'a BatchedGemm,
    schedule: &'a GroupedTasks,
    a: *const u8,
    b: *const u8,
    c: *mut i32,
    /// Memory for [`PANELS`] of B, and for rows of A.
    panels: *mut u8,
    rows: *mut u8,
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

    /// Adds the terms of some groups to row panels of the columns of a few panels.
    ///
    /// # Safety
    /// The operands cover them, the rows have been copied unless they are read in place, and the result is writable.
    unsafe fn block(&self, panels: Range<usize>, cols: Range<usize>, groups: Range<usize>) {
        let (call, schedule) = (self.call, self.schedule);
        let first = schedule.rows.start(panels.start);
        let (a, a_row) = match left_in_place(call) {
            true => (self.a.wrapping_offset(first as isize * call.a.row_stride as isize), call.a.row_stride as isize),
            false => (self.rows.cast_const(), self.stride() as isize),
        };
        // SAFETY: the terms and columns are inside B, and the panels hold them; so below.
        unsafe { self.pack(groups.clone(), cols.clone()) };
        let ldc = call.c.row_stride as isize;
        for rows in panels.map(|p| schedule.rows.range(p)) {
            for (at, column) in cols.clone().step_by(INTEGER_COLS).enumerate() {
                let tile = IntegerTile {
                    runs: &[0],
                    groups: groups.len(),
                    a: a.wrapping_offset((rows.start - first) as isize * a_row).wrapping_add(groups.start * TERMS),
                    a_row,
                    a_run: 0,
                    rows: rows.len(),
                    b: self.panel(at, groups.len()),
                    b_step: INTEGER_COLS,
                    cols: INTEGER_COLS.min(cols.end - column),
                    c: self.c.wrapping_offset(rows.start as isize * ldc).wrapping_add(column),
                    ldc,
                    continued: groups.start > 0,
                    left_signed: call.elements == GemmElements::I8U8,
                    narrowed: false,
                };
                // SAFETY: as above.
                unsafe { self.level.integer_tile(&tile) };
            }
        }
    }

    /// The first group of a panel of so many groups.
    fn panel(&self, at: usize, groups: usize) -> *mut u8 {
        self.panels.wrapping_add(at * groups * INTEGER_COLS * self.level.group_bytes())
    }

    /// Copies the terms of some groups of a few panels of B, with zeros for terms that it has not.
    ///
    /// # Safety
    /// The terms and columns are inside B, and the panels have room for them.
    unsafe fn pack(&self, groups: Range<usize>, cols: Range<usize>) {
        let [row, step] = [self.call.b.row_stride, self.call.b.col_stride].map(|stride| stride as isize);
        let k = self.call.k as usize;
        for (at, group) in groups.clone().enumerate() {
            for (panel, column) in cols.clone().step_by(INTEGER_COLS).enumerate() {
                let first = (group * TERMS) as isize * row + column as isize * step;
                let columns = IntegerGroup {
                    terms: TERMS.min(k - group * TERMS),
                    from: self.b.wrapping_offset(first),
                    row,
                    step,
                    cols: INTEGER_COLS.min(cols.end - column),
                    to: self.panel(panel, groups.len()).wrapping_add(at * INTEGER_COLS * self.level.group_bytes()),
                    signed: self.call.elements == GemmElements::U8I8,
                };
                // SAFETY: by the caller's contract.
                unsafe { self.level.integer_group(&columns) };
            }
        }
    }
}
