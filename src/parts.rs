//! The parts that a graph is compiled in: one, or several where shapes depend on values ([`tensorc_passes::parts`]). Each is compiled
//! for many shapes where it can be, and the results of one tell the numbers of the next.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_ir::diag::Diagnostic;
use tensorc_ir::flow::Flow;
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::{DenseType, TensorData};
use tensorc_passes::infer::bind;
use tensorc_passes::parts::{Facts, PartShape, PartsRun, next_part};
use tensorc_passes::template::{Restrictions, TemplateRequest};

use crate::cache::ProgramCache;
use crate::compile::Report;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::host_flows::HostFlows;
use crate::key::ProgramKey;
use crate::part_code::{PartCode, RunCode};
use crate::session::SessionCode;
use crate::templates::{EqualExtents, OpenModel, StateOwner, Templates};
use crate::tensor::Tensor;

/// Parts after the first that are kept with the numbers of their shapes.
const MAX_LATER_PARTS: usize = 64;

/// A graph, and what is compiled of it.
pub(crate) struct Parts {
    source: PartSource,
    templates: Templates,
    states: StateOwner,
    later: ProgramCache<Arc<CompiledPart>>,
    flows: HostFlows,
}

/// What parts are made from.
pub(crate) struct PartSource {
    /// A graph as a front end made it; the inputs alone, if the rest is imported for their types.
    pub graph: Graph,
    pub import: Option<Arc<Import>>,
    pub derive: Option<Arc<Derive>>,
}

/// The graph of a model that is imported for the types of its inputs, which may depend on symbols. It has the same inputs in the same
/// order.
pub type Import = dyn Fn(&Compiler, &Graph) -> Result<Graph, Error> + Send + Sync;

/// What is added to a part before it is compiled.
pub type Derive = dyn Fn(&mut Graph, &PartShape) -> Result<(), Diagnostic> + Send + Sync;

/// The code of a part.
pub(crate) struct CompiledPart {
    pub code: PartCode,
    pub shape: PartShape,
}

impl Parts {
    /// Of a graph as a front end made it, of which nothing is compiled yet.
    pub fn of(graph: Graph) -> Parts {
        let (later, source) = (ProgramCache::new(MAX_LATER_PARTS), PartSource { graph, import: None, derive: None });
        let (templates, flows) = (Templates::default(), HostFlows::default());
        Parts { source, templates, states: StateOwner::Run, later, flows }
    }

    /// Of a model that is imported for the types of its inputs, which are those of `inputs`.
    pub fn importing(inputs: Graph, import: Arc<Import>) -> Parts {
        let mut parts = Parts::of(inputs);
        parts.source.import = Some(import);
        parts
    }

    /// As [`Parts::of`], of a graph whose states the caller keeps.
    pub fn on_states(graph: Graph) -> Parts {
        Parts { states: StateOwner::Caller, ..Parts::of(graph) }
    }

    /// As [`Parts::of`], with something added to every part.
    pub fn deriving(graph: Graph, derive: Arc<Derive>) -> Parts {
        let mut parts = Parts::of(graph);
        parts.source.derive = Some(derive);
        parts
    }

    /// The graph; the inputs alone, if the rest is imported for their types.
    pub fn graph(&self) -> &Graph {
        &self.source.graph
    }

    /// The graph for inputs of these types.
    ///
    /// # Errors
    /// The types contradict the graph, or it cannot be imported for them.
    pub fn graph_for(&self, compiler: &Compiler, types: &[DenseType]) -> Result<Graph, Error> {
        let mut graph = self.graph().clone();
        bind(&mut graph, types).map_err(Error::Binding)?;
        match &self.source.import {
            Some(import) => import(compiler, &graph),
            None => Ok(graph),
        }
    }

    /// What is compiled for inputs of these types and many others, if that is all of the graph.
    pub fn whole(&self, compiler: &Compiler, types: &[DenseType], report: &mut Report) -> Option<Arc<OpenModel>> {
        let model = self.open(compiler, &Facts::of_inputs(self.graph(), types), EqualExtents::Tied, report)?;
        model.shape().is_last().then_some(model)
    }

    /// Compiles what runs of many shapes share, if there is something: for batches of any size, and beside it for those of one.
    pub fn prepare(&self, compiler: &Compiler) {
        let Some(facts) = Facts::of_any_inputs(self.graph()) else { return };
        let all: Vec<Facts> = facts.with_single_batch(self.graph()).into_iter().chain([facts]).collect();
        let prepare = |i: usize| {
            self.prepare_for(compiler, &all[i]);
            Ok(())
        };
        // What is not prepared is compiled by the first run.
        drop(compiler.side_by_side(all.len(), "preparing a model", prepare));
    }

