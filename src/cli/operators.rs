//! `tensorc ops`: the operator reference, generated from the registry.

use std::fmt::Write;

use clap::Args;
use tensorc::ir::op::OpDef;

use super::{Failure, print};

#[derive(Args)]
pub struct OpsArgs {
    /// Only operators whose name, here or in ONNX or MXNet, contains this text
    filter: Option<String>,
}

pub fn run(args: &OpsArgs) -> Result<(), Failure> {
    let registry = tensorc::ops::registry()?;
    let mut text = String::new();
    for op in registry.iter().filter(|op| args.filter.as_ref().is_none_or(|f| is_called(op, f))) {
        describe(op, &mut text)?;
    }
    print(&text)
}

fn is_called(op: &OpDef, text: &str) -> bool {
    let onnx = op.names.onnx.iter().map(|(name, _)| *name);
    onnx.chain(op.names.mxnet.iter().copied()).chain([op.name]).any(|name| name.contains(text))
}

fn describe(op: &OpDef, text: &mut String) -> std::fmt::Result {
    let operands: Vec<String> = op
        .inputs
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let dots = if op.variadic && i + 1 == op.inputs.len() { "…" } else { "" };
            format!("{}{dots}{}", s.name, if s.optional { "?" } else { "" })
        })
        .collect();
    writeln!(text, "{}({})", op.name, operands.join(", "))?;
    writeln!(text, "    {}", op.doc)?;
    for p in &op.params {
        let default = match (&p.default, p.required) {
            (Some(d), _) => format!(" = {d:?}"),
            (None, true) => ", required".into(),
            (None, false) => String::new(),
        };
        writeln!(text, "    {}: {}{default}  {}", p.name, p.kind.name(), p.doc)?;
    }
    let onnx: Vec<String> = op.names.onnx.iter().map(|(n, v)| format!("{n}-{v}")).collect();
    if !onnx.is_empty() || !op.names.mxnet.is_empty() {
        writeln!(text, "    onnx: {}  mxnet: {}", onnx.join(", "), op.names.mxnet.join(", "))?;
    }
    writeln!(text)
}
