//! Weights in blocks of few bits, with the error of each weight made up for by those behind it.
//!
//! The method is GPTQ (E. Frantar, S. Ashkboos, T. Hoefler, D. Alistarh: GPTQ, accurate post-training quantization for
//! generative pre-trained transformers, 2023). With the correlation `H = XᵀX` of the inputs `X` in calibration, weights are
//! rounded one input after the other; the error of each is spread over the weights of the inputs behind it, by the upper
//! Cholesky factor `U` of `H⁻¹`, such that the results change least. A hundredth of the mean of the diagonal is added to
//! that of `H`.

use crate::compiler::Compiler;
use crate::error::Error;

/// Share of the mean diagonal that is added to the diagonal.
const DAMPING: f64 = 0.01;
/// Output channels that a thread works on at a time, so that they stay in its cache.
const CHANNELS: usize = 64;
/// Rows of a correlation that a thread adds to at a time.
const BAND: usize = 64;
/// The largest magnitude of a block as a share of what its integers reach, of which the best is taken.
const SHRINKING: [f32; 8] = [1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72];

/// How weights are quantised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    /// Bits of a weight: 4 or 8.
    pub bits: u32,
    /// Weights that share a scale, along the inputs.
    pub block: usize,
}

impl Grid {
    /// The integer that stands for 0.
    fn zero(self) -> i32 {
        1 << (self.bits - 1)
    }

    /// The integer nearest to a number of steps.
    fn nearest(self, steps: f32) -> i32 {
        let zero = self.zero();
        (steps.round_ties_even() as i32).clamp(-zero, zero - 1)
    }
}

/// `XᵀX` of the rows seen so far.
pub(super) struct Correlation {
    k: usize,
    /// `[k, k]`; the upper triangle counts.
    sums: Vec<f64>,
}

impl Correlation {
    /// Of no rows.
    pub fn new(k: usize) -> Correlation {
        Correlation { k, sums: vec![0.0; k * k] }
    }

    /// Adds rows of `k` numbers each.
    ///
    /// # Errors
    /// A thread failed.
    pub fn add(&mut self, compiler: &Compiler, rows: &[f32]) -> Result<(), Error> {
        let k = self.k;
        let band = |b: usize| {
            let columns = b * BAND..k.min((b + 1) * BAND);
            let mut sums = vec![0.0f64; columns.len() * k];
            for row in rows.chunks_exact(k) {
                for (at, i) in columns.clone().enumerate() {
                    let x = f64::from(row[i]);
                    let sums = &mut sums[at * k + i..(at + 1) * k];
                    sums.iter_mut().zip(&row[i..]).for_each(|(s, y)| *s += x * f64::from(*y));
                }
            }
            Ok(sums)
        };
        let bands = compiler.side_by_side(k.div_ceil(BAND), "correlation of inputs", band)?;
        self.sums.iter_mut().zip(bands.iter().flatten()).for_each(|(sum, more)| *sum += more);
        Ok(())
    }

    /// What is needed to spread errors; `None` if the inputs were all 0 or the factor does not exist.
    pub fn factor(mut self) -> Option<InverseFactor> {
        let k = self.k;
        let mean = (0..k).map(|i| self.sums[i * k + i]).sum::<f64>() / k as f64;
        if !(mean.is_finite() && mean > 0.0) {
            return None;
        }
        let importance = (0..k).map(|i| (self.sums[i * k + i] / mean) as f32).collect();
        (0..k).for_each(|i| self.sums[i * k + i] += DAMPING * mean);
        // With rows and columns reversed, the lower factor L of H gives U = L⁻¹, reversed again.
        let mut lower = vec![0.0; k * k];
        for i in 0..k {
            for j in 0..=i {
                lower[i * k + j] = self.sums[(k - 1 - i) * k + (k - 1 - j)];
            }
        }
        factorise(&mut lower, k)?;
        let inverse = inverted(&lower, k);
        let rows = (0..k).flat_map(|i| (0..k).map(move |j| (k - 1 - i) * k + (k - 1 - j))).map(|at| inverse[at] as f32);
        Some(InverseFactor { rows: rows.collect(), importance })
    }
}

