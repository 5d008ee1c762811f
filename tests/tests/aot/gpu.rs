//! Models whose kernels run on a GPU, on a driver that is none: `driver.c` has their launches executed by the interpreter in
//! this process.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use tensorc::aot::gpu::Gpu;
use tensorc::aot::link::{Product, Tools, link};
use tensorc::aot::{self, Artifact, Request};
use tensorc::ir::interp::run_launch;
use tensorc::ir::kir::Kernel;
use tensorc::runtime::artifact::{Artifact as Loaded, ArtifactError, GpuOptions, LoadOptions, Manifest};
use tensorc::runtime::{Device, Pool, TensorMut, TensorRef};
use tensorc::{Backend, Compiler, DType, Model, Options};
use tensorc_abi::artifact::status;
use tensorc_codegen::target::Capability;

use super::programs::{prepared, run_example};
use super::{checked, exists, expected, images, request, text};
use crate::support::cache::visible;
use crate::support::examples;

/// Errors of CUDA's driver.
const NO_BINARY: i32 = 209;
const OUT_OF_MEMORY: i32 = 2;
const OUT_OF_RESOURCES: i32 = 701;
const LAUNCH_FAILED: i32 = 719;

/// What the process behind a driver knows, and is to do wrong.
#[derive(Default)]
struct State {
    kernels: BTreeMap<String, Kernel>,
    /// What it was told: loaded code, memory that was asked for, what was left at the end.
    told: Vec<String>,
    /// Answers to what it is told, by its text.
    refused: BTreeMap<String, i32>,
    /// Kernels whose execution fails, and how.
    failing: BTreeMap<String, i32>,
}

/// A driver of GPUs that are none.
struct Imaginary {
    dir: tempfile::TempDir,
    state: Arc<Mutex<State>>,
}

impl Imaginary {
    /// A driver for GPUs of a compute capability that can execute the kernels of a model.
    fn new(artifact: &Artifact, (major, minor): (u32, u32)) -> Imaginary {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let kernels = artifact.module.kernels.iter().map(|k| (k.name.clone(), k.clone())).collect();
        let state = Arc::new(Mutex::new(State { kernels, ..State::default() }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = shared.clone();
                // A connection ends with the process that has the driver.
                std::thread::spawn(move || while serve(stream.as_ref().unwrap(), &shared).is_some() {});
            }
        });
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Wextra", "-Werror", "-std=gnu11", "-O1", "-shared", "-fPIC"]);
        cc.arg(format!("-DSOCKET=\"{}\"", text(&dir.path().join("socket"))));
        cc.args([format!("-DMAJOR={major}"), format!("-DMINOR={minor}"), "-DGPUS=1".into()]);
        cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/aot/driver.c"));
        checked(cc.arg("-o").arg(dir.path().join("libcuda.so.1")).arg("-lpthread"));
        Imaginary { dir, state }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("libcuda.so.1")
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it was told, from now on again.
    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.state().told)
    }

    fn options(&self) -> LoadOptions {
        let gpu = GpuOptions { driver: Some(self.path()), ..GpuOptions::default() };
        LoadOptions { gpu, ..LoadOptions::default() }
    }
}

