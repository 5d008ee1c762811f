//! Runs with outputs of the caller's, of a shape that changes from call to call.

use std::sync::atomic::Ordering;

use tensorc::ir::text::parse_module;
use tensorc::runtime::plan::{PlanEdge, RunError};
use tensorc::runtime::{TensorMut, TensorRef};
use tensorc::{Compiler, Error, Model, Options, Output, Specialize, Tensor};
use tensorc_random::measured;

use crate::support::backend::options;
use crate::support::plan_counter;

/// A sequence of layers over rows of any number, as the decoder of a language has them.
fn decoder(layers: usize) -> String {
    let mut text = "tensorc-ir 1\ngraph @main(%x: f32[?rows, 16]) {\n".to_owned();
    let weights: Vec<String> = (0..16 * 16).map(|i| format!("0.{:02}", i * 37 % 90)).collect();
    text += &format!("  %w = const f32[16, 16] [{}]\n", weights.join(", "));
    let mut last = "x".to_owned();
    for i in 0..layers {
        text += &format!("  %p{i} = matmul(%{last}, %w)\n  %s{i} = softmax(%p{i})\n  %h{i} = add(%s{i}, %{last})\n");
        last = format!("h{i}");
    }
    text + &format!("  return %{last}\n}}\n")
}

fn model(text: &str, options: Options) -> Model {
    let compiler = Compiler::new(options).unwrap();
    compiler.model(parse_module(text, compiler.registry()).unwrap().graphs.remove(0))
}

fn rows(n: usize) -> Vec<f32> {
    (0..n * 16).map(|i| (i * 7 % 11) as f32 / 4.0 - 1.0).collect()
}

/// The output of a decoder, in memory of the caller's.
fn run_into(model: &Model, n: usize, y: &mut [f32]) -> Result<(), Error> {
    let (x, dims) = (rows(n), [n as u64, 16]);
    model.run_into(&[("x", TensorRef::from_slice(&dims, &x))], &mut [TensorMut::from_slice(&dims, &mut y[..n * 16])])
}

fn run(model: &Model, n: usize) -> Vec<f32> {
    let x = Tensor::from_f32(&[n as u64, 16], &rows(n)).unwrap();
    model.run(&[("x", x)]).unwrap()[0].1.to_f32().unwrap()
}

#[test]
fn results_in_memory_of_their_own_are_those_of_a_run() {
    let model = model(&decoder(2), options());
    let run_on = |n: usize| {
        let x = rows(n);
        model.run_on(&[("x", TensorRef::from_slice(&[n as u64, 16], &x))]).unwrap().remove(0)
    };
    let mut kept = run_on(5);
    let address = kept.bytes().as_ptr();
    kept.bytes_mut().fill(7);
    let others: Vec<Output> = [2, 3, 5].map(run_on).into_iter().collect();
    assert!(kept.bytes().iter().all(|byte| *byte == 7) && kept.bytes().as_ptr() == address, "nobody else writes there");
    for (n, other) in [2, 3, 5].into_iter().zip(others) {
        assert_eq!(other.dims(), [n as u64, 16]);
        assert_eq!(Tensor::try_from(other).unwrap().to_f32().unwrap(), run(&model, n), "{n} rows");
    }
    assert!(matches!(model.run_on(&[]), Err(Error::MissingInput { .. })));
}

#[test]
fn results_of_shapes_that_depend_on_values_have_memory_of_their_own() {
    let text = "graph @found(%x: f32[?n]) {\n  %y = nonzero(%x)\n  return %y\n}\n";
    let model = model(text, options());
    let mut found = model.run_on(&[("x", TensorRef::from_slice(&[4], &[0f32, 2.0, 0.0, 3.0]))]).unwrap().remove(0);
    assert_eq!(found.dims(), [1, 2]);
    found.bytes_mut().reverse();
    let again = model.run_on(&[("x", TensorRef::from_slice(&[4], &[0f32, 2.0, 0.0, 3.0]))]).unwrap().remove(0);
    assert_eq!(again.bytes()[0], 1);
}

plan_counter!(PLANNED, count);

#[test]
fn growing_shapes_are_planned_once() {
    let text = decoder(3);
    let model_of = |options| model(&text, Options { poison: true, ..options });
    let growing = model_of(Options { progress: Some(count), sessions: Some(4), ..options() });
    let alone = model_of(Options { specialize: Specialize::Always, ..options() });
    let mut y = vec![f32::NAN; 60 * 16];
    for n in 2..60 {
        run_into(&growing, n, &mut y).unwrap();
        assert_eq!(y[..n * 16], run(&alone, n), "{n} rows");
    }
    assert_eq!(PLANNED.load(Ordering::Relaxed), 1);
}

