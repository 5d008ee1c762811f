//! What the runs of a session share, and the memory that each of them has.

use std::sync::Arc;

use bytes::Bytes;
use tensorc_abi::Plan;
use tensorc_ir::DenseType;
use tensorc_ir::graph::Graph;
use tensorc_passes::parts::{Facts, PartShape};
use tensorc_runtime::{AlignedBuffer, Bindings, Context, Device, RunError, TensorMut, TensorRef};

use crate::bounded_pool::BoundedPool;
use crate::compile::{Report, Source};
use crate::compiler::Compiler;
use crate::error::Error;
use crate::parts::{DividedRun, LaterParts, RanPart};
use crate::program::{Program, most_runs};
use crate::tensor::Tensor;

/// A model compiled for fixed input shapes, or a part of it.
pub(crate) struct SessionCode {
    /// Of the first part if there are several.
    pub program: Program,
    pub later: Option<LaterParts>,
    /// Names of the outputs.
    outputs: Vec<String>,
    states: StateInputs,
    /// Memory of runs, which sessions of one plan share.
    runs: Arc<BoundedPool<RunMemory>>,
}

/// Inputs that the graph updates. Runs work on copies of them.
struct StateInputs {
    /// Their positions in the signature, ascending.
    positions: Vec<usize>,
    types: Vec<DenseType>,
}

/// What callers see of a graph.
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
        let program = Program::compile_reporting(compiler, source, report)?;
        let runs = Arc::new(BoundedPool::new(most_runs(compiler)));
        Ok(SessionCode::linked(program, signature, runs))
    }

    /// With the parts that follow.
    pub fn followed_by(self, later: LaterParts) -> SessionCode {
        SessionCode { outputs: later.outputs(), later: Some(later), ..self }
    }

    /// Of a plan for many shapes, whose runs share memory, but for that of states and of a GPU, where each shape has a recording.
    pub fn open(program: Program, signature: Signature, runs: Arc<BoundedPool<RunMemory>>) -> SessionCode {
        let runs = match signature.positions.is_empty() && program.compiler().gpu().is_none() {
            true => runs,
            false => Arc::new(BoundedPool::new(most_runs(program.compiler()))),
        };
        SessionCode::linked(program, signature, runs)
    }

    fn linked(program: Program, signature: Signature, runs: Arc<BoundedPool<RunMemory>>) -> SessionCode {
        let Signature { outputs, positions } = signature;
        let plan = program.plan();
        let buffers = plan.states.iter().map(|id| plan.buffer(*id));
        let types = buffers.map(|b| DenseType::new(b.dtype, &b.dims)).collect();
        SessionCode { program, later: None, outputs, states: StateInputs { positions, types }, runs }
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

    /// Runs in memory that others do not use meanwhile; waits until there is some.
    ///
    /// # Errors
    /// As [`SessionCode::run`].
    pub fn run_beside(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let run = |memory: &mut RunMemory| {
            memory.context.switch(self.program.executable())?;
            self.run(memory, inputs)
        };
        self.runs.with(|| Ok(self.memory()?), run)
    }

    /// Runs on inputs in signature order; allocates the outputs.
    ///
    /// # Errors
    /// An input does not have the type this was compiled for, or a later part does not compile.
    pub fn run(&self, memory: &mut RunMemory, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let refs: Vec<TensorRef<'_>> = inputs.iter().map(Tensor::as_ref).collect();
        let results = self.run_first(memory, &refs)?;
        match &self.later {
            Some(later) => {
                let run = later.run(self.program.compiler(), inputs, results, &mut |_, _| {})?;
                Ok(run.outputs()?.into_iter().map(Tensor).collect())
            }
            None => Ok(results),
        }
    }

    /// As [`SessionCode::run`], of several parts.
    pub fn run_divided(
        &self,
        later: &LaterParts,
        memory: &mut RunMemory,
        inputs: &[Tensor],
    ) -> Result<DividedRun, Error> {
        let refs: Vec<TensorRef<'_>> = inputs.iter().map(Tensor::as_ref).collect();
        let results = self.run_first(memory, &refs)?;
        let (graph, first) = later.first();
        let types: Vec<DenseType> = inputs.iter().map(|t| t.data().ty.clone()).collect();
        let mut parts = vec![RanPart { facts: Facts::of_inputs(graph, &types), shape: first.clone() }];
        let mut seen = |facts, shape: &PartShape| parts.push(RanPart { facts, shape: shape.clone() });
        let run = later.run(self.program.compiler(), inputs, results, &mut seen)?;
        let outputs = run.outputs()?.into_iter().map(Tensor).collect();
        let values = run.into_known().into_iter().map(|(v, data)| (v, Tensor(data))).collect();
        Ok(DividedRun { parts, values, outputs })
    }

    fn run_first(&self, memory: &mut RunMemory, inputs: &[TensorRef<'_>]) -> Result<Vec<Tensor>, Error> {
        let plan = self.plan();
        let buffers = plan.outputs.iter().map(|id| plan.buffer(*id));
        let shapes: Vec<_> = buffers.map(|b| (b.dtype, b.dims.clone(), b.bytes())).collect();
        // Shapes in a model decide how much this is.
        let results = shapes.iter().map(|(_, _, bytes)| AlignedBuffer::zeroed(*bytes, "outputs"));
        let mut data = results.collect::<Result<Vec<AlignedBuffer>, _>>()?;
        let slices = data.iter_mut().map(AlignedBuffer::as_mut_slice);
        let mut outputs: Vec<TensorMut<'_>> =
            shapes.iter().zip(slices).map(|((dtype, dims, _), d)| TensorMut::new(*dtype, dims, d)).collect();
        self.execute(memory, inputs, &mut outputs)?;
        let owned = data.into_iter().map(Bytes::from_owner);
        shapes.iter().zip(owned).map(|((dtype, dims, _), d)| Tensor::from_bytes(*dtype, dims, d)).collect()
    }

    /// Runs the first part, under the eyes of the profiler if it is on.
    pub fn execute(
        &self,
        memory: &mut RunMemory,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), Error> {
        let compiler = self.program.compiler();
        let pool = compiler.pool();
        let profiler = compiler.profiler().filter(|profiler| profiler.is_on());
        self.bound(memory, inputs, outputs, |context, bindings| match profiler {
            None => context.run(pool, bindings),
            Some(profiler) => {
                let _span = profiler.scope("run", "run");
                context.run_traced(None, pool, bindings, profiler, Device::default())
            }
        })
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
