//! What runs on arrays as one operation of the engine: an operator, a lazy batch, a model, a gradient.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tensorc_ir::DenseType;
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::op::Grad;
use tensorc_runtime::Device;
use tensorc_runtime::array::{ArrayLaunch, ArrayOperand, ArraySpace, ArrayView, Chunk, LaunchOutput, byte_len};
use tensorc_runtime::engine::OpName;

use crate::error::Error;
use tensorc::{Compiler, DType, DividedRun, Program, ProgramCache, ProgramFamily, ProgramKey, Session, Tensor};

/// Programs kept: calls, lazy batches, models and gradients.
const MAX_CACHED_PROGRAMS: usize = 4096;
/// Families of them.
const MAX_FAMILIES: usize = 1024;

static NUMBER: AtomicU64 = AtomicU64::new(0);

fn next_number() -> u64 {
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Calls, lazy batches or gradients that differ in extents alone, on one device.
struct Family {
    number: u64,
    programs: ProgramFamily,
}

/// Which program of a family one is.
pub(super) struct Member {
    family: Arc<Family>,
    /// Of the inputs of the family's graph.
    types: Vec<DenseType>,
}

/// What keys tell apart.
#[derive(Clone, Copy)]
pub(super) enum KeyKind {
    Program,
    Family,
}

impl KeyKind {
    /// Adds a program.
    pub fn program(self, key: &mut ProgramKey, program: &ArrayProgram) {
        let family = || program.member.as_ref().map(|member| member.family.number);
        key.number(match self {
            KeyKind::Program => program.number,
            KeyKind::Family => family().unwrap_or(program.number),
        });
    }

    /// Adds the type of an operand.
    pub fn ty(self, key: &mut ProgramKey, dtype: DType, dims: &[u64]) {
        match self {
            KeyKind::Program => key.ty(dtype, dims),
            KeyKind::Family => {
                key.ty(dtype, &[]);
                key.number(dims.len() as u64);
            }
        }
    }
}

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
    /// Nothing if no other program shares code with it.
    pub member: Option<Member>,
    code: OnceLock<Arc<Program>>,
    /// What runs it if its shapes depend on elements.
    session: OnceLock<Mutex<Session>>,
}

impl ArrayProgram {
    pub fn new(device: Device, name: OpName, graph: Graph) -> ArrayProgram {
        let types = graph.outputs().iter().map(|(_, v)| graph.resolved(*v).dense());
        ArrayProgram {
            number: next_number(),
            name,
            outputs: types.collect::<Option<_>>().unwrap_or_default(),
            graph,
            elementwise: false,
            reads: vec![],
            device,
            member: None,
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
        let shared = |Member { family, types }: &Member| family.programs.program(&compiler, types);
        let program = match self.member.as_ref().and_then(shared) {
            Some(program) => program,
            None => Program::compile(&compiler, self.graph.clone())?,
        };
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
    families: ProgramCache<Option<Arc<Family>>>,
}

impl Programs {
    pub fn new(compiler: Compiler, space: ArraySpace) -> Programs {
        let (cache, families) = (ProgramCache::new(MAX_CACHED_PROGRAMS), ProgramCache::new(MAX_FAMILIES));
        Programs { compiler, space, cache, families }
    }

    /// The program of a key, made at its first use.
    pub fn get_or_make(
        &self,
        key: &ProgramKey,
        make: impl FnOnce() -> Result<ArrayProgram, Error>,
    ) -> Result<Arc<ArrayProgram>, Error> {
        self.cache.get_or_make(key, || Ok(Arc::new(make()?)))
    }

    /// What a program with such inputs is in the family of a key, which is made if it is the first of it.
    pub fn member(
        &self,
        key: &ProgramKey,
        types: Vec<DenseType>,
        make: impl FnOnce() -> Option<ProgramFamily>,
    ) -> Option<Member> {
        let family = || make().map(|programs| Arc::new(Family { number: next_number(), programs }));
        let Ok(family) = self.families.get_or_make(key, || Ok::<_, Infallible>(family()));
        Some(Member { family: family?, types })
    }

    /// A new array's memory, as a view of all of it.
    pub fn fresh(&self, device: Device, ty: &DenseType) -> Result<ArrayView, Error> {
        let chunk = Chunk::new(&self.space, device, byte_len(ty.dtype, &ty.dims)?);
        Ok(ArrayView::whole(chunk, ty.dtype, &ty.dims)?)
    }
}
