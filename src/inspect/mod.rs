//! What a model takes, holds, computes and needs: as a table, as JSON, and its memory plan as a drawing.

mod drawing;
pub(crate) mod lives;
mod steps;

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::Serialize;
use serde_json::{Value as Json, json};
use tensorc_abi::{Plan, StepOp};
use tensorc_codegen::lower::lower_with;
use tensorc_ir::flow::FlowKind;
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::{Shape, TensorType};
use tensorc_passes::parts::first_part;
use tensorc_passes::{CompilePhase, PassCx, Pipeline};
use tensorc_schedule::cost::{self, Totals};
use tensorc_schedule::plan_memory;

use crate::binding::{self, DEFAULT_EXTENT};
use crate::compiler::Compiler;
use crate::error::Error;
use crate::model::Model;

pub use steps::step_text;

/// What a model takes, holds, computes and needs, for some extents.
pub struct Inspection {
    contents: Contents,
    cost: PlanCost,
    notes: Vec<String>,
    plan: Plan,
    workers: usize,
}

/// A model that cannot be inspected.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct InspectError {
    /// What is wrong with it.
    pub source: Box<Error>,
    /// Inputs or dimensions whose extents were not given and taken as 1.
    pub open: Vec<String>,
}

impl<E: Into<Error>> From<E> for InspectError {
    fn from(error: E) -> InspectError {
        InspectError { source: Box::new(error.into()), open: vec![] }
    }
}

impl Inspection {
    /// Plans a model for extents by the names of inputs or dimensions; others are 1. No code is generated.
    ///
    /// # Errors
    /// The extents contradict the model, or it does not compile.
    pub fn of(model: &Model, shapes: &BTreeMap<String, Vec<u64>>) -> Result<Inspection, InspectError> {
        model.refuse_text_operators()?;
        let compiler = model.compiler();
        let mut bound = model.graph().clone();
        binding::bind(&mut bound, shapes)?;
        let open = binding::bind_open(&mut bound, DEFAULT_EXTENT)?;
        if model.has_branches() {
            bound = model.graph_for(&binding::input_types(&bound)?)?;
        }
        let contents = Contents::of(if model.has_branches() { &bound } else { model.graph() }, compiler);
        let (plan, totals, has_more) =
            plan(compiler, bound).map_err(|error| InspectError { source: Box::new(error), open: open.clone() })?;
        let mut notes = vec![];
        if !open.is_empty() {
            notes.push(format!("{} taken as {DEFAULT_EXTENT}", open.join(", ")));
        }
        if has_more {
            notes.push("shapes depend on computed values: cost and memory are those of the first part".to_owned());
        }
        let workers = compiler.pool().threads();
        let cost = PlanCost::of(&plan, &totals, workers);
        Ok(Inspection { contents, cost, notes, plan, workers })
    }

    /// As one JSON object.
    pub fn json(&self) -> Json {
        json(&self.contents, &self.cost, &self.notes)
    }

    /// As a table.
    ///
    /// # Errors
    /// None: a text does not fail.
    pub fn table(&self) -> Result<String, fmt::Error> {
        table(&self.contents, &self.cost, &self.notes)
    }

    /// The memory plan as SVG: steps from left to right, addresses from bottom to top.
    pub fn memory_drawing(&self) -> String {
        drawing::svg(&self.plan, self.workers)
    }
}

/// The plan for a bound graph, or for its first part; whether there are more.
fn plan(compiler: &Compiler, mut graph: Graph) -> Result<(Plan, Totals, bool), Error> {
    let run = |graph: &mut Graph, phase| {
        let mut cx = PassCx::new(compiler.registry()).with_options(compiler.options().passes.clone());
        cx.threads = compiler.pool().threads();
        Pipeline::to(phase).run(graph, &mut cx)
    };
    let has_more = !first_part(&mut graph, compiler.typing())?.is_last();
    run(&mut graph, CompilePhase::Fuse)?;
    let totals = Totals::of(&cost::kernels(&graph, &compiler.target().machine())?);
    let mut lowered = lower_with(&graph, compiler.registry().math(), compiler.choices(), compiler.pool().threads())?;
    plan_memory(&mut lowered)?;
    Ok((lowered.plan, totals, has_more))
}

