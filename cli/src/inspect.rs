//! `tensorc inspect`: what a model takes, holds, computes and needs.

use std::path::PathBuf;

use clap::Args;
use tensorc::inspect::Inspection;

use super::args::{CompileArgs, ModelArgs};
use super::failure::CliFailure;
use super::output::{print, write_text};
use super::{arrays, artifact};

#[derive(Args)]
pub struct InspectArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Extents of an input or a named dimension: `x=1,3,224,224` or `batch=4`; others are 1
    #[arg(long = "shape", value_name = "NAME=N,…", help_heading = "Model and inputs")]
    shapes: Vec<String>,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Of a compiled model: the text of every kernel
    #[arg(long, help_heading = "Output")]
    kernels: bool,
    /// Draw the memory plan
    #[arg(long, value_name = "SVG", help_heading = "Output")]
    memory: Option<PathBuf>,
    #[command(flatten)]
    compile: CompileArgs,
}

pub fn run(args: &InspectArgs) -> Result<(), CliFailure> {
    if let Some(manifest) = artifact::manifest(args.model.path())? {
        return match args.json {
            true => print(&String::from_utf8_lossy(&manifest.to_json())),
            false => print(&artifact::table(&manifest, args.kernels)?),
        };
    }
    let shapes = arrays::shapes(&args.shapes)?;
    let compiler = args.compile.compiler()?;
    let model = args.model.load(&compiler, &args.shapes)?;
    let inspection = Inspection::of(&model, &shapes).map_err(|error| match &error.open[..] {
        [] => CliFailure::from(*error.source),
        open => format!("{}; {} taken as 1: give --shape NAME=N", error.source, open.join(", ")).into(),
    })?;
    super::progress::clear();
    if let Some(path) = &args.memory {
        write_text(path, &inspection.memory_drawing())?;
    }
    match args.json {
        true => print(&format!("{}\n", inspection.json())),
        false => print(&inspection.table()?),
    }
}
