//! Builds the run-time library of artifacts, which the compiler carries inside it: a workspace of its own, since it goes without the
//! standard library.
//!
//! In the repository its package is `rt/`. A published crate cannot contain another package: it contains the sources as
//! `src/aot/rt` and the manifest as `src/aot/rt.toml`, which are symbolic links in the repository. Cargo then takes the
//! dependencies of the library from the registry of this crate's dependencies.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::LittleEndian;
use object::elf::{FileHeader64, SHF_ALLOC, SHF_EXCLUDE};
use object::read::archive::ArchiveFile;
use object::read::elf::{FileHeader, SectionHeader};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let target = env::var("TARGET")?;
    println!("cargo::rustc-env=TENSORC_RT_TARGET={target}");
    let library = out.join("libtensorc_rt.a");
    if env::var_os("DOCS_RS").is_some() {
        // Documentation is made where nothing can be written but documentation; it calls no linker.
        return Ok(std::fs::write(library, [])?);
    }
    let built = if root.join("rt/Cargo.toml").exists() {
        build_in_repository(&root, &out, &target)?
    } else {
        build_from_package(&root, &out, &target)?
    };
    let mut bytes = std::fs::read(built)?;
    exclude_unwind_tables(&mut bytes)?;
    Ok(std::fs::write(library, bytes)?)
}

/// Builds `rt/`, with the versions of its lock file.
fn build_in_repository(root: &Path, out: &Path, target: &str) -> Result<PathBuf, Box<dyn Error>> {
    for source in ["rt/src", "rt/Cargo.toml", "rt/Cargo.lock", "abi/src", "abi/Cargo.toml", "exec/src", "kernels/src"] {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let built = out.join("rt");
    let status = cargo(&root.join("rt/Cargo.toml"), &built, target)?.arg("--locked").status()?;
    finished(status.success(), &built, target)
}

/// Builds the sources in the package.
fn build_from_package(root: &Path, out: &Path, target: &str) -> Result<PathBuf, Box<dyn Error>> {
    println!("cargo::rerun-if-changed=src/aot/rt");
    println!("cargo::rerun-if-changed=src/aot/rt.toml");
    // Below the folder of the program that is built, whose configuration of cargo is found so.
    let (package, built) = (out.join("rt-package"), out.join("rt"));
    std::fs::create_dir_all(&package)?;
    let manifest = package.join("Cargo.toml");
    let text = std::fs::read_to_string(root.join("src/aot/rt.toml"))?;
    std::fs::write(&manifest, published(&text, &root.join("src/aot/rt/lib.rs")))?;
    // All that it depends on was fetched for this crate; only if versions differ, others are to be fetched.
    let fetched = cargo(&manifest, &built, target)?.arg("--offline").current_dir(&package).output()?.status;
    let done = fetched.success() || cargo(&manifest, &built, target)?.current_dir(&package).status()?.success();
    finished(done, &built, target)
}

/// The manifest of `rt/` for sources that lie elsewhere, whose dependencies are published.
fn published(manifest: &str, source: &Path) -> String {
    let mut text = String::new();
    for line in manifest.lines() {
        let without_path = line.split_once("path = \"../").and_then(|(before, rest)| {
            let (_, after) = rest.split_once("\", ")?;
            Some(format!("{before}{after}"))
        });
        text += &without_path.unwrap_or_else(|| line.to_owned());
        text.push('\n');
        if line == "[lib]" {
            text += &format!("path = {:?}\n", source.display().to_string());
        }
    }
    text
}

/// A build of a manifest's library for a target into a folder.
fn cargo(manifest: &Path, folder: &Path, target: &str) -> Result<Command, Box<dyn Error>> {
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo.args(["build", "--release", "--quiet", "--target", target]);
    cargo.arg("--manifest-path").arg(manifest).arg("--target-dir").arg(folder);
    // What is meant for this workspace: lints, instrumentation, profiles.
    for name in ["RUSTC_WORKSPACE_WRAPPER", "RUSTC_WRAPPER", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CLIPPY_ARGS"] {
        cargo.env_remove(name);
    }
    // Nothing unwinds there.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Cforce-unwind-tables=no");
    Ok(cargo)
}

/// The library that a build left, if it succeeded.
fn finished(success: bool, folder: &Path, target: &str) -> Result<PathBuf, Box<dyn Error>> {
    match success {
        true => Ok(folder.join(target).join("release/libtensorc_rt.a")),
        false => Err("building the run-time library of artifacts failed".into()),
    }
}

/// Keeps linkers from copying unwind tables: the core library comes compiled with them, which is a twentieth of a small program.
fn exclude_unwind_tables(library: &mut [u8]) -> Result<(), Box<dyn Error>> {
    /// Where the flags are in the header of a section.
    const FLAGS: u64 = 8;
    let mut changes = vec![];
    for member in ArchiveFile::parse(&*library)?.members() {
        let member = member?;
        let data = member.data(&*library)?;
        let Ok(header) = FileHeader64::<LittleEndian>::parse(data) else { continue };
        let Ok(endian) = header.endian() else { continue };
        let sections = header.sections(endian, data)?;
        for (section, i) in sections.iter().zip(0..) {
            if sections.section_name(endian, section)? == b".eh_frame" {
                let headers = member.file_range().0 + header.e_shoff(endian);
                let at = headers + i * u64::from(header.e_shentsize(endian)) + FLAGS;
                let flags = section.sh_flags(endian) & !u64::from(SHF_ALLOC) | u64::from(SHF_EXCLUDE);
                changes.push((usize::try_from(at)?, flags));
            }
        }
    }
    for (at, flags) in changes {
        library[at..][..size_of::<u64>()].copy_from_slice(&flags.to_le_bytes());
    }
    Ok(())
}
