//! `tensorc inspect`.
use super::Failure;
use clap::Args;
#[derive(Args)]
pub struct InspectArgs {}
pub fn run(_: &InspectArgs) -> Result<(), Failure> {
    Ok(())
}
