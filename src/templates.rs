//! Parts of models compiled for many shapes at once: what is left for a shape is to put its numbers into a plan, or, where the plan
//! needs numbers, into the fused graph.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorc_ir::DenseType;
use tensorc_ir::extent::Binding;
use tensorc_ir::graph::Value;
use tensorc_passes::parts::{Facts, PartShape};
use tensorc_passes::simplify::scalar::RewrittenBodies;
use tensorc_passes::template::{Admissible, Place, Restrictions, Template, TemplateRequest};
use tensorc_passes::{CompilePhase, Pipeline};

use crate::bounded_pool::BoundedPool;
use crate::cache::ProgramCache;
use crate::compile::{Report, optimize_knowing};
use crate::compiler::{Compiler, Specialize};
use crate::error::Error;
use crate::key::ProgramKey;
use crate::open_plan::OpenPlan;
use crate::open_run::OpenRun;
use crate::open_shape::OpenShape;
use crate::outputs::OutputMemory;
use crate::part_code::PartCode;
use crate::parts::PartSource;
use crate::program::{Program, most_runs};
use crate::session::{SessionCode, Signature};

/// Templates kept: of one for each set of dimensions that have one element or none, and those that need numbers for some.
const MAX_TEMPLATES: usize = 16;

/// Numbers that are guessed for a template end the search for more of them.
const MAX_GUESSED: usize = 8;

/// Plans that are made from one template: where schedules depend on the shape.
const MAX_PLANS: usize = 8;

/// Whose memory the states of a graph lie in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateOwner {
    /// A run copies what it is given.
    Run,
    /// The caller keeps them from one run to the next.
    Caller,
}

/// What becomes of extents that a shape demands to be equal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EqualExtents {
    /// They are one symbol.
    Tied,
    /// They are numbers: ranges of extents do not tell which of them are equal.
    Fixed,
}

/// The templates of the parts of a model.
pub(crate) struct Templates(ProgramCache<Made>);

/// What became of a template.
#[derive(Clone)]
enum Made {
    /// It may hold for all extents.
    Whole(Arc<OpenModel>),
    /// It needs these numbers, and may hold for all others.
    Needs(Arc<[Place]>),
    /// The operators do not admit the numbers of examples, so that shapes tell which are needed.
    Refused(Arc<Refused>),
    /// There is none.
    Not,
}

/// Examples that operators do not admit.
struct Refused {
    examples: Vec<i64>,
    /// Templates as far as types are inferred, with the numbers of shapes as examples.
    typed: Mutex<Vec<Template>>,
}

/// A fused graph for many shapes, and the plans that were made from it.
pub(crate) struct OpenModel {
    template: Template,
    shape: PartShape,
    signature: Signature,
    plans: Mutex<MadePlans>,
    /// Whoever makes a plan holds it.
    attempts: Mutex<PlanAttempts>,
    runs: BoundedPool<OpenRun>,
    results: OutputMemory,
}

/// Plans for many shapes.
#[derive(Default)]
struct MadePlans {
    /// Each holds on conditions of its own.
    plans: Vec<Arc<OpenPlan>>,
    /// Memory in which conditions are looked at.
    binding: Binding,
}

/// How often a plan has been made from a template, in vain or not.
#[derive(Default)]
pub(crate) struct PlanAttempts(usize);

impl PlanAttempts {
    /// The template of the next plan: the first has the examples of `template`, later ones the extents of `types` as examples. `None`
    /// after [`MAX_PLANS`], or if the template does not hold for `types`.
    pub fn next(&mut self, template: &Template, types: &[DenseType]) -> Option<Template> {
        let next = match self.0 {
            0 => template.fork(),
            1..MAX_PLANS => template.with_examples(types)?,
            _ => return None,
        };
        self.0 += 1;
        Some(next)
    }

