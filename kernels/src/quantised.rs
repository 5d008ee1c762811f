//! Products of f32 with weights of a few bits in blocks ([`BlockedWeights`]), which stay packed in memory.
//!
//! Few rows are multiplied with weights unpacked in registers. For many, panels of weights are unpacked as f32, each
//! weight rounded once, and multiplied like others: one chain of fused multiply-adds over ascending k.

use core::ops::Range;

use tensorc_abi::{BatchedGemm, BlockedWeights, GemmElements};

use crate::blocking::{EvenSplit, row_panels, tasks_worth};
use crate::epilogue::EpilogueCall;
use crate::gemm::{TASK_FLOPS, TASKS, batch_index, batch_offset};
use crate::isa::{Isa, isa};
use crate::isa_levels::{Ahead, CODED_ROWS, CodedPanel, CodedRows, Decoded, IsaLevel, MR, NR, Panel, Tile};

/// Most rows that are multiplied with weights unpacked in registers.
const FEW_ROWS: usize = 3 * CODED_ROWS;
/// Bytes of weights that are worth a task of few rows.
const STREAM_BYTES: usize = 128 * 1024;
/// Most tasks of few rows.
const STREAM_TASKS: usize = 4 * TASKS;
/// Most terms of a block of weights that is unpacked, about: with the panel it becomes it stays in the second-level cache.
const DEPTH: usize = 512;
/// Most rows of a task of many rows.
const TASK_ROWS: usize = 48 * MR;

/// The division of a product into tasks; a function of the call alone.
struct QuantisedTasks {
    form: BlockedWeights,
    batches: usize,
    m: usize,
    n: usize,
    k: usize,
    chunks: usize,
    few: bool,
    /// Panels of rows.
    rows: EvenSplit,
    row_blocks: EvenSplit,
    /// Columns in panels: of weights for few rows, of tiles for many.
    unit: usize,
    panels: EvenSplit,
    /// Chunks that are unpacked together.
    depth: EvenSplit,
}

impl QuantisedTasks {
    fn new(call: &BatchedGemm) -> QuantisedTasks {
        let batches = call.batch.iter().product::<u64>() as usize;
        let (m, n, k) = (call.m as usize, call.n as usize, call.k as usize);
        // Nothing is computed with weights that have no form.
        let (form, n) = match call.elements {
            GemmElements::Blocked(form) if form.is_valid() => (form, n),
            _ => (BlockedWeights { bits: 8, ..BlockedWeights::default() }, 0),
        };
        let (chunks, few) = (form.chunks(k), m <= FEW_ROWS);
        let unit = if few { BlockedWeights::ROWS } else { NR };
        let (panels, rows) = (n.div_ceil(unit), row_panels(m));
        let (row_blocks, columns) = if few {
            let bytes = n.saturating_mul(chunks * BlockedWeights::CHUNK_BYTES);
            (1, tasks_worth(bytes as f64 / STREAM_BYTES as f64, STREAM_TASKS))
        } else {
            let flops = 2.0 * m as f64 * n as f64 * k as f64 * batches as f64;
            let want = tasks_worth(flops / TASK_FLOPS, TASKS).div_ceil(batches.max(1));
            let columns = want.min(panels.max(1));
            (want.div_ceil(columns).max(m.div_ceil(TASK_ROWS)), columns)
        };
        QuantisedTasks {
            form,
            batches,
            m,
            n,
            k,
            chunks,
            few,
            rows,
            row_blocks: EvenSplit::into(rows.parts(), row_blocks),
            unit,
            panels: EvenSplit::into(panels, columns),
            depth: EvenSplit::by(chunks, (DEPTH / form.chunk()).max(1)),
        }
    }

    fn tasks(&self) -> usize {
        if self.m == 0 || self.n == 0 { 0 } else { self.batches * self.row_blocks.parts() * self.panels.parts() }
    }

    /// Terms of whole chunks.
    fn padded(&self) -> usize {
        self.chunks * self.form.chunk()
    }

    /// Terms of a block that is unpacked.
    fn block_terms(&self) -> usize {
        self.depth.longest() * self.form.chunk()
    }

    /// Rows that are multiplied together, in whole groups but for one row alone.
    fn groups_of_rows(&self) -> usize {
        if self.m == 1 { 1 } else { self.m.next_multiple_of(CODED_ROWS) }
    }

    /// Elements of scratch: copied rows of A; or columns as they are unpacked, and as a panel of them.
    fn elements(&self) -> usize {
        if self.few { self.groups_of_rows() * self.padded() } else { 2 * NR * self.block_terms() }
    }
}

/// Number of tasks of a product with blocked weights; they may run in any order, on any threads.
pub fn quantised_tasks(call: &BatchedGemm) -> u64 {
    QuantisedTasks::new(call).tasks() as u64
}