fn word<const N: usize>(mut stream: &UnixStream) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// Answers one question of a driver; `None` when there are no more.
fn serve(mut stream: &UnixStream, state: &Mutex<State>) -> Option<()> {
    let [what] = word(stream)?;
    let mut name = vec![0; u32::from_le_bytes(word(stream)?) as usize];
    stream.read_exact(&mut name).ok()?;
    let name = String::from_utf8(name).unwrap();
    let state = || state.lock().unwrap_or_else(PoisonError::into_inner);
    let refused = state().refused.get(&name).copied().unwrap_or(0);
    let kernel = state().kernels.get(&name).cloned();
    let buffers = kernel.as_ref().map(|k| &k.buffers[..k.params]).unwrap_or_default();
    let bytes = |i: usize| buffers[i].len as usize * buffers[i].dtype.size();
    match what {
        b'L' => {
            let shape: [u32; 3] = [word(stream)?, word(stream)?, word(stream)?].map(u32::from_le_bytes);
            let launch =
                kernel.as_ref().and_then(Kernel::launch).unwrap_or_else(|| panic!("there is no kernel {name}"));
            assert_eq!(shape.map(u64::from), [launch.blocks, launch.threads.into(), launch.shared_bytes], "{name}");
            stream.write_all(&refused.to_le_bytes()).ok()?;
            if refused == 0 {
                stream.write_all(&(buffers.len() as u32).to_le_bytes()).ok()?;
                for (i, buffer) in buffers.iter().enumerate() {
                    stream.write_all(&(bytes(i) as u64).to_le_bytes()).ok()?;
                    stream.write_all(&u32::from(buffer.writable).to_le_bytes()).ok()?;
                }
            }
        }
        b'X' => {
            let mut contents: Vec<Vec<u8>> = (0..buffers.len()).map(|i| vec![0; bytes(i)]).collect();
            contents.iter_mut().try_for_each(|content| stream.read_exact(content)).ok()?;
            let failing = state().failing.get(&name).copied();
            let code = failing.unwrap_or_else(|| match run_launch(kernel.as_ref().unwrap(), &mut contents) {
                Ok(_) => 0,
                Err(error) => panic!("{name}: {error}"),
            });
            stream.write_all(&code.to_le_bytes()).ok()?;
            if code == 0 {
                let written = contents.iter().zip(buffers).filter(|(_, buffer)| buffer.writable);
                written.into_iter().try_for_each(|(content, _)| stream.write_all(content)).ok()?;
            }
        }
        _ => {
            state().told.push(format!("{} {name}", char::from(what)));
            stream.write_all(&refused.to_le_bytes()).ok()?;
        }
    }
    Some(())
}

/// The digit classifier for a GPU, for batches of up to two.
fn digits(capability: Capability, assembler: Option<PathBuf>) -> (Model, Artifact) {
    compiled(capability, assembler, false)
}

fn compiled(capability: Capability, assembler: Option<PathBuf>, program: bool) -> (Model, Artifact) {
    let gpu = tensorc::gpu::interpreted(Device::accelerator(0));
    let compiler = Compiler::new(Options { gpu: Some(gpu), threads: Some(1), ..Options::default() }).unwrap();
    let model = compiler.load(examples().join("digits/digits.onnx")).unwrap();
    let ranges = BTreeMap::from([("batch".to_owned(), (1, 2))]);
    let gpu = Some(Gpu { capability, assembler });
    let artifact =
        aot::compile(&model, &Request { ranges, gpu, program, ..request("digits", "native") }).unwrap();
    (model, artifact)
}

fn runs() -> bool {
    let runs = Backend::has_llvm() && exists("cc");
    if !runs {
        visible("skipped: models for a GPU need a build with the feature `llvm` and the C compiler `cc`");
    }
    runs
}

/// Writes a product of the classifier with its header and weights.
fn written(artifact: &Artifact, product: Product, file: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file);
    link(product, "digits", &artifact.object, "native".parse().unwrap(), &Tools::default(), &path).unwrap();
    std::fs::write(dir.path().join("digits.h"), &artifact.header).unwrap();
    std::fs::write(dir.path().join("digits.weights"), artifact.weights.as_ref().unwrap()).unwrap();
    (dir, path)
}

/// A program of C's with the classifier in it.
fn c_program(source: &Path, dir: &Path) -> PathBuf {
    let program = dir.join("program");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-I"]).arg(dir).arg(source).arg(dir.join("digits.a"));
    checked(cc.args(["-lm", "-lpthread", "-ldl", "-o"]).arg(&program));
    program
}

/// Runs a loaded library on some images and gives the bytes of its outputs.
fn run(library: &Loaded, batch: u64) -> Result<[Vec<u8>; 2], ArtifactError> {
    let pool = Pool::new(1).unwrap();
    let mut context = library.context(&pool)?;
    run_in(&mut context, batch)
}

