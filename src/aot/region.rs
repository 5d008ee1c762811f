//! Writes plans for many shapes into images: a region of words, and the size program that changes them for a shape.

use std::collections::BTreeMap;

use tensorc_abi::image::{check, open, scratch, slot, step};
use tensorc_abi::sizes::{Sign, SizeOp};
use tensorc_abi::{BufferId, Plan, Scratch, StepOp, WorkingBytes};
use tensorc_exec::{BYTES_PER_NS, Records, flops_per_ns};
use tensorc_ir::Extent;
use tensorc_ir::extent::Trace;
use tensorc_ir::graph::Value;

use super::ExtentRange;
use super::image::{ImageWriter, StepTables};
use super::open::{OpenMemory, OpenVariant, records};
use super::sizes::SizeProgram;
use crate::error::Error;

/// Words by which constants in a region are aligned.
const LINE: usize = 8;

/// The size program of a region that is being written.
struct RegionProgram<'r, 't> {
    sizes: SizeProgram<'t>,
    /// The position of the region in the image.
    region: usize,
    plan: &'r Plan<Extent>,
    memory: &'r OpenMemory,
    records: &'r Records<Extent>,
    tables: &'r StepTables,
    /// Of each step, where the words of its call lie in the image, if it has some.
    calls: Vec<usize>,
    /// By range: the position of its offset, and that of its end.
    ranges: Vec<(u32, u32)>,
    /// By buffer that begins there.
    range_of: BTreeMap<BufferId, usize>,
}

impl ImageWriter {
    /// Writes a plan for many shapes, as part of its trace.
    pub fn open_variant(
        &mut self,
        trace: &Trace,
        variant: &OpenVariant,
        memory: &OpenMemory,
        numbers: &[u32],
        weights: &[u64],
    ) -> Result<u64, Error> {
        let plan = &variant.lowered.plan;
        let records = records(plan, &|kernel| numbers[kernel.0 as usize].into())
            .ok_or_else(|| Error::Internal("a plan for many shapes has no form in an artifact".to_owned()))?;
        // Texts are the same for every shape: they lie outside of the region.
        for step in plan.all_steps() {
            self.text(&step.name);
        }
        for check in &plan.checks {
            self.text(&check.requirement.before());
            self.text(&check.requirement.behind());
        }
        let region = self.words.len();
        let constants = self.constants(variant, region);
        let weight = |i: usize| match constants.get(&i) {
            Some(at) => (slot::REGION, *at),
            None => (slot::WEIGHTS, weights[i]),
        };
        let tables = self.steps(plan, &records, &weight);
        let (shapes, checks) = (self.shapes(plan), self.checks(plan));
        let region_end = self.words.len();
        let mut program = RegionProgram {
            sizes: SizeProgram::new(trace, &variant.places),
            region,
            plan,
            memory,
            records: &records,
            tables: &tables,
            calls: (0..records.steps.len())
                .map(|i| self.words[tables.steps[1] as usize + i * step::WORDS + step::CALL] as usize)
                .collect(),
            ranges: vec![],
            range_of: BTreeMap::new(),
        };
        program.conditions(trace, variant);
        let conditions = program.sizes.len() as u64;
        // Sums that writing made are among the numbers now.
        let binding = memory.binding(trace)?;
        for (at, extent) in std::mem::take(&mut self.stores) {
            self.words[at] = binding.value(extent) as u64;
            let value = program.sizes.extent(extent);
            program.store(value, at);
        }
        program.tasks();
        program.place();
        program.slots();
        program.checks(checks as usize);
        program.finish();
        let words = program.sizes.words()?;
        let (count, program) = (words.len() as u64, self.put(&words));
        let furthest: Vec<u64> = memory.scratch.iter().flat_map(|s| [s.offset, s.bytes]).collect();
        let (furthest_count, furthest) = (memory.scratch.len() as u64, self.put(&furthest));
        let mut record = [0; open::WORDS];
        record[open::REGION..open::PROGRAM].copy_from_slice(&[region as u64, (region_end - region) as u64]);
        record[open::PROGRAM..open::CONDITIONS].copy_from_slice(&[count, program]);
        record[open::CONDITIONS] = conditions;
        record[open::SCRATCH..].copy_from_slice(&[furthest_count, furthest]);
        let record = self.put(&record);
        Ok(self.variant_record(memory.arena_bytes, &tables, shapes, (plan.checks.len(), checks), record))
    }

