//! `tensorc inspect`.
use clap::Args;
use super::Failure;
#[derive(Args)]
pub struct InspectArgs {}
pub fn run(_: &InspectArgs) -> Result<(), Failure> { Ok(()) }