/// The upper Cholesky factor of `H⁻¹`.
pub(super) struct InverseFactor {
    /// `[k, k]`, 0 below the diagonal.
    rows: Vec<f32>,
    /// The mean square of each input, divided by the mean over all inputs.
    importance: Vec<f32>,
}

/// The lower Cholesky factor of a symmetric matrix, of which the lower triangle is given, in its place.
fn factorise(matrix: &mut [f64], k: usize) -> Option<()> {
    for i in 0..k {
        let (above, row) = matrix.split_at_mut(i * k);
        for j in 0..i {
            let other = &above[j * k..j * k + j + 1];
            let sum: f64 = row[..j].iter().zip(other).map(|(a, b)| a * b).sum();
            row[j] = (row[j] - sum) / other[j];
        }
        let rest = row[i] - row[..i].iter().map(|a| a * a).sum::<f64>();
        row[i] = Some(rest.sqrt()).filter(|root| root.is_finite() && *root > 0.0)?;
    }
    Some(())
}

/// The inverse of a lower triangular matrix.
fn inverted(lower: &[f64], k: usize) -> Vec<f64> {
    let mut inverse = vec![0.0; k * k];
    for i in 0..k {
        let (above, row) = inverse.split_at_mut(i * k);
        let factor = 1.0 / lower[i * k + i];
        for m in 0..i {
            let by = lower[i * k + m];
            row[..=m].iter_mut().zip(&above[m * k..]).for_each(|(x, y)| *x -= by * y);
        }
        row[..i].iter_mut().for_each(|x| *x *= factor);
        row[i] = factor;
    }
    inverse
}

/// Weights in the layout of `MatMulNBits`: `[n, blocks, block · bits / 8]` bytes and `[n, blocks]` scales.
pub(super) struct PackedMatrix {
    pub bytes: Vec<u8>,
    pub scales: Vec<f32>,
}

/// Quantises a matrix `[k, n]` in blocks along `k`.
///
/// # Errors
/// A thread failed.
pub(super) fn quantise_matrix(
    compiler: &Compiler,
    (k, n): (usize, usize),
    weights: &[f32],
    grid: Grid,
    factor: Option<&InverseFactor>,
) -> Result<PackedMatrix, Error> {
    let part = |at: usize| {
        let channels = at * CHANNELS..n.min((at + 1) * CHANNELS);
        let own = (0..k).flat_map(|i| weights[i * n..][channels.clone()].iter().copied()).collect();
        let rounded = Columns { weights: own, k, count: channels.len(), grid, factor }.rounded();
        Ok(rounded)
    };
    let parts = compiler.side_by_side(n.div_ceil(CHANNELS), "quantisation of weights", part)?;
    let (bytes, scales): (Vec<_>, Vec<_>) = parts.into_iter().map(|p| (p.bytes, p.scales)).unzip();
    Ok(PackedMatrix { bytes: bytes.concat(), scales: scales.concat() })
}

/// Some output channels of a matrix.
struct Columns<'a> {
    /// `[k, count]`: what is left to stand for.
    weights: Vec<f32>,
    k: usize,
    count: usize,
    grid: Grid,
    factor: Option<&'a InverseFactor>,
}

