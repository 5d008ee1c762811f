//! The structure of a symbol file, as it is written.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::super::keys::Attrs;
use crate::symbol::error::SymbolError;

/// Version of files that state none: 0.8.0.
const UNSTATED: u32 = 800;

/// An output of a node, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileEntry {
    pub node: usize,
    pub index: u32,
    pub version: u32,
}

#[derive(Clone, Debug)]
pub struct FileNode {
    /// `null` for a variable.
    pub op: String,
    pub name: String,
    pub attrs: Attrs,
    pub inputs: Vec<FileEntry>,
    pub control: Vec<usize>,
    /// Graphs that the node runs.
    pub subgraphs: Vec<File>,
}

impl FileNode {
    pub fn is_variable(&self) -> bool {
        self.op == "null"
    }
}

/// A graph in a file.
#[derive(Clone, Debug)]
pub struct File {
    pub nodes: Vec<FileNode>,
    pub variables: Vec<usize>,
    pub heads: Vec<FileEntry>,
    pub version: u32,
    /// 0 is an extent, and -1 an unknown one.
    pub np_shape: bool,
}

/// What is wrong with the file, and where.
pub fn wrong(place: impl Into<String>, problem: impl Into<String>) -> SymbolError {
    SymbolError::Structure { place: place.into(), problem: problem.into() }
}

impl File {
    /// # Errors
    /// The text is not JSON or not of this structure.
    pub fn parse(text: &str) -> Result<File, SymbolError> {
        graph("file", &serde_json::from_str(text)?)
    }
}

fn graph(place: &str, value: &Value) -> Result<File, SymbolError> {
    let top = value.as_object().ok_or_else(|| wrong(place, "not an object"))?;
    if let Some(key) =
        top.keys().find(|k| !["nodes", "arg_nodes", "node_row_ptr", "heads", "attrs"].contains(&k.as_str()))
    {
        return Err(wrong(place, format!("field `{key}` is not defined")));
    }
    let field = |key: &str| top.get(key).ok_or_else(|| wrong(place, format!("field `{key}` is missing")));
    let nodes = items(place, "nodes", field("nodes")?)?.iter().enumerate();
    let nodes: Vec<FileNode> = nodes.map(|(i, v)| node(&format!("{place}, node {i}"), v)).collect::<Result<_, _>>()?;
    let heads = entries(place, "heads", field("heads")?)?;
    let variables = numbers(place, "arg_nodes", field("arg_nodes")?)?;
    let attrs = top.get("attrs").and_then(Value::as_object);
    let number = |key: &str| attrs?.get(key)?.as_array()?.get(1)?.as_u64();
    let version = number("mxnet_version").map_or(UNSTATED, |n| u32::try_from(n).unwrap_or(u32::MAX));
    Ok(File { nodes, variables, heads, version, np_shape: number("is_np_shape") == Some(1) })
}

fn node(place: &str, value: &Value) -> Result<FileNode, SymbolError> {
    let fields = value.as_object().ok_or_else(|| wrong(place, "not an object"))?;
    let text = |key: &str| match fields.get(key) {
        Some(Value::String(s)) => Ok(s.clone()),
        Some(_) => Err(wrong(place, format!("field `{key}` is not a string"))),
        None => Err(wrong(place, format!("field `{key}` is missing"))),
    };
    let (op, name) = (text("op")?, text("name")?);
    let place = &format!("{place} `{name}`");
    let mut node = FileNode { op, name, attrs: BTreeMap::new(), inputs: vec![], control: vec![], subgraphs: vec![] };
    for (key, value) in fields {
        match key.as_str() {
            "op" | "name" => {}
            // Files up to 0.8 have parameters and attributes apart.
            "attrs" | "attr" | "param" => attributes(place, key, value, &mut node.attrs)?,
            "inputs" => node.inputs = entries(place, key, value)?,
            "control_deps" => node.control = numbers(place, key, value)?,
            "subgraphs" => {
                let graphs = items(place, key, value)?.iter().enumerate();
                let parse = |(i, v)| graph(&format!("{place}, graph {i}"), v);
                node.subgraphs = graphs.map(parse).collect::<Result<_, _>>()?;
            }
            // Which node's gradient this is, in files up to 0.8; -1 for all that are saved.
            "backward_source_id" => {}
            _ => return Err(wrong(place, format!("field `{key}` is not defined"))),
        }
    }
    Ok(node)
}

fn attributes(place: &str, field: &str, value: &Value, into: &mut Attrs) -> Result<(), SymbolError> {
    let map: &Map<String, Value> =
        value.as_object().ok_or_else(|| wrong(place, format!("field `{field}` is not an object")))?;
    for (key, value) in map {
        let Value::String(text) = value else {
            return Err(wrong(place, format!("attribute `{key}` is not a string")));
        };
        into.insert(key.clone(), text.clone());
    }
    Ok(())
}

fn items<'v>(place: &str, field: &str, value: &'v Value) -> Result<&'v [Value], SymbolError> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| wrong(place, format!("field `{field}` is not a list")))
}

fn numbers(place: &str, field: &str, value: &Value) -> Result<Vec<usize>, SymbolError> {
    let one = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
    let list: Option<Vec<usize>> = items(place, field, value)?.iter().map(one).collect();
    list.ok_or_else(|| wrong(place, format!("field `{field}` is not a list of node numbers")))
}

fn entries(place: &str, field: &str, value: &Value) -> Result<Vec<FileEntry>, SymbolError> {
    let one = |v: &Value| -> Option<FileEntry> {
        let list: Vec<u32> =
            v.as_array()?.iter().map(|n| n.as_u64().and_then(|n| u32::try_from(n).ok())).collect::<Option<_>>()?;
        match list[..] {
            [node, index] => Some(FileEntry { node: node as usize, index, version: 0 }),
            [node, index, version] => Some(FileEntry { node: node as usize, index, version }),
            _ => None,
        }
    };
    let list: Option<Vec<FileEntry>> = items(place, field, value)?.iter().map(one).collect();
    list.ok_or_else(|| wrong(place, format!("field `{field}` is not a list of [node, output, version]")))
}
