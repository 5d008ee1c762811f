//! Best and median of repeated measurements.

/// Smallest value and median; both 0 if there is none.
pub struct Summary<T> {
    pub best: T,
    pub median: T,
}

pub fn summarize<T: PartialOrd + Copy + Default>(mut values: Vec<T>) -> Summary<T> {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    let at = |index: usize| values.get(index).copied().unwrap_or_default();
    Summary { best: at(0), median: at(values.len() / 2) }
}
