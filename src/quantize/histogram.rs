//! What calibration learns of the values of a tensor: their range, and how often which occur.

/// The least and the largest of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub min: f32,
    pub max: f32,
}

impl Range {
    /// Of no values.
    pub const EMPTY: Range = Range { min: f32::INFINITY, max: f32::NEG_INFINITY };

    /// Takes values into account; false if one is not finite.
    pub fn add(&mut self, values: &[f32]) -> bool {
        let mut finite = true;
        for x in values {
            finite &= x.is_finite();
            self.min = self.min.min(*x);
            self.max = self.max.max(*x);
        }
        finite
    }

    /// The largest magnitude.
    pub fn magnitude(self) -> f32 {
        self.max.abs().max(self.min.abs())
    }
}

/// Bins of a histogram.
pub(super) const BINS: usize = 2048;

/// How many bins from the first on hold `most` values at most.
fn bins_within<'a>(counts: impl Iterator<Item = &'a u64>, most: f64) -> usize {
    let sums = counts.scan(0u64, |sum, n| {
        *sum += n;
        Some(*sum)
    });
    sums.take_while(|sum| *sum as f64 <= most).count()
}

/// How many values lie in each of [`BINS`] equal parts of a range.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    range: Range,
    /// Whether magnitudes are counted.
    magnitudes: bool,
    counts: Vec<u64>,
}

impl Histogram {
    /// Of values in a range.
    pub fn of_values(range: Range) -> Histogram {
        Histogram { range, magnitudes: false, counts: vec![0; BINS] }
    }

    /// Of the magnitudes of values in a range.
    pub fn of_magnitudes(range: Range) -> Histogram {
        let range = Range { min: 0.0, max: range.magnitude() };
        Histogram { range, magnitudes: true, counts: vec![0; BINS] }
    }

    fn width(&self) -> f64 {
        (f64::from(self.range.max) - f64::from(self.range.min)) / BINS as f64
    }

    /// Counts values.
    pub fn add(&mut self, values: &[f32]) {
        let (min, width) = (f64::from(self.range.min), self.width());
        if width <= 0.0 {
            return;
        }
        let factor = 1.0 / width;
        for x in values {
            let x = f64::from(if self.magnitudes { x.abs() } else { *x });
            let bin = ((x - min) * factor) as usize;
            self.counts[bin.min(BINS - 1)] += 1;
        }
    }

    /// The range that `percentile` percent of the values lie in, with as many above it as below.
    pub fn percentile(&self, percentile: f64) -> Range {
        let total: u64 = self.counts.iter().sum();
        let outside = total as f64 * (100.0 - percentile) / 200.0;
        let (min, width) = (f64::from(self.range.min), self.width());
        let below = bins_within(self.counts.iter(), outside);
        let above = bins_within(self.counts.iter().rev(), outside);
        if total == 0 || below + above >= BINS {
            return self.range;
        }
        Range { min: (min + below as f64 * width) as f32, max: (min + (BINS - above) as f64 * width) as f32 }
    }

    /// The magnitude at which values are cut off so that what is left, in `levels` steps, loses the least information of the
    /// distribution: the smallest Kullback-Leibler divergence, as TensorRT searches it (S. Migacz, 8-bit inference with
    /// TensorRT, 2017). Fewer values than bins are no distribution: all of them are kept.
    pub fn least_divergence(&self, levels: usize) -> f32 {
        if self.counts.iter().sum::<u64>() < BINS as u64 {
            return (BINS as f64 * self.width()) as f32;
        }
        // 0 is exact in any steps, and so frequent behind activations that it would decide alone.
        let mut counts = self.counts.clone();
        counts[0] = counts[1];
        let (mut best, mut threshold) = (f64::INFINITY, BINS);
        for end in levels..=BINS {
            let divergence = divergence(&counts, end, levels);
            if divergence < best {
                (best, threshold) = (divergence, end);
            }
        }
        (threshold as f64 * self.width()) as f32
    }
}

