//! `tensorc opt`.
use clap::Args;
use super::Failure;
#[derive(Args)]
pub struct OptArgs {}
pub fn run(_: &OptArgs) -> Result<(), Failure> { Ok(()) }
