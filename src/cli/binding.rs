//! Concrete shapes for the inputs of a graph, from `--shape` arguments.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc::ir::dim::Origin;
use tensorc::ir::graph::{Graph, Value};
use tensorc::ir::{DType, DenseType, Dim, DimId, Shape};
use tensorc::passes::infer::bind_named;

use super::{Failure, Usage};

/// Binds inputs and named dimensions to the given extents.
///
/// # Errors
/// A name is neither an input nor a dimension of one, or the extents contradict the declared type.
pub fn bind(graph: &mut Graph, given: &BTreeMap<String, Vec<u64>>) -> Result<(), Failure> {
    for (name, extents) in given {
        if let Some(node) = graph.inputs().iter().copied().find(|n| *graph.node(*n).name == **name) {
            let dtype = graph.node(node).types[0].dtype.unwrap_or(DType::F32);
            bind_named(graph, &[(name, DenseType::new(dtype, extents))])?;
            continue;
        }
        let dim = open_dims(graph).into_iter().find(|(_, n)| **n == **name).map(|(id, _)| id);
        match (dim, &extents[..]) {
            (Some(id), [extent]) => set(graph, id, *extent, name)?,
            (Some(_), _) => return Err(Usage(format!("--shape {name}: a dimension has one extent")).into()),
            (None, _) => return Err(Usage(unknown(graph, name)).into()),
        }
    }
    Ok(())
}

/// Gives every dimension of the inputs that is still open the same extent; returns their names.
///
/// # Errors
/// The rank of an input is unknown.
pub fn bind_open(graph: &mut Graph, extent: u64) -> Result<Vec<String>, Failure> {
    for &node in graph.inputs() {
        if graph.resolved(Value { node, port: 0 }).shape == Shape::Unranked {
            let name = &graph.node(node).name;
            return Err(Usage(format!("the rank of input `{name}` is open: give --shape {name}=N,…")).into());
        }
    }
    let open = open_dims(graph);
    for (id, name) in &open {
        set(graph, *id, extent, name)?;
    }
    Ok(open.into_iter().map(|(_, name)| name.to_string()).collect())
}

/// The types of the inputs, all bound; an unknown element type is f32.
pub fn input_types(graph: &Graph) -> Result<Vec<DenseType>, Failure> {
    let one = |&node| {
        let mut ty = graph.resolved(Value { node, port: 0 });
        ty.dtype.get_or_insert(DType::F32);
        let name = &graph.node(node).name;
        ty.dense().ok_or_else(|| Usage(format!("the shape of input `{name}` is open: give --shape {name}=N,…")).into())
    };
    graph.inputs().iter().map(one).collect()
}

fn set(graph: &mut Graph, id: DimId, extent: u64, name: &str) -> Result<(), Failure> {
    graph
        .dims
        .unify(Dim::Sym(id), Dim::Const(extent), &Origin(name.into()))
        .map(drop)
        .map_err(|c| Usage(format!("--shape {name}: expected {}, found {}", c.expected, c.found)).into())
}

/// Open dimensions of the inputs with their names, in order of appearance.
fn open_dims(graph: &Graph) -> Vec<(DimId, Arc<str>)> {
    let mut open: Vec<(DimId, Arc<str>)> = vec![];
    for &node in graph.inputs() {
        let shape = graph.resolved(Value { node, port: 0 }).shape;
        for dim in shape.dims().unwrap_or_default() {
            if let Dim::Sym(id) = *dim
                && !open.iter().any(|(other, _)| *other == id)
            {
                open.push((id, graph.dims.name(id)));
            }
        }
    }
    open
}

fn unknown(graph: &Graph, name: &str) -> String {
    let inputs = graph.inputs().iter().map(|n| graph.node(*n).name.to_string());
    let dims = open_dims(graph).into_iter().map(|(_, n)| format!("?{n}"));
    let known: Vec<String> = inputs.chain(dims).collect();
    format!("--shape {name}: no such input or open dimension; there are: {}", known.join(", "))
}
