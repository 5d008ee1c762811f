//! The text of symbol files, character by character as MXNet 1.9.1 writes it.

use std::collections::HashMap;
use std::sync::Arc;

use super::VERSION;
use crate::symbol::Symbol;
use crate::symbol::node::{NodeOutput, SymbolNode, key};

/// Lists of numbers up to this length stay on one line.
const LINE: usize = 10;

/// JSON in which the writer decides line by line what stays on one.
#[derive(Default)]
struct JsonWriter {
    text: String,
    /// For each open list or object: whether its items have lines of their own, and how many there are.
    open: Vec<(bool, usize)>,
}

impl JsonWriter {
    fn begin(&mut self, bracket: char, lines: bool) {
        self.text.push(bracket);
        self.open.push((lines, 0));
    }

    fn end(&mut self, bracket: char) {
        let (lines, items) = self.open.pop().unwrap_or_default();
        if lines && items > 0 {
            self.line();
        }
        self.text.push(bracket);
    }

    fn line(&mut self) {
        self.text.push('\n');
        self.text.push_str(&"  ".repeat(self.open.len()));
    }

    /// What stands before an item.
    fn item(&mut self) {
        let Some((lines, items)) = self.open.last_mut() else { return };
        let (lines, first) = (*lines, *items == 0);
        *items += 1;
        if !first {
            self.text.push_str(", ");
        }
        if lines {
            self.line();
        }
    }

    fn key(&mut self, name: &str) {
        self.item();
        self.string(name);
        self.text.push_str(": ");
    }

    fn string(&mut self, s: &str) {
        self.text.push('"');
        for c in s.chars() {
            match c {
                '\r' => self.text.push_str("\\r"),
                '\n' => self.text.push_str("\\n"),
                '\t' => self.text.push_str("\\t"),
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                c if c < ' ' => self.text.push_str(&format!("\\u{:04x}", u32::from(c))),
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }

    fn numbers(&mut self, numbers: &[usize]) {
        self.begin('[', numbers.len() > LINE);
        for n in numbers {
            self.item();
            self.text.push_str(&n.to_string());
        }
        self.end(']');
    }

    fn entries(&mut self, entries: &[NodeOutput], ids: &HashMap<usize, usize>) {
        self.begin('[', entries.len() > LINE);
        for e in entries {
            self.item();
            // All operands were numbered; a number that no node has would be refused by readers.
            let id = ids.get(&key(&e.node)).copied().unwrap_or(usize::MAX);
            self.text.push_str(&format!("[{id}, {}, {}]", e.index, e.version));
        }
        self.end(']');
    }

    fn node(&mut self, node: &SymbolNode, ids: &HashMap<usize, usize>) {
        self.item();
        self.begin('{', true);
        self.key("op");
        self.string(node.op.as_ref().map_or("null", |op| op.operator.name()));
        self.key("name");
        self.string(&node.name);
        let attrs = node.attributes();
        if !attrs.is_empty() {
            self.key("attrs");
            self.begin('{', attrs.len() > 1);
            for (name, value) in attrs.iter() {
                self.key(name);
                self.string(value);
            }
            self.end('}');
        }
        self.key("inputs");
        self.entries(&node.inputs, ids);
        if !node.control.is_empty() {
            self.key("control_deps");
            let control: Vec<usize> = node.control.iter().filter_map(|n| ids.get(&key(n)).copied()).collect();
            self.numbers(&control);
        }
        let graphs = node.op.as_ref().map_or(&[][..], |op| &op.subgraphs);
        if !graphs.is_empty() {
            self.key("subgraphs");
            self.begin('[', true);
            for graph in graphs {
                self.item();
                self.begin('{', true);
                self.graph(graph);
                self.end('}');
            }
            self.end(']');
        }
        self.end('}');
    }

    /// The fields of a graph.
    fn graph(&mut self, symbol: &Symbol) {
        let nodes = symbol.nodes();
        let ids: HashMap<usize, usize> = nodes.iter().enumerate().map(|(i, n)| (key(n), i)).collect();
        self.key("nodes");
        self.begin('[', true);
        nodes.iter().for_each(|n| self.node(n, &ids));
        self.end(']');
        self.key("arg_nodes");
        let variable = |(i, n): (usize, &Arc<SymbolNode>)| n.is_variable().then_some(i);
        self.numbers(&nodes.iter().enumerate().filter_map(variable).collect::<Vec<_>>());
        self.key("node_row_ptr");
        let mut rows = vec![0];
        rows.extend(nodes.iter().scan(0, |sum, n| {
            *sum += counted_results(n);
            Some(*sum)
        }));
        self.numbers(&rows);
        self.key("heads");
        self.entries(&symbol.heads, &ids);
    }
}

/// Results as files number them. MXNet counts working memory of some operators that are not results here.
fn counted_results(node: &SymbolNode) -> usize {
    let listed = node.results().listed;
    let Some(op) = &node.op else { return listed };
    let word = |name: &str| op.params.str(name);
    let counted = match &**op.operator.name() {
        "InstanceNorm" | "Correlation" | "SpatialTransformer" => 3,
        "L2Normalization" | "LRN" | "sort" | "ROIPooling" | "GridGenerator" | "BilinearSampler" => 2,
        "topk" if word("ret_typ") == Some("value") => 2,
        "Pooling" => {
            let windows = op.params.ints("kernel").is_some_and(|k| (1..=3).contains(&k.len()));
            let channels_first = word("layout").is_none_or(|l| l == "None" || l.starts_with("NC"));
            1 + usize::from(windows && channels_first && word("pool_type") == Some("max"))
        }
        _ => 1,
    };
    listed.max(counted)
}

pub fn text(symbol: &Symbol) -> String {
    let mut w = JsonWriter::default();
    w.begin('{', true);
    w.graph(symbol);
    w.key("attrs");
    w.begin('{', false);
    w.key("mxnet_version");
    w.text.push_str(&format!("[\"int\", {VERSION}]"));
    w.end('}');
    w.end('}');
    w.text
}
