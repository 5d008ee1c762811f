//! Nested graphs: conditionals, and the inlining they share with other operators.
//!
//! Where the condition of an `If` is known when the model is imported, the branch taken replaces the node. Otherwise it
//! stays in the graph ([`super::flow`]). For that the results must have the same type. If the types differ, importing fails
//! with an error that says so ([`super::unsupported::Unsupported::only_undecided`]), and may succeed with shapes and values
//! of inputs.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::error::OnnxError;
use super::import::{Importer, stored_values};
use super::load::Opsets;
use super::meaning::Meaning;
use super::proto::{GraphProto, NodeProto};
use super::unsupported::{Stop, UNDECIDED};
use super::upgrade::ValueFacts;

/// Depth of graphs within graphs. The decoder allows about 30; more come only from functions that
/// call themselves inside a branch.
const MAX_DEPTH: usize = 48;

/// A result of an `If` whose condition is not known, and what each branch computes for it.
struct Selected {
    output: String,
    then: String,
    otherwise: String,
}

impl Importer<'_> {
    /// Whether the condition of an `If` holds, if that is known.
    fn holds(&mut self, condition: &str) -> Result<Option<bool>, OnnxError> {
        if let Some(value) = self.analyse(condition)?.value.and_then(|v| v.item()) {
            return Ok(Some(value.as_i64() != 0));
        }
        match (self.options.decision, self.tensor(condition)) {
            (Some(decision), Some(value)) if self.outer.is_empty() => {
                self.files.budget.take_analysis(self.graph.node_count() as u64)?;
                Ok(decision(&self.graph, value))
            }
            _ => Ok(None),
        }
    }

    /// Imports an `If`; the inner error lists what is not supported.
    pub(super) fn if_node(
        &mut self,
        mut node: NodeProto,
        opsets: &Rc<Opsets>,
        label: &Arc<str>,
    ) -> Result<Result<(), Vec<String>>, OnnxError> {
        let mut branch = |name: &str| node.attribute.iter_mut().find(|a| a.name() == name).and_then(|a| a.g.take());
        let (Some(then), Some(otherwise)) = (branch("then_branch"), branch("else_branch")) else {
            return Ok(Err(vec!["a branch is missing".to_owned()]));
        };
        if then.output.len() != node.output.len() || otherwise.output.len() != node.output.len() {
            return Ok(Err(vec!["the branches and the node have different numbers of results".to_owned()]));
        }
        let condition = node.input.first().cloned().unwrap_or_default();
        self.lookup(&condition)?;
        if let Some(holds) = self.holds(&condition)? {
            let taken = if holds { then } else { otherwise };
            let results = self.inline(taken, &[], opsets, label)?;
            for (output, result) in node.output.iter().zip(&results).filter(|(o, _)| !o.is_empty()) {
                let meaning = self.meaning(result)?;
                self.values.insert(output.clone(), meaning);
            }
            return Ok(Ok(()));
        }
        if self.options.hosted {
            let results = self.hosted_branches(&condition, [then, otherwise], opsets, label);
            return self.settle(node.output, results);
        }
        let first = self.next_node();
        let then = self.inline(then, &[], opsets, label)?;
        let otherwise = self.inline(otherwise, &[], opsets, label)?;
        let results = node.output.into_iter().zip(then).zip(otherwise);
        let results = results.map(|((output, then), otherwise)| Selected { output, then, otherwise });
        let Some(selected) = self.tensors_of(results.filter(|r| !r.output.is_empty()))? else {
            return Ok(Err(vec![UNDECIDED.to_owned()]));
        };
        for Selected { then, otherwise, .. } in &selected {
            let known = self.lookup(then)?.is_some() && self.lookup(otherwise)?.is_some();
            let (then, otherwise) = (self.analysed_type(then)?, self.analysed_type(otherwise)?);
            if known && (then.dense().is_none() || then != otherwise) {
                return Ok(Err(vec![UNDECIDED.to_owned()]));
            }
        }
        let results: Vec<[&str; 3]> =
            selected.iter().map(|s| [&s.output, &s.then, &s.otherwise].map(String::as_str)).collect();
        match self.conditional(&condition, &results, first, label) {
            Ok(()) => Ok(Ok(())),
            Err(Stop::Invalid(error)) => Err(error),
            Err(Stop::Unsupported(reason)) => Ok(Err(vec![reason])),
            Err(Stop::Reported) => {
                self.give_up(selected.into_iter().map(|s| s.output).collect());
                Ok(Ok(()))
            }
        }
    }

    /// The tensors of the results of an `If`: of sequences, those at the same positions. `None` if the branches do not give
    /// the same kinds and lengths.
    fn tensors_of(&mut self, results: impl Iterator<Item = Selected>) -> Result<Option<Vec<Selected>>, OnnxError> {
        let mut tensors = vec![];
        for result in results {
            match (self.meaning(&result.then)?, self.meaning(&result.otherwise)?) {
                (Meaning::Sequence(then), Meaning::Sequence(otherwise)) if then.len() == otherwise.len() => {
                    let mut names = vec![];
                    for (then, otherwise) in then.iter().zip(&*otherwise) {
                        let output = self.fresh_name(&result.output);
                        names.push(output.as_str().into());
                        tensors.push(Selected { output, then: then.to_string(), otherwise: otherwise.to_string() });
                    }
                    self.values.insert(result.output, Meaning::Sequence(names.into()));
                }
                (Meaning::Absent, Meaning::Absent) => drop(self.values.insert(result.output, Meaning::Absent)),
                (Meaning::Tensor(_) | Meaning::Reported, Meaning::Tensor(_) | Meaning::Reported) => {
                    tensors.push(result)
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(tensors))
    }

    /// Imports the nodes of a nested graph, the values `arguments` in place of its inputs; returns
    /// the names of its results.
    ///
    /// Names that the graph defines get a prefix: several nested graphs may use the same ones.
    pub(super) fn inline(
        &mut self,
        graph: GraphProto,
        arguments: &[String],
        opsets: &Rc<Opsets>,
        label: &str,
    ) -> Result<Vec<String>, OnnxError> {
        let GraphProto { node, initializer, sparse_initializer, input, mut output, mut value_info, .. } = graph;
        let functions = self.functions.clone();
        let mut nodes = functions.expand(node, opsets, &mut self.files.budget)?;
        let mut stored = stored_values(initializer, sparse_initializer)?;
        let prefix = self.fresh_name(label);
        let defined = nodes.iter().flat_map(|n| &n.node.output).chain(stored.keys()).filter(|n| !n.is_empty());
        let mut names: BTreeMap<String, String> = defined.map(|n| (n.clone(), format!("{prefix}/{n}"))).collect();
        names.extend(input.iter().map(|i| i.name().to_owned()).zip(arguments.iter().cloned()));
        for scoped in &mut nodes {
            rename_node(&mut scoped.node, &names);
        }
        output.iter_mut().chain(&mut value_info).filter_map(|info| info.name.as_mut()).for_each(|n| rename(n, &names));
        self.declared.add("output", &output);
        self.declared.add("value", &value_info);
        while let Some((name, value)) = stored.pop_first() {
            let name = names.get(&name).cloned().unwrap_or(name);
            self.stored.insert(name, value);
        }
        if self.depth == MAX_DEPTH {
            return Err(OnnxError::TooDeep(MAX_DEPTH));
        }
        self.depth += 1;
        self.nodes(nodes, &output)?;
        self.depth -= 1;
        let results: Vec<String> = output.iter().map(|o| o.name().to_owned()).collect();
        self.refuse_texts(&results);
        Ok(results)
    }
}

fn rename_node(node: &mut NodeProto, names: &BTreeMap<String, String>) {
    for value in node.input.iter_mut().chain(&mut node.output) {
        rename(value, names);
    }
    for attribute in &mut node.attribute {
        for graph in attribute.g.iter_mut().chain(&mut attribute.graphs) {
            rename_graph(graph, names);
        }
    }
}

/// Renames what a nested graph uses of the one around it.
pub(super) fn rename_graph(graph: &mut GraphProto, names: &BTreeMap<String, String>) {
    graph.node.iter_mut().for_each(|n| rename_node(n, names));
    graph.value_names().flatten().for_each(|name| rename(name, names));
}

fn rename(name: &mut String, names: &BTreeMap<String, String>) {
    if let Some(new) = names.get(name) {
        name.clone_from(new);
    }
}
