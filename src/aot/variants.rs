//! The plans of a model: for many shapes where such plans hold, for one elsewhere.

use std::sync::atomic::{AtomicUsize, Ordering};

use tensorc_abi::{BufferId, Plan, StepOp};
use tensorc_ir::TensorData;
use tensorc_ir::graph::Graph;
use tensorc_ir::kir::Kernel;
use tensorc_ir::parallel::try_map;
use tensorc_passes::parts::PartShape;
use tensorc_runtime::TaskPanic;
use tensorc_runtime::plan::{LoadError, verify, verify_kernels};
use tensorc_schedule::lowered::Lowered;

use super::constants::Constants;
use super::cover::{CoverSearch, Ranges};
use super::division::PartRequest;
use super::open::{OpenMemory, OpenVariant};
use crate::compile::{Report, Source, lowered};
use crate::error::Error;

/// A plan.
pub struct Variant {
    /// Extents of the dynamic dimensions, in the order of the request's names: of a plan for many shapes, the largest.
    pub extents: Vec<u64>,
    /// As it is optimized.
    pub graph: Graph,
    /// For these extents.
    pub plan: Plan,
    pub kernels: Vec<Kernel>,
    pub constants: Vec<TensorData>,
    /// Which part of the model it is.
    pub shape: PartShape,
    /// What a plan for many shapes is for others.
    pub open: Option<(OpenVariant, OpenMemory)>,
}

impl Variant {
    /// The text of an extent of a buffer that depends on extents of inputs.
    pub fn expression(&self, id: BufferId, axis: usize) -> Option<String> {
        let (open, memory) = self.open.as_ref()?;
        let extent = open.lowered.plan.buffer(id).dims.get(axis)?;
        (extent.is_open() && open.varies(*extent, &memory.ranges)).then(|| open.template.trace.display(*extent))
    }

    /// The greatest extents of an output, and the most bytes that it has.
    pub fn most(&self, output: usize) -> (Vec<u64>, u64) {
        let Some((open, memory)) = &self.open else {
            let buffer = self.plan.buffer(self.plan.outputs[output]);
            return (buffer.dims.clone(), buffer.bytes());
        };
        let buffer = open.lowered.plan.buffer(open.lowered.plan.outputs[output]);
        let all = open.enter(|trace| {
            let extents = buffer.dims.iter().copied().chain([buffer.bytes()]);
            trace.most_within(&memory.ranges, extents.collect::<Vec<_>>().into_iter())
        });
        let mut all: Vec<u64> = all.into_iter().map(|n| n.max(0) as u64).collect();
        let bytes = all.pop().unwrap_or(0);
        (all, bytes)
    }

    /// Whether a dynamic dimension has one extent in this variant.
    pub fn is_known(&self, name: &str) -> bool {
        let symbols = self.open.iter().flat_map(|(open, _)| open.template.trace.symbols());
        !symbols.into_iter().any(|symbol| *symbol.name == *name)
    }
}

/// Compiles all variants of a part.
pub fn compile(part: &PartRequest<'_>, shared: &Constants) -> Result<Vec<Variant>, Error> {
    let cover = CoverSearch::run(part)?;
    let open = cover.open.into_iter().filter(|(_, boxes)| !boxes.is_empty());
    let mut variants: Vec<Variant> =
        open.map(|(variant, boxes)| open_variant(part, variant, &boxes, shared)).collect::<Result<_, _>>()?;
    let (done, plans) = (AtomicUsize::new(0), cover.fixed.len());
    let compiler = part.model.compiler();
    let work = |extents: Vec<u64>| {
        let made = match variant(part, &extents, shared) {
            // Values tell in a run whether it is one of the shapes that the model does not take.
            Err(Error::Diagnostic(_)) if !part.refuses => Ok(None),
            made => made.map(Some).map_err(|error| part.within(&extents, error)),
        };
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if plans > 1 {
            compiler.progress(&format!("plan {done} of {plans}"));
        }
        made
    };
    let panicked = |payload| Error::Internal(format!("making a plan: {}", TaskPanic::from_payload(payload)));
    let fixed: Vec<Vec<u64>> = cover.fixed.into_iter().collect();
    variants.extend(try_map(fixed, compiler.pool().threads(), work, panicked)?.into_iter().flatten());
    match variants.is_empty() {
        true => Err(Error::Artifact(format!("the model takes none of the numbers {}", part.names.join(", ")))),
        false => Ok(variants),
    }
}