fn run_in(
    context: &mut tensorc::runtime::artifact::ModelContext<'_>,
    batch: u64,
) -> Result<[Vec<u8>; 2], ArtifactError> {
    let bytes: Vec<u8> = images(batch).into_iter().flat_map(f32::to_le_bytes).collect();
    let (mut digit, mut scores) = (vec![0xff; 8 * batch as usize], vec![0xff; 40 * batch as usize]);
    let dims = ([batch], [batch, 10]);
    let mut outputs =
        [TensorMut::new(DType::I64, &dims.0, &mut digit), TensorMut::new(DType::F32, &dims.1, &mut scores)];
    context.run(&[TensorRef::new(DType::F32, &[batch, 1, 8, 8], &bytes)], &mut outputs)?;
    Ok([digit, scores])
}

/// What an error of a model's says, with its status.
fn said<T>(outcome: Result<T, ArtifactError>) -> (i32, String) {
    match outcome.err() {
        Some(ArtifactError::Failed { status, message }) => (status, message),
        other => panic!("no failure of a model: {other:?}"),
    }
}

#[test]
fn c_programs_run_on_a_gpu_as_on_a_processor() {
    if !runs() {
        return;
    }
    let (model, artifact) = digits(Capability::Sm80, None);
    let driver = Imaginary::new(&artifact, (8, 0));
    let (dir, _) = written(&artifact, Product::StaticLibrary, "digits.a");
    let mut lines = prepared(dir.path(), &model);
    let last = lines.pop().unwrap().replace("1..=4", "1..=2");
    // The example for processors, which knows nothing of GPUs, with the driver that the system has.
    let program = c_program(&examples().join("c/classify.c"), dir.path());
    let mut command = Command::new(&program);
    command.env("LD_LIBRARY_PATH", driver.dir.path());
    assert_eq!(run_example(command, dir.path()), [&lines[..], &[last]].concat());
    assert_eq!(driver.told().last().unwrap(), "E 0 blocks, 0 streams, 0 modules left");

    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/aot/there.c");
    let mut command = Command::new(c_program(&source, dir.path()));
    command.arg(driver.path());
    let misaligned = "input `image` needs 512 bytes at a multiple of 16, 512 are given";
    assert_eq!(run_example(command, dir.path()), [&lines[..2], &[misaligned.to_owned()]].concat());
    assert_eq!(driver.told().last().unwrap(), "E 0 blocks, 0 streams, 0 modules left");
}

