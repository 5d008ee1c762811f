//! Models compiled ahead of time: from C programs, from Rust and as programs of their own.

mod builds;
mod damage;
mod divided;
mod driver;
mod embed;
mod gpu;
mod hosted;
mod parts;
mod programs;
pub mod ranges;
mod stored;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tensorc::abi::KernelSignature;
use tensorc::aot::link::{LinkOutput, Tools, link};
use tensorc::aot::{self, AotRequest, Artifact};
use tensorc::ir::extent::Fixed;
use tensorc::ir::kir::Kernel;
use tensorc::ir::text::{PrintOptions, parse_module, print_module};
use tensorc::runtime::plan::{verify, verify_kernels};
use tensorc::{Compiler, Model, Options, Tensor};
use tensorc_codegen::isa::Isa;

use crate::support::backend::options;
use crate::support::examples;
use tensorc_tests::cache::visible;

pub fn request(name: &str, target: &str) -> AotRequest {
    AotRequest {
        name: name.into(),
        shapes: BTreeMap::new(),
        ranges: BTreeMap::new(),
        target: target.parse::<Isa>().unwrap(),
        gpu: None,
        embed_weights: false,
        program: false,
    }
}

/// The digit classifier, for batches of up to four.
fn digits(target: &str) -> (Model, Artifact) {
    compiled(target, false)
}

fn compiled(target: &str, program: bool) -> (Model, Artifact) {
    let compiler = Compiler::new(Options { threads: Some(2), ..options() }).unwrap();
    let model = compiler.load(examples().join("digits/digits.onnx")).unwrap();
    let ranges = BTreeMap::from([("batch".to_owned(), (1, 4).into())]);
    let artifact = aot::compile(&model, &AotRequest { ranges, program, ..request("digits", target) }).unwrap();
    (model, artifact)
}

/// Images with values that differ from pixel to pixel.
fn images(batch: u64) -> Vec<f32> {
    (0..batch * 64).map(|i| ((i * 37) % 17) as f32).collect()
}

/// A file of that many images.
fn image_file(dir: &Path, batch: u64) -> PathBuf {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({batch}, 1, 8, 8), }}");
    let mut npy = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    npy.extend(format!("{header:117}\n").into_bytes());
    npy.extend(images(batch).into_iter().flat_map(f32::to_le_bytes));
    let path = dir.join(format!("images-{batch}.npy"));
    std::fs::write(&path, npy).unwrap();
    path
}

/// What the model gives when it is compiled in this process.
fn expected(model: &Model, batch: u64) -> Vec<Tensor> {
    let image = Tensor::from_f32(&[batch, 1, 8, 8], &images(batch)).unwrap();
    model.run(&[("image", image)]).unwrap().into_iter().map(|(_, tensor)| tensor).collect()
}

