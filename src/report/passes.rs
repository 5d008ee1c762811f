//! What passes did to the graph of a part: how many nodes there were before and after, what was rewritten, and which lines of the
//! text form changed.

use std::collections::BTreeMap;
use std::slice;

use serde::Serialize;
use tensorc_ir::graph::{Graph, NodeKind};
use tensorc_ir::text::{PrintOptions, print_graph};
use tensorc_passes::manager::run_passes;
use tensorc_passes::{PassCx, Pipeline, Unit};

use super::nodes::UserGraph;
use crate::error::Error;

/// Lines shown of what a pass took away, and of what it added, and characters of a line.
const MAX_LINES: usize = 60;
const MAX_CHARACTERS: usize = 160;
/// Nodes named for each rule.
const MAX_NODES: usize = 200;

/// How many nodes of each kind there are, bodies of branches and loops included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    pub operators: usize,
    pub primitives: usize,
    pub clusters: usize,
    pub constants: usize,
}

impl Census {
    fn of(graph: &Graph) -> Census {
        let mut census = Census::default();
        census.count(graph);
        census
    }

    fn count(&mut self, graph: &Graph) {
        for id in graph.node_ids() {
            match &graph.node(id).kind {
                NodeKind::Op(_) => self.operators += 1,
                NodeKind::Prim(_) => self.primitives += 1,
                NodeKind::Fused(_) => self.clusters += 1,
                NodeKind::Const(_) => self.constants += 1,
                NodeKind::Input => {}
            }
        }
        graph.bodies().for_each(|body| self.count(body));
    }
}

/// What a pass did.
#[derive(Serialize)]
pub(super) struct PassRecord {
    pub name: &'static str,
    /// In milliseconds, where times are wanted.
    #[serde(skip)]
    pub ms: Option<f64>,
    #[serde(skip)]
    pub before: Census,
    #[serde(skip)]
    pub after: Census,
    /// Rules that fired.
    pub rules: Vec<RuleRecord>,
    /// Lines of the text form that are gone, and new ones; how many there are of each.
    #[serde(skip)]
    pub removed: Vec<String>,
    #[serde(skip)]
    pub added: Vec<String>,
    #[serde(skip)]
    pub lines: (usize, usize),
}

/// What a rule did in one pass.
#[derive(Serialize)]
pub(super) struct RuleRecord {
    pub rule: String,
    /// Which arithmetic the rule keeps; empty where that is not recorded.
    pub keeps: &'static str,
    pub count: usize,
    /// What it saved by the costs that it compares, and their unit.
    #[serde(skip)]
    pub saved: u64,
    #[serde(skip)]
    pub unit: &'static str,
    /// Nodes of the user's model, at most [`MAX_NODES`].
    pub nodes: Vec<u32>,
}

/// Runs the passes of a pipeline one by one.
pub(super) fn run(
    pipeline: &Pipeline,
    graph: &mut Graph,
    cx: &mut PassCx<'_>,
    user: &UserGraph,
    timed: bool,
) -> Result<Vec<PassRecord>, Error> {
    let mut records = vec![];
    let (mut before, mut text, mut labels) = (Census::of(graph), lines(graph), labels(graph));
    for pass in &pipeline.passes {
        let (rewrites, timings) = (cx.rewrites.len(), cx.timings.len());
        let changed = run_passes(slice::from_ref(pass), graph, cx)?;
        let after = Census::of(graph);
        let mut rules = rules(&cx.rewrites[rewrites..], user);
        let (mut removed, mut added, mut counts) = (vec![], vec![], (0, 0));
        if changed {
            let now = lines(graph);
            ((removed, counts.0), (added, counts.1)) = (missing(&text, &now), missing(&now, &text));
            let labels_now = self::labels(graph);
            rules.extend(made(&labels, &labels_now, &rules, user));
            (text, labels) = (now, labels_now);
        }
        let ms = cx.timings[timings..].iter().map(|timing| timing.time.as_secs_f64() * 1e3).sum::<f64>();
        let ms = timed.then_some(ms);
        records.push(PassRecord { name: pass.name(), ms, before, after, rules, removed, added, lines: counts });
        before = after;
    }
    Ok(records)
}