impl Columns<'_> {
    fn rounded(mut self) -> PackedMatrix {
        let (k, count, grid) = (self.k, self.count, self.grid);
        let blocks = k.div_ceil(grid.block);
        let mut scales = vec![0.0; count * blocks];
        // Padding stands for 0.
        let mut integers = vec![0i32; count * blocks * grid.block];
        for block in 0..blocks {
            let rows = block * grid.block..k.min((block + 1) * grid.block);
            (0..count).for_each(|c| scales[c * blocks + block] = self.scale(c, rows.clone()));
            for row in rows {
                let mut errors = vec![0.0; count];
                for (c, error) in errors.iter_mut().enumerate() {
                    let (w, scale) = (self.weights[row * count + c], scales[c * blocks + block]);
                    let q = grid.nearest(w / scale);
                    integers[c * blocks * grid.block + row] = q;
                    *error = w - q as f32 * scale;
                }
                self.spread(row, &errors);
            }
        }
        PackedMatrix { bytes: packed(&integers, grid), scales }
    }

    /// The scale of a block of a channel: the largest magnitude becomes the least integer, or a part of it that loses less.
    fn scale(&self, channel: usize, rows: std::ops::Range<usize>) -> f32 {
        let weight = |row: usize| self.weights[row * self.count + channel];
        let largest = rows.clone().map(weight).fold(0.0f32, |most, w| if w.abs() > most.abs() { w } else { most });
        let whole = -largest / self.grid.zero() as f32;
        if whole.abs() < f32::MIN_POSITIVE {
            return 1.0;
        }
        let loss = |scale: f32| -> f32 {
            let of = |row: usize| {
                let w = weight(row);
                let error = w - self.grid.nearest(w / scale) as f32 * scale;
                error * error * self.factor.map_or(1.0, |f| f.importance[row])
            };
            rows.clone().map(of).sum()
        };
        let candidates = SHRINKING.map(|share| whole * share);
        let best = candidates.into_iter().map(|s| (loss(s), s)).reduce(|a, b| if b.0 < a.0 { b } else { a });
        best.map_or(whole, |(_, scale)| scale)
    }

    /// Makes the weights of later inputs up for the errors of one.
    fn spread(&mut self, row: usize, errors: &[f32]) {
        let Some(factor) = self.factor else { return };
        let (k, count) = (self.k, self.count);
        let by = &factor.rows[row * k..(row + 1) * k];
        let diagonal = by[row];
        for (later, by) in by.iter().enumerate().skip(row + 1) {
            let share = by / diagonal;
            let weights = &mut self.weights[later * count..(later + 1) * count];
            weights.iter_mut().zip(errors).for_each(|(w, e)| *w -= share * e);
        }
    }
}

