//! Batched matrix products: how one is cut into tasks, and how a task is executed.

mod few_columns;

use core::ops::Range;

use tensorc_abi::{BatchedGemm, MatrixLayout};

use crate::blocking::{
    EvenSplit, KC, Left, OutputMatrix, PackedOperands, Rect, Right, multiply, reads_in_place, row_panels, tasks_worth,
    whole_lines,
};
use crate::epilogue::EpilogueCall;
use crate::isa;
use crate::isa::Isa;
use crate::isa_levels::{Ahead, IsaLevel, MR, NR, Panel, SKINNY_ROWS, Skinny};
use crate::prologue::LeftOperand;
use crate::prologue::{Computed, table_bytes};

/// Most row panels of one task: 432 KiB of A for each block of k.
const TASK_ROW_PANELS: usize = 16;
/// Most column panels of one task.
const TASK_COL_PANELS: usize = 8;
/// Fewest column panels of one task that packs its rows, if others could have some: its thread may pack them for these
/// columns alone.
const FEWEST_COL_PANELS: usize = 3;
/// Most row panels of one task that packs its columns of B: the more, the less they cost.
const PACKING_ROW_PANELS: usize = 24;
/// Floating-point operations that are worth a task of their own.
pub(crate) const TASK_FLOPS: f64 = 4e6;
/// Products smaller than this share a task with their neighbours in the batch.
const SHARED_FLOPS: f64 = 1e6;
/// Tasks wanted of a large product.
pub(crate) const TASKS: usize = 8;
/// Bytes of B that are worth a task when it is only streamed through.
pub(crate) const STREAM_BYTES: usize = 256 * 1024;
/// Most elements of packed A kept for the following tasks, and of packed B.
const MAX_CACHED_PANELS: usize = 1 << 20;
/// Most column panels for which rows of A are multiplied where they lie: a copy that is read so few times costs
/// more than it saves.
const MAX_UNPACKED_PANELS: u64 = 64;
/// Elements between rows that fall into the same sets of the first-level cache, where a panel of them has no room.
const SAME_SETS: i64 = 1024;
/// Elements over which a panel may be spread, a line of the cache for every term.
const MAX_PANEL_SPREAD: u64 = 8192;
/// Columns of a streamed product finished between two epilogue calls.
const STREAM_COLUMNS: usize = 4096;

/// Whether rows of A are better multiplied where they lie than copied into panels.
fn left_in_place(call: &BatchedGemm) -> bool {
    let panels = call.n.div_ceil(NR as u64);
    let spread = call.a.col_stride.unsigned_abs() * call.k;
    match (call.a.row_stride, call.a.col_stride) {
        (row, 1) => panels <= MAX_UNPACKED_PANELS && row % SAME_SETS != 0,
        (1, _) => panels == 1 && spread <= MAX_PANEL_SPREAD,
        _ => false,
    }
}

/// At least so many parts: where they are few, a power of two, which threads share evenly.
fn shared_evenly(parts: usize) -> usize {
    if parts < TASKS { parts.next_power_of_two() } else { parts }
}

/// The division of a product into tasks; a function of the call alone.
struct GemmTasks {
    batches: usize,
    /// Batch elements in one task; more than one only if each is a single block.
    shared: usize,
    m: usize,
    n: usize,
    k: usize,
    skinny: bool,
    few_columns: bool,
    b_packed: bool,
    /// Whether B is read where it lies.
    in_place: bool,
    /// Whether A is.
    left_in_place: bool,
    /// Whether A is computed, a panel of rows at a time.
    computed: bool,
    rows: EvenSplit,
    row_blocks: EvenSplit,
    /// Column panels counted in `col_unit`s.
    col_blocks: EvenSplit,
    col_unit: usize,
    depth: EvenSplit,
}

