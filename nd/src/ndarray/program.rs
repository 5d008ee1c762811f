//! Compiled code that runs as one operation of the engine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tensorc_ir::graph::Graph;
use tensorc_runtime::array::{self, ArrayLaunch, ArraySpace, LaunchError, PlannedRun};
use tensorc_runtime::engine::{Failure, OpName};
use tensorc_runtime::{Bindings, Context, Device, Executable, TensorMut, TensorRef};

use crate::Error;
use tensorc::Compiler;
use tensorc::compile;

/// Contexts kept for later runs of one program.
const MAX_IDLE_CONTEXTS: usize = 4;

/// An executable, and memory for a few runs at once.
pub(super) struct Program {
    /// What operations that run it are called.
    pub name: OpName,
    compiler: Compiler,
    executable: Arc<Executable>,
    idle: Mutex<Vec<Context>>,
    /// Of a program on a driver's device, where runs follow each other.
    there: Option<Arc<Mutex<Context>>>,
}

impl Program {
    /// Compiles a graph of known types, which updates none of its inputs, for a device.
    pub fn compile(compiler: &Compiler, device: Device, name: OpName, graph: Graph) -> Result<Program, Error> {
        let compiler = compiler.on(device)?;
        let executable = compile(&compiler, graph)?.executable;
        let there = match executable.device() {
            Some(_) => Some(Arc::new(Mutex::new(Context::new(executable.clone(), compiler.pool())?))),
            None => None,
        };
        Ok(Program { name, compiler, executable, idle: Mutex::default(), there })
    }

    /// Pushes a run on a device that the program was compiled for.
    pub fn launch(self: &Arc<Self>, space: &ArraySpace, launch: ArrayLaunch<'_>) -> Result<(), LaunchError> {
        if let Some(context) = &self.there {
            let outputs = launch.outputs.len();
            return array::run(space, launch, PlannedRun { context: context.clone(), phase: None, states: 0, outputs });
        }
        let program = self.clone();
        array::launch(space, launch, move |inputs, outputs| program.run(inputs, outputs))
    }

    /// Runs once; several threads may at the same time.
    fn run(&self, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), Failure> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = idle().pop();
        let mut context = match taken {
            Some(context) => context,
            None => Context::new(self.executable.clone(), self.compiler.pool())?,
        };
        let result = context.run(self.compiler.pool(), Bindings::new(inputs, outputs));
        let mut idle = idle();
        if idle.len() < MAX_IDLE_CONTEXTS {
            idle.push(context);
        }
        Ok(result?)
    }
}

/// A program for processors and every GPU that it was used on.
#[derive(Default)]
pub(super) struct OnDevices {
    here: OnceLock<Arc<Program>>,
    /// On devices with a driver.
    there: Mutex<BTreeMap<Device, Arc<Program>>>,
}

impl OnDevices {
    /// The program for a device, made by `compile` at its first use.
    pub fn on(
        &self,
        space: &ArraySpace,
        device: Device,
        compile: impl FnOnce() -> Result<Program, Error>,
    ) -> Result<Arc<Program>, Error> {
        let there = || self.there.lock().unwrap_or_else(PoisonError::into_inner);
        let known = match space.is_driven(device) {
            true => there().get(&device).cloned(),
            false => self.here.get().cloned(),
        };
        if let Some(program) = known {
            return Ok(program);
        }
        // Threads that need it at the same time compile it each rather than wait with a lock held.
        let program = Arc::new(compile()?);
        Ok(match space.is_driven(device) {
            true => there().entry(device).or_insert(program).clone(),
            false => self.here.get_or_init(|| program).clone(),
        })
    }
}
