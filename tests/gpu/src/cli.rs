//! The command line.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs, io};

use clap::{Parser, Subcommand};
use tensorc_tests::imaginary;

use crate::collect;
use crate::context::{Context, Fault, data};
use crate::reproduce::reproduce;
use crate::runner::{self, Job};
use crate::steps;

/// Tests and measures tensorc on a GPU.
#[derive(Parser)]
#[command(name = "tensorc-gpu", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run what no earlier run with the same output folder has finished
    Run {
        /// The GPU: a number, or `interpreted`, whose kernels are executed by the interpreter
        #[arg(long, default_value = "0")]
        device: String,
        /// End after so many minutes; the next run goes on
        #[arg(long, default_value_t = 10.0)]
        minutes: f64,
        /// Where results go
        #[arg(long, default_value = "results")]
        out: PathBuf,
        /// Steps to run, all if none is named
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Repeat what failed
        #[arg(long)]
        again: bool,
    },
    /// List the steps
    List,
    /// Execute one step, and print a line of JSON for each beginning and end of a case
    Step {
        name: String,
        #[arg(long, default_value = "0")]
        device: String,
        /// Names of cases that are left out, a line each
        #[arg(long, default_value = "/dev/null")]
        done: PathBuf,
        /// Folder for what explains failures
        #[arg(long, default_value = "failures")]
        failures: PathBuf,
    },
    /// Repeat a launch that failed on a device in the interpreters
    Reproduce { folder: PathBuf },
    /// Write the bundle's data: the interpreter's results, cases of ONNX, small models
    Collect {
        folder: PathBuf,
        /// Nothing but the interpreter's results
        #[arg(long)]
        only_stored: bool,
    },
}

fn run(verb: Verb) -> Result<ExitCode, Fault> {
    match verb {
        Verb::Run { device, minutes, out, only, again } => {
            let seconds = minutes * 60.0;
            let time = Duration::try_from_secs_f64(seconds).map_err(|e| format!("--minutes: {e}"))?;
            let program = env::current_exe()?;
            let (bundle, terminal) = (identity()?, io::stdout().is_terminal());
            let job = Job { program, device, bundle, out, time, only, again, terminal };
            let summary = runner::run(&job, &steps::all(), &mut io::stdout())?;
            Ok(ExitCode::from(summary.exit_status()))
        }
        Verb::List => {
            for step in steps::all() {
                println!("{:16} {}", step.name, step.about);
            }
            Ok(ExitCode::SUCCESS)
        }
        Verb::Step { name, device, done, failures } => steps::execute(&name, &Context::new(&device, failures), &done),
        Verb::Reproduce { folder } => {
            print!("{}", reproduce(&folder)?);
            Ok(ExitCode::SUCCESS)
        }
        Verb::Collect { folder, only_stored } => {
            collect::stored(&folder)?;
            if !only_stored {
                collect::onnx_cases(&folder)?;
                collect::models(&folder)?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What tells this bundle from others.
fn identity() -> Result<String, Fault> {
    let path = data().join("identity");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}; is this a bundle?", path.display()))?;
    Ok(text.trim().to_owned())
}

/// Executes the command line of this process; its exit status is 0, 1 if something failed, 2 for wrong usage, 130 after an interrupt.
pub fn main() -> ExitCode {
    if imaginary::folder().is_some() {
        imaginary::connect_ptx();
    }
    match run(Cli::parse().verb) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("tensorc-gpu: {error}");
            ExitCode::FAILURE
        }
    }
}