impl GemmTasks {
    fn new(call: &BatchedGemm, computed: bool) -> Self {
        let batches: usize = call.batch.iter().product::<u64>() as usize;
        let (m, n, k) = (call.m as usize, call.n as usize, call.k as usize);
        let skinny = m <= SKINNY_ROWS && (call.b_packed || call.b.col_stride == 1);
        let contiguous = call.b.col_stride == 1 && call.b.row_stride >= 0;
        let in_place = !call.b_packed && contiguous && reads_in_place(m);
        let most_rows = if call.b_packed || in_place { TASK_ROW_PANELS } else { PACKING_ROW_PANELS };
        let few_columns = !skinny && few_columns::applies(call);
        let (rows, priced) = match few_columns {
            true => (EvenSplit::by(m, NR), few_columns::PRICED_COLUMNS),
            false => (row_panels(m), n),
        };
        let flops = 2.0 * m as f64 * priced as f64 * k as f64;
        let panels = n.div_ceil(NR);
        let left_in_place = left_in_place(call);
        let (row_blocks, col_blocks, col_unit) = if skinny {
            let units = panels.div_ceil(4);
            (EvenSplit::into(1, 1), EvenSplit::into(units, (k * n * 4 / STREAM_BYTES).min(TASKS * 2)), 4)
        } else {
            let want = tasks_worth(flops * batches as f64 / TASK_FLOPS, TASKS);
            let fewest_rows = shared_evenly(rows.parts().div_ceil(most_rows));
            // Whether A is computed does not change the tasks.
            let fewest_cols = if left_in_place { 1 } else { FEWEST_COL_PANELS };
            let by_cols = want.div_ceil((batches * fewest_rows).max(1)).min((panels / fewest_cols).max(1));
            let cols = shared_evenly(panels.div_ceil(TASK_COL_PANELS)).max(by_cols);
            let parts = (batches * cols).max(1);
            let by_rows = (2 * want + parts) / (2 * parts);
            let by_rows = by_rows.min((rows.parts() / 4).max(1));
            (EvenSplit::into(rows.parts(), fewest_rows.max(by_rows)), EvenSplit::into(panels, cols), 1)
        };
        let single = row_blocks.parts() == 1 && col_blocks.parts() == 1;
        let shared = if single { ((SHARED_FLOPS / flops.max(1.0)) as usize).clamp(1, batches.max(1)) } else { 1 };
        GemmTasks {
            batches,
            shared,
            m,
            n,
            k,
            skinny,
            few_columns,
            b_packed: call.b_packed,
            in_place,
            left_in_place: left_in_place && !computed,
            computed,
            rows,
            row_blocks,
            col_blocks,
            col_unit,
            depth: EvenSplit::by(k, KC),
        }
    }

    fn is_empty(&self) -> bool {
        self.batches == 0 || self.m == 0 || self.n == 0
    }

    fn tasks(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        self.batches.div_ceil(self.shared) * self.row_blocks.parts() * self.col_blocks.parts()
    }

    fn cols(&self, block: usize) -> Range<usize> {
        let units = self.col_blocks.range(block);
        units.start * self.col_unit * NR..self.n.min(units.end * self.col_unit * NR)
    }

    /// Whether packed A holds all of k, so that tasks of the same rows can share it.
    fn keeps_left(&self) -> bool {
        self.row_blocks.longest() * MR * self.k <= MAX_CACHED_PANELS
    }

    /// Whether packed B holds all columns and all of k, so that tasks of other rows can use it.
    fn keeps_right(&self) -> bool {
        let copied = !self.b_packed && !self.in_place && self.row_blocks.parts() > 1;
        copied
            && self.col_blocks.parts() <= u64::BITS as usize
            && self.n.next_multiple_of(NR) * self.k <= MAX_CACHED_PANELS
    }

    fn right_elements(&self) -> usize {
        if self.few_columns {
            return few_columns::ELEMENTS;
        }
        if self.keeps_right() { self.n.next_multiple_of(NR) * self.k } else { NR * self.depth.longest() }
    }

    /// Elements of a panel of rows of A that is computed.
    fn computed_elements(&self) -> usize {
        if self.computed { whole_lines(self.rows.longest() * self.k) } else { 0 }
    }

    fn left_elements(&self) -> usize {
        if self.left_in_place || self.few_columns {
            return 0;
        }
        let depth = if self.keeps_left() { self.k } else { self.depth.longest() };
        whole_lines(self.row_blocks.longest() * MR * depth)
    }
}

/// Number of tasks of a product; they may run in any order, on any threads.
pub fn gemm_tasks(call: &BatchedGemm) -> u64 {
    GemmTasks::new(call, false).tasks() as u64
}

/// Number of tasks in turn that share what is computed of A.
pub fn gemm_affinity(call: &BatchedGemm) -> u64 {
    let schedule = GemmTasks::new(call, true);
    if schedule.skinny || schedule.keeps_left() { schedule.col_blocks.parts() as u64 } else { 1 }
}

