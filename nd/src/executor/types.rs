//! The types of all variables of a symbol, from those given.

use std::collections::BTreeMap;

use tensorc_frontend::symbol::{InputType, Symbol};
use tensorc_ir::{DenseType, Dim, Shape, TensorType};

use crate::error::Error;
use tensorc::symbol::infer_with;
use tensorc::{Compiler, DType};

/// What is known of variables, by name. An extent of 0 is unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct VariableTypes {
    pub shapes: BTreeMap<String, Vec<u64>>,
    pub dtypes: BTreeMap<String, DType>,
}

impl VariableTypes {
    fn inputs(&self) -> BTreeMap<String, InputType> {
        let mut inputs: BTreeMap<String, InputType> = BTreeMap::new();
        for (name, dims) in &self.shapes {
            inputs.entry(name.clone()).or_default().dims = Some(dims.iter().map(|d| (*d > 0).then_some(*d)).collect());
        }
        for (name, dtype) in &self.dtypes {
            inputs.entry(name.clone()).or_default().dtype = Some(*dtype);
        }
        inputs
    }
}

pub(super) struct BoundTypes {
    pub arguments: Vec<DenseType>,
    pub auxiliaries: Vec<DenseType>,
    pub outputs: Vec<(String, TensorType)>,
}

/// Infers in both directions; element types that nothing decides are f32.
pub(super) fn infer(compiler: &Compiler, symbol: &Symbol, known: &VariableTypes) -> Result<BoundTypes, Error> {
    let bytes = compiler.options().passes.static_bytes;
    let found = infer_with(compiler.registry(), bytes, symbol, known.inputs(), Some(DType::F32))?;
    let states = symbol.list_auxiliary_states();
    let names = symbol.list_arguments().into_iter().chain(states);
    let open: Vec<String> = names
        .zip(found.arguments.iter().chain(&found.auxiliary))
        .filter(|(_, ty)| ty.dense().is_none())
        .map(|(name, ty)| format!("{name}: {}", shape_text(ty)))
        .collect();
    if !open.is_empty() {
        return Err(Error::Bind(format!("these shapes do not follow from what is given: {}", open.join("; "))));
    }
    Ok(BoundTypes {
        arguments: found.arguments.iter().filter_map(TensorType::dense).collect(),
        auxiliaries: found.auxiliary.iter().filter_map(TensorType::dense).collect(),
        outputs: symbol.list_outputs().into_iter().zip(found.outputs).collect(),
    })
}

/// The type of an array of an output before a forward pass tells how large it is.
pub(super) fn before_any(ty: &TensorType) -> DenseType {
    let extent = |dim: &Dim| dim.as_extent().map_or(0, |n| n.example().max(0) as u64);
    let dims: Vec<u64> = ty.shape.dims().map_or_else(|| vec![0], |dims| dims.iter().map(extent).collect());
    DenseType::new(ty.dtype.unwrap_or(DType::F32), dims)
}

/// A shape with `?` for what is unknown.
fn shape_text(ty: &TensorType) -> String {
    let Shape::Ranked(dims) = &ty.shape else { return "?".into() };
    let extents: Vec<String> = dims.iter().map(|d| d.as_extent().map_or("?".into(), |n| n.to_string())).collect();
    format!("[{}]", extents.join(", "))
}
