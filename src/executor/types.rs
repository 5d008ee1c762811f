//! The types of all variables of a symbol, from those given.

use std::collections::BTreeMap;

use tensorc_frontend::symbol::{InputType, Lowering, Symbol, SymbolGraph};
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::{DenseType, Dim, Shape, TensorType};
use tensorc_passes::infer::infer_graph;

use crate::{Compiler, DType, Error};

/// What is known of variables, by name. An extent of 0 is unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub shapes: BTreeMap<String, Vec<u64>>,
    pub dtypes: BTreeMap<String, DType>,
}

impl Known {
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

pub(super) struct Types {
    pub arguments: Vec<DenseType>,
    pub auxiliaries: Vec<DenseType>,
    pub outputs: Vec<(String, DenseType)>,
}

/// Infers in both directions; element types that nothing decides are f32.
pub(super) fn infer(compiler: &Compiler, symbol: &Symbol, known: &Known) -> Result<Types, Error> {
    let lowering = Lowering { types: known.inputs(), ..Lowering::default() };
    let SymbolGraph { mut graph, arguments, aux, .. } = symbol.to_graph(compiler.registry(), &lowering)?;
    let variables: Vec<(String, NodeId)> =
        arguments.iter().chain(&aux).cloned().zip(graph.inputs().iter().copied()).collect();
    let bytes = compiler.options().passes.static_bytes;
    infer_graph(&mut graph, compiler.registry(), bytes)?;
    for (_, node) in &variables {
        let ty = &mut graph.node_mut(*node).types[0];
        ty.dtype = ty.dtype.or(Some(DType::F32));
    }
    infer_graph(&mut graph, compiler.registry(), bytes)?;
    let found: Vec<TensorType> =
        variables.iter().map(|(_, node)| graph.resolved(Value { node: *node, port: 0 })).collect();
    let open: Vec<String> = variables
        .iter()
        .zip(&found)
        .filter(|(_, ty)| ty.dense().is_none())
        .map(|((name, _), ty)| format!("{name}: {}", shape_text(ty)))
        .collect();
    if !open.is_empty() {
        return Err(Error::Bind(format!("these shapes do not follow from what is given: {}", open.join("; "))));
    }
    let mut dense = found.iter().filter_map(TensorType::dense);
    let arguments = dense.by_ref().take(arguments.len()).collect();
    Ok(Types { arguments, auxiliaries: dense.collect(), outputs: outputs(&graph)? })
}

fn outputs(graph: &Graph) -> Result<Vec<(String, DenseType)>, Error> {
    graph.outputs().iter().map(|(name, v)| Ok((name.to_string(), graph.dense(*v)?))).collect()
}

/// A shape with `?` for what is unknown.
fn shape_text(ty: &TensorType) -> String {
    let Shape::Ranked(dims) = &ty.shape else { return "?".into() };
    let extents: Vec<String> = dims
        .iter()
        .map(|d| match d {
            Dim::Const(n) => n.to_string(),
            Dim::Sym(_) => "?".into(),
        })
        .collect();
    format!("[{}]", extents.join(", "))
}
