//! `tensorc run`.

use std::path::PathBuf;

use clap::Args;
use tensorc::runtime::Profiler;
use tensorc::{Array, Options};

use super::args::{CacheArgs, CompileArgs, InputArgs};
use super::failure::CliFailure;
use super::output::{print, warn};
use super::{arrays, npz};

#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    inputs: InputArgs,
    #[command(flatten)]
    compile: CompileArgs,
    #[command(flatten)]
    cache: CacheArgs,
    /// Save the outputs, named by graph output
    #[arg(long, value_name = "NPZ", help_heading = "Output")]
    output: Option<PathBuf>,
    /// Write a trace of compilation and run for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "JSON", help_heading = "Output")]
    trace: Option<PathBuf>,
}

pub fn run(args: &RunArgs) -> Result<(), CliFailure> {
    let profiler = Profiler::default();
    if args.trace.is_some() {
        profiler.start();
    }
    let options = Options { profiler: Some(profiler.clone()), code_cache: args.cache.folder(), ..Options::default() };
    let compiler = args.compile.compiler_with(None, options)?;
    let model = args.inputs.load(&compiler)?;
    let inputs = args.inputs.arrays(&model)?;
    if inputs.random {
        for (name, array) in &inputs.arrays {
            match array {
                Array::Numbers(t) => eprintln!("random input {name}: {}{:?}", t.dtype(), t.dims()),
                Array::Texts(texts) => eprintln!("random input {name}: text{:?}", texts.dims()),
            }
        }
    }
    let outputs = model.run_arrays(&inputs.named())?;
    super::progress::clear();
    warn(&compiler);
    if let Some(path) = &args.trace {
        profiler.stop();
        profiler.recording().save_trace(path)?;
    }
    if let Some(path) = &args.output {
        return npz::write(path, &outputs);
    }
    let lines = outputs.iter().map(|(name, array)| format!("{name}: {}\n", arrays::line(array)));
    print(&lines.collect::<String>())
}
