//! Runs of the float model on calibration data, in which values are looked at.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::DType;

use super::document::Document;
use super::error::QuantizeError;
use super::histogram::{Histogram, Range};
use super::scale::ActivationType;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::model::Model;
use crate::tensor::Tensor;

/// The inputs of a run by name.
pub type Sample = Vec<(String, Tensor)>;

/// How the range of an activation is found from the values that it has in calibration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum CalibrationMethod {
    /// From the least to the largest value.
    #[default]
    MinMax,
    /// So that this many percent of the values are in it, with as many above as below; above 50, at most 100.
    Percentile(f64),
    /// Cut off at the magnitude that loses the least information (the smallest Kullback-Leibler divergence).
    Entropy,
}

/// The runs that samples are: where the model states its batch, a sample of several batches is as many runs.
///
/// # Errors
/// An input is missing, unknown, not finite, or no multiple of the batch.
pub(super) fn runs(model: &Model, samples: &[Sample]) -> Result<Vec<Sample>, Error> {
    let mut all = vec![];
    for (i, sample) in samples.iter().enumerate() {
        let named: Vec<(&str, Tensor)> = sample.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        let ordered = model.ordered(&named)?;
        let names = model.inputs().into_iter().map(|(name, _)| name);
        let sample: Sample = names.zip(ordered).collect();
        for (input, tensor) in &sample {
            if tensor.dtype() == DType::F32 && !tensor.to_f32()?.iter().all(|x| x.is_finite()) {
                return Err(QuantizeError::InputNotFinite { input: input.clone(), sample: i }.into());
            }
        }
        let count = batches(model, &sample, i)?;
        let part = |at: u64| -> Result<Sample, Error> {
            sample.iter().map(|(name, t)| Ok((name.clone(), rows(t, at, count)?))).collect()
        };
        all.extend((0..count).map(part).collect::<Result<Vec<Sample>, Error>>()?);
    }
    Ok(all)
}

/// How many batches the inputs of a sample are: 1 unless the model states extents of first axes that they are multiples of.
fn batches(model: &Model, sample: &Sample, at: usize) -> Result<u64, Error> {
    let mut count = None;
    for ((name, ty), (_, tensor)) in model.inputs().iter().zip(sample) {
        let Some(wanted) = ty.shape.dims().and_then(|dims| dims.first()?.as_const()) else { continue };
        let Some(found) = tensor.dims().first().copied() else { continue };
        let fail = || QuantizeError::Batch { input: name.clone(), sample: at, found, wanted };
        if wanted == 0 || found == 0 || found % wanted != 0 || count.is_some_and(|n| n != found / wanted) {
            return Err(fail().into());
        }
        count = Some(found / wanted);
    }
    Ok(count.unwrap_or(1))
}

/// The part of a tensor at a position, of `count` along the first axis.
fn rows(tensor: &Tensor, at: u64, count: u64) -> Result<Tensor, Error> {
    if count == 1 {
        return Ok(tensor.clone());
    }
    let mut dims = tensor.dims().to_vec();
    // Scalars belong to every batch.
    let Some(first) = dims.first_mut() else { return Ok(tensor.clone()) };
    *first /= count;
    let size = tensor.bytes().len() / count as usize;
    Tensor::from_bytes(tensor.dtype(), &dims, tensor.data().bytes().slice(at as usize * size..(at as usize + 1) * size))
}

/// A model with some of its values as further outputs.
pub(super) struct Observed<'a> {
    model: Model,
    values: &'a BTreeSet<String>,
}

