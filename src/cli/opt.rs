//! `tensorc opt`.
use super::Failure;
use clap::Args;
#[derive(Args)]
pub struct OptArgs {}
pub fn run(_: &OptArgs) -> Result<(), Failure> {
    Ok(())
}
