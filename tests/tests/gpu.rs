//! Kernels for GPUs: every emitter on awkward shapes, in the interpreter against the reference, and through NVIDIA's
//! assembler.
//!
//! The assembler comes from a pinned package; without a package index, or in a build without LLVM, that test says that it is
//! skipped.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use tensorc::ir::graph::Graph;
use tensorc::ir::interp::eval_graph;
use tensorc::ir::kir::Kernel;
use tensorc::ir::text::parse_module;
use tensorc::passes::{Device, PassCx, Phase, Pipeline};
use tensorc::runtime::Device as Place;
use tensorc::runtime::gpu::Driver;
use tensorc::{Backend, Compiler, Options};
use tensorc_codegen::emit::Style;
use tensorc_codegen::lower::{Choices, lower_with};
use tensorc_codegen::target::Capability;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::testing::Rng;
use tensorc_ir::{DType, DenseType, TensorData};

use crate::support::cache::{Package, fetch, folder, member, visible};
use crate::support::compare::{data, tensor};
use crate::support::launches::{Recorder, Repeated, unnoticed};

/// Inputs and body of a graph: `T` stands for an element type.
const PROGRAMS: [(&str, &str, &str); 30] = [
    ("map", "%x: T[3, 5, 7], %b: T[7]", "%s = add(%x, %b) %y = mul(%s, %x)"),
    ("wide map", "%x: T[6, 64], %b: T[64]", "%s = sub(%x, %b) %y = abs(%s)"),
    ("transpose", "%x: T[5, 9, 12]", "%y = transpose(%x) {perm = [2, 0, 1]}"),
    (
        "transpose and more",
        "%x: T[70, 33], %z: T[33, 70], %b: T[70]",
        "%t = transpose(%x) {perm = [1, 0]} %s = add(%t, %z) %y = mul(%s, %b)",
    ),
    ("transposed batch", "%x: T[3, 40, 2, 32]", "%y = transpose(%x) {perm = [0, 2, 3, 1]}"),
    ("one element", "%x: T[1]", "%y = add(%x, %x)"),
    ("row sum", "%x: T[9, 100]", "%a = const i64[1] [1] %y = reduce_sum(%x, %a)"),
    ("long row", "%x: T[2, 3001]", "%a = const i64[1] [1] %y = reduce_max(%x, %a)"),
    ("everything", "%x: T[7, 11, 13]", "%y = reduce_sum(%x)"),
    ("column sum", "%x: T[130, 37]", "%a = const i64[1] [0] %y = reduce_sum(%x, %a)"),
    ("short columns", "%x: T[5, 6, 7]", "%a = const i64[1] [1] %y = reduce_min(%x, %a)"),
    ("product", "%x: T[37, 29], %w: T[29, 45]", "%y = matmul(%x, %w)"),
    ("products", "%x: T[3, 17, 40], %w: T[3, 40, 20]", "%y = matmul(%x, %w)"),
    ("vector product", "%x: T[1, 65], %w: T[65, 70]", "%y = matmul(%x, %w)"),
    ("concat", "%x: T[3, 4], %z: T[3, 5]", "%n = neg(%z) %y = concat(%x, %n) {axis = 1}"),
    ("argmax", "%x: T[6, 50]", "%y = argmax(%x) {axis = 1}"),
    ("gather elements", "%x: T[5, 3]", "%i = const i64[2, 3] [4, -1, 0, 2, 2, 1] %y = gather_elements(%x, %i)"),
    ("gather tuples", "%x: T[5, 3, 4]", "%i = const i64[2, 2] [4, -1, 0, 2] %y = gather_nd(%x, %i)"),
    (
        "scatter elements",
        "%x: T[50, 3], %u: T[2, 2]",
        "%i = const i64[2, 2] [4, -1, 4, 2] %y = scatter_elements(%x, %i, %u) {reduction = \"add\"}",
    ),
    (
        "scatter along rows",
        "%x: T[3, 40], %u: T[3, 5]",
        "%i = const i64[3, 5] [1, 2, 3, 2, 1, 39, 0, 39, 7, 7, 8, 9, 8, 9, 10] \
         %y = scatter_elements(%x, %i, %u) {axis = 1}",
    ),
    (
        "scatter slices",
        "%x: T[9, 20], %u: T[4, 20]",
        "%i = const i64[4, 1] [3, 8, 3, 0] %y = scatter_nd(%x, %i, %u) {reduction = \"max\"}",
    ),
    ("scatter sum", "%u: T[6, 33]", "%i = const i64[6] [2, 0, 2, 4, 4, 4] %y = scatter_sum(%u, %i) {extent = 7}"),
    (
        "scatter into a ring",
        "%x: T[2, 3, 8, 5], %u: T[2, 3, 2, 5]",
        "%i = const i64[2] [7, 3] %y = tensor_scatter(%x, %u, %i) {mode = \"circular\"}",
    ),
    ("choice", "%x: T[5, 9], %z: T[5, 9]", "%c = less(%x, %z) %y = where(%c, %x, %z)"),
    ("sorted rows", "%x: T[4, 33]", "%y = sort(%x) {axis = 1}"),
    ("running sum", "%x: T[3, 20]", "%a = const i64[] [1] %y = cumsum(%x, %a)"),
    ("reflection", "%x: T[4, 5]", "%p = const i64[4] [1, 0, 2, 3] %y = pad(%x, %p) {mode = \"reflect\"}"),
    (
        "conversions",
        "%x: T[6, 10]",
        "%i = cast(%x) {to = i32} %j = cast(%x) {to = u8} %k = cast(%j) {to = i32} %s = add(%i, %k) %y = cast(%s) {to = f32}",
    ),
    ("row product", "%x: T[6, 10]", "%a = const i64[1] [1] %y = reduce_prod(%x, %a)"),
    ("gather", "%x: T[10, 6]", "%i = const i64[4] [3, -1, 0, 9] %y = gather(%x, %i)"),
];