/// Bytes of scratch one thread needs for [`gemm_run`], with A computed from so many arguments or in memory.
pub fn gemm_scratch(call: &BatchedGemm, prologue: Option<usize>) -> usize {
    let schedule = GemmTasks::new(call, prologue.is_some());
    if schedule.is_empty() {
        return 0;
    }
    let packed = if schedule.skinny { 0 } else { schedule.left_elements() + schedule.right_elements() };
    prologue.map_or(0, table_bytes) + (schedule.computed_elements() + packed) * size_of::<f32>()
}

/// Executes the tasks `tasks` of a product, and its epilogue on every block they finish.
///
/// Consecutive tasks of one call share packed operands where they can.
///
/// # Safety
/// `a`, `b` and `c` address every element `call` names (`b` a packed operand if `b_packed`; A may be
/// computed), C does
/// not overlap A or B and nothing else accesses the tasks' part of it, `scratch` has
/// [`gemm_scratch`] bytes aligned for f32 (at best for a cache line; for addresses if A is computed), `tasks` lies within
/// [`gemm_tasks`], and the arguments of epilogue and prologue fit their code.
pub unsafe fn gemm_run(
    call: &BatchedGemm,
    a: impl Into<LeftOperand>,
    b: *const f32,
    c: *mut f32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    // SAFETY: passed on from the caller.
    unsafe { gemm_run_with(isa(), call, a, b, c, epilogue, tasks, scratch) }
}

/// [`gemm_run`] with the kernels of one ISA level.
///
/// # Safety
/// As for [`gemm_run`].
///
/// # Panics
/// If the ISA level is not available.
#[allow(clippy::too_many_arguments, reason = "the operands of a library call, as in `gemm_run`")]
pub unsafe fn gemm_run_with(
    isa: Isa,
    call: &BatchedGemm,
    a: impl Into<LeftOperand>,
    b: *const f32,
    c: *mut f32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    let (a, level) = (a.into(), IsaLevel::new(isa));
    let schedule = GemmTasks::new(call, matches!(a, LeftOperand::Computed(_)));
    // SAFETY: scratch is as large as `gemm_scratch` says.
    let (a, computed, rows) = unsafe { a.bind(scratch) };
    let left = rows.wrapping_add(schedule.computed_elements());
    let mut product =
        GemmTask { call, schedule: &schedule, level, a, computed: computed.map(|c| (c, rows)), b, c, epilogue };
    let mut skinny = None;
    let mut operands = GemmOperands {
        product: GemmTask { ..product },
        a,
        batch: [0; 3],
        b,
        left,
        right: left.wrapping_add(schedule.left_elements()),
        packed: None,
        fresh: true,
        kept: None,
        ready: false,
    };
    let (row_blocks, col_blocks) = (schedule.row_blocks.parts(), schedule.col_blocks.parts());
    for task in tasks.start as usize..tasks.end as usize {
        let col_block = task % col_blocks;
        let row_block = task / col_blocks % row_blocks;
        let first = task / (col_blocks * row_blocks) * schedule.shared;
        for batch in first..schedule.batches.min(first + schedule.shared) {
            let batch = batch_index(call.batch, batch);
            // SAFETY: the block and batch are inside the call.
            unsafe {
                if schedule.skinny {
                    product.run_skinny(batch, schedule.cols(col_block), skinny != Some(batch));
                    skinny = Some(batch);
                } else if schedule.few_columns {
                    product.run_few_columns(batch, row_block, operands.right);
                } else {
                    product.run_block(&mut operands, batch, row_block, col_block);
                }
            }
        }
    }
}

pub(crate) fn batch_index(extents: [u64; 3], flat: usize) -> [u64; 3] {
    let flat = flat as u64;
    [flat / (extents[1] * extents[2]), flat / extents[2] % extents[1], flat % extents[2]]
}

pub(crate) fn batch_offset(layout: &MatrixLayout, batch: [u64; 3]) -> isize {
    let terms = batch.iter().zip(&layout.batch_strides).map(|(&index, &stride)| index as i64 * stride);
    (layout.offset + terms.sum::<i64>()) as isize
}

/// One call in execution.
#[derive(Clone, Copy)]
struct GemmTask<'a> {
    call: &'a BatchedGemm,
    schedule: &'a GemmTasks,
    level: IsaLevel,
    a: *const f32,
    /// What computes A, and memory for a panel of its rows.
    computed: Option<(Computed, *mut f32)>,
    b: *const f32,
    c: *mut f32,
    epilogue: Option<EpilogueCall>,
}

