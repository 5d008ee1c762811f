//! The program `tensorc`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tensorc_cli::main()
}
