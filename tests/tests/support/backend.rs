//! The back end under test.

use tensorc::runtime::Device;
use tensorc::{Backend, Compiler, Options};
use tensorc_nd::{Runtime, RuntimeOptions};

pub const GPU: Device = Device::accelerator(0);

/// Default options, with the back end that the environment variable `TENSORC_BACKEND` names, if it is set; `gpu` is a GPU whose
/// kernels the interpreter executes.
pub fn options() -> Options {
    let named = std::env::var("TENSORC_BACKEND").ok();
    if named.as_deref() == Some("gpu") {
        return Options { gpus: vec![tensorc_simulator::interpreted(GPU)], ..Options::default() };
    }
    let backend = named.map_or(Backend::default(), |name| {
        Backend::from_name(&name).unwrap_or_else(|| panic!("TENSORC_BACKEND names no back end: {name}"))
    });
    Options { backend, ..Options::default() }
}

/// A runtime of arrays with such options; on a GPU, arrays are made there.
pub fn new_runtime(runtime: RuntimeOptions) -> Runtime {
    made(options(), runtime)
}

/// As [`new_runtime`], beside [`GPU`], whose kernels the interpreter executes; nothing is made there unless the options say so.
pub fn new_runtime_beside_gpu(runtime: RuntimeOptions) -> Runtime {
    let mut options = options();
    match options.gpus.is_empty() {
        true => {
            options.gpus = vec![tensorc_simulator::interpreted(GPU)];
            with(options, runtime)
        }
        false => made(options, runtime),
    }
}

fn made(options: Options, mut runtime: RuntimeOptions) -> Runtime {
    if let Some(driver) = options.gpus.first().filter(|_| runtime.device == Device::default()) {
        runtime.device = driver.device();
    }
    with(options, runtime)
}

fn with(options: Options, runtime: RuntimeOptions) -> Runtime {
    let compiler = Compiler::new(options).map_err(tensorc_nd::Error::from);
    let made = compiler.and_then(|compiler| Runtime::with_compiler(compiler, runtime));
    made.unwrap_or_else(|error| panic!("no runtime: {error}"))
}
