//! Contractions by libraries of a GPU's maker: what goes to them, and that everything around them is as for kernels.
//!
//! Here the libraries' part is done by plain sums of the process; `cuda` has them called as on a GPU.

mod cuda;
mod nccl;

use std::sync::Arc;

use tensorc::abi::{StepOp, VendorContraction};
use tensorc::ir::graph::Graph;
use tensorc::ir::interp::eval_graph;
use tensorc::runtime::gpu::Driver;
use tensorc::runtime::{Device, TensorMut, TensorRef};
use tensorc::{Compiler, DType, Options, VendorLibraries};
use tensorc_ir::TensorData;
use tensorc_nd::{Runtime, RuntimeOptions};

use tensorc_tests::corpus;
use tensorc_tests::corpus::libraries::PROGRAMS;

const GPU: Device = Device::accelerator(0);
const ALL: VendorLibraries = VendorLibraries { products: true, convolutions: true };

fn graph(compiler: &Compiler, inputs: &str, body: &str, dtype: DType) -> Graph {
    corpus::graph(compiler.registry(), inputs, body, dtype)
}

fn compiler(gpu: Arc<dyn Driver>, gpu_libraries: VendorLibraries, tf32: bool) -> Compiler {
    let mut options = Options { gpus: vec![gpu], gpu_libraries, threads: Some(1), ..Options::default() };
    options.passes.tf32 = tf32;
    Compiler::new(options).unwrap()
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
    let values = corpus::inputs(graph, name.len() as u64);
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
    let gpu = compiler(tensorc_simulator::interpreted(GPU), ALL, false);
    for (name, inputs, body, expected) in &PROGRAMS {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let graph = graph(&gpu, inputs, body, dtype);
            agrees(&gpu, &format!("{name} of {}", dtype.name()), &graph, *expected, tolerance(dtype));
        }
        // Other types stay with kernels.
        let session_of = |dtype| {
            let graph = graph(&gpu, inputs, body, dtype);
            let values = corpus::inputs(&graph, 1);
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
        let libraries = VendorLibraries::from_name(name).unwrap();
        let gpu = compiler(tensorc_simulator::interpreted(GPU), libraries, false);
        agrees(&gpu, name, &graph(&gpu, inputs, body, DType::F32), expected, 2e-6);
    }
    assert_eq!(VendorLibraries::from_name("mkl"), None);
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
    let gpu = Options { gpus: vec![tensorc_simulator::interpreted(GPU)], gpu_libraries: ALL, ..Options::default() };
    assert_eq!(run(gpu, GPU), run(Options::default(), Device::cpu(0)), "small integers are exact");
}

/// An artifact is linked with no library.
#[test]
fn artifacts_refuse_libraries() {
    let gpu = compiler(tensorc_simulator::interpreted(GPU), ALL, false);
    let graph = graph(&gpu, "%x: T[16, 16], %w: T[16, 16]", "%y = matmul(%x, %w)", DType::F32);
    let capability = tensorc::schedule::target::Capability::Sm80;
    let request = tensorc::aot::AotRequest {
        gpu: Some(tensorc::aot::gpu::GpuTarget { capability, assembler: None }),
        ..crate::aot::request("net", "native")
    };
    let refused = tensorc::aot::compile(&gpu.model(graph), &request).map(drop).unwrap_err().to_string();
    assert!(refused.contains("is a call of cuBLASLt, which an artifact does not link"), "{refused}");
}