    fn prepare_for(&self, compiler: &Compiler, facts: &Facts) {
        let general = self.templates.general(compiler, &self.source, facts);
        let guessed = general.as_ref().is_some_and(|(_, restricted, _)| !restricted.fixed().is_empty());
        if let Some((model, _, types)) = general.filter(|(model, ..)| self.serves(model)) {
            model.prepare(compiler, &types);
        }
        if guessed {
            return;
        }
        // A plan that holds for the examples need not hold for common extents.
        let common = facts.with_common_extents(self.graph());
        if let Some(model) = self.open(compiler, &common, EqualExtents::Tied, &mut Report::default()) {
            model.prepare_for(compiler, &common.types);
        }
    }

    /// The next part as it is compiled for what is known and for many other numbers.
    pub fn open(
        &self,
        compiler: &Compiler,
        facts: &Facts,
        equal: EqualExtents,
        report: &mut Report,
    ) -> Option<Arc<OpenModel>> {
        self.templates.model(compiler, &self.source, facts, equal, report).filter(|model| self.serves(model))
    }

    /// Whether a part can be run: those that follow it are made from a graph for all types.
    fn serves(&self, model: &OpenModel) -> bool {
        self.source.import.is_none() || model.shape().is_last()
    }

    /// Code for inputs of these types alone, of a graph that is compiled for many; `None` if there is none.
    pub fn specialised(&self, compiler: &Compiler, types: &[DenseType]) -> Option<RunCode> {
        let mut report = Report::default();
        let model = self.whole(compiler, types, &mut report)?;
        let code = model.specialised(compiler, types, report).ok()?;
        // The next run finds memory.
        code.prepare().ok()?;
        Some(RunCode::new(PartCode::Own(Box::new(code)), None))
    }

    /// The code for inputs of these types; parts after the first are compiled when they come up.
    ///
    /// # Errors
    /// As [`crate::Program::compile`].
    pub fn code(
        self: &Arc<Self>,
        compiler: &Compiler,
        types: &[DenseType],
        report: &mut Report,
    ) -> Result<RunCode, Error> {
        let facts = Facts::of_inputs(self.graph(), types);
        if self.source.import.is_some() {
            return match self.compile_open(compiler, &facts, report) {
                Some(part) => Ok(RunCode::new(part.code, None)),
                None => Arc::new(Parts::of(self.graph_for(compiler, types)?)).code(compiler, types, report),
            };
        }
        let CompiledPart { code, shape } = self.compile(compiler, &facts, report)?;
        let later = (!shape.is_last()).then(|| LaterParts::new(self.clone(), shape));
        Ok(RunCode::new(code, later))
    }

    /// What to add to a part is added to the next one, as it is for any numbers that are not known: an error if that cannot be.
    /// `None` if the graph cannot be divided so far without numbers.
    ///
    /// # Errors
    /// What is to be added cannot be.
    pub fn derived(&self, compiler: &Compiler, facts: &Facts) -> Result<Option<PartShape>, Error> {
        let request = TemplateRequest { graph: self.graph(), facts };
        let derive = |graph: &mut Graph, shape: &PartShape| match &self.source.derive {
            Some(derive) => derive(graph, shape),
            None => Ok(()),
        };
        let (made, shape) = match request.restricting(&Restrictions::default()) {
            Some(mut template) => {
                let Ok(shape) = template.divide(compiler.typing()) else { return Ok(None) };
                (template.change(|graph| derive(graph, &shape)), shape)
            }
            None => {
                let mut graph = self.graph().clone();
                let Ok(shape) = next_part(&mut graph, compiler.typing(), facts) else { return Ok(None) };
                (derive(&mut graph, &shape), shape)
            }
        };
        made?;
        Ok(Some(shape))
    }

    /// The next part as it is compiled for what is known and for many other numbers, if it can be.
    fn compile_open(&self, compiler: &Compiler, facts: &Facts, report: &mut Report) -> Option<CompiledPart> {
        let model = self.open(compiler, facts, EqualExtents::Tied, report)?;
        let code = model.code(compiler, &facts.types, self.states, report)?.ok()?;
        Some(CompiledPart { code, shape: model.shape().clone() })
    }

