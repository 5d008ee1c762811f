//! Backward passes: requests, head gradients, losses, state.

use tensorc_nd::executor::{Executor, GradReq};

use super::*;

#[test]
fn a041_one_variable_twice() {
    let rt = runtime();
    let x = var("x");
    let mut executor = Executor::simple_bind(&rt, &(&x * &x).unwrap()).shape("x", &[2, 3]).build().unwrap();
    executor.argument("x").unwrap().fill(5.0).unwrap();
    executor.forward(true).unwrap();
    executor.backward(&[&ones(&rt, &[2, 3])]).unwrap();
    assert_eq!(values(executor.gradient("x").unwrap()), [10.0; 6]);
    assert_eq!(Executor::simple_bind(&rt, &(&x + &x).unwrap()).shape("x", &[1]).build().unwrap().arguments().len(), 1);
}

#[test]
fn a042_eight_uses_of_one_variable() {
    let rt = runtime();
    for request in [GradReq::Write, GradReq::Add] {
        let data = var("data");
        let mut sum = data.clone();
        for _ in 0..7 {
            sum = (&sum + &data).unwrap();
        }
        let binder = Executor::simple_bind(&rt, &sum).shape("data", &[4]).grad_req(request);
        let mut executor = binder.build().unwrap();
        for round in 1..=2 {
            executor.forward(true).unwrap();
            executor.backward(&[&ones(&rt, &[4])]).unwrap();
            let expected = if request == GradReq::Add { 8.0 * round as f32 } else { 8.0 };
            assert_eq!(values(executor.gradient("data").unwrap()), [expected; 4]);
        }
    }
}

#[test]
fn a046_gradients_of_products() {
    let rt = runtime();
    for (seed, [m, k, n]) in [[1u64, 1, 1], [7, 5, 3], [64, 33, 17], [200, 128, 96]].into_iter().enumerate() {
        let net = op("dot").inputs([&var("x"), &var("y")]).build().unwrap();
        let mut executor = Executor::simple_bind(&rt, &net).shape("x", &[m, k]).shape("y", &[k, n]).build().unwrap();
        let (x, y) = (noise((m * k) as usize, seed as u32), noise((k * n) as usize, 9));
        let g = noise((m * n) as usize, 4);
        set(&executor, "x", &x);
        set(&executor, "y", &y);
        let at = |v: &[f32], columns: u64, i: u64, j: u64| f64::from(v[(i * columns + j) as usize]);
        let product = |rows: u64, cols: u64, inner: u64, f: &dyn Fn(u64, u64, u64) -> f64| -> Vec<f32> {
            let cell = |i: u64| (0..inner).map(|p| f(i / cols, i % cols, p)).sum::<f64>() as f32;
            (0..rows * cols).map(cell).collect()
        };
        let out = values(&executor.forward(true).unwrap()[0]);
        close(&out, &product(m, n, k, &|i, j, p| at(&x, k, i, p) * at(&y, n, p, j)), 1e-4);
        executor.backward(&[&rt.array(&[m, n], &g).unwrap()]).unwrap();
        let dx = product(m, k, n, &|i, j, p| at(&g, n, i, p) * at(&y, n, j, p));
        close(&values(executor.gradient("x").unwrap()), &dx, 1e-4);
        let dy = product(k, n, m, &|i, j, p| at(&x, k, p, i) * at(&g, n, p, j));
        close(&values(executor.gradient("y").unwrap()), &dy, 1e-4);
    }
    let net = op("dot").inputs([&var("x"), &var("y")]).build().unwrap();
    let mut executor = Executor::simple_bind(&rt, &net).shape("x", &[3]).shape("y", &[3]).build().unwrap();
    set(&executor, "x", &[1.0, 2.0, 3.0]);
    set(&executor, "y", &[4.0, 5.0, 6.0]);
    assert_eq!(values(&executor.forward(true).unwrap()[0]), [32.0]);
    let head = rt.full(rt.options().device, DType::F32, executor.outputs()[0].dims(), 2.0).unwrap();
    executor.backward(&[&head]).unwrap();
    assert_eq!(values(executor.gradient("x").unwrap()), [8.0, 10.0, 12.0]);
}

#[test]
fn a049_gradients_are_added_over_backward_passes() {
    let rt = runtime();
    let x = var("x");
    let binder = Executor::simple_bind(&rt, &(&x * &x).unwrap()).shape("x", &[1]).grad_req(GradReq::Add);
    let mut executor = binder.build().unwrap();
    executor.argument("x").unwrap().fill(3.0).unwrap();
    executor.gradient("x").unwrap().fill(10.0).unwrap();
    executor.forward(true).unwrap();
    executor.backward(&[&ones(&rt, &[1])]).unwrap();
    executor.backward(&[&ones(&rt, &[1])]).unwrap();
    assert_eq!(values(executor.gradient("x").unwrap()), [22.0]);
}

#[test]
fn a050_heads_of_outputs_that_are_no_losses_must_be_given() {
    let rt = runtime();
    let net = (&var("x") * 2.0).unwrap();
    let mut executor = Executor::simple_bind(&rt, &net).shape("x", &[1]).build().unwrap();
    assert!(executor.backward(&[&ones(&rt, &[1])]).unwrap_err().to_string().contains("forward"));
    executor.forward(true).unwrap();
    let error = executor.backward(&[]).unwrap_err().to_string();
    assert!(error.contains("make_loss"), "{error}");
    assert!(executor.backward(&[&ones(&rt, &[2])]).is_err(), "of another shape");
    let loss = op("MakeLoss").input(&net).build().unwrap();
    let mut executor = Executor::simple_bind(&rt, &loss).shape("x", &[1]).build().unwrap();
    executor.forward(true).unwrap();
    executor.backward(&[]).unwrap();
    assert_eq!(values(executor.gradient("x").unwrap()), [2.0]);
}

