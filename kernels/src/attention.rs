//! Attention: how a call is cut into tasks, and how a task streams over the keys.
//!
//! A task is a run of queries of one batch element. It packs its queries once, and visits the keys in blocks: a
//! block of keys is packed, and for each few dozen queries a tile of scores is computed, handed to the
//! epilogue, turned into weights and multiplied with the values, while it is in the nearest caches. For few
//! queries packing would cost more than it saves: keys and values are read once, where they lie.

mod rounded;

use core::ops::Range;

use tensorc_abi::library::epilogue_scalars;
use tensorc_abi::{Attention, MatrixLayout};

use crate::blocking::{EvenSplit, reads_in_place, row_panels};
use crate::epilogue::EpilogueCall;
use crate::gemm::{batch_index, batch_offset};
use crate::isa;
use crate::isa::Isa;
use crate::isa_levels::{
    Ahead, Dots, IsaLevel, LANES, MR, NR, PAIR, Panel, Products, SKINNY_ROWS, Scores, Skinny, Tile,
};

/// Rows and columns of a tile of scores.
const ROWS: usize = Attention::TILE_ROWS as usize;
const COLS: usize = Attention::TILE_COLS as usize;
/// Most queries of one task: what packing a block of keys costs is shared by so many.
const MAX_TASK_QUERIES: usize = 384;
/// Most elements of the queries and the accumulated values of one task.
const MAX_TASK_ELEMENTS: usize = 1 << 16;
/// Most queries that are not worth packing keys for.
const MAX_UNPACKED_QUERIES: usize = 12;
/// Floating-point operations that are worth a task of their own.
const TASK_FLOPS: u64 = 4_000_000;
/// Tasks wanted of a large call.
const TASKS: usize = 8;

/// The division of a call into tasks, and of the scratch memory; a function of the call alone.
struct AttentionTasks {
    batches: usize,
    queries: EvenSplit,
    keys: usize,
    depth: usize,
    size: usize,
    /// Whether keys and values are read where they lie, query by query, and not rounded.
    few: bool,
    /// Whether operands are rounded.
    rounded: bool,
    /// Whether blocks of values are read where they lie.
    values_in_place: bool,
}

impl AttentionTasks {
    fn new(call: &Attention) -> AttentionTasks {
        let batches = call.batch.iter().product::<u64>() as usize;
        let (queries, depth, size) = (call.queries as usize, call.depth as usize, call.size as usize);
        let contiguous = call.v.col_stride == 1 && call.v.row_stride >= 0;
        let few = queries <= MAX_UNPACKED_QUERIES && contiguous && (call.k.row_stride == 1 || call.k.col_stride == 1);
        let most = (MAX_TASK_ELEMENTS / (depth + size).max(1)).clamp(ROWS, MAX_TASK_QUERIES);
        let wanted = ((call.flops() / TASK_FLOPS) as usize).clamp(1, TASKS).div_ceil(batches.max(1));
        let parts = queries.div_ceil(most).max(wanted.min(queries / ROWS));
        let queries = EvenSplit::into(queries, parts);
        AttentionTasks {
            batches,
            queries,
            keys: call.keys as usize,
            depth,
            size,
            few,
            rounded: call.rounded && !few,
            values_in_place: contiguous && reads_in_place(queries.longest()) && (few || !call.rounded),
        }
    }

    /// Distance of rows of unpacked queries.
    fn query_stride(&self) -> usize {
        self.depth.next_multiple_of(LANES)
    }

    /// Elements of each part of the scratch memory, in the order of [`ScratchLayout`].
    fn parts(&self) -> [usize; 9] {
        let rows = self.queries.longest();
        let keys = COLS.min(self.keys.next_multiple_of(NR));
        let values = if self.values_in_place { 0 } else { self.size.next_multiple_of(NR) * keys };
        // An odd number of terms is filled up to pairs.
        let packed_keys = if self.few { 0 } else { (self.depth + usize::from(self.rounded)) * keys };
        let few = if self.few { ROWS * self.size } else { 0 };
        let queries = rows * self.query_stride();
        let weights = if self.rounded { ROWS * COLS / PAIR } else { 0 };
        [ROWS * COLS, few, packed_keys, values, queries, rows * self.size, rows * 2, ROWS * 2, weights]
            .map(|n| n.next_multiple_of(LANES))
    }
}

/// Number of tasks of a call; they may run in any order, on any threads.
pub fn attention_tasks(call: &Attention) -> u64 {
    let schedule = AttentionTasks::new(call);
    if schedule.batches == 0 || call.queries == 0 || call.size == 0 {
        return 0;
    }
    (schedule.batches * schedule.queries.parts()) as u64
}

