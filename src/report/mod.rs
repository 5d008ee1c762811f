//! A model as a page: its graph, the kernels that became of it, what they take, where memory goes, and what passes did.
//!
//! [`ModelReport`] gathers; `page` draws. The page is one HTML file that needs no network. Without measurements the same
//! model gives the same bytes.

mod nodes;
mod page;
mod part;
mod passes;
mod strings;
mod unsupported;

use serde::Serialize;
use tensorc_ir::graph::{Graph, Value};
use tensorc_passes::parts::{PartShape, first_part, next_part};
use tensorc_runtime::roofline::Roofline;

use crate::compare::{Comparison, NodeError};
use crate::compiler::Compiler;
use crate::error::Error;
use crate::inspect::type_text;
use crate::model::Model;
use crate::parts::RanPart;
use crate::session::Session;
use crate::tensor::Tensor;
use nodes::{Fate, NodeRow, Nodes, UserGraph};
use part::{Measured, PartRecord};
use strings::Strings;

/// What a report is to hold.
#[derive(Clone, Copy, Debug)]
pub struct ReportRequest {
    /// Runs of which the median times are taken; `None`: nothing is measured, and the same model gives the same bytes.
    pub repeat: Option<u32>,
}

impl Default for ReportRequest {
    fn default() -> ReportRequest {
        ReportRequest { repeat: Some(10) }
    }
}

/// What is known of a model and of what was compiled.
#[derive(Serialize)]
pub struct ModelReport {
    model: String,
    version: &'static str,
    /// What it was compiled for.
    target: String,
    notes: Vec<String>,
    inputs: Vec<(String, String)>,
    outputs: Vec<(String, String)>,
    strings: Strings,
    nodes: Nodes,
    parts: Vec<PartRecord>,
    machine: Option<Machine>,
    errors: Option<Errors>,
    unsupported: Vec<unsupported::Refused>,
    #[serde(skip)]
    rows: Vec<NodeRow>,
}

/// What the machine does at most.
#[derive(Serialize)]
struct Machine {
    threads: usize,
    flops: Option<f64>,
    memory: f64,
    cache: f64,
    #[serde(skip)]
    roofline: Roofline,
}

/// Differences of values between two compilations.
#[derive(Serialize)]
struct Errors {
    /// What was compared with what.
    title: String,
    /// What was found.
    verdict: String,
    /// Node, largest absolute difference, that relative to the largest magnitude, elements beyond the tolerance and in all.
    rows: Vec<(u32, f64, f64, u64, u64)>,
    /// The first node that differs.
    first: Option<u32>,
}

impl ModelReport {
    /// Compiles a model for inputs in signature order, part by part where shapes depend on values, and measures what the request says.
    ///
    /// # Errors
    /// The model does not compile for these inputs, or a run fails.
    pub fn of(model: &Model, inputs: &[Tensor], request: &ReportRequest) -> Result<ModelReport, Error> {
        ModelReport::of_graph(model.compiler(), model.graph_like(inputs)?, inputs, request)
    }

    /// As [`ModelReport::of`], of a graph whose inputs have known types.
    ///
    /// # Errors
    /// As there.
    pub fn of_graph(
        compiler: &Compiler,
        graph: Graph,
        inputs: &[Tensor],
        request: &ReportRequest,
    ) -> Result<ModelReport, Error> {
        let mut user = UserGraph::of(&graph);
        let mut strings = Strings::default();
        let typed = typed_parts(compiler, &graph, inputs)?;
        let divided = typed.len() > 1;
        let mut parts = vec![];
        for part in typed {
            user.learn_types(&part.graph);
            let measured = request.repeat.map(|repeat| Measured { inputs: part.inputs, repeat });
            let mut record = part::compile(compiler, part.graph, measured, &user, &mut strings)?;
            user.set_fate(record.steps.nodes.iter().flatten().copied(), Fate::Computed);
            record.hosts = part.shape.hosts.iter().filter_map(|call| user.position(call.node)).collect();
            user.set_fate(record.hosts.iter().copied(), Fate::Host);
            parts.push(record);
        }
        let machine = match (request.repeat, compiler.gpu()) {
            (Some(_), None) => Some(Machine::measure(compiler)?),
            _ => None,
        };
        if let Some(machine) = &machine {
            parts.iter_mut().for_each(|part: &mut PartRecord| part.steps.compare_with(&machine.roofline));
        }
        let mut notes = vec![];
        if divided {
            notes.push(format!(
                "Shapes depend on values: the model is compiled in {} parts, those of this run.",
                parts.len()
            ));
        }
        let value = |node| Value { node, port: 0 };
        let given = graph.inputs().iter().map(|n| (graph.node(*n).name.to_string(), type_of(&graph, value(*n))));
        let found = |name: &str| user.rows.iter().find(|row| row.op == "output" && *row.name == *name);
        let results = graph
            .outputs()
            .iter()
            .map(|(name, _)| (name.to_string(), found(name).map_or_else(String::new, |row| row.ty.clone())));
        Ok(ModelReport {
            model: graph.name.clone(),
            version: env!("CARGO_PKG_VERSION"),
            target: target_text(compiler),
            notes,
            inputs: given.collect(),
            outputs: results.collect(),
            nodes: Nodes::of(&user.rows, &user.bodies, &mut strings),
            strings,
            parts,
            machine,
            errors: None,
            unsupported: vec![],
            rows: user.rows,
        })
    }

