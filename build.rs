//! Builds the run-time library of artifacts (`rt/`), which the compiler carries inside it: a workspace of its own,
//! since it goes without the standard library.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    for source in ["rt/src", "rt/Cargo.toml", "rt/Cargo.lock", "abi/src", "abi/Cargo.toml", "exec/src", "kernels/src"] {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let target = env::var("TARGET")?;
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo.args(["build", "--release", "--locked", "--quiet", "--target", &target]);
    cargo.arg("--manifest-path").arg(root.join("rt/Cargo.toml"));
    cargo.arg("--target-dir").arg(out.join("rt"));
    // What is meant for this workspace: lints, instrumentation, profiles.
    for name in ["RUSTC_WORKSPACE_WRAPPER", "RUSTC_WRAPPER", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CLIPPY_ARGS"] {
        cargo.env_remove(name);
    }
    // Nothing unwinds there.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Cforce-unwind-tables=no");
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("building the run-time library of artifacts: {status}").into());
    }
    let library = Path::new("rt").join(&target).join("release/libtensorc_rt.a");
    std::fs::copy(out.join(library), out.join("libtensorc_rt.a"))?;
    println!("cargo::rustc-env=TENSORC_RT_TARGET={target}");
    Ok(())
}
