//! Samplers with loops, as kernels on f64: gamma, Poisson and their mixtures.
//!
//! An attempt takes blocks of its own, so that which words a value uses depends on the element alone.
//! The number of attempts is bounded by [`ATTEMPTS`]; what the chances of exceeding it are is said at
//! each sampler.

use super::words::{WordSource, normal64, positive_unit53, unit53};
use crate::kernel::{KernelCell, Term};
use crate::prelude::*;

/// No sampler tries more often.
const ATTEMPTS: u64 = 64;
/// Attempts between two checks whether any is left to make.
const STRIDE: u64 = 8;
/// The first block of the second sampler of a mixture.
const SECOND: i64 = 256;
/// The block of the power that extends the gamma sampler to shapes below 1.
const BOOST: i64 = 255;
/// Rates from here on are sampled by transformed rejection.
const MIN_REJECTION_RATE: f64 = 10.0;

/// The words of one element, in a kernel.
pub struct WordStream<'k> {
    pub k: &'k KernelScope,
    pub key: [KernelValue<'k>; 2],
    /// i64.
    pub position: KernelValue<'k>,
    /// Whether every position of the draw is below 2³².
    pub short: bool,
}

/// A sampler: from the words of an element and parameters in f64, its value.
pub type KernelSampler = for<'k> fn(&WordStream<'k>, &[KernelValue<'k>]) -> KernelValue<'k>;

impl<'k> WordStream<'k> {
    /// Evaluates expressions over f64 operands and the words of the blocks from `block` on.
    pub fn eval<const N: usize>(
        &self,
        block: KernelValue<'k>,
        args: &[KernelValue<'k>],
        f: impl FnOnce(&dyn Fn(u8) -> [Ex; 2], &[Ex]) -> [Ex; N],
    ) -> [KernelValue<'k>; N] {
        let args = [&[self.key[0], self.key[1], self.position, block], args].concat();
        self.k.eval(&args, |a| {
            let source = WordSource { key: [a[0].clone(), a[1].clone()], position: a[2].clone(), short: self.short };
            f(&|i| source.words_at(&(&a[3] + f64::from(i))), &a[4..])
        })
    }
}

/// What a loop of attempts has found.
struct AttemptSearch<'k> {
    k: &'k KernelScope,
    done: KernelCell<'k>,
    value: KernelCell<'k>,
}

impl<'k> AttemptSearch<'k> {
    /// `fallback` is the result if no attempt succeeds.
    fn new(k: &'k KernelScope, fallback: impl Term<'k>) -> AttemptSearch<'k> {
        let (done, value) = (k.register("done", DType::Bool), k.register("value", DType::F64));
        AttemptSearch { k, done: done.holding(false), value: value.holding(fallback) }
    }

    /// The search ends with `value` if it is accepted.
    fn offer(&self, accepted: KernelValue<'k>, value: KernelValue<'k>) {
        let kept = self.value.get();
        let value = accepted.select(value, kept);
        self.done.set(accepted);
        self.value.set(value);
    }

    /// Runs `attempt` with 0, 1, … until one is accepted, [`ATTEMPTS`] times at most.
    fn run(self, attempt: impl FnOnce(&AttemptSearch<'k>, KernelValue<'k>)) -> KernelCell<'k> {
        let k = self.k;
        k.each("round", ATTEMPTS / STRIDE, |round| {
            let left = self.done.get().select(0, STRIDE as i64).index();
            k.range("attempt", (&Index::default(), &left), |i| {
                k.when(!self.done.get(), || attempt(&self, k.position(&round.scale(STRIDE as i64).add(i))));
            });
        });
        self.value
    }
}

