//! Key-value stores: over the devices of a process, and over ranks that are threads of this one.

mod local;
pub mod modules;
mod ranks;
mod schedules;

use tensorc::Compiler;
use tensorc::op::{Define, closure, like};
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};

use crate::support::backend::options;

/// What the operator `broken` says.
const FAILURE: &str = "no more paper";

/// With an operator that always fails.
fn runtime() -> Runtime {
    let broken = closure("broken", &["x"], like(0), |_| Err(FAILURE.into())).types(&[tensorc::DType::F32]);
    let compiler = Compiler::with_operators(options(), [broken.build()]).unwrap();
    Runtime::with_compiler(compiler, RuntimeOptions::default()).unwrap()
}

fn full(rt: &Runtime, value: f64) -> NDArray {
    rt.full(rt.options().device, tensorc::DType::F32, &[4, 4], value).unwrap()
}

#[track_caller]
fn assert_all(array: &NDArray, value: f32) {
    let found = array.to_vec::<f32>().unwrap();
    assert!(found.iter().all(|v| *v == value), "{found:?} is not {value} everywhere");
}
