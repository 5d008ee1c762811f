//! Imperative arrays, as their users see them.

mod errors;
mod extents;
mod functions;
mod fusion;
mod lent;
mod values;
mod views;

use tensorc::runtime::engine::{EngineConfig, EngineKind};
use tensorc_nd::{Runtime, RuntimeOptions};

use crate::support::backend::{new_runtime, new_runtime_beside_gpu};

/// Runtimes of every kind of engine, with and without deferral.
fn runtimes() -> Vec<Runtime> {
    kinds().map(|(kind, fuse)| runtime(kind, fuse)).collect()
}

/// The same beside a GPU whose kernels the interpreter executes.
fn runtimes_beside_gpu() -> Vec<Runtime> {
    let engine = |kind| EngineConfig { kind, ..EngineConfig::default() };
    let made = |(kind, fuse)| {
        new_runtime_beside_gpu(RuntimeOptions { engine: engine(kind), fuse, ..RuntimeOptions::default() })
    };
    kinds().map(made).collect()
}

fn kinds() -> impl Iterator<Item = (EngineKind, bool)> {
    EngineKind::ALL.into_iter().flat_map(|kind| [(kind, true), (kind, false)])
}

fn runtime(kind: EngineKind, fuse: bool) -> Runtime {
    let engine = EngineConfig { kind, ..EngineConfig::default() };
    new_runtime(RuntimeOptions { engine, fuse, ..RuntimeOptions::default() })
}
