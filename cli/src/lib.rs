//! The command line of tensorc as a library: the commands, and the mapping of errors to exit codes: 1 if the model or data is at
//! fault, 2 for wrong usage.
//!
//! ```
//! let command = tensorc_cli::command();
//! assert!(command.try_get_matches_from(["tensorc", "run", "model.onnx", "--threads=2"]).is_ok());
//! ```

#![warn(missing_docs)]

mod args;
mod arrays;
mod artifact;
mod bench;
mod code;
mod compile;
mod diff;
mod doctor;
mod failure;
mod help;
mod hint;
#[cfg(feature = "images")]
mod im2rec;
mod inspect;
mod limits;
mod manual;
mod npz;
mod operators;
mod opt;
mod output;
mod progress;
mod quantize;
#[cfg(feature = "images")]
mod records;
mod report;
mod run;
mod values;
#[cfg(not(feature = "images"))]
mod without_images;

use std::process::ExitCode;

use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};

use failure::{Differs, Usage};
#[cfg(not(feature = "images"))]
use without_images::{im2rec, records};

#[derive(Parser)]
#[command(name = "tensorc", version, about = "Compiles tensor graphs to machine code and runs them")]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Compile a model, run it once and show or save its outputs
    Run(run::RunArgs),
    /// Compile a model ahead of time: an object, a library or a program
    Compile(compile::AheadArgs),
    /// Measure compile time and latency
    Bench(bench::BenchArgs),
    /// Make a float ONNX model a quantised one, and say what that loses
    Quantize(quantize::QuantizeArgs),
    /// Run passes over a model or text file and print the IR
    Opt(opt::OptArgs),
    /// Show a model's signature, operators, cost and planned memory, or the contents of a compiled artifact
    Inspect(inspect::InspectArgs),
    /// Write a page about a model: its graph, its kernels and their times, memory, and what passes did
    Report(report::ReportArgs),
    /// Find the first node whose values differ between two models, or two ways to compile one
    Diff(diff::DiffArgs),
    /// Make image lists, and RecordIO files from lists (feature `images`)
    #[command(name = "im2rec")]
    Im2Rec(im2rec::Im2RecArgs),
    /// Show the contents of RecordIO files (feature `images`)
    Records(records::RecordsArgs),
    /// Describe the operators
    #[command(alias = "operators")]
    Ops(operators::OpsArgs),
    /// Show what this machine has, and what works on it
    Doctor(doctor::DoctorArgs),
    /// Write completions for a shell to standard output
    Completions(manual::CompletionsArgs),
    /// Write manual pages
    Man(manual::ManArgs),
}

/// The command line, with all that `--help` says.
pub fn command() -> Command {
    help::describe(Cli::command())
}

/// Executes the command line of this process; its exit status is 0, 1 if the model or data is at fault, 2 for wrong usage.
pub fn main() -> ExitCode {
    let matches = command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let result = match &cli.command {
        CliCommand::Run(args) => run::run(args),
        CliCommand::Bench(args) => bench::run(args),
        CliCommand::Compile(args) => compile::run(args),
        CliCommand::Quantize(args) => quantize::run(args),
        CliCommand::Opt(args) => opt::run(args),
        CliCommand::Inspect(args) => inspect::run(args),
        CliCommand::Report(args) => report::run(args),
        CliCommand::Diff(args) => diff::run(args),
        CliCommand::Im2Rec(args) => im2rec::run(args),
        CliCommand::Records(args) => records::run(args),
        CliCommand::Ops(args) => operators::run(args),
        CliCommand::Doctor(args) => doctor::run(args),
        CliCommand::Completions(args) => manual::completions(args),
        CliCommand::Man(args) => manual::man(args),
    };
    progress::clear();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is::<Differs>() => {
            // Nothing more can be said if the output is closed.
            drop(output::print(&format!("{}\n", failure::line(&failure))));
            ExitCode::FAILURE
        }
        Err(failure) => {
            eprintln!("tensorc: {}", failure::line(&failure));
            if let Some(hint) = hint::of(&failure, matches.subcommand_name().unwrap_or("help")) {
                eprintln!("{} {hint}", output::emphasised("hint:"));
            }
            let usage = failure.is::<Usage>() || matches!(failure.downcast_ref(), Some(tensorc::Error::Shape(_)));
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}
