//! Arrays, symbols and training with the names of MXNet, as the package's front ends need them.

mod array;
mod autograd;
mod batches;
mod call;
mod dlpack;
mod executor;
mod files;
mod metric;
mod module;
mod symbol;
mod updater;

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tensorc_nd::{Error, Runtime, RuntimeOptions};

use crate::compilers::{self, Setting};
use crate::errors;

pub use array::{Array, seed, wait_all};
pub use autograd::{ModeScope, autograd_mode, backward};
pub use batches::FileBatches;
pub use call::{invoke, operator_names, operator_parameters};
pub use dlpack::{borrow_array, lend_array};
pub use executor::Executor;
pub use files::{load_arrays, load_checkpoint, save_arrays};
pub use metric::Metric;
pub use module::Module;
pub use symbol::{Symbol, group, symbol_from_json};
pub use updater::Updater;

/// What all arrays of a process belong to, from the first on.
static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

/// The runtime of all arrays.
///
/// # Errors
/// Threads cannot be started.
fn runtime(py: Python<'_>) -> PyResult<Runtime> {
    // Exceptions are made without the lock: making one may let other threads of Python run.
    made_runtime().map_err(|error| errors::mxnet(py, &error))
}

fn made_runtime() -> Result<Runtime, Error> {
    let mut made = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = &*made {
        return Ok(runtime.clone());
    }
    let runtime = Runtime::with_compiler(compilers::compiler(Setting::default())?, RuntimeOptions::default())?;
    Ok(made.insert(runtime).clone())
}
