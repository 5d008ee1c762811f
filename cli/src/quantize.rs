//! `tensorc quantize`: a float ONNX model as a quantised one.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tensorc::quantize::{
    ActivationType, CalibrationMethod, Loss, LossReport, QuantizeError, QuantizeMode, QuantizeOptions, Sample,
};
use tensorc::{Compiler, Error, quantize};

use super::args::CompileArgs;
use super::failure::{CliFailure, InFile, Usage};
use super::output::print;
use super::{arrays, progress};

#[derive(Args)]
pub struct QuantizeArgs {
    /// ONNX model of f32
    model: PathBuf,
    #[command(flatten)]
    compile: CompileArgs,
    /// Inputs to calibrate with: a file of arrays named by graph input, or a folder of such files
    #[arg(long, value_name = "DATA", help_heading = "Quantisation")]
    calibrate: Option<PathBuf>,
    /// The quantised model
    #[arg(short, long, value_name = "ONNX", help_heading = "Quantisation")]
    out: PathBuf,
    /// What is quantised, and when scales are found
    #[arg(long, value_enum, default_value_t = Mode::Static, help_heading = "Quantisation")]
    mode: Mode,
    /// How ranges of activations are found (static)
    #[arg(long, value_enum, default_value_t = Method::Minmax, help_heading = "Quantisation")]
    method: Method,
    /// Share of the values that are in the range, in percent (method percentile)
    #[arg(long, value_name = "P", default_value_t = 99.99, help_heading = "Quantisation")]
    percentile: f64,
    /// Integers of activations (static)
    #[arg(long, value_enum, default_value_t = Activations::U8, help_heading = "Quantisation")]
    activations: Activations,
    /// Bits of a weight, 4 or 8 (weights)
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Quantisation")]
    bits: u32,
    /// Weights that share a scale (weights)
    #[arg(long, value_name = "N", default_value_t = 32, help_heading = "Quantisation")]
    block: usize,
    /// A node that stays in f32; may be repeated
    #[arg(long, value_name = "NODE", help_heading = "Quantisation")]
    keep: Vec<String>,
    /// Write the report as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// Activations and weights, with scales from calibration
    Static,
    /// Weights; activations in each run, by their range in it
    Dynamic,
    /// Weights alone, in blocks of few bits
    Weights,
}

#[derive(Clone, Copy, ValueEnum)]
enum Method {
    /// From the least to the largest value
    Minmax,
    /// Without the values at both ends
    Percentile,
    /// Least Kullback-Leibler divergence
    Entropy,
}

#[derive(Clone, Copy, ValueEnum)]
enum Activations {
    /// Unsigned bytes
    U8,
    /// Signed bytes
    S8,
}

/// Most runs of the report on the loss.
const COMPARED_RUNS: usize = 16;

pub fn run(args: &QuantizeArgs) -> Result<(), CliFailure> {
    let options = QuantizeOptions { mode: mode(args), keep: args.keep.clone() };
    if matches!(args.mode, Mode::Static) && args.calibrate.is_none() {
        let why = "static quantisation needs data: --calibrate DATA, or --mode dynamic or --mode weights without";
        return Err(Usage(why.to_owned()).into());
    }
    let compiler = args.compile.compiler()?;
    let samples = match &args.calibrate {
        Some(data) => samples(&compiler, &args.model, data)?,
        None => vec![],
    };
    progress::phase("quantise");
    let quantized = match quantize(&compiler, &args.model, &samples, &options) {
        Err(Error::Quantize(error @ QuantizeError::Options(_))) => return Err(Usage(error.to_string()).into()),
        other => other?,
    };
    quantized.save(&args.out)?;
    let loss = quantized.loss(COMPARED_RUNS)?;
    progress::clear();
    let size = |path: &Path| fs::metadata(path).map_or(0, |data| data.len());
    let sizes = [size(&args.model), size(&args.out)];
    match args.json {
        true => print(&format!("{:#}\n", as_json(&quantized.layers(), &loss, sizes))),
        false => print(&as_text(args, &quantized.layers(), &loss, sizes)),
    }
}

