//! The plans of a model: for many shapes where such plans hold, for one elsewhere.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensorc_abi::{BufferId, Plan, StepOp};
use tensorc_ir::graph::Graph;
use tensorc_ir::kir::Kernel;
use tensorc_ir::parallel::try_map;
use tensorc_ir::{DenseType, TensorData};
use tensorc_passes::parts::first_part;
use tensorc_runtime::TaskPanic;
use tensorc_runtime::plan::{LoadError, verify, verify_kernels};
use tensorc_schedule::lowered::Lowered;

use super::AotRequest;
use super::constants::Constants;
use super::cover::{CoverSearch, OpenTypes, Ranges};
use super::open::{OpenMemory, OpenVariant};
use crate::binding;
use crate::compile::{Report, Source, lowered};
use crate::error::Error;
use crate::model::Model;

/// The greatest extent of a range.
const MAX_EXTENT: u64 = 1 << 31;

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

    /// Whether a dynamic dimension has one extent in this variant.
    pub fn is_known(&self, name: &str) -> bool {
        let symbols = self.open.iter().flat_map(|(open, _)| open.template.trace.symbols());
        !symbols.into_iter().any(|symbol| *symbol.name == *name)
    }
}

/// Compiles all variants of a request.
pub fn compile(model: &Model, request: &AotRequest) -> Result<Vec<Variant>, Error> {
    for (name, range) in &request.ranges {
        let why = match range {
            _ if range.first > range.last => "is empty",
            _ if range.step == 0 => "has a step of 0",
            _ if range.last > MAX_EXTENT => "has extents that no axis has",
            _ if range.at(range.count() - 1) != range.last => "does not end at a step",
            _ => continue,
        };
        return Err(Error::Artifact(format!("the range {range} of `{name}` {why}")));
    }
    let least: Vec<u64> = request.ranges.values().map(|range| range.first).collect();
    let types = OpenTypes::new(model, request, input_types(model, request, &least)?);
    let cover = CoverSearch::run(model, request, &types)?;
    let shared = Constants::default();
    let open = cover.open.into_iter().filter(|(_, parts)| !parts.is_empty());
    let mut variants: Vec<Variant> = open
        .map(|(variant, parts)| open_variant(model, request, variant, &types, &parts, &shared))
        .collect::<Result<_, _>>()?;
    let (done, plans) = (AtomicUsize::new(0), cover.fixed.len());
    let work = |extents: Vec<u64>| {
        let made = variant(model, request, &extents, &shared).map_err(|error| within(request, &extents, error));
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if plans > 1 {
            model.compiler().progress(&format!("plan {done} of {plans}"));
        }
        made
    };
    let panicked = |payload| Error::Internal(format!("making a plan: {}", TaskPanic::from_payload(payload)));
    let fixed: Vec<Vec<u64>> = cover.fixed.into_iter().collect();
    variants.extend(try_map(fixed, model.compiler().pool().threads(), work, panicked)?);
    Ok(variants)
}

/// The error with the extents at which it came up.
pub fn within(request: &AotRequest, extents: &[u64], error: Error) -> Error {
    match error {
        Error::Diagnostic(diagnostic) if !extents.is_empty() => {
            let stated = request.ranges.keys().zip(extents).map(|(name, extent)| format!("{name} = {extent}"));
            Error::Artifact(format!("with {}: {diagnostic}", stated.collect::<Vec<_>>().join(", ")))
        }
        error => error,
    }
}

/// The graph for inputs of these types, in one part.
///
/// # Errors
/// The types do not fit the model, or shapes in it depend on values.
pub fn typed(model: &Model, types: &[DenseType]) -> Result<Graph, Error> {
    let compiler = model.compiler();
    let mut graph = model.graph_for(types)?;
    match first_part(&mut graph, compiler.typing())?.is_last() {
        true => Ok(graph),
        false => Err(Error::Parts { model: graph.name }),
    }
}

/// The types of the inputs for some extents of the dynamic dimensions.
fn input_types(model: &Model, request: &AotRequest, extents: &[u64]) -> Result<Vec<DenseType>, Error> {
    let mut graph = model.graph().clone();
    let mut shapes: BTreeMap<String, Vec<u64>> = request.shapes.clone();
    shapes.extend(request.ranges.keys().cloned().zip(extents.iter().map(|extent| vec![*extent])));
    binding::bind(&mut graph, &shapes)?;
    binding::input_types(&graph)
}

/// The plan for many shapes that shapes of some boxes take.
fn open_variant(
    model: &Model,
    request: &AotRequest,
    mut variant: OpenVariant,
    types: &OpenTypes,
    parts: &[Ranges],
    shared: &Constants,
) -> Result<Variant, Error> {
    let compiler = model.compiler();
    compiler.progress("plan memory");
    let (memory, Lowered { plan, signatures, constants, .. }) =
        variant.memory(types, parts, &request.ranges.values().copied().collect())?;
    verify(&plan).map_err(LoadError::from)?;
    verify_kernels(&plan, &signatures).map_err(LoadError::from)?;
    compiler.options().limits.admit_plan(&plan, compiler.pool().threads(), false)?;
    let open = &variant.lowered.constants;
    let share =
        |(data, open): (&TensorData, &TensorData)| if open.is_open() { Ok(open.clone()) } else { shared.share(data) };
    let constants = constants.iter().zip(open).map(share).collect::<Result<_, _>>()?;
    let graph = variant.template.graph.bound(&memory.binding(&variant.template.trace)?);
    let kernels = std::mem::take(&mut variant.kernels);
    Ok(Variant { extents: memory.largest.clone(), graph, plan, kernels, constants, open: Some((variant, memory)) })
}

fn variant(model: &Model, request: &AotRequest, extents: &[u64], shared: &Constants) -> Result<Variant, Error> {
    let compiler = model.compiler();
    let types = input_types(model, request, extents)?;
    let name = model.graph().name.to_string();
    let mut report = Report::default();
    let source = match model.fused_for(&types, &mut report).filter(|_| request.gpu.is_none()) {
        Some(fused) => Source::Fused(fused),
        None => Source::Typed(typed(model, &types)?),
    };
    let choices = compiler.choices_for(Some(request.target));
    let deadline = compiler.options().limits.deadline();
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
    Ok(Variant { extents: extents.to_vec(), graph, plan, kernels, constants, open: None })
}