/// Integers around 0 as unsigned ones, the first in the lowest bits of a byte.
fn packed(integers: &[i32], grid: Grid) -> Vec<u8> {
    let unsigned = |q: &i32| (q + grid.zero()) as u8;
    match grid.bits {
        4 => integers.chunks(2).map(|pair| pair.iter().rev().fold(0, |byte, q| byte << 4 | unsigned(q))).collect(),
        _ => integers.iter().map(unsigned).collect(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::compiler::Options;

    fn random(count: usize, seed: u64) -> Vec<f32> {
        let mut rng = tensorc_ir::Rng::new(seed);
        (0..count).map(|_| (rng.next_u64() >> 40) as f32 / (1u32 << 23) as f32 - 1.0).collect()
    }

    /// The matrix that packed weights stand for.
    fn unpacked(found: &PackedMatrix, (k, n): (usize, usize), grid: Grid) -> Vec<f32> {
        let blocks = k.div_ceil(grid.block);
        let at = |i: usize, c: usize| {
            let place = c * blocks * grid.block + i;
            let q = match grid.bits {
                4 => found.bytes[place / 2] >> (place % 2 * 4) & 15,
                _ => found.bytes[place],
            };
            (i32::from(q) - grid.zero()) as f32 * found.scales[c * blocks + i / grid.block]
        };
        (0..k).flat_map(|i| (0..n).map(move |c| (i, c))).map(|(i, c)| at(i, c)).collect()
    }

    fn product(x: &[f32], w: &[f32], (k, n): (usize, usize)) -> Vec<f64> {
        let of = |row: &[f32], c: usize| (0..k).map(|i| f64::from(row[i]) * f64::from(w[i * n + c])).sum();
        x.chunks(k).flat_map(|row| (0..n).map(move |c| of(row, c))).collect()
    }

    fn distance(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum()
    }

    #[test]
    fn weights_are_rounded_to_the_nearest_step_without_data() {
        let compiler = Compiler::new(Options { threads: Some(2), ..Options::default() }).unwrap();
        let (k, n) = (40, 70);
        let weights = random(k * n, 1);
        for grid in [Grid { bits: 4, block: 16 }, Grid { bits: 8, block: 32 }] {
            let found = quantise_matrix(&compiler, (k, n), &weights, grid, None).unwrap();
            let blocks = k.div_ceil(grid.block);
            assert_eq!(found.bytes.len(), n * blocks * grid.block * grid.bits as usize / 8);
            let back = unpacked(&found, (k, n), grid);
            for (i, (w, v)) in weights.iter().zip(&back).enumerate() {
                let scale = found.scales[i % n * blocks + i / n / grid.block].abs();
                // Scales that are shrunk cut magnitudes off.
                let reach = scale * (grid.zero() - 1) as f32;
                assert!((w - v).abs() <= 0.501 * scale || w.abs() > reach, "{w} {v} {scale}");
            }
        }
    }

    #[test]
    fn errors_that_are_spread_change_results_less() {
        let compiler = Compiler::new(Options { threads: Some(2), ..Options::default() }).unwrap();
        let (k, n, rows) = (64, 24, 300);
        let weights = random(k * n, 2);
        // Inputs that have much in common.
        let (base, noise) = (random(rows * 8, 3), random(rows * k, 4));
        let mix = random(8 * k, 5);
        let x: Vec<f32> = (0..rows * k)
            .map(|at| (0..8).map(|j| base[at / k * 8 + j] * mix[j * k + at % k]).sum::<f32>() + 0.1 * noise[at])
            .collect();
        let mut correlation = Correlation::new(k);
        correlation.add(&compiler, &x[..100 * k]).unwrap();
        correlation.add(&compiler, &x[100 * k..]).unwrap();
        let factor = correlation.factor().unwrap();
        let grid = Grid { bits: 4, block: 32 };
        let expected = product(&x, &weights, (k, n));
        let loss = |factor: Option<&InverseFactor>| {
            let found = quantise_matrix(&compiler, (k, n), &weights, grid, factor).unwrap();
            distance(&expected, &product(&x, &unpacked(&found, (k, n), grid), (k, n)))
        };
        let (plain, spread) = (loss(None), loss(Some(&factor)));
        assert!(spread < 0.5 * plain, "{spread} {plain}");
    }

    #[test]
    fn the_factor_is_that_of_the_inverse() {
        let compiler = Compiler::new(Options { threads: Some(1), ..Options::default() }).unwrap();
        let k = 5;
        let x = random(20 * k, 9);
        let mut correlation = Correlation::new(k);
        correlation.add(&compiler, &x).unwrap();
        let mut h = correlation.sums.clone();
        let mean = (0..k).map(|i| h[i * k + i]).sum::<f64>() / k as f64;
        for i in 0..k {
            h[i * k + i] += DAMPING * mean;
            (0..i).for_each(|j| h[i * k + j] = h[j * k + i]);
        }
        let u = correlation.factor().unwrap().rows;
        // UᵀU · H = 1.
        let at = |i: usize, j: usize| (0..k).map(|m| f64::from(u[m * k + i]) * f64::from(u[m * k + j])).sum::<f64>();
        for i in 0..k {
            for j in 0..k {
                let entry: f64 = (0..k).map(|m| at(i, m) * h[m * k + j]).sum();
                assert!((entry - if i == j { 1.0 } else { 0.0 }).abs() < 1e-4, "{i} {j}: {entry}");
            }
            (0..i).for_each(|j| assert_eq!(u[i * k + j], 0.0));
        }
        assert!(Correlation::new(3).factor().is_none());
    }
}