/// The same of floating-point numbers alone.
const FLOAT_PROGRAMS: [(&str, &str, &str); 27] = [
    ("gelu", "%x: T[5, 33]", "%y = gelu(%x)"),
    (
        "functions",
        "%x: T[7, 11]",
        "%a = tanh(%x) %b = erf(%x) %c = exp(%x) %d = sin(%x) %e = add(%a, %b) %f = add(%c, %d) %y = mul(%e, %f)",
    ),
    (
        "powers",
        "%x: T[5, 9], %z: T[5, 9]",
        "%h = abs(%x) %l = log1p(%h) %p = pow(%h, %l) %f = floor(%z) %y = mul(%p, %f)",
    ),
    (
        "largest of windows",
        "%x: T[2, 3, 9, 8]",
        "%y = max_pool(%x) {kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]}",
    ),
    (
        "means of windows",
        "%x: T[2, 3, 9, 8]",
        "%y = average_pool(%x) {kernel_shape = [3, 2], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = true}",
    ),
    ("softmax", "%x: T[4, 77]", "%y = softmax(%x)"),
    ("long softmax", "%x: T[2, 2050]", "%y = softmax(%x)"),
    ("softmax of columns", "%x: T[30, 9]", "%y = softmax(%x) {axis = 0}"),
    ("norm", "%x: T[6, 96], %s: T[96], %b: T[96]", "%y = layer_norm(%x, %s, %b)"),
    ("aligned product", "%x: T[70, 136], %w: T[136, 72]", "%y = matmul(%x, %w)"),
    (
        "layer",
        "%x: T[40, 64], %w: T[80, 64], %b: T[80]",
        "%t = transpose(%w) {perm = [1, 0]} %p = matmul(%x, %t) %s = add(%p, %b) %y = gelu(%s)",
    ),
    (
        "heads",
        "%x: T[2, 4, 24, 32], %z: T[2, 4, 40, 32]",
        "%t = transpose(%z) {perm = [0, 1, 3, 2]} %y = matmul(%x, %t)",
    ),
    ("product and softmax", "%x: T[20, 16], %w: T[16, 40]", "%p = matmul(%x, %w) %y = softmax(%p)"),
    (
        "attention",
        "%q: T[2, 3, 37, 24], %k: T[2, 3, 70, 24], %v: T[2, 3, 70, 20]",
        "%t = transpose(%k) {perm = [0, 1, 3, 2]} %s = matmul(%q, %t) %c = const T[] [0.25] %d = mul(%s, %c) \
         %p = softmax(%d) %y = matmul(%p, %v)",
    ),
    (
        "attention with a bias",
        "%q: T[2, 70, 64], %k: T[2, 64, 130], %v: T[2, 130, 64], %m: T[70, 130], %b: T[2, 1, 130]",
        "%s = matmul(%q, %k) %c = const T[] [0.125] %f = mul(%s, %c) %d = add(%f, %m) %e = add(%d, %b) \
         %p = softmax(%e) %y = matmul(%p, %v)",
    ),
    (
        "attention of heads side by side",
        "%q: T[2, 20, 64], %k: T[2, 20, 64], %v: T[2, 20, 64]",
        "%h = const i64[4] [2, 20, 4, 16] %i = reshape(%q, %h) %j = reshape(%k, %h) %l = reshape(%v, %h) \
         %m = transpose(%i) {perm = [0, 2, 1, 3]} %n = transpose(%j) {perm = [0, 2, 3, 1]} \
         %o = transpose(%l) {perm = [0, 2, 1, 3]} %s = matmul(%m, %n) %c = const T[] [0.25] %d = mul(%s, %c) \
         %p = softmax(%d) %r = matmul(%p, %o) %u = transpose(%r) {perm = [0, 2, 1, 3]} %w = const i64[3] [2, 20, 64] %y = reshape(%u, %w)",
    ),
    (
        "attention of wide heads",
        "%q: T[1, 5, 128], %k: T[1, 128, 33], %v: T[1, 33, 128]",
        "%s = matmul(%q, %k) %c = const T[] [0.0625] %d = mul(%s, %c) %p = softmax(%d) %y = matmul(%p, %v)",
    ),
    (
        "attention of one query",
        "%q: T[6, 1, 40], %k: T[6, 40, 100], %v: T[6, 100, 40]",
        "%s = matmul(%q, %k) %c = const T[] [0.125] %d = mul(%s, %c) %p = softmax(%d) %y = matmul(%p, %v)",
    ),
    (
        "attention of very wide heads",
        "%q: T[1, 70, 256], %k: T[1, 256, 75], %v: T[1, 75, 256]",
        "%s = matmul(%q, %k) %c = const T[] [0.0625] %d = mul(%s, %c) %p = softmax(%d) %y = matmul(%p, %v)",
    ),
    (
        "attention of heads of different widths",
        "%q: T[2, 20, 130], %k: T[2, 130, 40], %v: T[2, 40, 150]",
        "%s = matmul(%q, %k) %c = const T[] [0.0625] %d = mul(%s, %c) %p = softmax(%d) %y = matmul(%p, %v)",
    ),
    (
        "attention of one query and many keys",
        "%q: T[2, 3, 1, 40], %k: T[2, 3, 40, 600], %v: T[2, 3, 600, 24]",
        "%s = matmul(%q, %k) %c = const T[] [0.125] %d = mul(%s, %c) %p = softmax(%d) %y = matmul(%p, %v)",
    ),
    (
        "attention with parts of the keys left out",
        "%q: T[2, 17, 64], %k: T[2, 64, 1100], %v: T[2, 1100, 64]",
        "%s = matmul(%q, %k) %a = const i64[] [0] %b = const i64[] [1100] %c = const i64[] [1] %r = range(%a, %b, %c) \
         %f = const i64[] [700] %l = less(%r, %f) %i = const T[] [-inf] %w = const T[] [0.125] %g = mul(%s, %w) %d = where(%l, %i, %g) %p = softmax(%d) \
         %y = matmul(%p, %v)",
    ),
    (
        "attention by exponentials of many keys",
        "%q: T[2, 5, 16], %k: T[2, 16, 700], %v: T[2, 700, 20]",
        "%s = matmul(%q, %k) %c = const T[] [0.0625] %d = mul(%s, %c) %e = exp(%d) %a = const i64[1] [2] \
         %z = reduce_sum(%e, %a) {keepdims = true} %p = div(%e, %z) %y = matmul(%p, %v)",
    ),
    ("product of columns", "%x: T[40, 72], %w: T[40, 136]", "%t = transpose(%x) {perm = [1, 0]} %y = matmul(%t, %w)"),
    ("awkward product", "%x: T[2, 33, 41], %w: T[2, 41, 27]", "%y = matmul(%x, %w)"),
    (
        "deep convolution",
        "%x: T[2, 6, 9, 10], %w: T[24, 6, 3, 3], %b: T[24]",
        "%c = conv(%x, %w, %b) {pads = [1, 1, 1, 1]} %y = relu(%c)",
    ),
    (
        "convolution",
        "%x: T[2, 5, 11, 9], %w: T[7, 5, 3, 3], %b: T[7]",
        "%y = conv(%x, %w, %b) {pads = [1, 1, 1, 1], strides = [2, 1]}",
    ),
];