    /// Notes that no plan for many shapes came of the last one. If it was the first, other numbers in place of the examples would
    /// be needed as well.
    pub fn refused(&mut self) {
        if self.0 == 1 {
            self.0 = MAX_PLANS;
        }
    }
}

impl OpenModel {
    fn new(compiler: &Compiler, template: Template, shape: PartShape) -> OpenModel {
        let (signature, most) = (Signature::of(&template.graph), most_runs(compiler));
        let (runs, results) = (BoundedPool::new(most, compiler.pool().clone()), OutputMemory::new(most));
        OpenModel { template, shape, signature, plans: Mutex::default(), attempts: Mutex::default(), runs, results }
    }

    /// Which part of the model it is.
    pub fn shape(&self) -> &PartShape {
        &self.shape
    }

    /// The template that plans are made from.
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// Names of the outputs.
    pub fn outputs(&self) -> &[String] {
        self.signature.outputs()
    }

    /// Memory of runs, which all shapes share.
    pub fn runs(&self) -> &BoundedPool<OpenRun> {
        &self.runs
    }

    /// Memory of results, which all shapes share.
    pub fn results(&self) -> &OutputMemory {
        &self.results
    }

    /// The code for inputs of these types; `None` if what is compiled for many shapes does not hold for them.
    ///
    /// # Errors
    /// As [`SessionCode::compile`].
    pub fn code(
        self: &Arc<OpenModel>,
        compiler: &Compiler,
        types: &[DenseType],
        states: StateOwner,
        report: &mut Report,
    ) -> Option<Result<PartCode, Error>> {
        let own = |code: Result<SessionCode, Error>| code.map(|code| PartCode::Own(Box::new(code)));
        let Some(plan) = self.plan(compiler, types, report) else {
            let graph = self.template.graph_for(types)?;
            return Some(own(SessionCode::compile_fused(compiler, graph, report.clone())));
        };
        // On a GPU each shape has recordings, and copies of states belong to one shape.
        let copied = states == StateOwner::Run && self.signature.has_states();
        Some(match copied || compiler.gpu().is_some() {
            true => own(self.alone(compiler, &plan, types, report.clone())),
            false => Ok(PartCode::Open(Box::new(OpenShape::new(compiler, self, plan, types)))),
        })
    }

    /// Code with memory of its own for inputs of these types, for which a plan holds.
    ///
    /// # Errors
    /// As [`SessionCode::compile_fused`].
    pub fn alone(
        &self,
        compiler: &Compiler,
        plan: &OpenPlan,
        types: &[DenseType],
        report: Report,
    ) -> Result<SessionCode, Error> {
        match plan.program(compiler, types, report.clone()) {
            Ok(program) => Ok(SessionCode::linked(program, self.signature.clone())),
            // What a plan for this shape alone takes may be within limits that this one exceeds.
            Err(_) => self.specialised(compiler, types, report),
        }
    }

    /// The program for inputs of these types; `None` if no plan holds for them, or this one takes more than limits allow.
    pub fn program(&self, compiler: &Compiler, types: &[DenseType], mut report: Report) -> Option<Program> {
        self.plan(compiler, types, &mut report)?.program(compiler, types, report).ok()
    }

    /// Code that is compiled for inputs of these types alone, for which the template holds.
    ///
    /// # Errors
    /// As [`SessionCode::compile_fused`].
    pub fn specialised(&self, compiler: &Compiler, types: &[DenseType], report: Report) -> Result<SessionCode, Error> {
        let graph = self.template.graph_for(types);
        let graph = graph.ok_or_else(|| Error::Internal("a template does not hold for a shape".to_owned()))?;
        SessionCode::compile_fused(compiler, graph, report)
    }