#[test]
fn the_program_of_a_model_for_a_gpu_runs() {
    if !runs() {
        return;
    }
    let (model, artifact) = compiled(Capability::Sm90a, None, true);
    let driver = Imaginary::new(&artifact, (9, 0));
    let (dir, path) = written(&artifact, Product::Program, "digits");
    let image = dir.path().join("image.npy");
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 8, 8), }";
    let mut npy = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    npy.extend(format!("{header:117}\n").into_bytes());
    npy.extend(images(1).into_iter().flat_map(f32::to_le_bytes));
    std::fs::write(&image, npy).unwrap();
    let command = |driver: &str, device: &str| {
        let mut command = Command::new(&path);
        command.arg("--weights").arg(dir.path().join("digits.weights")).args(["--driver", driver, "--device", device]);
        command.arg("-o").arg(dir.path()).arg(&image).output().unwrap()
    };
    let output = command(text(&driver.path()), "0");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made = std::fs::read(dir.path().join("probabilities.npy")).unwrap();
    assert!(made.ends_with(expected(&model, 1)[1].bytes()), "{}", String::from_utf8_lossy(&output.stdout));

    let fails = |driver: &str, device: &str| {
        let output = command(driver, device);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap().split_once(": ").unwrap().1.trim_end().to_owned()
    };
    assert_eq!(fails(text(&driver.path()), "1"), "GPU 1 is asked for, there are 1, numbered from 0");
    assert!(fails("/nowhere/libcuda.so.1", "0").starts_with("no driver of a GPU: /nowhere/libcuda.so.1: cannot open"));
    let output = Command::new(&path).args(["--threads", "2", "x.npy"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let usage = String::from_utf8(output.stderr).unwrap();
    assert!(usage.contains("[--device N] [--driver LIBRARY] [--repeat N]"), "{usage}");
}

#[test]
fn loaded_libraries_share_code_and_weights_on_the_gpu() {
    if !runs() {
        return;
    }
    let (model, artifact) = digits(Capability::Sm80, None);
    let driver = Imaginary::new(&artifact, (8, 6));
    let (_dir, path) = written(&artifact, Product::SharedLibrary, "digits.so");
    let library = Loaded::load(&path, &driver.options()).unwrap();
    let pool = Pool::new(2).unwrap();
    let mut contexts = [library.context(&pool).unwrap(), library.context(&pool).unwrap()];
    for (i, batch) in [1, 2, 2, 1].into_iter().enumerate() {
        let expected = expected(&model, batch);
        let found = run_in(&mut contexts[i % 2], batch).unwrap();
        assert!(found.iter().zip(&expected).all(|(found, expected)| found == expected.bytes()), "batch {batch}");
    }
    drop(contexts);
    let weights = library.manifest().unwrap().weights.bytes;
    let told = driver.told();
    assert_eq!(told[..2], ["M ptx".to_owned(), format!("A {weights}")]);
    assert_eq!(told.len(), 5, "{told:?}");
    assert_eq!(told[2], told[3], "each context has a block of its own");
    assert_eq!(told[4], "E 0 blocks, 0 streams, 0 modules left");
    // All of it anew.
    assert_eq!(run(&library, 1).unwrap()[1], expected(&model, 1)[1].bytes());
    assert_eq!(driver.told().len(), 4);
}

#[test]
fn gpus_and_drivers_that_do_not_fit_are_errors() {
    if !runs() {
        return;
    }
    let load = |(capability, version): (Capability, (u32, u32)), change: &dyn Fn(&mut LoadOptions, &Imaginary)| {
        let (_, artifact) = digits(capability, None);
        let driver = Imaginary::new(&artifact, version);
        let (_dir, path) = written(&artifact, Product::SharedLibrary, "digits.so");
        let mut options = driver.options();
        change(&mut options, &driver);
        run(&Loaded::load(&path, &options).unwrap(), 1)
    };
    let keep = |_: &mut LoadOptions, _: &Imaginary| {};
    let (sm_80, sm_90a) = (Capability::Sm80, Capability::Sm90a);
    load((sm_80, (12, 1)), &keep).unwrap();
    let cases = [
        ((sm_80, (7, 5)), "7.5, the model is compiled for 8.0 and later"),
        ((sm_90a, (8, 9)), "8.9, the model is compiled for 9.0 alone"),
        ((sm_90a, (10, 0)), "10.0, the model is compiled for 9.0 alone"),
    ];
    for (case, words) in cases {
        let expected = format!("GPU 0 (Imaginary 0) has compute capability {words}");
        assert_eq!(said(load(case, &keep)), (status::DEVICE, expected));
    }
    let case = (sm_80, (8, 0));
    let (code, message) = said(load(case, &|options, _| options.gpu.device = 3));
    assert_eq!((code, &*message), (status::DEVICE, "GPU 3 is asked for, there are 1, numbered from 0"));
    let (code, message) = said(load(case, &|options, _| options.gpu.driver = Some("/no/such.so".into())));
    assert_eq!(code, status::DRIVER);
    assert!(message.starts_with("no driver of a GPU: /no/such.so: "), "{message}");
    // A library, but no driver.
    let (code, message) = said(load(case, &|options, _| options.gpu.driver = Some("libm.so.6".into())));
    assert_eq!((code, &*message), (status::DRIVER, "the driver libm.so.6 has no cuInit"));
    let memory = |_: &mut LoadOptions, driver: &Imaginary| {
        driver.state().refused.insert("190144".into(), OUT_OF_MEMORY);
    };
    let (code, message) = said(load(case, &memory));
    assert_eq!(code, status::MEMORY);
    assert_eq!(message, "memory of the GPU for weights: out of memory (CUDA_ERROR_OUT_OF_MEMORY)");
}

#[test]
fn failing_kernels_are_named() {
    if !runs() {
        return;
    }
    let (_, artifact) = digits(Capability::Sm80, None);
    let plan = &artifact.module.plans[0];
    let (first, third, last) = (&plan.kernels[0], &plan.kernels[2], &plan.kernels[plan.kernels.len() - 1]);
    let (_dir, path) = written(&artifact, Product::SharedLibrary, "digits.so");
    let fail = |stepwise: bool, fault: &dyn Fn(&mut State)| {
        let driver = Imaginary::new(&artifact, (8, 0));
        fault(&mut driver.state());
        let mut options = driver.options();
        options.gpu.stepwise = stepwise;
        let failure = said(run(&Loaded::load(&path, &options).unwrap(), 1));
        // Nothing is left of what failed.
        assert_eq!(driver.told().last().unwrap(), "E 0 blocks, 0 streams, 0 modules left");
        failure
    };
    let name = third.clone();
    let refused = move |state: &mut State| state.refused.extend([(name.clone(), OUT_OF_RESOURCES)]);
    let node = |kernel: &str| {
        let number = plan.kernels.iter().position(|name| name == kernel).unwrap();
        let launches = |op: &tensorc_abi::StepOp| matches!(op, tensorc_abi::StepOp::Launch { kernel, .. } if kernel.0 as usize == number);
        plan.steps.iter().find(|step| launches(&step.op)).unwrap().name.clone()
    };
    let named = format!("kernel `{third}` of node `{}`", node(third));
    let words = "too many resources requested for launch (CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)";
    assert_eq!(fail(false, &refused), (status::GPU, format!("{named}: {words}")));

    let name = third.clone();
    let failing = move |state: &mut State| state.failing.extend([(name.clone(), LAUNCH_FAILED)]);
    let words = "unspecified launch failure (CUDA_ERROR_LAUNCH_FAILED)";
    let all = format!("one of the kernels `{first}` to `{last}`");
    assert_eq!(fail(false, &failing), (status::GPU, format!("{all}: {words}")));
    assert_eq!(fail(true, &failing), (status::GPU, format!("{named}: {words}")));
}

#[test]
fn damaged_code_for_a_gpu_is_refused() {
    if !runs() {
        return;
    }
    let (_, artifact) = digits(Capability::Sm80, None);
    let driver = Imaginary::new(&artifact, (8, 0));
    let (dir, path) = written(&artifact, Product::SharedLibrary, "digits.so");
    // The seal of the library is broken.
    let mut whole = std::fs::read(&path).unwrap();
    let at = whole.windows(7).position(|window| window == b".target").unwrap();
    whole[at + 8] ^= 1;
    std::fs::write(&path, whole).unwrap();
    assert!(matches!(Loaded::load(&path, &driver.options()), Err(ArtifactError::Damaged)));

    // Damage before linking, in the image and in the PTX: the model itself finds it.
    let place = |bytes: &[u8]| artifact.object.windows(bytes.len()).position(|window| window == bytes).unwrap();
    let (image, ptx) = (place(b"tcimage\0"), place(artifact.ptx.as_ref().unwrap().as_bytes()));
    let image_bytes = artifact.manifest.image_bytes as usize;
    let mut random = 5u64;
    for (start, bytes) in [(image, image_bytes), (ptx, artifact.manifest.gpu.as_ref().unwrap().ptx_bytes as usize)] {
        for case in 0..6 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bit = (random >> 20) as usize % (8 * bytes);
            let mut object = artifact.object.clone();
            object[start + bit / 8] ^= 1 << (bit % 8);
            let path = dir.path().join(format!("damaged{start}-{case}.so"));
            link(Product::SharedLibrary, "digits", &object, "native".parse().unwrap(), &Tools::default(), &path)
                .unwrap();
            let weights = Some(dir.path().join("digits.weights"));
            // Of an image that is not itself the weights are refused before.
            match Loaded::load(&path, &LoadOptions { weights, ..driver.options() }) {
                Ok(library) => {
                    let (code, message) = said(run(&library, 1));
                    assert!([status::DAMAGED, status::VERSION].contains(&code), "bit {bit}: {code} {message}");
                }
                Err(error) => assert!(matches!(error, ArtifactError::Weights { .. }), "bit {bit}: {error}"),
            }
        }
    }
    assert_eq!(driver.told(), [] as [&str; 0], "nothing damaged reaches the driver");
}

