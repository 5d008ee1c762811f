//! What the runs of a session share, and the memory that each of them has.

use bytes::Bytes;
use tensorc_abi::Plan;
use tensorc_ir::DenseType;
use tensorc_ir::graph::Graph;
use tensorc_runtime::{AlignedBuffer, Bindings, Context, Device, RunError, TensorMut, TensorRef};

use crate::bounded_pool::BoundedPool;
use crate::compile::{Report, Source};
use crate::compiler::Compiler;
use crate::error::Error;
use crate::outputs::{Output, OutputMemory};
use crate::program::{Program, most_runs};
use crate::tensor::Tensor;

/// A model, or a part of one, compiled for fixed input shapes.
pub(crate) struct SessionCode {
    pub program: Program,
    /// Names of the outputs.
    outputs: Vec<String>,
    states: StateInputs,
    /// Memory of runs.
    runs: BoundedPool<RunMemory>,
    results: OutputMemory,
}

/// Inputs that the graph updates. Runs work on copies of them.
struct StateInputs {
    /// Their positions in the signature, ascending.
    positions: Vec<usize>,
    types: Vec<DenseType>,
}

/// What callers see of a graph.
#[derive(Clone)]
pub(crate) struct Signature {
    /// Names of the outputs.
    outputs: Vec<String>,
    /// Positions of the inputs that are updated.
    positions: Vec<usize>,
}

impl Signature {
    pub fn of(graph: &Graph) -> Signature {
        let outputs = graph.outputs().iter().map(|(name, _)| name.to_string()).collect();
        Signature { outputs, positions: graph.states().into_iter().map(|(i, _)| i).collect() }
    }

    /// Names of the outputs.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// Whether there are inputs that are updated.
    pub fn has_states(&self) -> bool {
        !self.positions.is_empty()
    }
}

/// What one run at a time writes.
pub(crate) struct RunMemory {
    pub context: Context,
    /// What the states hold after the last run.
    states: Vec<AlignedBuffer>,
}

impl SessionCode {
    /// Compiles a graph of known types.
    ///
    /// # Errors
    /// As [`Program::compile`].
    pub fn compile_typed(compiler: &Compiler, graph: Graph, report: Report) -> Result<SessionCode, Error> {
        let signature = Signature::of(&graph);
        SessionCode::of(compiler, Source::Typed(graph), signature, report)
    }

    /// Compiles a graph that is fused already.
    ///
    /// # Errors
    /// As [`Program::compile`].
    pub fn compile_fused(compiler: &Compiler, graph: Graph, report: Report) -> Result<SessionCode, Error> {
        let signature = Signature::of(&graph);
        SessionCode::of(compiler, Source::Fused(graph), signature, report)
    }

    fn of(compiler: &Compiler, source: Source, signature: Signature, report: Report) -> Result<SessionCode, Error> {
        Ok(SessionCode::linked(Program::compile_reporting(compiler, source, report)?, signature))
    }

    /// Of a program that is linked.
    pub fn linked(program: Program, signature: Signature) -> SessionCode {
        let Signature { outputs, positions } = signature;
        let (plan, most) = (program.plan(), most_runs(program.compiler()));
        let (runs, results) = (BoundedPool::new(most, program.compiler().pool().clone()), OutputMemory::new(most));
        let buffers = plan.states.iter().map(|id| plan.buffer(*id));
        let types = buffers.map(|b| DenseType::new(b.dtype, &b.dims)).collect();
        SessionCode { program, outputs, states: StateInputs { positions, types }, runs, results }
    }

    pub fn plan(&self) -> &Plan {
        self.program.plan()
    }

    /// Names of the outputs.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// Memory for one run at a time.
    pub fn memory(&self) -> Result<RunMemory, RunError> {
        let zeroed = |t: &DenseType| AlignedBuffer::zeroed(t.bytes(), "a state");
        let states = self.states.types.iter().map(zeroed).collect::<Result<_, _>>()?;
        Ok(RunMemory { context: self.program.context()?, states })
    }

