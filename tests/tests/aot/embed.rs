//! Models inside Rust programs: what build scripts write, linked by `rustc` as Cargo would.
//!
//! Building the compiler once more as a build dependency takes minutes, so the build script of the example runs as
//! part of this program, started anew with Cargo's variables.

#[path = "../../../examples/embed/build.rs"]
mod example_build_script;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;

use tensorc::build::{BuildModel, BuiltModel};
use tensorc::{Compiler, DType, Options, Tensor};

use super::{checked, exists, images};
use crate::support::examples;
use tensorc_tests::cache::visible;

/// Where the libraries are that this program was linked with.
fn deps() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// The library of the crate `tensorc-runtime`.
fn runtime_crate() -> PathBuf {
    let files = std::fs::read_dir(deps()).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libtensorc_runtime-") && name.ends_with(".rlib")
    };
    // Builds with other features may lie beside it.
    files.filter(named).max_by_key(|path| path.metadata().unwrap().modified().unwrap()).unwrap()
}

/// A compiler of Rust's that is given what a dependency on `tensorc-runtime` gives.
fn rust(program: &str, source: &Path, out_dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("OUT_DIR", out_dir);
    command.args(["--edition", "2024", "-D", "warnings", "-F", "unsafe_code"]).arg(source);
    command.arg("--extern").arg(format!("tensorc_runtime={}", runtime_crate().display()));
    command.arg("-L").arg(format!("dependency={}", deps().display()));
    command
}

/// Builds a program from its source and the instructions of build scripts, and gives what it prints.
fn printed(source: &Path, out_dir: &Path, instructions: &str) -> Vec<String> {
    let program = out_dir.join("program");
    let mut rustc = rust("rustc", source, out_dir);
    rustc.arg("-o").arg(&program);
    for line in instructions.lines() {
        match line.split_once('=') {
            Some(("cargo::rustc-link-search", path)) => rustc.args(["-L", path]),
            Some(("cargo::rustc-link-lib", library)) => rustc.args(["-l", library]),
            Some(("cargo::rerun-if-changed", path)) => {
                assert!(examples().join("embed").join(path).exists(), "{path} does not exist");
                &mut rustc
            }
            _ => panic!("unknown instruction `{line}`"),
        };
    }
    checked(&mut rustc);
    let output = checked(&mut Command::new(program));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn can_build() -> bool {
    let can = exists("rustc") && exists("cc") && exists("ar");
    if !can {
        visible("skipped: programs are built with `rustc`, `cc` and `ar`");
    }
    can
}

/// The build script of the example, where Cargo's variables are set: [`the_example_classifies_digits`] starts it.
#[test]
fn example_build_script_runs() {
    if std::env::var_os("OUT_DIR").is_some() {
        println!();
        example_build_script::main().unwrap();
    }
}

#[test]
fn the_example_classifies_digits() {
    if !can_build() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut script = Command::new(std::env::current_exe().unwrap());
    script.args(["--exact", "aot::embed::example_build_script_runs", "--nocapture"]);
    script.current_dir(examples().join("embed")).env("OUT_DIR", dir.path());
    script.env("TARGET", format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    let output = String::from_utf8(checked(&mut script).stdout).unwrap();
    let instructions: Vec<&str> = output.lines().filter(|line| line.starts_with("cargo::")).collect();
    let source = examples().join("embed/src/main.rs");
    let lines = printed(&source, dir.path(), &instructions.join("\n"));
    let digits = ["3", "1", "4"].map(|digit| format!("{digit} with probability 1.000"));
    assert_eq!(lines[..3], digits);
    assert_eq!(lines[3..], ["no variant for `image` [9, 1, 8, 8]; compiled for batch = 1..=8, such as [8, 1, 8, 8]"]);

    // Bindings and example are in order for clippy, too.
    if exists("clippy-driver") {
        let mut clippy = rust("clippy-driver", &source, dir.path());
        checked(clippy.arg("--emit=metadata").arg("-o").arg(dir.path().join("program.rmeta")));
    } else {
        visible("skipped: there is no clippy");
    }
}

/// A network whose inputs and outputs have names that are none in Rust, and types that need care.
const AWKWARD: &str = "graph @awkward(%type: f16[?Rows, 3], %inputs: bool[3], %Type: i32[]) {
  %wide = cast(%type) {to = f32}
  %number = cast(%Type) {to = f32}
  %0 = mul(%wide, %number)
  %zero = const f32[] splat(0)
  %output0 = where(%inputs, %0, %zero)
  %self = less(%zero, %output0)
  return %output0, %self
}
";

const TWO_MODELS: &str = r#"//! Two models in one program.
use tensorc_runtime::{Pool, half::f16};

include!(concat!(env!("OUT_DIR"), "/digits.rs"));
include!(concat!(env!("OUT_DIR"), "/awkward.rs"));

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::new(1)?;
    let weights = concat!(env!("OUT_DIR"), "/digits.weights");
    let (first, second) = (digits::Model::load(weights)?, awkward::Model::load()?);
    let (mut first, mut second) = (first.context(&pool)?, second.context(&pool)?);

    let pixels: Vec<f32> = (0..128u8).map(|i| ((u32::from(i) * 37) % 17) as f32).collect();
    let (mut digit, mut probabilities) = ([0; 2], [0f32; 20]);
    let outputs = digits::Outputs { digit: &mut digit, probabilities: &mut probabilities };
    first.run(digits::Inputs { image: &pixels }, outputs)?;
    println!("{digit:?} {:08x?}", probabilities.map(f32::to_bits));

    let values = [1.0, -2.0, 3.0, 4.0, 5.0, -6.0].map(f16::from_f32);
    let inputs = awkward::Inputs { type_: &values, inputs: &[1, 1, 0], type_2: &[2] };
    let (mut numbers, mut positive) = ([9.0; 7], [7; 6]);
    let extents = awkward::Extents { rows: 2 };
    println!("{:?} {:?}", second.shapes(extents, inputs)?, awkward::Extents::ROWS);
    second.run(extents, inputs, awkward::Outputs { output0: &mut numbers, self_: &mut positive })?;
    println!("{numbers:?} {positive:?} {} {:?}", awkward::INPUTS[2].name, awkward::OUTPUTS[0].dims);

    // Files that are no weights of the model, and too few elements, are errors.
    println!("{}", digits::Model::load(file!()).map_or_else(|e| e.to_string(), |_| String::new()));
    let outputs = awkward::Outputs { output0: &mut numbers[..5], self_: &mut positive };
    println!("{}", second.run(extents, inputs, outputs).map_or_else(|e| e.to_string(), |()| String::new()));
    Ok(())
}
"#;

