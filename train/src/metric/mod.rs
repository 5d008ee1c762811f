//! Measures of a network's outputs against labels, accumulated over batches.
//!
//! Definitions, names and defaults are MXNet's. They are computed on the host, in f64.

mod classes;
mod probability;
mod regression;

use std::fmt;

pub use classes::{Accuracy, Average, Binary, BinaryScore, Confusion, TopK};
pub use probability::{CrossEntropy, Loss, Perplexity};
pub use regression::{Distance, Pearson, Regression};

use crate::error::{Error, TrainError};
use tensorc::Tensor;

/// A measure over batches.
pub trait Metric: Send {
    /// What it is called in reports.
    fn name(&self) -> String;

    /// Takes in a batch: labels and outputs in pairs.
    ///
    /// # Errors
    /// Their numbers or shapes do not fit the metric.
    fn update(&mut self, labels: &[Tensor], outputs: &[Tensor]) -> Result<(), Error>;

    /// Forgets all batches.
    fn reset(&mut self);

    /// Names and values; NaN before the first batch.
    fn values(&self) -> Vec<(String, f64)>;
}

impl fmt::Debug for dyn Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}

/// A sum and what to divide it by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MetricSum {
    /// Sum of the values.
    pub total: f64,
    /// Number of values, the divisor of the mean.
    pub count: f64,
}

impl MetricSum {
    /// Adds a sum and the number of values in it.
    pub fn add(&mut self, total: f64, count: f64) {
        self.total += total;
        self.count += count;
    }

    /// NaN if nothing was added.
    pub fn mean(&self) -> f64 {
        if self.count == 0.0 { f64::NAN } else { self.total / self.count }
    }
}

/// A tensor's elements as f64 with its shape.
struct MetricTensor {
    dims: Vec<usize>,
    data: Vec<f64>,
}

impl MetricTensor {
    fn of(tensor: &Tensor) -> MetricTensor {
        MetricTensor { dims: tensor.dims().iter().map(|d| *d as usize).collect(), data: tensor.data().to_f64s() }
    }

    /// Elements before, along and after an axis, which may count from the end.
    fn around(&self, axis: i64) -> Option<(usize, usize, usize)> {
        let rank = self.dims.len() as i64;
        let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()?;
        let extent = *self.dims.get(axis)?;
        Some((self.dims[..axis].iter().product(), extent, self.dims[axis + 1..].iter().product()))
    }

    /// Positions of the largest elements along an axis, the first of equals.
    fn argmax(&self, axis: i64) -> Option<Vec<f64>> {
        let (outer, extent, inner) = self.around(axis)?;
        let at = |o: usize, k: usize, i: usize| self.data[(o * extent + k) * inner + i];
        let best = |o: usize, i: usize| (1..extent).fold(0, |b, k| if at(o, k, i) > at(o, b, i) { k } else { b });
        Some((0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))).map(|(o, i)| best(o, i) as f64).collect())
    }
}

/// Pairs of labels and outputs, of which there must be as many.
fn pairs<'t>(
    metric: &str,
    labels: &'t [Tensor],
    outputs: &'t [Tensor],
) -> Result<impl Iterator<Item = (MetricTensor, MetricTensor)> + use<'t>, Error> {
    match labels.len() == outputs.len() {
        true => {
            Ok(labels.iter().zip(outputs).map(|(label, output)| (MetricTensor::of(label), MetricTensor::of(output))))
        }
        false => Err(wrong(metric, format!("{} labels and {} outputs", labels.len(), outputs.len()))),
    }
}

fn wrong(metric: &str, why: impl Into<String>) -> Error {
    TrainError::Metric { metric: metric.to_owned(), why: why.into() }.into()
}

fn shapes(metric: &str, label: &MetricTensor, output: &MetricTensor) -> Error {
    wrong(metric, format!("labels {:?} do not fit outputs {:?}", label.dims, output.dims))
}

