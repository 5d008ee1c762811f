//! Models whose kernels run on a GPU, on a driver that is none: `driver.c` has the PTX in the artifact executed by the interpreter of
//! PTX in this process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use tensorc::aot::gpu::GpuTarget;
use tensorc::aot::link::{LinkOutput, Tools, link};
use tensorc::aot::{self, AotRequest, Artifact};
use tensorc::ir::text::parse_module;
use tensorc::runtime::artifact::{Artifact as Loaded, ArtifactError, LoadOptions, Manifest, ModelContext};
use tensorc::runtime::{Device, Pool, TensorMut, TensorRef};
use tensorc::schedule::target::Capability;
use tensorc::{Backend, Compiler, DType, Model, Options, Tensor};
use tensorc_abi::artifact::status;
use tensorc_abi::image::{self, header, slot, step, variant};
use tensorc_tests::cache::visible;

use super::driver::{Imaginary, State};
use super::programs::{prepared, run_example};
use super::{checked, exists, expected, image_file, images, request, text};
use crate::support::examples;

/// Errors of CUDA's driver.
const NO_BINARY: i32 = 209;
const OUT_OF_MEMORY: i32 = 2;
const OUT_OF_RESOURCES: i32 = 701;
const LAUNCH_FAILED: i32 = 719;

/// The digit classifier for a GPU, for batches of up to two.
fn digits(capability: Capability, assembler: Option<PathBuf>) -> (Model, Artifact) {
    compiled(capability, assembler, false)
}

