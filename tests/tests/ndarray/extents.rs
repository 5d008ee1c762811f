//! Calls and gradients that differ in extents alone share code.

use std::sync::atomic::Ordering;

use tensorc::{Compiler, Options, Specialize};
use tensorc_nd::autograd::{self, GradReq};
use tensorc_nd::{Error, NDArray, Runtime, RuntimeOptions};

use crate::support::backend::options;
use crate::support::plan_counter;

/// Extents of the varying axis. One element or none have graphs of their own.
const EXTENTS: [u64; 12] = [9, 7, 16, 40, 31, 33, 5, 2, 64, 127, 17, 3];

type Results = Vec<Vec<f32>>;
type Step = fn(&Runtime, u64) -> Results;

fn runtime(options: Options) -> Runtime {
    Runtime::with_compiler(Compiler::new(options).unwrap(), RuntimeOptions::default()).unwrap()
}

fn ramp(rt: &Runtime, dims: &[u64]) -> NDArray {
    let values: Vec<f32> = (0..dims.iter().product::<u64>()).map(|i| (i % 23) as f32 / 7.0 - 1.5).collect();
    rt.array(dims, &values).unwrap()
}

fn variable(rt: &Runtime, dims: &[u64]) -> NDArray {
    let mut array = ramp(rt, dims);
    array.attach_grad(GradReq::Write).unwrap();
    array
}

/// A loss, and its gradients by variables.
fn gradients(variables: &[NDArray], loss: impl FnOnce() -> Result<NDArray, Error>) -> Results {
    let recorded = {
        let _scope = autograd::record();
        loss().unwrap()
    };
    recorded.backward().unwrap();
    let gradients = variables.iter().map(|v| v.grad().unwrap());
    [recorded.clone()].into_iter().chain(gradients).map(|array| array.to_vec().unwrap()).collect()
}

/// A perceptron on a batch of rows.
fn rows(rt: &Runtime, n: u64) -> Results {
    let variables = [variable(rt, &[6, 8]), variable(rt, &[8])];
    let x = ramp(rt, &[n, 6]);
    gradients(&variables, || {
        let h = (&x.matmul(&variables[0])? + &variables[1])?.apply("tanh")?;
        (&h.apply("softmax")? * &h)?.mean(&[], false)
    })
}

/// Normalised rows of an embedding, masked behind their lengths, with MXNet's loss.
fn sequences(rt: &Runtime, n: u64) -> Results {
    let variables = [variable(rt, &[11, 4]), variable(rt, &[4]), variable(rt, &[4])];
    let ids = rt.array(&[n, 3], &(0..3 * n).map(|i| (i * 5 % 11) as f32).collect::<Vec<_>>()).unwrap();
    let lengths = rt.array(&[3], &[1.0f32, 2.0, n as f32]).unwrap();
    let labels = rt.array(&[n * 3], &(0..3 * n).map(|i| (i % 4) as f32).collect::<Vec<_>>()).unwrap();
    gradients(&variables, || {
        let x = rt.op("mx_embedding")?.args([&ids, &variables[0]]).param("input_dim", 11).param("output_dim", 4);
        let x = x.invoke()?;
        let x = rt.op("mx_layer_norm")?.args([&x, &variables[1], &variables[2]]).invoke()?;
        let x = rt.op("mx_sequence_mask")?.args([&x, &lengths]).param("use_sequence_length", true).invoke()?;
        let x = rt.op("mx_sequence_reverse")?.args([&x, &lengths]).param("use_sequence_length", true).invoke()?;
        let flat = rt.op("mx_reshape")?.arg(&x).param("shape", vec![-1i64, 4]).invoke()?;
        rt.op("mx_softmax_output")?.args([&flat, &labels]).param("normalization", "batch").invoke()
    })
}

/// Convolution and pooling of a batch of images.
fn images(rt: &Runtime, n: u64) -> Results {
    let variables = [variable(rt, &[4, 2, 3, 3]), variable(rt, &[4])];
    let x = ramp(rt, &[n, 2, 8, 8]);
    gradients(&variables, || {
        let x = rt.op("mx_convolution")?.args([&x, &variables[0], &variables[1]]);
        let x = x.param("kernel", vec![3i64, 3]).param("num_filter", 4).param("pad", vec![1i64, 1]).invoke()?;
        let x = x.apply("relu")?;
        let x = rt.op("mx_pooling")?.arg(&x).param("kernel", vec![2i64, 2]);
        let x = x.param("stride", vec![2i64, 2]).param("pool_type", "max").invoke()?;
        (&x * &x)?.mean(&[], false)
    })
}

plan_counter!(PLANS, count);

#[test]
fn what_differs_in_extents_shares_code() {
    let shared = runtime(Options { progress: Some(count), ..options() });
    let alone = runtime(Options { specialize: Specialize::Always, ..options() });
    for (name, step) in [("rows", rows as Step), ("sequences", sequences), ("images", images)] {
        let (mut plans, mut all) = (vec![], vec![]);
        for n in EXTENTS {
            let found = step(&shared, n);
            for (found, expected) in found.iter().flatten().zip(step(&alone, n).iter().flatten()) {
                assert!(
                    (found - expected).abs() <= 1e-5 * expected.abs().max(0.1),
                    "{name} of {n}: {found}, not {expected}"
                );
            }
            plans.push(PLANS.load(Ordering::Relaxed));
            all.push(found);
        }
        assert_eq!(plans[EXTENTS.len() - 1], plans[3], "{name}: {plans:?} plans");
        assert!(EXTENTS.iter().zip(&all).all(|(n, first)| step(&shared, *n) == *first), "{name} again");
    }
}

/// `shape`, `reshape` and `tile` give the shape of the present call, not of the one that was compiled.
#[test]
fn values_that_follow_from_extents_differ_between_calls() {
    let rt = runtime(options());
    for n in EXTENTS {
        let x = ramp(&rt, &[n, 3]);
        assert_eq!(rt.op("shape").unwrap().arg(&x).invoke().unwrap().to_vec::<i64>().unwrap(), [n as i64, 3]);
        let turned = x.reshape(&[3, n as i64]).unwrap();
        assert_eq!(turned.sum(&[1], false).unwrap().dims(), [3]);
        let tiled = rt.op("mx_tile").unwrap().arg(&x).param("reps", vec![2i64, 1]).invoke().unwrap();
        assert_eq!(tiled.dims(), [2 * n, 3]);
        let want: Vec<f32> = x.to_vec().unwrap();
        assert_eq!(tiled.to_vec::<f32>().unwrap(), [want.clone(), want].concat());
    }
}
