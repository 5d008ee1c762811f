//! `tensorc compile`: a model ahead of time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use tensorc::aot::files::{ArtifactFile, identifier, with_extension, write_file};
use tensorc::aot::gpu::{GpuTarget, find_assembler};
use tensorc::aot::link::{LinkOutput, Tools};
use tensorc::aot::{AotRequest, Artifact, ExtentRange, compile};
use tensorc::ir::TextModule;
use tensorc::ir::text::{PrintOptions, print_module};
use tensorc::runtime::Device as Place;
use tensorc::schedule::target::Capability;
use tensorc::{Backend, Isa, Options};

use super::args::{CompileArgs, ModelArgs};
use super::arrays;
use super::code::DumpForm;
use super::failure::{CliFailure, Usage};
use super::output::print;

#[derive(Args)]
pub struct AheadArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Output path: OUT.o, OUT.a, OUT.so, OUT, OUT.ir, OUT.kir, OUT.s or OUT.ptx; OUT.h, OUT.json and OUT.weights are written too
    #[arg(short, long, value_name = "OUT", help_heading = "Output")]
    out: PathBuf,
    /// Kinds of output, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "obj", help_heading = "Output")]
    emit: Vec<Emit>,
    /// native, x86_64, x86_64-v3, x86_64-v4, aarch64 or riscv64; or a GPU, cuda:sm_80 or cuda:sm_90a
    #[arg(long, default_value = "native", help_heading = "Target")]
    target: String,
    /// The processor of a program whose kernels run on a GPU, as a target
    #[arg(long, value_name = "TARGET", default_value = "native", help_heading = "Target")]
    host: String,
    /// NVIDIA's assembler (ptxas) for machine code beside PTX; `none`: PTX only (default: $TENSORC_PTXAS, else ptxas of
    /// the PATH)
    #[arg(long, value_name = "PROGRAM", help_heading = "Target")]
    ptxas: Option<PathBuf>,
    /// Extents of an input or a named dimension, `x=1,3,224,224` or `batch=4`, or a range of a dimension, `batch=1..8`, `height=32..640/32` in steps
    #[arg(long = "shape", value_name = "NAME=N,…", help_heading = "Model and inputs")]
    shapes: Vec<String>,
    /// Prefix of the C functions (default: from OUT)
    #[arg(long, help_heading = "Output")]
    name: Option<String>,
    /// Where the weights go
    #[arg(long, value_enum, default_value_t = WeightFiles::File, help_heading = "Output")]
    weights: WeightFiles,
    /// The C compiler that links
    #[arg(long, value_name = "PROGRAM", help_heading = "Target")]
    linker: Option<OsString>,
    /// libtensorc_rt.a for another machine
    #[arg(long, value_name = "FILE", help_heading = "Target")]
    runtime_library: Option<PathBuf>,
    #[command(flatten)]
    compile: CompileArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// A relocatable object, to be linked with the run-time library
    Obj,
    /// An archive of the object and the run-time library
    StaticLib,
    /// A library to link with or to load
    SharedLib,
    /// A program that reads and writes arrays
    Exe,
    /// The C header alone
    Header,
    /// Rust bindings, OUT.rs
    Rust,
    /// The optimized graph of every variant
    Ir,
    /// The plans and kernels
    Kir,
    /// Assembly of the kernels
    Asm,
    /// PTX of the kernels
    Ptx,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WeightFiles {
    /// In a file OUT.weights
    File,
    /// In the object
    Embed,
}

pub fn run(args: &AheadArgs) -> Result<(), CliFailure> {
    let (target, gpu) = targets(args)?;
    let mut options = Options::default();
    if let Some(gpu) = &gpu {
        // Kernels are written for GPUs of the capability; none is asked for.
        options.gpus = vec![tensorc_simulator::interpreted_as(Place::accelerator(0), gpu.capability)];
    }
    let compiler = args.compile.compiler_with(None, options)?;
    let model = args.model.load(&compiler, &args.shapes)?;
    let (ranges, shapes): (Vec<String>, Vec<String>) =
        arrays::entries(&args.shapes).into_iter().partition(|s| s.contains(".."));
    let request = AotRequest {
        name: args.name.clone().unwrap_or_else(|| identifier(&args.out)),
        shapes: arrays::shapes(&shapes)?,
        ranges: ranges.iter().map(|text| range(text)).collect::<Result<_, _>>()?,
        target,
        gpu,
        embed_weights: args.weights == WeightFiles::Embed,
        program: args.emit.contains(&Emit::Exe),
    };
    let artifact = compile(&model, &request)?;
    super::progress::phase("write and link");
    let written = write(args, &request, &artifact)?;
    super::progress::clear();
    let mut text = String::new();
    for path in written {
        let bytes = std::fs::metadata(&path).map_err(|e| format!("{}: {e}", path.display()))?.len();
        text += &format!("{:>12} bytes  {}\n", bytes, path.display());
    }
    print(&text)
}

