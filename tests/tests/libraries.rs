//! Contractions by libraries of a GPU's maker: what goes to them, and that everything around them is as for kernels.
//!
//! Here the libraries' part is done by plain sums of the process; `cuda` has them called as on a GPU.

mod cuda;
mod nccl;

use std::sync::Arc;

use tensorc::abi::{StepOp, VendorContraction};
use tensorc::ir::graph::{Graph, Value};
use tensorc::ir::interp::eval_graph;
use tensorc::ir::text::parse_module;
use tensorc::ndarray::{Runtime, RuntimeOptions};
use tensorc::runtime::gpu::Driver;
use tensorc::runtime::{Device, TensorMut, TensorRef};
use tensorc::{Compiler, DType, GpuLibraries, Options};
use tensorc_ir::TensorData;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::testing::Rng;

use crate::support::cache::visible;
use crate::support::compare::{data, tensor};

const GPU: Device = Device::accelerator(0);
const ALL: GpuLibraries = GpuLibraries { products: true, convolutions: true };

/// Inputs and body of a graph, `T` for an element type; products and convolutions by libraries.
const PROGRAMS: [(&str, &str, &str, [usize; 2]); 19] = [
    ("product", "%x: T[37, 29], %w: T[29, 45]", "%y = matmul(%x, %w)", [1, 0]),
    (
        "layer",
        "%x: T[40, 64], %w: T[80, 64], %b: T[80]",
        "%t = transpose(%w) {perm = [1, 0]} %p = matmul(%x, %t) %s = add(%p, %b) %y = gelu(%s)",
        [1, 0],
    ),
    ("bias", "%x: T[2, 9, 40], %w: T[40, 24], %b: T[24]", "%p = matmul(%x, %w) %y = add(%b, %p)", [1, 0]),
    ("bias of rows", "%x: T[24, 40], %w: T[40, 24], %b: T[24, 1]", "%p = matmul(%x, %w) %y = add(%p, %b)", [1, 0]),
    (
        "columns",
        "%x: T[72, 36], %w: T[20, 72]",
        "%t = transpose(%x) {perm = [1, 0]} %v = transpose(%w) {perm = [1, 0]} %y = matmul(%t, %v)",
        [1, 0],
    ),
    (
        "heads",
        "%x: T[2, 4, 24, 32], %z: T[2, 4, 40, 32]",
        "%t = transpose(%z) {perm = [0, 1, 3, 2]} %y = matmul(%x, %t)",
        [1, 0],
    ),
    (
        "heads side by side",
        "%x: T[2, 20, 4, 16], %z: T[2, 4, 16, 24]",
        "%t = transpose(%x) {perm = [0, 2, 1, 3]} %y = matmul(%t, %z)",
        [1, 0],
    ),
    ("residual", "%x: T[33, 48], %w: T[48, 17], %r: T[33, 17]", "%p = matmul(%x, %w) %y = add(%p, %r)", [1, 0]),
    (
        "transposed result",
        "%x: T[34, 40], %w: T[40, 24]",
        "%p = matmul(%x, %w) %y = transpose(%p) {perm = [1, 0]}",
        [1, 0],
    ),
    ("one row", "%x: T[1, 65], %w: T[65, 70]", "%y = matmul(%x, %w)", [1, 0]),
    ("one column", "%x: T[33, 40], %w: T[40, 1]", "%y = matmul(%x, %w)", [1, 0]),
    ("product and softmax", "%x: T[20, 16], %w: T[16, 40]", "%p = matmul(%x, %w) %y = softmax(%p)", [1, 0]),
    (
        "side by side",
        "%x: T[20, 16], %w: T[16, 40], %v: T[16, 24]",
        "%p = matmul(%x, %w) %q = matmul(%x, %v) %y = concat(%p, %q) {axis = 1}",
        [2, 0],
    ),
    (
        "convolution",
        "%x: T[2, 6, 9, 10], %w: T[24, 6, 3, 3], %b: T[24]",
        "%c = conv(%x, %w, %b) {pads = [1, 1, 1, 1]} %y = relu(%c)",
        [0, 1],
    ),
    (
        "grouped convolution",
        "%x: T[2, 6, 11, 9], %w: T[8, 3, 3, 2]",
        "%y = conv(%x, %w) {pads = [2, 1, 2, 1], strides = [2, 1], dilations = [2, 2], group = 2}",
        [0, 1],
    ),
    ("padded behind", "%x: T[1, 3, 8, 8], %w: T[4, 3, 3, 3]", "%y = conv(%x, %w) {pads = [0, 0, 1, 1]}", [0, 0]),
    ("along a line", "%x: T[2, 5, 30], %w: T[7, 5, 3]", "%y = conv(%x, %w) {pads = [1, 1]}", [0, 1]),
    ("of one pixel", "%x: T[2, 6, 5, 7], %w: T[8, 6, 1, 1]", "%y = conv(%x, %w)", [0, 1]),
    (
        "attention",
        "%q: T[2, 3, 37, 24], %k: T[2, 3, 24, 70], %v: T[2, 3, 70, 20]",
        "%s = matmul(%q, %k) %p = softmax(%s) %y = matmul(%p, %v)",
        [0, 0],
    ),
];

