//! The program: the steps, and under the name `tensorc` the compiler's command line.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let name = std::env::args_os().next().map(PathBuf::from);
    match name.as_deref().and_then(|path| path.file_name()) {
        Some(name) if name == "tensorc" => tensorc_cli::main(),
        _ => tensorc_gpu::cli::main(),
    }
}
