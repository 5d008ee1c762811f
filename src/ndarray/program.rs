//! Compiled code that runs as one operation of the engine.

use std::sync::{Arc, Mutex, PoisonError};

use tensorc_ir::graph::Graph;
use tensorc_runtime::engine::{Failure, Name};
use tensorc_runtime::{Bindings, Context, Executable, TensorMut, TensorRef};

use crate::compile::compile;
use crate::{Compiler, Error};

/// Contexts kept for later runs of one program.
const IDLE: usize = 4;

/// An executable, and memory for a few runs at once.
pub(super) struct Program {
    /// What operations that run it are called.
    pub name: Name,
    compiler: Compiler,
    executable: Arc<Executable>,
    idle: Mutex<Vec<Context>>,
}

impl Program {
    /// Compiles a graph of known types, which updates none of its inputs.
    pub fn compile(compiler: &Compiler, name: Name, graph: Graph) -> Result<Program, Error> {
        let executable = compile(compiler, graph)?.executable;
        Ok(Program { name, compiler: compiler.clone(), executable, idle: Mutex::default() })
    }

    /// Runs once; several threads may at the same time.
    pub fn run(&self, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), Failure> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = idle().pop();
        let mut context = match taken {
            Some(context) => context,
            None => Context::new(self.executable.clone(), self.compiler.pool())?,
        };
        let result = context.run(self.compiler.pool(), Bindings::new(inputs, outputs));
        let mut idle = idle();
        if idle.len() < IDLE {
            idle.push(context);
        }
        Ok(result?)
    }
}