/// The processor and the GPU that are asked for.
fn targets(args: &AheadArgs) -> Result<(Isa, Option<GpuTarget>), Usage> {
    let processor = |option: &str, text: &str| text.parse::<Isa>().map_err(|e| Usage(format!("{option}: {e}")));
    if !args.target.starts_with("cuda") {
        if let Some(option) = [("--ptxas", args.ptxas.is_some()), ("--emit=ptx", args.emit.contains(&Emit::Ptx))]
            .into_iter()
            .find_map(|(option, given)| given.then_some(option))
        {
            return Err(Usage(format!("{option} is for GPUs: --target={}", Capability::NAMES.join(" or "))));
        }
        return Ok((processor("--target", &args.target)?, None));
    }
    if args.emit.contains(&Emit::Asm) {
        return Err(Usage("--emit=asm is for processors; for a GPU, --emit=ptx".into()));
    }
    let capability = args.target.parse::<Capability>().map_err(|e| Usage(format!("--target: {e}")))?;
    let assembler = match &args.ptxas {
        Some(path) => Some(path.clone()).filter(|path| *path != Path::new("none")),
        None => find_assembler(),
    };
    Ok((processor("--host", &args.host)?, Some(GpuTarget { capability, assembler })))
}

/// Writes what is asked for; the files.
fn write(args: &AheadArgs, request: &AotRequest, artifact: &Artifact) -> Result<Vec<PathBuf>, CliFailure> {
    let tools = Tools { linker: args.linker.clone(), library: args.runtime_library.clone() };
    let files: Vec<ArtifactFile> = args.emit.iter().filter_map(|emit| emit.file()).collect();
    let mut written = artifact.write(request, &args.out, &files, &tools)?;
    for emit in &args.emit {
        let (extension, text) = match emit {
            Emit::Ptx => ("ptx", artifact.ptx.clone().unwrap_or_default()),
            Emit::Ir | Emit::Kir | Emit::Asm => listing(*emit, artifact, args.compile.backend()?, request.target)?,
            _ => continue,
        };
        written.push(write_file(with_extension(&args.out, extension), text.as_bytes())?);
    }
    Ok(written)
}

impl Emit {
    /// The file that it is, unless it is a text about what was compiled, or always written.
    fn file(self) -> Option<ArtifactFile> {
        Some(match self {
            Emit::Obj => ArtifactFile::Object,
            Emit::StaticLib => ArtifactFile::Linked(LinkOutput::StaticLibrary),
            Emit::SharedLib => ArtifactFile::Linked(LinkOutput::SharedLibrary),
            Emit::Exe => ArtifactFile::Linked(LinkOutput::Program),
            Emit::Rust => ArtifactFile::RustBindings,
            Emit::Header | Emit::Ir | Emit::Kir | Emit::Asm | Emit::Ptx => return None,
        })
    }
}

/// A text of what was compiled, and the extension of its file.
fn listing(
    emit: Emit,
    artifact: &Artifact,
    backend: Backend,
    target: Isa,
) -> Result<(&'static str, String), CliFailure> {
    let (module, options) = (&artifact.module, PrintOptions { elide: true, ..PrintOptions::default() });
    let text = match emit {
        Emit::Asm => return Ok(("s", DumpForm::Asm.text(&module.kernels, backend, target)?)),
        Emit::Kir => {
            // Plans for many shapes follow with their expressions.
            let variants = module.plans.iter().zip(&artifact.manifest.variants);
            let plans = variants.filter(|(_, variant)| !variant.many).map(|(plan, _)| plan.clone()).collect();
            TextModule { graphs: vec![], plans, ..module.clone() }
        }
        _ => TextModule { kernels: vec![], plans: vec![], ..module.clone() },
    };
    let mut text = print_module(&text, &options);
    if emit == Emit::Kir {
        // What depends on symbols of the compilation is not parsed back.
        let lines = artifact.open_plans.iter().flat_map(|plan| plan.lines());
        text.extend(lines.map(|line| format!("// {line}\n")));
    }
    Ok((if emit == Emit::Kir { "kir" } else { "ir" }, text))
}

/// `batch=1..8`, `height=32..640/32`.
fn range(text: &str) -> Result<(String, ExtentRange), Usage> {
    let bad = || Usage(format!("--shape {text}: expected NAME=FIRST..LAST or NAME=FIRST..LAST/STEP"));
    let (name, range) = text.split_once('=').ok_or_else(bad)?;
    let (first, last) = range.split_once("..").ok_or_else(bad)?;
    let (last, step) = last.split_once('/').unwrap_or((last, "1"));
    let number = |text: &str| text.trim_start_matches('=').parse::<u64>().map_err(|_| bad());
    Ok((name.to_owned(), ExtentRange { first: number(first)?, last: number(last)?, step: number(step)? }))
}
