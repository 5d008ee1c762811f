//! The nodes of a model's file as they stand there, for those who show a model that is not imported.

use std::collections::BTreeSet;

use super::load::OnnxModel;

/// A node of the main graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SketchedNode {
    /// Its name, or that of its first result.
    pub name: String,
    /// The operator.
    pub op: String,
    /// Names of the values that it reads.
    pub inputs: Vec<String>,
    /// Names of its results.
    pub outputs: Vec<String>,
}

/// The inputs and nodes of the main graph, in the order of the file. Inputs are nodes without operands.
pub fn sketch(model: &OnnxModel) -> Vec<SketchedNode> {
    let stored: BTreeSet<&str> = model.graph.initializer.iter().map(|tensor| tensor.name()).collect();
    let given = model.graph.input.iter().filter(|input| !stored.contains(input.name()));
    let input = |name: &str| SketchedNode {
        name: name.to_owned(),
        op: "input".to_owned(),
        inputs: vec![],
        outputs: vec![name.to_owned()],
    };
    let nodes = model.graph.node.iter().map(|node| {
        let name = if node.name().is_empty() { node.output.first().map_or("", String::as_str) } else { node.name() };
        let present = |names: &[String]| names.iter().filter(|name| !name.is_empty()).cloned().collect::<Vec<_>>();
        let (inputs, outputs) = (present(&node.input), present(&node.output));
        SketchedNode { name: name.to_owned(), op: node.op_type().to_owned(), inputs, outputs }
    });
    given.map(|given| input(given.name())).chain(nodes).collect()
}
