//! Libraries and programs of a compiled model, made by the C compiler's linker, and the seal on them.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tensorc_abi::seal;
use tensorc_codegen::isa::{Arch, Isa};

/// The run-time library for the machine of the compiler.
const OWN_LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libtensorc_rt.a"));
/// The machine of the compiler, as `rustc` names it.
pub const OWN_TARGET: &str = env!("TENSORC_RT_TARGET");

/// What is made of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkOutput {
    /// An archive of the object and the run-time library.
    StaticLibrary,
    /// A shared library.
    SharedLibrary,
    /// A program.
    Program,
}

/// Where linking finds what it needs.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    /// The C compiler that links; by default `$CC` or `cc`, and for other machines GNU's, as `aarch64-linux-gnu-gcc`.
    pub linker: Option<OsString>,
    /// `libtensorc_rt.a` for the target; the compiler carries the one for its own machine.
    pub library: Option<PathBuf>,
}

/// Why there is no library or program.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum LinkError {
    /// A file cannot be read or written.
    #[error("{path}: {source}", path = path.display())]
    File { path: PathBuf, source: io::Error },
    /// The linker cannot be run.
    #[error("the linker `{linker}` cannot be run: {source}")]
    Linker { linker: String, source: io::Error },
    /// The linker failed.
    #[error("the linker `{linker}` failed: {message}")]
    Failed { linker: String, message: String },
    /// There is no run-time library for the target.
    #[error(
        "the run-time library for {target} is not part of this compiler: build it in the sources of tensorc with `cargo \
         build --release --manifest-path rt/Cargo.toml --target {triple}` and give it with --runtime-library"
    )]
    Library { target: Isa, triple: &'static str },
}

/// Makes a library or program of an object and writes it to `out`, sealed if it can be loaded.
///
/// # Errors
/// The linker or the run-time library is missing, or linking fails; a file cannot be written.
pub fn link(
    product: LinkOutput,
    name: &str,
    object: &[u8],
    target: Isa,
    tools: &Tools,
    out: &Path,
) -> Result<(), LinkError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        |source| LinkError::File { path, source }
    };
    let dir = tempfile::tempdir().map_err(file(&std::env::temp_dir()))?;
    let write = |name: String, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).map_err(file(&path))?;
        Ok(path)
    };
    let library = match &tools.library {
        Some(path) => std::fs::read(path).map_err(file(path))?,
        None if target.arch() == own_arch() => OWN_LIBRARY.to_vec(),
        None => return Err(LinkError::Library { target, triple: rust_triple(target) }),
    };
    let (object, library) = (write(format!("{name}.o"), object)?, write("libtensorc_rt.a".into(), &library)?);
    let mut command;
    let made = dir.path().join("made");
    if product == LinkOutput::StaticLibrary {
        std::fs::copy(&library, &made).map_err(file(&made))?;
        command = Command::new(archiver(target));
        command.arg("rcsD").arg(&made).arg(&object);
    } else {
        command = Command::new(linker(target, tools));
        // Constants may share pages with code: a program is some pages smaller than if each began one of its own.
        command.args(["-Wl,--gc-sections", "-Wl,--build-id=none", "-Wl,-z,defs", "-Wl,-z,noseparate-code"]);
        if product == LinkOutput::SharedLibrary {
            let own = "tc_rt_status_text; tc_rt_threads_start; tc_rt_threads_stop";
            let script = format!("{{ global: {name}_*; {own}; local: *; }};\n");
            let script = write("exports".into(), script.as_bytes())?;
            let file_name = out.file_name().unwrap_or_default().to_string_lossy();
            command.args(["-shared".to_owned(), format!("-Wl,-soname,{file_name}")]);
            command.arg(format!("-Wl,--version-script={}", script.display()));
        }
        command.arg("-o").args([&made, &object, &library]).args(["-lm", "-lpthread", "-ldl"]);
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|source| LinkError::Linker { linker: program.clone(), source })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(LinkError::Failed { linker: program, message });
    }
    let mut bytes = std::fs::read(&made).map_err(file(&made))?;
    if product != LinkOutput::StaticLibrary {
        seal::close(&mut bytes);
    }
    crate::write_file(out, &bytes).map_err(|error| file(out)(error.source))?;
    // A program is executable; a device stays what it is.
    if out.is_file() {
        let permissions = std::fs::metadata(&made).map_err(file(&made))?.permissions();
        std::fs::set_permissions(out, permissions).map_err(file(out))?;
    }
    Ok(())
}

fn own_arch() -> Arch {
    match OWN_TARGET.split('-').next() {
        Some("aarch64") => Arch::Aarch64,
        Some("riscv64gc" | "riscv64") => Arch::Riscv64,
        _ => Arch::X86_64,
    }
}

/// The target as `rustc` names it.
fn rust_triple(target: Isa) -> &'static str {
    match target.arch() {
        Arch::X86_64 => "x86_64-unknown-linux-gnu",
        Arch::Aarch64 => "aarch64-unknown-linux-gnu",
        Arch::Riscv64 => "riscv64gc-unknown-linux-gnu",
    }
}

/// The beginning of the names of GNU's tools for another machine.
fn prefix(target: Isa) -> &'static str {
    match target.arch() {
        arch if arch == own_arch() => "",
        Arch::X86_64 => "x86_64-linux-gnu-",
        Arch::Aarch64 => "aarch64-linux-gnu-",
        Arch::Riscv64 => "riscv64-linux-gnu-",
    }
}

fn linker(target: Isa, tools: &Tools) -> OsString {
    let prefix = prefix(target);
    let default = || match prefix {
        "" => std::env::var_os("CC").unwrap_or_else(|| "cc".into()),
        _ => format!("{prefix}gcc").into(),
    };
    tools.linker.clone().unwrap_or_else(default)
}

fn archiver(target: Isa) -> OsString {
    format!("{}ar", prefix(target)).into()
}