/// The plan for many shapes that shapes of some boxes take.
fn open_variant(
    part: &PartRequest<'_>,
    mut variant: OpenVariant,
    boxes: &[Ranges],
    shared: &Constants,
) -> Result<Variant, Error> {
    let compiler = part.model.compiler();
    compiler.progress("plan memory");
    let (memory, Lowered { plan, signatures, constants, .. }) = variant.memory(&part.types, boxes, &part.ranges)?;
    verify(&plan).map_err(LoadError::from)?;
    verify_kernels(&plan, &signatures).map_err(LoadError::from)?;
    compiler.options().limits.admit_plan(&plan, compiler.pool().threads(), false)?;
    let open = &variant.lowered.constants;
    let share =
        |(data, open): (&TensorData, &TensorData)| if open.is_open() { Ok(open.clone()) } else { shared.share(data) };
    let constants = constants.iter().zip(open).map(share).collect::<Result<_, _>>()?;
    let graph = variant.template.graph.bound(&memory.binding(&variant.template.trace)?);
    let kernels = std::mem::take(&mut variant.kernels);
    let (extents, shape) = (memory.largest.clone(), variant.shape.clone());
    Ok(Variant { extents, graph, plan, kernels, constants, shape, open: Some((variant, memory)) })
}

fn variant(part: &PartRequest<'_>, extents: &[u64], shared: &Constants) -> Result<Variant, Error> {
    let PartRequest { model, request, .. } = part;
    let compiler = model.compiler();
    let types = part.types.at(extents);
    let name = model.graph().name.to_string();
    let mut report = Report::default();
    let (source, shape) = match part.fused(&types, &mut report).filter(|_| request.gpu.is_none()) {
        Some((fused, shape)) => (Source::Fused(fused), shape),
        None => {
            let (graph, shape) = part.typed(&types)?;
            (Source::Typed(graph), shape)
        }
    };
    let choices = compiler.choices_for(Some(request.target));
    let deadline = compiler.deadline();
    let (mut graph, lowered) = lowered(compiler, source, choices, deadline, &mut report)?;
    let Lowered { plan, kernels, signatures, constants, .. } = lowered;
    verify(&plan).map_err(LoadError::from)?;
    verify_kernels(&plan, &signatures).map_err(LoadError::from)?;
    let constants = constants.iter().map(|data| shared.share(data)).collect::<Result<_, _>>()?;
    graph.map_constants(&mut |data| shared.share(data))?;
    if !plan.states.is_empty() {
        return Err(Error::Artifact(format!("model `{name}` changes states, which an artifact does not")));
    }
    let external = plan.all_steps().into_iter().find_map(|step| match &step.op {
        StepOp::Extern { operator, .. } => Some((operator, &step.name)),
        _ => None,
    });
    if let Some((operator, node)) = external {
        let why = format!("operator `{operator}` at `{node}` is a function of this process, which an artifact lacks");
        return Err(Error::Artifact(why));
    }
    let vendor = plan.steps.iter().find_map(|step| match &step.op {
        StepOp::Vendor { call, .. } => Some((call.library(), &step.name)),
        _ => None,
    });
    if let Some((library, node)) = vendor {
        return Err(Error::Artifact(format!("`{node}` is a call of {library}, which an artifact does not link")));
    }
    let library = plan.steps.iter().find(|step| !matches!(step.op, StepOp::Launch { .. } | StepOp::Copy { .. }));
    if let Some(step) = library.filter(|_| request.gpu.is_some()) {
        return Err(Error::Artifact(format!("`{}` is a call of a library for processors", step.name)));
    }
    Ok(Variant { extents: extents.to_vec(), graph, plan, kernels, constants, shape, open: None })
}