/// Bytes of scratch one thread needs for [`attention_run`] with an epilogue of so many arguments besides the
/// tile.
pub fn attention_scratch(call: &Attention, args: usize) -> usize {
    let elements: usize = AttentionTasks::new(call).parts().iter().sum();
    (1 + args).next_multiple_of(LANES) * size_of::<*mut u8>() + elements * size_of::<f32>()
}

/// Executes the tasks `tasks` of a call, with the epilogue applied to each tile of scores: its code takes the
/// tile, then the arguments, of which there are `count`.
///
/// `ROUNDED` is whether operands are rounded ([`Attention::rounded`]): what the others need is not linked.
///
/// # Safety
/// The operands address every element `call` names, the result does not overlap them and nothing else accesses
/// the tasks' part of it, `scratch` has [`attention_scratch`] bytes aligned for pointers, `tasks` lies within
/// [`attention_tasks`], and the epilogue's arguments fit its code.
pub unsafe fn attention_run<const ROUNDED: bool>(
    call: &Attention,
    operands: [*const f32; 3],
    out: *mut f32,
    epilogue: Option<(EpilogueCall, usize)>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    // SAFETY: passed on from the caller.
    unsafe { run::<ROUNDED>(IsaLevel::new(isa()), call, operands, out, epilogue, tasks, scratch) }
}

/// [`attention_run`] with the kernels of one ISA level.
///
/// # Safety
/// As for [`attention_run`].
///
/// # Panics
/// If the ISA level is not available.
pub unsafe fn attention_run_with(
    isa: Isa,
    call: &Attention,
    operands: [*const f32; 3],
    out: *mut f32,
    epilogue: Option<(EpilogueCall, usize)>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    let level = IsaLevel::new(isa);
    // SAFETY: passed on from the caller.
    unsafe {
        match call.rounded {
            true => run::<true>(level, call, operands, out, epilogue, tasks, scratch),
            false => run::<false>(level, call, operands, out, epilogue, tasks, scratch),
        }
    }
}

/// # Safety
/// As for [`attention_run`].
unsafe fn run<const ROUNDED: bool>(
    level: IsaLevel,
    call: &Attention,
    operands: [*const f32; 3],
    out: *mut f32,
    epilogue: Option<(EpilogueCall, usize)>,
    tasks: Range<u64>,
    scratch: *mut u8,
) {
    let schedule = AttentionTasks::new(call);
    let pointers: *mut *mut u8 = scratch.cast();
    let args = epilogue.map_or(0, |(_, count)| count);
    let mut free = pointers.wrapping_add((1 + args).next_multiple_of(LANES)).cast::<f32>();
    let [tile, few, keys, values, queries, sums, state, step, weights] = schedule.parts().map(|n| {
        let part = free;
        free = free.wrapping_add(n);
        part
    });
    let memory = ScratchLayout { tile, few, keys, values, queries, sums, state, step, weights: weights.cast() };
    let epilogue = epilogue.map(|(call, count)| {
        // SAFETY: the scratch memory begins with room for the tile and the arguments.
        unsafe {
            *pointers = tile.cast();
            core::ptr::copy_nonoverlapping(call.args, pointers.add(1), count);
        }
        EpilogueCall { args: pointers, ..call }
    });
    let (products, parts) = (Products::new(level), schedule.queries.parts());
    for task in tasks.start as usize..tasks.end as usize {
        let batch = batch_index(call.batch, task / parts);
        let at = |base: *const f32, layout: &MatrixLayout| base.wrapping_offset(batch_offset(layout, batch));
        let run = AttentionTask::<ROUNDED> {
            call,
            schedule: &schedule,
            products: &products,
            memory,
            epilogue,
            batch,
            queries: schedule.queries.range(task % parts),
            q: at(operands[0], &call.q),
            k: at(operands[1], &call.k),
            v: at(operands[2], &call.v),
            out: out.wrapping_offset(batch_offset(&call.out, batch)),
        };
        // SAFETY: the batch element and its queries are inside the call.
        unsafe { run.execute() };
    }
}

/// The parts of the scratch memory.
#[derive(Clone, Copy)]
struct ScratchLayout {
    tile: *mut f32,
    /// For few queries, one block's sums of values.
    few: *mut f32,
    keys: *mut f32,
    values: *mut f32,
    queries: *mut f32,
    /// Sums of weighted values, a row a query.
    sums: *mut f32,
    /// The maximum, then the sum of weights, of each query.
    state: *mut f32,
    /// The factor, then the sum of weights, of each row of a tile.
    step: *mut f32,
    /// Weights of a tile, rounded.
    weights: *mut u32,
}

