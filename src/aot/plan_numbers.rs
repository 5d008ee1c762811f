//! Numbers of a plan for many shapes that its size program computes: how steps are divided, and where buffers and working memory lie;
//! of nested plans, too.

use std::collections::BTreeMap;

use tensorc_abi::image::{check, flow, scratch, slot, step};
use tensorc_abi::sizes::SizeOp;
use tensorc_abi::{BufferId, FlowPlan, Plan, Scratch};
use tensorc_exec::{BYTES_PER_NS, Records, flops_per_ns};
use tensorc_ir::Extent;
use tensorc_schedule::PlacementOrder;

use super::image::StepTables;
use super::region::RegionProgram;
use crate::error::Error;

/// A plan, or one that is nested in it, with its records in an image.
pub struct PlanNumbers<'r> {
    plan: &'r Plan<Extent>,
    order: &'r PlacementOrder,
    records: &'r Records<Extent>,
    tables: &'r StepTables,
    /// By range: the position of its offset, and that of its end.
    ranges: Vec<(u32, u32)>,
    /// By buffer that begins there.
    range_of: BTreeMap<BufferId, usize>,
}

/// Working memory of a step: positions of its offset, of the bytes that workers share, and of those for each.
struct StepMemory {
    offset: u32,
    shared: u32,
    each: u32,
}

