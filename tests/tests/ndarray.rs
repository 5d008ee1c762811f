//! Imperative arrays, as their users see them.

mod errors;
mod functions;
mod fusion;
mod lent;
mod values;
mod views;

use tensorc::ndarray::{Runtime, RuntimeOptions};
use tensorc::runtime::engine::{EngineConfig, EngineKind};

use crate::support::backend::new_runtime;

/// Runtimes of every kind of engine, with and without deferral.
fn runtimes() -> Vec<Runtime> {
    let mut all = vec![];
    for kind in EngineKind::ALL {
        for fuse in [true, false] {
            all.push(runtime(kind, fuse));
        }
    }
    all
}

fn runtime(kind: EngineKind, fuse: bool) -> Runtime {
    let engine = EngineConfig { kind, ..EngineConfig::default() };
    new_runtime(RuntimeOptions { engine, fuse, ..RuntimeOptions::default() })
}
