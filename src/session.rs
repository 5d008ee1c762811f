//! A model compiled for fixed input shapes, ready to run.
//!
//! Where shapes depend on computed values the model is compiled in stages: the first runs, its
//! results decide the shapes of the next, which is compiled once for every combination seen.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tensorc_abi::Plan;
use tensorc_ir::graph::{Graph, NodeKind};
use tensorc_ir::{DenseType, TensorData};
use tensorc_passes::infer::infer_graph;
use tensorc_passes::stage::{Next, Remainder, StageSplit, split};
use tensorc_runtime::{AlignedBuffer, Bindings, Context, Device, RunError, TensorMut, TensorRef};

use crate::cache::ProgramCache;
use crate::compile::Report;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::key::ProgramKey;
use crate::program::Program;
use crate::tensor::Tensor;

/// Compiled code, weights and the memory of one run at a time.
pub struct Session {
    /// Of the first stage if there are several.
    program: Program,
    context: Context,
    rest: Option<Rest>,
    outputs: usize,
    states: States,
}

/// Inputs that the graph updates. The session runs on copies of them.
#[derive(Default)]
struct States {
    /// Their positions in the signature, ascending.
    positions: Vec<usize>,
    types: Vec<DenseType>,
    /// What they hold after the last run.
    memory: Vec<AlignedBuffer>,
}

/// The stages after the first.
struct Rest {
    /// For each output the first stage delivers: its position among all, and in the stage.
    finished: Vec<(usize, usize)>,
    remainder: Remainder,
    compiled: ProgramCache<Later>,
}

/// A later stage, and its graph, which keeps alive the constants that its key names by address.
type Later = Arc<(Mutex<Session>, Graph)>;

/// Later stages kept compiled.
const MAX_CACHED_STAGES: usize = 16;
/// Constants up to this many bytes are compared by value.
const MAX_COMPARED_BYTES: usize = 4096;

impl Session {
    /// Compiles a graph whose inputs have concrete types.
    ///
    /// # Errors
    /// As [`Program::compile`].
    pub fn new(compiler: Compiler, mut graph: Graph) -> Result<Session, Error> {
        let mut report = Report::default();
        let static_bytes = compiler.options().passes.static_bytes;
        let outputs = graph.outputs().len();
        let positions = graph.states().into_iter().map(|(i, _)| i).collect();
        let divided = report.timed(&compiler, "infer", || {
            infer_graph(&mut graph, compiler.registry(), static_bytes)?;
            Ok(split(&graph, compiler.registry(), static_bytes)?)
        })?;
        let (first, rest) = match divided {
            None => (graph, None),
            Some(StageSplit { first, finished, rest }) => {
                (first, Some(Rest { finished, remainder: rest, compiled: ProgramCache::new(MAX_CACHED_STAGES) }))
            }
        };
        let program = Program::compile_reporting(&compiler, first, report)?;
        let plan = program.plan();
        let buffers = plan.states.iter().map(|id| plan.buffer(*id));
        let types: Vec<DenseType> = buffers.map(|b| DenseType::new(b.dtype, &b.dims)).collect();
        let memory = types.iter().map(|t| AlignedBuffer::zeroed(t.bytes(), "a state")).collect::<Result<_, _>>()?;
        let context = program.context()?;
        Ok(Session { program, context, rest, outputs, states: States { positions, types, memory } })
    }

    /// The schedule this session runs; of its first stage if there are several.
    pub fn plan(&self) -> &Plan {
        self.program.plan()
    }

    /// Whether shapes depend on values, so that later stages are compiled while running.
    pub fn is_staged(&self) -> bool {
        self.rest.is_some()
    }

    /// What compiling the first stage took.
    pub fn report(&self) -> &Report {
        self.program.report()
    }

