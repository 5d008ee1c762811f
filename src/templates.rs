//! Models compiled for many shapes at once, up to fusion: what is left for a shape is to place memory and to write kernels.

use std::sync::Arc;

use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::{DenseType, DimId};
use tensorc_passes::template::{Template, open_dims};
use tensorc_passes::{CompilePhase, Pipeline};

use crate::cache::ProgramCache;
use crate::compile::{Report, optimize};
use crate::compiler::Compiler;
use crate::key::ProgramKey;

/// Templates kept: of one for each set of dimensions that have one element or none, and those that need numbers for some.
const MAX_TEMPLATES: usize = 16;

/// The templates of a model.
pub(crate) struct Templates(ProgramCache<Made>);

/// What became of a template.
#[derive(Clone)]
enum Made {
    /// It may hold for all extents.
    Whole(Arc<Template>),
    /// It needs numbers for these dimensions, and may hold for all extents of the others.
    Needs(Arc<[DimId]>),
    /// The operators do not admit the numbers of examples, so that shapes tell which dimensions need theirs.
    Refused,
    /// There is none.
    Not,
}

impl Default for Templates {
    fn default() -> Templates {
        Templates(ProgramCache::new(MAX_TEMPLATES))
    }
}

impl Templates {
    /// The fused graph for inputs of these types; `None` if no template holds for them, so that the graph is to be compiled for
    /// them alone. Which it is does not depend on what was asked before.
    pub fn fused(&self, compiler: &Compiler, graph: &Graph, types: &[DenseType], report: &mut Report) -> Option<Graph> {
        let options = compiler.options();
        // A budget of memory is kept for a shape.
        if compiler.gpu().is_some() || options.passes.recompute.is_some() || types.len() != graph.inputs().len() {
            return None;
        }
        let mut work = Work { compiler, graph, types, report };
        let mut key = ProgramKey::of("");
        types.iter().flat_map(|ty| ty.dims.iter()).for_each(|n| key.number((*n).min(2)));
        let closed = match self.get(&key, || work.template(&[]))? {
            Made::Whole(template) => return template.graph_for(types),
            Made::Needs(closed) => closed,
            Made::Refused => work.needed()?.into(),
            Made::Not => return None,
        };
        for dim in open_dims(graph, Some(types))?.iter().filter(|dim| closed.contains(&dim.id)) {
            key.number(u64::from(dim.id.0));
            key.number(dim.given?);
        }
        match self.get(&key, || work.template(&closed))? {
            Made::Whole(template) => template.graph_for(types),
            _ => None,
        }
    }

    fn get(&self, key: &ProgramKey, make: impl FnOnce() -> Made) -> Option<Made> {
        self.0.get_or_make(key, || Ok::<_, ()>(make())).ok()
    }
}

/// What templates are made from.
struct Work<'a> {
    compiler: &'a Compiler,
    graph: &'a Graph,
    types: &'a [DenseType],
    report: &'a mut Report,
}

impl Work<'_> {
    /// The template with the numbers of the types for the dimensions `closed`.
    fn template(&mut self, closed: &[DimId]) -> Made {
        let Some(mut template) = Template::closing(self.graph, Some(self.types), closed) else { return Made::Not };
        if !self.optimize(&mut template, CompilePhase::Plan) {
            return if closed.is_empty() { Made::Refused } else { Made::Not };
        }
        match template.fixed() {
            fixed if fixed.is_empty() => Made::Whole(Arc::new(template)),
            fixed if fixed.len() < template.trace.symbols().len() => Made::Needs(fixed.into()),
            _ => Made::Not,
        }
    }

    /// Whether passes succeed and find all types.
    fn optimize(&mut self, template: &mut Template, phase: CompilePhase) -> bool {
        let deadline = self.compiler.options().limits.deadline();
        let pipeline = Pipeline::open(phase);
        let done = template.change(|graph| optimize(self.compiler, &pipeline, graph, deadline, self.report));
        let graph = &template.graph;
        let is_dense = |node, port: usize| graph.dense(Value { node, port: port as u16 }).is_ok();
        let typed = |node| (0..graph.node(node).types.len()).all(|port| is_dense(node, port));
        done.is_ok() && graph.node_ids().into_iter().all(typed)
    }

    /// The dimensions whose numbers inference needs, because it does not admit those of examples; `None` if it needs all.
    fn needed(&mut self) -> Option<Vec<DimId>> {
        let examples = Template::of(self.graph, Some(self.types))?;
        let mut like = Template::like(self.graph, self.types)?;
        let unlike = self.optimize(&mut like, CompilePhase::Type).then(|| like.unlike(&examples))?;
        (1..like.trace.symbols().len()).contains(&unlike.len()).then_some(unlike)
    }
}