    /// The next part for what is known.
    ///
    /// # Errors
    /// As [`crate::Program::compile`].
    pub fn compile(&self, compiler: &Compiler, facts: &Facts, report: &mut Report) -> Result<CompiledPart, Error> {
        if let Some(part) = self.compile_open(compiler, facts, report) {
            return Ok(part);
        }
        let mut report = Report::default();
        let (graph, shape) = report.timed(compiler, "infer", || {
            let mut graph = self.graph_for(compiler, &facts.types[..self.graph().inputs().len()])?;
            let shape = next_part(&mut graph, compiler.typing(), facts)?;
            if let Some(derive) = &self.source.derive {
                derive(&mut graph, &shape)?;
            }
            Ok((graph, shape))
        })?;
        let code = SessionCode::compile_typed(compiler, graph, report)?;
        Ok(CompiledPart { code: PartCode::Own(Box::new(code)), shape })
    }

    /// What runs branches and loops of the graph that belong to the host.
    pub fn flow_runner<'a>(
        &'a self,
        compiler: &'a Compiler,
    ) -> impl FnMut(NodeId, &Flow, &[TensorData]) -> Result<Vec<TensorData>, Error> + 'a {
        move |node, flow, operands| self.flows.run(compiler, (self.graph(), node), flow, operands)
    }

    /// A part after the first.
    fn later(&self, compiler: &Compiler, facts: &Facts) -> Result<Arc<CompiledPart>, Error> {
        self.later
            .get_or_make(&key_of(facts), || Ok(Arc::new(self.compile(compiler, facts, &mut Report::default())?)))
    }
}

/// A part of a run in several parts.
pub struct RanPart {
    /// What was known before it.
    pub facts: Facts,
    /// What it computed, and the host after it.
    pub shape: PartShape,
}

/// A run in several parts, for those who want to know what was computed when.
pub struct DividedRun {
    /// The parts in order.
    pub parts: Vec<RanPart>,
    /// Everything that parts and the host delivered.
    pub values: BTreeMap<Value, Tensor>,
    /// The outputs.
    pub outputs: Vec<Tensor>,
}

/// The key of the next part for what is known.
pub(crate) fn key_of(facts: &Facts) -> ProgramKey {
    let mut key = ProgramKey::of("part");
    facts.types.iter().for_each(|ty| key.ty(ty.dtype, &ty.dims));
    key.number(facts.types.len() as u64);
    key
}

/// What follows the first part.
pub(crate) struct LaterParts {
    parts: Arc<Parts>,
    first: PartShape,
    /// Names of the outputs of all parts.
    outputs: Vec<String>,
}

impl LaterParts {
    fn new(parts: Arc<Parts>, first: PartShape) -> LaterParts {
        let outputs = parts.graph().outputs().iter().map(|(name, _)| name.to_string()).collect();
        LaterParts { parts, first, outputs }
    }

    /// Names of the outputs of all parts.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// The graph, and the part that comes first.
    pub fn first(&self) -> (&Graph, &PartShape) {
        (self.parts.graph(), &self.first)
    }

    /// All outputs, from the inputs of the graph and the results of the first part.
    ///
    /// # Errors
    /// As [`LaterParts::run`].
    pub fn outputs_of(
        &self,
        compiler: &Compiler,
        inputs: &[Tensor],
        results: Vec<Tensor>,
    ) -> Result<Vec<Tensor>, Error> {
        let run = self.run(compiler, inputs, results, &mut |_, _| {})?;
        Ok(run.outputs()?.into_iter().map(Tensor).collect())
    }

    /// All that is computed from the inputs of the graph and the results of the first part; `seen` is told of each part that follows.
    ///
    /// # Errors
    /// A part does not compile, or fails; so may an operator of the host.
    pub fn run(
        &self,
        compiler: &Compiler,
        inputs: &[Tensor],
        mut results: Vec<Tensor>,
        seen: &mut dyn FnMut(Facts, &PartShape),
    ) -> Result<PartsRun<'_>, Error> {
        let mut run = PartsRun::new(self.parts.graph(), inputs.iter().map(|t| t.0.clone()));
        let (mut shape, mut part) = (&self.first, None::<Arc<CompiledPart>>);
        let mut flow = self.parts.flow_runner(compiler);
        loop {
            run.add(shape, results.into_iter().map(|t| t.0).collect(), compiler.registry(), &mut flow)?;
            if shape.is_last() {
                return Ok(run);
            }
            let facts = run.facts()?;
            let next = self.parts.later(compiler, &facts)?;
            seen(facts, &next.shape);
            let inputs: Vec<Tensor> = run.inputs(&next.shape)?.into_iter().map(Tensor).collect();
            results = next.code.run(&inputs)?;
            shape = &part.insert(next).shape;
        }
    }
}
