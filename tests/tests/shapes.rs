//! Symbolic sizes: a model is planned once for each combination of shapes, and a shape that comes again runs what
//! is there.

use std::sync::atomic::Ordering;
use std::time::Instant;

use tensorc::ir::text::parse_module;
use tensorc::{Compiler, Model, Options, Specialize, Tensor};

use crate::support::backend::options;
use crate::support::plan_counter;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, TensorData};
use tensorc_tests::compare::{data, tensor};

plan_counter!(PLANNED, count);

const NET: &str = "tensorc-ir 1
graph @main(%x: f32[?rows, 3]) {
  %a = tanh(%x)
  %b = softmax(%x)
  %j = concat(%a, %b) {axis = 1}
  %y = softmax(%j)
  return %y
}
";

/// The output of [`NET`] for so many rows.
fn run(model: &Model, rows: u64) -> TensorData {
    let x = TensorData::from_fn(DenseType::new(DType::F32, [rows, 3]), |i| Scalar::f32(i as f32 / 8.0));
    data(&model.run(&[("x", tensor(&x))]).unwrap()[0].1)
}

#[test]
fn shapes_are_planned_once() {
    // Of 4, 7 and 5 rows: together, or each by itself.
    assert_eq!(planned_for_each(Specialize::Never), [1, 1, 1]);
    assert_eq!(planned_for_each(Specialize::Always), [2, 2, 3]);
}

plan_counter!(PLANNED_LATER, count_later);

/// Runs of a shape that comes again and again go on with the code for many, then with its own; others keep that for many.
#[test]
fn shapes_that_come_again_get_code_of_their_own() {
    let compiler = Compiler::new(Options {
        threads: Some(2),
        progress: Some(count_later),
        poison: true,
        specialize: Specialize::After(5),
        ..options()
    });
    let compiler = compiler.unwrap();
    let model = compiler.model(parse_module(NET, compiler.registry()).unwrap().graphs.remove(0));
    let run = |rows| run(&model, rows);
    let [often, once] = [run(6), run(9)];
    assert_eq!(PLANNED_LATER.load(Ordering::Relaxed), 1);
    let start = Instant::now();
    // Several callers: one of them starts the compilation, and nobody waits for it.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while PLANNED_LATER.load(Ordering::Relaxed) < 2 {
                    assert_eq!(run(6), often);
                    assert!(start.elapsed().as_secs() < 60, "nothing was compiled");
                }
            });
        }
    });
    for _ in 0..200 {
        assert_eq!(run(6), often);
    }
    assert_eq!(run(9), once);
    assert_eq!(PLANNED_LATER.load(Ordering::Relaxed), 2);
}

plan_counter!(PLANNED_BEFORE, count_before);

/// What is prepared is not compiled by runs: of a model of many shapes, and of one whose shapes are known.
#[test]
fn prepared_models_run_without_compiling() {
    let compiler = Compiler::new(Options { progress: Some(count_before), ..options() }).unwrap();
    let planned = || PLANNED_BEFORE.load(Ordering::Relaxed);
    let loaded = |text: &str| compiler.model(parse_module(text, compiler.registry()).unwrap().graphs.remove(0));
    let (many, alone) = (loaded(NET), loaded(&NET.replace("?rows", "4")));
    for (number, model) in [&many, &alone].into_iter().enumerate() {
        model.prepare().unwrap();
        assert_eq!(planned(), number + 1);
        model.prepare().unwrap();
        run(model, 4);
        assert_eq!(planned(), number + 1);
    }
    assert_eq!(run(&many, 4), run(&alone, 4));
    run(&many, 9);
    assert_eq!(planned(), 2);
    let wrong = NET.replace("?rows, 3]", "4, 3], %w: f32[5, 2]").replace("concat(%a, %b)", "concat(%a, %w)");
    let error = loaded(&wrong).prepare().unwrap_err().to_string();
    assert!(error.contains("concat"), "{error}");
}

plan_counter!(PLANNED_FOR_BATCHES, count_for_batches);

