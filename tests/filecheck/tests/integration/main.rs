//! The matcher and the runner of text tests. The text tests themselves are `corpus.rs`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod directives;
mod runner;
