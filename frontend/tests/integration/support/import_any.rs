//! What the reader of ONNX models does with any bytes: they become a graph that holds the rules of graphs, or are refused.
//! The tests of damaged files and the fuzz target share it.

use bytes::Bytes;
use tensorc_frontend::onnx::{ImportLimits, ImportOptions, OnnxError, OnnxModel, ReadOptions, import};
use tensorc_ir::op::Registry;
use tensorc_ir::verify::{Stage, verify_graph};

/// What one file may take, so that many can be tried.
const LIMITS: ImportLimits = ImportLimits { nodes: Some(100_000), bytes: Some(1 << 28) };

/// Reads and imports.
///
/// # Errors
/// The bytes are refused.
///
/// # Panics
/// The reader panics, or makes a graph that breaks a rule.
pub fn import_any(bytes: Bytes, registry: &Registry) -> Result<(), OnnxError> {
    let model = OnnxModel::decode_with(bytes, None, ReadOptions { limits: LIMITS, ..ReadOptions::default() })?;
    let imported = import(model, registry, &ImportOptions::default())?;
    if let Err(why) = verify_graph(&imported.graph, Stage::Imported) {
        panic!("an imported graph is wrong: {why}");
    }
    Ok(())
}