fn graph(compiler: &Compiler, inputs: &str, body: &str, dtype: DType) -> Graph {
    let (inputs, body) = (inputs.replace('T', dtype.name()), body.replace("T[", &format!("{}[", dtype.name())));
    let text = format!("tensorc-ir 1\ngraph @main({inputs}) {{\n  {body}\n  return %y\n}}\n");
    let module = parse_module(&text, compiler.registry()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    module.graphs.into_iter().next().unwrap()
}

fn compiler(gpu: Arc<dyn Driver>, gpu_libraries: GpuLibraries, tf32: bool) -> Compiler {
    let mut options = Options { gpus: vec![gpu], gpu_libraries, threads: Some(1), ..Options::default() };
    options.passes.tf32 = tf32;
    Compiler::new(options).unwrap()
}

fn inputs(graph: &Graph, seed: u64) -> Vec<TensorData> {
    let mut rng = Rng::new(seed);
    let types = graph.inputs().iter().map(|n| graph.dense(Value { node: *n, port: 0 }).unwrap());
    let number = |dtype, rng: &mut Rng| Scalar::from_f64(dtype, rng.below(401) as f64 / 100.0 - 2.0);
    types.map(|ty| TensorData::from_fn(ty.clone(), |_| number(ty.dtype, &mut rng))).collect()
}

/// Products and convolutions of a plan that libraries compute.
fn calls(steps: &[tensorc::abi::Step]) -> [usize; 2] {
    let mut counts = [0; 2];
    for step in steps {
        if let StepOp::Vendor { call, .. } = &step.op {
            counts[usize::from(matches!(call.contraction, VendorContraction::Convolution(_)))] += 1;
        }
    }
    counts
}

/// Runs a graph several times, so that it is recorded and replayed, and compares each result with the reference.
fn agrees(compiler: &Compiler, name: &str, graph: &Graph, expected_calls: [usize; 2], tolerance: f64) {
    let values = inputs(graph, name.len() as u64);
    let expected = eval_graph(graph, compiler.registry(), &values).unwrap().swap_remove(0);
    let session = compiler.model(graph.clone()).compile(&types(&values));
    let mut session = session.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(calls(&session.plan().steps), expected_calls, "{name}");
    let given: Vec<TensorRef<'_>> = values.iter().map(|v| TensorRef::new(v.dtype(), v.dims(), v.bytes())).collect();
    let mut bytes = vec![0xff; expected.bytes().len()];
    let largest = expected.iter().map(|x| x.as_f64().abs()).fold(1e-30, f64::max);
    for run in 0..5 {
        bytes.fill(0xff);
        let mut outputs = [TensorMut::new(expected.dtype(), expected.dims(), &mut bytes)];
        session.run_into(&given, &mut outputs).unwrap_or_else(|e| panic!("{name}: {e}"));
        let found = TensorData::new(expected.ty.clone(), bytes.clone().into()).unwrap();
        for (i, (a, b)) in expected.iter().zip(found.iter()).enumerate() {
            let (a, b) = (a.as_f64(), b.as_f64());
            assert!((a - b).abs() <= tolerance * largest, "{name}, run {run}, element {i}: {a} expected, {b} found");
        }
    }
}

fn types(values: &[TensorData]) -> Vec<tensorc_ir::DenseType> {
    values.iter().map(|v| v.ty.clone()).collect()
}

/// Largest error relative to the largest element.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 3e-3,
        DType::BF16 => 2e-2,
        _ => 2e-6,
    }
}

#[test]
fn libraries_compute_what_they_can() {
    let gpu = compiler(tensorc::gpu::interpreted(GPU), ALL, false);
    for (name, inputs, body, expected) in &PROGRAMS {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let graph = graph(&gpu, inputs, body, dtype);
            agrees(&gpu, &format!("{name} of {}", dtype.name()), &graph, *expected, tolerance(dtype));
        }
        // Other types stay with kernels.
        let session_of = |dtype| {
            let graph = graph(&gpu, inputs, body, dtype);
            let values = self::inputs(&graph, 1);
            gpu.model(graph).compile(&types(&values)).unwrap()
        };
        if !body.contains("gelu") && !body.contains("softmax") {
            assert_eq!(calls(&session_of(DType::F64).plan().steps), [0, 0], "{name} of f64");
        }
    }
}