    /// Runs on inputs in signature order; allocates the outputs.
    ///
    /// # Errors
    /// An input does not have the type this session was compiled for, or a later stage does not
    /// compile.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let refs: Vec<TensorRef<'_>> = inputs.iter().map(Tensor::as_ref).collect();
        let results = self.run_first(&refs)?;
        let Some(rest) = &self.rest else { return Ok(results) };
        let mut outputs: Vec<Option<Tensor>> = vec![None; self.outputs];
        for (whole, own) in &rest.finished {
            outputs[*whole] = Some(results[*own].clone());
        }
        let inputs: Vec<TensorData> = inputs.iter().map(|t| t.0.clone()).collect();
        let results: Vec<TensorData> = results.into_iter().map(|t| t.0).collect();
        let compiler = self.program.compiler();
        let next = rest.remainder.next(compiler.registry(), &inputs, &results)?;
        let (values, positions) = (next.inputs.iter().cloned().map(Tensor).collect::<Vec<_>>(), next.outputs.clone());
        let stage = rest.later(compiler, next)?;
        let later = stage.0.lock().unwrap_or_else(PoisonError::into_inner).run(&values)?;
        for (position, tensor) in positions.into_iter().zip(later) {
            outputs[position] = Some(tensor);
        }
        let missing = || Error::Internal("a stage did not deliver its outputs".into());
        outputs.into_iter().map(|o| o.ok_or_else(missing)).collect()
    }

    fn run_first(&mut self, inputs: &[TensorRef<'_>]) -> Result<Vec<Tensor>, Error> {
        let plan = self.plan();
        let buffers = plan.outputs.iter().map(|id| plan.buffer(*id));
        let shapes: Vec<_> = buffers.map(|b| (b.dtype, b.dims.clone(), b.bytes())).collect();
        // Shapes in a model decide how much this is.
        let memory = shapes.iter().map(|(_, _, bytes)| AlignedBuffer::zeroed(*bytes, "outputs"));
        let mut data = memory.collect::<Result<Vec<AlignedBuffer>, _>>()?;
        let memory = data.iter_mut().map(AlignedBuffer::as_mut_slice);
        let mut outputs: Vec<TensorMut<'_>> =
            shapes.iter().zip(memory).map(|((dtype, dims, _), d)| TensorMut::new(*dtype, dims, d)).collect();
        self.execute(inputs, &mut outputs)?;
        let owned = data.into_iter().map(Bytes::from_owner);
        shapes.iter().zip(owned).map(|((dtype, dims, _), d)| Tensor::from_bytes(*dtype, dims, d)).collect()
    }

    /// Runs the first stage, under the eyes of the profiler if it is on.
    fn execute(&mut self, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), Error> {
        let compiler = self.program.compiler();
        let pool = compiler.pool();
        let profiler = compiler.profiler().filter(|profiler| profiler.is_on());
        let context = &mut self.context;
        self.states.bound(inputs, outputs, |bindings| match profiler {
            None => context.run(pool, bindings),
            Some(profiler) => {
                let _span = profiler.scope("run", "run");
                context.run_traced(None, pool, bindings, profiler, Device::default())
            }
        })
    }

    /// The next values of the inputs that the graph updates, in signature order: what they are after
    /// the last run.
    ///
    /// # Errors
    /// None in practice: the values have the types the session was compiled for.
    pub fn states(&self) -> Result<Vec<Tensor>, Error> {
        let States { types, memory, .. } = &self.states;
        let copy = |data: &AlignedBuffer| Bytes::copy_from_slice(data.as_slice());
        types.iter().zip(memory).map(|(t, data)| Tensor::from_bytes(t.dtype, &t.dims, copy(data))).collect()
    }

    /// Runs into memory of the caller's: no allocation unless the session is staged.
    ///
    /// # Errors
    /// A tensor does not have the type this session was compiled for, or delivers.
    pub fn run_into(&mut self, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), Error> {
        if self.rest.is_none() {
            return self.execute(inputs, outputs);
        }
        let owned = inputs.iter().map(|t| Tensor::from_bytes(t.dtype, t.dims, t.data.to_vec()));
        let results = self.run(&owned.collect::<Result<Vec<_>, _>>()?)?;
        for (out, result) in outputs.iter_mut().zip(results) {
            if out.dtype != result.dtype() || out.dims != result.dims() || out.data.len() != result.bytes().len() {
                return Err(Error::TensorSize { elements: out.data.len(), dims: result.dims().to_vec() });
            }
            out.data.copy_from_slice(result.bytes());
        }
        Ok(())
    }

    /// Begins a run on copies of the inputs and returns while it goes on, on a GPU. Two runs may be under way at a time:
    /// the copies of one overlap the computation of the other. [`Session::finish`] takes the results, in the order of
    /// the runs.
    ///
    /// # Errors
    /// As [`Session::run_into`]; the model runs here, has states or is compiled in stages, or two runs are under way.
    pub fn begin(&mut self, inputs: &[TensorRef<'_>]) -> Result<(), Error> {
        match self.rest {
            Some(_) => Err(Error::Staged { model: self.plan().name.clone() }),
            None => Ok(self.context.begin(inputs)?),
        }
    }

    /// Waits for the run that was begun first and copies its results.
    ///
    /// # Errors
    /// As [`Session::run_into`], or no run was begun.
    pub fn finish(&mut self, outputs: &mut [TensorMut<'_>]) -> Result<(), Error> {
        Ok(self.context.finish(outputs)?)
    }

    /// Runs the first stage and returns the time of each step of its plan.
    ///
    /// # Errors
    /// As [`Session::run_into`].
    pub fn run_profiled(
        &mut self,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<Vec<Duration>, Error> {
        let (context, pool) = (&mut self.context, self.program.compiler().pool());
        self.states.bound(inputs, outputs, |bindings| context.run_profiled(None, pool, bindings))
    }
}

impl States {
    /// Calls `run` with tensors in the order of the plan's lists. Allocates only if there are states.
    fn bound<T>(
        &mut self,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        run: impl FnOnce(Bindings<'_, '_, '_>) -> Result<T, RunError>,
    ) -> Result<T, Error> {
        if self.positions.is_empty() {
            return Ok(run(Bindings::new(inputs, outputs))?);
        }
        let States { positions, types, memory } = self;
        let state_of = |i: &usize| positions.binary_search(i).ok();
        let rest = inputs.iter().enumerate().filter(|(i, _)| state_of(i).is_none());
        let rest: Vec<TensorRef<'_>> = rest.map(|(_, t)| *t).collect();
        for ((i, ty), memory) in positions.iter().zip(&*types).zip(&mut *memory) {
            let given =
                inputs.get(*i).filter(|t| t.dtype == ty.dtype && *t.dims == ty.dims && t.data.len() == memory.len());
            let Some(given) = given else {
                return Err(Error::TensorSize { elements: memory.len(), dims: ty.dims.clone() });
            };
            memory.as_mut_slice().copy_from_slice(given.data);
        }
        let mut states: Vec<TensorMut<'_>> =
            types.iter().zip(memory).map(|(t, data)| TensorMut::new(t.dtype, &t.dims, data.as_mut_slice())).collect();
        Ok(run(Bindings { inputs: &rest, states: &mut states, outputs })?)
    }
}

impl Rest {
    /// The session of a later stage, compiled at its first use.
    fn later(&self, compiler: &Compiler, next: Next) -> Result<Later, Error> {
        let mut key = ProgramKey::of("");
        next.inputs.iter().for_each(|t| key.ty(t.dtype(), t.dims()));
        for node in next.graph.node_ids() {
            let NodeKind::Const(data) = &next.graph.node(node).kind else { continue };
            let is_compared = data.content().len() <= MAX_COMPARED_BYTES;
            key.small(is_compared.into());
            match is_compared {
                true => key.tensor(data),
                false => key.place(data.content().place()),
            }
        }
        self.compiled.get_or_make(&key, || {
            let session = Session::new(compiler.clone(), next.graph.clone())?;
            Ok(Arc::new((Mutex::new(session), next.graph)))
        })
    }
}
