//! Samplers with loops, as kernels on f64: gamma, Poisson and their mixtures.
//!
//! An attempt takes blocks of its own, so that which words a value uses depends on the element alone.
//! The number of attempts is bounded by [`ATTEMPTS`]; what the chances of exceeding it are is said at
//! each sampler.

use tensorc_ir::kir::{Buf, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use super::words::{WordSource, normal64, positive_unit53, unit53};
use crate::nest::{Scalars, int};
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
pub struct WordStream {
    pub key: [Operand; 2],
    /// i64.
    pub position: Operand,
    /// Whether every position of the draw is below 2³².
    pub short: bool,
}

fn real(x: f64) -> Operand {
    Operand::Const(Scalar::from_f64(DType::F64, x))
}

/// Evaluates expressions over f64 operands.
fn eval(k: &mut KernelBuilder, args: &[Operand], f: impl FnOnce(&[Ex]) -> Vec<Ex>) -> Result<Vec<Operand>, OpError> {
    let types = vec![DType::F64; args.len()];
    let f = ScalarFn::build(&types, |_, a| f(a))?;
    Ok(k.apply(&f, args, &[]))
}

impl WordStream {
    /// Evaluates expressions over f64 operands and the words of the blocks from `block` on.
    pub fn eval(
        &self,
        k: &mut KernelBuilder,
        block: Operand,
        args: &[Operand],
        f: impl FnOnce(&dyn Fn(u8) -> [Ex; 2], &[Ex]) -> Vec<Ex>,
    ) -> Result<Vec<Operand>, OpError> {
        let fixed = [DType::U32, DType::U32, DType::I64, DType::I64];
        let types = [&fixed[..], &vec![DType::F64; args.len()]].concat();
        let f = ScalarFn::build(&types, |_, a| {
            let source = WordSource { key: [a[0].clone(), a[1].clone()], position: a[2].clone(), short: self.short };
            f(&|i| source.words_at(&(&a[3] + f64::from(i))), &a[4..])
        })?;
        let args = [&[self.key[0], self.key[1], self.position, block], args].concat();
        Ok(k.apply(&f, &args, &[]))
    }
}

/// What a loop of attempts has found.
struct AttemptSearch {
    done: Buf,
    value: Buf,
}

impl AttemptSearch {
    /// `fallback` is the result if no attempt succeeds.
    fn new(k: &mut KernelBuilder, fallback: Operand) -> AttemptSearch {
        let search = AttemptSearch {
            done: k.alloc("done", DType::Bool, 1, MemorySpace::Register),
            value: k.alloc("value", DType::F64, 1, MemorySpace::Register),
        };
        k.store(search.done, Index::default(), Operand::Const(Scalar::bool(false)));
        k.store(search.value, Index::default(), fallback);
        search
    }

    /// The search ends with `value` if it is accepted.
    fn offer(&self, k: &mut KernelBuilder, accepted: Operand, value: Operand) {
        let kept = k.load(self.value, Index::default());
        let value = k.select(accepted, value, kept);
        k.store(self.done, Index::default(), accepted);
        k.store(self.value, Index::default(), value);
    }

    fn value(&self, k: &mut KernelBuilder) -> Operand {
        k.load(self.value, Index::default())
    }

    /// Runs `attempt` with 0, 1, … until one is accepted, [`ATTEMPTS`] times at most.
    fn run(
        &self,
        k: &mut KernelBuilder,
        mut attempt: impl FnMut(&mut KernelBuilder, Operand) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        k.for_range("round", ATTEMPTS / STRIDE, LoopKind::Serial, |k, round| {
            let done = k.load(self.done, Index::default());
            let left = k.select(done, int(0), int(STRIDE as i64));
            let left = k.as_index(left);
            k.for_loop("attempt", (Index::default(), left, 1), LoopKind::Serial, |k, i| {
                let done = k.load(self.done, Index::default());
                let open = k.op(ScalarOp::Not, &[done]);
                k.if_then(open, |k| {
                    let n = k.index_value(round.scale(STRIDE as i64).add(&i));
                    attempt(k, n)
                })
            })
        })
    }
}

/// Gamma with the given shape and scale 1; 0 for the shape 0. Marsaglia and Tsang, "A simple method for generating gamma
/// variables", 2000; a shape below 1 is raised by 1 and the value multiplied by a power of a uniform
/// number, as they propose.
///
/// An attempt succeeds with a probability of at least 0.95, so all fail with less than 10⁻⁸³; the
/// value would be `d`.
fn standard_gamma(k: &mut KernelBuilder, stream: &WordStream, shape: Operand) -> Result<Operand, OpError> {
    let setup = eval(k, &[shape], |a| {
        let small = a[0].lt(&a[0].lit(1.0));
        let raised = small.select(&(&a[0] + 1.0), &a[0]);
        let d = raised - 1.0 / 3.0;
        let c = d.lit(1.0) / (&d * 9.0).sqrt();
        vec![d, c, small]
    })?;
    let (d, c, small) = (setup[0], setup[1], setup[2]);
    let search = AttemptSearch::new(k, d);
    search.run(k, |k, n| {
        let block = k.bin(ScalarOp::Mul, n, int(3));
        let tried = stream.eval(k, block, &[d, c], |words, a| {
            let x = normal64(&words(0), &words(1));
            let root = &a[1] * &x + 1.0;
            let v = &root * &root * &root;
            let u = positive_unit53(&words(2));
            let square = &x * &x;
            let sure = u.lt(&(square.lit(1.0) - &square * &square * 0.0331)) & v.gt(&v.lit(0.0));
            vec![&a[0] * &v, sure, u, square, v]
        })?;
        search.offer(k, tried[1], tried[0]);
        let unsure = k.op(ScalarOp::Not, &[tried[1]]);
        k.if_then(unsure, |k| {
            let accepted = eval(k, &[tried[2], tried[3], tried[4], d], |a| {
                let bound = &a[1] * 0.5 + &a[3] * &(a[2].lit(1.0) - &a[2] + a[2].log());
                vec![a[0].log().lt(&bound)]
            })?;
            search.offer(k, accepted[0], tried[0]);
            Ok(())
        })
    })?;
    k.if_then(small, |k| {
        let value = search.value(k);
        let scaled = stream.eval(k, int(BOOST), &[value, shape], |words, a| {
            let power = (positive_unit53(&words(0)).log() / &a[1]).exp();
            vec![a[1].gt(&a[1].lit(0.0)).select(&(&a[0] * &power), &a[0].lit(0.0))]
        })?;
        k.store(search.value, Index::default(), scaled[0]);
        Ok::<(), OpError>(())
    })?;
    Ok(search.value(k))
}

pub fn gamma(k: &mut KernelBuilder, stream: &WordStream, a: &[Operand]) -> Result<Operand, OpError> {
    let value = standard_gamma(k, stream, a[0])?;
    Ok(k.bin(ScalarOp::Mul, value, a[1]))
}

pub fn poisson(k: &mut KernelBuilder, stream: &WordStream, a: &[Operand]) -> Result<Operand, OpError> {
    poisson_from(k, stream, 0, a[0])
}

/// Poisson with the given rate, from the blocks from `first` on: by inversion below [`MIN_REJECTION_RATE`], by
/// transformed rejection from there on.
fn poisson_from(k: &mut KernelBuilder, stream: &WordStream, first: i64, rate: Operand) -> Result<Operand, OpError> {
    let large = k.cmp(CmpOp::Ge, rate, real(MIN_REJECTION_RATE));
    let small = k.op(ScalarOp::Not, &[large]);
    let result = k.alloc("count", DType::F64, 1, MemorySpace::Register);
    k.store(result, Index::default(), real(0.0));
    k.if_then(small, |k| {
        let count = inversion(k, stream, first, rate)?;
        k.store(result, Index::default(), count);
        Ok::<(), OpError>(())
    })?;
    k.if_then(large, |k| {
        let count = transformed_rejection(k, stream, first, rate)?;
        k.store(result, Index::default(), count);
        Ok::<(), OpError>(())
    })?;
    Ok(k.load(result, Index::default()))
}

/// The least n whose cumulative probability exceeds a uniform number. For rates below
/// [`MIN_REJECTION_RATE`] that is below [`ATTEMPTS`] for every number of 53 bits.
fn inversion(k: &mut KernelBuilder, stream: &WordStream, first: i64, rate: Operand) -> Result<Operand, OpError> {
    let start = stream.eval(k, int(first), &[rate], |words, a| vec![unit53(&words(0)), (-&a[0]).exp()])?;
    let (u, zero) = (start[0], start[1]);
    let term = k.alloc("term", DType::F64, 1, MemorySpace::Register);
    let sum = k.alloc("sum", DType::F64, 1, MemorySpace::Register);
    k.store(term, Index::default(), zero);
    k.store(sum, Index::default(), zero);
    let search = AttemptSearch::new(k, real(ATTEMPTS as f64 - 1.0));
    search.run(k, |k, n| {
        let (p, total) = (k.load(term, Index::default()), k.load(sum, Index::default()));
        let n = k.cast(n, DType::F64);
        let next = eval(k, &[u, p, total, n, rate], |a| {
            let p = &a[1] * &a[4] / (&a[3] + 1.0);
            vec![a[0].lt(&a[2]), &a[2] + &p, p]
        })?;
        search.offer(k, next[0], n);
        k.store(sum, Index::default(), next[1]);
        k.store(term, Index::default(), next[2]);
        Ok(())
    })?;
    Ok(search.value(k))
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
fn transformed_rejection(
    k: &mut KernelBuilder,
    stream: &WordStream,
    first: i64,
    rate: Operand,
) -> Result<Operand, OpError> {
    let setup = eval(k, &[rate], |a| {
        let b = a[0].sqrt() * 2.53 + 0.931;
        let slope = &b * 0.02483 - 0.059;
        let inverse = b.lit(1.1328) / (&b - 3.4) + 1.1239;
        let quick = b.lit(0.9277) - b.lit(3.6224) / (&b - 2.0);
        vec![b, slope, inverse, quick, a[0].floor()]
    })?;
    let search = AttemptSearch::new(k, setup[4]);
    search.run(k, |k, n| {
        let block = k.bin(ScalarOp::Mul, n, int(2));
        let block = k.bin(ScalarOp::Add, block, int(first));
        let args = [setup[0], setup[1], setup[3], rate];
        let tried = stream.eval(k, block, &args, |words, a| {
            let u = unit53(&words(0)) - 0.5;
            let v = positive_unit53(&words(1));
            let edge = u.lit(0.5) - u.abs();
            let count = ((&a[1] * 2.0 / &edge + &a[0]) * &u + &a[3] + 0.43).floor();
            let sure = edge.ge(&edge.lit(0.07)) & v.le(&a[2]);
            let out = count.lt(&count.lit(0.0)) | (edge.lt(&edge.lit(0.013)) & v.gt(&edge));
            let open = !(&sure | &out);
            vec![count, sure, open, v, edge]
        })?;
        search.offer(k, tried[1], tried[0]);
        k.if_then(tried[2], |k| {
            let args = [tried[0], tried[3], tried[4], setup[0], setup[1], setup[2], rate];
            let accepted = eval(k, &args, |a| {
                let hat = &a[4] / &(&a[2] * &a[2]) + &a[3];
                vec![(&a[1] * &a[5] / hat).log().le(&log_probability(&a[0], &a[6]))]
            })?;
            search.offer(k, accepted[0], tried[0]);
            Ok(())
        })
    })?;
    Ok(search.value(k))
}

/// Poisson of a rate drawn from a gamma distribution.
pub fn negative_binomial(k: &mut KernelBuilder, stream: &WordStream, a: &[Operand]) -> Result<Operand, OpError> {
    let shape = standard_gamma(k, stream, a[0])?;
    let rate = eval(k, &[shape, a[1]], |a| vec![&a[0] * &((a[1].lit(1.0) - &a[1]) / &a[1])])?;
    poisson_from(k, stream, SECOND, rate[0])
}

/// Poisson of a rate drawn from a gamma distribution of mean `mu` and variance `alpha · mu²`.
pub fn generalized_negative_binomial(
    k: &mut KernelBuilder,
    stream: &WordStream,
    a: &[Operand],
) -> Result<Operand, OpError> {
    let shape = eval(k, &[a[1]], |a| {
        let shape = a[0].lit(1.0) / &a[0];
        let finite = shape.abs().lt(&shape.lit(f64::INFINITY));
        vec![finite.select(&shape, &shape.lit(1.0)), finite]
    })?;
    let mixed = standard_gamma(k, stream, shape[0])?;
    let rate = eval(k, &[mixed, a[0], a[1]], |a| vec![&a[0] * &(&a[2] * &a[1])])?;
    let rate = k.select(shape[1], rate[0], a[0]);
    poisson_from(k, stream, SECOND, rate)
}
