//! A model compiled for fixed input shapes, ready to run.

use std::time::Duration;

use tensorc_abi::Plan;
use tensorc_ir::graph::Graph;
use tensorc_runtime::{Context, TensorMut, TensorRef};

use crate::compile::{Compiled, Report, compile};
use crate::{Compiler, Error, Tensor};

/// Compiled code, weights and the memory of one run at a time.
pub struct Session {
    compiler: Compiler,
    context: Context,
    report: Report,
}

impl Session {
    pub(crate) fn new(compiler: Compiler, graph: Graph) -> Result<Session, Error> {
        let Compiled { executable, report } = compile(&compiler, graph)?;
        let context = Context::new(executable, compiler.pool())?;
        Ok(Session { compiler, context, report })
    }

    /// The schedule this session runs.
    pub fn plan(&self) -> &Plan {
        self.context.executable().plan()
    }

    /// What compiling took.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Runs on inputs in signature order; allocates the outputs.
    ///
    /// # Errors
    /// An input does not have the type this session was compiled for.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let refs: Vec<TensorRef<'_>> = inputs.iter().map(Tensor::as_ref).collect();
        let plan = self.plan();
        let shapes: Vec<_> =
            plan.outputs.iter().map(|id| plan.buffer(*id)).map(|b| (b.dtype, b.dims.clone())).collect();
        let mut data: Vec<Vec<u8>> =
            plan.outputs.iter().map(|id| vec![0u8; plan.buffer(*id).bytes() as usize]).collect();
        let mut outputs: Vec<TensorMut<'_>> =
            shapes.iter().zip(&mut data).map(|((dtype, dims), d)| TensorMut::new(*dtype, dims, d)).collect();
        self.run_into(&refs, &mut outputs)?;
        shapes.iter().zip(data).map(|((dtype, dims), d)| Tensor::from_bytes(*dtype, dims, d)).collect()
    }

    /// Runs into memory of the caller's: no allocation.
    ///
    /// # Errors
    /// A tensor does not have the type this session was compiled for.
    pub fn run_into(&mut self, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), Error> {
        Ok(self.context.run(self.compiler.pool(), inputs, outputs)?)
    }

    /// As [`Session::run_into`], and returns the time of each step of the plan.
    ///
    /// # Errors
    /// As [`Session::run_into`].
    pub fn run_profiled(
        &mut self,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<Vec<Duration>, Error> {
        Ok(self.context.run_profiled(self.compiler.pool(), inputs, outputs)?)
    }
}
