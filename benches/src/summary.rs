//! Best and median of repeated measurements.

/// Smallest value and median; both 0 if there is none.
pub struct TimingSummary<T> {
    /// The smallest value.
    pub best: T,
    /// The median.
    pub median: T,
}

/// The smallest value and the median of some measurements.
pub fn summarize<T: PartialOrd + Copy + Default>(mut values: Vec<T>) -> TimingSummary<T> {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    let at = |index: usize| values.get(index).copied().unwrap_or_default();
    TimingSummary { best: at(0), median: at(values.len() / 2) }
}
