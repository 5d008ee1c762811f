//! One shape of a model that is compiled for many, and its runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tensorc_ir::DenseType;
use tensorc_runtime::{Bindings, Context, TensorMut, TensorRef};

use crate::compile::Report;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::open_plan::OpenPlan;
use crate::open_run::OpenRun;
use crate::outputs::Output;
use crate::session::{SessionCode, run_on};
use crate::templates::OpenModel;

/// A plan for many shapes, and one of the shapes for which it holds. The numbers of the plan are found when it is run.
pub(crate) struct OpenShape {
    compiler: Compiler,
    model: Arc<OpenModel>,
    plan: Arc<OpenPlan>,
    types: Vec<DenseType>,
    was_run: AtomicBool,
    /// Code for the shape alone, if the plan cannot be run for it.
    alone: OnceLock<SessionCode>,
}

impl OpenShape {
    pub fn new(compiler: &Compiler, model: &Arc<OpenModel>, plan: Arc<OpenPlan>, types: &[DenseType]) -> OpenShape {
        let (compiler, model, types) = (compiler.clone(), model.clone(), types.to_vec());
        OpenShape { compiler, model, plan, types, was_run: AtomicBool::new(false), alone: OnceLock::new() }
    }

    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Names of the outputs.
    pub fn outputs(&self) -> &[String] {
        self.model.outputs()
    }

    /// Code for the shape with memory of its own.
    ///
    /// # Errors
    /// As [`SessionCode::compile_fused`].
    pub fn alone(&self, report: Report) -> Result<SessionCode, Error> {
        self.model.alone(&self.compiler, &self.plan, &self.types, report)
    }

    /// A context with the numbers of the shape, in memory of runs on states of the caller's.
    ///
    /// # Errors
    /// The plan takes more than limits allow, or memory is short.
    pub fn enter<'m>(&self, memory: &'m mut OpenRun) -> Result<&'m mut Context, Error> {
        let mut bind = || memory.bind(&self.compiler, &self.plan, &self.types, false).ok();
        match self.alone.get().map_or_else(&mut bind, |_| None) {
            Some(at) => memory.context_at(&self.compiler, at),
            None => memory.context_of(&self.compiler, self.specialised()?.program.executable()),
        }
    }

    /// Code for the shape alone: it may be within limits that the plan for many shapes exceeds.
    fn specialised(&self) -> Result<&SessionCode, Error> {
        if let Some(code) = self.alone.get() {
            return Ok(code);
        }
        let code = self.model.specialised(&self.compiler, &self.types, Report::default())?;
        Ok(self.alone.get_or_init(|| code))
    }

    /// Runs on inputs in signature order, in memory that others do not use meanwhile; allocates the outputs.
    ///
    /// # Errors
    /// An input does not have the type of the shape, or memory is short.
    pub fn run(&self, inputs: &[TensorRef<'_>]) -> Result<Vec<Output>, Error> {
        self.with_context(|context| {
            let executable = context.executable().clone();
            let run =
                |outputs: &mut [TensorMut<'_>]| Ok(run_on(&self.compiler, context, Bindings::new(inputs, outputs))?);
            self.model.results().with(executable.plan(), run)
        })
    }

    /// As [`OpenShape::run`], with outputs of the caller's.
    ///
    /// # Errors
    /// As there; or an output does not have the type of the shape.
    pub fn run_into(&self, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), Error> {
        self.with_context(|context| Ok(run_on(&self.compiler, context, Bindings::new(inputs, outputs))?))
    }

    fn with_context<T>(&self, work: impl FnOnce(&mut Context) -> Result<T, Error>) -> Result<T, Error> {
        if let Some(code) = self.alone.get() {
            return code.with_context(work);
        }
        let mut work = Some(work);
        let mut run = |memory: &mut OpenRun| {
            let comes_back = self.was_run.swap(true, Ordering::Relaxed);
            match memory.enter(&self.compiler, &self.plan, &self.types, comes_back) {
                Ok(context) => work.take().map(|work| work(context)).transpose(),
                Err(_) => Ok(None),
            }
        };
        let done = self.model.runs().with(|| Ok(OpenRun::default()), &mut run)?;
        match (done, work) {
            (None, Some(work)) => self.specialised()?.with_context(work),
            (done, _) => done.ok_or_else(|| Error::Internal("a run has no result".to_owned())),
        }
    }
}
