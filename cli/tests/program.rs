//! The program as a shell calls it: help, completions, manual pages, what it says of a machine, and errors with what to do next.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tensorc_data::formats::{ArrayRef, StoredArray, StoredTexts, read_stored_arrays, write_stored_arrays};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tensorc");

fn tensorc(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

/// What a call that succeeds prints.
#[track_caller]
fn printed(arguments: &[&str]) -> String {
    let output = tensorc(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn commands() -> Vec<String> {
    tensorc_cli::command().get_subcommands().map(|c| c.get_name().to_owned()).collect()
}

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path)
}

#[test]
fn help_lists_commands_by_what_they_are_for() {
    let help = printed(&["--help"]);
    let heading = |line: &&str| line.ends_with(':') && !line.starts_with(' ');
    let headings: Vec<&str> = help.lines().filter(heading).collect();
    assert_eq!(headings, ["Run and measure:", "Compile:", "Look:", "Data:", "Help:", "Options:"]);
    for command in commands() {
        let listed = help.lines().filter(|line| line.starts_with(&format!("  {command} "))).count();
        assert_eq!(listed, 1, "{command}");
    }
    assert_eq!(help, printed(&["help"]));
    assert!(!help.contains('\u{1b}'), "colours where there is no terminal");
}

#[test]
fn help_of_every_command_has_examples_and_headings() {
    // Without the feature, these say that it is missing.
    let absent: &[&str] = if cfg!(feature = "images") { &[] } else { &["im2rec", "records"] };
    for command in commands().iter().filter(|name| !absent.contains(&name.as_str())) {
        let help = printed(&[command, "--help"]);
        assert!(help.contains(&format!("Examples:\n  tensorc {command}")), "{help}");
        assert!(!help.contains('\u{1b}'));
    }
    let help = printed(&["run", "--help"]);
    for heading in ["Model and inputs:", "Compilation:", "Output:"] {
        assert!(help.lines().any(|line| line == heading), "{heading}\n{help}");
    }
    // Each option stands under the heading of what it is about.
    let section =
        |title: &str| help.split(&format!("\n{title}:\n")).nth(1).unwrap().split("\n\n").next().unwrap().to_owned();
    assert!(section("Output").contains("--trace") && section("Compilation").contains("--code-cache"));
    assert!(section("Model and inputs").contains("--value"));
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = printed(&["completions", shell]);
        let missing: Vec<String> = commands().into_iter().filter(|name| !script.contains(name.as_str())).collect();
        assert_eq!(missing, [""; 0], "{shell}");
        assert_eq!(script, printed(&["completions", shell]), "{shell}");
    }
}

/// What bash offers for a command line that ends with a word.
fn offered(script: &Path, words: &[&str]) -> Option<BTreeSet<String>> {
    let line = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                _tensorc tensorc \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["-c", line, "bash"]).arg(script).args(words).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect())
}

#[test]
fn bash_completes_commands_and_options() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("tensorc.bash");
    std::fs::write(&script, printed(&["completions", "bash"])).unwrap();
    let Some(found) = offered(&script, &["tensorc", "in"]) else { return println!("skipped: there is no bash") };
    assert_eq!(found, BTreeSet::from(["inspect".to_owned()]));
    let found = offered(&script, &["tensorc", "bench", "--ca"]).unwrap();
    assert_eq!(found, BTreeSet::from(["--callers".to_owned()]));
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let listed = printed(&["man", pages.to_str().unwrap()]);
    let names =
        ["tensorc.1".to_owned()].into_iter().chain(commands().into_iter().map(|name| format!("tensorc-{name}.1")));
    for (name, line) in names.zip(listed.lines()) {
        let path = pages.join(&name);
        assert_eq!(Path::new(line), path);
        let text = std::fs::read_to_string(path).unwrap();
        for part in [".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"] {
            assert!(text.contains(part), "{name} has no {part}");
        }
        assert!(name == "tensorc.1" || text.contains(".SH EXAMPLES\n.TP\n\\fBtensorc "), "{name}");
    }
    assert_eq!(listed.lines().count(), commands().len() + 1);
    assert_eq!(printed(&["man"]), std::fs::read_to_string(pages.join("tensorc.1")).unwrap());
}

