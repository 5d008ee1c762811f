//! Artifacts of models of which some extents tell more than others: one division into parts serves all of a range.

use tensorc::aot;
use tensorc::ir::text::parse_module;
use tensorc::runtime::Pool;
use tensorc::{Compiler, DType, Model, Options, Tensor};
use tensorc_frontend::onnx::proto::{GraphProto, NodeProto};
use tensorc_tests::cache::visible;
use tensorc_tests::compare::data;

use super::exists;
use super::parts::{expected, with};
use super::ranges::{Output, library, run};
use crate::flow::loaded;
use crate::hosted::open;
use crate::support::backend::options;
use crate::support::onnx_models::{branch, graph, i64s, int, node, with as having};

/// The number of rows of `x`, and the numbers of its rows: known where one extent is, and only then.
const ROWS: &str = "graph @main(%x: f32[?n, 4]) {
  %zero = const i64[] [0]
  %one = const i64[] [1]
  %two = const i64[] [2]
  %ten = const i64[] [10]
  %flat = const i64[1] [-1]
  %axis = const i64[1] [1]
  %s = shape(%x)
  %n = gather(%s, %zero)
  %r = range(%zero, %n, %one)
";

/// A graph behind [`ROWS`], and what its outputs are of `n` rows: numbers of rows, and what stands in them.
struct Case {
    name: &'static str,
    text: &'static str,
    expected: fn(i64) -> (Vec<i64>, f32),
}

const CASES: [Case; 6] = [
    Case {
        name: "rows with odd numbers",
        text: "  %odd = mod(%r, %two)
  %nz = nonzero(%odd)
  %rows = reshape(%nz, %flat)
  %g = gather(%x, %rows)
  %y = neg(%g)
  return %y, %rows",
        expected: |n| ((1..n).step_by(2).collect(), -1.0),
    },
    Case {
        name: "all rows",
        text: "  %to = reshape(%n, %flat)
  %ones = constant_of_shape(%to) {value = i64[1] [1]}
  %nz = nonzero(%ones)
  %rows = reshape(%nz, %flat)
  %g = gather(%x, %rows)
  %y = neg(%g)
  return %y, %rows",
        expected: |n| ((0..n).collect(), -1.0),
    },
    Case {
        name: "different remainders",
        text: "  %digits = mod(%r, %ten)
  %rows = unique(%digits) : (i64[?u], i64[?u], i64[?m], i64[?u])
  %y = gather(%x, %rows)
  return %y, %rows",
        expected: |n| ((0..n.min(10)).collect(), 1.0),
    },
    Case {
        name: "as many rows as the greatest number says",
        text: "  %last = reduce_max(%r) {keepdims = false}
  %half = div(%last, %two)
  %k = reshape(%half, %flat)
  %y = topk(%x, %k) {axis = 0} : (f32[?k, 4], i64[?k, 4])
  %column = gather(%y:1, %zero) {axis = 1}
  return %y, %column",
        expected: |n| ((n - (n - 1) / 2..n).rev().collect(), 1.0),
    },
    Case {
        name: "what is found of what was found",
        text: "  %odd = mod(%r, %two)
  %nz = nonzero(%odd)
  %rows = reshape(%nz, %flat)
  %half = div(%rows, %two)
  %third = mod(%half, %two)
  %again = cast(%third) {to = bool}
  %few = compress(%rows, %again) {axis = 0}
  %y = gather(%x, %few)
  return %y, %few",
        expected: |n| ((3..n).step_by(4).collect(), 1.0),
    },
    Case {
        name: "values behind numbers",
        text: "  %odd = mod(%r, %two)
  %nz = nonzero(%odd)
  %rows = reshape(%nz, %flat)
  %g = gather(%x, %rows)
  %sums = reduce_sum(%g, %axis) {keepdims = false}
  %bound = const f32[] [30.0]
  %large = greater(%sums, %bound)
  %few = compress(%rows, %large) {axis = 0}
  %y = gather(%x, %few)
  return %y, %few",
        // The sum of row `i` is `16 i + 6`.
        expected: |n| ((3..n).step_by(2).collect(), 1.0),
    },
];

