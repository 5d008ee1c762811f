//! What runs on arrays as one operation of the engine: an operator, a lazy batch, a model, a gradient.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tensorc_ir::DenseType;
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::op::Grad;
use tensorc_runtime::Device;
use tensorc_runtime::array::{ArrayLaunch, ArrayOperand, ArraySpace, ArrayView, Chunk, LaunchOutput, byte_len};
use tensorc_runtime::engine::OpName;

use crate::error::Error;
use tensorc::{Compiler, DividedRun, Program, ProgramCache, ProgramKey, Session, Tensor};

/// Programs kept: calls, lazy batches, models and gradients.
const MAX_CACHED_PROGRAMS: usize = 4096;

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A graph from arrays to results, compiled for one device at its first run.
pub(super) struct ArrayProgram {
    /// Tells it from all others, in keys of what is made of it.
    pub number: u64,
    /// What operations that run it are called.
    pub name: OpName,
    /// Of known types; it updates none of its inputs.
    pub graph: Graph,
    /// Result types; empty if they depend on elements.
    pub outputs: Vec<DenseType>,
    /// Cheaper to compute again than to keep: one element-wise operator.
    pub elementwise: bool,
    /// Of a gradient: positions, among what its tape keeps, of what it reads.
    pub reads: Vec<usize>,
    device: Device,
    code: OnceLock<Arc<Program>>,
    /// What runs it if its shapes depend on elements.
    session: OnceLock<Mutex<Session>>,
}

impl ArrayProgram {
    pub fn new(device: Device, name: OpName, graph: Graph) -> ArrayProgram {
        let types = graph.outputs().iter().map(|(_, v)| graph.resolved(*v).dense());
        ArrayProgram {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            name,
            outputs: types.collect::<Option<_>>().unwrap_or_default(),
            graph,
            elementwise: false,
            reads: vec![],
            device,
            code: OnceLock::new(),
            session: OnceLock::new(),
        }
    }

    /// Compiles it at the first use.
    pub fn code(&self, compiler: &Compiler) -> Result<&Arc<Program>, Error> {
        if let Some(code) = self.code.get() {
            return Ok(code);
        }
        let compiler = compiler.on(self.device)?;
        let program = Program::compile(&compiler, self.graph.clone())?;
        let program = if compiler.gpu().is_some() { program.in_turns(None)? } else { program };
        // Threads that need it at the same time compile it each rather than wait with a lock held.
        Ok(self.code.get_or_init(|| Arc::new(program)))
    }

    /// Pushes a run on arrays that nothing deferred concerns.
    pub fn launch<'v>(
        &self,
        programs: &Programs,
        device: Device,
        inputs: Vec<ArrayOperand>,
        outputs: impl Iterator<Item = &'v ArrayView>,
    ) -> Result<(), Error> {
        let code = self.code(&programs.compiler)?;
        let launch = launch(&self.name, device, inputs, outputs);
        let outputs = launch.outputs.len();
        Ok(code.launch(&programs.space, launch, None, [0, outputs])?)
    }

    /// Runs it if its shapes depend on elements.
    pub fn run_in_parts(&self, compiler: &Compiler, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let mut session = self.session(compiler)?.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(session.run(inputs)?)
    }

    /// As [`ArrayProgram::run_in_parts`]; tells what each part was.
    pub fn run_divided(&self, compiler: &Compiler, inputs: &[Tensor]) -> Result<DividedRun, Error> {
        let mut session = self.session(compiler)?.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(session.run_divided(inputs)?)
    }

    /// What runs it in parts, compiled at the first use.
    pub fn session(&self, compiler: &Compiler) -> Result<&Mutex<Session>, Error> {
        if let Some(session) = self.session.get() {
            return Ok(session);
        }
        let session = Session::new(&compiler.on(self.device)?, self.graph.clone())?;
        Ok(self.session.get_or_init(|| Mutex::new(session)))
    }

    /// Whether the gradient may read a result instead of computing it again: where a rule says so. The results of
    /// element-wise operators are not kept.
    pub fn keeps(&self, result: Value) -> bool {
        match &self.graph.node(result.node).kind {
            NodeKind::Op(op) => matches!(op.def.grad, Grad::Rule(_)) && !self.elementwise,
            _ => false,
        }
    }

    /// Whether any result is read by gradients.
    pub fn keeps_results(&self) -> bool {
        self.graph.outputs().iter().any(|(_, v)| self.keeps(*v))
    }
}

/// An operation that overwrites its outputs.
pub(super) fn launch<'n, 'v>(
    name: &'n OpName,
    device: Device,
    inputs: Vec<ArrayOperand>,
    outputs: impl Iterator<Item = &'v ArrayView>,
) -> ArrayLaunch<'n> {
    let outputs = outputs.cloned().map(LaunchOutput::write).collect();
    ArrayLaunch::new(name, device, inputs, outputs)
}

/// Programs by what they compute, with what compiles and runs them.
pub(super) struct Programs {
    pub compiler: Compiler,
    pub space: ArraySpace,
    cache: ProgramCache<Arc<ArrayProgram>>,
}

impl Programs {
    pub fn new(compiler: Compiler, space: ArraySpace) -> Programs {
        Programs { compiler, space, cache: ProgramCache::new(MAX_CACHED_PROGRAMS) }
    }

    /// The program of a key, made at its first use.
    pub fn get_or_make(
        &self,
        key: &ProgramKey,
        make: impl FnOnce() -> Result<ArrayProgram, Error>,
    ) -> Result<Arc<ArrayProgram>, Error> {
        self.cache.get_or_make(key, || Ok(Arc::new(make()?)))
    }

    /// A new array's memory, as a view of all of it.
    pub fn fresh(&self, device: Device, ty: &DenseType) -> Result<ArrayView, Error> {
        let chunk = Chunk::new(&self.space, device, byte_len(ty.dtype, &ty.dims)?);
        Ok(ArrayView::whole(chunk, ty.dtype, &ty.dims)?)
    }
}