/// Gamma with the given shape and scale 1; 0 for the shape 0. Marsaglia and Tsang, "A simple method for generating gamma
/// variables", 2000; a shape below 1 is raised by 1 and the value multiplied by a power of a uniform
/// number, as they propose.
///
/// An attempt succeeds with a probability of at least 0.95, so all fail with less than 10⁻⁸³; the
/// value would be `d`.
fn standard_gamma<'k>(stream: &WordStream<'k>, shape: KernelValue<'k>) -> KernelValue<'k> {
    let k = stream.k;
    let [d, c, small] = k.eval(&[shape], |a| {
        let small = a[0].lt(&a[0].lit(1.0));
        let raised = small.select(&(&a[0] + 1.0), &a[0]);
        let d = raised - 1.0 / 3.0;
        let c = d.lit(1.0) / (&d * 9.0).sqrt();
        [d, c, small]
    });
    let found = AttemptSearch::new(k, d).run(|search, n| {
        let [value, sure, u, square, v] = stream.eval(n * 3, &[d, c], |words, a| {
            let x = normal64(&words(0), &words(1));
            let root = &a[1] * &x + 1.0;
            let v = &root * &root * &root;
            let u = positive_unit53(&words(2));
            let square = &x * &x;
            let sure = u.lt(&(square.lit(1.0) - &square * &square * 0.0331)) & v.gt(&v.lit(0.0));
            [&a[0] * &v, sure, u, square, v]
        });
        search.offer(sure, value);
        k.when(!sure, || {
            let [accepted] = k.eval(&[u, square, v, d], |a| {
                let bound = &a[1] * 0.5 + &a[3] * &(a[2].lit(1.0) - &a[2] + a[2].log());
                [a[0].log().lt(&bound)]
            });
            search.offer(accepted, value);
        });
    });
    k.when(small, || {
        let [scaled] = stream.eval(k.int(BOOST), &[found.get(), shape], |words, a| {
            let power = (positive_unit53(&words(0)).log() / &a[1]).exp();
            [a[1].gt(&a[1].lit(0.0)).select(&(&a[0] * &power), &a[0].lit(0.0))]
        });
        found.set(scaled);
    });
    found.get()
}

