//! Cases that MXNet's own tests and users' expectations name, by identifier.

use tensorc::symbol::{OpBuilder, Symbol, op};
use tensorc_nd::executor::{Executor, GradReq};
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};

use super::array;
use crate::support::backend::new_runtime;

fn runtime() -> Runtime {
    new_runtime(RuntimeOptions::default())
}

fn var(name: &str) -> Symbol {
    Symbol::variable(name)
}

/// An operator applied to one variable `data`.
fn on_data(name: &str) -> OpBuilder<'static> {
    op(name).input(&var("data"))
}

type Input<'a> = (&'a str, &'a [u64], &'a [f32]);

struct Run {
    outputs: Vec<Vec<f32>>,
    dims: Vec<Vec<u64>>,
    executor: Executor,
}

impl Run {
    fn grad(&self, name: &str) -> Vec<f32> {
        self.executor.gradient(name).unwrap().to_vec::<f32>().unwrap()
    }
}

/// Forward in training, and backward with heads of one number.
fn run(net: &Symbol, inputs: &[Input<'_>], head: f64) -> Run {
    let rt = runtime();
    let mut binder = Executor::simple_bind(&rt, net).grad_req(GradReq::Write);
    for (name, dims, values) in inputs {
        binder = binder.array(name, &array(&rt, dims, values));
    }
    let mut executor = binder.build().unwrap();
    let outputs: Vec<NDArray> = executor.forward(true).unwrap().to_vec();
    let device = rt.options().device;
    let heads: Vec<NDArray> = outputs.iter().map(|o| rt.full(device, o.dtype(), o.dims(), head).unwrap()).collect();
    executor.backward(&heads.iter().collect::<Vec<_>>()).unwrap();
    Run {
        dims: outputs.iter().map(|o| o.dims().to_vec()).collect(),
        outputs: outputs.iter().map(|o| o.to_vec::<f32>().unwrap()).collect(),
        executor,
    }
}

#[track_caller]
fn close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= 1e-5 + 2e-5 * e.abs(), "found {found:?}, expected {expected:?}");
    }
}

/// 1, 2, 3, …
fn count(n: u64) -> Vec<f32> {
    (1..=n).map(|i| i as f32).collect()
}

