//! Files of older versions of MXNet in today's form.

use tensorc_ir::op::Registry;

use super::super::keys::{Attrs, HIDDEN, INIT};
use super::VERSION;
use super::file::{File, FileEntry, FileNode};
use crate::symbol::compose::asked_initializer;
use crate::symbol::error::SymbolError;
use crate::symbol::operator::Operator;

/// Since this version auxiliary states are operands.
const STATES_ARE_OPERANDS: u32 = 900;
/// Since this version variables know their initialisers.
const INITIALIZERS: u32 = 904;
/// Since this version `axis=-1` means the last axis.
const NEGATIVE_AXIS: u32 = 905;

/// Applies every rule that separates a file's version from [`VERSION`].
///
/// # Errors
/// The file names an operator that is not known.
pub fn upgrade(file: &mut File, registry: &Registry) -> Result<(), SymbolError> {
    if file.version < VERSION {
        hidden_keys(file, registry);
    }
    if file.version < STATES_ARE_OPERANDS {
        append_states(file, registry)?;
    }
    if file.version < INITIALIZERS {
        for i in 0..file.nodes.len() {
            let Some(operator) = Operator::find(registry, &file.nodes[i].op) else { continue };
            for (position, entry) in file.nodes[i].inputs.clone().into_iter().enumerate() {
                if let Some(value) = asked_initializer(operator.name(), position)
                    && let Some(variable) = file.nodes.get_mut(entry.node).filter(|n| n.is_variable())
                {
                    variable.attrs.entry(INIT.to_owned()).or_insert_with(|| value.to_owned());
                }
            }
        }
    }
    if file.version < NEGATIVE_AXIS {
        for node in file.nodes.iter_mut().filter(|n| n.op == "argmax" || n.op == "argmin") {
            if node.attrs.get("axis").is_some_and(|axis| axis == "-1") {
                node.attrs.remove("axis");
            }
        }
    }
    Ok(())
}

/// Splits `weight_lr_mult` into `weight` and `lr_mult`, and `lr_mult` into nothing and `lr_mult`.
fn split_hidden(key: &str) -> Option<(&str, &'static str)> {
    HIDDEN.into_iter().find_map(|hidden| {
        let before = key.strip_suffix(hidden)?;
        if before.is_empty() { Some(("", hidden)) } else { Some((before.strip_suffix('_')?, hidden)) }
    })
}

/// Stores `lr_mult` as `__lr_mult__`, and `weight_lr_mult` there on the operand `weight`.
fn hidden_keys(file: &mut File, registry: &Registry) {
    for i in 0..file.nodes.len() {
        let keys: Vec<String> = file.nodes[i].attrs.keys().filter(|k| split_hidden(k).is_some()).cloned().collect();
        for key in keys {
            let Some((operand, hidden)) = split_hidden(&key) else { continue };
            let stored = format!("__{hidden}__");
            let Some(value) = file.nodes[i].attrs.get(&key).cloned() else { continue };
            let target = match operand {
                "" => Some(i),
                _ => operand_node(&file.nodes[i], operand, registry),
            };
            // A key that belongs nowhere stays: operators skip what is hidden in this way.
            let (target, stored) = match target {
                Some(target) if target < file.nodes.len() => (target, stored),
                _ => (i, format!("__{key}__")),
            };
            file.nodes[i].attrs.remove(&key);
            file.nodes[target].attrs.insert(stored, value);
        }
    }
}

/// The node that is an operand of that name.
fn operand_node(node: &FileNode, operand: &str, registry: &Registry) -> Option<usize> {
    let operator = Operator::find(registry, &node.op)?;
    let position = operator.def().inputs.iter().position(|i| i.name == operand)?;
    node.inputs.get(position).map(|e| e.node)
}

/// Makes variables for operands that the file does not have.
fn append_states(file: &mut File, registry: &Registry) -> Result<(), SymbolError> {
    for i in 0..file.nodes.len() {
        let node = &file.nodes[i];
        let Some(operator) = Operator::find(registry, &node.op) else { continue };
        let wrong = |problem| SymbolError::param(&node.op, &node.name, problem);
        let params = operator.params(&node.attrs, true).map_err(wrong)?;
        let operands = operator.operands(&params, node.inputs.len());
        let (name, attrs): (String, Attrs) = (node.name.clone(), node.attrs.clone());
        for operand in operands.iter().skip(node.inputs.len()).filter(|o| o.required) {
            let variable = FileNode {
                op: "null".into(),
                name: format!("{name}_{}", operand.name),
                attrs: attrs.clone(),
                inputs: vec![],
                control: vec![],
                subgraphs: vec![],
            };
            let entry = FileEntry { node: file.nodes.len(), index: 0, version: 1 };
            file.variables.push(entry.node);
            file.nodes.push(variable);
            file.nodes[i].inputs.push(entry);
        }
    }
    Ok(())
}