#[test]
fn two_models_share_a_program() {
    if !can_build() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [text, source] = ["awkward.tc", "main.rs"].map(|file| dir.path().join(file));
    std::fs::write(&text, AWKWARD).unwrap();
    std::fs::write(&source, TWO_MODELS).unwrap();
    let digits = examples().join("digits/digits.onnx");
    let write = |model: BuildModel| -> BuiltModel { model.target("native").out_dir(dir.path()).write().unwrap() };
    let first = write(BuildModel::new(&digits).shape("batch", &[2]).weights_in_file());
    let second = write(BuildModel::new(&text).range("Rows", 1..=3));
    assert_eq!((first.weights.is_some(), second.weights), (true, None));
    let lines = printed(&source, dir.path(), &(first.instructions + &second.instructions));

    let model = Compiler::new(Options::default()).unwrap().load(&digits).unwrap();
    let outputs = model.run(&[("image", Tensor::from_f32(&[2, 1, 8, 8], &images(2)).unwrap())]).unwrap();
    let words = |bytes: &[u8]| -> Vec<u32> {
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    };
    assert_eq!(outputs[0].1.dtype(), DType::I64);
    let digit: Vec<u32> = words(outputs[0].1.bytes()).into_iter().step_by(2).collect();
    assert_eq!(lines[0], format!("{digit:?} {:08x?}", words(outputs[1].1.bytes())));
    assert_eq!(lines[1], "[[2, 3], [2, 3]] 1..=3");
    assert_eq!(lines[2], "[2.0, -4.0, 0.0, 8.0, 10.0, 0.0, 9.0] [1, 0, 0, 1, 1, 0] Type [Named(\"Rows\"), Fixed(3)]");
    assert!(lines[3].ends_with("the weights are missing, damaged or those of another model"), "{}", lines[3]);
    assert_eq!(lines[4], "output `output0` needs 24 bytes at a multiple of 4, 20 are given");
}

#[test]
fn shapes_that_do_not_fit_are_errors_that_name_input_and_range() {
    let dir = tempfile::tempdir().unwrap();
    let digits = || BuildModel::new(examples().join("digits/digits.onnx")).target("native").out_dir(dir.path());
    // What a build script prints whose `main` returns the error.
    let fail = |model: BuildModel| format!("{:?}", model.write().err().unwrap());
    let inputs = "the inputs are `image` f32[?batch, 1, 8, 8]";
    for (model, reason) in [
        (digits().range("bath", 1..=4), format!("1..=4 is no shape or range for `bath`; {inputs}")),
        (digits().shape("batch", &[1, 2]), format!("[1, 2] is no shape or range for `batch`; {inputs}")),
        (digits().shape("image", &[1, 1, 9, 9]), format!("[1, 1, 9, 9] is no shape or range for `image`; {inputs}")),
        (digits().range("batch", RangeInclusive::new(4, 1)), "the range 4..=1 of `batch` is empty".to_owned()),
        (digits().range_by("batch", 2..=9, 0), "the range 2..=9/0 of `batch` has a step of 0".to_owned()),
        (digits().range("batch", 1..=1 << 40), "has extents that no axis has".to_owned()),
        (digits().range_by("batch", 2..=9, 3), "the range 2..=9/3 of `batch` does not end at a step".to_owned()),
        (digits(), "the shapes of inputs are open: `image` f32[?batch, 1, 8, 8]; give a dimension".to_owned()),
        (digits().range("batch", 1..=2).name("no-name"), "`no-name` is no name in C".to_owned()),
    ] {
        let message = fail(model);
        assert!(message.contains("digits.onnx: ") && message.contains(&reason), "{message}");
    }
    let text = dir.path().join("sum.tc");
    std::fs::write(&text, "graph @sum(%x: f32[?n, 4], %y: f32[3, 4]) {\n  %0 = add(%x, %y)\n  return %0\n}\n").unwrap();
    let message = fail(BuildModel::new(&text).range("n", 1..=4).target("native").out_dir(dir.path()));
    assert!(message.contains("sum.tc: with n = 2: "), "{message}");
    let message = fail(digits().range("batch", 1..=2).target("m68k"));
    assert!(message.starts_with("unsupported target `m68k`"), "{message}");
    let message = fail(BuildModel::new("nowhere.onnx").target("native").out_dir(dir.path()));
    assert!(message.starts_with("cannot open the model nowhere.onnx: "), "{message}");
    // Outside of a build script there is no folder.
    if std::env::var_os("OUT_DIR").is_none() {
        let message = fail(BuildModel::new("digits.onnx").target("native"));
        assert_eq!(message, "OUT_DIR is not set: outside of a build script, give `out_dir`");
    }
}
