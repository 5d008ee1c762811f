//! Plans for many shapes: their numbers, and how much memory they take for the shapes of a request.

use tensorc_abi::{ContractionRef, Conv2d, ConvVariant, KernelId, Packing, Plan, Scratch, Step, StepOp, Weight};
use tensorc_exec::{Measure, Records, working_bytes};
use tensorc_ir::Extent;
use tensorc_ir::extent::{Binding, Example, Trace, advice};
use tensorc_ir::kir::Kernel;
use tensorc_ir::text::print_plan;
use tensorc_kernels::conv_variant;
use tensorc_passes::parts::PartShape;
use tensorc_passes::template::{Place, Template};
use tensorc_runtime::artifact::ScratchInfo;
use tensorc_schedule::lowered::Lowered;
use tensorc_schedule::{PlacedRange, PlacementOrder, PlacementRoom, plan_memory};

use super::ExtentRange;
use super::cover::{OpenTypes, Ranges, Samples, symbols_in};
use super::division::PartRequest;
use crate::error::Error;
use crate::open_plan::lower_template;

/// A plan whose numbers depend on extents, for one or more parts of a request.
pub struct OpenVariant {
    /// What numbers are of the extents, and on which conditions the plan holds.
    pub template: Template,
    /// Without kernels.
    pub lowered: Lowered<Extent>,
    pub kernels: Vec<Kernel>,
    /// Which part of the model it is.
    pub shape: PartShape,
    /// Of each symbol, an input of the plan and an axis whose extent it is.
    pub places: Vec<Place>,
}

/// How a plan for many shapes lies in memory.
pub struct OpenMemory {
    pub order: PlacementOrder,
    /// The extents for which buffers take the most bytes.
    pub largest: Vec<u64>,
    /// The numbers of the symbols for these.
    pub numbers: Vec<i64>,
    /// The ranges of the symbols in the request.
    pub ranges: Vec<(i64, i64)>,
    /// Of each symbol, the extents that it has in the request, if they are more than one.
    pub extents: Vec<Option<ExtentRange>>,
    /// The most that intermediate tensors take.
    pub arena_bytes: u64,
    /// Where working memory of steps reaches the furthest.
    pub scratch: Vec<ScratchInfo>,
}

impl OpenMemory {
    /// What the numbers of a trace are for the largest shape, as far as it goes now.
    ///
    /// # Errors
    /// A condition does not hold there.
    pub fn binding(&self, trace: &Trace) -> Result<Binding, Error> {
        trace.bind(&self.numbers).ok_or_else(nowhere)
    }
}

impl OpenVariant {
    /// Schedules a fused graph and writes its kernels. `None` if that takes numbers in place of symbols, or if the plan has steps
    /// that only plans for one shape may have.
    ///
    /// # Errors
    /// A limit of the compiler is exceeded.
    pub fn new(
        part: &PartRequest<'_>,
        mut template: Template,
        shape: &PartShape,
    ) -> Result<Option<OpenVariant>, Error> {
        let compiler = part.model.compiler();
        let choices = compiler.choices_for(Some(part.request.target));
        let places = part.add_to_template(&mut template);
        compiler.progress("plan for many shapes");
        let Ok(mut lowered) = lower_template(compiler, &mut template, choices) else { return Ok(None) };
        if !template.fixed().is_empty() || !template.trace.enter(|| is_recorded(&lowered)) {
            return Ok(None);
        }
        let kernels = std::mem::take(&mut lowered.kernels);
        Ok(Some(OpenVariant { template, lowered, kernels, shape: shape.clone(), places }))
    }

    /// The memory of the shapes of some boxes, and the plan for the largest.
    ///
    /// # Errors
    /// A step reads what none has written.
    pub fn memory(&self, types: &OpenTypes, parts: &[Ranges], whole: &Ranges) -> Result<(OpenMemory, Lowered), Error> {
        let plan = &self.lowered.plan;
        let all: Vec<Extent> = self.template.trace.enter(|| plan.buffers.iter().map(|b| b.bytes()).collect());
        let Samples { shapes, are_all } = Samples::of(parts);
        let bindings =
            || shapes.iter().filter_map(|extents| Some((extents, self.template.binding(&types.at(extents))?)));
        let size = |(extents, binding): (&Vec<u64>, Binding)| {
            let bytes = all.iter().fold(0i64, |sum, n| sum.saturating_add(binding.value(*n)));
            (bytes, extents.clone())
        };
        let (_, largest) = bindings().map(size).max().ok_or_else(nowhere)?;
        let numbers = self.template.numbers(&types.at(&largest)).ok_or_else(nowhere)?;
        let mut lowered = self.lowered.bound(&self.template.trace.bind(&numbers).ok_or_else(nowhere)?);
        plan_memory(&mut lowered)?;
        let order = PlacementOrder::of(&lowered)?;
        order.apply(&mut lowered.plan, &mut PlacementRoom::default());
        let arena_bytes = self.arena_bytes(&order, &all, types, parts);
        let mut scratch = self.scratch(&order, &all, bindings().map(|(_, binding)| binding));
        if !are_all {
            // How a call is divided decides its working memory, which grows by steps: shapes between may take a little more.
            scratch.iter_mut().for_each(|s| s.bytes = (s.bytes + s.bytes / 4).next_multiple_of(Scratch::ALIGN));
        }
        let (ranges, _) = symbols_in(&self.template, &types.corners(whole)).ok_or_else(nowhere)?;
        let extents = self.template.places().map(|place| types.dimension(place).map(|i| whole[i])).collect();
        Ok((OpenMemory { order, largest, numbers, ranges, extents, arena_bytes, scratch }, lowered))
    }