impl<'a> Observed<'a> {
    /// Of values, inputs among them. Those that the model does not compute are left out.
    ///
    /// # Errors
    /// The model cannot be loaded.
    pub fn new(compiler: &Compiler, document: &Document, values: &'a BTreeSet<String>) -> Result<Observed<'a>, Error> {
        let bytes = document.with_outputs(values.iter().map(String::as_str));
        Ok(Observed { model: document.load(compiler, bytes)?, values })
    }

    /// The values in a run.
    ///
    /// # Errors
    /// The model does not compile or run.
    pub fn run(&self, sample: &Sample) -> Result<BTreeMap<String, Tensor>, Error> {
        let named: Vec<(&str, Tensor)> = sample.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        let all = sample.iter().cloned().chain(self.model.run(&named)?);
        Ok(all.filter(|(name, _)| self.values.contains(name)).collect())
    }
}

/// Shows values of a model, run by run.
///
/// # Errors
/// As [`Observed::run`]; or the visitor fails.
pub(super) fn observe(
    compiler: &Compiler,
    document: &Document,
    values: &BTreeSet<String>,
    runs: &[Sample],
    visit: &mut dyn FnMut(usize, &str, &Tensor) -> Result<(), Error>,
) -> Result<(), Error> {
    let observed = Observed::new(compiler, document, values)?;
    for (i, sample) in runs.iter().enumerate() {
        observed.run(sample)?.iter().try_for_each(|(name, tensor)| visit(i, name, tensor))?;
    }
    Ok(())
}

/// The ranges of values that are f32 and have elements.
///
/// # Errors
/// As [`observe`]; or a value is not finite.
pub(super) fn ranges(
    compiler: &Compiler,
    document: &Document,
    values: &BTreeSet<String>,
    runs: &[Sample],
) -> Result<BTreeMap<String, Range>, Error> {
    let mut found: BTreeMap<String, Range> = BTreeMap::new();
    observe(compiler, document, values, runs, &mut |run, name, tensor| {
        if tensor.dtype() != DType::F32 || tensor.bytes().is_empty() {
            return Ok(());
        }
        let range = found.entry(name.to_owned()).or_insert(Range::EMPTY);
        match range.add(&tensor.to_f32()?) {
            true => Ok(()),
            false => Err(QuantizeError::ValueNotFinite { value: name.to_owned(), run }.into()),
        }
    })?;
    Ok(found)
}

/// The calibrated ranges: `ranges`, clipped as the method says.
///
/// # Errors
/// As [`observe`].
pub(super) fn narrowed(
    compiler: &Compiler,
    document: &Document,
    ranges: BTreeMap<String, Range>,
    runs: &[Sample],
    method: CalibrationMethod,
) -> Result<BTreeMap<String, Range>, Error> {
    let of = match method {
        CalibrationMethod::MinMax => return Ok(ranges),
        CalibrationMethod::Percentile(_) => Histogram::of_values,
        CalibrationMethod::Entropy => Histogram::of_magnitudes,
    };
    let mut histograms: BTreeMap<String, Histogram> = ranges.iter().map(|(name, r)| (name.clone(), of(*r))).collect();
    observe(compiler, document, &ranges.keys().cloned().collect(), runs, &mut |_, name, tensor| {
        if let Some(histogram) = histograms.get_mut(name) {
            histogram.add(&tensor.to_f32()?);
        }
        Ok(())
    })?;
    let names: Vec<&String> = ranges.keys().collect();
    let narrow = |i: usize| Ok(narrow(ranges[names[i]], &histograms[names[i]], method));
    let narrowed = compiler.side_by_side(names.len(), "calibration", narrow)?;
    Ok(names.into_iter().cloned().zip(narrowed).collect())
}

fn narrow(range: Range, histogram: &Histogram, method: CalibrationMethod) -> Range {
    match method {
        CalibrationMethod::MinMax => range,
        CalibrationMethod::Percentile(percentile) => histogram.percentile(percentile),
        CalibrationMethod::Entropy => {
            // Integers of one sign have twice as many steps for the magnitudes.
            let steps = ActivationType::U8.limits().1 as usize + 1;
            let levels = if range.min < 0.0 && range.max > 0.0 { steps / 2 } else { steps };
            let threshold = histogram.least_divergence(levels);
            Range { min: range.min.max(-threshold), max: range.max.min(threshold) }
        }
    }
}
