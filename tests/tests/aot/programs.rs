//! Programs and libraries that run: equal bits to the model compiled in this process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use tensorc::aot::link::{LinkOutput, Tools, link};
use tensorc::aot::{self, AotRequest};
use tensorc::runtime::artifact::{Artifact, LoadOptions};
use tensorc::runtime::{Pool, TensorMut, TensorRef};
use tensorc::{Compiler, DType, Model, Tensor};

use super::{built, checked, exists, expected, image_file, images, request, text};
use crate::support::backend::options;
use crate::support::examples;
use tensorc_tests::cache::visible;

/// A folder with the classifier as `product`, the library's path, and what the example in C prints for two images, in
/// the classifier's bits.
pub fn example(product: LinkOutput, file: &str, target: &str) -> Option<(tempfile::TempDir, PathBuf, Vec<String>)> {
    let (dir, library, model) = built(product, file, target)?;
    let lines = prepared(dir.path(), &model);
    Some((dir, library, lines))
}

/// Writes two images for the example in C, and gives what it prints for them.
pub fn prepared(dir: &Path, model: &Model) -> Vec<String> {
    let bytes: Vec<u8> = images(2).into_iter().flat_map(f32::to_le_bytes).collect();
    std::fs::write(dir.join("images.f32"), bytes).unwrap();
    let outputs = expected(model, 2);
    let digits: Vec<i64> = outputs[0].bytes().chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
    let bits = |i: usize| {
        let at = (i * 10 + digits[i] as usize) * 4;
        u32::from_le_bytes(outputs[1].bytes()[at..at + 4].try_into().unwrap())
    };
    let line = |i: usize| format!("{} {:08x}", digits[i], bits(i));
    // Both contexts print both images.
    let mut lines: Vec<String> = [0, 1, 0, 1].map(line).into();
    lines.push("no variant for `image` [5, 1, 8, 8]; compiled for batch = 1..=4, such as [4, 1, 8, 8]".into());
    lines
}

/// The example in C, linked with the compiler alone.
fn c_example(target: &str) -> Option<(tempfile::TempDir, Vec<String>)> {
    let (dir, library, lines) = example(LinkOutput::StaticLibrary, "digits.a", target)?;
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-std=c11", "-o"]).arg(dir.path().join("classify"));
    cc.arg("-I").arg(dir.path()).arg(examples().join("c/classify.c")).arg(library);
    checked(cc.args(["-lm", "-lpthread"]));
    Some((dir, lines))
}

