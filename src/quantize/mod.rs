//! Float ONNX models as quantised ones, which tensorc and ONNX Runtime read.
//!
//! ```no_run
//! use tensorc::quantize::QuantizeOptions;
//! use tensorc::{Compiler, Options, Tensor, quantize};
//! # fn main() -> Result<(), tensorc::Error> {
//! let compiler = Compiler::new(Options::default())?;
//! let image = Tensor::from_f32(&[1, 3, 224, 224], &vec![0.5; 3 * 224 * 224])?;
//! let samples = [vec![("x".to_owned(), image)]];
//! let quantised = quantize(&compiler, "model.onnx", &samples, &QuantizeOptions::default())?;
//! quantised.save("model.int8.onnx")?;
//! let loss = quantised.loss(16)?;
//! println!("{}: {:.1} dB", loss.layers[0].name, loss.layers[0].snr);
//! # Ok(())
//! # }
//! ```
//!
//! A model is taken apart ([`document`]) and brought into the form that quantised operators need ([`prepare`]). Nodes are
//! chosen ([`product`], [`choose`]), the values between them observed on calibration data ([`calibrate`], [`histogram`]) and
//! given scales ([`scale`]). Then nodes are rewritten: [`qdq`] (static), [`dynamic`], [`weight_only`] (by [`gptq`]). What that loses is measured by runs of both models ([`loss`]).

mod calibrate;
mod choose;
mod document;
mod dynamic;
mod error;
mod gptq;
mod histogram;
mod loss;
mod prepare;
mod product;
mod qdq;
mod save;
mod scale;
mod weight_only;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub use calibrate::{CalibrationMethod, Sample};
pub use error::QuantizeError;
pub use loss::{Loss, LossReport};
pub use scale::ActivationType;

use crate::compiler::Compiler;
use crate::error::Error;
use choose::{Role, Step};
use document::Document;
use gptq::Grid;
use product::{Product, products};
use qdq::StaticRewrite;

/// Which numbers are integers, and when their scales are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QuantizeMode {
    /// Activations and weights are bytes; scales come from calibration. `QuantizeLinear` and `DequantizeLinear` stand around
    /// the float operators, which runtimes replace.
    Static {
        /// How ranges of activations are found.
        method: CalibrationMethod,
        /// The integers of activations.
        activations: ActivationType,
    },
    /// Weights are bytes; activations are quantised in each run by their range in that run.
    Dynamic,
    /// Weights alone, in blocks with a scale each; what is computed is f32.
    Weights {
        /// Bits of a weight: 4 or 8.
        bits: u32,
        /// Weights that share a scale: a power of two from 16 on.
        block: usize,
    },
}

impl Default for QuantizeMode {
    fn default() -> QuantizeMode {
        QuantizeMode::Static { method: CalibrationMethod::default(), activations: ActivationType::default() }
    }
}

/// How a model is quantised.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuantizeOptions {
    /// Which numbers are integers.
    pub mode: QuantizeMode,
    /// Nodes that stay in f32, by name or, of nodes without one, by the name of a result.
    pub keep: Vec<String>,
}

/// A node that was quantised.
struct Layer {
    node: String,
    op: String,
    /// The value in which both models show what it computes.
    value: String,
}

/// A quantised model.
pub struct Quantized {
    compiler: Compiler,
    before: Document,
    after: Document,
    layers: Vec<Layer>,
    runs: Vec<Sample>,
    path: PathBuf,
}

