//! Batched matrix products of f64. Rows of A are read where they lie; columns of B are copied into panels, unless few rows read them.
//!
//! An element of C is one chain of fused multiply-adds over ascending k, whatever the blocking.

use core::ops::Range;

use tensorc_abi::BatchedGemm;

use crate::blocking::{EvenSplit, tasks_worth};
use crate::epilogue::EpilogueCall;
use crate::gemm::{TASK_FLOPS, TASKS, batch_index, batch_offset};
use crate::isa::{Isa, isa};
use crate::isa_levels::{DOUBLE_COLS, DOUBLE_ROWS, DoubleTile, IsaLevel};

/// Most terms of k in one block: a panel of B of this depth stays in the first-level cache.
const DEPTH: usize = 192;
/// Most rows of a task, whose rows of A are read once for each panel of columns.
const TASK_ROWS: usize = 512;
/// Most rows for which B is read where it lies.
const IN_PLACE_ROWS: usize = 16;
/// Fewest rows of a task.
const MIN_TASK_ROWS: usize = 8;

/// The division of a product into tasks; a function of the call alone.
struct DoubleTasks {
    batches: usize,
    rows: EvenSplit,
    /// Panels of columns.
    panels: EvenSplit,
    depth: EvenSplit,
}

impl DoubleTasks {
    fn new(call: &BatchedGemm) -> DoubleTasks {
        let batches = call.batch.iter().product::<u64>() as usize;
        let (m, n, k) = (call.m as usize, call.n as usize, call.k as usize);
        let flops = 2.0 * m as f64 * n as f64 * k as f64 * batches as f64;
        let (want, panels) = (tasks_worth(flops / TASK_FLOPS, TASKS).div_ceil(batches.max(1)), n.div_ceil(DOUBLE_COLS));
        let columns = want.min(panels.max(1));
        let rows = want.div_ceil(columns).min(m.div_ceil(MIN_TASK_ROWS).max(1)).max(m.div_ceil(TASK_ROWS));
        let depth = EvenSplit::by(k, DEPTH);
        DoubleTasks { batches, rows: EvenSplit::into(m, rows), panels: EvenSplit::into(panels, columns), depth }
    }

    fn tasks(&self, call: &BatchedGemm) -> usize {
        if call.m == 0 || call.n == 0 { 0 } else { self.batches * self.rows.parts() * self.panels.parts() }
    }
}

/// Number of tasks of a product of f64; they may run in any order, on any threads.
pub fn double_tasks(call: &BatchedGemm) -> u64 {
    DoubleTasks::new(call).tasks(call) as u64
}

/// Bytes of scratch one thread needs for [`double_run`].
pub fn double_scratch(call: &BatchedGemm) -> usize {
    DoubleTasks::new(call).depth.longest() * DOUBLE_COLS * size_of::<f64>()
}

/// Executes the tasks `tasks` of a product of f64, and its epilogue on every block they finish.
///
/// # Safety
/// As for [`crate::gemm_run`], of f64, with operands in memory of which none is packed.
pub unsafe fn double_run(
    call: &BatchedGemm,
    operands: [*const f64; 2],
    c: *mut f64,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    // SAFETY: passed on from the caller.
    unsafe { double_run_with(isa(), call, operands, c, epilogue, tasks, scratch) }
}

