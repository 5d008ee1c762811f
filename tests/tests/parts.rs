//! Shapes that depend on values: models in several parts, each of which is compiled once for many of them.

use std::sync::atomic::Ordering;

use tensorc::ir::graph::Value;
use tensorc::ir::interp::eval_graph;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::text::parse_module;
use tensorc::ir::{DenseType, Rng, TensorData};
use tensorc::{Compiler, DType, Options};
use tensorc_tests::compare::{Tolerance, compare, data, tensor};

use crate::support::backend::options;
use crate::support::plan_counter;

/// A graph, and its inputs by a number that decides how large shapes become.
pub struct PartsCase {
    pub name: &'static str,
    pub text: &'static str,
    pub inputs: fn(u64, &mut Rng) -> Vec<TensorData>,
    /// How often plans are made for sizes that are not 0 and 1, which is once for each part; and for these as well.
    plans: [usize; 2],
}

/// All but 0 and 1 share code, and these may.
pub const SIZES: [u64; 12] = [2, 3, 15, 16, 17, 31, 33, 64, 100, 5, 0, 1];

pub const CASES: &[PartsCase] = &[
    PartsCase {
        name: "rows that are found",
        text: "graph @main(%x: f32[100, 8], %mask: f32[100], %w: f32[8, 24]) {
  %found = nonzero(%mask)
  %flat = const i64[1] [-1]
  %rows = reshape(%found, %flat)
  %few = gather(%x, %rows)
  %p = matmul(%few, %w)
  %y = softmax(%p)
  %relu = relu(%x)
  return %y, %rows, %relu
}",
        inputs: |n, rng| vec![random(&[100, 8], rng), marked(100, n), random(&[8, 24], rng)],
        plans: [2, 2],
    },
    PartsCase {
        name: "rows of open tensors",
        text: "graph @main(%x: f32[?rows, 8], %mask: bool[?rows]) {
  %few = compress(%x, %mask) {axis = 0}
  %e = exp(%few)
  %all = concat(%e, %x) {axis = 0}
  %y = tanh(%all)
  return %y, %few
}",
        inputs: |n, rng| {
            let rows = n + 3;
            let mask = TensorData::from_fn(DenseType::new(DType::Bool, [rows]), |i| Scalar::bool(i < n));
            vec![random(&[rows, 8], rng), mask]
        },
        plans: [2, 2],
    },
    PartsCase {
        name: "a number that is computed",
        text: "graph @main(%x: f32[4, 128], %mask: f32[128]) {
  %sum = reduce_sum(%mask) {keepdims = false}
  %count = cast(%sum) {to = i64}
  %axis = const i64[1] [0]
  %k = unsqueeze(%count, %axis)
  %best = topk(%x, %k) {axis = 1} : (f32[4, ?k], i64[4, ?k])
  %e = exp(%best)
  %zero = const i64[1] [0]
  %columns = const i64[1] [1]
  %s = slice(%x, %zero, %k, %columns)
  %d = sub(%e, %s)
  return %d, %best:1
}",
        inputs: |n, rng| vec![random(&[4, 128], rng), marked(128, n)],
        plans: [2, 4],
    },
    PartsCase {
        name: "shapes computed from what is found",
        text: "graph @main(%x: f32[60], %b: f32[3, 1]) {
  %u = unique(%x) : (f32[?u], i64[?first], i64[60], i64[?counts])
  %s = shape(%u)
  %three = const i64[1] [3]
  %to = concat(%three, %s) {axis = 0}
  %e = expand(%u, %to)
  %y = mul(%e, %b)
  %flat = const i64[2] [-1, 3]
  %r = reshape(%y, %flat)
  %back = gather(%u, %u:2)
  return %r, %back, %u:3
}",
        inputs: |n, rng| {
            let x = TensorData::from_fn(f32s(&[60]), |i| Scalar::f32((i % n.clamp(1, 60)) as f32));
            vec![x, random(&[3, 1], rng)]
        },
        plans: [2, 3],
    },
    PartsCase {
        name: "several after each other",
        text: "graph @main(%x: f32[100, 4], %mask: f32[100]) {
  %found = nonzero(%mask)
  %flat = const i64[1] [-1]
  %rows = reshape(%found, %flat)
  %few = gather(%x, %rows)
  %axes = const i64[1] [1]
  %sums = reduce_sum(%few, %axes) {keepdims = false}
  %zero = const f32[] [0.0]
  %positive = greater(%sums, %zero)
  %fewer = compress(%few, %positive) {axis = 0}
  %y = neg(%fewer)
  %z = add(%few, %few)
  return %y, %z
}",
        inputs: |n, rng| {
            // About half of them, and two at the least.
            let sign = |i: u64| if (i / 4).is_multiple_of(2) || i / 4 * 7 % 100 < 2 { 1.0 } else { -1.0 };
            let x = TensorData::from_fn(f32s(&[100, 4]), |i| Scalar::f32(sign(i) * (1.0 + rng.below(8) as f32)));
            vec![x, marked(100, n)]
        },
        plans: [3, 4],
    },
    PartsCase {
        name: "inputs that decide shapes",
        text: "graph @main(%w: f32[3, 1, 1], %count: i64[], %to: i64[2]) {
  %one = const i64[] [1]
  %zero = const i64[] [0]
  %r = range(%zero, %count, %one)
  %f = cast(%r) {to = f32}
  %e = exp(%f)
  %wide = expand(%w, %to)
  %y = exp(%wide)
  return %y, %e
}",
        inputs: |n, rng| {
            let to = TensorData::i64s(&[2], &[n as i64 + 1, n as i64]).unwrap();
            vec![random(&[3, 1, 1], rng), TensorData::i64s(&[], &[n as i64]).unwrap(), to]
        },
        plans: [2, 4],
    },
    PartsCase {
        name: "ends without a limit",
        text: "graph @main(%x: f32[?rows, 4], %from: i64[1], %to: i64[1]) {
  %tail = slice(%x, %from, %to)
  %y = tanh(%tail)
  return %y
}",
        inputs: |n, rng| {
            let at = |i| TensorData::i64s(&[1], &[i]).unwrap();
            vec![random(&[n + 2, 4], rng), at(1), at(i64::MAX)]
        },
        plans: [2, 2],
    },
    PartsCase {
        name: "boxes",
        text: "graph @main(%boxes: f32[1, 100, 4], %scores: f32[1, 2, 100], %w: f32[4, 8]) {
  %most = const i64[] [100]
  %iou = const f32[] [0.5]
  %least = const f32[] [0.5]
  %kept = non_max_suppression(%boxes, %scores, %most, %iou, %least)
  %two = const i64[1] [2]
  %three = const i64[1] [3]
  %one = const i64[1] [1]
  %at = slice(%kept, %two, %three, %one)
  %flat = const i64[1] [-1]
  %rows = reshape(%at, %flat)
  %zero = const i64[1] [0]
  %all = squeeze(%boxes, %zero)
  %few = gather(%all, %rows)
  %y = matmul(%few, %w)
  return %y, %kept
}",
        inputs: |n, rng| {
            let boxes = TensorData::from_fn(f32s(&[1, 100, 4]), |i| {
                let (at, side) = (i / 4, i % 4);
                Scalar::f32(at as f32 * 10.0 + if side < 2 { 0.0 } else { 5.0 })
            });
            let scores = TensorData::from_fn(f32s(&[1, 2, 100]), |i| {
                Scalar::f32(if i < n { 0.9 - i as f32 / 1000.0 } else { 0.1 })
            });
            vec![boxes, scores, random(&[4, 8], rng)]
        },
        plans: [2, 2],
    },
];