#[test]
fn machine_code_is_preferred_where_it_fits() {
    if !runs() {
        return;
    }
    let Some(ptxas) = crate::gpu::ptxas() else { return };
    for capability in Capability::ALL {
        let (model, artifact) = digits(capability, Some(ptxas.clone()));
        let (_, again) = digits(capability, Some(ptxas.clone()));
        assert!(artifact.object == again.object, "{capability:?}: other bytes the second time");
        let (_, plain) = digits(capability, None);
        assert!(artifact.ptx == plain.ptx && plain.manifest.gpu.as_ref().unwrap().cubin_bytes == 0);
        let info = artifact.manifest.gpu.as_ref().unwrap();
        assert_eq!(info.architecture, capability.processor());
        assert_eq!(info.ptx_bytes as usize, artifact.ptx.as_ref().unwrap().len() + 1);
        for kernel in &artifact.manifest.kernels {
            let launch = kernel.launch.as_ref().unwrap();
            assert!(launch.registers.is_some_and(|n| (8..=128).contains(&n)), "{}: {launch:?}", kernel.name);
            assert!(launch.spilled_bytes == Some(0) && kernel.code_bytes > 500, "{}: {launch:?}", kernel.name);
        }
        assert_eq!(Manifest::from_json(&artifact.manifest.to_json()).unwrap(), artifact.manifest);
        let (_dir, path) = written(&artifact, Product::SharedLibrary, "digits.so");
        let loads = |version, refused: bool| {
            let driver = Imaginary::new(&artifact, version);
            if refused {
                driver.state().refused.insert("cubin".into(), NO_BINARY);
            }
            let outputs = run(&Loaded::load(&path, &driver.options()).unwrap(), 1).unwrap();
            assert_eq!(outputs[1], expected(&model, 1)[1].bytes());
            driver.told().into_iter().filter(|text| text.starts_with('M')).collect::<Vec<_>>()
        };
        let own = match capability {
            Capability::Sm80 => {
                assert_eq!(loads((8, 6), false), ["M cubin"]);
                assert_eq!(loads((9, 0), false), ["M ptx"]);
                (8, 0)
            }
            Capability::Sm90a => (9, 0),
        };
        assert_eq!(loads(own, false), ["M cubin"]);
        assert_eq!(loads(own, true), ["M cubin", "M ptx"], "a driver too old for the machine code");
    }
}

