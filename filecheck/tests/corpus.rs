//! Runs the text tests of this folder, `filecheck/<pass>/*.tc`, with the `tensorc` command.

use std::path::{Path, PathBuf};
use std::process::Command;

use tensorc_filecheck::run::run_corpus;

/// The `tensorc` binary of the build that this test belongs to; it is built if it is not there.
fn tensorc() -> PathBuf {
    let filecheck = Path::new(env!("CARGO_BIN_EXE_filecheck"));
    let path = filecheck.with_file_name("tensorc");
    if !path.is_file() {
        // <target folder>/release/filecheck
        let target = filecheck.ancestors().nth(2).unwrap_or(Path::new("target"));
        let status = Command::new(env!("CARGO"))
            .args(["build", "--release", "-p", "tensorc", "--bin", "tensorc", "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(status.is_ok_and(|status| status.success()), "tensorc does not build");
    }
    path
}

#[test]
fn corpus() {
    let tools = [("filecheck", PathBuf::from(env!("CARGO_BIN_EXE_filecheck"))), ("tensorc", tensorc())];
    let tools = tools.each_ref().map(|(name, path)| (*name, path.as_path()));
    let features = [std::env::consts::ARCH, std::env::consts::OS];
    match run_corpus(Path::new(env!("CARGO_MANIFEST_DIR")), &tools, &features) {
        Ok(summary) => {
            println!("{summary}");
            assert!(summary.is_success(), "text tests failed");
        }
        Err(error) => panic!("{error}"),
    }
}
