//! How a node of each ONNX operator is drawn: operands that fit it, and attributes at and beside their edges.
//!
//! Element-wise operators are drawn from their entries in the registry alone; the others have a function here.

mod elementwise;
mod indexing;
mod products;
mod quantized;
mod reductions;
mod sequences;
mod shapes;
mod windows;

use tensorc::DType;
use tensorc::ir::op::{Compute, OnnxName, OpRef, Registry, TypeRule};

use crate::model::{NodeSpec, Writer};

/// Draws a node; `None` where what was drawn before does not fit.
pub type Draw = fn(&mut Writer<'_>, &str) -> Option<NodeSpec>;

/// Operators whose results are random numbers, and those that other operators replace.
pub const NOT_DRAWN: [&str; 9] = [
    "Bernoulli",
    "Constant",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Scatter",
    "Upsample",
];

/// How an operator that is not element-wise is drawn.
pub fn draw_of(op: &str) -> Option<Draw> {
    let tables = [
        indexing::DRAWS,
        products::DRAWS,
        quantized::DRAWS,
        reductions::DRAWS,
        sequences::DRAWS,
        shapes::DRAWS,
        windows::DRAWS,
    ];
    tables.iter().flat_map(|t| t.iter()).find(|(name, _)| *name == op).map(|(_, draw)| *draw)
}

/// Names of the standard operators, in order.
pub fn standard_names(registry: &Registry) -> Vec<&'static str> {
    let all = registry.iter().flat_map(|op| &op.names.onnx);
    let mut names: Vec<&str> = all.filter(|n| n.is_standard()).map(|n| n.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The entry for a standard operator.
pub fn standard<'r>(registry: &'r Registry, op: &str, opset: i64) -> Option<&'r OpRef> {
    registry.onnx(OnnxName::STANDARD, op, opset as u32)
}

/// ONNX names of the operators that are drawn, in order.
pub fn drawn(registry: &Registry) -> Vec<&'static str> {
    standard_names(registry).into_iter().filter(|n| !NOT_DRAWN.contains(n)).collect()
}

/// Draws a node of an operator and adds it; whether one was added.
pub fn add(w: &mut Writer<'_>, name: &str) -> bool {
    let Some(op) = standard(w.registry, name, w.model.opset).cloned() else { return false };
    let spec = match draw_of(name) {
        Some(draw) => draw(w, name),
        None if matches!(op.compute, Compute::Scalar(_)) => elementwise::draw(w, &op, name),
        None => None,
    };
    spec.and_then(|s| w.add(s)).is_some()
}

/// The element types that the entry of an ONNX operator allows at a formal position.
pub fn types(w: &Writer<'_>, name: &str, position: usize) -> Vec<DType> {
    match standard(w.registry, name, w.model.opset).and_then(|op| op.input_spec(position)).map(|s| &s.ty) {
        Some(TypeRule::Group(_, list) | TypeRule::OneOf(list)) if !list.is_empty() => list.to_vec(),
        _ => DType::COMPUTED.to_vec(),
    }
}
