//! Threads that call one model at the same time get what they get alone.

use tensorc::ir::text::parse_module;
use tensorc::{Compiler, Model, Options};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, TensorData};
use tensorc_tests::compare::{data, tensor};

use crate::support::backend::options;

const ROWS: [u64; 3] = [3, 64, 130];

/// Intermediate values, a product with worker memory, and steps side by side.
const NET: &str = "tensorc-ir 1
graph @main(%x: f32[?rows, 96]) {
  %t = transpose(%x) {perm = [1, 0]}
  %p = matmul(%x, %t)
  %s = softmax(%p)
  %a = matmul(%s, %x)
  %b = tanh(%x)
  %j = concat(%a, %b) {axis = 1}
  %y = softmax(%j)
  return %y
}
";

/// A result whose shape depends on values: a part that is compiled later.
const PARTS: &str = "tensorc-ir 1
graph @main(%x: f32[?rows, 96]) {
  %i = nonzero(%x)
  %f = cast(%i) {to = f32}
  %y = tanh(%f)
  return %y
}
";

fn model(text: &str, threads: usize) -> Model {
    let compiler = Compiler::new(Options { threads: Some(threads), poison: true, ..options() }).unwrap();
    let graph = parse_module(text, compiler.registry()).unwrap().graphs.remove(0);
    compiler.model(graph)
}

/// Different for every caller; zeros lie elsewhere.
fn input(rows: u64, caller: u64) -> TensorData {
    let element = |i: u64| ((i * 7 + caller * 5) % 13) as f32 / 8.0 - 0.5;
    TensorData::from_fn(DenseType::new(DType::F32, [rows, 96]), |i| Scalar::f32(element(i).max(0.0)))
}

fn run(model: &Model, x: &TensorData) -> TensorData {
    data(&model.run(&[("x", tensor(x))]).unwrap()[0].1)
}

/// More callers than threads, each with inputs of its own and of all sizes, against the same runs one by one.
fn check(text: &str, threads: usize) {
    const CALLERS: u64 = 6;
    let model = model(text, threads);
    let inputs: Vec<Vec<TensorData>> = (0..CALLERS).map(|c| ROWS.map(|rows| input(rows, c)).to_vec()).collect();
    let alone: Vec<Vec<TensorData>> = inputs.iter().map(|own| own.iter().map(|x| run(&model, x)).collect()).collect();
    std::thread::scope(|scope| {
        for (own, expected) in inputs.iter().zip(&alone) {
            let model = &model;
            scope.spawn(move || {
                for round in 0..12 {
                    let i = round % ROWS.len();
                    assert_eq!(run(model, &own[i]), expected[i], "{threads} threads, {} rows", ROWS[i]);
                }
            });
        }
    });
}

#[test]
fn runs_side_by_side_have_the_bits_of_runs_alone() {
    for threads in [1, 2, 3] {
        check(NET, threads);
    }
}

#[test]
fn later_stages_run_side_by_side() {
    check(PARTS, 2);
}

#[test]
fn sessions_with_the_same_code_have_memory_of_their_own() {
    let model = model(NET, 2);
    let mut first = model.compile(&[DenseType::new(DType::F32, [64, 96])]).unwrap();
    let mut second = first.fork().unwrap();
    let [a, b] = [0, 1].map(|caller| tensor(&input(64, caller)));
    let expected = [&a, &b].map(|x| data(&first.run(std::slice::from_ref(x)).unwrap()[0]));
    std::thread::scope(|scope| {
        let [x, y] = [&a, &b];
        let [expected_x, expected_y] = [&expected[0], &expected[1]];
        scope.spawn(move || {
            (0..30).for_each(|_| assert_eq!(data(&first.run(std::slice::from_ref(x)).unwrap()[0]), *expected_x))
        });
        scope.spawn(move || {
            (0..30).for_each(|_| assert_eq!(data(&second.run(std::slice::from_ref(y)).unwrap()[0]), *expected_y))
        });
    });
}
