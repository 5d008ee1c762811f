//! From a registered operator to primitives: one step of decomposition.

use std::sync::Arc;

use smallvec::SmallVec;
use tensorc_abi::DType;

use crate::build::Builder;
use crate::diag::{Diagnostic, DiagnosticCode, Result};
use crate::graph::{Graph, NodeId, NodeKind, Value};
use crate::infer::{ValueOf, scalar_fn};
use crate::interrupt::PassLimits;
use crate::op::{CompositeBody, Compute, Grad, Grain, NodeCtx, OpError, OpRef, Registry};
use crate::params::Params;
use crate::prim::Prim;
use crate::tensor::TensorData;
use crate::types::DenseType;

/// The result of [`expand_node`].
pub enum Expanded {
    /// Values that stand for the node's results. They come from primitives, or from operators that
    /// are themselves still to be expanded. The node itself is left in place.
    Replaced(SmallVec<[Value; 2]>),
    /// The operator runs on the host between compiled stages.
    Host,
}

/// All there is to know about an operator node when types, and values of static operands, are known.
pub struct OpFacts {
    /// The entry of the operator.
    pub def: OpRef,
    /// The parameters.
    pub params: Params,
    /// The name of the node.
    pub name: Arc<str>,
    /// By formal position.
    pub operands: Vec<Option<Value>>,
    /// Types by formal position, `None` for an absent optional operand.
    pub inputs: Vec<Option<DenseType>>,
    /// The types of the results.
    pub outputs: Vec<DenseType>,
    /// Values of the static operands, by formal position.
    pub values: Vec<Option<TensorData>>,
    /// How far composites are expanded.
    pub grain: Grain,
}

impl OpFacts {
    /// The facts of an operator node for kernels of a grain; an error if a type or the value of a static operand is unknown.
    pub fn of(graph: &Graph, node: NodeId, value_of: &ValueOf<'_>, grain: Grain) -> Result<OpFacts> {
        let NodeKind::Op(op) = &graph.node(node).kind else {
            return Err(Diagnostic::new(DiagnosticCode::Internal, "not an operator").at(&graph.node(node).name));
        };
        let (def, params, name) = (op.def.clone(), op.params.clone(), graph.node(node).name.clone());
        let operands = graph.operands(node);
        let inputs = operands.iter().map(|v| v.map(|v| graph.dense(v)).transpose()).collect::<Result<Vec<_>>>()?;
        let ports = 0..graph.node(node).types.len() as u16;
        let outputs = ports.map(|port| graph.dense(Value { node, port })).collect::<Result<Vec<DenseType>>>()?;
        let is_static = |i: usize| def.static_inputs.contains(&i);
        let values: Vec<Option<TensorData>> = (0..operands.len())
            .map(|i| operands[i].filter(|_| is_static(i)).and_then(|v| value_of(graph, v)))
            .collect();
        if let Some(i) = (0..operands.len()).find(|i| operands[*i].is_some() && is_static(*i) && values[*i].is_none()) {
            let operand = def.input_spec(i).map_or("?", |s| s.name);
            let why =
                format!("{}: the value of operand `{operand}` must be known when the graph is compiled", def.name);
            return Err(Diagnostic::new(DiagnosticCode::Unresolved, why).at(&name));
        }
        Ok(OpFacts { def, params, name, operands, inputs, outputs, values, grain })
    }

    /// The node as its operator sees it.
    pub fn cx(&self) -> NodeCtx<'_> {
        let OpFacts { params, inputs, outputs, values, grain, .. } = self;
        NodeCtx { params, grain: *grain, inputs, outputs, values }
    }
}

/// Adds what an operator node is differentiated as to the graph: what [`Grad::Through`] says, or what it computes.
pub fn expand_for_gradient(
    graph: &mut Graph,
    node: NodeId,
    registry: &Registry,
    value_of: &ValueOf<'_>,
    grain: Grain,
) -> Result<Expanded> {
    let limits = PassLimits::default();
    let through = matches!(&graph.node(node).kind, NodeKind::Op(op) if matches!(op.def.grad, Grad::Through(_)));
    if !through {
        return expand_node(graph, node, registry, value_of, grain, limits);
    }
    let facts = OpFacts::of(graph, node, value_of, grain)?;
    match &facts.def.grad {
        Grad::Through(body) => composite(graph, node, &facts, body, registry, value_of, limits),
        _ => expand_node(graph, node, registry, value_of, grain, limits),
    }
}

