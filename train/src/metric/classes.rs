//! Metrics of classes: how often the right one was chosen.

use super::{Metric, MetricSum, MetricTensor, pairs, shapes, wrong};
use crate::error::Error;
use tensorc::Tensor;

/// The share of labels that the outputs get right. Outputs of another shape than the labels are scores, of
/// which the largest along `axis` counts.
#[derive(Clone, Debug)]
pub struct Accuracy {
    /// Axis of the classes in the scores; negative numbers count from the end.
    pub axis: i64,
    sum: MetricSum,
}

impl Default for Accuracy {
    fn default() -> Accuracy {
        Accuracy::along(1)
    }
}

impl Accuracy {
    /// With scores along an axis.
    pub fn along(axis: i64) -> Accuracy {
        Accuracy { axis, sum: MetricSum::default() }
    }
}

/// The classes that outputs choose: they themselves, or the largest scores along an axis if they have another shape than the
/// labels.
fn chosen(metric: &str, label: &MetricTensor, output: &MetricTensor, axis: i64) -> Result<Vec<f64>, Error> {
    let chosen = if output.dims == label.dims { Some(output.data.clone()) } else { output.argmax(axis) };
    chosen.filter(|chosen| chosen.len() == label.data.len()).ok_or_else(|| shapes(metric, label, output))
}

impl Metric for Accuracy {
    fn name(&self) -> String {
        "accuracy".into()
    }

