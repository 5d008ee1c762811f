//! From the structure of a file to a symbol.

use std::sync::Arc;

use tensorc_ir::op::Registry;

use super::super::keys::SHAPE;
use super::file::{File, FileEntry, FileNode, wrong};
use crate::symbol::Symbol;
use crate::symbol::control::definition;
use crate::symbol::error::SymbolError;
use crate::symbol::node::{Applied, NodeOutput, SymbolNode, VariableUses};
use crate::symbol::operator::Operator;
use crate::symbol::text::tuple;

/// # Errors
/// An operator or parameter is not known, or a number does not name what it should.
pub fn build(mut file: File, registry: &Registry) -> Result<Symbol, SymbolError> {
    if let Some(id) = file.variables.iter().find(|id| !file.nodes.get(**id).is_some_and(FileNode::is_variable)) {
        return Err(wrong("arg_nodes", format!("node {id} is not a variable")));
    }
    if file.np_shape {
        file.nodes.iter_mut().filter(|n| n.is_variable()).try_for_each(plain_shape)?;
    }
    let mut made: Vec<Option<Arc<SymbolNode>>> = vec![None; file.nodes.len()];
    for id in order(&file)? {
        made[id] = Some(node(&file.nodes[id], &made, registry)?);
    }
    let head = |e: &FileEntry| entry("heads", e, &made);
    Ok(Symbol::of(file.heads.iter().map(head).collect::<Result<_, _>>()?))
}

/// Nodes in an order in which operands come first. Files may refer forward.
fn order(file: &File) -> Result<Vec<usize>, SymbolError> {
    #[derive(Clone, Copy, PartialEq)]
    enum VisitMark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![VisitMark::New; file.nodes.len()];
    let mut order = vec![];
    for root in 0..file.nodes.len() {
        let mut stack = vec![(root, 0)];
        while let Some((id, next)) = stack.pop() {
            if next == 0 {
                if marks[id] != VisitMark::New {
                    continue;
                }
                marks[id] = VisitMark::Open;
            }
            let node = &file.nodes[id];
            let operand = node.inputs.iter().map(|e| e.node).chain(node.control.iter().copied()).nth(next);
            let Some(operand) = operand else {
                marks[id] = VisitMark::Done;
                order.push(id);
                continue;
            };
            stack.push((id, next + 1));
            match marks.get(operand) {
                Some(VisitMark::New) => stack.push((operand, 0)),
                Some(VisitMark::Done) => {}
                Some(VisitMark::Open) => return Err(wrong(format!("node `{}`", node.name), "depends on itself")),
                None => return Err(wrong(format!("node `{}`", node.name), format!("there is no node {operand}"))),
            }
        }
    }
    Ok(order)
}

fn entry(place: &str, e: &FileEntry, made: &[Option<Arc<SymbolNode>>]) -> Result<NodeOutput, SymbolError> {
    let Some(node) = made.get(e.node).cloned().flatten() else {
        return Err(wrong(place, format!("there is no node {}", e.node)));
    };
    let listed = node.results().listed;
    if e.index as usize >= listed {
        return Err(wrong(place, format!("node `{}` has no output {}; outputs: {listed}", node.name, e.index)));
    }
    if node.is_variable() {
        node.at_least_writers(e.version);
    }
    Ok(NodeOutput { node, index: e.index, version: e.version })
}

fn node(
    file: &FileNode,
    made: &[Option<Arc<SymbolNode>>],
    registry: &Registry,
) -> Result<Arc<SymbolNode>, SymbolError> {
    let place = format!("node `{}`", file.name);
    let (op, name) = (file.op.clone(), file.name.clone());
    if file.is_variable() {
        return match file.inputs.is_empty() {
            true => Ok(SymbolNode::variable(name, file.attrs.clone())),
            false => Err(wrong(place, "a variable has no operands")),
        };
    }
    let subgraphs = file.subgraphs.iter().map(|graph| build(graph.clone(), registry));
    let subgraphs = subgraphs.collect::<Result<Vec<Symbol>, _>>()?;
    let operator = match subgraphs.is_empty() {
        true => Operator::find(registry, &op),
        false => match definition(&op, &name, &subgraphs)? {
            Some(def) => Some(Operator::own(def)),
            None => return Err(SymbolError::Subgraphs { op, node: name }),
        },
    };
    let Some(operator) = operator else {
        return Err(SymbolError::UnknownOperator { op, node: name });
    };
    let params = operator.params(&file.attrs, true).map_err(|problem| SymbolError::param(&op, &name, problem))?;
    let inputs: Vec<NodeOutput> = file.inputs.iter().map(|e| entry(&place, e, made)).collect::<Result<_, _>>()?;
    let operands = operator.operands(&params, inputs.len());
    let needed = operands.iter().filter(|o| o.required).count();
    if inputs.len() > operands.len() {
        return Err(SymbolError::TooManyOperands { op, node: name, most: operands.len(), given: inputs.len() });
    }
    if inputs.len() < needed {
        let names = operands.iter().map(|o| o.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(SymbolError::MissingOperands { op, node: name, needed, given: inputs.len(), names });
    }
    let is_state = |slot: usize| operator.def().is_state(&params, slot);
    let written = operands.iter().zip(&inputs).find(|(o, e)| is_state(o.slot) && !e.node.is_variable());
    if let Some((operand, _)) = written {
        return Err(SymbolError::StateNotVariable { op, node: name, operand: operand.name.clone() });
    }
    let control = file.control.iter().filter_map(|id| made[*id].clone()).collect();
    let (op, attrs) = (Applied { operator, params, subgraphs }, file.attrs.clone());
    op.check_results(&name)?;
    Ok(Arc::new(SymbolNode { name: name.into(), attrs, op: Some(op), inputs, control, uses: VariableUses::default() }))
}

/// A shape where -1 is unknown, in the form where 0 is.
fn plain_shape(node: &mut FileNode) -> Result<(), SymbolError> {
    let Some(text) = node.attrs.get(SHAPE) else { return Ok(()) };
    let dims = crate::symbol::text::list(text.trim(), |item| item.parse::<i64>().ok());
    let Some(dims) = dims else { return Ok(()) };
    if dims.contains(&0) {
        return Err(wrong(
            format!("node `{}`", node.name),
            format!("shape {text}: an extent of 0 is not supported here"),
        ));
    }
    let plain = tuple(dims.iter().map(|d| d.max(&0).to_string()));
    node.attrs.insert(SHAPE.to_owned(), plain);
    Ok(())
}