fn composite(
    graph: &mut Graph,
    node: NodeId,
    facts: &OpFacts,
    body: &CompositeBody,
    registry: &Registry,
    value_of: &ValueOf<'_>,
    limits: PassLimits<'_>,
) -> Result<Expanded> {
    let mut builder = Builder::new(graph, registry, facts.name.clone(), value_of).within(limits);
    let results = body(&mut builder, &facts.cx(), &facts.operands).map_err(|d| d.at(&facts.name))?;
    Ok(Expanded::Replaced(checked(graph, node, results, &facts.outputs)?))
}

/// Adds what one operator node computes to the graph. All of the node's types, and the values of
/// its static operands, must be known.
pub fn expand_node(
    graph: &mut Graph,
    node: NodeId,
    registry: &Registry,
    value_of: &ValueOf<'_>,
    grain: Grain,
    limits: PassLimits<'_>,
) -> Result<Expanded> {
    if let NodeKind::Op(op) = &graph.node(node).kind
        && matches!(op.def.compute, Compute::Host(_))
    {
        return Ok(Expanded::Host);
    }
    let facts = OpFacts::of(graph, node, value_of, grain)?;
    let (cx, OpFacts { def, params, name, operands, inputs, outputs, .. }) = (facts.cx(), &facts);
    let fail = |e: OpError| Diagnostic::new(DiagnosticCode::Unsupported, format!("{}: {}", def.name, e.0)).at(name);
    let refuse = |e: OpError| Diagnostic::new(DiagnosticCode::Operands, format!("{}: {}", def.name, e.0)).at(name);
    some_value_is_allowed(&facts).map_err(refuse)?;
    let prim = match &def.compute {
        Compute::Composite(body) => return composite(graph, node, &facts, body, registry, value_of, limits),
        Compute::Scalar(_) => {
            let dtypes: Vec<Option<DType>> = inputs.iter().map(|t| t.as_ref().map(|t| t.dtype)).collect();
            let dims = &outputs[0].dims;
            Prim::Map(scalar_fn(def, params, &dtypes, dims.len(), Some(dims)).map_err(fail)?.into())
        }
        Compute::Prim(body) => body(&cx).map_err(fail)?,
        Compute::Host(_) => return Ok(Expanded::Host),
    };
    // The values of static operands are already part of the primitive.
    let is_static = |i: &usize| matches!(def.compute, Compute::Prim(_)) && def.static_inputs.contains(i);
    let args: SmallVec<[Value; 4]> =
        (0..operands.len()).filter(|i| !is_static(i)).filter_map(|i| operands[i]).collect();
    let node = graph.add_prim(name.clone(), prim, &args, outputs);
    Ok(Expanded::Replaced((0..outputs.len() as u16).map(|port| Value { node, port }).collect()))
}

/// Positions on an axis without elements cannot be moved to one that exists.
fn some_value_is_allowed(facts: &OpFacts) -> std::result::Result<(), OpError> {
    for (operand, rule) in &facts.def.demands {
        let given = facts.inputs.get(*operand).and_then(Option::as_ref).is_some_and(|ty| !ty.is_empty());
        if given && rule(&facts.cx())?.is_some_and(|allowed| allowed.is_nothing()) {
            let name = facts.def.input_spec(*operand).map_or("?", |spec| spec.name);
            return Err(OpError(format!("operand `{name}` holds positions, where there are none")));
        }
    }
    Ok(())
}

/// A composite must deliver exactly what inference promised.
fn checked(graph: &Graph, node: NodeId, results: Vec<Value>, outputs: &[DenseType]) -> Result<SmallVec<[Value; 2]>> {
    let found = results.iter().map(|v| graph.dense(*v)).collect::<Result<Vec<_>>>()?;
    if found.len() < outputs.len() || found.iter().zip(outputs).any(|(a, b)| a != b) {
        let list = |types: &[DenseType]| types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
        let why = format!("expansion gives ({}), inference promised ({})", list(&found), list(outputs));
        return Err(Diagnostic::new(DiagnosticCode::Internal, why).at(&graph.node(node).name));
    }
    Ok(results.into_iter().take(outputs.len()).collect())
}
