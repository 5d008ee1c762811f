//! Models run on arrays.

use tensorc::ir::text::parse_module;
use tensorc::ir::{DType, DenseType};
use tensorc::{Model, Tensor};
use tensorc_nd::executor::GradReq;
use tensorc_nd::{Runtime, autograd};

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

/// Shapes that depend on values: outputs are arrays of the shapes that there are.
#[test]
fn shapes_may_depend_on_values() {
    let text = "tensorc-ir 1\n
graph @found(%x: f32[5], %y: f32[5, 2]) {
  %at = nonzero(%x)
  %flat = const i64[1] [-1]
  %rows = reshape(%at, %flat)
  %few = gather(%y, %rows)
  %axes = const i64[2] [0, 1]
  %sum = reduce_sum(%few, %axes) {keepdims = false}
  return %few, %sum
}
";
    for rt in runtimes() {
        let f = rt
            .function(&model(&rt, text), &[DenseType::new(DType::F32, [5]), DenseType::new(DType::F32, [5, 2])])
            .unwrap();
        assert_eq!(f.outputs()[0].1.dense(), None);
        assert_eq!(f.outputs()[1].1.dense(), Some(DenseType::new(DType::F32, [])));
        let y = rt.array(&[5, 2], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]).unwrap();
        let mut y = (&y + 1.0).unwrap();
        for (x, rows, sum) in [([0.0f32, 1.0, 0.0, 2.0, 0.0], 2, 22.0), ([1.0; 5], 5, 55.0), ([0.0; 5], 0, 0.0)] {
            let x = rt.array(&[5], &x).unwrap();
            let outputs = f.call(&[&x, &y]).unwrap();
            assert_eq!(outputs[0].dims(), [rows, 2]);
            let own = rt.zeros(&[rows, 2], DType::F32).unwrap();
            f.call_into(&[&x, &y], &[&own, &outputs[1]]).unwrap();
            assert_eq!(own.to_bytes().unwrap(), outputs[0].to_bytes().unwrap());
            assert_eq!(outputs[1].to_tensor().unwrap(), Tensor::from_f32(&[], &[sum]).unwrap());
        }
        let x = rt.array(&[5], &[1.0f32; 5]).unwrap();
        let error = f.call_into(&[&x, &y], &[&y, &x]).unwrap_err().to_string();
        assert!(error.contains("`sum`") && error.contains("f32[]"), "{error}");
        y.attach_grad(GradReq::Write).unwrap();
        let _scope = autograd::record();
        f.call(&[&x, &y]).unwrap()[1].backward().unwrap();
        assert_eq!(y.grad().unwrap().to_vec::<f32>().unwrap(), [1.0; 10]);
        assert_eq!(y.apply("nonzero").unwrap().dims(), [2, 10]);
    }
}
