//! Concrete shapes for the inputs of a graph, by name of an input or of a dimension.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_ir::dim::Origin;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::{DType, DenseType, Dim, DimId, Shape};
use tensorc_passes::infer::bind_named;

use crate::error::Error;

/// Binds inputs and named dimensions to the given extents.
///
/// # Errors
/// A name is neither an input nor a dimension of one, or the extents contradict the declared type.
pub fn bind(graph: &mut Graph, given: &BTreeMap<String, Vec<u64>>) -> Result<(), Error> {
    let dims = open_dims(graph);
    for (name, extents) in given {
        if let Some(node) = graph.inputs().iter().copied().find(|n| *graph.node(*n).name == **name) {
            let dtype = graph.node(node).types[0].dtype.unwrap_or(DType::F32);
            bind_named(graph, &[(name, DenseType::new(dtype, extents))]).map_err(Error::Binding)?;
            continue;
        }
        let dim = dims.iter().find(|(_, n)| **n == **name);
        match (dim, &extents[..]) {
            (Some((id, _)), [extent]) => set(graph, *id, *extent, name)?,
            (Some(_), _) => return Err(Error::Shape(format!("shape of `{name}`: a dimension has one extent"))),
            (None, _) => return Err(Error::Shape(unknown(graph, &dims, name))),
        }
    }
    Ok(())
}

/// Gives every dimension of the inputs that is still open the same extent; returns their names.
///
/// # Errors
/// The rank of an input is unknown.
pub fn bind_open(graph: &mut Graph, extent: u64) -> Result<Vec<String>, Error> {
    for &node in graph.inputs() {
        if graph.resolved(Value { node, port: 0 }).shape == Shape::Unranked {
            let name = &graph.node(node).name;
            return Err(Error::Shape(format!("the rank of input `{name}` is open: give its extents")));
        }
    }
    let open = open_dims(graph);
    for (id, name) in &open {
        set(graph, *id, extent, name)?;
    }
    Ok(open.into_iter().map(|(_, name)| name.to_string()).collect())
}

/// Extent taken for a dimension that the model leaves open.
pub const DEFAULT_EXTENT: u64 = 1;

/// The types of the inputs of a graph for extents by the names of inputs or dimensions; others are [`DEFAULT_EXTENT`].
///
/// # Errors
/// As [`bind`] and [`bind_open`].
pub fn with_extents(graph: &Graph, given: &BTreeMap<String, Vec<u64>>) -> Result<Vec<DenseType>, Error> {
    let mut bound = graph.clone();
    bind(&mut bound, given)?;
    bind_open(&mut bound, DEFAULT_EXTENT)?;
    input_types(&bound)
}

/// The types of the inputs, all bound; an unknown element type is f32.
pub fn input_types(graph: &Graph) -> Result<Vec<DenseType>, Error> {
    let one = |&node| {
        let mut ty = graph.resolved(Value { node, port: 0 });
        ty.dtype.get_or_insert(DType::F32);
        let name = &graph.node(node).name;
        ty.dense().ok_or_else(|| Error::Shape(format!("the shape of input `{name}` is open: give its extents")))
    };
    graph.inputs().iter().map(one).collect()
}

fn set(graph: &mut Graph, id: DimId, extent: u64, name: &str) -> Result<(), Error> {
    graph
        .dims
        .unify(Dim::Sym(id), Dim::Const(extent), &Origin(name.into()))
        .map(drop)
        .map_err(|c| Error::Shape(format!("extent of `{name}`: expected {}, found {}", c.expected, c.found)))
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

fn unknown(graph: &Graph, dims: &[(DimId, Arc<str>)], name: &str) -> String {
    let inputs = graph.inputs().iter().map(|n| graph.node(*n).name.to_string());
    let dims = dims.iter().map(|(_, n)| format!("?{n}"));
    let known: Vec<String> = inputs.chain(dims).collect();
    format!("shape of `{name}`: no such input or open dimension; there are: {}", known.join(", "))
}