/// Bytes of scratch one thread needs for [`quantised_run`].
pub fn quantised_scratch(call: &BatchedGemm) -> usize {
    QuantisedTasks::new(call).elements() * size_of::<f32>()
}

/// Executes the tasks `tasks` of a product with blocked weights, and its epilogue on every block they finish.
///
/// # Safety
/// As for [`crate::gemm_run`], with B in the packed form that the call's elements name.
pub unsafe fn quantised_run(
    call: &BatchedGemm,
    a: *const f32,
    b: *const u8,
    c: *mut f32,
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    // SAFETY: passed on from the caller.
    unsafe { quantised_run_with(isa(), call, (a, b, c), epilogue, tasks, scratch) }
}

/// [`quantised_run`] with the kernels of one ISA level.
///
/// # Safety
/// As for [`quantised_run`].
///
/// # Panics
/// If the ISA level is not available.
pub unsafe fn quantised_run_with(
    isa: Isa,
    call: &BatchedGemm,
    (a, b, c): (*const f32, *const u8, *mut f32),
    epilogue: Option<EpilogueCall>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    let (level, schedule) = (IsaLevel::new(isa), QuantisedTasks::new(call));
    let Some([codes, scales, zeros]) = schedule.form.sections(schedule.k, schedule.n) else { return };
    let panel = CodedPanel {
        form: schedule.form,
        chunks: schedule.chunks,
        codes: b.wrapping_add(codes.start),
        scales: b.wrapping_add(scales.start).cast(),
        zeros: b.wrapping_add(zeros.start),
    };
    let (row_blocks, col_parts) = (schedule.row_blocks.parts(), schedule.panels.parts());
    let mut copied = None;
    for task in tasks.start as usize..tasks.end as usize {
        let at = task / (row_blocks * col_parts);
        let batch = batch_index(call.batch, at);
        let product = QuantisedProduct {
            level,
            call,
            schedule: &schedule,
            panel,
            a: a.wrapping_offset(batch_offset(&call.a, batch)),
            c: c.wrapping_offset(batch_offset(&call.c, batch)),
            scratch: scratch.cast(),
        };
        let panels = schedule.panels.range(task % col_parts);
        let cols = panels.start * schedule.unit..schedule.n.min(panels.end * schedule.unit);
        let row_panels = schedule.row_blocks.range(task / col_parts % row_blocks);
        // SAFETY: the rows and columns are inside the call, and scratch is as large as `quantised_scratch` says.
        unsafe {
            if schedule.few {
                if copied != Some(at) && !product.reads_in_place() {
                    product.copy_rows();
                    copied = Some(at);
                }
                product.few_rows(panels);
                EpilogueCall::finish(epilogue, batch, 0..schedule.m, cols);
            } else {
                let rows = schedule.rows.start(row_panels.start)..schedule.rows.start(row_panels.end);
                for first in cols.clone().step_by(NR) {
                    let cols = first..cols.end.min(first + NR);
                    product.many_rows(row_panels.clone(), cols.clone());
                    EpilogueCall::finish(epilogue, batch, rows.clone(), cols);
                }
            }
        }
    }
}

/// A product of a batch.
struct QuantisedProduct<'a> {
    level: IsaLevel,
    call: &'a BatchedGemm,
    schedule: &'a QuantisedTasks,
    /// The first panel of columns.
    panel: CodedPanel,
    a: *const f32,
    c: *mut f32,
    scratch: *mut f32,
}