/// What `doctor --json` says under an environment of its own.
fn doctor(environment: &[(&str, &str)]) -> Vec<serde_json::Value> {
    let output =
        Command::new(PROGRAM).args(["doctor", "--json"]).env_clear().envs(environment.iter().copied()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    object["checks"].as_array().unwrap().clone()
}

#[test]
fn the_doctor_says_what_there_is_and_what_would_change_it() {
    let topics = [
        "build",
        "processor",
        "caches",
        "cores",
        "memory",
        "code cache",
        "LLVM",
        "GPUs",
        "GPU libraries",
        "ptxas",
        "NCCL",
        "C linker",
        "cross compiling",
        "MPI",
        "Python",
    ];
    // Nothing is found on an empty path, which is no error.
    for environment in [&[("PATH", "/nonexistent")][..], &[("PATH", "/usr/bin:/bin"), ("CC", "no-such-compiler")]] {
        let checks = doctor(environment);
        assert_eq!(checks.iter().map(|check| check["topic"].as_str().unwrap()).collect::<Vec<_>>(), topics);
        for check in &checks {
            assert_eq!(check["works"] == false, check["remedy"].is_string(), "{check}");
            assert!(["found", "means"].iter().all(|key| !check[key].as_str().unwrap().is_empty()), "{check}");
        }
        let linker = checks.iter().find(|check| check["topic"] == "C linker").unwrap();
        assert_eq!(linker["works"], false, "{linker}");
    }
    let threads = doctor(&[]).into_iter().find(|check| check["topic"] == "cores").unwrap()["facts"]["threads"].clone();
    assert_eq!(threads, tensorc::runtime::available_threads());
}

#[test]
fn the_doctor_tries_the_folder_of_the_code_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cache = |path: &str| {
        doctor(&[("TENSORC_CODE_CACHE", path)]).into_iter().find(|check| check["topic"] == "code cache").unwrap()
    };
    let inside = folder.path().join("not/there/yet");
    assert_eq!(cache(inside.to_str().unwrap())["works"], true);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
    assert_eq!(cache("")["works"], false);
    assert_eq!(cache("/proc/no/folder")["works"], false);
    let text = printed(&["doctor"]);
    assert!(text.lines().any(|line| line.starts_with("yes  processor")), "{text}");
    assert!(!text.contains('\u{1b}'));
}

