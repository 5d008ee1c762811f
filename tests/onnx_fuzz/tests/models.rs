//! Random ONNX models: compiled code against the interpreter. `onnx_fuzz compare` does the same for any number of seeds, and
//! compares with ONNX Runtime.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use tensorc::DType;
use tensorc::ir::op::Compute;
use tensorc::ir::{DenseType, TensorData};
use tensorc_onnx_fuzz::compare::{Bound, close};
use tensorc_onnx_fuzz::compiled::{Compilers, compiled_agrees};
use tensorc_onnx_fuzz::generate;
use tensorc_onnx_fuzz::generate::needed;
use tensorc_onnx_fuzz::model::{Model, Stated};
use tensorc_onnx_fuzz::operators::{draw_of, drawn, standard};

const SEEDS: u64 = 600;

fn operators(model: &Model) -> impl Iterator<Item = &str> {
    model.nodes.iter().map(|n| n.op_type())
}

#[test]
fn compiled_models_agree_with_the_interpreter() {
    let compilers = Compilers::new().unwrap();
    let (mut models, mut seen) = (0, BTreeSet::new());
    for seed in 0..SEEDS {
        let (Some(model), _) = generate(seed, compilers.ordinary.registry()) else { continue };
        models += 1;
        seen.extend(operators(&model).map(str::to_owned));
        if let Err(why) = compiled_agrees(&compilers, &model) {
            panic!("seed {seed}: {why}\n{:?}", model.nodes);
        }
    }
    assert!(models > SEEDS * 9 / 10, "{models}");
    let missing: Vec<&str> =
        drawn(compilers.ordinary.registry()).into_iter().filter(|name| !seen.contains(*name)).collect();
    assert!(missing.is_empty(), "operators in no model: {missing:?}");
}

/// An operator added to the registry is drawn from its entry if it is element-wise, and else needs a function.
#[test]
fn every_operator_can_be_drawn() {
    let compilers = Compilers::new().unwrap();
    let registry = compilers.ordinary.registry();
    let drawable = |name: &str| {
        draw_of(name).is_some() || matches!(standard(registry, name, 28).unwrap().compute, Compute::Scalar(_))
    };
    let missing: Vec<&str> = drawn(registry).into_iter().filter(|name| !drawable(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_same_seed_draws_the_same_model() {
    let compilers = Compilers::new().unwrap();
    for seed in [3, 1000] {
        let draw = || generate(seed, compilers.ordinary.registry()).0.map(|m| m.proto(true, Stated::Numbers));
        assert_eq!(draw(), draw());
    }
}

/// A part of a model computes what the whole does, from fewer nodes.
#[test]
fn parts_compute_the_same() {
    let compilers = Compilers::new().unwrap();
    let long = (0..).find_map(|seed| generate(seed, compilers.ordinary.registry()).0.filter(|m| m.nodes.len() > 6));
    let model = long.unwrap();
    let first = needed(&model, &model.nodes[0].output[0]);
    assert!(first.nodes.len() < model.nodes.len());
    compiled_agrees(&compilers, &first).unwrap();
}

#[test]
fn comparison_tells_differences() {
    let exact = Bound::EXACT;
    let loose = Bound { ulp: 2.0, ..exact };
    let f32s = |values: &[f32]| TensorData::f32s(&[values.len() as u64], values).unwrap();
    let next = f32::from_bits(1f32.to_bits() + 1);
    assert!(close(&f32s(&[1.0, f32::NAN, -0.0]), &f32s(&[1.0, f32::NAN, 0.0]), exact).is_ok());
    assert!(close(&f32s(&[next]), &f32s(&[1.0]), exact).is_err());
    assert!(close(&f32s(&[next]), &f32s(&[1.0]), loose).is_ok());
    assert!(close(&f32s(&[f32::NAN]), &f32s(&[1.0]), loose).is_err());
    assert!(close(&f32s(&[f32::MAX]), &f32s(&[f32::INFINITY]), loose).is_err());
    assert!(close(&f32s(&[1.0, 1.0]), &f32s(&[1.0]), loose).is_err());
    let bytes = |x: u8| TensorData::new(DenseType::new(DType::U8, [1]), vec![x].into()).unwrap();
    assert!(close(&bytes(7), &bytes(8), loose).is_err());
}