impl QuantisedProduct<'_> {
    /// Whether a row is read where it lies: it ends with a chunk, and stands alone or in groups of [`CODED_ROWS`].
    fn reads_in_place(&self) -> bool {
        let whole = self.schedule.groups_of_rows() == self.schedule.m;
        self.call.a.col_stride == 1 && self.schedule.k == self.schedule.padded() && whole
    }

    /// The panel of weights of the columns from `column` on.
    fn columns(&self, column: usize) -> CodedPanel {
        let places = column / BlockedWeights::ROWS * BlockedWeights::ROWS * self.schedule.chunks;
        let groups = places * self.schedule.form.groups();
        CodedPanel {
            codes: self.panel.codes.wrapping_add(places * BlockedWeights::CHUNK_BYTES),
            scales: self.panel.scales.wrapping_add(groups),
            zeros: self.panel.zeros.wrapping_add(groups),
            ..self.panel
        }
    }

    /// Copies all rows of A, with zeros up to whole chunks and groups of rows.
    ///
    /// # Safety
    /// Scratch holds them.
    unsafe fn copy_rows(&self) {
        let QuantisedTasks { m, k, .. } = *self.schedule;
        let padded = self.schedule.padded();
        let [row, step] = [self.call.a.row_stride, self.call.a.col_stride].map(|stride| stride as isize);
        for i in 0..self.schedule.groups_of_rows() {
            // SAFETY: by the caller's contract; the rows below m and terms below k are inside A.
            unsafe {
                let to = core::slice::from_raw_parts_mut(self.scratch.add(i * padded), padded);
                let terms = if i < m { k } else { 0 };
                for (t, to) in to[..terms].iter_mut().enumerate() {
                    *to = *self.a.wrapping_offset(i as isize * row + t as isize * step);
                }
                to[terms..].fill(0.0);
            }
        }
    }

    /// All rows of some panels of columns.
    ///
    /// # Safety
    /// The columns are inside the call, and rows that are not read in place have been copied.
    unsafe fn few_rows(&self, panels: Range<usize>) {
        let QuantisedTasks { m, n, .. } = *self.schedule;
        let (x, row) = match self.reads_in_place() {
            true => (self.a, self.call.a.row_stride as isize),
            false => (self.scratch.cast_const(), self.schedule.padded() as isize),
        };
        let ldc = self.call.c.row_stride as isize;
        for first in panels.map(|panel| panel * BlockedWeights::ROWS) {
            let cols = BlockedWeights::ROWS.min(n - first);
            for i in (0..m).step_by(CODED_ROWS) {
                let mut sums = [[0.0f32; BlockedWeights::ROWS]; CODED_ROWS];
                let rows = if m == 1 { 1 } else { CODED_ROWS };
                let x = x.wrapping_offset(i as isize * row);
                let product = CodedRows { panel: self.columns(first), rows, x, row, c: &raw mut sums };
                // SAFETY: the rows are readable for whole chunks, and the panel is one of the weights.
                unsafe { self.level.coded_rows(&product) };
                for (r, sums) in sums.iter().enumerate().take(m - i) {
                    let to = self.c.wrapping_offset((i + r) as isize * ldc).wrapping_add(first);
                    // SAFETY: the elements are the caller's.
                    unsafe { core::ptr::copy_nonoverlapping(sums.as_ptr(), to, cols) };
                }
            }
        }
    }

    /// Some rows of at most [`NR`] columns.
    ///
    /// # Safety
    /// The rows and columns are inside the call, and scratch holds a block of columns twice.
    unsafe fn many_rows(&self, panels: Range<usize>, cols: Range<usize>) {
        let schedule = self.schedule;
        let panel = self.scratch.wrapping_add(NR * schedule.block_terms());
        let [row, step] = [self.call.a.row_stride, self.call.a.col_stride].map(|stride| stride as isize);
        let ldc = self.call.c.row_stride as isize;
        for block in 0..schedule.depth.parts() {
            let chunks = schedule.depth.range(block);
            let first = chunks.start * schedule.form.chunk();
            let k = schedule.k.min(chunks.end * schedule.form.chunk()) - first;
            // SAFETY: each column has these chunks, and scratch has room for them unpacked.
            unsafe { self.unpack(chunks, cols.clone(), k, panel) };
            for rows in panels.clone().map(|p| schedule.rows.range(p)) {
                let tile = Tile {
                    k,
                    a: self.a.wrapping_offset(rows.start as isize * row + first as isize * step),
                    a_row: row,
                    a_step: step,
                    ahead: Ahead::NOTHING,
                    mr: rows.len(),
                    b: panel,
                    ldb: NR,
                    nr: cols.len(),
                    c: self.c.wrapping_offset(rows.start as isize * ldc).wrapping_add(cols.start),
                    ldc,
                    continued: block > 0,
                    padded: true,
                };
                // SAFETY: the rows, columns and terms are inside the operands.
                unsafe { self.level.tile(&tile) };
            }
        }
    }

    /// Unpacks chunks of some columns into a panel of `k` terms.
    ///
    /// # Safety
    /// The columns have these chunks, and scratch holds them twice.
    unsafe fn unpack(&self, chunks: Range<usize>, cols: Range<usize>, k: usize, panel: *mut f32) {
        let stride = self.schedule.block_terms();
        for j in cols.clone().step_by(BlockedWeights::ROWS) {
            let to = self.scratch.wrapping_add((j - cols.start) * stride);
            let decoded = Decoded { panel: self.columns(j), first: chunks.start, count: chunks.len(), to, stride };
            // SAFETY: by the caller's contract.
            unsafe { self.level.decoded_columns(&decoded) };
        }
        let turned = Panel {
            src: self.scratch,
            k_stride: 1,
            j_stride: stride as isize,
            k,
            width: cols.len(),
            dst: panel,
            ld: NR as isize,
            pad: NR,
        };
        // SAFETY: as above.
        unsafe { self.level.panel(&turned) };
    }
}