/// Several metrics at once.
#[derive(Default)]
pub struct Composite(pub Vec<Box<dyn Metric>>);

impl Metric for Composite {
    fn name(&self) -> String {
        "composite".into()
    }

    fn update(&mut self, labels: &[Tensor], outputs: &[Tensor]) -> Result<(), Error> {
        self.0.iter_mut().try_for_each(|metric| metric.update(labels, outputs))
    }

    fn reset(&mut self) {
        self.0.iter_mut().for_each(|metric| metric.reset());
    }

    fn values(&self) -> Vec<(String, f64)> {
        self.0.iter().flat_map(|metric| metric.values()).collect()
    }
}

type Evaluation = dyn Fn(&Tensor, &Tensor) -> Result<MetricSum, Error> + Send;

/// The mean of what a function says of each pair of label and output.
pub struct Custom {
    name: String,
    evaluate: Box<Evaluation>,
    sum: MetricSum,
}

impl Custom {
    /// `evaluate` takes a label and an output, and returns a sum over examples and their number.
    pub fn new(
        name: impl Into<String>,
        evaluate: impl Fn(&Tensor, &Tensor) -> Result<MetricSum, Error> + Send + 'static,
    ) -> Custom {
        Custom { name: name.into(), evaluate: Box::new(evaluate), sum: MetricSum::default() }
    }
}

impl Metric for Custom {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn update(&mut self, labels: &[Tensor], outputs: &[Tensor]) -> Result<(), Error> {
        for (label, output) in labels.iter().zip(outputs) {
            let MetricSum { total, count } = (self.evaluate)(label, output)?;
            self.sum.add(total, count);
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.sum = MetricSum::default();
    }

    fn values(&self) -> Vec<(String, f64)> {
        vec![(self.name(), self.sum.mean())]
    }
}

/// Names that [`create`] knows, with MXNet's short forms.
const KNOWN: &str = "accuracy (acc), top_k_accuracy_K (top_k_acc_K), f1, mcc, pcc, perplexity, cross-entropy (ce), \
                     nll-loss (nll_loss), mae, mse, rmse, pearsonr, loss";

/// A metric by MXNet's name, with default settings; several, separated by commas, are a [`Composite`].
///
/// # Errors
/// No metric has the name.
pub fn create(name: &str) -> Result<Box<dyn Metric>, TrainError> {
    if name.contains(',') {
        let parts = name.split(',').map(|part| create(part.trim())).collect::<Result<_, _>>()?;
        return Ok(Box::new(Composite(parts)));
    }
    let top = ["top_k_accuracy_", "top_k_acc_"].iter().find_map(|prefix| name.strip_prefix(prefix)?.parse().ok());
    Ok(match name {
        _ if top.is_some() => Box::new(TopK::new(top.unwrap_or(1))),
        "accuracy" | "acc" => Box::new(Accuracy::default()),
        "f1" => Box::new(Binary::new(BinaryScore::F1, Average::Macro)),
        "mcc" => Box::new(Binary::new(BinaryScore::Matthews, Average::Macro)),
        "pcc" => Box::new(Confusion::default()),
        "perplexity" => Box::new(Perplexity::new(None)),
        "cross-entropy" | "crossentropy" | "ce" => Box::new(CrossEntropy::default()),
        "nll-loss" | "nll_loss" | "negativeloglikelihood" => Box::new(CrossEntropy::negative_log_likelihood()),
        "mae" => Box::new(Regression::new(Distance::Absolute)),
        "mse" => Box::new(Regression::new(Distance::Squared)),
        "rmse" => Box::new(Regression::new(Distance::RootSquared)),
        "pearsonr" | "pearsoncorrelation" => Box::new(Pearson::new(Average::Macro)),
        "loss" => Box::new(Loss::default()),
        _ => return Err(TrainError::UnknownMetric { name: name.to_owned(), known: KNOWN.to_owned() }),
    })
}
