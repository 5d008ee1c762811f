//! A saved symbol and its parameters as a model for inference.

use tensorc_frontend::mxnet::SavedArray;
use tensorc_frontend::mxnet::params::Checkpoint;
use tensorc_frontend::symbol::{Lowering, Random, Symbol, SymbolGraph};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::op::Registry;

use crate::error::Error;

/// Seed of the random numbers that a model draws at inference.
const SEED: u32 = 0;

/// Names of operands that are learned: a variable used as one of them is no input of a model.
const LEARNED: [&str; 6] = ["weight", "bias", "gamma", "beta", "parameters", "alpha"];

/// A model for inference.
pub struct Inference {
    pub graph: Graph,
    /// Variables that only training needs, such as labels. They are no inputs of the graph.
    pub unused: Vec<String>,
}

/// Lowers a symbol for inference. Its variables are inputs, or constants if parameters are given for
/// them; those that only training needs are left out.
///
/// # Errors
/// An auxiliary state or a learned operand has no parameter, or a parameter has no variable or another
/// shape than it states.
pub fn inference(symbol: &Symbol, parameters: Option<Checkpoint>, registry: &Registry) -> Result<Inference, Error> {
    let how = Lowering { random: Random::Seed(SEED), without_labels: true, ..Lowering::default() };
    let SymbolGraph { mut graph, arguments, aux, .. } = symbol.to_graph(registry, &how)?;
    if let Some(checkpoint) = parameters {
        fill(&mut graph, &arguments, &aux, checkpoint)?;
    }
    graph.remove_dead();
    let idle = |n: &NodeId| graph.uses(*n).is_empty() && !graph.is_output(Value { node: *n, port: 0 });
    let unused: Vec<NodeId> = graph.inputs().iter().copied().filter(idle).collect();
    let names = unused.iter().map(|n| graph.node(*n).name.to_string()).collect();
    unused.into_iter().for_each(|n| graph.remove_input(n));
    Ok(Inference { graph, unused: names })
}

/// Puts constants in the place of variables.
fn fill(graph: &mut Graph, arguments: &[String], aux: &[String], checkpoint: Checkpoint) -> Result<(), Error> {
    let inputs: Vec<NodeId> = graph.inputs().to_vec();
    let Checkpoint { arguments: mut given, auxiliary: mut given_aux } = checkpoint;
    for (i, (node, name)) in inputs.iter().zip(arguments.iter().chain(aux)).enumerate() {
        let is_state = i >= arguments.len();
        let array = if is_state { given_aux.remove(name) } else { given.remove(name) };
        match array {
            Some(array) => set(graph, *node, name, &array)?,
            None if is_state || is_learned(graph, *node) => {
                return Err(Error::MissingParameter { name: name.clone() });
            }
            None => {}
        }
    }
    match given.keys().chain(given_aux.keys()).next() {
        Some(name) => Err(Error::UnknownVariable { name: name.clone() }),
        None => Ok(()),
    }
}

fn set(graph: &mut Graph, node: NodeId, name: &str, array: &SavedArray) -> Result<(), Error> {
    let data = array.to_dense_of(0, Some(name))?;
    let input = Value { node, port: 0 };
    let stated = graph.resolved(input);
    let differs = stated.shape.dims().is_some_and(|dims| {
        dims.len() != data.dims().len()
            || dims.iter().zip(data.dims()).any(|(d, given)| d.as_const().is_some_and(|d| d != *given))
    });
    if differs || stated.dtype.is_some_and(|d| d != data.dtype()) {
        let dims = stated.shape.dims().unwrap_or_default();
        let dims: Vec<String> = dims.iter().map(|d| graph.dims.display(*d)).collect();
        let dtype = stated.dtype.unwrap_or(data.dtype());
        let (expected, found) = (format!("{dtype}[{}]", dims.join(", ")), data.ty.to_string());
        return Err(Error::ParameterType { name: name.to_owned(), expected, found });
    }
    let constant = graph.add_const(name, data);
    graph.replace_uses(input, constant);
    graph.remove_input(node);
    Ok(())
}

/// Whether a variable is used as something that is learned.
fn is_learned(graph: &Graph, node: NodeId) -> bool {
    graph.uses(node).into_iter().any(|(user, port, _)| match &graph.node(user).kind {
        NodeKind::Op(op) => {
            let spec = op.slots.get(usize::from(port)).and_then(|slot| op.def.input_spec(usize::from(*slot)));
            spec.is_some_and(|s| LEARNED.contains(&s.name))
        }
        _ => false,
    })
}