/// Quantises an ONNX model. A sample holds the inputs of one run by name, or of several where the model states how many rows
/// it takes. The same model and samples give the same bytes. See [`mod@crate::quantize`] for an example.
///
/// # Errors
/// The file is no ONNX model or cannot be imported; samples are missing (static quantisation), do not fit the model or hold
/// NaN; a node to keep does not exist; there is nothing to quantise; or an option is out of range ([`QuantizeError`]).
pub fn quantize(
    compiler: &Compiler,
    model: impl AsRef<Path>,
    samples: &[Sample],
    options: &QuantizeOptions,
) -> Result<Quantized, Error> {
    let path = model.as_ref();
    check(options, samples)?;
    let before = Document::open(compiler, path)?;
    let nodes = 0..before.model.nodes.len();
    if let Some(name) = options.keep.iter().find(|name| !nodes.clone().any(|at| has_name(&before, at, name))) {
        return Err(QuantizeError::UnknownNode { name: name.clone() }.into());
    }
    let runs = match samples {
        [] => vec![],
        _ => calibrate::runs(&before.load(compiler, before.model.encode())?, samples)?,
    };
    let mut after = before.clone();
    let layers = match options.mode {
        QuantizeMode::Static { method, activations } => {
            prepare::modernise(&mut after, OPSET_OF_CHANNELS)?;
            let keep = kept(&after, &options.keep);
            prepare::fold_normalisations(&mut after, &keep);
            // Folding moves nodes.
            let keep = kept(&after, &options.keep);
            let steps = choose::candidates(&after, &keep);
            let ranges = calibrate::ranges(compiler, &after, &choose::observed(&steps), &runs)?;
            let steps = choose::chosen(&after, steps, &ranges);
            let wanted = choose::observed(&steps);
            let ranges = ranges.into_iter().filter(|(name, _)| wanted.contains(name)).collect();
            let ranges = calibrate::narrowed(compiler, &after, ranges, &runs, method)?;
            let layers = layers(&after, steps.iter().filter_map(of_product));
            StaticRewrite { document: &mut after, ranges: &ranges, activations }.apply(&steps);
            layers
        }
        QuantizeMode::Dynamic => {
            prepare::modernise(&mut after, OPSET_OF_DYNAMIC)?;
            let keep = kept(&after, &options.keep);
            let named = after.clone();
            let done = dynamic::rewrite(&mut after, products(&named, &keep));
            layers(&named, done.iter().map(|p| (p, p.result.as_str())))
        }
        QuantizeMode::Weights { bits, block } => {
            prepare::modernise(&mut after, 1)?;
            let keep = kept(&after, &options.keep);
            let named = after.clone();
            let done =
                weight_only::rewrite(compiler, &mut after, products(&named, &keep), &runs, Grid { bits, block })?;
            layers(&named, done.iter().map(|p| (p, p.result.as_str())))
        }
    };
    if layers.is_empty() {
        let why = "no product of f32 with constant weights, among the nodes that are not kept, is of a supported form";
        return Err(QuantizeError::Nothing { why: why.to_owned() }.into());
    }
    // What cannot be imported must not be written.
    after.load(compiler, after.model.encode())?;
    Ok(Quantized { compiler: compiler.clone(), before, after, layers, runs, path: path.to_owned() })
}

/// The operator set whose `DequantizeLinear` has a scale for each channel.
const OPSET_OF_CHANNELS: i64 = 13;
/// The operator set of `DynamicQuantizeLinear`.
const OPSET_OF_DYNAMIC: i64 = 11;

fn check(options: &QuantizeOptions, samples: &[Sample]) -> Result<(), QuantizeError> {
    match options.mode {
        QuantizeMode::Static { .. } if samples.is_empty() => Err(QuantizeError::NoData),
        QuantizeMode::Static { method: CalibrationMethod::Percentile(p), .. } if !(p > 50.0 && p <= 100.0) => {
            Err(QuantizeError::Options(format!("a percentile of {p} is not above 50 and at most 100")))
        }
        QuantizeMode::Weights { bits, .. } if ![4, 8].contains(&bits) => {
            Err(QuantizeError::Options(format!("weights have 4 or 8 bits, not {bits}")))
        }
        QuantizeMode::Weights { block, .. } if block < 16 || !block.is_power_of_two() => {
            Err(QuantizeError::Options(format!("a block has a power of two of weights from 16 on, not {block}")))
        }
        _ => Ok(()),
    }
}

/// The nodes that are to stay as they are.
fn kept(document: &Document, names: &[String]) -> BTreeSet<usize> {
    let all = 0..document.model.nodes.len();
    all.filter(|at| names.iter().any(|name| has_name(document, *at, name))).collect()
}

fn has_name(document: &Document, at: usize, name: &str) -> bool {
    let node = document.node(at);
    node.name() == name || node.name().is_empty() && node.output.iter().any(|output| output == name)
}

/// The product of a step, with the value that it delivers.
fn of_product(step: &Step) -> Option<(&Product, &str)> {
    match &step.role {
        Role::Product(product) => Some((product, &step.result)),
        Role::Passing | Role::Combining => None,
    }
}

fn layers<'a>(document: &Document, products: impl Iterator<Item = (&'a Product, &'a str)>) -> Vec<Layer> {
    let one = |(product, value): (&Product, &str)| Layer {
        node: document.label(product.node),
        op: document.node(product.node).op_type().to_owned(),
        value: value.to_owned(),
    };
    products.map(one).collect()
}

impl Quantized {
    /// The names of the nodes that were quantised, in the order of the model.
    pub fn layers(&self) -> Vec<&str> {
        self.layers.iter().map(|l| l.node.as_str()).collect()
    }

    /// The model as an ONNX file, with all its data.
    pub fn bytes(&self) -> bytes::Bytes {
        self.after.model.encode()
    }

    /// Runs the float and the quantised model on the samples, `most` runs at most, and compares layers and outputs.
    ///
    /// # Errors
    /// A model does not compile or run.
    pub fn loss(&self, most: usize) -> Result<LossReport, Error> {
        let runs = &self.runs[..self.runs.len().min(most)];
        loss::measure(&self.compiler, &self.before, &self.after, &self.layers, runs)
    }

    /// Writes the model; a model of more than 2 GiB with its data in a file beside it, with `.data` behind its name. A file of
    /// the name is replaced when all is written.
    ///
    /// # Errors
    /// A file cannot be written, or is the model from which this one was made.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        save::save(&self.after, &self.path, path.as_ref(), save::LARGEST_FILE)
    }
}
