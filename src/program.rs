//! Compiled code, however it is used: by a session, as an operation on arrays, by an executor.

use std::sync::{Arc, Mutex};

use tensorc_abi::Plan;
use tensorc_ir::graph::Graph;
use tensorc_runtime::array::{self, ArrayLaunch, ArraySpace, LaunchError, PlannedRun};
use tensorc_runtime::plan::{Phase, SharedArena};
use tensorc_runtime::{Bindings, Context, Executable, RunError};
use tensorc_schedule::lowered::Lowered;

use crate::bounded_pool::BoundedPool;
use crate::compile::{Report, Source, link, lowered};
use crate::compiler::Compiler;
use crate::error::Error;
use crate::limits::Deadline;

/// A graph of fixed shapes compiled for one device, with memory for its runs.
pub struct Program {
    compiler: Compiler,
    executable: Arc<Executable>,
    report: Report,
    /// What runs side by side take.
    contexts: BoundedPool<Context>,
    /// What runs that follow each other share.
    turns: Option<Arc<Mutex<Context>>>,
}

impl Program {
    /// Compiles a graph of known types for the device of a compiler.
    ///
    /// # Errors
    /// A pass or a kernel does not take the graph, or memory is short.
    pub fn compile(compiler: &Compiler, graph: Graph) -> Result<Program, Error> {
        Program::compile_reporting(compiler, Source::Typed(graph), Report::default())
    }

    /// Adds what compiling takes to a report of what came before.
    pub(crate) fn compile_reporting(compiler: &Compiler, source: Source, mut report: Report) -> Result<Program, Error> {
        let deadline = compiler.deadline();
        let (_, lowered) = lowered(compiler, source, compiler.choices(), deadline, &mut report)?;
        Program::linked(compiler, lowered, deadline, report)
    }

    /// Generates code and packs weights for a graph that is lowered and planned.
    ///
    /// # Errors
    /// The plan breaks a rule of the run time, or memory is short.
    pub fn from_lowered(compiler: &Compiler, lowered: Lowered) -> Result<Program, Error> {
        Program::linked(compiler, lowered, compiler.deadline(), Report::default())
    }

    fn linked(
        compiler: &Compiler,
        lowered: Lowered,
        deadline: Deadline<'_>,
        mut report: Report,
    ) -> Result<Program, Error> {
        let executable = link(compiler, lowered, deadline, &mut report)?;
        Ok(Program::of(compiler, executable, report))
    }

    /// Of what is linked already.
    pub(crate) fn of(compiler: &Compiler, executable: Executable, report: Report) -> Program {
        let contexts = BoundedPool::new(most_runs(compiler), compiler.pool().clone());
        Program { compiler: compiler.clone(), executable: Arc::new(executable), report, contexts, turns: None }
    }

    /// Lets all runs follow each other in one context, as phases of a plan and runs on a GPU must; its intermediate values
    /// lie in an arena shared with others if one is given.
    ///
    /// # Errors
    /// Memory is short.
    pub fn in_turns(self, arena: Option<&SharedArena>) -> Result<Program, Error> {
        let context = match arena {
            Some(arena) => self.compiler.limited(Context::in_arena(self.executable.clone(), arena)?),
            None => self.context()?,
        };
        Ok(Program { turns: Some(Arc::new(Mutex::new(context))), ..self })
    }

    /// The plan with its code and weights.
    pub fn executable(&self) -> &Arc<Executable> {
        &self.executable
    }

    /// The plan, which states the memory of a run.
    pub fn plan(&self) -> &Plan {
        self.executable.plan()
    }

    /// What compiling took.
    pub fn report(&self) -> &Report {
        &self.report
    }

    pub(crate) fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Memory for one run at a time.
    pub(crate) fn context(&self) -> Result<Context, RunError> {
        Ok(self.compiler.limited(Context::new(self.executable.clone(), self.compiler.pool())?))
    }

    /// Pushes a run, or a phase of one, as one operation of the engine: of the launch's outputs the first are `states` of the
    /// plan, then come as many of its `outputs`. Where runs follow each other, on processors, an output becomes available when
    /// the last step that uses it is done.
    ///
    /// # Errors
    /// The request is wrong; what goes wrong while running stays with the outputs.
    pub fn launch(
        self: &Arc<Self>,
        space: &ArraySpace,
        launch: ArrayLaunch<'_>,
        phase: Option<Phase>,
        [states, outputs]: [usize; 2],
    ) -> Result<(), LaunchError> {
        let Some(context) = &self.turns else {
            let program = self.clone();
            return array::launch(space, launch, move |inputs, outputs| {
                Ok(program.run(Bindings::new(inputs, outputs))?)
            });
        };
        let run = PlannedRun { context: context.clone(), phase, states, outputs };
        match self.executable.device() {
            Some(_) => array::run(space, launch, run),
            None => {
                array::run_here(space, launch, run, self.compiler.pool().clone(), self.compiler.profiler().cloned())
            }
        }
    }

    /// Runs once; several threads may at the same time.
    fn run(&self, bindings: Bindings<'_, '_, '_>) -> Result<(), RunError> {
        self.contexts.with(|| self.context(), |context| context.run(self.compiler.pool(), bindings))
    }
}

/// How many runs of a program are side by side at most: one more than there are threads, which goes on while the thread of the
/// next wakes up. More are not faster, and take memory.
pub(crate) fn most_runs(compiler: &Compiler) -> usize {
    if compiler.gpu().is_some() { 1 } else { compiler.pool().threads() + 1 }
}