/// What the imported graph holds.
struct Contents {
    inputs: Vec<(String, String)>,
    outputs: Vec<(String, String)>,
    /// Most frequent first.
    operators: Vec<(&'static str, usize)>,
    /// Tensors, elements, bytes.
    parameters: (usize, u64, u64),
}

impl Contents {
    fn of(graph: &Graph, compiler: &Compiler) -> Contents {
        let mut typed = graph.clone();
        let mut cx = PassCx::new(compiler.registry()).with_options(compiler.options().passes.clone());
        if Pipeline::to(CompilePhase::Type).run(&mut typed, &mut cx).is_err() {
            // What is wrong is reported when the bound graph is compiled.
            typed = graph.clone();
        }
        let named = |name: &str, v| (name.to_owned(), type_text(&typed, &typed.resolved(v)));
        let inputs = typed.inputs().iter().map(|&n| named(&typed.node(n).name, Value { node: n, port: 0 })).collect();
        let outputs = typed.outputs().iter().map(|(name, v)| named(name, *v)).collect();
        let (mut counts, mut parameters) = (BTreeMap::new(), (0, 0, 0));
        count(graph, &mut counts, &mut parameters);
        let mut operators: Vec<(&'static str, usize)> = counts.into_iter().collect();
        operators.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), *name));
        Contents { inputs, outputs, operators, parameters }
    }
}

/// Adds the operators of a graph and of bodies, and number, elements and bytes of constants.
fn count(graph: &Graph, counts: &mut BTreeMap<&'static str, usize>, parameters: &mut (usize, u64, u64)) {
    for id in graph.node_ids() {
        match &graph.node(id).kind {
            NodeKind::Op(op) => *counts.entry(op.def.name).or_insert(0) += 1,
            NodeKind::Const(data) => {
                *parameters = (parameters.0 + 1, parameters.1 + data.len(), parameters.2 + data.ty.bytes());
            }
            NodeKind::Prim(Prim::Flow(flow)) => {
                let word = if flow.kind == FlowKind::If { "(branch)" } else { "(loop)" };
                *counts.entry(word).or_insert(0) += 1;
            }
            NodeKind::Prim(_) => *counts.entry("(primitive)").or_insert(0) += 1,
            NodeKind::Fused(_) => *counts.entry("(cluster)").or_insert(0) += 1,
            NodeKind::Input => {}
        }
    }
    graph.bodies().for_each(|body| count(body, counts, parameters));
}

pub(crate) fn type_text(graph: &Graph, ty: &TensorType) -> String {
    let dtype = ty.dtype.map_or("?", |d| d.name());
    match &ty.shape {
        Shape::Unranked => format!("{dtype}[*]"),
        Shape::Ranked(dims) => {
            let dims: Vec<String> = dims.iter().map(|d| graph.dims.display(*d)).collect();
            format!("{dtype}[{}]", dims.join(", "))
        }
    }
}

/// What running the plan once takes.
#[derive(Serialize)]
struct PlanCost {
    flops: u64,
    /// Bytes moved, each operand of a step counted once as far as the step reads it.
    traffic_bytes: u64,
    /// Bytes moved, without those of constants.
    activation_traffic_bytes: u64,
    /// Time by the cost model, on one core.
    estimated_us: f64,
    steps: usize,
    kernels: usize,
    library_calls: LibraryCalls,
    copies: usize,
    functions: usize,
    weight_bytes: u64,
    /// Bytes of a run besides its inputs, outputs and weights, and the least that they could be.
    planned_peak_bytes: u64,
    lower_bound_bytes: u64,
    /// Their quotient; 1 if nothing is planned.
    peak_to_lower_bound: f64,
    /// Intermediate tensors alone.
    planned_activation_bytes: u64,
    /// The most working memory of a step for each worker, and how many workers there are.
    scratch_bytes: u64,
    workers: usize,
}

/// Steps that are calls of libraries.
#[derive(Serialize)]
struct LibraryCalls {
    gemm: usize,
    conv: usize,
    cublaslt: usize,
    cudnn: usize,
}