/// [`double_run`] with the kernels of one ISA level.
///
/// # Safety
/// As for [`double_run`].
///
/// # Panics
/// If the ISA level is not available.
pub unsafe fn double_run_with(
    isa: Isa,
    call: &BatchedGemm,
    [a, b]: [*const f64; 2],
    c: *mut f64,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    let level = IsaLevel::new(isa);
    let schedule = DoubleTasks::new(call);
    let (row_parts, col_parts) = (schedule.rows.parts(), schedule.panels.parts());
    for task in tasks.start as usize..tasks.end as usize {
        let batch = batch_index(call.batch, task / (row_parts * col_parts));
        let rows = schedule.rows.range(task / col_parts % row_parts);
        let [a, b] = [(a, &call.a), (b, &call.b)].map(|(x, layout)| x.wrapping_offset(batch_offset(layout, batch)));
        let c = c.wrapping_offset(batch_offset(&call.c, batch));
        let product = DoubleProduct { level, call, a, b, c, panel: scratch.cast() };
        for panel in schedule.panels.range(task % col_parts) {
            let cols = panel * DOUBLE_COLS..(call.n as usize).min((panel + 1) * DOUBLE_COLS);
            // SAFETY: the rows and columns are inside the call, and scratch holds a panel.
            unsafe {
                for block in 0..schedule.depth.parts() {
                    product.block(rows.clone(), cols.clone(), schedule.depth.range(block));
                }
                EpilogueCall::finish(epilogue, batch, rows.clone(), cols);
            }
        }
    }
}

/// A product of a batch.
struct DoubleProduct<'a> {
    level: IsaLevel,
    call: &'a BatchedGemm,
    a: *const f64,
    b: *const f64,
    c: *mut f64,
    /// Memory for a panel of B, which may be aligned for f32 alone.
    panel: *mut f64,
}

impl DoubleProduct<'_> {
    /// Adds the terms `k` to some rows of the columns of a panel.
    ///
    /// # Safety
    /// The operands cover them, and the result is writable there.
    unsafe fn block(&self, rows: Range<usize>, cols: Range<usize>, k: Range<usize>) {
        let (call, ldc) = (self.call, self.call.c.row_stride as isize);
        let [row, step] = [call.a.row_stride, call.a.col_stride].map(|stride| stride as isize);
        let in_place = call.b.col_stride == 1 && cols.len() == DOUBLE_COLS && rows.len() <= IN_PLACE_ROWS;
        let from = self.at(k.start, cols.start);
        let (b, ldb) = match in_place {
            true => (from, call.b.row_stride as isize),
            false => {
                // SAFETY: the terms and columns are inside B.
                unsafe { self.pack(k.clone(), cols.clone()) };
                (self.panel.cast_const(), DOUBLE_COLS as isize)
            }
        };
        for i in rows.clone().step_by(DOUBLE_ROWS) {
            let tile = DoubleTile {
                k: k.len(),
                a: self.a.wrapping_offset(i as isize * row + k.start as isize * step),
                a_row: row,
                a_step: step,
                rows: DOUBLE_ROWS.min(rows.end - i),
                b,
                ldb,
                cols: cols.len(),
                c: self.c.wrapping_offset(i as isize * ldc).wrapping_add(cols.start),
                ldc,
                continued: k.start > 0,
            };
            // SAFETY: the rows, columns and terms are inside the operands.
            unsafe { self.level.double_tile(&tile) };
        }
    }

    /// An element of B.
    fn at(&self, k: usize, j: usize) -> *const f64 {
        let [row, column] = [self.call.b.row_stride, self.call.b.col_stride].map(|stride| stride as isize);
        self.b.wrapping_offset(k as isize * row + j as isize * column)
    }

    /// Copies a panel of B, with zeros for columns that it has not.
    ///
    /// # Safety
    /// The terms and columns are inside B, and the panel has room for them.
    unsafe fn pack(&self, k: Range<usize>, cols: Range<usize>) {
        let step = self.call.b.col_stride as isize;
        for (i, term) in k.enumerate() {
            let (from, to) = (self.at(term, cols.start), self.panel.wrapping_add(i * DOUBLE_COLS));
            // SAFETY: by the caller's contract.
            unsafe {
                if step == 1 && cols.len() == DOUBLE_COLS {
                    core::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), DOUBLE_COLS * size_of::<f64>());
                    continue;
                }
                for j in 0..DOUBLE_COLS {
                    let value = if j < cols.len() { *from.wrapping_offset(j as isize * step) } else { 0.0 };
                    to.wrapping_add(j).write_unaligned(value);
                }
            }
        }
    }
}
