//! The back end under test.

use tensorc::ndarray::{Runtime, RuntimeOptions};
use tensorc::runtime::Device;
use tensorc::{Backend, Compiler, Options};

/// Default options, with the back end that the environment variable `TENSORC_BACKEND` names, if it is set; `gpu` is a GPU whose
/// kernels the interpreter executes.
pub fn options() -> Options {
    let named = std::env::var("TENSORC_BACKEND").ok();
    if named.as_deref() == Some("gpu") {
        return Options { gpus: vec![tensorc::gpu::interpreted(Device::accelerator(0))], ..Options::default() };
    }
    let backend = named.map_or(Backend::default(), |name| {
        Backend::from_name(&name).unwrap_or_else(|| panic!("TENSORC_BACKEND names no back end: {name}"))
    });
    Options { backend, ..Options::default() }
}

/// A runtime of arrays with such options; on a GPU, arrays are made there.
pub fn new_runtime(mut runtime: RuntimeOptions) -> Runtime {
    let options = options();
    if let Some(driver) = options.gpus.first().filter(|_| runtime.device == Device::default()) {
        runtime.device = driver.device();
    }
    let compiler = Compiler::new(options);
    let made = compiler.and_then(|compiler| Runtime::with_compiler(compiler, runtime));
    made.unwrap_or_else(|error| panic!("no runtime: {error}"))
}
