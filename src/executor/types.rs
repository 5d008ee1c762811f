//! The types of all variables of a symbol, from those given.

use std::collections::BTreeMap;

use tensorc_frontend::symbol::{Lowering, Symbol, SymbolGraph};
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

pub(super) struct Types {
    pub arguments: Vec<DenseType>,
    pub auxiliaries: Vec<DenseType>,
    pub outputs: Vec<(String, DenseType)>,
}

/// Infers in both directions; element types that nothing decides are f32.
pub(super) fn infer(compiler: &Compiler, symbol: &Symbol, known: &Known) -> Result<Types, Error> {
    let lowering = Lowering { training: false, ..Lowering::default() };
    let SymbolGraph { mut graph, arguments, aux, .. } = symbol.to_graph(compiler.registry(), &lowering)?;
    let variables: Vec<(String, NodeId)> =
        arguments.iter().chain(&aux).cloned().zip(graph.inputs().iter().copied()).collect();
    for (name, node) in &variables {
        if let Some(dims) = known.shapes.get(name) {
            let dims = dims.iter().map(|&d| if d == 0 { graph.dims.fresh(None) } else { Dim::Const(d) }).collect();
            graph.node_mut(*node).types[0].shape = Shape::Ranked(dims);
        }
        if let Some(dtype) = known.dtypes.get(name) {
            graph.node_mut(*node).types[0].dtype = Some(*dtype);
        }
    }
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
        .map(|((name, _), ty)| format!("{name}: {ty}"))
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
