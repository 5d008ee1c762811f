//! Builds the run-time library of artifacts (`rt/`), which the compiler carries inside it: a workspace of its own,
//! since it goes without the standard library.

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
    let built = Path::new("rt").join(&target).join("release/libtensorc_rt.a");
    let mut library = std::fs::read(out.join(built))?;
    exclude_unwind_tables(&mut library)?;
    std::fs::write(out.join("libtensorc_rt.a"), library)?;
    println!("cargo::rustc-env=TENSORC_RT_TARGET={target}");
    Ok(())
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