    /// Writes the constants that depend on extents; their offsets in bytes, by weight.
    fn constants(&mut self, variant: &OpenVariant, region: usize) -> BTreeMap<usize, u64> {
        let mut offsets = BTreeMap::new();
        for (i, weight) in variant.lowered.plan.weights.iter().enumerate() {
            let data = &variant.lowered.constants[weight.constant as usize];
            if !data.is_open() {
                continue;
            }
            let used = self.words.len() - region;
            self.words.resize(region + used.next_multiple_of(LINE), 0);
            let elements = data.extents();
            let words: Vec<Extent> = match data.dtype().size() {
                8 => elements,
                _ => elements.chunks(2).map(pair).collect(),
            };
            offsets.insert(i, (self.put(&words) as usize - region) as u64 * 8);
        }
        offsets
    }
}

/// Two elements of 32 bits, or one, as a word.
fn pair(elements: &[Extent]) -> Extent {
    // The sign of the first does not reach into the second.
    let low = elements[0].known().map_or(elements[0], |n| i64::from(n as u32).into());
    elements.get(1).map_or(low, |high| low + *high * (1i64 << 32))
}

impl RegionProgram<'_, '_> {
    fn store(&mut self, value: u32, at: usize) {
        self.sizes.act(SizeOp::Store { value, word: (at - self.region) as u32 });
    }

    fn require(&mut self, extent: Extent, sign: Sign) {
        let value = self.sizes.extent(extent);
        self.sizes.act(SizeOp::Require(value, sign));
    }

    /// What tells whether the plan holds: extents of inputs, ranges of symbols, conditions of the trace.
    fn conditions(&mut self, trace: &Trace, variant: &OpenVariant) {
        for (i, range) in self.memory.ranges.iter().enumerate() {
            let symbol = trace.symbol(i);
            self.require(symbol - range.0, Sign::NonNegative);
            self.require(symbol - range.1, Sign::NonPositive);
            if let Some(ExtentRange { first, step, .. }) = self.memory.extents[i].filter(|range| range.step > 1) {
                self.require(symbol.rem_floor(step) - first % step, Sign::Zero);
            }
        }
        let graph = &variant.template.graph;
        for (input, node) in graph.inputs().iter().enumerate() {
            let dims = graph.dense(Value { node: *node, port: 0 }).map(|ty| ty.dims.clone());
            for (axis, extent) in dims.iter().flat_map(|dims| dims.all()).enumerate() {
                let given = self.sizes.op(SizeOp::Extent { input: input as u32, axis: axis as u32 });
                let own = self.sizes.extent(extent);
                if given != own {
                    let minus = self.sizes.constant(-1);
                    let own = self.sizes.op(SizeOp::Product(own, minus));
                    let difference = self.sizes.sum(given, own);
                    self.sizes.act(SizeOp::Require(difference, Sign::Zero));
                }
            }
        }
        for (extent, sign) in trace.conditions_within(&self.memory.ranges) {
            self.require(extent, sign);
        }
    }

    /// How steps are divided into tasks.
    fn tasks(&mut self) {
        for (i, position) in self.records.positions.iter().enumerate() {
            let (record, entry) = (&self.records.steps[i], &self.plan.steps[*position]);
            let at = self.tables.steps[1] as usize + i * step::WORDS;
            let tasks = match entry.op.library() {
                Some(_) => {
                    let tasks = self.sizes.op(SizeOp::Tasks((at - self.region) as u32));
                    self.store(tasks, at + step::TASKS);
                    tasks
                }
                None => self.sizes.extent(record[step::TASKS]),
            };
            let [flops, flops_per_ns] = [entry.flops, flops_per_ns(entry).into()].map(|n| self.sizes.extent(n));
            let [bytes, bytes_per_ns] = [entry.bytes, BYTES_PER_NS.into()].map(|n| self.sizes.extent(n));
            let computing = self.sizes.op(SizeOp::Quotient(flops, flops_per_ns));
            let moving = self.sizes.op(SizeOp::Quotient(bytes, bytes_per_ns));
            let ns = self.sizes.greatest([computing, moving]);
            let grain = self.sizes.op(SizeOp::Grain { tasks, ns });
            self.store(grain, at + step::GRAIN);
        }
    }

