//! Artifacts of models of which the host runs branches and loops: bodies are models of their own.

use tensorc::aot;
use tensorc::ir::TensorData;
use tensorc::runtime::Pool;
use tensorc::{Model, Tensor};
use tensorc_frontend::onnx::proto::GraphProto;
use tensorc_tests::cache::visible;
use tensorc_tests::compare::data;

use super::exists;
use super::parts::{Stated, expected, with};
use super::ranges::{library, run};
use crate::flow::loaded;
use crate::hosted::{counted, either, growing, halving, mixed, nested, over_found_rows, shrinking};

/// A model, the ranges of its numbers, and inputs of it.
struct Case {
    name: &'static str,
    graph: GraphProto,
    ranges: Vec<Stated<'static>>,
    inputs: Vec<Tensor>,
}

/// Ones, but for the first element.
fn beginning_with(first: f32, n: u64) -> Tensor {
    let mut values = vec![1.0; n as usize];
    values[0] = first;
    Tensor::from_f32(&[n], &values).unwrap()
}

fn filled(dims: &[u64], value: f32) -> Tensor {
    Tensor::from_f32(dims, &vec![value; dims.iter().product::<u64>() as usize]).unwrap()
}

fn negative(dims: &[u64]) -> Tensor {
    filled(dims, -1.0)
}

fn cases() -> Vec<Case> {
    let sizes = [("n", (1, 30)), ("m", (1, 12))];
    let both = |more: &[Stated<'static>]| [&sizes, more].concat();
    vec![
        Case {
            name: "a list that grows",
            graph: growing(),
            ranges: vec![("n", (1, 30)), ("list_of_all.0", (1, 64)), ("list_of_all.1.0", (0, 64))],
            inputs: vec![beginning_with(20.0, 17), beginning_with(64.0, 1), beginning_with(9.0, 30), negative(&[3])],
        },
        Case {
            name: "rows until a condition fails",
            graph: halving(),
            ranges: both(&[("last.1.0", (0, 20))]),
            inputs: vec![counted(&[5, 5]), counted(&[30, 12]), counted(&[1, 2]), negative(&[4, 5])],
        },
        Case {
            name: "shapes in a body depend on values",
            graph: shrinking(),
            // No list of two elements or fewer becomes shorter, which their number tells.
            ranges: vec![("n", (1, 100))],
            inputs: [20, 3, 100, 4, 2, 1].map(|n| counted(&[n])).to_vec(),
        },
        Case {
            name: "branches of different shapes",
            graph: either(),
            ranges: both(&[]),
            inputs: vec![counted(&[3, 2]), negative(&[2, 3]), mixed(&[30, 12]), counted(&[1, 1])],
        },
        Case {
            name: "a branch in a loop",
            graph: nested(),
            ranges: vec![("n", (2, 9)), ("m", (4, 4)), ("last.0", (2, 60)), ("last.1.0", (0, 16))],
            inputs: [2, 3, 9].map(|n| filled(&[n, 4], 0.5)).to_vec(),
        },
        Case {
            name: "forward over rows that are found",
            graph: over_found_rows(0),
            ranges: both(&[]),
            inputs: vec![mixed(&[30, 3]), mixed(&[25, 5]), negative(&[4, 4])],
        },
        Case {
            name: "backwards over rows that are found",
            graph: over_found_rows(1),
            ranges: both(&[]),
            inputs: vec![mixed(&[30, 3]), mixed(&[25, 5])],
        },
    ]
}

#[test]
fn artifacts_have_the_bits_of_the_host() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let pool = Pool::new(2).unwrap();
    for case in cases() {
        let (_file, model) = loaded(case.graph);
        aot::compile(&model, &with(&case.ranges)).map(drop).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let (_dir, artifact, _) = library(&model, with(&case.ranges));
        let mut context = artifact.context(&pool).unwrap();
        let needed = artifact.memory_bytes(2) as usize;
        let mut memory = vec![[0u8; 64]; needed / 64 + 2];
        let whole = memory.as_flattened_mut();
        let skip = whole.as_ptr().align_offset(64);
        let mut own = artifact.context_in(&pool, &mut whole[skip..skip + needed]).unwrap();
        for input in &case.inputs {
            let inputs: Vec<TensorData> = vec![data(input)];
            let expected = expected(&model, &inputs);
            for found in [run(&mut context, &inputs), run(&mut own, &inputs)] {
                let found = found.unwrap_or_else(|e| panic!("{}: {e}", case.name));
                assert!(found == expected, "{} {:?}", case.name, input.dims());
            }
        }
    }
}

fn refused(model: &Model, ranges: &[Stated<'_>]) -> String {
    aot::compile(model, &with(ranges)).err().unwrap().to_string()
}

#[test]
fn what_bounds_no_result_is_asked_for() {
    let (_file, model) = loaded(growing());
    let n = ("n", (1, 30));
    let error = refused(&model, &[n]);
    assert!(error.contains("longer with every iteration: give --shape list_of_all.0=FIRST..LAST"), "{error}");
    let error = refused(&model, &[n, ("list_of_all.0", (1, 64))]);
    assert!(error.contains("how often it runs: give --shape list_of_all.1.0=FIRST..LAST"), "{error}");
    let error = refused(&model, &[n, ("list_of_all.0", (1, 64)), ("list_of_all.1.0", (0, 9)), ("other.0", (0, 9))]);
    assert!(error.contains("other.0"), "{error}");
}

#[test]
fn results_beyond_their_ranges_are_errors() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let pool = Pool::new(1).unwrap();
    let (_file, model) = loaded(growing());
    let ranges = [("n", (1, 30)), ("list_of_all.0", (1, 40)), ("list_of_all.1.0", (1, 20))];
    let (_dir, artifact, made) = library(&model, with(&ranges));
    assert_eq!(made.manifest.found.len(), 2);
    let mut context = artifact.context(&pool).unwrap();
    let result = |context: &mut _, first: f32, n: u64| run(context, &[data(&beginning_with(first, n))]);
    let error = result(&mut context, 50.0, 25).unwrap_err();
    assert!(error.starts_with("`list_of_all`: ") && error.contains("41"), "{error}");
    let error = result(&mut context, 40.0, 5).unwrap_err();
    assert!(error.contains("a result of `list_of_all` has 84 bytes or more"), "{error}");
    let error = run(&mut context, &[data(&negative(&[5]))]).unwrap_err();
    assert_eq!(error, "`list_of_all.1.0` is 0, the model was compiled for 1..=20");
    assert!(result(&mut context, 20.0, 17).is_ok(), "after errors");
}