/// Of f64, whose functions are expanded on a GPU.
const WIDE_PROGRAMS: [(&str, &str, &str); 9] = [
    ("exponentials", "%x: T[7, 11]", "%a = exp(%x) %b = softplus(%a) %c = tanh(%b) %d = sigmoid(%x) %y = mul(%c, %d)"),
    ("logarithms", "%x: T[7, 11]", "%s = abs(%x) %l = log(%s) %m = log1p(%s) %y = sub(%l, %m)"),
    ("angles", "%x: T[7, 11]", "%s = sin(%x) %c = cos(%x) %t = atan(%x) %p = mul(%s, %c) %y = add(%p, %t)"),
    ("hyperbolic", "%x: T[7, 11]", "%s = sinh(%x) %c = cosh(%x) %a = asinh(%s) %y = div(%a, %c)"),
    ("normal distribution", "%x: T[7, 11]", "%e = erf(%x) %g = gelu(%x) %y = add(%e, %g)"),
    ("powers", "%x: T[7, 11], %e: T[7, 11]", "%a = abs(%x) %y = pow(%a, %e)"),
    ("wide softmax", "%x: T[4, 77]", "%y = softmax(%x)"),
    (
        "remainders",
        "%x: T[7, 11], %z: T[7, 11]",
        "%a = abs(%z) %c = const T[] [0.03] %d = add(%a, %c) %y = mod(%x, %d) {fmod = true}",
    ),
    ("to half precision", "%x: T[7, 11]", "%h = cast(%x) {to = f16} %y = abs(%h)"),
];