/// The divergence of the first `end` bins, to the last of which all farther ones are added, from the same in `levels` steps.
fn divergence(counts: &[u64], end: usize, levels: usize) -> f64 {
    let kept = &counts[..end];
    let beyond: u64 = counts[end..].iter().sum();
    let total: u64 = counts.iter().sum();
    let inside: u64 = kept.iter().sum();
    if inside == 0 {
        return f64::INFINITY;
    }
    let mut divergence = 0.0;
    for level in 0..levels {
        let (from, to) = (level * end / levels, (level + 1) * end / levels);
        let bins = &kept[from..to];
        let filled = bins.iter().filter(|n| **n > 0).count();
        let sum: u64 = bins.iter().sum();
        for (i, n) in bins.iter().enumerate() {
            let p = (*n + if from + i + 1 == end { beyond } else { 0 }) as f64 / total as f64;
            let q = if *n > 0 { sum as f64 / filled as f64 / inside as f64 } else { 0.0 };
            // What the steps cannot stand for costs as much as a value that hardly ever occurs.
            let q = q.max(f64::EPSILON);
            if p > 0.0 {
                divergence += p * (p / q).ln();
            }
        }
    }
    divergence
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Numbers of a bell curve, with a few far away.
    fn values() -> Vec<f32> {
        let mut rng = tensorc_ir::Rng::new(7);
        let mut next = || (rng.next_u64() >> 40) as f32 / (1u32 << 24) as f32;
        let mut all: Vec<f32> = (0..50_000).map(|_| (0..12).map(|_| next()).sum::<f32>() - 6.0).collect();
        all.extend([40.0, -35.0]);
        all
    }

    fn range(values: &[f32]) -> Range {
        let mut range = Range::EMPTY;
        assert!(range.add(values));
        range
    }

    #[test]
    fn percentiles_are_those_of_sorted_values() {
        let mut values = values();
        let mut histogram = Histogram::of_values(range(&values));
        // In two batches.
        histogram.add(&values[..1000]);
        histogram.add(&values[1000..]);
        values.sort_by(f32::total_cmp);
        for percentile in [99.99, 99.9, 99.0, 90.0] {
            let found = histogram.percentile(percentile);
            let outside = values.len() as f64 * (100.0 - percentile) / 200.0;
            let (low, high) = (values[outside as usize], values[values.len() - 1 - outside as usize]);
            let width = 75.0 / BINS as f32;
            assert!((found.min - low).abs() <= width && (found.max - high).abs() <= width, "{percentile}: {found:?}");
        }
        let all = histogram.percentile(100.0);
        assert!((all.min + 35.0).abs() < 1e-3 && (all.max - 40.0).abs() < 1e-3);
    }

    /// The divergence by the book: both distributions written out.
    fn plain_divergence(counts: &[u64], end: usize, levels: usize) -> f64 {
        let mut p: Vec<f64> = counts[..end].iter().map(|n| *n as f64).collect();
        let mut q = vec![0.0; end];
        for level in 0..levels {
            let bins = level * end / levels..(level + 1) * end / levels;
            let filled = bins.clone().filter(|i| counts[*i] > 0).count();
            let sum: u64 = counts[bins.clone()].iter().sum();
            bins.filter(|i| counts[*i] > 0).for_each(|i| q[i] = sum as f64 / filled as f64);
        }
        p[end - 1] += counts[end..].iter().sum::<u64>() as f64;
        let (sp, sq): (f64, f64) = (p.iter().sum(), q.iter().sum());
        let terms = p.iter().zip(&q).filter(|(p, _)| **p > 0.0);
        terms.map(|(p, q)| p / sp * (p / sp / (q / sq).max(f64::EPSILON)).ln()).sum()
    }

    #[test]
    fn the_threshold_has_the_least_divergence() {
        let values = values();
        let mut histogram = Histogram::of_magnitudes(range(&values));
        histogram.add(&values);
        histogram.add(&[0.0; 9000]);
        let mut counts = histogram.counts.clone();
        counts[0] = counts[1];
        let all: Vec<f64> = (128..=BINS).map(|end| plain_divergence(&counts, end, 128)).collect();
        let least = (0..all.len()).min_by(|a, b| all[*a].total_cmp(&all[*b])).unwrap();
        let expected = (128 + least) as f32 * 40.0 / BINS as f32;
        let found = histogram.least_divergence(128);
        assert!((found - expected).abs() < 1e-3, "{found} {expected}");
        // The two values far away are cut off.
        assert!(found > 2.0 && found < 10.0, "{found}");
    }

    #[test]
    fn values_that_are_not_finite_are_found() {
        for x in [f32::NAN, f32::INFINITY] {
            let mut range = Range::EMPTY;
            assert!(!range.add(&[1.0, x]));
        }
        let mut constant = Histogram::of_values(Range { min: 0.0, max: 0.0 });
        constant.add(&[0.0; 9]);
        assert_eq!(constant.percentile(99.0), Range { min: 0.0, max: 0.0 });
    }
}
