//! Spans of the same name as one row of a table.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::{EventKind, Recording, SpanName};

/// Times of all spans, by category and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// By category, then by total time, the longest first, then by name.
    pub rows: Vec<SummaryRow>,
    /// Events that were not kept and are in no row.
    pub dropped: u64,
}

/// The spans of one category and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryRow {
    /// Category of the spans.
    pub category: SpanName,
    /// Name of the spans.
    pub name: SpanName,
    /// Number of spans.
    pub count: u64,
    /// How many of them failed.
    pub errors: u64,
    /// Sum of their times.
    pub total: Duration,
    /// The shortest time.
    pub min: Duration,
    /// The longest time.
    pub max: Duration,
    /// Sum of their bytes.
    pub bytes: u64,
}

impl SummaryRow {
    /// The mean time, rounded down to ns.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos((self.total.as_nanos() / u128::from(self.count.max(1))) as u64)
    }
}

impl Summary {
    /// The row of a name, of the first category that has it.
    pub fn row(&self, name: &str) -> Option<&SummaryRow> {
        self.rows.iter().find(|row| row.name == *name)
    }
}

impl Recording {
    /// The table of all spans.
    pub fn summary(&self) -> Summary {
        let mut rows: BTreeMap<(&str, &str), SummaryRow> = BTreeMap::new();
        for (_, event) in self.threads.iter().flat_map(|thread| thread.events()) {
            let EventKind::Span { end, bytes, error, .. } = &event.kind else { continue };
            let time = Duration::from_nanos(end - event.time);
            let row = rows.entry((&event.category, &event.name)).or_insert_with(|| SummaryRow {
                category: event.category.clone(),
                name: event.name.clone(),
                count: 0,
                errors: 0,
                total: Duration::ZERO,
                min: Duration::MAX,
                max: Duration::ZERO,
                bytes: 0,
            });
            row.count += 1;
            row.errors += u64::from(error.is_some());
            row.total = row.total.saturating_add(time);
            row.min = row.min.min(time);
            row.max = row.max.max(time);
            row.bytes = row.bytes.saturating_add(*bytes);
        }
        let mut rows: Vec<SummaryRow> = rows.into_values().collect();
        rows.sort_by(|a, b| a.category.cmp(&b.category).then(b.total.cmp(&a.total)));
        Summary { rows, dropped: self.dropped }
    }
}

impl fmt::Display for Summary {
    /// A line for every row: times in microseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["count", "total us", "min us", "max us", "mean us", "MB"];
        let [count, total, min, max, mean, mb] = header;
        writeln!(f, "{count:>8} {total:>12} {min:>10} {max:>10} {mean:>10} {mb:>10}  category name")?;
        for row in &self.rows {
            let us = |time: Duration| time.as_nanos() as f64 / 1e3;
            let (total, min, max, mean) = (us(row.total), us(row.min), us(row.max), us(row.mean()));
            let (count, mb) = (row.count, row.bytes as f64 / 1e6);
            write!(f, "{count:>8} {total:>12.1} {min:>10.1} {max:>10.1} {mean:>10.1} {mb:>10.3}  ")?;
            write!(f, "{} {}", row.category, row.name)?;
            match row.errors {
                0 => writeln!(f)?,
                errors => writeln!(f, " ({errors} failed)")?,
            }
        }
        match self.dropped {
            0 => Ok(()),
            dropped => writeln!(f, "{dropped} events were not kept"),
        }
    }
}
