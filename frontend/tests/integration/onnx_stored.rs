//! Large tensors stay in the file of the model, which then is what it would be read whole.

use std::path::{Path, PathBuf};

use crate::support::*;
use tensorc_frontend::onnx::proto::*;
use tensorc_frontend::onnx::{ImportOptions, OnnxError, OnnxModel, ReadOptions, import};
use tensorc_ir::TensorData;
use tensorc_ir::graph::{Graph, NodeKind};
use tensorc_random::each_damaged;

/// Just more than stays in a file.
const LARGE: usize = 17_000;

fn ramp(name: &str, len: usize) -> TensorProto {
    f32s(name, &[len as i64], &(0..len).map(|i| i as f32).collect::<Vec<_>>())
}

fn concat(inputs: &[&str], output: &str) -> NodeProto {
    with(node("Concat", inputs, &[output]), vec![int("axis", 0)])
}

/// A model with large and small tensors among initializers, in attributes, in a function, in branches and sparse.
fn with_large_tensors() -> ModelProto {
    let constant = |output: &str, len| with(node("Constant", &[], &[output]), vec![tensor("value", ramp("", len))]);
    let branch_of = |name: &str, len| {
        branch(name, graph(vec![], vec![constant("l", LARGE + len), concat(&["h", "l"], "b")], &["b"]))
    };
    let sparse = SparseTensorProto {
        values: Some(ramp("s", LARGE)),
        indices: Some(i64s("", &[LARGE as i64], &(0..LARGE as i64).map(|i| 2 * i).collect::<Vec<_>>())),
        dims: vec![2 * LARGE as i64],
    };
    let flags = raw("flags", DataType::Bool, &[100_000], &[0, 1, 2, 0].repeat(25_000));
    let nodes = vec![
        concat(&["w", "small", "s", "v"], "c"),
        constant("k", LARGE + 1),
        concat(&["c", "k"], "d"),
        call("Longer", &["d"], &["h"]),
        with(node("If", &["flag"], &["y"]), vec![branch_of("then_branch", 3), branch_of("else_branch", 3)]),
        node("Not", &["flags"], &["z"]),
    ];
    let body = vec![constant("k", LARGE + 2), concat(&["a", "k"], "r")];
    let graph = GraphProto {
        initializer: vec![ramp("w", LARGE), ramp("small", 5), ramp("v", 3 * LARGE), flags],
        sparse_initializer: vec![sparse],
        ..graph(vec![value("flag", DataType::Bool, &[])], nodes, &["y", "z"])
    };
    ModelProto { functions: vec![function("Longer", &["a"], &["r"], body)], ..model(graph) }
}

fn constants(graph: &Graph) -> Vec<TensorData> {
    let kinds = graph.node_ids().into_iter().map(|id| &graph.node(id).kind);
    let constant = |kind: &NodeKind| match kind {
        NodeKind::Const(data) => Some(data.clone()),
        _ => None,
    };
    kinds.filter_map(constant).chain(graph.bodies().flat_map(constants)).collect()
}

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder(name).join("m.onnx");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn large_tensors_are_left_in_the_file() {
    let bytes = encoded(&with_large_tensors());
    let whole = import_bytes(bytes.clone(), ReadOptions::default()).unwrap().graph;
    let stored = import_file(&file("stored", &bytes), ReadOptions::default()).unwrap().graph;
    let (whole, stored) = (constants(&whole), constants(&stored));
    let left = stored.iter().filter(|data| !data.content().is_in_memory()).count();
    // Those of two branches, of the graph, the function, and two initializers. The sparse one is dense, flags are read.
    assert_eq!(left, 6);
    assert!(whole.iter().all(|data| data.content().is_in_memory()));
    assert_eq!(whole, stored);
}

/// What becomes of a file: the sizes of its constants, or the message.
fn outcome(model: Result<OnnxModel, OnnxError>) -> Result<Vec<TensorData>, String> {
    let imported = model.and_then(|m| import(m, &REGISTRY, &ImportOptions::default()));
    imported.map(|imported| constants(&imported.graph)).map_err(|e| e.to_string())
}

fn same(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    let decoded = outcome(OnnxModel::decode(bytes.to_vec().into(), path.parent().map(Path::to_owned)));
    let opened = outcome(OnnxModel::open(path));
    assert!(decoded == opened, "{:?} and {:?}", decoded.err(), opened.err());
}

#[test]
fn damaged_files_are_the_same_opened_as_decoded() {
    let graph = GraphProto {
        initializer: vec![ramp("w", LARGE), ramp("v", 3)],
        ..graph(vec![], vec![concat(&["w", "v"], "y")], &["y"])
    };
    let bytes = encoded(&model(graph));
    let path = file("stored_damaged", &bytes);
    same(&path, &bytes);
    for len in (0..200).chain(4 * LARGE - 100..bytes.len()) {
        same(&path, &bytes[..len]);
    }
    // Damage where the structure is: before and behind the data.
    for at in (0..200).chain(bytes.len() - 150..bytes.len()) {
        for byte in [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 8, bytes[at].wrapping_add(1)] {
            let mut damaged = bytes.to_vec();
            damaged[at] = byte;
            same(&path, &damaged);
        }
    }
    each_damaged(&[bytes.to_vec()], 300, None, |damaged| {
        same(&path, damaged);
        true
    });
}
