//! Executors: symbols bound to arrays, run forward and backward.

mod binding;
mod every_operator;
mod finals;
mod gradients;
mod memory;
mod merging;
mod placement;
pub mod steps;

use tensorc::DType;
use tensorc::symbol::{Symbol, op};
use tensorc_nd::executor::Executor;
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};

use crate::support::backend::new_runtime;

fn runtime() -> Runtime {
    new_runtime(RuntimeOptions::default())
}

fn var(name: &str) -> Symbol {
    Symbol::variable(name)
}

/// A fully connected layer of a name, without its other settings.
fn fully_connected(data: &Symbol, hidden: i64, name: &str) -> Symbol {
    op("FullyConnected").input(data).param("num_hidden", hidden).name(name).build().unwrap()
}

fn ones(rt: &Runtime, dims: &[u64]) -> NDArray {
    rt.ones(dims, DType::F32).unwrap()
}

fn values(array: &NDArray) -> Vec<f32> {
    array.to_vec::<f32>().unwrap()
}

fn set(executor: &Executor, name: &str, values: &[f32]) {
    let array = executor.argument(name).unwrap();
    let rt = executor.runtime();
    rt.array(array.dims(), values).unwrap().copy_into(array).unwrap();
}

/// Numbers in (-1, 1) that look random and are always the same.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance * (1.0 + e.abs()), "element {i}: {f}, expected {e}");
    }
}
