//! The types of all variables of a symbol, from those given.

use std::collections::BTreeMap;

use tensorc_frontend::symbol::{InputType, Symbol};
use tensorc_ir::{DenseType, Shape, TensorType};

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
    pub outputs: Vec<(String, DenseType)>,
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
    let unknown = |name: &str| {
        let why = format!(
            "the type of output `{name}` does not follow from what is given; if values decide it, use `Model::run`"
        );
        Error::Bind(why)
    };
    let outputs = symbol.list_outputs().into_iter().zip(&found.outputs);
    let outputs = outputs.map(|(name, ty)| ty.dense().map(|ty| (name.clone(), ty)).ok_or_else(|| unknown(&name)));
    Ok(BoundTypes {
        arguments: found.arguments.iter().filter_map(TensorType::dense).collect(),
        auxiliaries: found.auxiliary.iter().filter_map(TensorType::dense).collect(),
        outputs: outputs.collect::<Result<_, _>>()?,
    })
}

/// A shape with `?` for what is unknown.
fn shape_text(ty: &TensorType) -> String {
    let Shape::Ranked(dims) = &ty.shape else { return "?".into() };
    let extents: Vec<String> = dims.iter().map(|d| d.as_extent().map_or("?".into(), |n| n.to_string())).collect();
    format!("[{}]", extents.join(", "))
}