    /// Makes memory for a run.
    ///
    /// # Errors
    /// It is short.
    pub fn prepare(&self) -> Result<(), Error> {
        self.runs.with(|| Ok(self.memory()?), |_| Ok(()))
    }

    /// Does something in memory that others do not use meanwhile; waits until there is some.
    ///
    /// # Errors
    /// Memory is short; those of `work`.
    pub fn with_memory<T>(&self, work: impl FnOnce(&mut RunMemory) -> Result<T, Error>) -> Result<T, Error> {
        self.runs.with(|| Ok(self.memory()?), work)
    }

    /// As [`SessionCode::with_memory`], for code without states.
    ///
    /// # Errors
    /// As there.
    pub fn with_context<T>(&self, work: impl FnOnce(&mut Context) -> Result<T, Error>) -> Result<T, Error> {
        self.with_memory(|memory| work(&mut memory.context))
    }

    /// Runs on inputs in signature order; allocates the outputs.
    ///
    /// # Errors
    /// An input does not have the type this was compiled for.
    pub fn run(&self, memory: &mut RunMemory, inputs: &[TensorRef<'_>]) -> Result<Vec<Output>, Error> {
        self.results.with(self.plan(), |outputs| self.execute(memory, inputs, outputs))
    }

    /// Runs under the eyes of the profiler if it is on.
    pub fn execute(
        &self,
        memory: &mut RunMemory,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), Error> {
        let run =
            |context: &mut Context, bindings: Bindings<'_, '_, '_>| run_on(self.program.compiler(), context, bindings);
        self.bound(memory, inputs, outputs, run)
    }

    /// The states after the last run in this memory, in signature order.
    pub fn states(&self, memory: &RunMemory) -> Result<Vec<Tensor>, Error> {
        let copy = |data: &AlignedBuffer| Bytes::copy_from_slice(data.as_slice());
        let both = self.states.types.iter().zip(&memory.states);
        both.map(|(t, data)| Tensor::from_bytes(t.dtype, &t.dims, copy(data))).collect()
    }

    /// Calls `run` with tensors in the order of the plan's lists. Allocates only if there are states.
    pub fn bound<T>(
        &self,
        memory: &mut RunMemory,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        run: impl FnOnce(&mut Context, Bindings<'_, '_, '_>) -> Result<T, RunError>,
    ) -> Result<T, Error> {
        let StateInputs { positions, types } = &self.states;
        let RunMemory { context, states } = memory;
        if positions.is_empty() {
            return Ok(run(context, Bindings::new(inputs, outputs))?);
        }
        let state_of = |i: &usize| positions.binary_search(i).ok();
        let rest = inputs.iter().enumerate().filter(|(i, _)| state_of(i).is_none());
        let rest: Vec<TensorRef<'_>> = rest.map(|(_, t)| *t).collect();
        for ((i, ty), state) in positions.iter().zip(types).zip(&mut *states) {
            let given =
                inputs.get(*i).filter(|t| t.dtype == ty.dtype && *t.dims == ty.dims && t.data.len() == state.len());
            let Some(given) = given else {
                return Err(Error::TensorSize { elements: state.len(), dims: ty.dims.to_vec() });
            };
            state.as_mut_slice().copy_from_slice(given.data);
        }
        let mut states: Vec<TensorMut<'_>> =
            types.iter().zip(states).map(|(t, data)| TensorMut::new(t.dtype, &t.dims, data.as_mut_slice())).collect();
        Ok(run(context, Bindings { inputs: &rest, states: &mut states, outputs })?)
    }
}

/// Runs the plan of a context, under the eyes of the profiler if it is on.
///
/// # Errors
/// As [`Context::run`].
pub(crate) fn run_on(
    compiler: &Compiler,
    context: &mut Context,
    bindings: Bindings<'_, '_, '_>,
) -> Result<(), RunError> {
    let pool = compiler.pool();
    match compiler.profiler().filter(|profiler| profiler.is_on()) {
        None => context.run(pool, bindings),
        Some(profiler) => {
            let _span = profiler.scope("run", "run");
            context.run_traced(None, pool, bindings, profiler, Device::default())
        }
    }
}