/// Whether a program can be run here.
pub fn exists(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// A folder with the classifier as `product`, its header and its weights; `None` without a C compiler.
fn built(product: LinkOutput, file: &str, target: &str) -> Option<(tempfile::TempDir, PathBuf, Model)> {
    if !exists("cc") {
        visible("skipped: there is no C compiler `cc`");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let (model, artifact) = compiled(target, product == LinkOutput::Program);
    let path = dir.path().join(file);
    link(product, "digits", &artifact.object, target.parse().unwrap(), &Tools::default(), &path).unwrap();
    std::fs::write(dir.path().join("digits.h"), &artifact.header).unwrap();
    std::fs::write(dir.path().join("digits.weights"), artifact.weights.unwrap()).unwrap();
    Some((dir, path, model))
}

pub fn checked(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    output
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn equal_requests_give_equal_bytes_without_paths() {
    let (_, first) = digits("native");
    let (_, second) = digits("native");
    assert_eq!(first.object, second.object);
    assert_eq!(first.weights, second.weights);
    assert_eq!(first.header, second.header);
    assert_eq!(first.manifest, second.manifest);
    assert!(first.manifest.kernels.iter().all(|k| k.code_bytes > 0), "{:?}", first.manifest.kernels);
    let here = env!("CARGO_MANIFEST_DIR").as_bytes();
    assert!(!first.object.windows(here.len()).any(|w| w == here), "the object has a path of this machine in it");
}

#[test]
fn every_target_has_code_and_calls_the_run_time_library_alone() {
    for target in Isa::NAMES {
        let (_, artifact) = digits(target);
        let (_, again) = digits(target);
        assert!(artifact.object == again.object, "{target}: other bytes the second time");
        assert!(artifact.manifest.kernels.iter().all(|k| k.code_bytes > 0), "{target}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &artifact.object).unwrap();
        if !exists("nm") {
            println!("skipped: there is no `nm`");
            return;
        }
        let output = checked(Command::new("nm").arg(file.path()));
        let symbols = String::from_utf8(output.stdout).unwrap();
        for line in symbols.lines() {
            let mut words = line.split_whitespace().rev();
            let (name, kind) = (words.next().unwrap(), words.next().unwrap());
            match kind {
                "U" => assert!(name.starts_with("tc_") || name.starts_with("mem"), "{target}: calls {name}"),
                "T" => assert!(name.starts_with("digits_") && !name.contains("kernel"), "{target}: exports {name}"),
                _ => assert_eq!(kind, kind.to_lowercase(), "{target}: exports {name}"),
            }
        }
        let kernels = symbols.lines().filter(|line| line.contains(" t digits_kernel")).count();
        assert_eq!(kernels, artifact.manifest.kernels.len(), "{target}");
    }
}

#[test]
fn the_module_says_what_was_compiled() {
    let (_, artifact) = digits("native");
    let module = &artifact.module;
    let names: Vec<&str> = module.plans.iter().map(|plan| plan.name.as_str()).collect();
    assert_eq!(
        names,
        ["digits_batch_4", "digits_batch_1"],
        "a plan for many, for its largest shape, and one for one image"
    );
    assert_eq!(module.kernels.len(), artifact.manifest.kernels.len());
    for (plan, variant) in module.plans.iter().zip(&artifact.manifest.variants) {
        let find = |name: &String| module.kernels.iter().find(|k| k.name == *name).cloned();
        let kernels: Option<Vec<Kernel>> = plan.kernels.iter().map(find).collect();
        let signature = |kernel: &Kernel| kernel.signature().convert(&Fixed);
        let signatures: Vec<KernelSignature> = kernels.unwrap().iter().map(signature).collect();
        verify(plan).unwrap();
        if !variant.many {
            verify_kernels(plan, &signatures).unwrap();
        }
    }
    assert!(
        artifact.open_plans[0].contains("launch @digits_kernel2(%conv2#1, mut %maxpool1) extent batch * 32"),
        "{}",
        artifact.open_plans[0]
    );
    let text = print_module(module, &PrintOptions::exact());
    let read = parse_module(&text, &tensorc::ops::registry().unwrap()).unwrap();
    assert_eq!(print_module(&read, &PrintOptions::exact()), text);
}

#[test]
fn linked_libraries_are_equal_and_have_no_paths() {
    let Some((first, a, _)) = built(LinkOutput::SharedLibrary, "digits.so", "native") else { return };
    let Some((_second, b, _)) = built(LinkOutput::SharedLibrary, "digits.so", "native") else { return };
    let bytes = std::fs::read(a).unwrap();
    assert!(bytes == std::fs::read(b).unwrap(), "two builds differ");
    let folder = text(first.path()).as_bytes();
    assert!(!bytes.windows(folder.len()).any(|w| w == folder), "the library has a path of this machine in it");
}

#[test]
fn names_and_ranges_that_cannot_be_are_errors() {
    let (model, _) = digits("native");
    let fail = |request: AotRequest| aot::compile(&model, &request).err().map(|e| e.to_string()).unwrap();
    let message =
        fail(AotRequest { ranges: BTreeMap::from([("batch".into(), (1, 4).into())]), ..request("no-name", "native") });
    assert!(message.contains("`no-name` is no name in C"), "{message}");
    let message =
        fail(AotRequest { ranges: BTreeMap::from([("batch".into(), (4, 1).into())]), ..request("m", "native") });
    assert!(message.contains("the range 4..=1 of `batch` is empty"), "{message}");
    let message = fail(request("m", "native"));
    assert!(message.contains("the shape of input `image` is open"), "{message}");
}