/// Shapes take turns at the numbers of a plan, or have numbers of their own when they come back.
#[test]
fn shapes_that_come_back_have_their_results() {
    let text = decoder(4);
    let (model, mut y) = (model(&text, Options { poison: true, ..options() }), vec![0.0; 40 * 16]);
    let expected: Vec<Vec<f32>> = (2..40).map(|n| run(&model, n)).collect();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (model, expected, mut y) = (&model, &expected, y.clone());
            scope.spawn(move || {
                for i in 0..300 {
                    let n = 2 + i * (7 + 6 * thread) % 38;
                    run_into(model, n, &mut y).unwrap();
                    assert_eq!(y[..n * 16], expected[n - 2], "{n} rows");
                }
            });
        }
    });
    for n in [5, 9, 5, 9, 5, 30, 31, 32, 33, 34, 35, 36, 37, 38, 5, 9] {
        run_into(&model, n, &mut y).unwrap();
        assert_eq!(y[..n * 16], expected[n - 2], "{n} rows");
    }
}

/// A further shape that is not larger takes the same few bytes for plans of any length.
#[test]
fn further_shapes_allocate_nothing_that_grows_with_the_plan() {
    let bytes = |layers: usize| {
        let model =
            model(&decoder(layers), Options { threads: Some(1), backend: options().backend, ..Options::default() });
        let mut y = vec![0.0; 300 * 16];
        run_into(&model, 300, &mut y).unwrap();
        run_into(&model, 200, &mut y).unwrap();
        let (x, dims) = (rows(150), [150, 16]);
        let mut outputs = [TensorMut::from_slice(&dims, &mut y[..150 * 16])];
        let (result, bytes) = measured(|| model.run_into(&[("x", TensorRef::from_slice(&dims, &x))], &mut outputs));
        result.unwrap();
        bytes
    };
    let [few, many] = [4, 40].map(bytes);
    assert!(few == many && many < 4096, "{few} bytes for 4 layers, {many} for 40");
}

#[test]
fn outputs_that_do_not_fit_are_named() {
    let model = model(&decoder(1), options());
    let (x, mut y, dims) = (rows(5), vec![0.0; 6 * 16], [5, 16]);
    let given = [("x", TensorRef::from_slice(&dims, &x))];
    let error = |outputs: &mut [TensorMut<'_>]| match model.run_into(&given, outputs) {
        Err(Error::Run(error)) => error,
        other => panic!("{other:?}"),
    };
    let shape = error(&mut [TensorMut::from_slice(&[6, 16], &mut y)]);
    assert!(
        matches!(&shape, RunError::Shape { side: PlanEdge::Output, expected, actual, .. }
            if (&expected[..], &actual[..]) == (&[5, 16], &[6, 16])),
        "{shape}"
    );
    let dtype = error(&mut [TensorMut::from_slice(&dims, &mut [0i32; 5 * 16])]);
    assert!(matches!(dtype, RunError::DType { side: PlanEdge::Output, .. }), "{dtype}");
    let bytes = error(&mut [TensorMut::from_slice(&dims, &mut y)]);
    assert!(matches!(bytes, RunError::Bytes { side: PlanEdge::Output, expected: 320, .. }), "{bytes}");
    let count = error(&mut []);
    assert!(matches!(count, RunError::Count { side: PlanEdge::Output, expected: 1, actual: 0, .. }), "{count}");
    let missing = model.run_into(&[], &mut [TensorMut::from_slice(&dims, &mut y[..80])]).unwrap_err();
    assert!(matches!(missing, Error::MissingInput { .. }), "{missing}");
    run_into(&model, 5, &mut y).unwrap();
}

/// Where shapes depend on values, results are copied.
#[test]
fn results_of_parts_are_copied() {
    let text = "tensorc-ir 1
graph @main(%x: f32[?n]) {
  %found = nonzero(%x)
  return %found
}
";
    let model = model(text, options());
    let (x, mut found) = ([0.0f32, 3.0, 0.0, 4.0, 5.0], [0i64; 3]);
    let given = [("x", TensorRef::from_slice(&[5], &x))];
    model.run_into(&given, &mut [TensorMut::from_slice(&[1, 3], &mut found)]).unwrap();
    assert_eq!(found, [1, 3, 4]);
    let error = model.run_into(&given, &mut [TensorMut::from_slice(&[1, 2], &mut found[..2])]).unwrap_err();
    assert!(matches!(&error, Error::Run(RunError::Shape { expected, .. }) if expected[..] == [1, 3]), "{error}");
}