/// Rewrites by rule, in order of the first.
fn rules(rewrites: &[tensorc_passes::Rewrite], user: &UserGraph) -> Vec<RuleRecord> {
    let mut all: Vec<RuleRecord> = vec![];
    for rewrite in rewrites {
        let unit = match rewrite.unit {
            Unit::HalfCycles => "half cycles for each element",
            Unit::Nanoseconds => "ns by the cost model",
        };
        let keeps = rewrite.label.name();
        let found = all.iter().position(|record| record.rule == rewrite.rule && record.keeps == keeps);
        let at = found.unwrap_or_else(|| {
            let rule = rewrite.rule.to_owned();
            all.push(RuleRecord { rule, keeps, count: 0, saved: 0, unit, nodes: vec![] });
            all.len() - 1
        });
        let record = &mut all[at];
        record.count += 1;
        record.saved += rewrite.before.saturating_sub(rewrite.after);
        record.name(user.named(&rewrite.node));
    }
    all
}

impl RuleRecord {
    fn name(&mut self, nodes: &[u32]) {
        for node in nodes {
            if self.nodes.len() < MAX_NODES && !self.nodes.contains(node) {
                self.nodes.push(*node);
            }
        }
    }
}

/// Labels in the history of nodes, by label and name of the node: how often each.
type Labels = BTreeMap<(&'static str, String), usize>;

fn labels(graph: &Graph) -> Labels {
    let mut all = Labels::new();
    for id in graph.node_ids() {
        let node = graph.node(id);
        for label in &node.history {
            *all.entry((label, node.name.to_string())).or_default() += 1;
        }
    }
    all
}

/// Rewrites that left a label on nodes and are not recorded otherwise.
fn made(before: &Labels, after: &Labels, known: &[RuleRecord], user: &UserGraph) -> Vec<RuleRecord> {
    let mut all: BTreeMap<&'static str, RuleRecord> = BTreeMap::new();
    for (key, count) in after {
        let (label, name) = key;
        let new = count.saturating_sub(before.get(key).copied().unwrap_or(0));
        if new == 0 || known.iter().any(|record| record.rule == *label) {
            continue;
        }
        let record = all.entry(*label).or_insert_with(|| RuleRecord {
            rule: (*label).to_owned(),
            keeps: "",
            count: 0,
            saved: 0,
            unit: "",
            nodes: vec![],
        });
        record.count += new;
        record.name(user.named(name));
    }
    all.into_values().collect()
}

/// The lines of the text form, and how often each occurs.
type Lines = Vec<String>;

fn lines(graph: &Graph) -> Lines {
    print_graph(graph, &PrintOptions::default()).lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Lines of one text that another does not have as often: the first of them, shortened, and how many there are.
fn missing(of: &Lines, from: &Lines) -> (Vec<String>, usize) {
    let mut there: BTreeMap<&str, usize> = BTreeMap::new();
    from.iter().for_each(|line| *there.entry(line).or_default() += 1);
    let (mut shown, mut count) = (vec![], 0);
    for line in of {
        match there.get_mut(line.as_str()) {
            Some(n) if *n > 0 => *n -= 1,
            _ => {
                count += 1;
                if shown.len() < MAX_LINES {
                    shown.push(shortened(line));
                }
            }
        }
    }
    (shown, count)
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_compared_as_often_as_they_occur() {
        let text = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Lines>();
        let (a, b) = (text(&["x", "y", "x"]), text(&["x", "z"]));
        assert_eq!(missing(&a, &b), (text(&["y", "x"]), 2));
        assert_eq!(missing(&b, &a), (text(&["z"]), 1));
        assert_eq!(shortened(&"é".repeat(200)).chars().count(), MAX_CHARACTERS + 1);
    }
}