#[test]
fn a053_a_missing_gradient_is_an_error_unless_nothing_flows() {
    let rt = runtime();
    let taken = op("batch_take").inputs([&var("data"), &var("at")]).build().unwrap();
    let stopped = op("BlockGrad").input(&taken).build().unwrap();
    let bind = |net: &Symbol| {
        Executor::simple_bind(&rt, net).shape("data", &[4, 3]).shape("at", &[4]).dtype("at", DType::I32).build()
    };
    let mut executor = bind(&stopped).unwrap();
    executor.forward(true).unwrap();
    executor.backward(&[]).unwrap();
    assert_eq!(values(executor.gradient("data").unwrap()), [0.0; 12]);
}

#[test]
fn a057_softmax_output_ignores_its_head() {
    let rt = runtime();
    let net = op("SoftmaxOutput").inputs([&var("data"), &var("label")]).name("softmax").build().unwrap();
    let mut executor = Executor::simple_bind(&rt, &net).shape("data", &[2, 3]).build().unwrap();
    set(&executor, "data", &[1.0, 2.0, 3.0, 3.0, 2.0, 1.0]);
    set(&executor, "label", &[2.0, 0.0]);
    let p = [0.0900306, 0.2447285, 0.665_241];
    executor.forward(true).unwrap();
    close(&values(&executor.outputs()[0]), &[p[0], p[1], p[2], p[2], p[1], p[0]], 1e-6);
    for heads in [vec![], vec![ones(&rt, &[2, 3])]] {
        executor.backward(&heads.iter().collect::<Vec<_>>()).unwrap();
        let expected = [p[0], p[1], p[2] - 1.0, p[2] - 1.0, p[1], p[0]];
        close(&values(executor.gradient("data").unwrap()), &expected, 1e-6);
        assert_eq!(values(executor.gradient("label").unwrap()), [0.0; 2]);
    }
}

#[test]
fn a069_moving_statistics_change_with_the_backward_pass() {
    let rt = runtime();
    let net = op("BatchNorm").input(&var("x")).name("bn").build().unwrap();
    let mut executor = Executor::simple_bind(&rt, &net).shape("x", &[4, 1]).build().unwrap();
    executor.argument("bn_gamma").unwrap().fill(3.0).unwrap();
    executor.argument("bn_beta").unwrap().fill(0.5).unwrap();
    executor.auxiliary("bn_moving_var").unwrap().fill(1.0).unwrap();
    set(&executor, "x", &[1.0, 3.0, 5.0, 7.0]);
    executor.forward(true).unwrap();
    close(&values(&executor.outputs()[0]), &[-0.841507, 0.052831, 0.947169, 1.841507], 1e-5);
    assert_eq!(values(executor.argument("bn_gamma").unwrap()), [1.0], "gamma is fixed");
    assert_eq!(values(executor.auxiliary("bn_moving_mean").unwrap()), [0.0]);
    executor.backward(&[&ones(&rt, &[4, 1])]).unwrap();
    close(&values(executor.auxiliary("bn_moving_mean").unwrap()), &[0.4], 1e-6);
    close(&values(executor.auxiliary("bn_moving_var").unwrap()), &[1.4], 1e-6);
    assert_eq!(values(executor.gradient("bn_gamma").unwrap()), [0.0], "gamma is fixed");
    executor.argument("bn_gamma").unwrap().fill(2.0).unwrap();
    executor.forward(false).unwrap();
    assert_eq!(values(executor.argument("bn_gamma").unwrap()), [1.0], "in inference as well");
    let scale = 1.0 / (1.4f32 + 1e-3).sqrt();
    let expected: Vec<f32> = [1.0, 3.0, 5.0, 7.0].map(|x: f32| (x - 0.4) * scale + 0.5).to_vec();
    close(&values(&executor.outputs()[0]), &expected, 1e-5);
}

#[test]
fn a075_dropout_uses_one_mask_forward_and_backward() {
    let rt = runtime();
    let net = op("Dropout").input(&var("x")).param("p", 0.3).build().unwrap();
    let mut executor = Executor::simple_bind(&rt, &net).shape("x", &[100, 100]).build().unwrap();
    executor.argument("x").unwrap().fill(1.0).unwrap();
    executor.forward(true).unwrap();
    let out = values(&executor.outputs()[0]);
    assert!(out.iter().all(|v| *v == 0.0 || (*v - 1.0 / 0.7).abs() < 1e-5));
    let mean = out.iter().sum::<f32>() / 1e4;
    assert!((mean - 1.0).abs() < 0.03, "{mean}");
    for _ in 0..2 {
        executor.backward(&[&ones(&rt, &[100, 100])]).unwrap();
        assert_eq!(values(executor.gradient("x").unwrap()), out, "the same elements, in every backward pass");
    }
    executor.forward(true).unwrap();
    assert_ne!(values(&executor.outputs()[0]), out, "another pass draws anew");
    executor.forward(false).unwrap();
    assert_eq!(values(&executor.outputs()[0]), [1.0; 10_000]);
}

/// A scale that can never be right is refused before anything runs, by name.
#[test]
fn a014_a_bad_scale_is_refused_when_it_is_bound() {
    let rt = runtime();
    let draw = op("_random_normal").param("loc", 0.0).param("scale", -1.0).param("shape", "(3, 3)").build().unwrap();
    let net = op("dot").inputs([&draw, &var("x")]).build().unwrap();
    let error = Executor::simple_bind(&rt, &net).shape("x", &[3, 3]).build().unwrap_err().to_string();
    assert!(error.contains("scale") && error.contains("_random_normal0"), "{error}");
}
