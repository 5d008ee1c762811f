//! `tensorc report`: a model as a page, with what became of it.

use std::path::{Path, PathBuf};

use clap::Args;
use tensorc::compare::{ComparisonRequest, Side, compare};
use tensorc::report::{ModelReport, ReportRequest};
use tensorc::{Compiler, Error};

use super::args::{CompileArgs, InputArgs};
use super::arrays::borrowed;
use super::failure::CliFailure;
use super::output::{print, write_text};

#[derive(Args)]
pub struct ReportArgs {
    #[command(flatten)]
    inputs: InputArgs,
    #[command(flatten)]
    compile: CompileArgs,
    /// The page
    #[arg(short, long, value_name = "HTML")]
    out: PathBuf,
    /// Timed runs
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Measure nothing: the same model gives the same bytes
    #[arg(long, conflicts_with = "repeat")]
    no_measure: bool,
}

/// Values looked at besides those that are searched.
pub const LAYERS: usize = 64;

pub fn run(args: &ReportArgs) -> Result<(), CliFailure> {
    let compiler = args.compile.compiler()?;
    let path = args.inputs.path();
    let name = path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
    let model = match args.inputs.load(&compiler) {
        Ok(model) => model,
        Err(failure) => return Err(refused(&compiler, path, &name, &args.out, failure)),
    };
    let inputs = args.inputs.arrays(&model)?.numbers(&model)?;
    let named = borrowed(&inputs);
    let request = ReportRequest { repeat: (!args.no_measure).then_some(args.repeat) };
    let of = ModelReport::of(&model, &model.ordered(&named)?, &request);
    let mut report = match of {
        Ok(report) => report.named(&name),
        Err(error) => return Err(refused(&compiler, path, &name, &args.out, error.into())),
    };
    if let Some(exact) = args.compile.exact_reference()? {
        let reference = Side::of(&args.inputs.load(&exact)?, &named)?;
        let request = ComparisonRequest { layers: LAYERS, ..ComparisonRequest::default() };
        let found = compare(&reference, &Side::of(&model, &named)?, &request)?;
        report = report.with_errors("Compared with --exact, on the same inputs.", &found);
    }
    write(&args.out, &report)?;
    let summary = report.summary();
    print(&format!("{}: {summary}\n", args.out.display()))
}

/// Writes the page.
pub fn write(path: &Path, report: &ModelReport) -> Result<(), CliFailure> {
    write_text(path, &report.html())
}

/// A model that is not supported has a page, too. The failure is what ends the command.
fn refused(compiler: &Compiler, path: &Path, name: &str, out: &Path, failure: CliFailure) -> CliFailure {
    let report = failure.downcast_ref::<Error>().and_then(|error| ModelReport::of_refused(compiler, path, error));
    match report.map(|report| write(out, &report.named(name))) {
        Some(Err(unwritten)) => unwritten,
        Some(Ok(())) | None => failure,
    }
}
