//! The libraries and CUDA's driver called as on a GPU, where there is none: imaginary ones are in their
//! places, and kernels are executed by the interpreter.
//!
//! Libraries are found by their names, so that a test starts its own program once more, with a path to the imaginary ones.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use tensorc::ir::graph::Graph;
use tensorc::ir::kir::Kernel;
use tensorc::passes::{CompilePhase, PassCx, Pipeline};
use tensorc::runtime::{Device, TensorMut, TensorRef};
use tensorc::{Backend, Compiler, DType, Options, VendorLibraries};
use tensorc_codegen::lower::lower_with;
use tensorc_codegen::ptx::entry_names;
use tensorc_nd::{Runtime, RuntimeOptions, Slice};
use tensorc_simulator::run_launch;
use tensorc_tests::cache::visible;
use tensorc_tests::corpus::inputs;
use tensorc_tests::corpus::libraries::PROGRAMS;
use tensorc_tests::imaginary::{VARIABLE, build, call_driver, can_build, folder, of_driver, take_away};

use super::{ALL, agrees, compiler, graph, tolerance, types};

/// Kernels of the process by the names that they have for the driver.
static KERNELS: Mutex<BTreeMap<String, Kernel>> = Mutex::new(BTreeMap::new());

fn kernel(name: *const c_char) -> Option<Kernel> {
    // SAFETY: the driver gives the text of a name.
    let name = unsafe { CStr::from_ptr(name) }.to_str().ok()?;
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
}

extern "C" fn arguments(name: *const c_char) -> c_int {
    kernel(name).map_or(-1, |kernel| kernel.params as c_int)
}

/// Executes a kernel on copies of its buffers, and writes what it changed.
extern "C" fn execute(name: *const c_char, addresses: *const *mut c_void) -> c_int {
    let Some(kernel) = kernel(name) else { return 1 };
    let places: Vec<(*mut u8, usize, bool)> = kernel.buffers[..kernel.params]
        .iter()
        .enumerate()
        // SAFETY: the driver gives as many addresses as the kernel has parameters.
        .map(|(i, b)| (unsafe { *addresses.add(i) }.cast(), b.elements() as usize * b.dtype.size(), b.writable))
        .collect();
    // SAFETY: the memory of the imaginary device is the host's, and buffers are as large as the plan's verifier says.
    let copy = |(at, bytes, _): &(*mut u8, usize, bool)| unsafe { std::slice::from_raw_parts(*at, *bytes) }.to_vec();
    let before: Vec<Vec<u8>> = places.iter().map(copy).collect();
    let mut after = before.clone();
    if let Err(error) = run_launch(&kernel, &mut after) {
        eprintln!("{}: {error}", kernel.name);
        return 1;
    }
    for ((at, _, writes), (before, after)) in places.into_iter().zip(before.iter().zip(&after)) {
        let changed = (0..after.len()).filter(|i| writes && before[*i] != after[*i]);
        // SAFETY: as above.
        changed.for_each(|i| unsafe { *at.add(i) = after[i] });
    }
    0
}

/// Runs a test of this program once more, with imaginary libraries of a GPU; true in that run.
pub(super) fn imaginary(test: &str, capability: (u32, u32)) -> bool {
    if folder().is_some() {
        return true;
    }
    let built = tensorc::gpu::cuda(0).map_or_else(|e| !e.to_string().contains("this build has no driver"), |_| true);
    if !Backend::has_llvm() || !built || !can_build() {
        visible(
            "libraries: skipped, the calls of CUDA's libraries need a build with the feature `cuda` and the C compiler `cc`",
        );
        return false;
    }
    let dir = tempfile::tempdir().unwrap();
    build(dir.path(), capability);
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([&format!("libraries::{test}"), "--exact", "--nocapture", "--test-threads=1"]);
    let output = again.env("LD_LIBRARY_PATH", dir.path()).env(VARIABLE, dir.path()).output().unwrap();
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{told}");
    // The contexts of all drivers are left, and nothing in them.
    assert!(said.contains("imaginary: 0 blocks, 0 handles left"), "{said}");
    assert!(!said.lines().any(|line| line.contains("left") && !line.contains("0 blocks, 0 handles left")), "{said}");
    false
}

/// Gives the driver functions for kernels.
fn connect() {
    type Arguments = extern "C" fn(*const c_char) -> c_int;
    type Execute = extern "C" fn(*const c_char, *const *mut c_void) -> c_int;
    // SAFETY: the function has this type.
    let set = unsafe { of_driver::<extern "C" fn(Arguments, Execute)>(b"imaginary_kernels") };
    set(arguments, execute);
}

