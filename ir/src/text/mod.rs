//! The text form of graphs, kernels and plans: one printer and one parser.
//!
//! `docs/ir.md` is the specification. Printing is deterministic, and what [`PrintOptions::exact`]
//! prints parses back to an equal module (see [`compare`]).

mod base64;
mod canonical;
mod constant;
mod lex;
mod literal;
mod names;
mod out;
mod parse;
mod parse_graph;
mod parse_kernel;
mod parse_plan;
mod parse_scalar;
mod print;
mod print_graph;
mod print_kernel;
mod print_plan;
mod print_scalar;

pub use canonical::canonical_kernel;
pub use parse::{parse_module, parse_module_within};
pub use print::{print_graph, print_kernel, print_module, print_plan};

/// The version of the text format this crate reads and writes. Older versions are read as well.
pub const VERSION: u32 = 1;

/// The first word of a file, before the version.
pub const MAGIC: &str = "tensorc-ir";

/// How much the printer shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintOptions {
    /// Constants of at most this many elements are written element by element.
    pub inline_elements: u64,
    /// Replaces the value of a larger constant by its digest; such text does not parse.
    pub elide: bool,
    /// Ends the line of a node that patches made with a comment naming them.
    pub history: bool,
}

impl Default for PrintOptions {
    /// For people: large constants elided.
    fn default() -> PrintOptions {
        PrintOptions { inline_elements: 16, elide: true, history: false }
    }
}

impl PrintOptions {
    /// For machines: every value in full.
    pub fn exact() -> PrintOptions {
        PrintOptions { elide: false, ..PrintOptions::default() }
    }
}
