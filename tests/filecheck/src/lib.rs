//! The text-test runner: authors write what users of LLVM's lit and FileCheck write.
//!
//! A text test is a `.tc` file whose first lines say how to run it and whose comments say what the output looks like.
//! [`run::run_corpus`] stages every test of a folder and lets the `lit` crate discover and run the staged RUN lines;
//! the `filecheck` binary, over [`check::check_text`], matches the output against the CHECK lines with the `filecheck`
//! crate and explains what did not match. [`tidy`] holds the rules that every text test keeps.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod check;
mod directive;
mod input;
mod pattern;
mod report;
pub mod run;
mod search;
mod stage;
mod tidy;

pub use check::{CheckFailure, PatternFile, check_text};
pub use run::{Summary, run_corpus};