    /// Names the model, for the title of the page.
    #[must_use]
    pub fn named(self, name: &str) -> ModelReport {
        ModelReport { model: name.to_owned(), ..self }
    }

    /// Adds what comparing found: the differences of the values of nodes.
    #[must_use]
    pub fn with_errors(mut self, title: &str, found: &Comparison) -> ModelReport {
        let position = |name: &str| {
            let at = self.rows.iter().position(|row| *row.name == *name && row.op != "output" && row.within == 0);
            at.map(|at| at as u32)
        };
        let row = |error: &NodeError| {
            let d = &error.difference;
            Some((position(&error.node)?, d.absolute, d.relative, d.beyond, d.elements))
        };
        let rows = found.seen.iter().filter_map(row).collect();
        let first = found.first.as_ref().and_then(|first| position(&first.node));
        self.errors = Some(Errors { title: title.to_owned(), verdict: found.to_string(), rows, first });
        self
    }

    /// In one line: nodes, kernels, time.
    pub fn summary(&self) -> String {
        let steps: usize = self.parts.iter().map(|part| part.steps.kinds.len()).sum();
        let mut text = format!("{} nodes, {steps} kernels and library calls", self.operators());
        let times: Vec<f64> = self.parts.iter().filter_map(|part| part.run_ms).collect();
        if !times.is_empty() {
            text += &format!(", {} a run", page::time_text(times.iter().sum::<f64>() * 1e6));
        }
        text
    }

    /// Number of nodes of the model without inputs and outputs, with the nodes in branches and loops.
    fn operators(&self) -> usize {
        self.rows.iter().filter(|row| row.fate != Fate::Edge).count()
    }

    /// As one HTML page.
    pub fn html(&self) -> String {
        page::html(self)
    }
}

impl Machine {
    fn measure(compiler: &Compiler) -> Result<Machine, Error> {
        compiler.progress("measure the machine");
        let measured = Roofline::measure(compiler.pool()).map_err(|panic| Error::Internal(panic.to_string()))?;
        let Roofline { threads, flops, memory, cache } = measured;
        Ok(Machine { threads, flops, memory, cache, roofline: measured })
    }
}

/// A part of a graph with known types, and the inputs that it has in a run.
struct TypedPart {
    graph: Graph,
    shape: PartShape,
    inputs: Vec<Tensor>,
}

/// The parts of a graph; if there are several, those of a run on these inputs.
fn typed_parts(compiler: &Compiler, graph: &Graph, inputs: &[Tensor]) -> Result<Vec<TypedPart>, Error> {
    let mut first = graph.clone();
    let shape = first_part(&mut first, compiler.typing())?;
    if shape.is_last() {
        return Ok(vec![TypedPart { graph: first, shape, inputs: inputs.to_vec() }]);
    }
    let run = Session::new(compiler, graph.clone())?.run_divided(inputs)?;
    let part = |RanPart { facts, .. }: &RanPart| {
        let mut part = graph.clone();
        let shape = next_part(&mut part, compiler.typing(), facts)?;
        let value = |v: &Value| match (run.values.get(v), graph.constant(*v)) {
            (Some(tensor), _) => Ok(tensor.clone()),
            (None, Some(data)) => Ok(Tensor(data.clone())),
            (None, None) => Err(Error::Internal("a run did not deliver what a part of it reads".to_owned())),
        };
        let inputs = shape.inputs.iter().map(value).collect::<Result<_, _>>()?;
        Ok(TypedPart { graph: part, shape, inputs })
    };
    run.parts.iter().map(part).collect()
}

fn type_of(graph: &Graph, v: Value) -> String {
    type_text(graph, &graph.resolved(v))
}

/// What a compiler compiles for, in words.
fn target_text(compiler: &Compiler) -> String {
    match compiler.gpu() {
        Some(driver) => driver.device().to_string(),
        None => {
            let (arch, threads) = (std::env::consts::ARCH, compiler.pool().threads());
            let isa = format!("{:?}", tensorc_kernels::isa());
            format!("{arch} ({isa}), {threads} thread{}", if threads == 1 { "" } else { "s" })
        }
    }
}
