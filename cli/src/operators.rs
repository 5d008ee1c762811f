//! `tensorc ops`: the operator reference, generated from the registry.

use clap::Args;
use tensorc::op::reference;

use super::failure::CliFailure;
use super::output::print;

#[derive(Args)]
pub struct OpsArgs {
    /// Only operators whose name here, in ONNX or in MXNet contains this text
    filter: Option<String>,
}

pub fn run(args: &OpsArgs) -> Result<(), CliFailure> {
    let registry = tensorc::ops::registry()?;
    let wanted = |name: &str| args.filter.as_ref().is_none_or(|part| name.contains(part.as_str()));
    let chosen = registry.iter().filter(|op| {
        wanted(op.name) || op.names.mxnet.iter().any(|n| wanted(n)) || op.names.onnx.iter().any(|n| wanted(n.name))
    });
    print(&chosen.map(|op| reference(op)).collect::<Vec<_>>().join("\n"))
}