#[test]
fn requests_that_fit_no_gpu_are_errors() {
    let compiler = Compiler::new(Options::default()).unwrap();
    let model = compiler.load(examples().join("digits/digits.onnx")).unwrap();
    let shapes = BTreeMap::from([("batch".to_owned(), vec![1])]);
    let gpu = Some(Gpu { capability: Capability::Sm80, assembler: None });
    let fail = |model: &Model, gpu: Option<Gpu>| {
        let request = Request { shapes: shapes.clone(), gpu, ..request("digits", "native") };
        aot::compile(model, &request).err().unwrap().to_string()
    };
    assert_eq!(fail(&model, gpu), "the compiler's passes are for processors, the target is a GPU");
    let mut options = Options::default();
    options.passes.device = tensorc::passes::Device::Gpu;
    let model = Compiler::new(options).unwrap().load(examples().join("digits/digits.onnx")).unwrap();
    assert_eq!(fail(&model, None), "the compiler's passes are for GPUs, the target is a processor");
    let assembler = Some("/nowhere/ptxas".into());
    let message = fail(&model, Some(Gpu { capability: Capability::Sm80, assembler }));
    let reason = if Backend::has_llvm() { "the assembler /nowhere/ptxas: " } else { "LLVM" };
    assert!(message.contains(reason), "{message}");
}
