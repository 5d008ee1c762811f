//! Writes plans for many shapes into images: a region of words, and the size program that changes them for a shape.

use std::collections::BTreeMap;

use tensorc_abi::image::{open, slot};
use tensorc_abi::sizes::{Sign, SizeOp};
use tensorc_ir::Extent;
use tensorc_ir::extent::Trace;
use tensorc_ir::graph::Value;

use super::ExtentRange;
use super::image::ImageWriter;
use super::open::{OpenMemory, OpenVariant, records};
use super::plan_numbers::PlanNumbers;
use super::sizes::SizeProgram;
use crate::error::Error;

/// Words by which constants in a region are aligned.
const LINE: usize = 8;

/// The size program of a region that is being written.
pub struct RegionProgram<'t> {
    pub sizes: SizeProgram<'t>,
    /// The position of the region in the image.
    region: usize,
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
        let mut program = RegionProgram { sizes: SizeProgram::new(trace, &variant.places), region };
        program.conditions(trace, variant, memory);
        let conditions = program.sizes.len() as u64;
        // Sums that writing made are among the numbers now.
        let binding = memory.binding(trace)?;
        for (at, extent) in std::mem::take(&mut self.stores) {
            self.words[at] = binding.value(extent) as u64;
            let value = program.sizes.extent(extent);
            program.store(value, at);
        }
        let mut numbers = PlanNumbers::new(plan, &memory.order, &records, &tables);
        let bytes = numbers.write(&mut program, &self.words)?;
        numbers.checks(&mut program, checks as usize);
        // The value of the program is that of its last instruction.
        let zero = program.sizes.constant(0);
        program.sizes.act(SizeOp::Sum(bytes, zero));
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

impl RegionProgram<'_> {
    /// The position in the region of a word of the image.
    pub fn word(&self, at: usize) -> u32 {
        (at - self.region) as u32
    }

    /// Stores a value in a word of the image.
    pub fn store(&mut self, value: u32, at: usize) {
        self.sizes.act(SizeOp::Store { value, word: self.word(at) });
    }

    fn require(&mut self, extent: Extent, sign: Sign) {
        let value = self.sizes.extent(extent);
        self.sizes.act(SizeOp::Require(value, sign));
    }

    /// What tells whether the plan holds: extents of inputs, ranges of symbols, conditions of the trace.
    fn conditions(&mut self, trace: &Trace, variant: &OpenVariant, memory: &OpenMemory) {
        for (i, range) in memory.ranges.iter().enumerate() {
            let symbol = trace.symbol(i);
            self.require(symbol - range.0, Sign::NonNegative);
            self.require(symbol - range.1, Sign::NonPositive);
            if let Some(ExtentRange { first, step, .. }) = memory.extents[i].filter(|range| range.step > 1) {
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
        for (extent, sign) in trace.conditions_within(&memory.ranges) {
            self.require(extent, sign);
        }
    }
}