struct Case {
    name: String,
    graph: Graph,
    /// Whether products of f32 may round their operands.
    tf32: bool,
}

fn compiler(gpu: bool, tf32: bool) -> Compiler {
    compiler_for(gpu.then(|| tensorc::gpu::interpreted(Place::accelerator(0))), tf32)
}

fn compiler_for(gpu: Option<Arc<dyn Driver>>, tf32: bool) -> Compiler {
    let mut options = Options { gpus: gpu.into_iter().collect(), threads: Some(1), ..Options::default() };
    options.passes.tf32 = tf32;
    Compiler::new(options).unwrap()
}

/// Every program with every element type it has, and those of f32 with products once more in tf32.
fn cases(compiler: &Compiler) -> Vec<Case> {
    let floats = [DType::F32, DType::F16, DType::BF16];
    let all = [&floats[..], &[DType::F64, DType::I32, DType::I64, DType::I8]].concat();
    let every = PROGRAMS.iter().flat_map(|p| all.iter().map(move |d| (p, *d)));
    let float = FLOAT_PROGRAMS.iter().flat_map(|p| floats.iter().map(move |d| (p, *d)));
    let wide = WIDE_PROGRAMS.iter().map(|p| (p, DType::F64, false));
    let product = |(_, _, body): &&(&str, &str, &str)| body.contains("matmul") || body.contains("conv");
    let rounded = FLOAT_PROGRAMS.iter().filter(product).map(|p| (p, DType::F32, true));
    let case = |((name, inputs, body), dtype, tf32): (&(&str, &str, &str), DType, bool)| {
        let inputs = inputs.replace('T', dtype.name());
        let body = body.replace("T[", &format!("{}[", dtype.name()));
        let text = format!("tensorc-ir 1\ngraph @main({inputs}) {{\n  {body}\n  return %y\n}}\n");
        let module = parse_module(&text, compiler.registry()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let name = format!("{name} of {}", if tf32 { "tf32" } else { dtype.name() });
        Case { name, graph: module.graphs.into_iter().next().unwrap(), tf32 }
    };
    every.chain(float).map(|(p, d)| (p, d, false)).chain(rounded).chain(wide).map(case).collect()
}

/// The kernels of a graph.
fn kernels(compiler: &Compiler, case: &Case) -> Vec<Kernel> {
    let mut options = compiler.options().passes;
    options.device = Device::Gpu;
    let mut graph = case.graph.clone();
    let mut cx = PassCx::new(compiler.registry()).with_options(options);
    Pipeline::to(Phase::Fuse).run(&mut graph, &mut cx).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let choices = Choices { style: Style::Gpu, tf32: case.tf32, ..Choices::default() };
    let lowered = lower_with(&graph, compiler.registry().math(), choices);
    lowered.unwrap_or_else(|e| panic!("{}: {e}", case.name)).kernels
}

/// Largest error of a sum or function, relative to the largest element.
fn tolerance(dtype: DType, tf32: bool) -> f64 {
    match dtype {
        DType::F32 if tf32 => 1e-3,
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        DType::F64 => 1e-12,
        _ => 2e-6,
    }
}

/// Kernels are executed as they are written, in KIR, against the reference; with LLVM also what it makes of them, in PTX, which has the
/// same bits.
#[test]
fn every_emitter_agrees_with_the_interpreter() {
    let recorder = Recorder::new(tensorc::gpu::interpreted(Place::accelerator(0)));
    let [gpu, rounding] = [false, true].map(|tf32| compiler_for(Some(recorder.clone()), tf32));
    let reference = compiler(false, false);
    let (mut compared, mut repeated, mut steps) = (0, 0, 0);
    for case in cases(&gpu) {
        let mut rng = Rng::new(compared);
        let types =
            case.graph.inputs().iter().map(|n| case.graph.dense(tensorc::ir::graph::Value { node: *n, port: 0 }));
        let inputs: Vec<TensorData> = types
            .map(|ty| {
                let ty = ty.unwrap();
                let dtype = ty.dtype;
                TensorData::from_fn(ty, |_| Scalar::from_f64(dtype, rng.below(401) as f64 / 100.0 - 2.0))
            })
            .collect();
        let expected = eval_graph(&case.graph, reference.registry(), &inputs).unwrap();
        let names: Vec<String> = case.graph.inputs().iter().map(|n| case.graph.node(*n).name.to_string()).collect();
        let given: Vec<(&str, tensorc::Tensor)> =
            names.iter().map(String::as_str).zip(inputs.iter().map(tensor)).collect();
        let compiler = if case.tf32 { &rounding } else { &gpu };
        let outputs = compiler.model(case.graph.clone()).run(&given);
        let outputs = outputs.unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for (expected, (_, found)) in expected.iter().zip(&outputs) {
            let found = data(found);
            assert_eq!(expected.ty, found.ty, "{}", case.name);
            let largest = expected.iter().map(|x| x.as_f64().abs()).fold(1e-30, f64::max);
            let allowed = if found.dtype().is_float() { tolerance(found.dtype(), case.tf32) * largest } else { 0.0 };
            for (i, (a, b)) in expected.iter().zip(found.iter()).enumerate() {
                let (a, b) = (a.as_f64(), b.as_f64());
                assert!((a - b).abs() <= allowed, "{}, element {i}: {a} expected, {b} found", case.name);
            }
        }
        let launches = recorder.take();
        if Backend::has_llvm() {
            let kernels = kernels(compiler, &case);
            let ptx = Repeated::new(&kernels, &Capability::ALL).unwrap();
            steps += launches.iter().map(|launch| ptx.check(&case.name, &kernels, launch, compared)).sum::<u64>();
            repeated += launches.len();
        }
        compared += 1;
    }
    visible(&format!("gpu: {compared} programs agree with the interpreter"));
    visible(&format!("gpu: {repeated} launches have the same bits as PTX, in {steps} instructions of threads"));
}

/// Random numbers of a GPU are those of a processor, bit by bit: a draw depends on its key and position alone.
#[test]
fn random_numbers_have_the_bits_of_a_processor() {
    let programs = [
        "random_uniform(%k) {shape = [50, 3], low = -2.0, high = 3.0}",
        "random_normal(%k) {shape = [50, 3]}",
        "random_exponential(%k) {shape = [150], lam = 2.0}",
        "random_gamma(%k) {shape = [150], alpha = 0.7, beta = 2.0}",
        "random_poisson(%k) {shape = [150], lam = 30.0}",
        "random_negative_binomial(%k) {shape = [150], k = 3, p = 0.4}",
        "bernoulli(%p, %k)",
        "multinomial(%p, %k) {sample_size = 9}",
        "dropout_mask(%p, %r, %k)",
        "shuffle(%p, %k)",
    ];
    let recorder = Recorder::new(tensorc::gpu::interpreted(Place::accelerator(0)));
    let (gpu, cpu) = (compiler_for(Some(recorder.clone()), false), compiler(false, false));
    let mut without_code = vec![];
    for program in programs {
        let text = format!(
            "tensorc-ir 1\ngraph @main(%k: u32[2], %p: f32[40, 7]) {{\n  \
             %r = const f32[] [0.25]\n  %y = {program}\n  return %y\n}}\n"
        );
        let module = parse_module(&text, gpu.registry()).unwrap_or_else(|e| panic!("{program}: {e}"));
        let graph = &module.graphs[0];
        let given = [
            TensorData::from_fn(DenseType::new(DType::U32, &[2]), |i| Scalar::from_f64(DType::U32, 77.0 + i as f64)),
            TensorData::from_fn(DenseType::new(DType::F32, &[40, 7]), |i| Scalar::f32((i % 10) as f32 / 10.0)),
        ];
        let inputs: Vec<(&str, tensorc::Tensor)> = ["k", "p"].into_iter().zip(given.iter().map(tensor)).collect();
        let run = |compiler: &Compiler| {
            compiler.model(graph.clone()).run(&inputs).unwrap_or_else(|e| panic!("{program}: {e}"))
        };
        for ((_, expected), (_, found)) in run(&cpu).iter().zip(&run(&gpu)) {
            assert_eq!(data_bits(expected), data_bits(found), "{program}");
        }
        let launches = recorder.take();
        if Backend::has_llvm() {
            let case = Case { name: program.into(), graph: graph.clone(), tf32: false };
            let kernels = kernels(&gpu, &case);
            match Repeated::new(&kernels, &Capability::ALL) {
                Ok(ptx) => assert!(launches.iter().all(|launch| ptx.check(program, &kernels, launch, 1) > 0)),
                Err(why) => without_code.push(format!("{program}: {why}")),
            }
        }
    }
    let of_f64 = |why: &String| why.contains(" on f64 has no code for a GPU");
    assert!(without_code.len() <= 4 && without_code.iter().all(of_f64), "{without_code:#?}");
}

/// Nothing that orders threads may be left out of a kernel: the interpreter of PTX finds the race, or other bits.
#[test]
fn synchronisation_that_is_left_out_is_found() {
    if !Backend::has_llvm() {
        visible("skipped: PTX needs a build with the feature `llvm`");
        return;
    }
    let recorder = Recorder::new(tensorc::gpu::interpreted(Place::accelerator(0)));
    let compiler = compiler_for(Some(recorder.clone()), false);
    let opcodes = ["bar.sync", "cp.async.commit_group", "cp.async.wait_group"];
    let names = ["transpose and more of f32", "long softmax of f32", "aligned product of f16", "column sum of f32"];
    let (mut removed, mut unseen) = (0, vec![]);
    for case in cases(&compiler).into_iter().filter(|case| names.contains(&case.name.as_str())) {
        let zeros = |n: &tensorc::ir::graph::NodeId| {
            let ty = case.graph.dense(tensorc::ir::graph::Value { node: *n, port: 0 }).unwrap();
            let mut rng = Rng::new(7);
            TensorData::from_fn(ty.clone(), |_| Scalar::from_f64(ty.dtype, rng.below(401) as f64 / 100.0 - 2.0))
        };
        let inputs: Vec<TensorData> = case.graph.inputs().iter().map(zeros).collect();
        let names: Vec<String> = case.graph.inputs().iter().map(|n| case.graph.node(*n).name.to_string()).collect();
        let given: Vec<(&str, tensorc::Tensor)> =
            names.iter().map(String::as_str).zip(inputs.iter().map(tensor)).collect();
        compiler.model(case.graph.clone()).run(&given).unwrap();
        let kernels = kernels(&compiler, &case);
        for launch in recorder.take() {
            let (left, count) = unnoticed(&kernels, Capability::Sm80, &launch, &opcodes);
            removed += count;
            unseen.extend(left.into_iter().map(|line| format!("{}, {}: {line}", case.name, launch.entry.name)));
        }
    }
    assert!(unseen.is_empty() && removed >= 8, "{unseen:#?} of {removed}");
}

fn data_bits(t: &tensorc::Tensor) -> Vec<u64> {
    data(t).iter().map(|x| x.bits).collect()
}

/// The assembler; `None`, after a visible line, where it cannot be had.
pub fn ptxas() -> Option<PathBuf> {
    const PACKAGE: Package = Package {
        spec: "nvidia-cuda-nvcc==13.0.88",
        options: &["--only-binary=:all:", "--platform=manylinux2014_x86_64"],
        sha256: "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03",
    };
    tool("ptxas", PACKAGE)
}

/// A program of NVIDIA's from a package; `None`, after a visible line, where it cannot be had.
pub fn tool(name: &str, package: Package) -> Option<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        visible(&format!("skipped: {name} is for x86-64 Linux"));
        return None;
    }
    let version = package.spec.split("==").last().unwrap_or_default();
    let place = folder().join(format!("{name}-{version}"));
    if !place.exists() {
        let bytes = member(&fetch(package)?, &format!("nvidia/cu13/bin/{name}")).unwrap();
        let part = folder().join(format!("{name}.part-{}", std::process::id()));
        fs::write(&part, &bytes).unwrap();
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&part, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&part, &place).unwrap();
    }
    Some(place)
}

