//! Distribution functions, and the chance of a deviation as large as the one found.

use std::f64::consts::PI;

/// ln Γ(x) for x > 0, by the Stirling series after a shift.
pub fn ln_gamma(x: f64) -> f64 {
    let shift = (12.0 - x).max(0.0).ceil() as usize;
    let product: f64 = (0..shift).map(|i| x + i as f64).product();
    let z = x + shift as f64;
    let (r, r2) = (1.0 / z, 1.0 / (z * z));
    let series = r * (1.0 / 12.0 - r2 * (1.0 / 360.0 - r2 * (1.0 / 1260.0 - r2 / 1680.0)));
    (z - 0.5) * z.ln() - z + 0.5 * (2.0 * PI).ln() + series - product.ln()
}

/// The regularised lower incomplete gamma function P(a, x): a series below its bulk, a continued
/// fraction (Lentz) above.
pub fn lower_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let front = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
        while term > sum * 1e-16 {
            n += 1.0;
            term *= x / n;
            sum += term;
        }
        return front * sum;
    }
    let mut b = x + 1.0 - a;
    let mut c = 1e300;
    let mut d = 1.0 / b;
    let mut h = d;
    for i in 1..100_000 {
        let numerator = -(i as f64) * (i as f64 - a);
        b += 2.0;
        d = 1.0 / (numerator * d + b);
        c = b + numerator / c;
        h *= c * d;
        if (c * d - 1.0).abs() < 1e-15 {
            break;
        }
    }
    1.0 - front * h
}

pub fn normal_cdf(x: f64) -> f64 {
    let tail = 0.5 * (1.0 - lower_gamma(0.5, x * x / 2.0));
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// The chance of a normal number at least as far from 0.
fn two_sided(deviations: f64) -> f64 {
    2.0 * normal_cdf(-deviations.abs())
}

/// How often each of `0..n` occurs.
pub fn counts(values: &[f64], n: usize) -> Vec<f64> {
    let mut found = vec![0.0; n];
    for x in values {
        found[*x as usize] += 1.0;
    }
    found
}

/// Pearson's test of counts against expected ones. Neighbours are taken together until 20 are
/// expected; where nothing is expected, nothing may be found.
pub fn chi_square(found: &[f64], expected: &[f64]) -> f64 {
    let mut cells: Vec<(f64, f64)> = vec![];
    let mut open = (0.0, 0.0);
    for (f, e) in found.iter().zip(expected) {
        if *e == 0.0 && *f > 0.0 {
            return 0.0;
        }
        open = (open.0 + f, open.1 + e);
        if open.1 >= 20.0 {
            cells.push(std::mem::take(&mut open));
        }
    }
    if let Some(last) = cells.last_mut() {
        *last = (last.0 + open.0, last.1 + open.1);
    }
    let total: f64 = cells.iter().map(|c| c.0).sum();
    assert_eq!(total, found.iter().sum::<f64>(), "too few values for a test");
    if cells.len() < 2 {
        return 1.0;
    }
    let statistic: f64 = cells.iter().map(|(f, e)| (f - e) * (f - e) / e).sum();
    1.0 - lower_gamma((cells.len() - 1) as f64 / 2.0, statistic / 2.0)
}

/// The test of Kolmogorov and Smirnov, by its limit for large samples.
pub fn kolmogorov_smirnov(values: &[f64], cdf: impl Fn(f64) -> f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let distance = sorted.iter().enumerate().fold(0f64, |worst, (i, x)| {
        let p = cdf(*x);
        worst.max(p - i as f64 / n).max((i + 1) as f64 / n - p)
    });
    let scaled = distance * n.sqrt();
    let terms = (1..100).map(|j| {
        let sign = if j % 2 == 1 { 2.0 } else { -2.0 };
        sign * (-2.0 * (j as f64 * scaled).powi(2)).exp()
    });
    if scaled < 0.2 { 1.0 } else { terms.sum() }
}

/// Mean, variance and the correlation of neighbours, each with its chance. The deviation of the
/// variance is estimated from the fourth moment of the sample.
pub fn moments(values: &[f64], mean: f64, variance: f64) -> [(&'static str, f64); 3] {
    let n = values.len() as f64;
    let centred: Vec<f64> = values.iter().map(|x| x - mean).collect();
    let power = |p: i32| centred.iter().map(|x| x.powi(p)).sum::<f64>() / n;
    let (first, second, fourth) = (power(1), power(2), power(4));
    let lagged = centred.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / (n - 1.0);
    [
        ("mean", two_sided(first / (variance / n).sqrt())),
        ("variance", two_sided((second - variance) / ((fourth - second * second) / n).sqrt())),
        ("neighbours", two_sided(lagged / variance * n.sqrt())),
    ]
}

#[test]
fn functions_have_known_values() {
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12 * b.abs().max(1.0), "{a} {b}");
    near(ln_gamma(1.0), 0.0);
    near(ln_gamma(0.5), PI.sqrt().ln());
    near(ln_gamma(11.0), 3_628_800f64.ln());
    near(normal_cdf(0.0), 0.5);
    near(normal_cdf(1.959_963_984_540_054), 0.975);
    near(lower_gamma(1.0, 2.0), 1.0 - (-2f64).exp());
    near(lower_gamma(3.0, 0.5), 1.0 - (-0.5f64).exp() * 1.625);
    near(chi_square(&[60.0, 40.0], &[50.0, 50.0]), 2.0 * normal_cdf(-2.0));
    assert!(kolmogorov_smirnov(&[0.1; 50], |x| x) < 1e-20);
}
