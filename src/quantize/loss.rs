//! The quantisation error: signal-to-noise ratio and largest error of layers and outputs, against the float model.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::DType;

use super::Layer;
use super::calibrate::{Observed, Sample};
use super::document::Document;
use crate::compiler::Compiler;
use crate::error::Error;

/// How far the values of a node or an output are from those in f32, over all runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// The node, or the output.
    pub name: String,
    /// Its operator; empty for an output.
    pub op: String,
    /// The ratio of the energy of the f32 values to that of the differences, in decibels: `10 log10(Σ x² / Σ (x - y)²)`.
    /// Infinite if nothing differs.
    pub snr: f64,
    /// The largest difference.
    pub largest: f64,
}

/// What quantisation loses in runs.
#[derive(Clone, Debug, PartialEq)]
pub struct LossReport {
    /// Of each quantised layer, the greatest loss first.
    pub layers: Vec<Loss>,
    /// Of each output of f32, in the order of the model.
    pub outputs: Vec<Loss>,
    /// Runs that were compared.
    pub runs: usize,
}

#[derive(Default)]
struct Sums {
    signal: f64,
    noise: f64,
    largest: f64,
}

impl Sums {
    fn add(&mut self, x: &[f32], y: &[f32]) {
        for (x, y) in x.iter().zip(y) {
            let (x, y) = (f64::from(*x), f64::from(*y));
            let error = if x == y { 0.0 } else { x - y };
            self.signal += x * x;
            self.noise += error * error;
            // A value that is no number differs by more than any number.
            self.largest = if error.is_nan() { f64::INFINITY } else { self.largest.max(error.abs()) };
        }
    }

    fn loss(&self, name: &str, op: &str) -> Loss {
        let ratio = if self.noise == 0.0 { f64::INFINITY } else { self.signal / self.noise };
        let snr = if self.noise.is_nan() { f64::NEG_INFINITY } else { 10.0 * ratio.log10() };
        Loss { name: name.to_owned(), op: op.to_owned(), snr, largest: self.largest }
    }
}

/// Compares two forms of a model on the same inputs.
pub(super) fn measure(
    compiler: &Compiler,
    before: &Document,
    after: &Document,
    layers: &[Layer],
    runs: &[Sample],
) -> Result<LossReport, Error> {
    let outputs: Vec<String> = before.model.outputs.iter().map(|(info, _)| info.name().to_owned()).collect();
    let values: BTreeSet<String> = layers.iter().map(|l| l.value.clone()).chain(outputs.iter().cloned()).collect();
    let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
    if runs.is_empty() {
        return Ok(LossReport { layers: vec![], outputs: vec![], runs: 0 });
    }
    // One run at a time: the values of many would not fit into memory.
    let (expected, found) = (Observed::new(compiler, before, &values)?, Observed::new(compiler, after, &values)?);
    for run in runs {
        let (expected, found) = (expected.run(run)?, found.run(run)?);
        for (name, x) in expected.iter().filter(|(_, x)| x.dtype() == DType::F32) {
            let Some(y) = found.get(name).filter(|y| y.data().ty == x.data().ty) else { continue };
            sums.entry(name.clone()).or_default().add(&x.to_f32()?, &y.to_f32()?);
        }
    }
    let mut of_layers: Vec<Loss> =
        layers.iter().filter_map(|l| Some(sums.get(&l.value)?.loss(&l.node, &l.op))).collect();
    of_layers.sort_by(|a, b| a.snr.total_cmp(&b.snr));
    let outputs = outputs.iter().filter_map(|name| Some(sums.get(name)?.loss(name, ""))).collect();
    Ok(LossReport { layers: of_layers, outputs, runs: runs.len() })
}
