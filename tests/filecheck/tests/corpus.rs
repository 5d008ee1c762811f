//! Runs the text tests, `filecheck/<pass>/*.tc`, with the `tensorc` command.

use std::path::{Path, PathBuf};
use std::process::Command;

use tensorc_filecheck::run::run_corpus;

/// The folder of the text tests.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../filecheck");

/// The `tensorc` binary of the build that this test belongs to; it is built if it is not there.
fn tensorc() -> PathBuf {
    let filecheck = Path::new(env!("CARGO_BIN_EXE_filecheck"));
    let path = filecheck.with_file_name("tensorc");
    if !path.is_file() {
        // <target folder>/release/filecheck
        let target = filecheck.ancestors().nth(2).unwrap_or(Path::new("target"));
        let status = Command::new(env!("CARGO"))
            .args(["build", "--release", "-p", "tensorc-cli", "--bin", "tensorc", "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(status.is_ok_and(|status| status.success()), "tensorc does not build");
    }
    path
}

/// A command that runs `tensorc`, with a back end wherever code runs and none is named. What is printed stays that of
/// the default one.
fn with_backend(tensorc: &Path, backend: &str) -> std::io::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let path = tensorc.with_file_name(format!("tensorc-{backend}"));
    let real = tensorc.display();
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n  *--backend*) ;;\n  *--check-values*|run*) exec '{real}' \"$@\" --backend={backend} ;;\n\
         esac\nexec '{real}' \"$@\"\n"
    );
    std::fs::write(&path, script)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Whether this `tensorc` was built with LLVM.
fn has_llvm(tensorc: &Path) -> bool {
    let output = Command::new(tensorc).args(["opt", "--print-cost-model", "--backend=llvm"]).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn corpus() {
    let mut tensorc = tensorc();
    let mut features = vec![std::env::consts::ARCH, std::env::consts::OS];
    if has_llvm(&tensorc) {
        features.push("llvm");
    }
    // What tables of bytes take.
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512dq") && std::arch::is_x86_feature_detected!("avx512vl") {
        features.push("avx512");
    }
    // What `--precision bf16` takes to run.
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512bf16") {
        features.push("bf16");
    }
    if let Ok(backend) = std::env::var("TENSORC_BACKEND") {
        tensorc = match with_backend(&tensorc, &backend) {
            Ok(path) => path,
            Err(error) => panic!("no command for the back end: {error}"),
        };
    }
    let tools = [("filecheck", PathBuf::from(env!("CARGO_BIN_EXE_filecheck"))), ("tensorc", tensorc)];
    let tools = tools.each_ref().map(|(name, path)| (*name, path.as_path()));
    match run_corpus(Path::new(CORPUS), &tools, &features) {
        Ok(summary) => {
            println!("{summary}");
            assert!(summary.is_success(), "text tests failed");
        }
        Err(error) => panic!("{error}"),
    }
}