#[test]
fn batches_of_one_are_prepared_too() {
    let compiler = Compiler::new(Options { progress: Some(count_for_batches), ..options() }).unwrap();
    let text = "graph @main(%x: f32[?batch, ?length, 8], %w: f32[8, 8]) {
  %p = matmul(%x, %w)
  %y = tanh(%p)
  return %y
}";
    let model = compiler.model(parse_module(text, compiler.registry()).unwrap().graphs.remove(0));
    model.prepare().unwrap();
    let planned = || PLANNED_FOR_BATCHES.load(Ordering::Relaxed);
    assert_eq!(planned(), 2);
    let w = Tensor::from_f32(&[8, 8], &[0.25; 64]).unwrap();
    for [batch, length] in [[1, 7], [5, 7], [1, 30], [2, 100]] {
        let x = Tensor::from_f32(&[batch, length, 8], &vec![0.5; (batch * length * 8) as usize]).unwrap();
        let y = &model.run(&[("x", x), ("w", w.clone())]).unwrap()[0].1;
        assert!(y.to_f32().unwrap().iter().all(|y| (y - 1f32.tanh()).abs() < 1e-6));
    }
    assert_eq!(planned(), 2);
}

/// How often something is planned for two shapes, for the same again, and for a third.
fn planned_for_each(specialize: Specialize) -> [usize; 3] {
    let options = Options { threads: Some(1), progress: Some(count), poison: true, specialize, ..options() };
    let compiler = Compiler::new(options).unwrap();
    let graph = parse_module(NET, compiler.registry()).unwrap().graphs.remove(0);
    let model = compiler.model(graph);
    let run = |rows| run(&model, rows);
    let before = PLANNED.load(Ordering::Relaxed);
    let planned = || PLANNED.load(Ordering::Relaxed) - before;
    let first = [run(4), run(7)];
    let two = planned();
    assert_eq!(first.each_ref().map(|y| y.ty.dims[0]), [4, 7]);
    for _ in 0..3 {
        assert_eq!([run(4), run(7)], first);
    }
    let again = planned();
    run(5);
    [two, again, planned()]
}

#[test]
fn shapes_share_the_weights_and_the_last_ones_are_kept() {
    let compiler = Compiler::new(Options { sessions: Some(2), ..Options::default() }).unwrap();
    let w = (0..8 * 40).map(|i| (i / 40).to_string()).collect::<Vec<_>>().join(", ");
    let text = format!(
        "tensorc-ir 1
graph @main(%x: f32[?rows, 8]) {{
  %w = const f32[8, 40] [{w}]
  %y = matmul(%x, %w)
  return %y
}}
"
    );
    let model = compiler.model(parse_module(&text, compiler.registry()).unwrap().graphs.remove(0));
    let run = |rows: u64| {
        let x = TensorData::from_fn(DenseType::new(DType::F32, [rows, 8]), |i| Scalar::f32((i % 8) as f32));
        data(&model.run(&[("x", tensor(&x))]).unwrap()[0].1)
    };
    assert_eq!(compiler.weight_bytes(), 0);
    run(17);
    let once = compiler.weight_bytes();
    assert!(once >= 8 * 40 * 4, "{once} bytes are no packed matrix");
    for rows in [18, 64, 100, 17] {
        let y = run(rows);
        assert!(y.iter().all(|v| v.as_f32() == 140.0) && y.dims() == [rows, 40]);
        assert_eq!(compiler.weight_bytes(), once, "{rows} rows have weights of their own");
    }
    drop(model);
    assert_eq!(compiler.weight_bytes(), 0, "weights stay without a session");
}

#[test]
fn results_that_no_memory_has_room_for_are_errors() {
    let compiler = Compiler::new(options()).unwrap();
    // 2⁶⁰ elements, of which all are the same.
    let text = "graph @main(%x: f32[1]) { %y = prim.view(%x) [0] : f32[1152921504606846976] return %y }";
    let model = compiler.model(parse_module(text, compiler.registry()).unwrap().graphs.remove(0));
    let x = tensor(&TensorData::f32s(&[1], &[1.0]).unwrap());
    let error = model.run(&[("x", x)]).unwrap_err().to_string();
    assert_eq!(error, "cannot allocate 4611686018427387904 bytes for outputs");
}
