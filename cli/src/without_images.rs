//! The commands `im2rec` and `records` of a program that was built without the feature `images`.

use std::ffi::OsString;

use clap::Args;

use super::failure::{CliFailure, Usage};

#[derive(Args)]
pub struct AnyArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _args: Vec<OsString>,
}

/// The error that names the feature.
pub fn run(command: &str) -> Result<(), CliFailure> {
    Err(Usage(format!(
        "{command}: tensorc was built without the feature `images` (`cargo build --release --features images`)"
    ))
    .into())
}