/// Row `i` has the elements `4 i`, `4 i + 1`, ….
fn rows(n: i64) -> Tensor {
    let values: Vec<f32> = (0..n * 4).map(|i| i as f32).collect();
    Tensor::from_f32(&[n as u64, 4], &values).unwrap()
}

fn by_hand(case: &Case, n: i64) -> Vec<Output> {
    let (found, factor) = (case.expected)(n);
    let elements = found.iter().flat_map(|row| (0..4).map(move |i| factor * (row * 4 + i) as f32));
    let count = found.len() as u64;
    vec![
        (DType::F32, vec![count, 4], elements.flat_map(f32::to_le_bytes).collect()),
        (DType::I64, vec![count], found.iter().flat_map(|row| row.to_le_bytes()).collect()),
    ]
}

fn model(text: &str) -> Model {
    let compiler = Compiler::new(Options { threads: Some(2), poison: true, ..options() }).unwrap();
    let graph = parse_module(text, compiler.registry()).unwrap().graphs.remove(0);
    compiler.model(graph)
}

#[test]
fn one_division_serves_all_extents() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let pool = Pool::new(2).unwrap();
    for case in &CASES {
        let model = model(&format!("{ROWS}{}\n}}", case.text));
        let request = with(&[("n", (1, 40))]);
        aot::compile(&model, &request).map(drop).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let (_dir, artifact, made) = library(&model, request);
        assert!(!made.manifest.found.is_empty(), "{}", case.name);
        let mut context = artifact.context(&pool).unwrap();
        let needed = artifact.memory_bytes(2) as usize;
        let mut memory = vec![[0u8; 64]; needed / 64 + 2];
        let whole = memory.as_flattened_mut();
        let skip = whole.as_ptr().align_offset(64);
        let mut own = artifact.context_in(&pool, &mut whole[skip..skip + needed]).unwrap();
        for n in [1, 2, 3, 4, 9, 10, 11, 23, 40, 1] {
            let inputs = [data(&rows(n))];
            let (by_hand, in_process) = (by_hand(case, n), expected(&model, &inputs));
            assert!(in_process == by_hand, "{} {n}: {in_process:?}", case.name);
            for found in [run(&mut context, &inputs), run(&mut own, &inputs)] {
                let found = found.unwrap_or_else(|e| panic!("{} {n}: {e}", case.name));
                assert!(found == by_hand, "{} {n}: {found:?}", case.name);
            }
        }
    }
}

/// A number of which the sizes of tensors do not tell what it may be has a range of the caller's.
#[test]
fn a_number_without_a_limit_takes_a_range() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let behind = "  %to = reshape(%n, %flat)
  %ones = constant_of_shape(%to) {value = i64[1] [1]}
  %nz = nonzero(%ones)
  %last = reduce_max(%nz) {keepdims = false}
  %front = const i64[1] [0]
  %end = reshape(%last, %flat)
  %y = slice(%x, %front, %end, %front)
  return %y";
    let model = model(&format!("{ROWS}{behind}\n}}"));
    let error = aot::compile(&model, &with(&[("n", (2, 20))])).err().unwrap().to_string();
    assert!(error.contains("`last` decides shapes") && error.contains("--shape last.0=FIRST..LAST"), "{error}");
    let (_dir, artifact, _) = library(&model, with(&[("n", (2, 20)), ("last.0", (0, 19))]));
    let pool = Pool::new(1).unwrap();
    let mut context = artifact.context(&pool).unwrap();
    for n in [2, 3, 7, 20] {
        let inputs = [data(&rows(n))];
        let values: Vec<u8> = (0..(n - 1) * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let by_hand: Vec<Output> = vec![(DType::F32, vec![n as u64 - 1, 4], values)];
        assert!(expected(&model, &inputs) == by_hand, "{n}");
        assert!(run(&mut context, &inputs).unwrap() == by_hand, "{n}");
    }
}

