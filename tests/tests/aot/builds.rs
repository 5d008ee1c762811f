//! Compiled models in C++, and in the build systems of C and C++ as `docs/aot.md` shows them.

use std::process::Command;

use tensorc::aot::link::LinkOutput;

use super::programs::{example, run_example};
use super::{checked, exists};
use crate::support::examples;
use tensorc_tests::cache::visible;

/// The first block of code behind some words of the documentation.
fn documented(words: &str) -> String {
    let text = std::fs::read_to_string(examples().join("../docs/aot.md")).unwrap();
    let behind = text.split_once(words).unwrap_or_else(|| panic!("docs/aot.md does not say `{words}`")).1;
    let block = behind.split("```").nth(1).unwrap();
    block.split_once('\n').unwrap().1.to_owned()
}

#[test]
fn a_c_plus_plus_program_runs_the_model() {
    let Some((dir, library, lines)) = example(LinkOutput::StaticLibrary, "digits.a", "native") else { return };
    if !exists("c++") {
        visible("skipped: there is no C++ compiler `c++`");
        return;
    }
    let program = dir.path().join("classify");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]).arg(dir.path());
    compiler.arg(examples().join("cpp/classify.cpp")).arg(library).args(["-lm", "-lpthread", "-o"]).arg(&program);
    checked(&mut compiler);
    // It has one context where the example in C has two.
    assert_eq!(run_example(Command::new(&program), dir.path()), lines[2..]);
    let output = Command::new(program).args(["nowhere", "nothing"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "nowhere: the file of weights cannot be read\n");
}

#[test]
fn cmake_links_the_library_as_documented() {
    if !exists("cmake") {
        visible("skipped: there is no `cmake`");
        return;
    }
    let Some((dir, _, lines)) = example(LinkOutput::SharedLibrary, "digits.so", "native") else { return };
    let [project, build] = ["project", "build"].map(|name| dir.path().join(name));
    std::fs::create_dir(&project).unwrap();
    let lists = format!(
        "cmake_minimum_required(VERSION 3.16)\nproject(example C)\nadd_executable(program {})\n{}",
        examples().join("c/classify.c").canonicalize().unwrap().display(),
        documented("With CMake:")
    );
    std::fs::write(project.join("CMakeLists.txt"), lists).unwrap();
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&project).arg("-B").arg(&build).arg(format!("-DDIR={}", dir.path().display()));
    checked(&mut configure);
    checked(Command::new("cmake").arg("--build").arg(&build));
    assert_eq!(run_example(Command::new(build.join("program")), dir.path()), lines);
}

#[test]
fn pkg_config_finds_the_library_as_documented() {
    if !exists("pkg-config") {
        visible("skipped: there is no `pkg-config`");
        return;
    }
    let Some((dir, _, lines)) = example(LinkOutput::StaticLibrary, "digits.a", "native") else { return };
    std::fs::write(dir.path().join("digits.pc"), documented("with pkg-config, `digits.pc`:")).unwrap();
    let mut pkg_config = Command::new("pkg-config");
    pkg_config.env("PKG_CONFIG_PATH", dir.path()).args(["--cflags", "--libs", "digits"]);
    let flags = String::from_utf8(checked(&mut pkg_config).stdout).unwrap();
    let program = dir.path().join("classify");
    let mut cc = Command::new("cc");
    cc.arg(examples().join("c/classify.c")).args(flags.split_whitespace()).arg("-o").arg(&program);
    checked(&mut cc);
    assert_eq!(run_example(Command::new(program), dir.path()), lines);
}
