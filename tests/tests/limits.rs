//! Limits of what a model may take: refused where the plan knows, stopped where it does not.

use std::time::{Duration, Instant};

use tensorc::ir::DenseType;
use tensorc::ir::text::parse_module;
use tensorc::runtime::plan::RunError;
use tensorc::{Compiler, Error, Limits, Model, Options, Tensor};

use crate::support::backend::options;

fn model(limits: Limits, threads: usize, text: &str) -> Model {
    let compiler = Compiler::new(Options { limits, threads: Some(threads), ..options() }).unwrap();
    let module = parse_module(text, compiler.registry()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    compiler.model(module.graphs.into_iter().next().unwrap())
}

/// Compiles and runs a model without inputs, or with zeros.
fn outcome(model: &Model) -> Result<(), Error> {
    let zeros = |(name, ty): (String, tensorc::ir::TensorType)| {
        let DenseType { dtype, dims } = ty.dense().unwrap();
        let bytes = dims.iter().product::<u64>() as usize * dtype.size();
        (name, Tensor::from_bytes(dtype, &dims, vec![0; bytes]).unwrap())
    };
    let inputs: Vec<(String, Tensor)> = model.inputs().into_iter().map(zeros).collect();
    let named: Vec<(&str, Tensor)> = inputs.iter().map(|(name, t)| (name.as_str(), t.clone())).collect();
    model.run(&named).map(|_| ())
}

fn message(limits: Limits, text: &str) -> String {
    outcome(&model(limits, 1, text)).map_or_else(|e| e.to_string(), |()| "ran".to_owned())
}

const GIBIBYTE: Limits = Limits { memory: Some(1 << 30), time: Some(Duration::from_secs(10)), nodes: None, code: None };

#[test]
fn results_that_are_too_large_are_refused_before_the_run() {
    let constant = |shape: &str| format!("const i64[{}] [{shape}]", shape.split(',').count());
    let one = |node: &str, shape: &str| {
        format!("graph @huge(%x: f32[1, 1]) {{\n  %s = {}\n  %y = {node}\n  return %y\n}}\n", constant(shape))
    };
    for (node, shape) in [
        ("expand(%x, %s)", "1048576, 1048576"),
        ("tile(%x, %s)", "1048576, 1048576"),
        ("pad(%x, %s)", "524288, 524288, 524288, 524288"),
        ("constant_of_shape(%s)", "1048576, 1048576"),
    ] {
        let text = one(node, shape);
        assert_eq!(message(GIBIBYTE, &text), "[limit] a run takes 4.0 TiB of memory, 1.0 GiB are allowed", "{node}");
    }
    for (node, shape) in [
        ("expand(%x, %s)", "4611686018427387904, 4611686018427387904"),
        ("tile(%x, %s)", "4611686018427387904, 2"),
        ("constant_of_shape(%s)", "4611686018427387904, 4"),
    ] {
        for limits in [Limits::default(), GIBIBYTE] {
            let found = message(limits, &one(node, shape));
            assert!(found.starts_with("[limit] node `y`: output 0 would be f32["), "{node}: {found}");
            assert!(found.ends_with("which has more bytes than a machine can address"), "{node}: {found}");
        }
    }
}

#[test]
fn without_limits_memory_that_is_not_there_is_an_error() {
    let text =
        "graph @huge(%x: f32[1]) {\n  %s = const i64[1] [1152921504606846976]\n  %y = expand(%x, %s)\n  return %y\n}\n";
    assert_eq!(message(Limits::default(), text), "cannot allocate 4611686018427387904 bytes for outputs");
}

#[test]
fn arithmetic_that_takes_too_long_is_refused_before_the_run() {
    let text = "graph @outer(%x: f32[4096, 65536], %w: f32[65536, 65536]) {\n  %y = matmul(%x, %w)\n  return %y\n}\n";
    let limits = Limits { time: Some(Duration::from_secs(10)), ..Limits::default() };
    let compiled = model(limits, 1, text);
    let types: Vec<DenseType> = compiled.inputs().iter().map(|(_, ty)| ty.dense().unwrap()).collect();
    let error = compiled.compile(&types).err().unwrap();
    assert_eq!(error.to_string(), "[limit] a run takes 64 s at least, 10 s are allowed");
}

#[test]
fn a_run_ends_when_its_time_is_over() {
    // It takes about a minute: elements of a sum with an exponential for each of 2^36 pairs.
    let text = "graph @pairs(%x: f32[262144, 1], %y: f32[1, 262144]) {\n  %d = sub(%x, %y)\n  %e = exp(%d)\n  %a = const i64[1] [1]\n  %s = reduce_sum(%e, %a)\n  return %s\n}\n";
    for threads in [1, 2] {
        let limits = Limits { time: Some(Duration::from_millis(500)), ..Limits::default() };
        let compiled = model(limits, threads, text);
        let start = Instant::now();
        let error = outcome(&compiled).unwrap_err();
        assert!(matches!(error, Error::Run(RunError::Time { .. })), "{error}");
        assert!(error.to_string().ends_with("the run takes longer than the 0.5 s that are allowed"), "{error}");
        // Not how long it takes, but that it is not all of it.
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}

#[test]
fn results_have_the_same_bits_with_a_time_limit() {
    let text = "graph @all(%x: f32[64, 300], %w: f32[300, 200]) {\n  %y = matmul(%x, %w)\n  %z = softmax(%y)\n  return %z\n}\n";
    let inputs = |model: &Model| {
        let value = |(name, ty): (String, tensorc::ir::TensorType)| {
            let dims = ty.dense().unwrap().dims;
            let values: Vec<f32> = (0..dims.iter().product::<u64>()).map(|i| (i % 17) as f32 * 0.1 - 0.7).collect();
            (name, Tensor::from_f32(&dims, &values).unwrap())
        };
        model.inputs().into_iter().map(value).collect::<Vec<_>>()
    };
    let run = |limits: Limits, threads: usize| {
        let model = model(limits, threads, text);
        let given = inputs(&model);
        let named: Vec<(&str, Tensor)> = given.iter().map(|(name, t)| (name.as_str(), t.clone())).collect();
        model.run(&named).unwrap()
    };
    let expected = run(Limits::default(), 1);
    let limits = Limits { time: Some(Duration::from_secs(600)), ..Limits::default() };
    for threads in [1, 2] {
        assert_eq!(run(limits, threads), expected);
    }
}

#[test]
fn nodes_and_code_are_bounded() {
    let text = "graph @chain(%x: f32[8]) {\n  %a = exp(%x)\n  %b = tanh(%a)\n  %c = log(%b)\n  return %c\n}\n";
    let nodes = |most| Limits { nodes: Some(most), ..Limits::default() };
    assert_eq!(message(nodes(100), text), "ran");
    let refused = message(nodes(3), text);
    assert!(refused.starts_with("[limit] the graph has ") && refused.ends_with("3 are allowed"), "{refused}");
    let code = |most| Limits { code: Some(most), ..Limits::default() };
    assert_eq!(message(code(1 << 20), text), "ran");
    let refused = message(code(10), text);
    assert!(refused.starts_with("[limit] the model has ") && refused.ends_with("10 bytes are allowed"), "{refused}");
}

#[test]
fn tables_of_the_compiler_are_bounded() {
    let resize = "graph @big(%x: f32[1, 1, 2, 2]) {\n  %s = const i64[4] [1, 1, 4294967296, 0]\n  %y = resize(%x, _, _, %s) {mode = \"linear\"}\n  return %y\n}\n";
    let pool = "graph @big(%x: f32[1, 1, 1099511627776]) {\n  %y = average_pool(%x) {kernel_shape = [3], pads = [1, 1]}\n  return %y\n}\n";
    for text in [resize, pool] {
        let compiled = model(GIBIBYTE, 1, text);
        let types: Vec<DenseType> = compiled.inputs().iter().map(|(_, ty)| ty.dense().unwrap()).collect();
        let error = compiled.compile(&types).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("is too large; it may have 16777216"), "{text}: {error}");
    }
}

#[test]
fn long_recurrences_are_loops_of_few_nodes() {
    let text = "graph @long(%x: f32[100000, 1, 4], %h: f32[1, 1], %w: f32[4, 1]) {\n  \
                %y = recurrent(%x, %w, %h, %h) {mode = \"lstm\"} : (?, ?)\n  return %y\n}\n";
    let compile = |nodes| {
        let compiled = model(Limits { nodes: Some(nodes), ..Limits::default() }, 1, text);
        let types: Vec<DenseType> = compiled.inputs().iter().map(|(_, ty)| ty.dense().unwrap()).collect();
        compiled.compile(&types).err().map(|e| e.to_string())
    };
    assert_eq!(compile(100), None);
    let refused = compile(5).unwrap();
    assert!(refused.starts_with("[limit] ") && refused.ends_with("5 are allowed"), "{refused}");
}

/// What lies outside of the operand in every window is not read.
#[test]
fn windows_that_are_mostly_padding_take_no_time() {
    for node in [
        "max_pool(%x) {kernel_shape = [65536, 65536], auto_pad = \"SAME_UPPER\"}",
        "average_pool(%x) {kernel_shape = [65536, 65536], auto_pad = \"SAME_LOWER\"}",
        "lrn(%x) {size = 9223372036854775806}",
    ] {
        let text = format!("graph @wide(%x: f32[1, 2, 3, 3]) {{\n  %y = {node}\n  return %y\n}}\n");
        let began = Instant::now();
        assert_eq!(message(GIBIBYTE, &text), "ran", "{node}");
        assert!(began.elapsed() < Duration::from_secs(5), "{node}");
    }
}