/// `squeeze(x, 0)` if `x` has one row, else `x`, and something of it.
fn squeezed(behind: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    let one_row = graph(vec![], vec![node("Squeeze", &["x", "front"], &["row"])], &["row"]);
    let rows = graph(vec![], vec![node("Neg", &["x"], &["less"]), node("Neg", &["less"], &["all"])], &["all"]);
    let mut nodes = vec![
        node("Shape", &["x"], &["s"]),
        having(node("Gather", &["s", "front"], &["n"]), vec![int("axis", 0)]),
        node("Equal", &["n", "one"], &["single"]),
        having(
            node("If", &["single"], &["squeezed"]),
            vec![branch("then_branch", one_row), branch("else_branch", rows)],
        ),
    ];
    nodes.extend(behind);
    let mut g = graph(vec![open("x", &["n", "m"])], nodes, outputs);
    g.initializer = vec![i64s("front", &[1], &[0]), i64s("one", &[1], &[1]), i64s("flat", &[1], &[-1])];
    g
}

/// A branch of another rank that no shape of the ranges takes is not imported; where some take it, that is an error.
#[test]
fn branches_that_all_extents_take_alike_are_decided() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let behind = vec![node("Reshape", &["squeezed", "flat"], &["list"]), node("NonZero", &["list"], &["found"])];
    let (_file, model) = loaded(squeezed(behind, &["found"]));
    let pool = Pool::new(1).unwrap();
    for (ranges, shapes) in [
        ([("n", (2, 9)), ("m", (1, 5))], [[2, 1], [9, 5], [3, 4]]),
        ([("n", (1, 1)), ("m", (1, 5))], [[1, 1], [1, 5], [1, 2]]),
    ] {
        let (_dir, artifact, _) = library(&model, with(&ranges));
        let mut context = artifact.context(&pool).unwrap();
        for [n, m] in shapes {
            let values: Vec<f32> = (0..n * m).map(|i| (i % 3) as f32).collect();
            let inputs = [data(&Tensor::from_f32(&[n, m], &values).unwrap())];
            let found = (0..(n * m) as i64).filter(|i| i % 3 != 0).collect::<Vec<_>>();
            let by_hand: Vec<Output> =
                vec![(DType::I64, vec![1, found.len() as u64], found.iter().flat_map(|i| i.to_le_bytes()).collect())];
            assert!(expected(&model, &inputs) == by_hand, "{n} {m}");
            assert!(run(&mut context, &inputs).unwrap() == by_hand, "{n} {m}");
        }
    }
    let error = aot::compile(&model, &with(&[("n", (1, 9)), ("m", (1, 5))])).err().unwrap().to_string();
    assert!(error.contains("they give results of different element types or ranks"), "{error}");
}

#[test]
fn results_of_different_ranks_are_refused() {
    let (_file, model) = loaded(squeezed(vec![node("Neg", &["squeezed"], &["y"])], &["y"]));
    let error = aot::compile(&model, &with(&[("n", (1, 3)), ("m", (2, 2))])).err().unwrap().to_string();
    for said in [
        "f32 of rank 1 where m = 2, n = 1",
        "f32 of rank 2 where m = 2, n = ",
        "smaller ranges than m = 2..=2, n = 1..=3",
    ] {
        assert!(error.contains(said), "{error}");
    }
}

/// Inside of a model that is no parts, shapes may take branches of other ranks and numbers of nodes.
#[test]
fn shapes_take_branches_of_their_own() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let behind = vec![node("Reshape", &["squeezed", "flat"], &["list"]), node("Neg", &["list"], &["y"])];
    let (_file, model) = loaded(squeezed(behind, &["y"]));
    let (_dir, artifact, _) = library(&model, with(&[("n", (1, 4)), ("m", (1, 3))]));
    let pool = Pool::new(1).unwrap();
    let mut context = artifact.context(&pool).unwrap();
    for [n, m] in [[1, 1], [1, 3], [2, 1], [4, 3], [3, 2]] {
        let values: Vec<f32> = (1..=n * m).map(|i| i as f32).collect();
        let inputs = [data(&Tensor::from_f32(&[n, m], &values).unwrap())];
        let bytes = values.iter().flat_map(|v| (-v).to_le_bytes()).collect();
        let by_hand: Vec<Output> = vec![(DType::F32, vec![n * m], bytes)];
        assert!(expected(&model, &inputs) == by_hand, "{n} {m}");
        assert!(run(&mut context, &inputs).unwrap() == by_hand, "{n} {m}");
    }
}