fn mode(args: &QuantizeArgs) -> QuantizeMode {
    let method = match args.method {
        Method::Minmax => CalibrationMethod::MinMax,
        Method::Percentile => CalibrationMethod::Percentile(args.percentile),
        Method::Entropy => CalibrationMethod::Entropy,
    };
    let activations = match args.activations {
        Activations::U8 => ActivationType::U8,
        Activations::S8 => ActivationType::I8,
    };
    match args.mode {
        Mode::Static => QuantizeMode::Static { method, activations },
        Mode::Dynamic => QuantizeMode::Dynamic,
        Mode::Weights => QuantizeMode::Weights { bits: args.bits, block: args.block },
    }
}

/// The inputs in a file, or in each file of a folder, in the order of names.
fn samples(compiler: &Compiler, model: &Path, data: &Path) -> Result<Vec<Sample>, CliFailure> {
    let failed = |source| Error::Read { path: data.to_owned(), source };
    let model = compiler.load(model)?;
    let mut files = vec![data.to_owned()];
    if fs::metadata(data).map_err(failed)?.is_dir() {
        let entries = fs::read_dir(data).map_err(failed)?.map(|entry| Ok(entry?.path()));
        files = entries.collect::<Result<_, std::io::Error>>().map_err(failed)?;
        files.retain(|path| path.extension().is_some_and(|e| e == "npz"));
        files.sort();
    }
    if files.is_empty() {
        return Err(format!("{}: the folder holds no .npz file", data.display()).into());
    }
    let one = |path: PathBuf| -> Result<Sample, CliFailure> {
        let inputs = arrays::inputs(&model, Some(&path), &[])?.numbers(&model)?;
        // Errors of the library count samples; a file is named here.
        let named: Vec<(&str, ())> = inputs.iter().map(|(name, _)| (name.as_str(), ())).collect();
        model.ordered(&named).map_err(|source| InFile { path, source })?;
        Ok(inputs)
    };
    files.into_iter().map(one).collect()
}

/// A number of decibels; nothing was lost if there are infinitely many.
fn decibels(snr: f64) -> String {
    if snr.is_finite() { format!("{snr:.2}") } else { "exact".to_owned() }
}

fn as_text(args: &QuantizeArgs, layers: &[&str], loss: &LossReport, sizes: [u64; 2]) -> String {
    let mut text = String::new();
    let mut table = |title: &str, losses: &[Loss]| {
        if losses.is_empty() {
            return;
        }
        text += &format!("{:>9}  {:>13}  {title}\n", "SNR dB", "largest error");
        for l in losses {
            let op = if l.op.is_empty() { String::new() } else { format!(" ({})", l.op) };
            text += &format!("{:>9}  {:>13.6}  {}{op}\n", decibels(l.snr), l.largest, l.name);
        }
        text += "\n";
    };
    table("layer", &loss.layers);
    table("output", &loss.outputs);
    let compared = match loss.runs {
        0 => "not compared with f32: there is no data".to_owned(),
        runs => format!("compared with f32 in {runs} runs"),
    };
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let [before, after] = sizes.map(megabytes);
    let share = 100.0 * after / before;
    text += &format!(
        "{}: {} layers quantised, {compared}; {before:.2} MB became {after:.2} MB ({share:.0} %)\n",
        args.out.display(),
        layers.len()
    );
    text
}

fn as_json(layers: &[&str], loss: &LossReport, [before, after]: [u64; 2]) -> Value {
    let one = |l: &Loss| {
        // JSON has no infinity.
        let snr = l.snr.is_finite().then_some(l.snr);
        let mut entry = json!({ "name": l.name, "snr_db": snr, "largest_error": l.largest });
        if !l.op.is_empty() {
            entry["op"] = l.op.clone().into();
        }
        entry
    };
    json!({
        "quantized": layers,
        "layers": loss.layers.iter().map(one).collect::<Vec<_>>(),
        "outputs": loss.outputs.iter().map(one).collect::<Vec<_>>(),
        "runs": loss.runs,
        "bytes_before": before,
        "bytes_after": after,
    })
}
