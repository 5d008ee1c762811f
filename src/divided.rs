//! Graphs that executors run in several parts, because shapes depend on values: each part as a program with phases.

use std::sync::Arc;

use tensorc_ir::diag::Diagnostic;
use tensorc_ir::flow::Flow;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::{DenseType, TensorData};
use tensorc_passes::parts::{Facts, HostCall, PartShape};
use tensorc_runtime::plan::SharedArena;

use crate::cache::ProgramCache;
use crate::compile::Report;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::parts::{CompiledPart, Derive, Parts, key_of};
use crate::program::Program;

/// Parts kept with the numbers of their shapes.
const MAX_PARTS: usize = 64;

/// A graph in several parts, to each of which something is added, such as its gradient.
pub struct DividedModel {
    parts: Parts,
    made: ProgramCache<Arc<DividedPart>>,
}

/// A part for the shapes of a run.
pub struct DividedPart {
    /// What it computes, and what the host does after it.
    pub shape: PartShape,
    /// Its code. Runs follow each other.
    pub program: Arc<Program>,
}

impl DividedModel {
    /// Of a graph whose inputs have known types.
    pub fn new(graph: Graph, derive: Arc<Derive>) -> DividedModel {
        DividedModel { parts: Parts::deriving(graph, derive), made: ProgramCache::new(MAX_PARTS) }
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        self.parts.graph()
    }

    /// What the host computes after a part, of the values that are known.
    ///
    /// # Errors
    /// An operator does not take its operands, or a body of a branch or loop fails.
    pub fn host<E: From<Error> + From<Diagnostic>>(
        &self,
        compiler: &Compiler,
        call: &HostCall,
        value: impl Fn(Value) -> Result<TensorData, E>,
    ) -> Result<Vec<(Value, TensorData)>, E> {
        let mut run = self.parts.flow_runner(compiler);
        let mut flow = |node, flow: &Flow, operands: &[TensorData]| Ok(run(node, flow, operands)?);
        call.run(self.graph(), compiler.registry(), value, &mut flow)
    }

    /// Whether what is to be added to parts can be, as far as that is seen without numbers.
    ///
    /// # Errors
    /// It cannot, for example because an operator has no gradient.
    pub fn check(&self, compiler: &Compiler, types: &[DenseType]) -> Result<(), Error> {
        let mut facts = Facts::of_inputs(self.graph(), types);
        while let Some(shape) = self.parts.derived(compiler, &facts)? {
            if shape.is_last() {
                break;
            }
            facts = facts.after(self.graph(), &shape);
        }
        Ok(())
    }

    /// The next part for what is known, compiled when it first comes up; other numbers share its code where they can. Its intermediate
    /// values lie in `arena`, the same one in every call for this part.
    ///
    /// # Errors
    /// As [`Program::compile`].
    pub fn part(&self, compiler: &Compiler, facts: &Facts, arena: &SharedArena) -> Result<Arc<DividedPart>, Error> {
        self.made.get_or_make(&key_of(facts), || {
            let mut report = Report::default();
            let CompiledPart { code, shape } = self.parts.compile(compiler, facts, &mut report)?;
            let program = Arc::new(code.alone(report)?.program.in_turns(Some(arena))?);
            Ok(Arc::new(DividedPart { shape, program }))
        })
    }
}