impl<'r> PlanNumbers<'r> {
    /// The numbers of a plan whose records lie in `tables`.
    pub fn new(
        plan: &'r Plan<Extent>,
        order: &'r PlacementOrder,
        records: &'r Records<Extent>,
        tables: &'r StepTables,
    ) -> PlanNumbers<'r> {
        PlanNumbers { plan, order, records, tables, ranges: vec![], range_of: BTreeMap::new() }
    }

    /// Computes them, for an image of these words, and the bytes that the plan takes.
    ///
    /// # Errors
    /// The order is that of another plan.
    pub fn write(&mut self, program: &mut RegionProgram<'_>, words: &[u64]) -> Result<u32, Error> {
        let steps = self.of_steps(program, words)?;
        let workers = program.sizes.op(SizeOp::Workers);
        let end = |program: &mut RegionProgram<'_>, memory: &StepMemory| {
            let all = program.sizes.op(SizeOp::Product(workers, memory.each));
            let begin = program.sizes.sum(memory.offset, memory.shared);
            program.sizes.sum(begin, all)
        };
        let mut ends: Vec<u32> = self.ranges.iter().map(|(_, end)| *end).collect();
        ends.extend(steps.iter().map(|memory| end(program, memory)));
        Ok(program.sizes.greatest(ends))
    }

    /// Places the words of checks that lie in the arena, whose records begin at a position.
    pub fn checks(&self, program: &mut RegionProgram<'_>, mut at: usize) {
        for check in &self.plan.checks {
            if let Some(offset) = self.offset(program, check.buffer) {
                program.store(offset, at + check::OFFSET);
                at += check::WORDS;
            }
        }
    }

    /// All numbers but the bytes of the whole; the working memory of steps that have some.
    fn of_steps(&mut self, program: &mut RegionProgram<'_>, words: &[u64]) -> Result<Vec<StepMemory>, Error> {
        self.tasks(program);
        self.place(program);
        self.slots(program);
        self.working(program, words)
    }

    /// The position of the record of a step.
    fn record(&self, i: usize) -> usize {
        self.tables.steps[1] as usize + i * step::WORDS
    }

    /// How steps are divided into tasks.
    fn tasks(&self, program: &mut RegionProgram<'_>) {
        for (i, position) in self.records.positions.iter().enumerate() {
            let (record, entry, at) = (&self.records.steps[i], &self.plan.steps[*position], self.record(i));
            let tasks = match entry.op.library() {
                Some(_) => {
                    let tasks = program.sizes.op(SizeOp::Tasks(program.word(at)));
                    program.store(tasks, at + step::TASKS);
                    tasks
                }
                None => program.sizes.extent(record[step::TASKS]),
            };
            let [flops, flops_per_ns] = [entry.flops, flops_per_ns(entry).into()].map(|n| program.sizes.extent(n));
            let [bytes, bytes_per_ns] = [entry.bytes, BYTES_PER_NS.into()].map(|n| program.sizes.extent(n));
            let computing = program.sizes.op(SizeOp::Quotient(flops, flops_per_ns));
            let moving = program.sizes.op(SizeOp::Quotient(bytes, bytes_per_ns));
            let ns = program.sizes.greatest([computing, moving]);
            let grain = program.sizes.op(SizeOp::Grain { tasks, ns });
            program.store(grain, at + step::GRAIN);
        }
    }

    /// Where buffers lie.
    fn place(&mut self, program: &mut RegionProgram<'_>) {
        for (i, range) in self.order.ranges.iter().enumerate() {
            let below: Vec<u32> = range.above.iter().map(|below| self.ranges[*below].1).collect();
            let offset = program.sizes.greatest(below);
            let bytes = program.sizes.extent(self.plan.buffer(range.buffers[0]).bytes());
            let bytes = program.sizes.op(SizeOp::Align { value: bytes, exponent: Plan::ALIGN.ilog2() });
            let end = program.sizes.sum(offset, bytes);
            self.ranges.push((offset, end));
            self.range_of.extend(range.buffers.iter().map(|buffer| (*buffer, i)));
        }
    }

    /// The offset of a buffer in the arena, if it lies there.
    fn offset(&self, program: &mut RegionProgram<'_>, id: BufferId) -> Option<u32> {
        let (offset, _) = self.ranges[*self.range_of.get(&self.plan.whole(id))?];
        let within = program.sizes.extent(self.plan.byte_offset(id));
        Some(program.sizes.sum(offset, within))
    }

    fn slots(&self, program: &mut RegionProgram<'_>) {
        let mut at = self.tables.slots[1] as usize;
        for position in &self.records.positions {
            for arg in self.plan.steps[*position].op.args() {
                if let Some(offset) = self.offset(program, arg.buffer) {
                    program.store(offset, at + slot::OFFSET);
                }
                at += slot::WORDS;
            }
        }
    }

    /// Working memory of steps.
    fn working(&self, program: &mut RegionProgram<'_>, words: &[u64]) -> Result<Vec<StepMemory>, Error> {
        let mut found = vec![];
        let mut flows = 0;
        for (i, position) in self.records.positions.iter().enumerate() {
            let (at, op) = (self.record(i), &self.plan.steps[*position].op);
            let (shared, each) = match (op.flow(), op.library()) {
                (Some(flow), _) => {
                    flows += 1;
                    self.nested(program, words, (*position, flows - 1), flow)?
                }
                (None, Some(_)) => {
                    let each = program.sizes.op(SizeOp::Scratch(program.word(at)));
                    (program.sizes.constant(0), each)
                }
                (None, None) => continue,
            };
            let below: Vec<u32> = self.order.tops[*position].iter().map(|range| self.ranges[*range].1).collect();
            let top = program.sizes.greatest(below);
            let offset = program.sizes.op(SizeOp::Align { value: top, exponent: Scratch::ALIGN.ilog2() });
            let record = words[at + step::CALL] as usize - scratch::WORDS;
            program.store(offset, record + scratch::OFFSET);
            program.store(each, record + scratch::STRIDE);
            found.push(StepMemory { offset, shared, each });
        }
        Ok(found)
    }

    /// The numbers of the nested plans of a step, the `number`-th that has some; the bytes that they share, and those for each
    /// worker, as [`FlowPlan::working`].
    fn nested(
        &self,
        program: &mut RegionProgram<'_>,
        words: &[u64],
        (position, number): (usize, usize),
        flow: &FlowPlan<Extent>,
    ) -> Result<(u32, u32), Error> {
        let lacks = || Error::Internal("a nested plan has no order of its memory".to_owned());
        let orders = self.order.nested.iter().find(|(step, _)| *step == position).ok_or_else(lacks)?;
        let (mut shared, mut each) = (vec![], vec![]);
        let bodies = flow.bodies.iter().zip(&orders.1).zip(&self.records.bodies[number]);
        for (((body, order), records), nested) in bodies.zip(&self.tables.nested[number]) {
            let mut numbers = PlanNumbers::new(body, order, records, &nested.tables);
            let steps = numbers.of_steps(program, words)?;
            let arena = program.sizes.greatest(numbers.ranges.iter().map(|(_, end)| *end).collect::<Vec<_>>());
            program.store(arena, nested.at as usize + flow::ARENA_BYTES);
            let mut ends = vec![arena];
            for memory in &steps {
                ends.push(program.sizes.sum(memory.offset, memory.shared));
                each.push(memory.each);
            }
            let end = program.sizes.greatest(ends);
            let before = flow::arena_offset(FlowPlan::<Extent>::slots(body)).unwrap_or(u64::MAX);
            let before = program.sizes.constant(before as i64);
            shared.push(program.sizes.sum(before, end));
        }
        Ok((program.sizes.greatest(shared), program.sizes.greatest(each)))
    }
}
