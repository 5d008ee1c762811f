//! Which nodes work on quantised values: products, and what passes their results on to each other.

use std::collections::{BTreeMap, BTreeSet};

use super::document::{Document, Uses, is_standard};
use super::histogram::Range;
use super::product::{Product, products};

/// A node that is quantised, with operands and a result that integers stand for.
pub(super) struct Step {
    pub node: usize,
    /// Values that it reads and that runs decide, by position of the operand.
    pub operands: Vec<(usize, String)>,
    /// The value that is quantised: the result of the node, or of the activation behind it.
    pub result: String,
    /// The activation behind it, which is computed before the result is quantised.
    pub activation: Option<usize>,
    pub role: Role,
}

/// What a node does with numbers.
pub(super) enum Role {
    /// Multiplies them with weights, or with each other.
    Product(Box<Product>),
    /// Passes them on as they are: the result has the scale of the operand.
    Passing,
    /// Computes others of them, with a scale of their own.
    Combining,
}

/// Operators that pass the numbers of their first operand on. The maximum of numbers is one of them.
const PASSING: &[&str] = &["MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity"];
/// Operators of quantised operands whose results have other ranges.
const COMBINING: &[&str] = &["Add", "Sum", "Concat", "GlobalAveragePool", "AveragePool"];
/// Activations that cut numbers off, which integers do at their ends, too.
const CUTTING: &[&str] = &["Relu", "Clip"];

/// All that may be quantised.
pub(super) fn candidates(document: &Document, keep: &BTreeSet<usize>) -> Vec<Step> {
    let uses = document.uses();
    let makers = document.makers();
    let already = |value: &str| makers.get(value).is_some_and(|i| document.node(*i).op_type() == "DequantizeLinear");
    let mut multiplying: BTreeMap<usize, Product> =
        products(document, keep).into_iter().map(|product| (product.node, product)).collect();
    let mut steps = vec![];
    for at in (0..document.model.nodes.len()).filter(|at| !keep.contains(at)) {
        let node = document.node(at);
        let (role, positions): (Role, Vec<usize>) = match multiplying.remove(&at) {
            Some(product) => {
                let operands = product.operands.clone();
                (Role::Product(Box::new(product)), operands)
            }
            None if is_standard(node, PASSING) => (Role::Passing, vec![0]),
            None if is_standard(node, COMBINING) => (Role::Combining, (0..node.input.len()).collect()),
            None => continue,
        };
        // A second result is one of positions.
        let [result] = &node.output[..] else { continue };
        let operand =
            |i: usize| Some((i, node.input.get(i).filter(|v| !v.is_empty() && !document.is_constant(v))?.clone()));
        let Some(operands) = positions.into_iter().map(operand).collect::<Option<Vec<_>>>() else { continue };
        if operands.iter().any(|(_, value)| already(value)) {
            continue;
        }
        let activation = match role {
            Role::Passing => None,
            _ => activation(document, &uses, result, keep),
        };
        let result = activation.map_or(result, |i| &document.node(i).output[0]).clone();
        steps.push(Step { node: at, operands, result, activation, role });
    }
    steps
}

/// The activation that alone reads a value.
fn activation(document: &Document, uses: &Uses, value: &str, keep: &BTreeSet<usize>) -> Option<usize> {
    let (next, position) = uses.only(value)?;
    let node = document.node(next);
    let bounds = node.input.iter().skip(1).all(|b| b.is_empty() || document.is_constant(b));
    let fits = position == 0 && is_standard(node, CUTTING) && node.output.len() == 1;
    (fits && bounds && !keep.contains(&next)).then_some(next)
}

/// The values of which the ranges are to be known.
pub(super) fn observed(steps: &[Step]) -> BTreeSet<String> {
    let operands = steps.iter().flat_map(|s| s.operands.iter().map(|(_, value)| value));
    operands.chain(steps.iter().map(|s| &s.result)).cloned().collect()
}

/// The steps whose values have ranges and which are worth it: products, and what lies between them.
pub(super) fn chosen(document: &Document, steps: Vec<Step>, ranges: &BTreeMap<String, Range>) -> Vec<Step> {
    let has_range = |value: &String| ranges.contains_key(value);
    let mut made: BTreeSet<String> = BTreeSet::new();
    let mut chosen = vec![];
    for step in steps {
        let ranged = step.operands.iter().all(|(_, value)| has_range(value)) && has_range(&step.result);
        let fits = match step.role {
            Role::Product(_) => true,
            Role::Passing | Role::Combining => step.operands.iter().all(|(_, value)| made.contains(value)),
        };
        if ranged && fits {
            made.insert(step.result.clone());
            chosen.push(step);
        }
    }
    // What no quantised node reads is left as it is, from the last on.
    let uses = document.uses();
    let mut readers: BTreeSet<usize> = BTreeSet::new();
    let mut kept = vec![];
    for step in chosen.into_iter().rev() {
        if matches!(step.role, Role::Product(_)) || uses.of(&step.result).any(|node| readers.contains(&node)) {
            readers.insert(step.node);
            kept.push(step);
        }
    }
    kept.reverse();
    kept
}
