//! What runs of a model execute: the code of its first part, and the parts that follow.

use tensorc_runtime::plan::{PlanEdge, RunError};
use tensorc_runtime::{Bindings, TensorMut, TensorRef};

use crate::compile::Report;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::open_run::OpenRun;
use crate::open_shape::OpenShape;
use crate::outputs::{Output, OutputMemory, tensors};
use crate::parts::LaterParts;
use crate::session::{SessionCode, run_on};
use crate::tensor::Tensor;

/// The code of a part, for fixed shapes.
pub(crate) enum PartCode {
    /// With memory of its own.
    Own(Box<SessionCode>),
    /// A plan for many shapes, whose runs share memory.
    Open(Box<OpenShape>),
}

impl PartCode {
    fn compiler(&self) -> &Compiler {
        match self {
            PartCode::Own(code) => code.program.compiler(),
            PartCode::Open(shape) => shape.compiler(),
        }
    }

    fn outputs(&self) -> &[String] {
        match self {
            PartCode::Own(code) => code.outputs(),
            PartCode::Open(shape) => shape.outputs(),
        }
    }

    /// Runs on inputs in signature order, in memory that others do not use meanwhile; waits until there is some, and allocates
    /// the outputs.
    ///
    /// # Errors
    /// An input does not have the type this was compiled for, or memory is short.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let inputs: Vec<TensorRef<'_>> = inputs.iter().map(Tensor::as_ref).collect();
        tensors(self.run_on(&inputs)?)
    }

    /// As [`PartCode::run`], on borrowed inputs.
    ///
    /// # Errors
    /// As there.
    fn run_on(&self, inputs: &[TensorRef<'_>]) -> Result<Vec<Output>, Error> {
        match self {
            PartCode::Own(code) => code.with_memory(|memory| code.run(memory, inputs)),
            PartCode::Open(shape) => shape.run(inputs),
        }
    }

    /// The code with memory of its own. The report is of what compiling took so far.
    ///
    /// # Errors
    /// Code for these shapes alone does not compile.
    pub fn alone(self, report: Report) -> Result<SessionCode, Error> {
        match self {
            PartCode::Own(code) => Ok(*code),
            PartCode::Open(shape) => shape.alone(report),
        }
    }

    /// As [`PartCode::run`], with outputs of the caller's.
    ///
    /// # Errors
    /// As there; or an output does not have the type this was compiled for.
    fn run_into(&self, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), Error> {
        match self {
            PartCode::Own(code) => code.with_memory(|memory| code.execute(memory, inputs, outputs)),
            PartCode::Open(shape) => shape.run_into(inputs, outputs),
        }
    }
}

/// Memory of runs on states of the caller's.
pub(crate) struct StatefulRun {
    run: OpenRun,
    results: OutputMemory,
}

impl Default for StatefulRun {
    fn default() -> StatefulRun {
        StatefulRun { run: OpenRun::default(), results: OutputMemory::new(1) }
    }
}

/// A model compiled for fixed input shapes, whose runs find memory themselves.
pub(crate) struct RunCode {
    first: PartCode,
    later: Option<LaterParts>,
}

impl RunCode {
    /// The code of the first part, and the parts that follow.
    pub fn new(first: PartCode, later: Option<LaterParts>) -> RunCode {
        RunCode { first, later }
    }

    /// Names of the outputs.
    pub fn outputs(&self) -> &[String] {
        self.later.as_ref().map_or_else(|| self.first.outputs(), LaterParts::outputs)
    }

    /// Runs on inputs in signature order; allocates the outputs.
    ///
    /// # Errors
    /// An input does not have the type this was compiled for, or a later part does not compile.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let results = self.first.run(inputs)?;
        match &self.later {
            Some(later) => later.outputs_of(self.first.compiler(), inputs, results),
            None => Ok(results),
        }
    }

    /// As [`RunCode::run`], on borrowed inputs. Copies inputs and results if there are several parts.
    ///
    /// # Errors
    /// As there.
    pub fn run_on(&self, inputs: &[TensorRef<'_>]) -> Result<Vec<Output>, Error> {
        match &self.later {
            None => self.first.run_on(inputs),
            Some(_) => self.run(&owned(inputs)?)?.iter().map(Output::try_from).collect(),
        }
    }

    /// As [`RunCode::run`], with outputs of the caller's. Copies only if there are several parts.
    ///
    /// # Errors
    /// As there; or an output does not have the type of the result.
    pub fn run_into(&self, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), Error> {
        match &self.later {
            None => self.first.run_into(inputs, outputs),
            Some(_) => copy(self.outputs(), &self.run(&owned(inputs)?)?, outputs),
        }
    }

    /// Runs on states of the caller's, in the order of the graph's inputs; allocates the outputs.
    ///
    /// # Errors
    /// A tensor does not have the type this was compiled for, there are several parts, or memory is short.
    pub fn run_on_states(
        &self,
        memory: &mut StatefulRun,
        inputs: &[TensorRef<'_>],
        states: &mut [TensorMut<'_>],
    ) -> Result<Vec<Tensor>, Error> {
        if self.later.is_some() {
            return Err(Error::Parts { model: self.outputs().join(", ") });
        }
        let StatefulRun { run: memory, results } = memory;
        let context = match &self.first {
            PartCode::Open(shape) => shape.enter(memory)?,
            PartCode::Own(code) => memory.context_of(code.program.compiler(), code.program.executable())?,
        };
        let executable = context.executable().clone();
        let compiler = self.first.compiler();
        let run = |outputs: &mut [TensorMut<'_>]| Ok(run_on(compiler, context, Bindings { inputs, states, outputs })?);
        tensors(results.with(executable.plan(), run)?)
    }

    /// The code of the first part with memory of its own, and the parts that follow. The report is of what compiling took so far.
    ///
    /// # Errors
    /// Code for these shapes alone does not compile.
    pub fn alone(self, report: Report) -> Result<(SessionCode, Option<LaterParts>), Error> {
        Ok((self.first.alone(report)?, self.later))
    }
}

/// Copies of tensors of the caller's.
pub(crate) fn owned(tensors: &[TensorRef<'_>]) -> Result<Vec<Tensor>, Error> {
    tensors.iter().map(|t| Tensor::from_bytes(t.dtype, t.dims, t.data.to_vec())).collect()
}

/// Copies results of these names to tensors of the caller's.
///
/// # Errors
/// A tensor is missing or has another type or shape.
pub(crate) fn copy(names: &[String], results: &[Tensor], outputs: &mut [TensorMut<'_>]) -> Result<(), Error> {
    let side = PlanEdge::Output;
    let (expected, actual) = (results.len(), outputs.len());
    if expected != actual {
        return Err(RunError::Count { plan: "main".to_owned(), side, expected, actual }.into());
    }
    for (i, (out, result)) in outputs.iter_mut().zip(results).enumerate() {
        let name = || names.get(i).cloned().unwrap_or_default();
        if out.dtype != result.dtype() {
            let (expected, actual) = (result.dtype(), out.dtype);
            return Err(RunError::DType { side, name: name(), expected, actual }.into());
        }
        if out.dims != result.dims() {
            let (expected, actual) = (result.dims().to_vec(), out.dims.to_vec());
            return Err(RunError::Shape { side, name: name(), expected, actual }.into());
        }
        let (expected, actual) = (result.bytes().len() as u64, out.data.len() as u64);
        if expected != actual {
            return Err(RunError::Bytes { side, name: name(), expected, actual }.into());
        }
        out.data.copy_from_slice(result.bytes());
    }
    Ok(())
}