    /// The most that intermediate tensors take for any shape of the boxes.
    fn arena_bytes(&self, order: &PlacementOrder, all: &[Extent], types: &OpenTypes, parts: &[Ranges]) -> u64 {
        /// More boxes are taken as the one around them.
        const EACH: usize = 64;
        let of = |part: &Ranges| {
            let (ranges, _) = symbols_in(&self.template, &types.corners(part)).unwrap_or_default();
            let most = self.template.trace.most_within(&ranges, all.iter().copied());
            order.offsets(|range| aligned(most[range.buffers[0].0 as usize])).1
        };
        if parts.len() <= EACH {
            return parts.iter().map(of).max().unwrap_or(0);
        }
        let joined = |a: Ranges, b: &Ranges| {
            let around =
                |(a, b): (ExtentRange, &ExtentRange)| ExtentRange::all(a.first.min(b.first), a.last.max(b.last));
            a.into_iter().zip(b).map(around).collect()
        };
        of(&parts.iter().skip(1).fold(parts[0].clone(), joined))
    }

    /// Where working memory of steps reaches the furthest for some shapes.
    fn scratch(
        &self,
        order: &PlacementOrder,
        all: &[Extent],
        bindings: impl Iterator<Item = Binding>,
    ) -> Vec<ScratchInfo> {
        let calls = |op: &StepOp<Extent>| op.library().is_some() || op.flow().is_some();
        let steps: Vec<usize> = (0..order.tops.len()).filter(|i| calls(&self.lowered.plan.steps[*i].op)).collect();
        let mut found: Vec<ScratchInfo> = vec![];
        for binding in bindings {
            let bytes = |range: &PlacedRange| aligned(binding.value(all[range.buffers[0].0 as usize]));
            let (offsets, _) = order.offsets(bytes);
            for step in &steps {
                let mut op = self.lowered.plan.steps[*step].op.convert(&binding);
                order.apply_nested(*step, &mut op, &mut PlacementRoom::default());
                let working = working_bytes(&op);
                let top = order.tops[*step].iter().map(|i| offsets[*i] + bytes(&order.ranges[*i])).max().unwrap_or(0);
                let offset = top.next_multiple_of(Scratch::ALIGN) + working.shared;
                found.push(ScratchInfo { offset, bytes: working.each });
            }
            found = furthest(found);
        }
        found
    }

    /// The plan with expressions, under a name and with these names of kernels, and the conditions on which it holds.
    pub fn text(&self, name: &str, kernels: Vec<String>) -> String {
        let plan = Plan { name: name.to_owned(), kernels, ..self.lowered.plan.clone() };
        let mut text = self.enter(|_| print_plan(&plan));
        for (condition, place) in self.template.trace.guards() {
            text += &format!("if {condition} ({place})\n");
        }
        text
    }

    /// Whether an extent differs among the shapes in some ranges of the symbols.
    pub fn varies(&self, extent: Extent, ranges: &[(i64, i64)]) -> bool {
        let ends = self.enter(|trace| trace.most_within(ranges, [extent, -extent].into_iter()));
        ends[0] != -ends[1]
    }

    /// Does something with the extents of the plan.
    pub fn enter<T>(&self, work: impl FnOnce(&Trace) -> T) -> T {
        self.template.trace.enter(|| work(&self.template.trace))
    }
}

/// Working memory by size, the largest first, without what ends before that of another for every number of workers.
pub fn furthest(mut all: Vec<ScratchInfo>) -> Vec<ScratchInfo> {
    all.sort_by_key(|s| std::cmp::Reverse((s.bytes, s.offset)));
    let mut seen: Vec<ScratchInfo> = vec![];
    for scratch in all {
        if seen.last().is_none_or(|last| scratch.offset > last.offset) {
            seen.push(scratch);
        }
    }
    seen
}

fn aligned(bytes: i64) -> u64 {
    (bytes.max(0) as u64).next_multiple_of(Plan::ALIGN)
}

fn nowhere() -> Error {
    Error::Internal("a plan for many shapes holds for none".to_owned())
}

/// Measures plans for many shapes: what depends on the shape is found by size programs.
struct Unmeasured;

impl Measure<Extent> for Unmeasured {
    fn tasks(&self, _: ContractionRef<'_, Extent>) -> Extent {
        Extent::ONE
    }

    fn grain(&self, _: &Step<Extent>, _: Extent) -> Extent {
        Extent::ONE
    }

    fn variant(&self, call: &Conv2d<Extent>) -> ConvVariant {
        conv_variant(&call.convert(&Example))
    }
}

/// The records of a plan, with kernels as `number` gives them; `None` if a step has no form in an image.
pub fn records(plan: &Plan<Extent>, number: &dyn Fn(KernelId) -> u64) -> Option<Records<Extent>> {
    // That launches have iterations is a condition already.
    advice(|| Records::measured(plan, tensorc_exec::Place::Processor, number, &Unmeasured)).ok()
}

/// Whether an image has a form for the plan: there are no functions of the process and no states, and constants that depend
/// on extents are whole words.
fn is_recorded(lowered: &Lowered<Extent>) -> bool {
    let Lowered { plan, constants, .. } = lowered;
    let recorded = records(plan, &|kernel| kernel.0.into()).is_some();
    let extern_step = |step: &Step<Extent>| matches!(step.op, StepOp::Extern { .. });
    let constant = |weight: &Weight| {
        let data = &constants[weight.constant as usize];
        let fits = |n: &Extent| match data.dtype().size() {
            8 => true,
            4 => !n.is_open() || n.is_surely_from(0),
            _ => false,
        };
        !data.is_open() || (weight.packing == Packing::Plain && data.extents().iter().all(fits))
    };
    recorded && plan.states.is_empty() && !plan.steps.iter().any(extern_step) && plan.weights.iter().all(constant)
}
