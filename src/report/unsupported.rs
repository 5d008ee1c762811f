//! The report of a model that is not imported: every operator that is not supported, and the graph of the file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use tensorc_frontend::onnx::{OnnxError, sketch};

use super::ModelReport;
use super::nodes::{Fate, NodeRow, Nodes};
use super::strings::Strings;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::source::ModelSource;

/// Something of the model that is not supported.
#[derive(Serialize)]
pub(super) struct Refused {
    /// An operator with its domain and version, or an input or initializer.
    pub what: String,
    pub reason: String,
    /// Names of nodes or values.
    pub nodes: Vec<String>,
}

impl ModelReport {
    /// The report of an ONNX file that loading refused with this error; `None` if the error is another than operators or values
    /// that are not supported.
    pub fn of_refused(compiler: &Compiler, path: &Path, error: &Error) -> Option<ModelReport> {
        let Error::Onnx { source, .. } = error else { return None };
        let OnnxError::Unsupported(list) = &**source else { return None };
        let mut refused: Vec<Refused> = vec![];
        for op in list.ops() {
            let version = op.opset.map_or_else(|| "not imported".to_owned(), |v| format!("opset {v}"));
            let what = format!("{} ({}, {version})", op.op, op.domain);
            refused.push(Refused { what, reason: op.reason, nodes: op.nodes });
        }
        for (what, name, reason) in list.values() {
            refused.push(Refused { what: what.to_owned(), reason: reason.to_owned(), nodes: vec![name.to_owned()] });
        }
        let mut strings = Strings::default();
        let rows = rows(compiler, path, &refused);
        Some(ModelReport {
            model: String::new(),
            version: env!("CARGO_PKG_VERSION"),
            target: String::new(),
            notes: vec![],
            inputs: vec![],
            outputs: vec![],
            nodes: Nodes::of(&rows, &[], &mut strings),
            strings,
            parts: vec![],
            machine: None,
            errors: None,
            unsupported: refused,
            rows,
        })
    }
}

/// The nodes of the file, as far as it can be read, with those that are refused.
fn rows(compiler: &Compiler, path: &Path, refused: &[Refused]) -> Vec<NodeRow> {
    let Ok(model) = ModelSource::file(path).open(compiler) else { return vec![] };
    let refused: BTreeSet<&str> = refused.iter().flat_map(|r| &r.nodes).map(String::as_str).collect();
    let mut made: BTreeMap<String, u32> = BTreeMap::new();
    let mut rows: Vec<NodeRow> = vec![];
    for node in sketch(&model) {
        let mut args: Vec<u32> = node.inputs.iter().filter_map(|name| made.get(name).copied()).collect();
        args.dedup();
        let fate = match refused.contains(node.name.as_str()) {
            true => Fate::Unsupported,
            false if node.op == "input" => Fate::Edge,
            false => Fate::Unknown,
        };
        made.extend(node.outputs.into_iter().map(|name| (name, rows.len() as u32)));
        let name: Arc<str> = node.name.into();
        rows.push(NodeRow { name, op: node.op, ty: String::new(), args, constants: vec![], fate, within: 0 });
    }
    rows
}