    /// A plan that holds for inputs of these types; `None` if the graph has none.
    fn plan(&self, compiler: &Compiler, types: &[DenseType], report: &mut Report) -> Option<Arc<OpenPlan>> {
        if compiler.options().specialize == Specialize::Always {
            return None;
        }
        if let Some(found) = self.made(types) {
            return Some(found);
        }
        let mut attempts = lock(&self.attempts);
        loop {
            if let Some(found) = self.made(types) {
                return Some(found);
            }
            self.attempt(compiler, &mut attempts, types, report)?;
        }
    }

    /// Makes the first plan, unless there is one.
    pub fn prepare(&self, compiler: &Compiler, types: &[DenseType]) {
        let mut attempts = lock(&self.attempts);
        if attempts.0 == 0 && compiler.options().specialize != Specialize::Always {
            self.attempt(compiler, &mut attempts, types, &mut Report::default());
        }
    }

    /// Makes a plan that holds for inputs of these types, unless there is one.
    pub fn prepare_for(&self, compiler: &Compiler, types: &[DenseType]) {
        self.plan(compiler, types, &mut Report::default());
    }

    /// Makes another plan; `None` if nothing came of it.
    fn attempt(
        &self,
        compiler: &Compiler,
        attempts: &mut PlanAttempts,
        types: &[DenseType],
        report: &mut Report,
    ) -> Option<()> {
        let template = attempts.next(&self.template, types)?;
        let plan = OpenPlan::new(compiler, template, report).ok();
        match plan.filter(|plan| plan.template().fixed().is_empty()) {
            Some(plan) => lock(&self.plans).plans.push(Arc::new(plan)),
            None => {
                attempts.refused();
                return None;
            }
        }
        Some(())
    }

    /// Whether the template holds for sources of these types.
    fn admits(&self, types: &[DenseType]) -> bool {
        self.template.rebind(types, &mut lock(&self.plans).binding)
    }

    /// A plan that has been made and holds for inputs of these types.
    fn made(&self, types: &[DenseType]) -> Option<Arc<OpenPlan>> {
        let MadePlans { plans, binding } = &mut *lock(&self.plans);
        plans.iter().find(|plan| plan.template().rebind(types, binding)).cloned()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Templates {
    fn default() -> Templates {
        Templates(ProgramCache::new(MAX_TEMPLATES))
    }
}

impl Templates {
    /// The template for sources of these types. Which it is does not depend on what was asked before.
    pub fn model(
        &self,
        compiler: &Compiler,
        source: &PartSource,
        facts: &Facts,
        equal: EqualExtents,
        report: &mut Report,
    ) -> Option<Arc<OpenModel>> {
        let mut work = Work::new(compiler, source, facts, report)?;
        let mut restricted = Restrictions::default();
        loop {
            let changed = match self.get(&work.key(&restricted)?, || work.template(&restricted))? {
                Made::Whole(model) if model.admits(&facts.types) => return Some(model),
                Made::Whole(model) => match model.template.refused(&facts.types)? {
                    // No number alone: what was told apart by the examples may be equal.
                    none if none.is_empty() && equal == EqualExtents::Tied => {
                        restricted.tie(model.template.alike(&facts.types))
                    }
                    places => restricted.fix(places),
                },
                Made::Needs(places) => restricted.fix(places.iter().copied()),
                Made::Refused(refused) => {
                    restricted = work.needed(&refused, equal)?;
                    true
                }
                Made::Not => restricted.fix_tied(),
            };
            if !changed {
                return None;
            }
        }
    }

    /// A template for any open extents, what it demands of them, and source types for which it holds. Where type inference fails for the
    /// examples, some extents are fixed to numbers, or made equal to others, for which it succeeds ([`Work::guessed`]). `None` if there is
    /// no such template.
    pub fn general(
        &self,
        compiler: &Compiler,
        source: &PartSource,
        facts: &Facts,
    ) -> Option<(Arc<OpenModel>, Restrictions, Vec<DenseType>)> {
        let (mut report, mut facts, mut restricted) = (Report::default(), facts.clone(), Restrictions::default());
        for _ in 0..2 {
            let mut work = Work::new(compiler, source, &facts, &mut report)?;
            let refused = match self.get(&work.key(&restricted)?, || work.template(&restricted))? {
                Made::Whole(model) => return Some((model, restricted, facts.types)),
                Made::Refused(refused) => refused,
                Made::Needs(_) | Made::Not => return None,
            };
            let numbers;
            (restricted, numbers) = work.guessed(&refused)?;
            facts = facts.with_numbers(numbers);
        }
        None
    }

    fn get(&self, key: &ProgramKey, make: impl FnOnce() -> Made) -> Option<Made> {
        self.0.get_or_make(key, || Ok::<_, ()>(make())).ok()
    }
}

/// What templates are made from.
struct Work<'a> {
    compiler: &'a Compiler,
    source: &'a PartSource,
    facts: &'a Facts,
    report: &'a mut Report,
}

impl<'a> Work<'a> {
    /// `None` if the options, or what is known, are not for templates.
    fn new(
        compiler: &'a Compiler,
        source: &'a PartSource,
        facts: &'a Facts,
        report: &'a mut Report,
    ) -> Option<Work<'a>> {
        // A budget of memory is kept for a shape.
        let admitted = compiler.options().passes.recompute.is_none() && facts.types.len() == facts.sources.len();
        admitted.then_some(Work { compiler, source, facts, report })
    }

