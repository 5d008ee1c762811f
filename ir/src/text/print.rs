//! The printer's entry points and its output buffer.

use std::fmt::Display;

use tensorc_abi::{Number, Plan};

use super::names::sigiled;
use super::out::Out;
use super::{MAGIC, PrintOptions, VERSION, print_graph as graph, print_kernel as kernel, print_plan as plan};
use crate::graph::Graph;
use crate::kir::Kernel;
use crate::module::TextModule;

/// A whole file: version line, module name, then graphs, kernels and plans, separated by blank lines.
pub fn print_module(module: &TextModule, options: &PrintOptions) -> String {
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

/// The text form of a graph.
pub fn print_graph(g: &Graph, options: &PrintOptions) -> String {
    let mut out = Out::new(options);
    graph::graph(&mut out, g);
    out.finish()
}

/// The text form of a kernel.
pub fn print_kernel(k: &Kernel) -> String {
    let options = PrintOptions::default();
    let mut out = Out::new(&options);
    kernel::item(&mut out, k);
    out.finish()
}

/// The text form of a plan, whose numbers may depend on symbols.
pub fn print_plan<N: Number<Signed: Display> + Display>(p: &Plan<N>) -> String {
    let options = PrintOptions::default();
    let mut out = Out::new(&options);
    plan::plan(&mut out, p);
    out.finish()
}