    /// Where buffers lie.
    fn place(&mut self) {
        for (i, range) in self.memory.order.ranges.iter().enumerate() {
            let below: Vec<u32> = range.above.iter().map(|below| self.ranges[*below].1).collect();
            let offset = self.sizes.greatest(below);
            let bytes = self.sizes.extent(self.plan.buffer(range.buffers[0]).bytes());
            let bytes = self.sizes.op(SizeOp::Align { value: bytes, exponent: Plan::ALIGN.ilog2() });
            let end = self.sizes.sum(offset, bytes);
            self.ranges.push((offset, end));
            self.range_of.extend(range.buffers.iter().map(|buffer| (*buffer, i)));
        }
    }

    /// The offset of a buffer in the arena, if it lies there.
    fn offset(&mut self, id: BufferId) -> Option<u32> {
        let (offset, _) = self.ranges[*self.range_of.get(&self.plan.whole(id))?];
        let within = self.sizes.extent(self.plan.byte_offset(id));
        Some(self.sizes.sum(offset, within))
    }

    fn slots(&mut self) {
        let mut at = self.tables.slots[1] as usize;
        for position in &self.records.positions {
            for arg in self.plan.steps[*position].op.args() {
                if let Some(offset) = self.offset(arg.buffer) {
                    self.store(offset, at + slot::OFFSET);
                }
                at += slot::WORDS;
            }
        }
    }

    fn checks(&mut self, mut at: usize) {
        for buffer in self.plan.checks.iter().map(|check| check.buffer).collect::<Vec<_>>() {
            if let Some(offset) = self.offset(buffer) {
                self.store(offset, at + check::OFFSET);
                at += check::WORDS;
            }
        }
    }

    /// Working memory of steps, and the bytes of all.
    fn finish(&mut self) {
        let mut ends: Vec<u32> = self.ranges.iter().map(|(_, end)| *end).collect();
        for (i, position) in self.records.positions.iter().enumerate() {
            let (at, op) = (self.tables.steps[1] as usize + i * step::WORDS, &self.plan.steps[*position].op);
            let (shared, each) = match op {
                StepOp::Flow { flow, .. } => {
                    let WorkingBytes { shared, each } = flow.working();
                    (self.sizes.constant(shared as i64), self.sizes.constant(each as i64))
                }
                _ if op.library().is_some() => {
                    let each = self.sizes.op(SizeOp::Scratch((at - self.region) as u32));
                    (self.sizes.constant(0), each)
                }
                _ => continue,
            };
            let below: Vec<u32> = self.memory.order.tops[*position].iter().map(|range| self.ranges[*range].1).collect();
            let top = self.sizes.greatest(below);
            let offset = self.sizes.op(SizeOp::Align { value: top, exponent: Scratch::ALIGN.ilog2() });
            let words = self.calls[i] - scratch::WORDS;
            self.store(offset, words + scratch::OFFSET);
            self.store(each, words + scratch::STRIDE);
            let workers = self.sizes.op(SizeOp::Workers);
            let all = self.sizes.op(SizeOp::Product(workers, each));
            let begin = self.sizes.sum(offset, shared);
            let end = self.sizes.sum(begin, all);
            ends.push(end);
        }
        let most = self.sizes.greatest(ends);
        let zero = self.sizes.constant(0);
        // The value of the program is that of its last instruction.
        self.sizes.act(SizeOp::Sum(most, zero));
    }
}
