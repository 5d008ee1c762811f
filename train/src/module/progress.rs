//! A line on the terminal that shows how far an epoch is.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::metric::Metric;
use tensorc_data::{Batch, DataIter};

/// Nothing if standard error is no terminal.
pub struct Progress(Option<ProgressBar>);

const LINE: &str = "{prefix} {bar:30} {pos}/{len} {per_sec}, {eta} left{msg}";
/// Where the length of an epoch is not known.
const ENDLESS: &str = "{prefix} {spinner} {pos} {per_sec}{msg}";

impl Progress {
    pub fn new(wanted: bool, epoch: u32, batches: &dyn DataIter) -> Progress {
        if !wanted || !std::io::stderr().is_terminal() {
            return Progress(None);
        }
        let left = batches.batches().map(|n| n.saturating_sub(batches.position().batch) * batches.batch_size() as u64);
        let (bar, line) = left.map_or((ProgressBar::no_length(), ENDLESS), |n| (ProgressBar::new(n), LINE));
        bar.set_style(ProgressStyle::with_template(line).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(format!("epoch {}", epoch + 1));
        bar.enable_steady_tick(Duration::from_millis(500));
        Progress(Some(bar))
    }

    pub fn advance(&self, batch: &Batch, metric: &dyn Metric) {
        if let Some(bar) = &self.0 {
            bar.inc(batch.size() as u64);
            let values = metric.values();
            bar.set_message(values.iter().map(|(name, value)| format!(", {name} {value:.4}")).collect::<String>());
        }
    }

    /// Removes the line.
    pub fn clear(self) {
        if let Some(bar) = self.0 {
            bar.finish_and_clear();
        }
    }
}
