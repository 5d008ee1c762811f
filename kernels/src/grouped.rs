//! How products are cut into tasks whose terms lie in groups of 32 bits: four bytes, or two bf16.

use tensorc_abi::BatchedGemm;

use crate::blocking::{EvenSplit, row_panels, tasks_worth};
use crate::gemm::{STREAM_BYTES, TASK_FLOPS, TASKS};
use crate::isa_levels::NR;

/// Most groups of terms in one block, of which the panels stay in the second-level cache.
const DEPTH: usize = 256;
/// Most row panels of a task, whose rows of A are read once for each panel of columns.
const TASK_ROW_PANELS: usize = 42;

/// The division of a product into tasks; a function of the call alone.
pub(crate) struct GroupedTasks {
    batches: usize,
    has_elements: bool,
    /// Panels of rows.
    pub rows: EvenSplit,
    pub row_blocks: EvenSplit,
    /// Panels of columns.
    pub panels: EvenSplit,
    /// Groups of terms.
    pub groups: usize,
    pub depth: EvenSplit,
}

impl GroupedTasks {
    /// For so many terms in a group, of which `speed` are computed in the time of a term of f32.
    pub fn new(call: &BatchedGemm, terms: usize, speed: f64) -> GroupedTasks {
        let batches = call.batch.iter().product::<u64>() as usize;
        let (m, n, k) = (call.m as usize, call.n as usize, call.k as usize);
        let flops = 2.0 * m as f64 * n as f64 * k as f64 * batches as f64;
        let (rows, panels, groups) = (row_panels(m), n.div_ceil(NR), k.div_ceil(terms));
        let mut want = tasks_worth(flops / (speed * TASK_FLOPS), TASKS).div_ceil(batches.max(1));
        if rows.parts() == 1 {
            want = want.max((groups * panels * NR * size_of::<u32>() / STREAM_BYTES).min(2 * TASKS));
        }
        let columns = want.min(panels.max(1));
        let row_blocks = want.div_ceil(columns).max(rows.parts().div_ceil(TASK_ROW_PANELS));
        GroupedTasks {
            batches,
            has_elements: m > 0 && n > 0,
            rows,
            row_blocks: EvenSplit::into(rows.parts(), row_blocks),
            panels: EvenSplit::into(panels, columns),
            groups,
            depth: EvenSplit::by(groups, DEPTH),
        }
    }

    pub fn tasks(&self) -> usize {
        if self.has_elements { self.batches * self.row_blocks.parts() * self.panels.parts() } else { 0 }
    }
}