fn compiled(capability: Capability, assembler: Option<PathBuf>, program: bool) -> (Model, Artifact) {
    let gpu = tensorc_simulator::interpreted(Device::accelerator(0));
    let compiler = Compiler::new(Options { gpus: vec![gpu], threads: Some(1), ..Options::default() }).unwrap();
    let model = compiler.load(examples().join("digits/digits.onnx")).unwrap();
    let ranges = BTreeMap::from([("batch".to_owned(), (1, 2).into())]);
    let gpu = Some(GpuTarget { capability, assembler });
    let artifact = aot::compile(&model, &AotRequest { ranges, gpu, program, ..request("digits", "native") }).unwrap();
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
fn written(artifact: &Artifact, product: LinkOutput, file: &str) -> (tempfile::TempDir, PathBuf) {
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

fn run_in(context: &mut ModelContext<'_>, batch: u64) -> Result<[Vec<u8>; 2], ArtifactError> {
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
    let (dir, _) = written(&artifact, LinkOutput::StaticLibrary, "digits.a");
    let mut lines = prepared(dir.path(), &model);
    let last = lines.pop().unwrap().replace("1..=4", "1..=2").replace("[4,", "[1,");
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
fn what_runs_on_a_gpu_is_clean_under_valgrind() {
    if !runs() || !exists("valgrind") {
        visible("skipped: there is no valgrind, or no code for a GPU");
        return;
    }
    let (model, artifact) = digits(Capability::Sm80, None);
    let driver = Imaginary::new(&artifact, (8, 0));
    let (dir, _) = written(&artifact, LinkOutput::StaticLibrary, "digits.a");
    let lines = prepared(dir.path(), &model);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/aot/there.c");
    let program = c_program(&source, dir.path());
    let mut valgrind = Command::new("valgrind");
    // The driver stays open, and what the system keeps of it.
    valgrind.args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite,possible"]);
    valgrind.arg(program).arg(driver.path());
    assert_eq!(run_example(valgrind, dir.path())[..2], lines[..2]);
}

#[test]
fn the_program_of_a_model_for_a_gpu_runs() {
    if !runs() {
        return;
    }
    let (model, artifact) = compiled(Capability::Sm90a, None, true);
    let driver = Imaginary::new(&artifact, (9, 0));
    let (dir, path) = written(&artifact, LinkOutput::Program, "digits");
    let image = image_file(dir.path(), 1);
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
    let (_dir, path) = written(&artifact, LinkOutput::SharedLibrary, "digits.so");
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
        let (_dir, path) = written(&artifact, LinkOutput::SharedLibrary, "digits.so");
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
    let weights = digits(sm_80, None).1.manifest.weights.bytes;
    let memory = |_: &mut LoadOptions, driver: &Imaginary| {
        driver.state().refused.insert(weights.to_string(), OUT_OF_MEMORY);
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
    let (_dir, path) = written(&artifact, LinkOutput::SharedLibrary, "digits.so");
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
    let (dir, path) = written(&artifact, LinkOutput::SharedLibrary, "digits.so");
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
            link(LinkOutput::SharedLibrary, "digits", &object, "native".parse().unwrap(), &Tools::default(), &path)
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

/// The words of an image, changed, with a checksum that is right.
fn with_image(object: &[u8], change: impl Fn(&mut [u64])) -> Vec<u8> {
    let mut object = object.to_vec();
    let at = object.windows(8).position(|window| window == image::MAGIC.to_le_bytes()).unwrap();
    let word = |i: usize| u64::from_le_bytes(*object[at + 8 * i..].first_chunk().unwrap());
    let mut words: Vec<u64> = (0..word(header::LEN) as usize).map(word).collect();
    change(&mut words);
    words[header::CHECKSUM] = image::checksum(&words[header::NAME..]);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    object[at..at + bytes.len()].copy_from_slice(&bytes);
    object
}

#[test]
fn steps_and_arguments_of_unknown_kinds_are_refused() {
    if !runs() {
        return;
    }
    let (_, artifact) = digits(Capability::Sm80, None);
    let driver = Imaginary::new(&artifact, (8, 0));
    let run = |change: &dyn Fn(&mut [u64])| {
        let changed = Artifact { object: with_image(&artifact.object, change), ..digits(Capability::Sm80, None).1 };
        let (_dir, path) = written(&changed, LinkOutput::SharedLibrary, "digits.so");
        run(&Loaded::load(&path, &driver.options()).unwrap(), 1)
    };
    run(&|_| {}).unwrap();
    let variant = |words: &[u64]| words[words[header::VARIANTS + 1] as usize] as usize;
    let step = |words: &[u64]| words[variant(words) + variant::STEPS + 1] as usize;
    let slot = |words: &[u64]| words[variant(words) + variant::SLOTS + 1] as usize;
    let gpu = |words: &[u64]| words[header::GPU] as usize;
    type Case<'c> = (i32, &'c dyn Fn(&mut [u64]));
    let damages: [Case<'_>; 5] = [
        (status::VERSION, &|words| words[step(words) + step::KIND] = step::LAST + 1),
        (status::VERSION, &|words| words[slot(words) + slot::HOME] = slot::ARENA + 1),
        (status::DAMAGED, &|words| words[step(words) + step::FUNCTION] = 999),
        (status::DAMAGED, &|words| words[step(words) + step::ARGS] += 1),
        (status::DAMAGED, &|words| words[header::GPU] = words[gpu(words) + image::gpu::LAUNCHES] + 1_000_000),
    ];
    for (i, (code, change)) in damages.into_iter().enumerate() {
        assert_eq!(said(run(change)).0, code, "change {i}");
    }
}

/// Numbers that differ from element to element, as text.
fn numbers(count: usize, seed: usize) -> String {
    let number = |i: usize| format!("{}", ((i * 37 + seed) % 101) as f32 / 200.0 - 0.25);
    (0..count).map(number).collect::<Vec<_>>().join(", ")
}

/// Attention and what surrounds it, with matrix units; a tensor that is only copied; weights inside the library.
#[test]
fn a_block_of_a_transformer_runs() {
    if !runs() {
        return;
    }
    let weight = |name: &str, dims: [usize; 2], seed: usize| {
        format!("  %{name} = const f32[{}, {}] [{}]\n", dims[0], dims[1], numbers(dims[0] * dims[1], seed))
    };
    let program = format!(
        "tensorc-ir 1\ngraph @block(%x: f32[24, 32], %mask: f32[24, 24], %tag: i32[3]) {{\n{}{}{}{}  \
         %q = matmul(%x, %wq)\n  %k = matmul(%x, %wk)\n  %kt = transpose(%k) {{perm = [1, 0]}}\n  \
         %s = matmul(%q, %kt)\n  %m = add(%s, %mask)\n  %p = softmax(%m)\n  %v = matmul(%x, %wv)\n  \
         %a = matmul(%p, %v)\n  %r = add(%a, %x)\n  %h = matmul(%r, %wh)\n  %g = gelu(%h)\n  %half = cast(%g) {{to = f16}}\n  \
         return %half, %tag\n}}\n",
        weight("wq", [32, 32], 1),
        weight("wk", [32, 32], 2),
        weight("wv", [32, 32], 3),
        weight("wh", [32, 64], 4),
    );
    let gpu = tensorc_simulator::interpreted(Device::accelerator(0));
    let compiler = Compiler::new(Options { gpus: vec![gpu], threads: Some(1), ..Options::default() }).unwrap();
    let graph = parse_module(&program, compiler.registry()).unwrap().graphs.remove(0);
    let model = compiler.model(graph);
    let gpu = Some(GpuTarget { capability: Capability::Sm80, assembler: None });
    let artifact =
        aot::compile(&model, &AotRequest { gpu, embed_weights: true, ..request("block", "native") }).unwrap();
    assert!(artifact.weights.is_none() && artifact.manifest.weights.embedded);
    let driver = Imaginary::new(&artifact, (8, 0));
    let path = driver.dir.path().join("block.so");
    link(LinkOutput::SharedLibrary, "block", &artifact.object, "native".parse().unwrap(), &Tools::default(), &path)
        .unwrap();

    let values = |count: usize, seed: usize| -> Vec<f32> {
        numbers(count, seed).split(", ").map(|number| number.parse().unwrap()).collect()
    };
    let (x, mask, tag) = (values(24 * 32, 5), values(24 * 24, 6), [7i32, -8, 9]);
    let expected = model
        .run(&[
            ("x", Tensor::from_f32(&[24, 32], &x).unwrap()),
            ("mask", Tensor::from_f32(&[24, 24], &mask).unwrap()),
            ("tag", Tensor::from_slice(&[3], &tag).unwrap()),
        ])
        .unwrap();
    let library = Loaded::load(&path, &driver.options()).unwrap();
    let pool = Pool::new(1).unwrap();
    let mut context = library.context(&pool).unwrap();
    let (mut half, mut same) = (vec![0xff; 24 * 64 * 2], vec![0xff; 12]);
    let inputs = [
        TensorRef::from_slice(&[24, 32], &x),
        TensorRef::from_slice(&[24, 24], &mask),
        TensorRef::from_slice(&[3], &tag),
    ];
    let mut outputs = [TensorMut::new(DType::F16, &[24, 64], &mut half), TensorMut::new(DType::I32, &[3], &mut same)];
    context.run(&inputs, &mut outputs).unwrap();
    assert_eq!(half, expected[0].1.bytes());
    assert_eq!(same, tag.map(i32::to_le_bytes).concat());
    assert!(half.iter().any(|byte| *byte != 0));
}

/// A model whose products are by groups of warps, and its library with the driver that executes it.
fn grouped(name: &str, program: &str) -> (Model, Imaginary, Loaded) {
    let gpu = tensorc_simulator::interpreted_as(Device::accelerator(0), Capability::Sm90a);
    let mut options = Options { gpus: vec![gpu], threads: Some(1), ..Options::default() };
    options.passes.tf32 = true;
    let compiler = Compiler::new(options).unwrap();
    let model = compiler.model(parse_module(program, compiler.registry()).unwrap().graphs.remove(0));
    let gpu = Some(GpuTarget { capability: Capability::Sm90a, assembler: None });
    let artifact = aot::compile(&model, &AotRequest { gpu, embed_weights: true, ..request(name, "native") }).unwrap();
    let driver = Imaginary::new(&artifact, (9, 0));
    let path = driver.dir.path().join("model.so");
    link(LinkOutput::SharedLibrary, name, &artifact.object, "native".parse().unwrap(), &Tools::default(), &path)
        .unwrap();
    let library = Loaded::load(&path, &driver.options()).unwrap();
    (model, driver, library)
}

/// Products by groups of warps: the copy engine is told of both operands where they lie in this run.
#[test]
fn products_by_groups_of_warps_run() {
    if !runs() {
        return;
    }
    let weight = numbers(136 * 72, 3);
    let program = format!(
        "tensorc-ir 1\ngraph @layer(%x: bf16[70, 136], %b: bf16[72]) {{\n  %w = const bf16[136, 72] [{weight}]\n  \
         %p = matmul(%x, %w)\n  %s = add(%p, %b)\n  %g = gelu(%s)\n  %y = cast(%g) {{to = f32}}\n  return %y\n}}\n"
    );
    let (model, driver, library) = grouped("layer", &program);
    let bytes = |count: usize, seed: usize| -> Vec<u8> {
        let number = |i: usize| half(((i * 29 + seed) % 17) as f32 / 8.0 - 1.0);
        (0..count).flat_map(number).collect()
    };
    let pool = Pool::new(1).unwrap();
    let mut context = library.context(&pool).unwrap();
    driver.told();
    for seed in [1, 2] {
        let (x, b) = (bytes(70 * 136, seed), bytes(72, 5));
        let given = [("x", vec![70, 136], &x), ("b", vec![72], &b)];
        let given =
            given.map(|(name, dims, bytes)| (name, Tensor::from_bytes(DType::BF16, &dims, bytes.clone()).unwrap()));
        let expected = model.run(&given).unwrap();
        let mut y = vec![0xff; 70 * 72 * 4];
        let inputs = [TensorRef::new(DType::BF16, &[70, 136], &x), TensorRef::new(DType::BF16, &[72], &b)];
        context.run(&inputs, &mut [TensorMut::new(DType::F32, &[70, 72], &mut y)]).unwrap();
        assert_eq!(y, expected[0].1.bytes());
        let maps = [
            "T type 9, 136 in boxes of 64, 70 272 bytes apart by 128",
            "T type 9, 72 in boxes of 64, 136 144 bytes apart by 64",
        ];
        assert_eq!(driver.told(), maps);
    }
    driver.state().refused.insert("type 9, 72 in boxes of 64, 136 144 bytes apart by 64".into(), OUT_OF_MEMORY);
    let (x, b) = (bytes(70 * 136, 1), bytes(72, 5));
    let inputs = [TensorRef::new(DType::BF16, &[70, 136], &x), TensorRef::new(DType::BF16, &[72], &b)];
    let mut y = vec![0xff; 70 * 72 * 4];
    let (status, message) = said(context.run(&inputs, &mut [TensorMut::new(DType::F32, &[70, 72], &mut y)]));
    assert_eq!(status, status::MEMORY);
    assert!(message.starts_with("kernel `layer_kernel0` of node `"), "{message}");
}

/// Heads side by side, of f32 that is rounded: an axis of them nearer than rows, and one farther away.
#[test]
fn products_of_heads_run() {
    if !runs() {
        return;
    }
    let program = "tensorc-ir 1\ngraph @heads(%q: f32[2, 65, 3, 72], %k: f32[2, 70, 3, 72]) {\n  \
        %x = transpose(%q) {perm = [0, 2, 1, 3]}\n  %w = transpose(%k) {perm = [0, 2, 3, 1]}\n  \
        %y = matmul(%x, %w)\n  return %y\n}\n";
    let (model, driver, library) = grouped("heads", program);
    let (q, k) = ([2, 65, 3, 72], [2, 70, 3, 72]);
    let number = |i: u64| (((i * 29) % 177) as f32 / 100.0 - 1.0).to_le_bytes();
    let bytes = |dims: [u64; 4], first: u64| (first..first + dims.iter().product::<u64>()).flat_map(number).collect();
    let (x, w): (Vec<u8>, Vec<u8>) = (bytes(q, 1), bytes(k, 2));
    let given = [("q", q, &x), ("k", k, &w)];
    let given = given.map(|(name, dims, bytes)| (name, Tensor::from_bytes(DType::F32, &dims, bytes.clone()).unwrap()));
    let (expected, out) = (model.run(&given).unwrap(), [2, 3, 65, 70]);
    let pool = Pool::new(1).unwrap();
    let mut context = library.context(&pool).unwrap();
    driver.told();
    let mut y = vec![0xff; 2 * 3 * 65 * 70 * 4];
    let inputs = [TensorRef::new(DType::F32, &q, &x), TensorRef::new(DType::F32, &k, &w)];
    context.run(&inputs, &mut [TensorMut::new(DType::F32, &out, &mut y)]).unwrap();
    assert_eq!(y, expected[0].1.bytes());
    let maps = [
        "T type 11, 72 in boxes of 32, 3 288 bytes apart by 1, 65 864 bytes apart by 128, 2 56160 bytes apart by 1",
        "T type 11, 72 in boxes of 32, 3 288 bytes apart by 1, 70 864 bytes apart by 64, 2 60480 bytes apart by 1",
    ];
    assert_eq!(driver.told(), maps);
}

/// An element of bf16 whose fraction is short.
fn half(x: f32) -> [u8; 2] {
    ((x.to_bits() >> 16) as u16).to_le_bytes()
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
        let (_dir, path) = written(&artifact, LinkOutput::SharedLibrary, "digits.so");
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
    let gpu = Some(GpuTarget { capability: Capability::Sm80, assembler: None });
    let fail = |model: &Model, gpu: Option<GpuTarget>| {
        let request = AotRequest { shapes: shapes.clone(), gpu, ..request("digits", "native") };
        aot::compile(model, &request).err().unwrap().to_string()
    };
    assert_eq!(fail(&model, gpu), "the compiler's passes are for processors, the target is a GPU");
    let mut options = Options::default();
    options.passes.target = tensorc::schedule::Target::gpu(tensorc::schedule::target::Gpu::new(Capability::Sm80));
    let model = Compiler::new(options).unwrap().load(examples().join("digits/digits.onnx")).unwrap();
    assert_eq!(fail(&model, None), "the compiler's passes are for GPUs, the target is a processor");
    let assembler = Some("/nowhere/ptxas".into());
    let message = fail(&model, Some(GpuTarget { capability: Capability::Sm80, assembler }));
    let reason = if Backend::has_llvm() { "the assembler /nowhere/ptxas: " } else { "LLVM" };
    assert!(message.contains(reason), "{message}");
}
