//! Transforms and sketches of MXNet that only run on GPUs there, against their formulas.

use std::f64::consts::TAU;

use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, TensorData};

fn run(name: &str, operands: &[TensorData], params: Params) -> Result<TensorData, String> {
    let registry = tensorc_ops::registry().unwrap();
    let def = registry.mxnet(name).unwrap();
    let mut graph = Graph::new("test");
    let args: Vec<Option<Value>> = operands.iter().map(|t| Some(graph.add_input("x", t.ty.clone().into()))).collect();
    let node = graph.add_op("n", def, &args, params, 1).map_err(|d| d.to_string())?;
    graph.add_output("y", Value { node, port: 0 });
    eval_graph(&graph, &registry, operands).map(|mut found| found.remove(0)).map_err(|d| d.to_string())
}

fn tensor(dtype: DType, dims: &[u64], values: &[f64]) -> TensorData {
    TensorData::from_fn(DenseType::new(dtype, dims), |i| Scalar::from_f64(dtype, values[i as usize]))
}

/// Numbers in (-1, 1) that look random and are always the same.
fn noise(count: u64) -> Vec<f64> {
    let mut state = 12345u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

#[track_caller]
fn close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().fold(1.0f64, |m, e| m.max(e.abs()));
    let wrong = found.iter().zip(expected).position(|(f, e)| (f - e).abs() > tolerance * size);
    assert_eq!(wrong, None, "{found:?}, expected {expected:?}");
}

/// The sum that defines a transform, for pairs of parts.
fn transformed(x: &[[f64; 2]], sign: f64) -> Vec<[f64; 2]> {
    let n = x.len();
    let term = |k: usize, j: usize| {
        let (sin, cos) = (sign * TAU * ((j * k) % n) as f64 / n as f64).sin_cos();
        [x[j][0] * cos - x[j][1] * sin, x[j][0] * sin + x[j][1] * cos]
    };
    (0..n).map(|k| (0..n).fold([0.0; 2], |sum, j| [0, 1].map(|part| sum[part] + term(k, j)[part]))).collect()
}

/// Lengths that are small, primes, products of small factors, and of large ones.
#[test]
fn fourier_transforms_are_the_sums_that_define_them() {
    for n in [1u64, 2, 3, 5, 8, 16, 17, 24, 34, 60, 97, 128, 289, 360, 1024] {
        for (dtype, tolerance) in [(DType::F32, 3e-6), (DType::F64, 1e-13)] {
            let values = noise(4 * n);
            let x = tensor(dtype, &[2, 1, n], &values[..2 * n as usize]);
            let found = run("_contrib_fft", std::slice::from_ref(&x), Params::new()).unwrap();
            assert_eq!(found.ty, DenseType::new(dtype, [2, 1, 2 * n]));
            let rows = x.to_f64s();
            let rows = rows.chunks(n as usize).map(|row| row.iter().map(|x| [*x, 0.0]).collect::<Vec<_>>());
            let expected: Vec<f64> = rows.flat_map(|row| transformed(&row, -1.0)).flatten().collect();
            close(&found.to_f64s(), &expected, tolerance * n as f64);

            let pairs = tensor(dtype, &[2, 2 * n], &values);
            let found = run("_contrib_ifft", std::slice::from_ref(&pairs), Params::new()).unwrap();
            assert_eq!(found.ty, DenseType::new(dtype, [2, n]));
            let rows = pairs.to_f64s();
            let rows = rows.chunks(2 * n as usize).map(|row| row.chunks(2).map(|p| [p[0], p[1]]).collect::<Vec<_>>());
            let expected: Vec<f64> = rows.flat_map(|row| transformed(&row, 1.0)).map(|pair| pair[0]).collect();
            close(&found.to_f64s(), &expected, tolerance * n as f64);
        }
    }
    let half = tensor(DType::F16, &[4], &[1.0, 2.0, 0.0, -1.0]);
    let found = run("_contrib_fft", &[half], Params::new()).unwrap();
    assert_eq!((found.dtype(), found.to_f64s()), (DType::F16, vec![2.0, 0.0, 1.0, -3.0, 0.0, 0.0, 1.0, 3.0]));
    let odd = tensor(DType::F32, &[2, 3], &[0.0; 6]);
    let why = run("_contrib_ifft", &[odd], Params::new()).unwrap_err();
    assert!(why.contains("mx_ifft") && why.contains("expected pairs of parts"), "{why}");
    let none = run("_contrib_fft", &[tensor(DType::F32, &[2, 0], &[])], Params::new()).unwrap_err();
    assert!(none.contains("has no elements"), "{none}");
}

#[test]
fn sketches_add_signed_features_where_the_hash_says() {
    let (rows, features, places) = (3, 7, 4);
    let x = noise(rows * features);
    let hash = [0.0, 3.0, 1.0, 3.0, 0.0, 9.0, -2.0];
    let signs = [1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0];
    let params = |n: i64| Params::new().with("out_dim", ParamValue::Int(n));
    for dtype in [DType::F32, DType::F64] {
        let operands = [
            tensor(dtype, &[rows, features], &x),
            tensor(dtype, &[1, features], &hash),
            tensor(dtype, &[1, features], &signs),
        ];
        let found = run("_contrib_count_sketch", &operands, params(places)).unwrap();
        let mut expected = vec![0.0; (rows * places as u64) as usize];
        for (i, x) in operands[0].to_f64s().iter().enumerate() {
            let (row, feature) = (i / features as usize, i % features as usize);
            let place = (hash[feature] as i64).clamp(0, places - 1) as usize;
            expected[row * places as usize + place] += signs[feature] * x;
        }
        close(&found.to_f64s(), &expected, 1e-6);
    }
    let short = [
        tensor(DType::F32, &[2, 3], &[0.0; 6]),
        tensor(DType::F32, &[2], &[0.0; 2]),
        tensor(DType::F32, &[3], &[0.0; 3]),
    ];
    let why = run("_contrib_count_sketch", &short, params(2)).unwrap_err();
    assert!(why.contains("mx_count_sketch") && why.contains("the number of features"), "{why}");
    let why = run("_contrib_count_sketch", &vec![short[2].clone(); 3], params(0)).unwrap_err();
    assert!(why.contains("`out_dim` is 0"), "{why}");
}

#[test]
fn masks_multiply_rows() {
    let x = tensor(DType::F32, &[3, 1, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let found = run("element_mask", &[x.clone(), tensor(DType::F32, &[3], &[1.0, 0.0, -2.0])], Params::new()).unwrap();
    assert_eq!(found.to_f64s(), [1.0, 2.0, 0.0, 0.0, -10.0, -12.0]);
    assert!(run("element_mask", &[x, tensor(DType::F32, &[2], &[1.0, 0.0])], Params::new()).is_err());
}