    fn request(&self) -> TemplateRequest<'_> {
        TemplateRequest { graph: &self.source.graph, facts: self.facts }
    }

    /// What tells a template from others.
    fn key(&self, restricted: &Restrictions) -> Option<ProgramKey> {
        let mut key = ProgramKey::of("");
        key.number(self.facts.sources.len() as u64);
        key.required(&self.facts.required);
        self.request().class().for_each(|n| key.number(n));
        key.number(restricted.fixed().len() as u64);
        for (source, position) in restricted.fixed().iter().copied() {
            [source as u64, position as u64].into_iter().for_each(|n| key.number(n));
            key.number(*self.facts.types[source].dims.get(position)?);
        }
        for (source, position) in restricted.tied().iter().flat_map(|(place, first)| [*place, *first]) {
            [source as u64, position as u64].into_iter().for_each(|n| key.number(n));
        }
        Some(key)
    }

    fn template(&mut self, restricted: &Restrictions) -> Made {
        let Some(mut template) = self.request().restricting(restricted) else { return Made::Not };
        let shape = match self.imported(&mut template) {
            Ok(()) => self.optimized(&mut template),
            Err(Error::Onnx { source, .. }) if source.is_undecided() => return Made::Not,
            Err(_) => None,
        };
        let Some(shape) = shape else {
            let refused = || Refused { examples: template.examples(), typed: Mutex::default() };
            return if restricted.is_empty() { Made::Refused(Arc::new(refused())) } else { Made::Not };
        };
        match template.fixed() {
            fixed if fixed.is_empty() => Made::Whole(Arc::new(OpenModel::new(self.compiler, template, shape))),
            fixed if fixed.len() < template.trace.symbols().len() => Made::Needs(fixed.into()),
            _ => Made::Not,
        }
    }

    /// Imports the rest of the graph.
    fn imported(&self, template: &mut Template) -> Result<(), Error> {
        match &self.source.import {
            Some(import) => template.replace(|inputs| import(self.compiler, inputs)),
            None => Ok(()),
        }
    }

    /// Types a template and reduces it to the next part.
    fn divided(&mut self, template: &mut Template) -> Option<PartShape> {
        let Work { compiler, report, .. } = self;
        let divided = report.timed(compiler, "infer", || Ok(template.divide(compiler.typing())?));
        let graph = &template.graph;
        let is_dense = |node, port: usize| graph.dense(Value { node, port: port as u16 }).is_ok();
        let typed = |node| (0..graph.node(node).types.len()).all(|port| is_dense(node, port));
        divided.ok().filter(|_| graph.node_ids().into_iter().all(typed))
    }

    /// The next part, for which a template is made as far as symbols go; `None` if passes do not admit it. Passes end early where
    /// they turn out to need numbers: the template would be thrown away.
    fn optimized(&mut self, template: &mut Template) -> Option<PartShape> {
        let (deadline, bodies) = (self.compiler.deadline(), RewrittenBodies::default());
        let shape = self.divided(template)?;
        let derived = template.change(|graph| match &self.source.derive {
            Some(derive) => derive(graph, &shape),
            None => Ok(()),
        });
        derived.ok()?;
        for pass in Pipeline::open(CompilePhase::Plan).passes {
            let one = Pipeline { passes: vec![pass], ..Pipeline::default() };
            let done =
                template.change(|graph| optimize_knowing(&bodies, self.compiler, &one, graph, deadline, self.report));
            done.ok()?;
            if !template.fixed().is_empty() {
                break;
            }
        }
        Some(shape)
    }

    /// Restrictions with which type inference succeeds where it fails for the examples, and numbers that satisfy them. `None` if the
    /// search finds none.
    fn guessed(&mut self, refused: &Refused) -> Option<(Restrictions, Vec<(Place, u64)>)> {
        let mut restricted = Restrictions::default();
        let mut found: Vec<(Place, u64)> = vec![];
        loop {
            let facts = self.facts.with_numbers(found.iter().copied());
            let mut template = TemplateRequest { graph: &self.source.graph, facts: &facts }.restricting(&restricted)?;
            if self.imported(&mut template).is_ok() && self.divided(&mut template).is_some() {
                // `needed` finds this typed template, and so need not infer types in the first run.
                let tied =
                    restricted.tied().iter().filter_map(|(place, _)| Some((*place, template.example_at(*place)?)));
                let facts = facts.with_numbers(template.example_numbers().chain(tied));
                let mut like = TemplateRequest { graph: &self.source.graph, facts: &facts }.like()?;
                if self.imported(&mut like).is_ok() && self.divided(&mut like).is_some() {
                    lock(&refused.typed).push(like);
                }
                return Some((restricted, found));
            }
            match template.admissible().filter(|_| found.len() < MAX_GUESSED)? {
                Admissible::Number(place, n) => {
                    restricted.fix([place]);
                    found.push((place, n));
                }
                Admissible::Equal(place, first) => {
                    restricted.tie([(place, first)]);
                    let n = template.example_at(first)?;
                    found.extend([(first, n), (place, n)]);
                }
            }
        }
    }

    /// The restrictions with which type inference accepts this shape, where it refuses the examples. `None` if no symbol would be left.
    fn needed(&mut self, refused: &Refused, equal: EqualExtents) -> Option<Restrictions> {
        let types = &self.facts.types;
        let mut typed = lock(&refused.typed);
        let unlike = |template: &Template| {
            let unlike = template.unlike(types, &refused.examples)?;
            let tied = template.equal(types, &unlike);
            Some((unlike, tied))
        };
        let (unlike, tied) = match typed.iter().find_map(unlike) {
            Some(found) => found,
            None => {
                let mut like = self.request().like()?;
                self.imported(&mut like).ok()?;
                self.divided(&mut like)?;
                let found = unlike(&like)?;
                typed.truncate(MAX_TEMPLATES - 1);
                typed.push(like);
                found
            }
        };
        let of_kinds: Vec<Place> = tied.iter().flat_map(|(place, first)| [*place, *first]).collect();
        let (mut needed, alone) = (Restrictions::default(), unlike.iter().filter(|place| !of_kinds.contains(place)));
        needed.fix(alone.copied());
        needed.tie(tied);
        if equal == EqualExtents::Fixed {
            needed.fix_tied();
        }
        (!needed.is_empty() && needed.fixed().len() < refused.examples.len()).then_some(needed)
    }
}