/// Makes the kernels of a graph known to the driver.
fn announce(compiler: &Compiler, graph: &Graph) {
    let mut graph = graph.clone();
    let mut cx = PassCx::new(compiler.registry()).with_options(compiler.options().passes.clone());
    Pipeline::to(CompilePhase::Fuse).run(&mut graph, &mut cx).unwrap();
    let kernels = lower_with(&graph, compiler.registry().math(), compiler.choices(), 1).unwrap().kernels;
    let mut known = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
    known.clear();
    known.extend(entry_names(&kernels).into_iter().zip(kernels));
}

#[test]
fn libraries_are_called_as_they_take_calls() {
    if !imaginary("cuda::libraries_are_called_as_they_take_calls", (8, 0)) {
        return;
    }
    connect();
    let driver = tensorc::gpu::cuda(0).unwrap();
    assert_eq!(driver.name(), "Imaginary 7");
    for (dtype, tf32) in [(DType::F32, false), (DType::F32, true), (DType::F16, false), (DType::BF16, false)] {
        let gpu = compiler(driver.clone(), ALL, tf32);
        for (name, inputs, body, expected) in &PROGRAMS {
            let graph = graph(&gpu, inputs, body, dtype);
            announce(&gpu, &graph);
            let allowed = if tf32 { 3e-3 } else { tolerance(dtype) };
            agrees(&gpu, name, &graph, *expected, allowed);
        }
    }
    // What a library refuses is an error of loading that names the step.
    let refused = |inputs: &str, body: &str| {
        let gpu = compiler(driver.clone(), ALL, false);
        let graph = graph(&gpu, inputs, body, DType::F16);
        let types = types(&self::inputs(&graph, 1));
        gpu.model(graph).compile(&types).map(drop).unwrap_err().to_string()
    };
    assert_eq!(
        refused("%x: T[20, 13], %w: T[13, 20]", "%y = matmul(%x, %w)"),
        "gpu:0: `y by cuBLASLt`: cuBLASLt has no algorithm for the product (CUBLAS_STATUS_NOT_SUPPORTED)"
    );
    let convolution = refused("%x: T[1, 2, 20, 20], %w: T[3, 2, 13, 3]", "%y = conv(%x, %w)");
    let why = "gpu:0: `y by cuDNN`: cuDNN has no algorithm for the convolution with ";
    assert!(convolution.starts_with(why), "{convolution}");
}

/// Everything of the driver's, without libraries: kernels with matrices of the copy engine too.
#[test]
fn kernels_are_launched_by_the_driver() {
    if !imaginary("cuda::kernels_are_launched_by_the_driver", (9, 0)) {
        return;
    }
    connect();
    let (driver, folder) = (tensorc::gpu::cuda(0).unwrap(), tempfile::tempdir().unwrap());
    // As a process of its own would begin.
    let process = || {
        let code_cache = Some(folder.path().to_owned());
        Compiler::new(Options { gpus: vec![driver.clone()], code_cache, threads: Some(2), ..Options::default() })
            .unwrap()
    };
    let kept = || std::fs::read_dir(folder.path()).unwrap().count();
    let layer = ("%x: T[70, 136], %w: T[136, 72], %b: T[72]", "%p = matmul(%x, %w) %s = add(%p, %b) %y = softmax(%s)");
    for (inputs, body) in [layer, ("%x: T[9, 70]", "%t = transpose(%x) {perm = [1, 0]} %y = softmax(%t)")] {
        let gpu = process();
        let graph = graph(&gpu, inputs, body, DType::BF16);
        announce(&gpu, &graph);
        agrees(&gpu, body, &graph, [0, 0], tolerance(DType::BF16));
        let before = kept();
        assert!(before > 0, "PTX is kept");
        agrees(&process(), body, &graph, [0, 0], tolerance(DType::BF16));
        assert_eq!(kept(), before, "and found again");
    }
}