/// Numbers in (-1, 1) that look random and are always the same.
fn noise(n: u64, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

#[test]
fn a054_quadratic() {
    let net = |a: f64, b: f64, c: f64| on_data("quadratic").param("a", a).param("b", b).param("c", c).build().unwrap();
    let one = run(&net(1.0, 2.0, 3.0), &[("data", &[2, 2], &[1.0, 2.0, 3.0, 4.0])], 1.0);
    assert_eq!(one.outputs[0], [6.0, 11.0, 18.0, 27.0]);
    assert_eq!(one.grad("data"), [4.0, 6.0, 8.0, 10.0]);
    for rank in 1..=5 {
        let dims: Vec<u64> = (0..rank).map(|i| 2 + i % 2).collect();
        let x = noise(dims.iter().product(), rank as u32);
        let got = run(&net(0.5, -1.5, 0.25), &[("data", &dims, &x)], 2.0);
        let expected: Vec<f32> = x.iter().map(|x| 0.5 * x * x - 1.5 * x + 0.25).collect();
        close(&got.outputs[0], &expected);
        close(&got.grad("data"), &x.iter().map(|x| 2.0 * (x - 1.5)).collect::<Vec<_>>());
    }
}

#[test]
fn a055_smooth_l1() {
    let net = |scalar: f64| on_data("smooth_l1").param("scalar", scalar).build().unwrap();
    let one = run(&net(1.0), &[("data", &[4], &[1.0, 2.0, 3.0, 4.0])], 1.0);
    assert_eq!(one.outputs[0], [0.5, 1.5, 2.5, 3.5]);
    let x = [-2.0, -0.2, 0.0, 0.1, 0.25, 0.3, 3.0];
    let two = run(&net(2.0), &[("data", &[7], &x)], 1.0);
    close(&two.outputs[0], &[1.875, 0.08, 0.0, 0.02, 0.125, 0.175, 2.875]);
    close(&two.grad("data"), &[-1.0, -0.8, 0.0, 0.4, 1.0, 1.0, 1.0]);
}

#[test]
fn a056_scalar_operators() {
    let scalar = |name: &str, x: &Symbol, s: f64| op(name).input(x).param("scalar", s).build().unwrap();
    let x = var("data");
    let one = scalar("_plus_scalar", &scalar("_plus_scalar", &x, 1.0), 0.0);
    let sum = op("elemwise_add").inputs([&one, &x]).build().unwrap();
    let part = scalar("_div_scalar", &scalar("_mul_scalar", &sum, 2.0), 5.0);
    let rest = scalar("_minus_scalar", &scalar("_rminus_scalar", &part, 4.0), 0.8);
    let not = scalar("_not_equal_scalar", &x, 0.0);
    let divisor = op("elemwise_sub").inputs([&rest, &not]).build().unwrap();
    let net = scalar("_rdiv_scalar", &divisor, 2.0);
    let got = run(&net, &[("data", &[2], &[5.0, 5.0])], 2.0);
    let (x, slope) = (5.0f32, 0.8f32);
    let divisor = 4.0 - (x + 1.0 + x) * 2.0 / 5.0 - 0.8 - 1.0;
    close(&got.outputs[0], &[2.0 / divisor; 2]);
    close(&got.grad("data"), &[2.0 * 2.0 * slope / (divisor * divisor); 2]);
}

#[test]
fn a057_softmax_output() {
    let net = op("SoftmaxOutput").inputs([&var("data"), &var("label")]).build().unwrap();
    for head in [1.0, 10.0] {
        let inputs: [Input<'_>; 2] = [("data", &[2, 3], &[1.0, 2.0, 3.0, 3.0, 2.0, 1.0]), ("label", &[2], &[2.0, 0.0])];
        let got = run(&net, &inputs, head);
        let p = [0.090_030_6, 0.244_728_5, 0.665_241, 0.665_241, 0.244_728_5, 0.090_030_6];
        close(&got.outputs[0], &p);
        close(&got.grad("data"), &[p[0], p[1], p[2] - 1.0, p[3] - 1.0, p[4], p[5]]);
        assert_eq!(got.grad("label"), [0.0; 2]);
    }
}

/// The documented meaning of `out_grad`: the gradient times the head.
#[test]
fn softmax_output_multiplies_by_the_head_if_asked() {
    let net = op("SoftmaxOutput").inputs([&var("data"), &var("label")]).param("out_grad", true).build().unwrap();
    let inputs: [Input<'_>; 2] = [("data", &[1, 2], &[0.0, 3f32.ln()]), ("label", &[1], &[1.0])];
    close(&run(&net, &inputs, 10.0).grad("data"), &[2.5, -2.5]);
}

#[test]
fn a058_regressions_divide_by_the_outputs_of_a_sample() {
    let (x, y) = ([0.5, -1.0, 2.0, 0.25, 3.0, -0.5], [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
    let sigma = |x: &f32| 1.0 / (1.0 + (-x).exp());
    let same = |x: &f32| *x;
    type Case<'a> = (&'a str, &'a dyn Fn(&f32) -> f32, &'a dyn Fn(f32) -> f32);
    let cases: [Case<'_>; 3] = [
        ("LinearRegressionOutput", &same, &|d| d),
        ("LogisticRegressionOutput", &sigma, &|d| d),
        ("MAERegressionOutput", &same, &|d: f32| d.signum()),
    ];
    for (name, forward, slope) in cases {
        let net = op(name).inputs([&var("data"), &var("label")]).build().unwrap();
        let got = run(&net, &[("data", &[2, 3], &x), ("label", &[2, 3], &y)], 7.0);
        let p: Vec<f32> = x.iter().map(forward).collect();
        close(&got.outputs[0], &p);
        close(&got.grad("data"), &p.iter().zip(&y).map(|(p, y)| slope(p - y) / 3.0).collect::<Vec<_>>());
    }
}

#[test]
fn a060_activations_and_their_gradients() {
    let x = [-2.0, -0.7, -0.1, 0.2, 1.1, 3.0f32];
    let dims = [6];
    type Formula = (&'static str, fn(f64) -> f64, fn(f64) -> f64);
    let cases: [Formula; 5] = [
        ("relu", |x| x.max(0.0), |x| f64::from(x > 0.0)),
        ("sigmoid", |x| 1.0 / (1.0 + (-x).exp()), |x| (-x).exp() / (1.0 + (-x).exp()).powi(2)),
        ("tanh", f64::tanh, |x| 1.0 - x.tanh().powi(2)),
        ("softsign", |x| x / (1.0 + x.abs()), |x| 1.0 / (1.0 + x.abs()).powi(2)),
        ("softrelu", |x| (1.0 + x.exp()).ln(), |x| 1.0 / (1.0 + (-x).exp())),
    ];
    let formula = |f: fn(f64) -> f64| x.iter().map(|x| f(f64::from(*x)) as f32).collect::<Vec<f32>>();
    for (act, f, slope) in cases {
        let net = on_data("Activation").param("act_type", act).build().unwrap();
        let got = run(&net, &[("data", &dims, &x)], 1.0);
        close(&got.outputs[0], &formula(f));
        close(&got.grad("data"), &formula(slope));
    }
    let leaky: [Formula; 2] = [
        ("leaky", |x| if x > 0.0 { x } else { 0.25 * x }, |x| if x > 0.0 { 1.0 } else { 0.25 }),
        ("elu", |x| if x > 0.0 { x } else { 0.25 * x.exp_m1() }, |x| if x > 0.0 { 1.0 } else { 0.25 * x.exp() }),
    ];
    for (act, f, slope) in leaky {
        let net = on_data("LeakyReLU").param("act_type", act).build().unwrap();
        let got = run(&net, &[("data", &dims, &x)], 1.0);
        close(&got.outputs[0], &formula(f));
        close(&got.grad("data"), &formula(slope));
    }
}

/// The parts of a concatenation along each axis get their pieces of the head.
#[test]
fn a061_concat_and_a062_slice_channel_undo_each_other() {
    for axis in -3..3i64 {
        let at = axis.rem_euclid(3) as usize;
        let mut dims = vec![2u64, 3, 2];
        dims[at] = 4;
        let cut = op("SliceChannel").input(&var("data")).param("num_outputs", 2).param("axis", axis).build().unwrap();
        let (a, b) = (cut.output(0).unwrap(), cut.output(1).unwrap());
        let twice = op("_mul_scalar").input(&b).param("scalar", 2.0).build().unwrap();
        let net = op("Concat").inputs([&a, &twice]).param("dim", axis).build().unwrap();
        let x = count(dims.iter().product());
        let got = run(&net, &[("data", &dims, &x)], 1.0);
        assert_eq!(got.dims[0], dims);
        let inner: u64 = dims[at + 1..].iter().product();
        let second = |i: usize| (i as u64 / inner) % 4 >= 2;
        let factors: Vec<f32> = (0..x.len()).map(|i| if second(i) { 2.0 } else { 1.0 }).collect();
        close(&got.outputs[0], &x.iter().zip(&factors).map(|(x, f)| x * f).collect::<Vec<_>>());
        close(&got.grad("data"), &factors);
    }
}

#[test]
fn a063_reshape_codes() {
    type Case = (&'static [u64], &'static [i64], bool, &'static [u64]);
    let cases: [Case; 10] = [
        (&[2, 3, 4], &[4, 0, 2], false, &[4, 3, 2]),
        (&[2, 3, 4], &[2, -2], false, &[2, 3, 4]),
        (&[2, 3, 4], &[-3, 4], false, &[6, 4]),
        (&[2, 3, 4], &[-4, 1, 2, -2], false, &[1, 2, 3, 4]),
        (&[2, 3, 4, 5], &[-3, -3], false, &[6, 20]),
        (&[10, 5, 4], &[-1, 0], false, &[40, 5]),
        (&[10, 5, 4], &[-1, 0], true, &[50, 4]),
        (&[2, 3, 5, 5], &[0, -1], false, &[2, 75]),
        (&[2, 3, 5, 5], &[0, 0, -1], false, &[2, 3, 25]),
        (&[5, 3, 4, 5], &[0, -1, 0], false, &[5, 15, 4]),
    ];
    for (from, codes, reverse, to) in &cases {
        let net = on_data("Reshape").param("shape", codes.to_vec()).param("reverse", *reverse).build().unwrap();
        let x = count(from.iter().product());
        let got = run(&net, &[("data", from, &x)], 1.0);
        assert_eq!((&got.dims[0][..], &got.outputs[0]), (*to, &x), "{codes:?}");
    }
}

/// A convolution in two groups is that of the halves, forward and in every gradient.
#[test]
fn a064_grouped_convolution_is_several() {
    for kernel in [vec![3i64], vec![2, 3], vec![2, 1, 2]] {
        let rank = kernel.len();
        let layer = |x: &Symbol, w: &Symbol, b: &Symbol, filters: i64, groups: i64| {
            let conv = op("Convolution").inputs([x, w, b]).param("kernel", kernel.clone());
            conv.param("num_filter", filters).param("num_group", groups).build().unwrap()
        };
        let (x, w, b) = (var("data"), var("weight"), var("bias"));
        let whole = layer(&x, &w, &b, 4, 2);
        let halves = |s: &Symbol, axis: i64| {
            op("SliceChannel").input(s).param("num_outputs", 2).param("axis", axis).build().unwrap()
        };
        let (xs, ws, bs) = (halves(&x, 1), halves(&w, 0), halves(&b, 0));
        let part = |i| layer(&xs.output(i).unwrap(), &ws.output(i).unwrap(), &bs.output(i).unwrap(), 2, 1);
        let split = op("Concat").inputs([&part(0), &part(1)]).param("dim", 1).build().unwrap();
        let data = [&[2u64, 4][..], &vec![6; rank]].concat();
        let weight = [&[4u64, 2][..], &kernel.iter().map(|k| *k as u64).collect::<Vec<_>>()].concat();
        let (xv, wv) = (noise(data.iter().product(), 1), noise(weight.iter().product(), 2));
        let inputs: [Input<'_>; 3] =
            [("data", &data, &xv), ("weight", &weight, &wv), ("bias", &[4], &[0.1, 0.2, 0.3, 0.4])];
        let (one, two) = (run(&whole, &inputs, 1.5), run(&split, &inputs, 1.5));
        close(&one.outputs[0], &two.outputs[0]);
        for name in ["data", "weight", "bias"] {
            close(&one.grad(name), &two.grad(name));
        }
    }
}

/// An impulse spreads to as many places as the kernel has, dilated or not.
#[test]
fn a065_dilated_impulse() {
    for (kernel, dilate) in [(1i64, 1i64), (2, 2), (3, 2), (4, 3)] {
        let conv = on_data("Convolution").param("kernel", [kernel, kernel]).param("dilate", [dilate, dilate]);
        let pad = dilate * (kernel - 1);
        let net =
            conv.param("pad", [pad, pad]).param("num_filter", 1).param("no_bias", true).name("conv").build().unwrap();
        let mut x = vec![0.0; 33 * 33];
        x[16 * 33 + 16] = 1.0;
        let ones = vec![1.0; (kernel * kernel) as usize];
        let inputs: [Input<'_>; 2] =
            [("data", &[1, 1, 33, 33], &x), ("conv_weight", &[1, 1, kernel as u64, kernel as u64], &ones)];
        let got = run(&net, &inputs, 1.0);
        let size = (kernel * kernel) as f32;
        assert_eq!(got.outputs[0].iter().sum::<f32>(), size);
        assert_eq!(got.grad("conv_weight"), vec![1.0; ones.len()]);
        assert_eq!(got.grad("data")[16 * 33 + 16], size);
    }
}

#[test]
fn a066_convolution_does_not_flip_its_kernel() {
    let conv = |pad: i64, stride: i64| {
        let conv =
            on_data("Convolution").param("kernel", [3, 3]).param("pad", [pad, pad]).param("stride", [stride, stride]);
        conv.param("num_filter", 1).param("no_bias", true).name("conv").build().unwrap()
    };
    let mut x = vec![0.0; 9];
    x[4] = 1.0;
    let got = run(&conv(1, 1), &[("data", &[1, 1, 3, 3], &x), ("conv_weight", &[1, 1, 3, 3], &count(9))], 1.0);
    assert_eq!(got.outputs[0], [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]);
    let got = run(&conv(1, 2), &[("data", &[1, 1, 4, 4], &count(16)), ("conv_weight", &[1, 1, 3, 3], &[1.0; 9])], 1.0);
    assert_eq!(got.outputs[0], [14.0, 30.0, 57.0, 99.0]);
}

#[test]
fn a067_sizes_of_deconvolutions() {
    let sized = |set: &dyn Fn(OpBuilder<'static>) -> OpBuilder<'static>| {
        let deconv = on_data("Deconvolution").param("kernel", [3, 3]).param("stride", [2, 2]).param("num_filter", 1);
        let net = set(deconv).name("deconv").build().unwrap();
        let got = run(&net, &[("data", &[1, 1, 4, 4], &count(16)), ("deconv_weight", &[1, 1, 3, 3], &count(9))], 1.0);
        got.dims[0][2..].to_vec()
    };
    assert_eq!(sized(&|d| d), [9, 9]);
    assert_eq!(sized(&|d| d.param("pad", [1, 1])), [7, 7]);
    assert_eq!(sized(&|d| d.param("pad", [1, 1]).param("adj", [1, 1])), [8, 8]);
    assert_eq!(sized(&|d| d.param("target_shape", [8, 8])), [8, 8]);
    assert_eq!(sized(&|d| d.param("pad", [1, 1]).param("adj", [1, 1]).param("target_shape", [8, 8])), [8, 8]);
}

#[test]
fn a068_windows_of_pooling() {
    let pool = |kind: &str, convention: &str| {
        let pool = on_data("Pooling").param("kernel", [2, 2]).param("stride", [2, 2]).param("pool_type", kind);
        let net = pool.param("pooling_convention", convention).build().unwrap();
        let x: Vec<f32> = (0..25).map(|i| i as f32).collect();
        run(&net, &[("data", &[1, 1, 5, 5], &x)], 1.0)
    };
    assert_eq!(pool("max", "valid").outputs[0], [6.0, 8.0, 16.0, 18.0]);
    assert_eq!(pool("max", "full").outputs[0], [6.0, 8.0, 9.0, 16.0, 18.0, 19.0, 21.0, 23.0, 24.0]);
    let mean = pool("avg", "full");
    assert_eq!((mean.outputs[0][8], mean.outputs[0][2]), (24.0, 6.5));
    let gradient = mean.grad("data");
    assert_eq!((gradient[0], gradient[4], gradient[24]), (0.25, 0.5, 1.0));
}

/// Of equal maxima the first gets the gradient, and elements that several windows choose get it from each.
#[test]
fn max_pooling_sends_gradients_to_first_maxima() {
    let net = on_data("Pooling").param("kernel", [2, 2]).param("pool_type", "max").build().unwrap();
    let got = run(&net, &[("data", &[1, 1, 3, 3], &[1.0, 1.0, 0.0, 1.0, 5.0, 0.0, 0.0, 0.0, 5.0])], 1.0);
    assert_eq!(got.grad("data"), [0.0, 0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
    let got = run(&net, &[("data", &[1, 1, 2, 3], &[2.0, 2.0, 2.0, 2.0, 2.0, 2.0])], 1.0);
    assert_eq!(got.grad("data"), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
}

/// The moving statistics change with the backward pass.
#[test]
fn a069_batch_normalisation() {
    let rt = runtime();
    let net = on_data("BatchNorm").name("bn").build().unwrap();
    let mut executor = Executor::simple_bind(&rt, &net).shape("data", &[4, 1]).build().unwrap();
    array(&rt, &[4, 1], &[1.0, 3.0, 5.0, 7.0]).copy_into(executor.argument("data").unwrap()).unwrap();
    array(&rt, &[1], &[7.0]).copy_into(executor.argument("bn_gamma").unwrap()).unwrap();
    array(&rt, &[1], &[0.5]).copy_into(executor.argument("bn_beta").unwrap()).unwrap();
    array(&rt, &[1], &[1.0]).copy_into(executor.auxiliary("bn_moving_var").unwrap()).unwrap();
    let out = executor.forward(true).unwrap()[0].to_vec::<f32>().unwrap();
    close(&out, &[-0.841_507, 0.052_831, 0.947_169, 1.841_507]);
    executor.backward(&[&array(&rt, &[4, 1], &[1.0; 4])]).unwrap();
    let state = |name: &str| executor.auxiliary(name).unwrap().to_vec::<f32>().unwrap();
    close(&state("bn_moving_mean"), &[0.4]);
    close(&state("bn_moving_var"), &[1.4]);
    assert_eq!(executor.gradient("bn_gamma").unwrap().to_vec::<f32>().unwrap(), [0.0]);
    assert_eq!(executor.gradient("bn_beta").unwrap().to_vec::<f32>().unwrap(), [4.0]);
}

/// Gradients by central differences of `Σ out · weight`.
#[track_caller]
fn check_numerically(net: &Symbol, inputs: &[Input<'_>], names: &[&str], tolerance: f32) {
    let shape = run(net, inputs, 1.0).dims.swap_remove(0);
    let weight = noise(shape.iter().product(), 99);
    let total = op("elemwise_mul").inputs([net, &var("weight_of_outputs")]).build().unwrap();
    let total = op("sum").input(&total).build().unwrap();
    let with = |inputs: &[Input<'_>]| {
        let mut all = inputs.to_vec();
        all.push(("weight_of_outputs", &shape, &weight));
        run(&total, &all, 1.0)
    };
    let analytic = with(inputs);
    for name in names {
        let (at, found) = (inputs.iter().position(|(n, ..)| n == name).unwrap(), analytic.grad(name));
        let (_, dims, values) = inputs[at];
        for i in 0..values.len().min(6) {
            let step = 1e-2;
            let moved = |by: f32| {
                let mut changed = values.to_vec();
                changed[i] += by;
                let mut inputs = inputs.to_vec();
                inputs[at] = (name, dims, &changed);
                with(&inputs).outputs[0][0]
            };
            let slope = (moved(step) - moved(-step)) / (2.0 * step);
            let close = (slope - found[i]).abs() <= tolerance * (1.0 + slope.abs());
            assert!(close, "gradient of {name}, element {i}: {}, by differences {slope}", found[i]);
        }
    }
}

#[test]
fn a070_gradients_of_batch_normalisation_by_differences() {
    for (fix, global) in [(true, false), (false, false), (false, true)] {
        for dims in [vec![2u64, 3], vec![2, 3, 2, 2]] {
            let bn = on_data("BatchNorm").param("fix_gamma", fix).param("use_global_stats", global).name("bn");
            let net = bn.build().unwrap();
            let x: Vec<f32> = noise(dims.iter().product(), 3).iter().map(|x| 2.0 * x).collect();
            let inputs: [Input<'_>; 5] = [
                ("data", &dims, &x),
                ("bn_gamma", &[3], if fix { &[1.0; 3] } else { &[0.5, 1.5, -1.0] }),
                ("bn_beta", &[3], &[0.1, 0.2, 0.3]),
                ("bn_moving_mean", &[3], &[0.1, -0.2, 0.0]),
                ("bn_moving_var", &[3], &[0.5, 1.0, 2.0]),
            ];
            let names: &[&str] = if fix { &["data", "bn_beta"] } else { &["data", "bn_gamma", "bn_beta"] };
            check_numerically(&net, &inputs, names, 3e-2);
        }
    }
}

#[test]
fn gradients_of_normalisations_by_differences() {
    let x: Vec<f32> = noise(24, 5).iter().map(|x| 2.0 * x).collect();
    for (name, params) in
        [("LayerNorm", vec![("axis", "1")]), ("InstanceNorm", vec![]), ("GroupNorm", vec![("num_groups", "2")])]
    {
        let build = params.iter().fold(on_data(name), |b, (key, value)| b.param(key, *value));
        let net = build.name("n").build().unwrap();
        let vectors = if name == "GroupNorm" { 2 } else { 4 };
        let (gamma, beta) = (noise(vectors, 8), noise(vectors, 9));
        let inputs: [Input<'_>; 3] =
            [("data", &[2, 4, 3], &x), ("n_gamma", &[vectors], &gamma), ("n_beta", &[vectors], &beta)];
        check_numerically(&net, &inputs, &["data", "n_gamma", "n_beta"], 3e-2);
    }
    for (name, key, value) in
        [("LRN", "nsize", "3"), ("L2Normalization", "mode", "channel"), ("softmax", "temperature", "2.0")]
    {
        let net = on_data(name).param(key, value).build().unwrap();
        check_numerically(&net, &[("data", &[2, 4, 3], &x)], &["data"], 3e-2);
    }
}

#[test]
fn a073_broadcast_gradients_are_summed() {
    for name in
        ["broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div", "broadcast_maximum", "broadcast_power"]
    {
        let net = op(name).inputs([&var("a"), &var("b")]).build().unwrap();
        let positive = |n: u64, seed: u32| noise(n, seed).iter().map(|x| 1.5 + x).collect::<Vec<f32>>();
        let (a, b) = (positive(6, 1), positive(12, 2));
        check_numerically(&net, &[("a", &[2, 3, 1], &a), ("b", &[1, 3, 4], &b)], &["a", "b"], 2e-2);
    }
}

#[test]
fn a075_dropout_in_training_and_inference() {
    let rt = runtime();
    let net = on_data("Dropout").param("p", 0.3).build().unwrap();
    let mut executor = Executor::simple_bind(&rt, &net).shape("data", &[100, 100]).build().unwrap();
    executor.argument("data").unwrap().fill(1.0).unwrap();
    assert!(executor.forward(false).unwrap()[0].to_vec::<f32>().unwrap().iter().all(|x| *x == 1.0));
    let out = executor.forward(true).unwrap()[0].to_vec::<f32>().unwrap();
    assert!(out.iter().all(|x| *x == 0.0 || (x - 1.0 / 0.7).abs() < 1e-6));
    let mean = out.iter().sum::<f32>() / out.len() as f32;
    assert!((mean - 1.0).abs() < 0.03, "mean {mean}");
    executor.backward(&[&array(&rt, &[100, 100], &vec![1.0; 10_000])]).unwrap();
    assert_eq!(executor.gradient("data").unwrap().to_vec::<f32>().unwrap(), out);
}

#[test]
fn a077_layer_and_instance_normalisation() {
    let layer = on_data("LayerNorm").name("n").build().unwrap();
    let inputs: [Input<'_>; 3] =
        [("data", &[1, 3], &[1.0, 2.0, 3.0]), ("n_gamma", &[3], &[1.0; 3]), ("n_beta", &[3], &[0.0; 3])];
    close(&run(&layer, &inputs, 1.0).outputs[0], &[-1.224_736, 0.0, 1.224_736]);
    let instance = on_data("InstanceNorm").name("n").build().unwrap();
    let inputs: [Input<'_>; 3] =
        [("data", &[1, 1, 3], &[1.0, 2.0, 3.0]), ("n_gamma", &[1], &[1.0]), ("n_beta", &[1], &[0.0])];
    close(&run(&instance, &inputs, 1.0).outputs[0], &[-1.223_827, 0.0, 1.223_827]);
}