/// Each library alone takes its own contractions; without options there are kernels only.
#[test]
fn libraries_are_chosen() {
    let body = "%c = conv(%x, %f) %n = const i64[2] [2, 180] %r = reshape(%c, %n) %y = matmul(%r, %w)";
    let inputs = "%x: T[2, 4, 7, 8], %f: T[6, 4, 3, 3], %w: T[180, 10]";
    for (name, expected) in [("none", [0, 0]), ("cublaslt", [1, 0]), ("cudnn", [0, 1]), ("all", [1, 1])] {
        let libraries = GpuLibraries::from_name(name).unwrap();
        let gpu = compiler(tensorc::gpu::interpreted(GPU), libraries, false);
        agrees(&gpu, name, &graph(&gpu, inputs, body, DType::F32), expected, 2e-6);
    }
    assert_eq!(GpuLibraries::from_name("mkl"), None);
}

/// Arrays on the device go through the engine, and so do library calls in their operations.
#[test]
fn arrays_use_libraries() {
    let run = |options: Options, device: Device| {
        let compiler = Compiler::new(options).unwrap();
        let here = RuntimeOptions { device, ..RuntimeOptions::default() };
        let rt = Runtime::with_compiler(compiler, here).unwrap();
        let a = rt.array(&[12, 20], &(0..240).map(|i| (i % 7) as f32 - 3.0).collect::<Vec<_>>()).unwrap();
        let b = rt.array(&[20, 16], &(0..320).map(|i| (i % 5) as f32 - 2.0).collect::<Vec<_>>()).unwrap();
        let p = a.matmul(&b).unwrap();
        let q = p.matmul(&b.transpose(&[1, 0]).unwrap()).unwrap();
        (&q + &a).unwrap().to_vec::<f32>().unwrap()
    };
    let gpu = Options { gpus: vec![tensorc::gpu::interpreted(GPU)], gpu_libraries: ALL, ..Options::default() };
    assert_eq!(run(gpu, GPU), run(Options::default(), Device::cpu(0)), "small integers are exact");
}

/// An artifact is linked with no library.
#[test]
fn artifacts_refuse_libraries() {
    let gpu = compiler(tensorc::gpu::interpreted(GPU), ALL, false);
    let graph = graph(&gpu, "%x: T[16, 16], %w: T[16, 16]", "%y = matmul(%x, %w)", DType::F32);
    let capability = tensorc_codegen::target::Capability::Sm80;
    let request = tensorc::aot::Request {
        gpu: Some(tensorc::aot::gpu::Gpu { capability, assembler: None }),
        ..crate::aot::request("net", "native")
    };
    let refused = tensorc::aot::compile(&gpu.model(graph), &request).map(drop).unwrap_err().to_string();
    assert!(refused.contains("is a call of cuBLASLt, which an artifact does not link"), "{refused}");
}

/// Where there is a GPU, its libraries are an oracle of our kernels; elsewhere this says that it was skipped.
#[test]
fn kernels_agree_with_the_libraries_of_a_gpu() {
    let driver = match tensorc::gpu::cuda(0) {
        Ok(driver) => driver,
        Err(error) => return visible(&format!("libraries: skipped, {error}")),
    };
    for (name, inputs, body, _) in PROGRAMS.iter().filter(|(_, _, _, calls)| *calls != [0, 0]) {
        for (dtype, tf32) in [(DType::F32, false), (DType::F32, true), (DType::F16, false), (DType::BF16, false)] {
            let [own, library] = [GpuLibraries::default(), ALL].map(|chosen| {
                let compiler = compiler(driver.clone(), chosen, tf32);
                let graph = graph(&compiler, inputs, body, dtype);
                let values = self::inputs(&graph, 7);
                let names: Vec<String> = graph.inputs().iter().map(|n| graph.node(*n).name.to_string()).collect();
                let given: Vec<(&str, tensorc::Tensor)> =
                    names.iter().map(String::as_str).zip(values.iter().map(tensor)).collect();
                let outputs = compiler.model(graph).run(&given).unwrap_or_else(|e| panic!("{name}: {e}"));
                data(&outputs[0].1)
            });
            let largest = library.iter().map(|x| x.as_f64().abs()).fold(1e-30, f64::max);
            let allowed = if tf32 { 2e-3 } else { 2.0 * tolerance(dtype) } * largest;
            for (i, (a, b)) in library.iter().zip(own.iter()).enumerate() {
                let (a, b) = (a.as_f64(), b.as_f64());
                assert!((a - b).abs() <= allowed, "{name} of {}, element {i}: {a} and {b}", dtype.name());
            }
        }
    }
    visible(&format!("libraries: {} programs agree with those of {}", PROGRAMS.len(), driver.name()));
}