pub fn run_example(mut command: Command, dir: &Path) -> Vec<String> {
    let output = checked(command.arg(dir.join("digits.weights")).arg(dir.join("images.f32")));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_c_program_runs_the_model_in_its_own_memory() {
    let Some((dir, lines)) = c_example("native") else { return };
    assert_eq!(run_example(Command::new(dir.path().join("classify")), dir.path()), lines);
    // The weights of another model, and none.
    let wrong = dir.path().join("images.f32");
    let output = Command::new(dir.path().join("classify")).arg(&wrong).arg(&wrong).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("weights are missing, damaged or those of another model"));
    let output = Command::new(dir.path().join("classify")).args(["nowhere", text(&wrong)]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the file of weights cannot be read"));
}

#[test]
fn a_program_names_the_range_that_its_input_is_outside_of() {
    let Some((dir, path, model)) = built(LinkOutput::Program, "digits", "native") else { return };
    let run = |batch: u64| {
        let weights = dir.path().join("digits.weights");
        let images = image_file(dir.path(), batch);
        Command::new(&path).arg("--weights").arg(weights).arg("-o").arg(dir.path()).arg(images).output().unwrap()
    };
    assert!(run(4).status.success());
    let made = std::fs::read(dir.path().join("probabilities.npy")).unwrap();
    assert!(made.ends_with(expected(&model, 4)[1].bytes()));
    let output = run(8);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    let expected = "no variant for `image` [8, 1, 8, 8]; compiled for batch = 1..=4, such as [4, 1, 8, 8]";
    assert_eq!(message.split_once(": ").unwrap().1.trim_end(), expected);
}

#[test]
fn the_c_program_is_clean_under_valgrind() {
    if !exists("valgrind") {
        visible("skipped: there is no valgrind");
        return;
    }
    // Valgrind knows no AVX-512.
    let Some((dir, lines)) = c_example("x86_64-v3") else { return };
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=all"]);
    valgrind.arg(dir.path().join("classify"));
    assert_eq!(run_example(valgrind, dir.path()), lines);
}

#[test]
fn a_loaded_library_gives_equal_bits_for_every_batch_and_thread_count() {
    let Some((_dir, path, model)) = built(LinkOutput::SharedLibrary, "digits.so", "native") else { return };
    let artifact = Artifact::load(&path, &LoadOptions::default()).unwrap();
    for threads in [1, 2, 3] {
        let pool = Pool::new(threads).unwrap();
        let mut contexts = [artifact.context(&pool).unwrap(), artifact.context(&pool).unwrap()];
        for (run, batch) in [1u64, 4, 2, 3, 1].into_iter().enumerate() {
            let context = &mut contexts[run % 2];
            let dims = [batch, 1, 8, 8];
            let bytes: Vec<u8> = images(batch).into_iter().flat_map(f32::to_le_bytes).collect();
            let described = context.outputs(&[(DType::F32, &dims)]).unwrap();
            assert_eq!(described, [(DType::I64, vec![batch]), (DType::F32, vec![batch, 10])]);
            let mut data: Vec<Vec<u8>> =
                described.iter().map(|(t, d)| vec![0xff; d.iter().product::<u64>() as usize * t.size()]).collect();
            let mut outputs: Vec<TensorMut<'_>> =
                described.iter().zip(&mut data).map(|((t, dims), data)| TensorMut::new(*t, dims, data)).collect();
            context.run(&[TensorRef::new(DType::F32, &dims, &bytes)], &mut outputs).unwrap();
            for (got, expected) in data.iter().zip(expected(&model, batch)) {
                assert_eq!(got, expected.bytes(), "batch {batch}, {threads} threads");
            }
        }
    }
}

#[test]
fn images_with_channels_last_give_the_bits_of_the_model() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts/last.tc");
    let model = Compiler::new(options()).unwrap().load(source).unwrap();
    let ranges = BTreeMap::from([("batch".to_owned(), (1, 2).into())]);
    let dir = tempfile::tempdir().unwrap();
    let artifact = aot::compile(&model, &AotRequest { ranges, ..request("last", "native") }).unwrap();
    let path = dir.path().join("last.so");
    let (target, tools) = ("native".parse().unwrap(), Tools::default());
    link(LinkOutput::SharedLibrary, "last", &artifact.object, target, &tools, &path).unwrap();
    std::fs::write(dir.path().join("last.weights"), artifact.weights.unwrap()).unwrap();
    let artifact = Artifact::load(&path, &LoadOptions::default()).unwrap();
    let pool = Pool::new(2).unwrap();
    let mut context = artifact.context(&pool).unwrap();
    for batch in [2, 1] {
        let dims = [batch, 17, 15, 3];
        let values: Vec<f32> = (0..batch * 17 * 15 * 3).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        let image = Tensor::from_f32(&dims, &values).unwrap();
        let expected = model.run(&[("pixels", image)]).unwrap().remove(0).1;
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let shape = [batch, 3, 3, 10];
        let mut data = vec![0xff; expected.bytes().len()];
        let mut outputs = [TensorMut::new(DType::F32, &shape, &mut data)];
        context.run(&[TensorRef::new(DType::F32, &dims, &bytes)], &mut outputs).unwrap();
        assert!(data == expected.bytes(), "batch {batch}");
    }
}

#[test]
fn wrong_tensors_are_errors_that_say_what_is_wrong() {
    let Some((dir, path, _)) = built(LinkOutput::SharedLibrary, "digits.so", "native") else { return };
    let artifact = Artifact::load(&path, &LoadOptions::default()).unwrap();
    let pool = Pool::new(1).unwrap();
    let mut context = artifact.context(&pool).unwrap();
    let fail =
        |result: Result<Vec<_>, _>| result.err().map(|e: tensorc::runtime::artifact::ArtifactError| e.to_string());
    let message = fail(context.outputs(&[(DType::F32, &[5, 1, 8, 8])])).unwrap();
    assert_eq!(message, "no variant for `image` [5, 1, 8, 8]; compiled for batch = 1..=4, such as [4, 1, 8, 8]");
    let message = fail(context.outputs(&[(DType::F64, &[1, 1, 8, 8])])).unwrap();
    assert_eq!(message, "input `image` is f64, the model takes f32");
    let message = fail(context.outputs(&[(DType::F32, &[1, 64])])).unwrap();
    assert_eq!(message, "input `image` has 2 dimensions, the model takes 4");
    let message = fail(context.outputs(&[])).unwrap();
    assert_eq!(message, "the model has 1 inputs, 0 are given");
    let (dims, short, mut digit, mut rest) = ([1, 1, 8, 8], [0u8; 255], [0u8; 8], [0u8; 40]);
    let mut outputs = [TensorMut::new(DType::I64, &[1], &mut digit), TensorMut::new(DType::F32, &[1, 10], &mut rest)];
    let error = context.run(&[TensorRef::new(DType::F32, &dims, &short)], &mut outputs).err().unwrap().to_string();
    assert!(error.starts_with("input `image` needs 256 bytes at a multiple of 4, 255 are given"), "{error}");
    drop(context);
    // Without its weights it is not loaded.
    std::fs::remove_file(dir.path().join("digits.weights")).unwrap();
    let error = Artifact::load(&path, &LoadOptions::default()).err().unwrap().to_string();
    assert!(error.ends_with("digits.weights: the file of weights cannot be read"), "{error}");
}