/// A mistake of a newcomer: one line, and at most one more that says what to do.
#[track_caller]
fn fails(arguments: &[&str], status: i32, message: &str, hint: &str) {
    let output = tensorc(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(lines[0].starts_with("tensorc: ") && lines[0].contains(message), "{text}");
    match hint {
        "" => assert_eq!(lines.len(), 1, "{text}"),
        _ => assert!(lines.len() == 2 && lines[1].starts_with("hint: ") && lines[1].contains(hint), "{text}"),
    }
}

#[test]
fn errors_say_what_to_do_next() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let digits = repository("examples/digits/digits.onnx").to_str().unwrap().to_owned();
    let out = folder.path().join("out").to_str().unwrap().to_owned();
    let unknown = file("unknown.tc", b"graph @f(%x: f32[2]) { %y = frobnicate(%x) return %y }");
    let open = file("open.tc", b"graph @f(%x: f32[?n, 2]) { %y = relu(%x) return %y }");
    let large = file("large.tc", b"graph @f(%x: f32[1048576, 1099511627776]) { %y = relu(%x) return %y }");
    let whole = std::fs::read(&digits).unwrap();
    let cut = file("cut.onnx", &whole[..whole.len() / 2]);

    fails(&["run", "missing.onnx"], 1, "missing.onnx", "current folder");
    fails(&["run", &digits, "--input", "missing.npz"], 1, "missing.npz", "current folder");
    fails(&["run", &file("notes.txt", b"some notes")], 1, "notes.txt: not an ONNX model: it is text", "right kind");
    fails(&["run", &cut], 1, "cut.onnx: not an ONNX model: the file is incomplete: at least ", "complete");
    fails(&["run", &digits, "--input", &file("cut.npz", b"PK")], 1, "cut.npz", "complete");
    fails(
        &["run", &digits, "--input", repository("examples/digits/labels.npz").to_str().unwrap()],
        1,
        "label",
        "inspect",
    );
    fails(&["run", &digits, "--shape", "size=3"], 2, "size", "--shape");
    fails(&["run", &digits, "--value", "wrong=3"], 2, "wrong", "tensorc run --help");
    fails(&["compile", &open, "-o", &out], 2, "input `x` is open", "--shape");
    fails(&["run", &unknown], 1, "frobnicate", "tensorc ops");
    fails(&["run", &large], 1, "there is no memory", "smaller batch");
    fails(&["inspect", &large, "--limit", "nodes=1"], 1, "nodes", "--limit");
    fails(
        &["compile", &digits, "-o", &out, "--shape", "batch=1", "--emit=exe", "--linker=no-such-linker"],
        1,
        "linker",
        "$CC",
    );
    if !cfg!(feature = "cuda") {
        fails(&["run", &digits, "--device=gpu"], 1, "CUDA", "--features cuda");
    }
    fails(&["run", &digits, "--backend=gcc"], 2, "gcc", "tensorc run --help");
    let doubles = file("doubles.npz", b"");
    let image = tensorc::runtime::TensorRef::from_slice(&[1, 1, 8, 8], &[0.5f64; 64]);
    write_stored_arrays(&doubles, [("image", ArrayRef::Numbers(image))]).unwrap();
    fails(&["run", &digits, "--input", &doubles], 1, "declared f32, f64 given", "inputs with their types and shapes");
    // A device that is always full.
    if Path::new("/dev/full").exists() {
        let samples = repository("examples/digits/samples.npz").to_str().unwrap().to_owned();
        let full = ["run", &digits, "--input", &samples, "--output", "/dev/full"];
        fails(&full, 1, "/dev/full: No space left on device", "");
    }
    let kept = ["run", &digits, "--precision=bf16", "--keep-f32=no-such-node"];
    fails(&kept, 2, "the model has no node `no-such-node`", "tensorc run --help");
}

/// Arrays of texts are read, printed and written; without them, texts of the model are made up.
#[test]
fn texts_of_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, given, made) = (repository("tests/ml/imputed.onnx"), file("in.npz"), file("out.npz"));
    let model = model.to_str().unwrap();
    write_stored_arrays(&given, [("port", ArrayRef::Texts(&[3, 1], &["nan", "Q", "h\u{e9}"]))]).unwrap();
    let text = printed(&["run", model, "--input", &given]);
    assert_eq!(text, "filled: text[3, 1] [\"S\", \"Q\", \"h\u{e9}\"]\ncode: i64[3, 1] [2, 1, -1]\n");
    printed(&["run", model, "--input", &given, "--output", &made]);
    let arrays = read_stored_arrays(&made).unwrap();
    let StoredArray::Texts(filled) = &arrays[0].1 else { panic!("{arrays:?}") };
    assert_eq!(*filled, StoredTexts { dims: vec![3, 1], texts: ["S", "Q", "h\u{e9}"].map(String::from).to_vec() });
    assert!(matches!(&arrays[1].1, StoredArray::Numbers(codes) if codes.to_vec::<i64>().unwrap() == [2, 1, -1]));
    assert!(printed(&["run", model, "--shape", "n=2"]).contains("filled: text[2, 1] ["));
    assert!(printed(&["bench", model, "--input", &given, "--repeat", "1"]).contains("median"));
    write_stored_arrays(
        &given,
        [("port", ArrayRef::Numbers(tensorc::runtime::TensorRef::from_slice(&[1, 1], &[1i64])))],
    )
    .unwrap();
    let output = tensorc(&["run", model, "--input", &given]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("tensorc: input `port` holds texts, numbers are given"), "{text}");
}