pub fn gamma<'k>(stream: &WordStream<'k>, a: &[KernelValue<'k>]) -> KernelValue<'k> {
    standard_gamma(stream, a[0]) * a[1]
}

pub fn poisson<'k>(stream: &WordStream<'k>, a: &[KernelValue<'k>]) -> KernelValue<'k> {
    poisson_from(stream, 0, a[0])
}

/// Poisson with the given rate, from the blocks from `first` on: by inversion below [`MIN_REJECTION_RATE`], by
/// transformed rejection from there on.
fn poisson_from<'k>(stream: &WordStream<'k>, first: i64, rate: KernelValue<'k>) -> KernelValue<'k> {
    let k = stream.k;
    let large = rate.ge(MIN_REJECTION_RATE);
    let small = !large;
    let count = k.register("count", DType::F64).holding(0.0);
    k.when(small, || count.set(inversion(stream, first, rate)));
    k.when(large, || count.set(transformed_rejection(stream, first, rate)));
    count.get()
}

/// The least n whose cumulative probability exceeds a uniform number. For rates below
/// [`MIN_REJECTION_RATE`] that is below [`ATTEMPTS`] for every number of 53 bits.
fn inversion<'k>(stream: &WordStream<'k>, first: i64, rate: KernelValue<'k>) -> KernelValue<'k> {
    let k = stream.k;
    let [u, zero] = stream.eval(k.int(first), &[rate], |words, a| [unit53(&words(0)), (-&a[0]).exp()]);
    let (term, sum) = (k.register("term", DType::F64), k.register("sum", DType::F64));
    term.set(zero);
    sum.set(zero);
    let found = AttemptSearch::new(k, ATTEMPTS as f64 - 1.0).run(|search, n| {
        let (p, total) = (term.get(), sum.get());
        let n = n.cast(DType::F64);
        let [accepted, next_sum, next_term] = k.eval(&[u, p, total, n, rate], |a| {
            let p = &a[1] * &a[4] / (&a[3] + 1.0);
            [a[0].lt(&a[2]), &a[2] + &p, p]
        });
        search.offer(accepted, n);
        sum.set(next_sum);
        term.set(next_term);
    });
    found.get()
}

/// The logarithm of the probability of `n` under Poisson's distribution of rate `mu`, for rates from
/// [`MIN_REJECTION_RATE`] on: from 10 on by the Stirling series, whose error there is below 10⁻¹⁰, in a form
/// without cancellation for great rates; below 10 by the factorial.
fn log_probability(n: &Ex, mu: &Ex) -> Ex {
    let one = n.lit(1.0);
    let factorial = (2..10).fold(n.lit(1.0), |f, i| {
        let i = f64::from(i);
        f * n.ge(&n.lit(i)).select(&n.lit(i), &one)
    });
    let few = n.lt(&n.lit(10.0));
    let safe = few.select(&n.lit(10.0), n);
    let share = (&safe - mu) / mu;
    let distance = (&share + 1.0) * share.log1p() - &share;
    let root = (&safe * (2.0 * std::f64::consts::PI)).sqrt();
    let inverse = one / &safe;
    let square = &inverse * &inverse;
    let series = &inverse * &(((&square * (1.0 / 1260.0) - 1.0 / 360.0) * &square) + 1.0 / 12.0);
    let many = -(mu * &distance) - series;
    let exact = n * &mu.log() - mu;
    few.select(&exact, &many) - few.select(&factorial, &root).log()
}

/// Hörmann, "The transformed rejection method for generating Poisson random variables", 1993:
/// algorithm PTRS, for rates of at least 10.
///
/// An attempt succeeds with a probability of more than 0.7, so all fail with less than 10⁻³³; the
/// value would be the rate rounded down.
fn transformed_rejection<'k>(stream: &WordStream<'k>, first: i64, rate: KernelValue<'k>) -> KernelValue<'k> {
    let k = stream.k;
    let [b, slope, inverse, quick, mode] = k.eval(&[rate], |a| {
        let b = a[0].sqrt() * 2.53 + 0.931;
        let slope = &b * 0.02483 - 0.059;
        let inverse = b.lit(1.1328) / (&b - 3.4) + 1.1239;
        let quick = b.lit(0.9277) - b.lit(3.6224) / (&b - 2.0);
        [b, slope, inverse, quick, a[0].floor()]
    });
    let found = AttemptSearch::new(k, mode).run(|search, n| {
        let [count, sure, open, v, edge] = stream.eval(n * 2 + first, &[b, slope, quick, rate], |words, a| {
            let u = unit53(&words(0)) - 0.5;
            let v = positive_unit53(&words(1));
            let edge = u.lit(0.5) - u.abs();
            let count = ((&a[1] * 2.0 / &edge + &a[0]) * &u + &a[3] + 0.43).floor();
            let sure = edge.ge(&edge.lit(0.07)) & v.le(&a[2]);
            let out = count.lt(&count.lit(0.0)) | (edge.lt(&edge.lit(0.013)) & v.gt(&edge));
            let open = !(&sure | &out);
            [count, sure, open, v, edge]
        });
        search.offer(sure, count);
        k.when(open, || {
            let [accepted] = k.eval(&[count, v, edge, b, slope, inverse, rate], |a| {
                let hat = &a[4] / &(&a[2] * &a[2]) + &a[3];
                [(&a[1] * &a[5] / hat).log().le(&log_probability(&a[0], &a[6]))]
            });
            search.offer(accepted, count);
        });
    });
    found.get()
}

/// Poisson of a rate drawn from a gamma distribution.
pub fn negative_binomial<'k>(stream: &WordStream<'k>, a: &[KernelValue<'k>]) -> KernelValue<'k> {
    let shape = standard_gamma(stream, a[0]);
    let [rate] = stream.k.eval(&[shape, a[1]], |a| [&a[0] * &((a[1].lit(1.0) - &a[1]) / &a[1])]);
    poisson_from(stream, SECOND, rate)
}

/// Poisson of a rate drawn from a gamma distribution of mean `mu` and variance `alpha · mu²`.
pub fn generalized_negative_binomial<'k>(stream: &WordStream<'k>, a: &[KernelValue<'k>]) -> KernelValue<'k> {
    let k = stream.k;
    let [shape, finite] = k.eval(&[a[1]], |a| {
        let shape = a[0].lit(1.0) / &a[0];
        let finite = shape.abs().lt(&shape.lit(f64::INFINITY));
        [finite.select(&shape, &shape.lit(1.0)), finite]
    });
    let mixed = standard_gamma(stream, shape);
    let [rate] = k.eval(&[mixed, a[0], a[1]], |a| [&a[0] * &(&a[2] * &a[1])]);
    poisson_from(stream, SECOND, finite.select(rate, a[0]))
}