/// Arrays, without a kernel: copies on three streams, ordered by events, of rows too.
#[test]
fn slices_of_arrays_are_copies_of_rows() {
    if !imaginary("cuda::slices_of_arrays_are_copies_of_rows", (8, 0)) {
        return;
    }
    connect();
    let gpu = compiler(tensorc::gpu::cuda(0).unwrap(), VendorLibraries::default(), false);
    let options = RuntimeOptions { device: Device::accelerator(0), ..RuntimeOptions::default() };
    let rt = Runtime::with_compiler(gpu, options).unwrap();
    let x = rt.array(&[4, 6], &(0..24).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    let part = x.slice(&[Slice::from(1..4).step(2), Slice::from(2..5)]).unwrap();
    x.set(&[Slice::ALL, Slice::from(1..).step(2)], -1.0).unwrap();
    x.set(&[Slice::from(..2), Slice::from(..3)], &part).unwrap();
    let there = part.copy_to(Device::cpu(0)).unwrap();
    assert_eq!(there.to_vec::<f32>().unwrap(), [8.0, 9.0, 10.0, 20.0, 21.0, 22.0]);
    let rows = [[8.0, 9.0, 10.0, -1.0, 4.0, -1.0], [20.0, 21.0, 22.0, -1.0, 10.0, -1.0]];
    let rest = [[12.0, -1.0, 14.0, -1.0, 16.0, -1.0], [18.0, -1.0, 20.0, -1.0, 22.0, -1.0]];
    assert_eq!(x.to_vec::<f32>().unwrap(), [rows, rest].concat().concat());
}

/// Two GPUs: copies between their memories on streams of the one that gets them, ordered behind what the other one does.
#[test]
fn gpus_copy_from_each_other() {
    if !imaginary("cuda::gpus_copy_from_each_other", (8, 0)) {
        return;
    }
    connect();
    let gpus = (0..2).map(|id| tensorc::gpu::cuda(id).unwrap()).collect();
    let compiler = Compiler::new(Options { gpus, threads: Some(1), ..Options::default() }).unwrap();
    let [first, second] = [0, 1].map(Device::accelerator);
    let rt = Runtime::with_compiler(compiler, RuntimeOptions { device: first, ..RuntimeOptions::default() }).unwrap();
    let x = rt.array(&[4, 6], &(0..24).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    for round in 0..4u8 {
        let there = x.copy_to(second).unwrap();
        there.row(1).unwrap().fill(f64::from(round)).unwrap();
        let back = there.copy_to(first).unwrap();
        back.rows(1, 2).unwrap().copy_into(&x.rows(3, 4).unwrap()).unwrap();
        there.rows(0, 1).unwrap().copy_into(&x.rows(2, 3).unwrap()).unwrap();
        let row = |i: u8| (0..6).map(move |k| f32::from(i * 6 + k));
        let expected: Vec<f32> = row(0).chain(row(1)).chain(row(0)).chain([f32::from(round); 6]).collect();
        assert_eq!(x.to_vec::<f32>().unwrap(), expected);
        assert_eq!(there.to_vec::<f32>().unwrap()[6..12], [f32::from(round); 6]);
    }
    assert!(tensorc::gpu::cuda(2).unwrap_err().to_string().contains("there are 2 GPUs here"));
}

/// A run that is refused in the middle ends when what it had begun has ended: until then the device reads the caller's memory.
#[test]
fn a_run_that_fails_waits_for_what_it_began() {
    if !imaginary("cuda::a_run_that_fails_waits_for_what_it_began", (8, 0)) {
        return;
    }
    connect();
    let hold = |on| call_driver("imaginary_hold", on);
    let gpu = compiler(tensorc::gpu::cuda(0).unwrap(), VendorLibraries::default(), false);
    let graph = graph(&gpu, "%x: T[64, 64]", "%y = softmax(%x)", DType::F32);
    let values = inputs(&graph, 1);
    let mut session = gpu.model(graph).compile(&types(&values)).unwrap();
    hold(1);
    let (ended, ends) = std::sync::mpsc::channel();
    let run = std::thread::spawn(move || {
        let given = [TensorRef::new(values[0].dtype(), values[0].dims(), values[0].bytes())];
        let mut bytes = vec![0; values[0].bytes().len()];
        let mut outputs = [TensorMut::new(values[0].dtype(), values[0].dims(), &mut bytes)];
        // The driver knows of no kernel.
        ended.send(session.run_into(&given, &mut outputs).unwrap_err().to_string()).unwrap();
    });
    let early = ends.recv_timeout(std::time::Duration::from_millis(300));
    assert!(early.is_err(), "the copy of the input is under way: {early:?}");
    hold(0);
    let error = ends.recv().unwrap();
    run.join().unwrap();
    assert!(error.contains("named symbol not found"), "{error}");
}

/// A driver without libraries: the error says which one is missing.
#[test]
fn a_library_that_is_missing_is_an_error() {
    if !imaginary("cuda::a_library_that_is_missing_is_an_error", (8, 0)) {
        return;
    }
    ["libcublasLt.so", "libcudnn.so"].into_iter().for_each(take_away);
    let gpu = compiler(tensorc::gpu::cuda(0).unwrap(), ALL, false);
    let refused = |inputs: &str, body: &str| {
        let graph = graph(&gpu, inputs, body, DType::F32);
        let types = types(&self::inputs(&graph, 1));
        gpu.model(graph).compile(&types).map(drop).unwrap_err().to_string()
    };
    assert_eq!(
        refused("%x: T[20, 16], %w: T[16, 20]", "%y = matmul(%x, %w)"),
        "gpu:0: `y by cuBLASLt`: cuBLASLt is not installed here (libcublasLt.so was not found)"
    );
    assert_eq!(
        refused("%x: T[1, 2, 9, 9], %w: T[3, 2, 3, 3]", "%y = conv(%x, %w)"),
        "gpu:0: `y by cuDNN`: cuDNN is not installed here (libcudnn.so was not found)"
    );
}