#[test]
fn the_assembler_takes_every_kernel() {
    if !Backend::has_llvm() {
        visible("skipped: PTX needs a build with the feature `llvm`");
        return;
    }
    let Some(ptxas) = ptxas() else { return };
    let compiler = compiler(true, false);
    // Of the kernel that sorts, which an operator brings along, the assembler keeps 32 registers and spills a few bytes.
    let cases: Vec<Case> = cases(&compiler).into_iter().filter(|case| !case.name.starts_with("sorted rows")).collect();
    let all: Vec<Kernel> = cases.iter().flat_map(|case| kernels(&compiler, case)).collect();
    // Sums of heads of more than 128 elements take more.
    let wide = cases.iter().filter(|case| case.name.contains("very wide") || case.name.contains("different widths"));
    let wide = wide.count();
    let scratch = tempfile::tempdir().unwrap();
    for capability in Capability::ALL {
        let text = tensorc::gpu::ptx(&all, capability).unwrap_or_else(|e| panic!("{e}"));
        let file = scratch.path().join("kernels.ptx");
        fs::write(&file, &text).unwrap();
        let output = Command::new(&ptxas)
            .args(["-v", &format!("-arch={}", capability.processor()), "-o"])
            .arg(scratch.path().join("kernels.cubin"))
            .arg(&file)
            .output()
            .unwrap();
        let report = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{report}");
        let spilling = report.lines().filter(|l| l.contains("spill stores") && !l.contains(" 0 bytes spill stores"));
        assert_eq!(spilling.count(), 0, "registers are spilled:\n{report}");
        let registers = report.lines().filter_map(|l| l.split("Used ").nth(1)?.split(' ').next()?.parse::<u32>().ok());
        let registers: Vec<u32> = registers.collect();
        assert_eq!(registers.len(), all.len(), "a report for every kernel:\n{report}");
        let most = registers.iter().max().copied().unwrap_or(0);
        // Three blocks of 128 threads, which is what kernels with so many have.
        let more: Vec<u32> = registers.into_iter().filter(|n| *n > 168).collect();
        assert!(more.len() <= wide, "{more:?} registers");
        let name = capability.processor();
        visible(&format!("gpu: {} kernels for {name}: no spills, {most} registers at most", all.len()));
    }
}

#[test]
fn a_gpu_that_is_not_there_is_an_error() {
    let error = tensorc::gpu::cuda(999).map(drop).unwrap_err().to_string();
    let known = ["this build has no driver for CUDA", "no CUDA driver is installed here", "numbered from 0"];
    assert!(error.starts_with("gpu:999: ") && known.iter().any(|text| error.contains(text)), "{error}");
}