impl GemmTask<'_> {
    /// `fresh`: computed rows of A must be computed.
    ///
    /// # Safety
    /// As for [`gemm_run`], with the columns inside C.
    unsafe fn run_skinny(&mut self, batch: [u64; 3], cols: Range<usize>, fresh: bool) {
        let (call, m, k) = (self.call, self.schedule.m, self.schedule.k);
        let (a, a_row, a_col) = match self.computed {
            None => (self.a.wrapping_offset(batch_offset(&call.a, batch)), call.a.row_stride, call.a.col_stride),
            Some((computed, rows)) => {
                if fresh {
                    // SAFETY: the memory holds the rows of a skinny product.
                    unsafe { computed.block(batch, 0..m, 0..k, k, rows) };
                }
                (rows.cast_const(), k as i64, 1)
            }
        };
        let c = self.c.wrapping_offset(batch_offset(&call.c, batch));
        let (b, b_row, b_panel) = if call.b_packed {
            (self.b, NR as isize, (NR * k) as isize)
        } else {
            (self.b.wrapping_offset(batch_offset(&call.b, batch)), call.b.row_stride as isize, NR as isize)
        };
        for j0 in cols.clone().step_by(STREAM_COLUMNS) {
            let j1 = cols.end.min(j0 + STREAM_COLUMNS);
            let skinny = Skinny {
                m,
                n: j1 - j0,
                k,
                a,
                a_row: a_row as isize,
                a_col: a_col as isize,
                b: b.wrapping_offset((j0 / NR) as isize * b_panel),
                b_row,
                b_panel,
                c: c.wrapping_add(j0),
                ldc: call.c.row_stride as isize,
            };
            // SAFETY: the columns j0..j1 are inside the operands.
            unsafe {
                self.level.skinny(&skinny);
                EpilogueCall::finish(self.epilogue, batch, 0..m, j0..j1);
            }
        }
    }

    /// # Safety
    /// As for [`gemm_run`], with the block inside C.
    unsafe fn run_block(
        &mut self,
        operands: &mut GemmOperands<'_>,
        batch: [u64; 3],
        row_block: usize,
        col_block: usize,
    ) {
        let (call, schedule) = (self.call, self.schedule);
        let cols = schedule.cols(col_block);
        let (a, b) = (batch_offset(&call.a, batch), batch_offset(&call.b, batch));
        operands.a = self.a.wrapping_offset(a);
        operands.batch = batch;
        operands.b = if call.b_packed { self.b } else { self.b.wrapping_offset(b) };
        operands.fresh = operands.packed != Some((a, row_block)) || !schedule.keeps_left();
        let kept = operands.kept.filter(|(of, _)| *of == b && schedule.keeps_right()).map_or(0, |(_, blocks)| blocks);
        operands.ready = kept >> (col_block % u64::BITS as usize) & 1 == 1;
        let panels = schedule.row_blocks.range(row_block);
        let rect = Rect { rows: schedule.rows, panels, cols, depth: schedule.depth, unit: 1 };
        let c =
            OutputMatrix { base: self.c.wrapping_offset(batch_offset(&call.c, batch)), ld: call.c.row_stride as isize };
        let epilogue = self.epilogue;
        // SAFETY: the operands cover the block and C is the caller's; the epilogue fits.
        unsafe {
            multiply(self.level, &rect, operands, c, &mut |rows, cols| {
                EpilogueCall::finish(epilogue, batch, rows, cols);
            });
        }
        operands.packed = Some((a, row_block));
        operands.kept = Some((b, kept | 1 << (col_block % u64::BITS as usize)));
    }
}

/// Packs A into scratch, and B too unless it is packed already or read in place.
struct GemmOperands<'a> {
    product: GemmTask<'a>,
    a: *const f32,
    batch: [u64; 3],
    b: *const f32,
    left: *mut f32,
    right: *mut f32,
    /// Offset of A and row block whose rows `left` holds.
    packed: Option<(isize, usize)>,
    /// Whether the rows must be packed.
    fresh: bool,
    /// Offset of B and the column blocks, one bit each, that `right` holds for all of k.
    kept: Option<(isize, u64)>,
    /// Whether `right` holds the columns already.
    ready: bool,
}

