//! Random valid models: chains of one to twelve nodes.

use tensorc::ir::op::Registry;

use crate::model::{Model, Writer};
use crate::operators::{add, drawn, standard};

/// A model that a seed draws, and nodes that tensorc refused on the way, as models of their own with its reasons.
///
/// The operator of the first node goes round with the seed, so that every operator is drawn equally often.
pub fn generate(seed: u64, registry: &Registry) -> (Option<Model>, Vec<(Model, String)>) {
    let names = drawn(registry);
    let mut w = Writer::new(seed, registry);
    let first = names[(seed % names.len() as u64) as usize];
    if standard(registry, first, w.model.opset).is_none() {
        w.model.opset = Writer::NEWEST_OPSET;
    }
    let length = match w.choice(3) {
        0 => 1,
        1 => 1 + w.choice(4),
        _ => 1 + w.choice(12),
    };
    let mut added = 0;
    // A draw may not fit; some operators are of a newer operator set than the model.
    for attempt in 0..4 * length {
        let name = if attempt < 3 && added == 0 { first } else { *w.rng.pick(&names) };
        added += u64::from(add(&mut w, name));
        if added == length {
            break;
        }
    }
    let refused = std::mem::take(&mut w.refused);
    ((added > 0).then(|| w.finish()), refused)
}

/// The nodes of a model up to the one that computes `name`, with those only that it needs; that result is the output.
pub fn needed(model: &Model, name: &str) -> Model {
    let mut wanted = vec![name.to_owned()];
    let mut nodes = vec![];
    for node in model.nodes.iter().rev() {
        if node.output.iter().any(|o| wanted.contains(o)) {
            wanted.extend(node.input.iter().cloned());
            nodes.push(node.clone());
        }
    }
    nodes.reverse();
    let made: Vec<&String> = nodes.iter().flat_map(|n| &n.output).collect();
    Model {
        opset: model.opset,
        inputs: model.inputs.iter().filter(|v| wanted.contains(&v.name)).cloned().collect(),
        initializers: model.initializers.iter().filter(|v| wanted.contains(&v.name)).cloned().collect(),
        computed: model.computed.iter().filter(|v| made.contains(&&v.name)).cloned().collect(),
        outputs: vec![name.to_owned()],
        nodes,
    }
}

/// A node alone: its operands are inputs of the model, or stored where `stored` says so of their names.
pub fn alone(model: &Model, at: usize, stored: impl Fn(&str) -> bool) -> Model {
    let node = model.nodes[at].clone();
    let mut operands = vec![];
    for name in node.input.iter().filter(|n| !n.is_empty()) {
        if operands.iter().all(|v: &crate::model::Value| v.name != *name) {
            operands.extend(model.value(name).cloned());
        }
    }
    let (initializers, inputs) = operands.into_iter().partition(|v| stored(&v.name));
    let computed = model.computed.iter().filter(|v| node.output.contains(&v.name)).cloned().collect();
    Model { opset: model.opset, outputs: node.output.clone(), nodes: vec![node], inputs, initializers, computed }
}

/// Every node of a model alone, on what the interpreter computed.
pub fn each_alone(model: &Model) -> Vec<Model> {
    let stored = |name: &str| model.initializers.iter().any(|v| v.name == name);
    (0..model.nodes.len()).map(|at| alone(model, at, stored)).collect()
}