fn f32s(dims: &[u64]) -> DenseType {
    DenseType::new(DType::F32, dims)
}

fn random(dims: &[u64], rng: &mut Rng) -> TensorData {
    TensorData::from_fn(f32s(dims), |_| rng.element(DType::F32))
}

/// 0, but for some elements that are 1.
fn marked(len: u64, count: u64) -> TensorData {
    TensorData::from_fn(f32s(&[len]), |i| Scalar::f32(if i * 7 % len < count { 1.0 } else { 0.0 }))
}

plan_counter!(PLANNED, count);

#[test]
fn parts_are_compiled_once() {
    let mut failures = vec![];
    for case in CASES {
        let compiler =
            Compiler::new(Options { threads: Some(2), progress: Some(count), poison: true, ..options() }).unwrap();
        let graph = parse_module(case.text, compiler.registry()).unwrap().graphs.remove(0);
        let names: Vec<String> = graph.inputs().iter().map(|n| graph.node(*n).name.to_string()).collect();
        let model = compiler.model(graph.clone());
        let (mut rng, mut planned) = (Rng::new(7), [0; 2]);
        let before = PLANNED.load(Ordering::Relaxed);
        for size in SIZES {
            let inputs = (case.inputs)(size, &mut rng);
            let named: Vec<_> = names.iter().map(String::as_str).zip(inputs.iter().map(tensor)).collect();
            let results = model.run(&named).unwrap_or_else(|e| panic!("{}, {size}: {e}", case.name));
            let expected = eval_graph(&graph, compiler.registry(), &inputs).unwrap();
            for ((name, got), want) in results.iter().zip(&expected) {
                let tolerance = Tolerance { absolute: 1e-5, relative: 1e-5 };
                compare(&data(got), want, tolerance)
                    .unwrap_or_else(|e| panic!("{}, {size}, output {name}: {e}", case.name));
            }
            let now = PLANNED.load(Ordering::Relaxed) - before;
            planned = if size > 1 { [now; 2] } else { [planned[0], now] };
        }
        if planned != case.plans {
            failures.push(format!("{}: {planned:?} plans, expected {:?}", case.name, case.plans));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Inputs that decide shapes, with values that the operator does not take.
#[test]
fn wrong_values_are_named() {
    let integers = |values: &[i64]| TensorData::i64s(&[values.len() as u64], values).unwrap();
    let topk = "graph @main(%x: f32[4, 16], %k: i64[1]) {
  %y = topk(%x, %k) {axis = 1} : (f32[4, ?k], i64[4, ?k])
  return %y
}";
    let expand = "graph @main(%x: f32[4, 1], %k: i64[2]) {
  %y = expand(%x, %k)
  return %y
}";
    let reshape = "graph @main(%x: f32[4, 6], %k: i64[2]) {
  %y = reshape(%x, %k)
  return %y
}";
    let cases = [
        (topk, vec![5], [4, 5], vec![vec![17], vec![-1], vec![1 << 40]]),
        (expand, vec![4, 3], [4, 3], vec![vec![-1, 2], vec![3, 2], vec![1 << 40, 1 << 40], vec![4, 1 << 40]]),
        (reshape, vec![-1, 4], [6, 4], vec![vec![5, 5], vec![-1, -1], vec![-2, 3]]),
    ];
    for (text, right, dims, wrong) in cases {
        let compiler = Compiler::new(options()).unwrap();
        let graph = parse_module(text, compiler.registry()).unwrap().graphs.remove(0);
        let ty = graph.dense(Value { node: graph.inputs()[0], port: 0 }).unwrap();
        let (x, model) = (TensorData::splat(&ty.dims, Scalar::f32(1.0)), compiler.model(graph));
        let run = |k: &[i64]| model.run(&[("x", tensor(&x)), ("k", tensor(&integers(k)))]);
        for wrong in &wrong {
            let error = run(wrong).unwrap_err().to_string();
            let named = ["node `y`", "cannot allocate"].iter().any(|part| error.contains(part));
            assert!(named, "{wrong:?}: {error}");
            // The model still runs.
            assert_eq!(run(&right).unwrap()[0].1.dims(), dims, "{text}");
        }
    }
}
