//! Metrics of numbers: how far outputs are from labels.

use super::{Average, Metric, MetricSum, MetricTensor, pairs, shapes};
use crate::error::Error;
use tensorc::Tensor;

/// Which distance of outputs and labels is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// The mean of absolute differences.
    Absolute,
    /// The mean of squared differences.
    Squared,
    /// The root of the mean of squares, of each batch.
    RootSquared,
}

/// The mean distance in each batch, averaged over batches.
#[derive(Clone, Debug)]
pub struct Regression {
    distance: Distance,
    sum: MetricSum,
}

impl Regression {
    /// With a distance.
    pub fn new(distance: Distance) -> Regression {
        Regression { distance, sum: MetricSum::default() }
    }
}

/// Differences of elements. A vector takes part as a column, which is repeated where the other has more.
fn differences(metric: &str, label: &MetricTensor, output: &MetricTensor) -> Result<Vec<f64>, Error> {
    let matrix = |v: &MetricTensor| match v.dims[..] {
        [rows] => Some((rows, 1)),
        [] => None,
        _ => Some((v.dims[0], v.dims[1..].iter().product())),
    };
    let wrong = || shapes(metric, label, output);
    let ((rows, a), (other, b)) = matrix(label).zip(matrix(output)).ok_or_else(wrong)?;
    let same = label.dims == output.dims || label.dims.len().max(output.dims.len()) <= 2;
    if rows != other || !same || (a != b && a != 1 && b != 1) {
        return Err(wrong());
    }
    let columns = a.max(b);
    let at = |v: &MetricTensor, n: usize, i: usize| v.data[i / columns * n + (i % columns) % n];
    Ok((0..rows * columns).map(|i| at(label, a, i) - at(output, b, i)).collect())
}

impl Metric for Regression {
    fn name(&self) -> String {
        match self.distance {
            Distance::Absolute => "mae".into(),
            Distance::Squared => "mse".into(),
            Distance::RootSquared => "rmse".into(),
        }
    }

    fn update(&mut self, labels: &[Tensor], outputs: &[Tensor]) -> Result<(), Error> {
        for (label, output) in pairs(&self.name(), labels, outputs)? {
            let d = differences(&self.name(), &label, &output)?;
            let mean = |f: fn(f64) -> f64| d.iter().map(|d| f(*d)).sum::<f64>() / d.len() as f64;
            let distance = match self.distance {
                Distance::Absolute => mean(f64::abs),
                Distance::Squared => mean(|d| d * d),
                Distance::RootSquared => mean(|d| d * d).sqrt(),
            };
            self.sum.add(distance, 1.0);
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

/// Pearson's correlation of outputs and labels: of each batch, averaged, or of all elements.
#[derive(Clone, Debug)]
pub struct Pearson {
    average: Average,
    sum: MetricSum,
    moments: Moments,
}

/// Means and central products of two variables.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    count: f64,
    mean: [f64; 2],
    square: [f64; 2],
    product: f64,
}

impl Moments {
    fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        let (dx, dy) = (x - self.mean[0], y - self.mean[1]);
        self.mean[0] += dx / self.count;
        self.mean[1] += dy / self.count;
        self.square[0] += dx * (x - self.mean[0]);
        self.square[1] += dy * (y - self.mean[1]);
        self.product += dx * (y - self.mean[1]);
    }

    fn correlation(&self) -> f64 {
        self.product / (self.square[0] * self.square[1]).sqrt()
    }
}

impl Pearson {
    /// With how the correlation is accumulated.
    pub fn new(average: Average) -> Pearson {
        Pearson { average, sum: MetricSum::default(), moments: Moments::default() }
    }
}

impl Metric for Pearson {
    fn name(&self) -> String {
        "pearsonr".into()
    }

    fn update(&mut self, labels: &[Tensor], outputs: &[Tensor]) -> Result<(), Error> {
        for (label, output) in pairs("pearsonr", labels, outputs)? {
            if label.dims != output.dims {
                return Err(shapes("pearsonr", &label, &output));
            }
            if self.average == Average::Macro {
                self.moments = Moments::default();
            }
            label.data.iter().zip(&output.data).for_each(|(x, y)| self.moments.add(*x, *y));
            self.sum.add(self.moments.correlation(), 1.0);
        }
        Ok(())
    }

    fn reset(&mut self) {
        *self = Pearson::new(self.average);
    }

    fn values(&self) -> Vec<(String, f64)> {
        let value = match self.average {
            Average::Macro => self.sum.mean(),
            Average::Micro if self.moments.count > 0.0 => self.moments.correlation(),
            Average::Micro => f64::NAN,
        };
        vec![(self.name(), value)]
    }
}