    fn update(&mut self, labels: &[Tensor], outputs: &[Tensor]) -> Result<(), Error> {
        for (label, output) in pairs("accuracy", labels, outputs)? {
            let chosen = chosen("accuracy", &label, &output, self.axis)?;
            let right = chosen.iter().zip(&label.data).filter(|(a, b)| a.trunc() == b.trunc()).count();
            self.sum.add(right as f64, chosen.len() as f64);
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

/// The share of labels that are among the `k` largest scores.
#[derive(Clone, Debug)]
pub struct TopK {
    k: usize,
    sum: MetricSum,
}

impl TopK {
    /// With the number of scores that count.
    pub fn new(k: usize) -> TopK {
        TopK { k, sum: MetricSum::default() }
    }
}

impl Metric for TopK {
    fn name(&self) -> String {
        format!("top_k_accuracy_{}", self.k)
    }

    fn update(&mut self, labels: &[Tensor], outputs: &[Tensor]) -> Result<(), Error> {
        let name = self.name();
        for (label, output) in pairs(&name, labels, outputs)? {
            let &[rows, classes] = &output.dims[..] else { return Err(shapes(&name, &label, &output)) };
            if label.data.len() != rows {
                return Err(shapes(&name, &label, &output));
            }
            let among = |(row, label): (usize, &f64)| {
                let scores = &output.data[row * classes..][..classes];
                let mut order: Vec<usize> = (0..classes).collect();
                order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
                order.iter().take(self.k).any(|class| *class as f64 == label.trunc())
            };
            let right = label.data.iter().enumerate().filter(|pair| among(*pair)).count();
            self.sum.add(right as f64, rows as f64);
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

/// Whether a score is computed of each batch and averaged, or once of all examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// A score of each batch; the value is their mean.
    Macro,
    /// One score of all examples.
    Micro,
}

/// Which score of two classes is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryScore {
    /// The harmonic mean of precision and recall.
    F1,
    /// Matthews' correlation coefficient.
    Matthews,
}

/// A score of two classes, of which 1 is the positive.
#[derive(Clone, Debug)]
pub struct Binary {
    score: BinaryScore,
    average: Average,
    counts: ConfusionCounts,
    sum: MetricSum,
}

/// Examples by label and choice.
#[derive(Clone, Copy, Debug, Default)]
struct ConfusionCounts {
    true_positive: f64,
    false_positive: f64,
    false_negative: f64,
    true_negative: f64,
}

impl ConfusionCounts {
    fn total(&self) -> f64 {
        self.true_positive + self.false_positive + self.false_negative + self.true_negative
    }

    fn f1(&self) -> f64 {
        let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        let precision = share(self.true_positive, self.true_positive + self.false_positive);
        let recall = share(self.true_positive, self.true_positive + self.false_negative);
        share(2.0 * precision * recall, precision + recall)
    }

    /// Factors of 0 in the denominator are left out.
    fn matthews(&self) -> f64 {
        let ConfusionCounts { true_positive: tp, false_positive: fp, false_negative: fn_, true_negative: tn } = *self;
        if self.total() == 0.0 {
            return 0.0;
        }
        let factors = [tp + fp, tp + fn_, tn + fp, tn + fn_];
        let denominator: f64 = factors.into_iter().filter(|f| *f != 0.0).product();
        (tp * tn - fp * fn_) / denominator.sqrt()
    }
}

impl Binary {
    /// With a score and how it is accumulated.
    pub fn new(score: BinaryScore, average: Average) -> Binary {
        Binary { score, average, counts: ConfusionCounts::default(), sum: MetricSum::default() }
    }

    fn score(&self) -> f64 {
        match self.score {
            BinaryScore::F1 => self.counts.f1(),
            BinaryScore::Matthews => self.counts.matthews(),
        }
    }

    fn count(&mut self, label: &MetricTensor, output: &MetricTensor) -> Result<(), Error> {
        let name = self.name();
        let chosen = output.argmax(1).ok_or_else(|| shapes(&name, label, output))?;
        if chosen.len() != label.data.len() || output.dims.len() != 2 {
            return Err(shapes(&name, label, output));
        }
        let mut kinds: Vec<i64> = label.data.iter().map(|l| *l as i64).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.len() > 2 {
            return Err(wrong(&name, format!("labels {kinds:?} are more than two classes")));
        }
        for (label, chosen) in label.data.iter().zip(chosen) {
            let count = match (label.trunc() == 1.0, chosen == 1.0) {
                (true, true) => &mut self.counts.true_positive,
                (false, true) => &mut self.counts.false_positive,
                (true, false) => &mut self.counts.false_negative,
                (false, false) => &mut self.counts.true_negative,
            };
            *count += 1.0;
        }
        Ok(())
    }
}

impl Metric for Binary {
    fn name(&self) -> String {
        match self.score {
            BinaryScore::F1 => "f1".into(),
            BinaryScore::Matthews => "mcc".into(),
        }
    }

    fn update(&mut self, labels: &[Tensor], outputs: &[Tensor]) -> Result<(), Error> {
        for (label, output) in pairs(&self.name(), labels, outputs)? {
            self.count(&label, &output)?;
        }
        match self.average {
            Average::Macro => {
                self.sum.add(self.score(), 1.0);
                self.counts = ConfusionCounts::default();
            }
            Average::Micro => {
                let count = self.counts.total();
                self.sum = MetricSum { total: self.score() * count, count };
            }
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.counts = ConfusionCounts::default();
        self.sum = MetricSum::default();
    }

    fn values(&self) -> Vec<(String, f64)> {
        vec![(self.name(), self.sum.mean())]
    }
}

/// Matthews' correlation coefficient for any number of classes, from the confusion matrix of all examples.
#[derive(Clone, Debug, Default)]
pub struct Confusion {
    /// Square, by choice and label.
    counts: Vec<Vec<f64>>,
}

impl Confusion {
    fn correlation(&self) -> f64 {
        let rows: Vec<f64> = self.counts.iter().map(|row| row.iter().sum()).collect();
        let columns: Vec<f64> = (0..rows.len()).map(|j| self.counts.iter().map(|row| row[j]).sum::<f64>()).collect();
        let n: f64 = rows.iter().sum();
        let spread = |sums: &[f64]| sums.iter().map(|x| x * (n - x)).sum::<f64>();
        let (xx, yy) = (spread(&rows), spread(&columns));
        let xy: f64 = (0..rows.len()).map(|i| self.counts[i][i] * n - rows[i] * columns[i]).sum();
        if xx == 0.0 || yy == 0.0 { f64::NAN } else { xy / (xx * yy).sqrt() }
    }
}

impl Metric for Confusion {
    fn name(&self) -> String {
        "pcc".into()
    }

    fn update(&mut self, labels: &[Tensor], outputs: &[Tensor]) -> Result<(), Error> {
        for (label, output) in pairs("pcc", labels, outputs)? {
            for (chosen, label) in chosen("pcc", &label, &output, 1)?.iter().zip(&label.data) {
                if *chosen < 0.0 || *label < 0.0 {
                    return Err(wrong("pcc", format!("class {}", chosen.min(*label))));
                }
                let (chosen, label) = (*chosen as usize, *label as usize);
                let classes = self.counts.len().max(chosen + 1).max(label + 1);
                self.counts.resize(classes, vec![]);
                self.counts.iter_mut().for_each(|row| row.resize(classes, 0.0));
                self.counts[chosen][label] += 1.0;
            }
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.counts.clear();
    }

    fn values(&self) -> Vec<(String, f64)> {
        vec![(self.name(), self.correlation())]
    }
}
