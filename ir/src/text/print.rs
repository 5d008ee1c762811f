//! The printer's entry points and its output buffer.

use tensorc_abi::Plan;

use super::names::sigiled;
use super::{MAGIC, PrintOptions, VERSION, print_graph as graph, print_kernel as kernel, print_plan as plan};
use crate::graph::Graph;
use crate::kir::Kernel;
use crate::module::Module;

/// Indented lines.
pub(super) struct Out<'a> {
    pub(super) options: &'a PrintOptions,
    text: String,
    depth: usize,
}

impl<'a> Out<'a> {
    fn new(options: &'a PrintOptions) -> Out<'a> {
        Out { options, text: String::new(), depth: 0 }
    }

    pub(super) fn line(&mut self, line: &str) {
        self.text.extend(std::iter::repeat_n("  ", self.depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// A line that begins a block.
    pub(super) fn open(&mut self, line: &str) {
        self.line(line);
        self.depth += 1;
    }

    /// A line that ends a block.
    pub(super) fn close(&mut self, line: &str) {
        self.depth -= 1;
        self.line(line);
    }

    /// Goes on with the block that the last line continues.
    pub(super) fn reopen(&mut self) {
        self.depth += 1;
    }

    fn finish(self) -> String {
        self.text
    }
}

/// A whole file: version line, module name, then graphs, kernels and plans, separated by blank lines.
pub fn print_module(module: &Module, options: &PrintOptions) -> String {
    let mut out = Out::new(options);
    out.line(&format!("{MAGIC} {VERSION}"));
    if !module.name.is_empty() {
        out.line(&format!("module {}", sigiled('@', &module.name)));
    }
    for g in &module.graphs {
        out.text.push('\n');
        graph::graph(&mut out, g);
    }
    for k in &module.kernels {
        out.text.push('\n');
        kernel::item(&mut out, k);
    }
    for p in &module.plans {
        out.text.push('\n');
        plan::plan(&mut out, p);
    }
    out.finish()
}

pub fn print_graph(g: &Graph, options: &PrintOptions) -> String {
    let mut out = Out::new(options);
    graph::graph(&mut out, g);
    out.finish()
}

pub fn print_kernel(k: &Kernel) -> String {
    let options = PrintOptions::default();
    let mut out = Out::new(&options);
    kernel::item(&mut out, k);
    out.finish()
}

pub fn print_plan(p: &Plan) -> String {
    let options = PrintOptions::default();
    let mut out = Out::new(&options);
    plan::plan(&mut out, p);
    out.finish()
}

/// A bracketed, comma-separated list.
pub(super) fn list<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    format!("[{}]", join(items))
}

pub(super) fn join<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|i| i.to_string()).collect::<Vec<_>>().join(", ")
}