impl PlanCost {
    fn of(plan: &Plan, totals: &Totals, workers: usize) -> PlanCost {
        let all = plan.all_steps();
        let count = |is: fn(&StepOp) -> bool| all.iter().filter(|s| is(&s.op)).count();
        let (peak, bound) = (plan.run_bytes(workers), plan.run_lower_bound_bytes(workers));
        PlanCost {
            flops: plan.steps.iter().map(|s| s.flops).sum(),
            traffic_bytes: plan.steps.iter().map(|s| s.bytes).sum(),
            activation_traffic_bytes: totals.activations,
            estimated_us: totals.time as f64 / 1e6,
            steps: plan.steps.len(),
            kernels: count(|op| matches!(op, StepOp::Launch { .. })),
            library_calls: LibraryCalls {
                gemm: count(|op| matches!(op, StepOp::Gemm { .. })),
                conv: count(|op| matches!(op, StepOp::Conv { .. })),
                cublaslt: count(|op| matches!(op, StepOp::Vendor { call, .. } if call.library() == "cuBLASLt")),
                cudnn: count(|op| matches!(op, StepOp::Vendor { call, .. } if call.library() == "cuDNN")),
            },
            copies: count(|op| matches!(op, StepOp::Copy { .. })),
            functions: count(|op| matches!(op, StepOp::Extern { .. })),
            weight_bytes: plan.weight_bytes(),
            planned_peak_bytes: peak,
            lower_bound_bytes: bound,
            peak_to_lower_bound: if bound == 0 { 1.0 } else { peak as f64 / bound as f64 },
            planned_activation_bytes: plan.arena_bytes,
            scratch_bytes: plan.scratch.iter().map(|scratch| scratch.bytes).max().unwrap_or(0),
            workers,
        }
    }
}

fn json(model: &Contents, cost: &PlanCost, notes: &[String]) -> Json {
    let signature = |side: &[(String, String)]| -> Vec<Json> {
        side.iter().map(|(name, ty)| json!({ "name": name, "type": ty })).collect()
    };
    let operators: serde_json::Map<String, Json> =
        model.operators.iter().map(|(name, n)| ((*name).to_owned(), json!(n))).collect();
    let mut all = json!({
        "inputs": signature(&model.inputs),
        "outputs": signature(&model.outputs),
        "operators": operators,
        "constants": model.parameters.0,
        "parameters": model.parameters.1,
        "parameter_bytes": model.parameters.2,
        "notes": notes,
    });
    if let (Json::Object(all), Json::Object(cost)) = (&mut all, json!(cost)) {
        all.extend(cost);
    }
    all
}

fn table(model: &Contents, cost: &PlanCost, notes: &[String]) -> Result<String, fmt::Error> {
    let mut text = String::new();
    for (title, side) in [("inputs", &model.inputs), ("outputs", &model.outputs)] {
        writeln!(text, "{title}")?;
        let width = side.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, ty) in side {
            writeln!(text, "  {name:<width$}  {ty}")?;
        }
    }
    let total: usize = model.operators.iter().map(|(_, n)| n).sum();
    writeln!(text, "operators  {total}")?;
    for (name, n) in &model.operators {
        writeln!(text, "  {n:>6}  {name}")?;
    }
    let (tensors, elements, bytes) = model.parameters;
    writeln!(text, "parameters   {elements} in {tensors} constants, {}", megabytes(bytes))?;
    writeln!(
        text,
        "arithmetic   {:.3} GFLOP, {} moved, {} without constants, {:.3} ms by the cost model",
        cost.flops as f64 / 1e9,
        megabytes(cost.traffic_bytes),
        megabytes(cost.activation_traffic_bytes),
        cost.estimated_us / 1e3
    )?;
    let LibraryCalls { gemm, conv, cublaslt: products, cudnn: convolutions } = cost.library_calls;
    writeln!(
        text,
        "steps        {}: {} kernels, {} matrix products, {} convolutions, {} copies, {} functions",
        cost.steps, cost.kernels, gemm, conv, cost.copies, cost.functions
    )?;
    if (products, convolutions) != (0, 0) {
        writeln!(text, "libraries    {products} products by cuBLASLt, {convolutions} convolutions by cuDNN")?;
    }
    writeln!(text, "weights      {} as the kernels read them, before packing", megabytes(cost.weight_bytes))?;
    writeln!(
        text,
        "memory       {} planned for {} workers, lower bound {}, ratio {:.3}",
        megabytes(cost.planned_peak_bytes),
        cost.workers,
        megabytes(cost.lower_bound_bytes),
        cost.peak_to_lower_bound
    )?;
    writeln!(
        text,
        "activations  {}, besides at most {} of working memory for each worker",
        megabytes(cost.planned_activation_bytes),
        megabytes(cost.scratch_bytes)
    )?;
    notes.iter().try_for_each(|note| writeln!(text, "note: {note}"))?;
    Ok(text)
}

fn megabytes(bytes: u64) -> String {
    match bytes {
        0..100_000 => format!("{bytes} B"),
        _ => format!("{:.2} MB", bytes as f64 / 1e6),
    }
}
