//! Tests and measurements of tensorc on a GPU, made for a machine that is there for minutes and has nothing but a driver.
//!
//! One program runs steps, most important first, each in a process of its own ([`runner`]); a step is a list of cases
//! ([`steps`]), which tell the runner how they ended ([`protocol`]).

pub mod cli;
mod collect;
mod context;
mod digest;
mod launch;
pub mod protocol;
mod reproduce;
pub mod runner;
mod steps;
mod stored;
