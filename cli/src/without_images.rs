//! Stand-ins for `im2rec` and `records` in a program that was built without the feature `images`.

use std::ffi::OsString;

use clap::Args;

use super::failure::{CliFailure, Usage};

/// Any arguments.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct AnyArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _args: Vec<OsString>,
}

fn missing(command: &str) -> CliFailure {
    let feature = "tensorc was built without the feature `images` (`cargo build --release --features images`)";
    Usage(format!("{command}: {feature}")).into()
}

pub mod im2rec {
    pub use super::AnyArgs as Im2RecArgs;

    pub fn run(_: &Im2RecArgs) -> Result<(), super::CliFailure> {
        Err(super::missing("im2rec"))
    }
}

pub mod records {
    pub use super::AnyArgs as RecordsArgs;

    pub fn run(_: &RecordsArgs) -> Result<(), super::CliFailure> {
        Err(super::missing("records"))
    }
}