impl PackedOperands for GemmOperands<'_> {
    unsafe fn left(&mut self, rect: &Rect, k: Range<usize>) -> Left {
        let GemmTask { call, schedule, level, computed, .. } = self.product;
        let (stride, skip) = if schedule.keeps_left() { (schedule.k, k.start) } else { (k.len(), 0) };
        let (rs, cs) = (call.a.row_stride as isize, call.a.col_stride as isize);
        if schedule.left_in_place {
            let first = rect.rows.start(rect.panels.start) as isize;
            let base = self.a.wrapping_offset(first * rs + k.start as isize * cs);
            return Left::InPlace { base, row_stride: rs, step: cs };
        }
        if self.fresh {
            let first = rect.rows.start(rect.panels.start);
            for p in rect.panels.clone() {
                let rows = rect.rows.range(p);
                let (src, k_stride, j_stride) = match computed {
                    None => (self.a.wrapping_offset(rows.start as isize * rs + k.start as isize * cs), cs, rs),
                    Some((computed, to)) => {
                        // SAFETY: the rows and terms are inside A, and the memory holds a panel.
                        unsafe { computed.block(self.batch, rows.clone(), k.clone(), schedule.k, to) };
                        (to.cast_const(), 1, schedule.k as isize)
                    }
                };
                let panel = Panel {
                    src,
                    k_stride,
                    j_stride,
                    k: k.len(),
                    width: rows.len(),
                    dst: self.left.wrapping_add((rows.start - first) * stride + skip * rows.len()),
                    ld: rows.len() as isize,
                    pad: rows.len(),
                };
                // SAFETY: the rows and terms are inside A, and scratch holds the block.
                unsafe { level.panel(&panel) };
            }
        }
        Left::Packed { base: self.left, stride, skip }
    }

    unsafe fn right(&mut self, k: Range<usize>, cols: Range<usize>) -> Right {
        let GemmTask { call, schedule, level, .. } = self.product;
        if call.b_packed {
            let base = self.b.wrapping_add(cols.start * schedule.k + k.start * NR);
            return Right { base, ld: NR, padded: true };
        }
        let (rs, cs) = (call.b.row_stride as isize, call.b.col_stride as isize);
        let src = self.b.wrapping_offset(k.start as isize * rs + cols.start as isize * cs);
        if schedule.in_place {
            return Right { base: src, ld: rs as usize, padded: false };
        }
        let at = if schedule.keeps_right() { cols.start * schedule.k + k.start * NR } else { 0 };
        let right = Right { base: self.right.wrapping_add(at), ld: NR, padded: true };
        if self.ready {
            return right;
        }
        let panel = Panel {
            src,
            k_stride: rs,
            j_stride: cs,
            k: k.len(),
            width: cols.len(),
            dst: self.right.wrapping_add(at),
            ld: NR as isize,
            pad: NR,
        };
        // SAFETY: the columns and terms are inside B, and scratch holds a panel.
        unsafe { level.panel(&panel) };
        right
    }

    fn ahead(&self, rect: &Rect, k: &Range<usize>, cols: &Range<usize>, p: usize, _: *const f32) -> Ahead {
        let GemmTask { call, schedule, .. } = self.product;
        // Each row panel fetches its share of the columns that are multiplied next.
        let (from, k) = if cols.end < rect.cols.end {
            (cols.end, k.clone())
        } else if k.end < schedule.k {
            (rect.cols.start, k.end..schedule.k.min(k.end + k.len()))
        } else if cols.end < schedule.n {
            // The next task is most often of the next columns.
            (cols.end, 0..schedule.depth.range(0).len())
        } else {
            return Ahead::NOTHING;
        };
        let share = |p: usize| k.start + p * k.len() / rect.panels.len();
        let (row, end) = (share(p - rect.panels.start), share(p - rect.panels.start + 1));
        let packed = if call.b_packed { self.b } else { self.right };
        let (first, step) = match (call.b_packed || self.ready, call.b.col_stride) {
            (true, _) => (packed.wrapping_add(from * schedule.k + row * NR), NR as isize),
            (false, 1) => {
                let step = call.b.row_stride as isize;
                (self.b.wrapping_offset(row as isize * step + from as isize), step)
            }
            // Columns follow each other in memory, as the machine itself foresees.
            _ => return Ahead::NOTHING,
        };
        Ahead { first, step, rows: end - row }
    }
}
