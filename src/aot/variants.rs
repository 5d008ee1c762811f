//! The plans of a model: one for every combination of extents of its dynamic dimensions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensorc_abi::{Plan, StepOp};
use tensorc_ir::graph::Graph;
use tensorc_ir::kir::Kernel;
use tensorc_ir::parallel::try_map;
use tensorc_ir::{DenseType, TensorData};
use tensorc_passes::infer::infer_graph;
use tensorc_passes::stage::split;
use tensorc_runtime::TaskPanic;
use tensorc_runtime::plan::{LoadError, verify, verify_kernels};
use tensorc_schedule::lowered::Lowered;

use super::AotRequest;
use super::constants::Constants;
use crate::binding;
use crate::compile::{Report, Source, lowered};
use crate::error::Error;
use crate::model::Model;

/// Most plans of an artifact.
const MAX_VARIANTS: u64 = 4096;

/// A plan for fixed shapes.
pub struct Variant {
    /// Extents of the dynamic dimensions, in the order of the request's names.
    pub extents: Vec<u64>,
    /// As it is optimized.
    pub graph: Graph,
    pub plan: Plan,
    pub kernels: Vec<Kernel>,
    pub constants: Vec<TensorData>,
}

/// Compiles all variants of a request.
pub fn compile(model: &Model, request: &AotRequest) -> Result<Vec<Variant>, Error> {
    let refuse = |why: String| Err(Error::Artifact(why));
    let mut count = 1u64;
    for (name, (first, last)) in &request.ranges {
        if first > last {
            return refuse(format!("the range {first}..{last} of `{name}` is empty"));
        }
        count = count.saturating_mul(last - first + 1);
    }
    if count > MAX_VARIANTS {
        return refuse(format!(
            "the ranges have {count} combinations of extents; an artifact holds up to {MAX_VARIANTS} plans"
        ));
    }
    let (all, shared) = (combinations(request), Constants::default());
    let (done, plans) = (AtomicUsize::new(0), all.len());
    let work = |extents: Vec<u64>| {
        let made = variant(model, request, &extents, &shared).map_err(|error| within(request, &extents, error));
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if plans > 1 {
            model.compiler().progress(&format!("plan {done} of {plans}"));
        }
        made
    };
    let panicked = |payload| Error::Internal(format!("making a plan: {}", TaskPanic::from_payload(payload)));
    try_map(all, model.compiler().pool().threads(), work, panicked)
}

/// All combinations of extents in the ranges, ascending, the last dimension first.
fn combinations(request: &AotRequest) -> Vec<Vec<u64>> {
    request.ranges.values().fold(vec![vec![]], |all, (first, last)| {
        let with_each = |some: &Vec<u64>| (*first..=*last).map(|extent| [&some[..], &[extent]].concat()).collect();
        all.iter().flat_map::<Vec<Vec<u64>>, _>(with_each).collect()
    })
}

/// The error with the extents at which it came up.
fn within(request: &AotRequest, extents: &[u64], error: Error) -> Error {
    match error {
        Error::Diagnostic(diagnostic) if !extents.is_empty() => {
            let stated = request.ranges.keys().zip(extents).map(|(name, extent)| format!("{name} = {extent}"));
            Error::Artifact(format!("with {}: {diagnostic}", stated.collect::<Vec<_>>().join(", ")))
        }
        error => error,
    }
}

/// The graph for inputs of these types, in one stage.
fn typed(model: &Model, types: &[DenseType]) -> Result<Graph, Error> {
    let compiler = model.compiler();
    let mut graph = model.graph_for(types)?;
    let static_bytes = compiler.options().passes.static_bytes;
    infer_graph(&mut graph, compiler.registry(), static_bytes)?;
    match split(&graph, compiler.registry(), static_bytes)? {
        None => Ok(graph),
        Some(_) => Err(Error::Staged { model: graph.name }),
    }
}

fn variant(model: &Model, request: &AotRequest, extents: &[u64], shared: &Constants) -> Result<Variant, Error> {
    let compiler = model.compiler();
    let mut graph = model.graph().clone();
    let mut shapes: BTreeMap<String, Vec<u64>> = request.shapes.clone();
    shapes.extend(request.ranges.keys().cloned().zip(extents.iter().map(|extent| vec![*extent])));
    binding::bind(&mut graph, &shapes)?;
    let types = binding::input_types(&graph)?;
    let name = graph.name.to_string();
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
    Ok(Variant { extents: extents.to_vec(), graph, plan, kernels, constants })
}
