//! Models run on arrays.

use tensorc::ir::text::parse_module;
use tensorc::ir::{DType, DenseType};
use tensorc::{Model, Tensor};
use tensorc_nd::Runtime;

use super::runtimes;

const TEXT: &str = "tensorc-ir 1

graph @net(%x: f32[?n, 4], %w: f32[4, 3]) {
  %p = matmul(%x, %w)
  %y = softplus(%p)
  %s = reduce_sum(%y) {keepdims = false}
  return %y, %s
}
";

fn model(rt: &Runtime, text: &str) -> Model {
    let mut module = parse_module(text, rt.compiler().registry()).unwrap();
    rt.compiler().model(module.graphs.swap_remove(0))
}

/// The same bits as the model run on tensors, and one operation of the engine a run.
#[test]
fn a_run_is_one_operation_with_the_models_bits() {
    for rt in runtimes() {
        let model = model(&rt, TEXT);
        let f = rt.function(&model, &[DenseType::new(DType::F32, [2, 4]), DenseType::new(DType::F32, [4, 3])]).unwrap();
        let (x, w): (Vec<f32>, Vec<f32>) =
            ((0..8).map(|i| i as f32 / 3.0).collect(), (0..12).map(|i| 1.0 - i as f32 / 7.0).collect());
        let want = model
            .run(&[("x", Tensor::from_f32(&[2, 4], &x).unwrap()), ("w", Tensor::from_f32(&[4, 3], &w).unwrap())])
            .unwrap();
        let (x, w) = (rt.array(&[2, 4], &x).unwrap(), rt.array(&[4, 3], &w).unwrap());
        rt.wait_all().unwrap();
        let before = rt.engine().stats().pushed;
        let outputs = f.call(&[&x, &w]).unwrap();
        assert_eq!(rt.engine().stats().pushed, before + 1);
        for (got, (_, want)) in outputs.iter().zip(&want) {
            assert_eq!(got.to_bytes().unwrap(), want.bytes());
        }
        // Deferred calls on its operands run before it, and the result may replace an operand.
        let doubled = (&x * 2.0).unwrap();
        let twice = doubled.copy().unwrap();
        let out = rt.zeros(&[2, 3], DType::F32).unwrap();
        f.call_into(&[&doubled, &w], &[&out, &outputs[1]]).unwrap();
        let want = model.run(&[("x", twice.to_tensor().unwrap()), ("w", w.to_tensor().unwrap())]).unwrap();
        assert_eq!(out.to_bytes().unwrap(), want[0].1.bytes());
        assert_eq!(outputs[1].to_bytes().unwrap(), want[1].1.bytes());
    }
}

#[test]
fn wrong_arrays_are_named() {
    let rt = &runtimes()[0];
    let f = rt
        .function(&model(rt, TEXT), &[DenseType::new(DType::F32, [2, 4]), DenseType::new(DType::F32, [4, 3])])
        .unwrap();
    let (x, w) = (rt.zeros(&[2, 4], DType::F32).unwrap(), rt.zeros(&[4, 4], DType::F32).unwrap());
    let error = f.call(&[&x, &w]).unwrap_err().to_string();
    assert!(error.contains("`w`") && error.contains("f32[4, 3]") && error.contains("f32[4, 4]"), "{error}");
    assert!(f.call(&[&x]).unwrap_err().to_string().contains("2 inputs"));
}

#[test]
fn a_model_without_a_single_plan_is_refused() {
    let rt = &runtimes()[0];
    let text = "tensorc-ir 1\n\ngraph @found(%x: f32[4]) {\n  %y = nonzero(%x)\n  return %y\n}\n";
    let error = rt.function(&model(rt, text), &[DenseType::new(DType::F32, [4])]).err().unwrap().to_string();
    assert!(error.contains("found") && error.contains("Model::run"), "{error}");
}
