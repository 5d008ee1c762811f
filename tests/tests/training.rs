//! Training: what stands around the executor, against values of MXNet (`tests/training/reference.json`).

mod loading;
mod modules;
mod optimizers;
mod parity;
mod settings;

use serde_json::Value;
use tensorc_nd::{Runtime, RuntimeOptions};

use crate::support::backend::new_runtime;

fn runtime() -> Runtime {
    new_runtime(RuntimeOptions::default())
}

fn reference() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/training/reference.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// Fails unless `found` is within `tolerance` of `expected`, relative or absolute near zero.
#[track_caller]
fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance * b.abs().max(1e-2), "{what}: {a} at {i}, expected {b}");
    }
}
