//! The native module of the Python package `tensorc`: thin wrappers around the Rust API. What Python can say itself is in the
//! package beside it (`tensorc/`).

mod arrays;
mod compilers;
mod element;
mod errors;
mod host_memory;
mod inspection;
mod mxnet;
mod session;
mod signals;
mod signature;
mod texts;

use pyo3::prelude::*;

/// What the package needs of Rust.
#[pymodule]
mod _tensorc {
    #[pymodule_export]
    use crate::host_memory::HostMemory;
    #[pymodule_export]
    use crate::inspection::{compile_ahead, inspect, report};
    #[pymodule_export]
    use crate::mxnet::{
        Array, Executor, FileBatches, Metric, ModeScope, Module, Symbol, Updater, autograd_mode, backward,
        borrow_array, group, invoke, lend_array, load_arrays, load_checkpoint, operator_names, operator_parameters,
        save_arrays, seed, symbol_from_json, wait_all,
    };
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::signals::StopFlag;
    #[pymodule_export]
    use crate::signature::ModelSignature;

    /// The version of the package.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name in Python")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