/// A task in execution, of operands that are rounded or not.
struct AttentionTask<'a, const ROUNDED: bool> {
    call: &'a Attention,
    schedule: &'a AttentionTasks,
    products: &'a Products,
    memory: ScratchLayout,
    epilogue: Option<EpilogueCall>,
    batch: [u64; 3],
    queries: Range<usize>,
    q: *const f32,
    k: *const f32,
    v: *const f32,
    out: *mut f32,
}

impl<const ROUNDED: bool> AttentionTask<'_, ROUNDED> {
    /// # Safety
    /// The operands and the result hold the queries, and scratch what the schedule says.
    unsafe fn execute(&self) {
        let (s, rows) = (self.schedule, self.queries.len());
        let longest = s.queries.longest();
        // SAFETY: the parts of scratch hold the task's queries; blocks are inside the operands.
        unsafe {
            core::slice::from_raw_parts_mut(self.memory.sums, rows * s.size).fill(0.0);
            core::slice::from_raw_parts_mut(self.memory.state, rows).fill(f32::NEG_INFINITY);
            core::slice::from_raw_parts_mut(self.memory.state.add(longest), rows).fill(0.0);
            let tiles = EvenSplit::by(rows, ROWS);
            (0..tiles.parts()).for_each(|t| self.take_queries(tiles.range(t)));
            for j0 in (0..s.keys).step_by(COLS) {
                let keys = j0..s.keys.min(j0 + COLS);
                self.take_keys(keys.clone());
                for t in 0..tiles.parts() {
                    let rows = tiles.range(t);
                    self.score(rows.clone(), &keys);
                    self.softmax_rows(rows.clone(), &keys);
                    self.accumulate(rows, &keys);
                }
            }
            self.finish();
        }
    }

    /// Packs the queries of a tile, or copies them row by row.
    ///
    /// # Safety
    /// As for [`AttentionTask::execute`].
    unsafe fn take_queries(&self, tile: Range<usize>) {
        let (call, s) = (self.call, self.schedule);
        let (rs, cs) = (call.q.row_stride as isize, call.q.col_stride as isize);
        let at = |row: usize| self.q.wrapping_offset((self.queries.start + row) as isize * rs);
        let panels = row_panels(tile.len());
        let scale = f32::from_bits(call.scale);
        // SAFETY: the rows are inside Q, and scratch holds them.
        unsafe {
            if ROUNDED && s.rounded {
                return self.round_queries(tile);
            }
            if s.few {
                for row in tile.clone() {
                    let dst = core::slice::from_raw_parts_mut(
                        self.memory.queries.add(row * s.query_stride()),
                        s.query_stride(),
                    );
                    dst[s.depth..].fill(0.0);
                    for (d, x) in dst[..s.depth].iter_mut().enumerate() {
                        *x = *at(row).wrapping_offset(d as isize * cs) * scale;
                    }
                }
                return;
            }
            for p in 0..panels.parts() {
                let rows = panels.range(p);
                let dst = self.memory.queries.add((tile.start + rows.start) * s.depth);
                self.products.level().panel(&Panel {
                    src: at(tile.start + rows.start),
                    k_stride: cs,
                    j_stride: rs,
                    k: s.depth,
                    width: rows.len(),
                    dst,
                    ld: rows.len() as isize,
                    pad: rows.len(),
                });
                if scale != 1.0 {
                    core::slice::from_raw_parts_mut(dst, rows.len() * s.depth).iter_mut().for_each(|x| *x *= scale);
                }
            }
        }
    }

    /// Packs a block of keys and values, as far as they are not read where they lie.
    ///
    /// # Safety
    /// As for [`AttentionTask::execute`], with the keys inside the operands.
    unsafe fn take_keys(&self, keys: Range<usize>) {
        let (call, s) = (self.call, self.schedule);
        // SAFETY: the panels are inside the operands, and scratch holds a block.
        unsafe {
            if s.few {
                return;
            }
            if ROUNDED && s.rounded {
                return self.round_keys(keys);
            }
            for j in keys.clone().step_by(NR) {
                self.products.level().panel(&Panel {
                    src: self.k.wrapping_offset(j as isize * call.k.col_stride as isize),
                    k_stride: call.k.row_stride as isize,
                    j_stride: call.k.col_stride as isize,
                    k: s.depth,
                    width: NR.min(keys.end - j),
                    dst: self.memory.keys.add((j - keys.start) * s.depth),
                    ld: NR as isize,
                    pad: NR,
                });
            }
            if s.values_in_place {
                return;
            }
            let rows = self.v.wrapping_offset(keys.start as isize * call.v.row_stride as isize);
            for c in (0..s.size).step_by(NR) {
                self.products.level().panel(&Panel {
                    src: rows.wrapping_offset(c as isize * call.v.col_stride as isize),
                    k_stride: call.v.row_stride as isize,
                    j_stride: call.v.col_stride as isize,
                    k: keys.len(),
                    width: NR.min(s.size - c),
                    dst: self.memory.values.add(c * keys.len()),
                    ld: NR as isize,
                    pad: NR,
                });
            }
        }
    }

    /// Computes a tile of scores, and applies the epilogue to it.
    ///
    /// # Safety
    /// As for [`AttentionTask::execute`], with the keys taken.
    unsafe fn score(&self, rows: Range<usize>, keys: &Range<usize>) {
        let (call, s, tile) = (self.call, self.schedule, self.memory.tile);
        // SAFETY: packed queries and keys hold the tile's rows and columns.
        unsafe {
            if s.few {
                self.score_few(rows.clone(), keys);
            } else if ROUNDED && s.rounded {
                self.score_rounded(rows.clone(), keys);
            } else {
                let panels = row_panels(rows.len());
                for j in (0..keys.len()).step_by(NR) {
                    for p in 0..panels.parts() {
                        let panel = panels.range(p);
                        let a = self.memory.queries.add((rows.start + panel.start) * s.depth).cast_const();
                        self.products.level().tile(&Tile {
                            k: s.depth,
                            a,
                            a_row: 1,
                            a_step: panel.len() as isize,
                            mr: panel.len(),
                            b: self.memory.keys.add(j * s.depth),
                            ldb: NR,
                            // Whole vectors cost less than parts; columns past the last key are not used.
                            nr: NR.min((keys.len() - j).next_multiple_of(LANES)),
                            c: tile.add(panel.start * COLS + j),
                            ldc: COLS as isize,
                            continued: false,
                            padded: true,
                            ahead: Ahead::NOTHING,
                        });
                    }
                }
            }
            if let Some(e) = self.epilogue {
                let first = self.queries.start as u64;
                let rows = (first + rows.start as u64, first + rows.end as u64);
                let scalars = epilogue_scalars(self.batch, rows, (keys.start as u64, keys.end as u64));
                (e.f)(e.args, scalars.as_ptr());
            }
        }
        debug_assert!(call.keys >= keys.end as u64);
    }

    /// # Safety
    /// As for [`AttentionTask::score`].
    unsafe fn score_few(&self, rows: Range<usize>, keys: &Range<usize>) {
        let (call, s) = (self.call, self.schedule);
        let a = self.memory.queries.wrapping_add(rows.start * s.query_stride()).cast_const();
        let b = self.k.wrapping_offset(keys.start as isize * call.k.col_stride as isize);
        // SAFETY: the keys are inside K, and the tile holds the rows.
        unsafe {
            if call.k.row_stride == 1 {
                self.products.level().qk_dot(&Dots {
                    m: rows.len(),
                    n: keys.len(),
                    depth: s.depth,
                    a,
                    lda: s.query_stride(),
                    b,
                    ldb: call.k.col_stride as isize,
                    c: self.memory.tile,
                    ldc: COLS,
                });
                return;
            }
            for i in (0..rows.len()).step_by(SKINNY_ROWS) {
                self.products.level().skinny(&Skinny {
                    m: SKINNY_ROWS.min(rows.len() - i),
                    n: keys.len(),
                    k: s.depth,
                    a: a.add(i * s.query_stride()),
                    a_row: s.query_stride() as isize,
                    a_col: 1,
                    b,
                    b_row: call.k.row_stride as isize,
                    b_panel: NR as isize,
                    c: self.memory.tile.add(i * COLS),
                    ldc: COLS as isize,
                });
            }
        }
    }

    /// Turns a tile of scores into weights, and brings what its rows accumulated to the new maximum.
    ///
    /// # Safety
    /// As for [`AttentionTask::execute`], with the tile computed.
    unsafe fn softmax_rows(&self, rows: Range<usize>, keys: &Range<usize>) {
        let (s, m) = (self.schedule, &self.memory);
        // SAFETY: rows of the tile, the state and the sums are the task's.
        unsafe {
            self.products.level().softmax_rows(&Scores {
                tile: m.tile,
                ld: COLS,
                rows: rows.len(),
                cols: keys.len(),
                shifted: self.call.shifted,
                max: m.state.add(rows.start),
                sum: m.state.add(s.queries.longest() + rows.start),
                factor: m.step,
                weight: m.step.add(ROWS),
            });
            for (i, row) in rows.enumerate() {
                let factor = *m.step.add(i);
                if factor != 1.0 && keys.start > 0 {
                    core::slice::from_raw_parts_mut(m.sums.add(row * s.size), s.size)
                        .iter_mut()
                        .for_each(|x| *x *= factor);
                }
            }
        }
    }

    /// Adds the values of a block, weighted, to the sums.
    ///
    /// # Safety
    /// As for [`AttentionTask::softmax_rows`].
    unsafe fn accumulate(&self, rows: Range<usize>, keys: &Range<usize>) {
        let (call, s, m) = (self.call, self.schedule, &self.memory);
        let values = self.v.wrapping_offset(keys.start as isize * call.v.row_stride as isize);
        // SAFETY: the tile and packed values hold the rows and columns.
        unsafe {
            if s.few {
                return self.accumulate_few(rows, values, keys.len());
            }
            if ROUNDED && s.rounded {
                return self.accumulate_rounded(rows, keys);
            }
            let panels = row_panels(rows.len());
            for p in 0..panels.parts() {
                let panel = panels.range(p);
                // Keys that a mask leaves no weight add nothing.
                if panel.clone().all(|i| *m.step.add(ROWS + i) == 0.0) {
                    continue;
                }
                let weights = m.tile.add(panel.start * COLS).cast_const();
                for c in (0..s.size).step_by(NR) {
                    let (b, ldb) = match s.values_in_place {
                        true => (values.add(c), call.v.row_stride as usize),
                        false => (m.values.add(c * keys.len()).cast_const(), NR),
                    };
                    self.products.level().tile(&Tile {
                        k: keys.len(),
                        a: weights,
                        a_row: COLS as isize,
                        a_step: 1,
                        mr: panel.len(),
                        b,
                        ldb,
                        nr: NR.min(s.size - c),
                        c: m.sums.add((rows.start + panel.start) * s.size + c),
                        ldc: s.size as isize,
                        continued: true,
                        padded: !s.values_in_place,
                        ahead: Ahead::NOTHING,
                    });
                }
            }
        }
    }

    /// # Safety
    /// As for [`AttentionTask::accumulate`], with `values` the first of `keys` rows of V.
    unsafe fn accumulate_few(&self, rows: Range<usize>, values: *const f32, keys: usize) {
        let (s, m) = (self.schedule, &self.memory);
        // SAFETY: the rows of V are inside it; scratch holds the block's sums.
        unsafe {
            for i in (0..rows.len()).step_by(SKINNY_ROWS) {
                self.products.level().skinny(&Skinny {
                    m: SKINNY_ROWS.min(rows.len() - i),
                    n: s.size,
                    k: keys,
                    a: m.tile.add(i * COLS),
                    a_row: COLS as isize,
                    a_col: 1,
                    b: values,
                    b_row: self.call.v.row_stride as isize,
                    b_panel: NR as isize,
                    c: m.few.add(i * s.size),
                    ldc: s.size as isize,
                });
            }
            let block = core::slice::from_raw_parts(m.few, rows.len() * s.size);
            let sums = core::slice::from_raw_parts_mut(m.sums.add(rows.start * s.size), rows.len() * s.size);
            sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += *x);
        }
    }

    /// Divides by the sums of weights.
    ///
    /// # Safety
    /// As for [`AttentionTask::execute`].
    unsafe fn finish(&self) {
        let (s, m) = (self.schedule, &self.memory);
        for row in 0..self.queries.len() {
            // SAFETY: the row is the task's, in scratch and in the result.
            let (sum, from, to) = unsafe {
                let sum = *m.state.add(s.queries.longest() + row);
                let from = core::slice::from_raw_parts(m.sums.add(row * s.size), s.size);
                let to = self.out.offset((self.queries.start + row) as isize * self.call.out.row_stride as isize);
                (sum, from, core::slice::from_raw_parts_mut(to, s.size))
            };
            let empty = self.call.empty_is_zero && (sum == 0.0 || sum.is_nan());
            let scale = 1.0 / sum;
            to.iter_mut().zip(from).for_each(|(y, x)| *y = if empty { 0.0 } else { x * scale });
        }
    }
}

const _: () = assert!(ROWS.is_multiple_of(MR) && COLS.is_multiple_of(NR));
