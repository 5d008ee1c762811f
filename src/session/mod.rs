//! A model compiled for fixed input shapes, ready to run.
//!
//! Where shapes depend on computed values the model is compiled in parts: the results of one tell the shapes of the next.

mod code;

use std::sync::Arc;
use std::time::Duration;

use tensorc_abi::Plan;
use tensorc_ir::DenseType;
use tensorc_ir::graph::{Graph, Value};
use tensorc_passes::parts::{Facts, PartShape};
use tensorc_runtime::{TensorMut, TensorRef};

use crate::compile::Report;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::outputs::tensors;
use crate::part_code::{RunCode, copy, owned};
use crate::parts::{DividedRun, LaterParts, Parts, RanPart};
use crate::tensor::Tensor;

pub(crate) use code::{RunMemory, SessionCode, Signature, run_on};

/// Compiled code, weights and the memory of one run at a time.
pub struct Session {
    /// Of the first part if there are several.
    code: Arc<SessionCode>,
    later: Option<Arc<LaterParts>>,
    memory: RunMemory,
}

impl Session {
    /// Compiles a graph whose inputs have concrete types.
    ///
    /// # Errors
    /// As [`crate::Program::compile`].
    pub fn new(compiler: &Compiler, graph: Graph) -> Result<Session, Error> {
        let types = graph.inputs().iter().map(|node| graph.dense(Value { node: *node, port: 0 }));
        let types = types.collect::<Result<Vec<_>, _>>()?;
        let mut report = Report::default();
        let code = Arc::new(Parts::of(graph)).code(compiler, &types, &mut report)?;
        Session::of(code, report)
    }

    /// With memory of its own; the report is of what compiling took so far.
    pub(crate) fn of(code: RunCode, report: Report) -> Result<Session, Error> {
        let (code, later) = code.alone(report)?;
        let memory = code.memory()?;
        Ok(Session { code: Arc::new(code), later: later.map(Arc::new), memory })
    }

    /// A session with the same code and weights, and memory of its own, so that both run side by side.
    ///
    /// # Errors
    /// Memory is short.
    pub fn fork(&self) -> Result<Session, Error> {
        Ok(Session { code: self.code.clone(), later: self.later.clone(), memory: self.code.memory()? })
    }

    /// The schedule this session runs; of its first part if there are several.
    pub fn plan(&self) -> &Plan {
        self.code.plan()
    }

    /// Whether shapes depend on values, so that there are several parts.
    pub fn has_parts(&self) -> bool {
        self.later.is_some()
    }

    /// Names of the outputs.
    pub fn outputs(&self) -> &[String] {
        self.later.as_ref().map_or_else(|| self.code.outputs(), |later| later.outputs())
    }

    /// What compiling the first part took.
    pub fn report(&self) -> &Report {
        self.code.program.report()
    }

    /// Runs on inputs in signature order; allocates the outputs.
    ///
    /// # Errors
    /// An input does not have the type this session was compiled for, or a later part does not
    /// compile.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let results = self.first(inputs)?;
        match &self.later {
            Some(later) => later.outputs_of(self.code.program.compiler(), inputs, results),
            None => Ok(results),
        }
    }

    /// The results of the first part.
    fn first(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let refs: Vec<TensorRef<'_>> = inputs.iter().map(Tensor::as_ref).collect();
        tensors(self.code.run(&mut self.memory, &refs)?)
    }

    /// As [`Session::run`], of a model in several parts ([`Session::has_parts`]); tells what each was.
    ///
    /// # Errors
    /// As [`Session::run`]; or there is one part.
    pub fn run_divided(&mut self, inputs: &[Tensor]) -> Result<DividedRun, Error> {
        let Some(later) = self.later.clone() else {
            return Err(Error::Internal("a model in one part is run as if there were several".into()));
        };
        let results = self.first(inputs)?;
        let (graph, first) = later.first();
        let types: Vec<DenseType> = inputs.iter().map(|t| t.data().ty.clone()).collect();
        let mut parts = vec![RanPart { facts: Facts::of_inputs(graph, &types), shape: first.clone() }];
        let mut seen = |facts, shape: &PartShape| parts.push(RanPart { facts, shape: shape.clone() });
        let run = later.run(self.code.program.compiler(), inputs, results, &mut seen)?;
        let outputs = run.outputs()?.into_iter().map(Tensor).collect();
        let values = run.into_known().into_iter().map(|(v, data)| (v, Tensor(data))).collect();
        Ok(DividedRun { parts, values, outputs })
    }

    /// The next values of the inputs that the graph updates, in signature order: what they are after
    /// the last run.
    ///
    /// # Errors
    /// None in practice: the values have the types the session was compiled for.
    pub fn states(&self) -> Result<Vec<Tensor>, Error> {
        self.code.states(&self.memory)
    }

    /// Runs into memory of the caller's: no allocation unless there are several parts.
    ///
    /// # Errors
    /// A tensor does not have the type this session was compiled for, or the result has.
    pub fn run_into(&mut self, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), Error> {
        if !self.has_parts() {
            return self.code.execute(&mut self.memory, inputs, outputs);
        }
        let results = self.run(&owned(inputs)?)?;
        copy(self.outputs(), &results, outputs)
    }

    /// Begins a run on copies of the inputs and returns while it goes on, on a GPU. Two runs may be under way at a time:
    /// the copies of one overlap the computation of the other. [`Session::finish`] takes the results, in the order of
    /// the runs.
    ///
    /// # Errors
    /// As [`Session::run_into`]; the model runs here, has states or is compiled in parts, or two runs are under way.
    pub fn begin(&mut self, inputs: &[TensorRef<'_>]) -> Result<(), Error> {
        match self.has_parts() {
            true => Err(Error::Parts { model: self.plan().name.clone() }),
            false => Ok(self.memory.context.begin(inputs)?),
        }
    }

    /// Waits for the run that was begun first and copies its results.
    ///
    /// # Errors
    /// As [`Session::run_into`], or no run was begun.
    pub fn finish(&mut self, outputs: &mut [TensorMut<'_>]) -> Result<(), Error> {
        Ok(self.memory.context.finish(outputs)?)
    }

    /// Runs the first part and returns the time of each step of its plan.
    ///
    /// # Errors
    /// As [`Session::run_into`].
    pub fn run_profiled(
        &mut self,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<Vec<Duration>, Error> {
        let pool = self.code.program.compiler().pool();
        self.code
            .bound(&mut self.memory, inputs, outputs, |context, bindings| context.run_profiled(None, pool, bindings))
    }
}
