//! Metrics of probabilities: how likely the labels were.

use super::{Metric, MetricSum, MetricTensor, pairs, shapes, wrong};
use crate::error::Error;
use tensorc::Tensor;

/// The mean of `-ln(p + eps)`, `p` being the probability that the output gives the label.
#[derive(Clone, Debug)]
pub struct CrossEntropy {
    name: &'static str,
    /// Added to probabilities, so that the logarithm is finite; 1e-12 by default.
    pub eps: f64,
    sum: MetricSum,
}

impl Default for CrossEntropy {
    fn default() -> CrossEntropy {
        CrossEntropy { name: "cross-entropy", eps: 1e-12, sum: MetricSum::default() }
    }
}

impl CrossEntropy {
    /// The same under MXNet's other name.
    pub fn negative_log_likelihood() -> CrossEntropy {
        CrossEntropy { name: "nll-loss", ..CrossEntropy::default() }
    }
}

/// The element of each row of `output` that its label names.
fn picked(metric: &str, label: &MetricTensor, output: &MetricTensor, axis: i64) -> Result<Vec<f64>, Error> {
    let Some((outer, extent, inner)) = output.around(axis).filter(|(o, _, i)| o * i == label.data.len()) else {
        return Err(shapes(metric, label, output));
    };
    let pick = |(at, label): (usize, &f64)| {
        let (o, i) = (at / inner, at % inner);
        match label.trunc() {
            // A label below zero counts from the end, as in numpy.
            l if l >= -(extent as f64) && l < extent as f64 => {
                let class = if l < 0.0 { l + extent as f64 } else { l } as usize;
                Ok(output.data[(o * extent + class) * inner + i])
            }
            l => Err(wrong(metric, format!("label {l} of {extent} classes"))),
        }
    };
    debug_assert_eq!(outer * inner, label.data.len());
    label.data.iter().enumerate().map(pick).collect()
}

impl Metric for CrossEntropy {
    fn name(&self) -> String {
        self.name.into()
    }

    fn update(&mut self, labels: &[Tensor], outputs: &[Tensor]) -> Result<(), Error> {
        for (label, output) in pairs(self.name, labels, outputs)? {
            if output.dims.len() != 2 {
                return Err(shapes(self.name, &label, &output));
            }
            let p = picked(self.name, &label, &output, 1)?;
            self.sum.add(p.iter().map(|p| -(p + self.eps).ln()).sum(), p.len() as f64);
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

/// The exponential of the mean of `-ln(max(p, 1e-10))`. Labels equal to `ignore` do not count.
#[derive(Clone, Debug)]
pub struct Perplexity {
    /// A label that does not count, for example that of padding.
    pub ignore: Option<f64>,
    /// Axis of the classes in the outputs; negative numbers count from the end.
    pub axis: i64,
    sum: MetricSum,
}

impl Perplexity {
    /// With probabilities along the last axis.
    pub fn new(ignore: Option<f64>) -> Perplexity {
        Perplexity { ignore, axis: -1, sum: MetricSum::default() }
    }
}

impl Metric for Perplexity {
    fn name(&self) -> String {
        "perplexity".into()
    }

    fn update(&mut self, labels: &[Tensor], outputs: &[Tensor]) -> Result<(), Error> {
        for (mut label, output) in pairs("perplexity", labels, outputs)? {
            // An ignored label need not be a class.
            let ignored: Vec<bool> = label.data.iter().map(|l| Some(*l) == self.ignore).collect();
            label.data.iter_mut().zip(&ignored).filter(|(_, ignored)| **ignored).for_each(|(l, _)| *l = 0.0);
            let p = picked("perplexity", &label, &output, self.axis)?;
            let counted = p.iter().zip(&ignored).filter(|(_, ignored)| !**ignored);
            let (total, count) = counted.fold((0.0, 0.0), |(t, n), (p, _)| (t - p.max(1e-10).ln(), n + 1.0));
            self.sum.add(total, count);
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.sum = MetricSum::default();
    }

    fn values(&self) -> Vec<(String, f64)> {
        vec![(self.name(), self.sum.mean().exp())]
    }
}

/// The mean of the outputs themselves, for networks that end in their loss. Labels play no part.
#[derive(Clone, Debug, Default)]
pub struct Loss {
    sum: MetricSum,
}

impl Metric for Loss {
    fn name(&self) -> String {
        "loss".into()
    }

    fn update(&mut self, _: &[Tensor], outputs: &[Tensor]) -> Result<(), Error> {
        for output in outputs.iter().map(MetricTensor::of) {
            self.sum.add(output.data.iter().sum(), output.data.len() as f64);
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
