//! Random operators as compiled: the interpreter's bits on any number of threads, one compilation
//! for every key, and the distributions they claim.
//!
//! Keys are fixed, so a statistical test either always passes or always fails. Each asks that a
//! deviation as large as the one found has a chance of more than [`CHANCE`].

mod statistics;

use std::sync::LazyLock;

use tensorc::{Compiler, DType, Options, Session, Tensor};
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DenseType, TensorData};

use crate::support::backend::options;
use statistics::{chi_square, counts, kolmogorov_smirnov, ln_gamma, lower_gamma, moments, normal_cdf};
use tensorc_tests::compare::{data, tensor};

const CHANCE: f64 = 1e-4;
/// Elements of a draw whose distribution is tested.
const DRAWS: usize = 200_000;
const KEYS: [[u32; 2]; 2] = [[0x1319_8a2e, 0x0370_7344], [7, 0]];

static COMPILERS: LazyLock<[Compiler; 2]> = LazyLock::new(|| {
    [1, 2].map(|threads| Compiler::new(Options { threads: Some(threads), poison: true, ..options() }).unwrap())
});

fn key(words: [u32; 2]) -> TensorData {
    let ty = DenseType::new(DType::U32, [2]);
    TensorData::from_fn(ty, |i| Scalar { dtype: DType::U32, bits: u64::from(words[i as usize]) })
}

fn filled(dtype: DType, dims: &[u64], value: impl Fn(u64) -> f64) -> TensorData {
    TensorData::from_fn(DenseType::new(dtype, dims), |i| Scalar::from_f64(dtype, value(i)))
}

/// One node of a random operator, its key a graph input after the other operands.
struct Draw {
    op: &'static str,
    operands: Vec<TensorData>,
    params: Params,
    outputs: usize,
}

impl Draw {
    fn new(op: &'static str, operands: Vec<TensorData>, params: &[(&'static str, ParamValue)]) -> Draw {
        let params = params.iter().fold(Params::new(), |p, (n, v)| p.with(n, v.clone()));
        Draw { op, operands, params, outputs: 1 }
    }

    /// Parameters as numbers.
    fn scalar(op: &'static str, dtype: DType, n: usize, params: &[(&'static str, f64)]) -> Draw {
        let numbers: Vec<_> = params.iter().map(|(name, x)| (*name, ParamValue::Float(*x))).collect();
        let mut draw = Draw::new(op, vec![], &numbers);
        draw.params.set("shape", ParamValue::Ints(vec![n as i64]));
        draw.params.set("dtype", ParamValue::DType(dtype));
        draw
    }

    fn graph(&self) -> Graph {
        let compiler = &COMPILERS[0];
        let mut graph = Graph::new(self.op);
        let mut args: Vec<Option<Value>> = (self.operands.iter().enumerate())
            .map(|(i, data)| Some(graph.add_input(format!("x{i}"), data.ty.clone().into())))
            .collect();
        args.push(Some(graph.add_input("key", key([0, 0]).ty.into())));
        let def = compiler.registry().get(self.op).unwrap();
        let node = graph.add_op("draw", def, &args, self.params.clone(), self.outputs).unwrap();
        for port in 0..self.outputs as u16 {
            graph.add_output(format!("y{port}"), Value { node, port });
        }
        graph
    }

    fn inputs(&self, words: [u32; 2]) -> Vec<TensorData> {
        self.operands.iter().cloned().chain([key(words)]).collect()
    }

    fn session(&self, compiler: &Compiler) -> Session {
        let types: Vec<DenseType> = self.inputs(KEYS[0]).into_iter().map(|t| t.ty).collect();
        compiler.model(self.graph()).compile(&types).unwrap()
    }

    /// What the compiled operator draws with the first of the [`KEYS`].
    fn values(&self) -> Vec<f64> {
        run(&mut self.session(&COMPILERS[1]), &self.inputs(KEYS[0]))[0].to_f64s()
    }
}

fn run(session: &mut Session, inputs: &[TensorData]) -> Vec<TensorData> {
    let inputs: Vec<Tensor> = inputs.iter().map(tensor).collect();
    session.run(&inputs).unwrap().iter().map(data).collect()
}

/// Every sampler in each of its ways to compute.
fn all_draws() -> Vec<Draw> {
    let mut found = vec![];
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let scalar = |op, params: &[(&'static str, f64)]| Draw::scalar(op, dtype, 1000, params);
        found.extend([
            scalar("random_uniform", &[("low", -1.0), ("high", 2.0)]),
            scalar("random_normal", &[("mean", 1.0), ("scale", 3.0)]),
            scalar("random_exponential", &[("lam", 2.0)]),
            scalar("random_gamma", &[("alpha", 0.3)]),
            scalar("random_gamma", &[("alpha", 1.0)]),
            scalar("random_gamma", &[("alpha", 30.0), ("beta", 0.1)]),
            scalar("random_poisson", &[("lam", 0.5)]),
            scalar("random_poisson", &[("lam", 9.99)]),
            scalar("random_poisson", &[("lam", 10.0)]),
            scalar("random_poisson", &[("lam", 1000.0)]),
            scalar("random_negative_binomial", &[("p", 0.1)]),
            scalar("random_generalized_negative_binomial", &[("mu", 20.0), ("alpha", 0.5)]),
            scalar("random_generalized_negative_binomial", &[("mu", 2.0), ("alpha", 0.0)]),
        ]);
        let shape = [("shape", ParamValue::Ints(vec![3, 5]))];
        let spread = |low: f64, high: f64| filled(dtype, &[4, 7], move |i| low + (high - low) * i as f64 / 27.0);
        found.extend([
            Draw::new("sample_uniform", vec![spread(-1.0, 0.5), spread(1.0, 0.0)], &shape),
            Draw::new("sample_normal", vec![spread(-1.0, 1.0), spread(-0.2, 4.0)], &shape),
            Draw::new("sample_exponential", vec![spread(-0.2, 4.0)], &shape),
            Draw::new("sample_gamma", vec![spread(-0.2, 4.0), spread(1.0, 2.0)], &shape),
            Draw::new("sample_poisson", vec![spread(-1.0, 30.0)], &shape),
            Draw::new("sample_negative_binomial", vec![spread(0.0, 5.0), spread(0.0, 1.1)], &shape),
            Draw::new("sample_generalized_negative_binomial", vec![spread(0.0, 20.0), spread(-0.1, 1.0)], &shape),
            Draw::new("sample_uniform", vec![spread(0.0, 1.0), spread(1.0, 2.0)], &[]),
            Draw::new("sample_gamma", vec![spread(0.0, 1.0), spread(1.0, 2.0)], &[]),
            Draw::new("random_gamma_like", vec![spread(0.0, 1.0)], &[]),
            Draw::new("bernoulli", vec![spread(-0.1, 1.1)], &[]),
            Draw::new("dropout_mask", vec![spread(0.0, 1.0), filled(dtype, &[], |_| 0.3)], &[]),
            Draw { outputs: 2, ..Draw::new("sample_multinomial", vec![spread(-0.1, 1.0)], &shape) },
            Draw::new("multinomial", vec![spread(-3.0, 3.0)], &[("sample_size", ParamValue::Int(9))]),
        ]);
    }
    for (low, high, dtype) in [(-5, 50, DType::I32), (0, 256, DType::U8), (i64::MIN, i64::MAX, DType::I64)] {
        found.push(randint(low, high, dtype, 1000));
    }
    for n in [1, 12, 1000] {
        found.push(Draw::new("shuffle", vec![filled(DType::F32, &[n, 2], |i| i as f64)], &[]));
    }
    found
}

fn randint(low: i64, high: i64, dtype: DType, n: usize) -> Draw {
    let mut draw = Draw::scalar("random_randint", dtype, n, &[]);
    draw.params.set("low", ParamValue::Int(low));
    draw.params.set("high", ParamValue::Int(high));
    draw
}

fn bits(data: &TensorData) -> Vec<u64> {
    data.iter().map(|x| if x.is_nan() { u64::MAX } else { x.bits }).collect()
}

/// One session serves every key: its plan launches kernels, which no key has been folded into.
#[test]
fn compiled_draws_have_the_interpreters_bits() {
    for draw in all_draws() {
        let graph = draw.graph();
        let mut sessions = COMPILERS.each_ref().map(|c| draw.session(c));
        assert!(!sessions[0].plan().steps.is_empty(), "{}", draw.op);
        let mut seen = vec![];
        for words in KEYS {
            let inputs = draw.inputs(words);
            let want = eval_graph(&graph, COMPILERS[0].registry(), &inputs).unwrap();
            for session in &mut sessions {
                for (got, want) in run(session, &inputs).iter().zip(&want) {
                    assert_eq!(got.ty, want.ty, "{}", draw.op);
                    let same = bits(got) == bits(want);
                    assert!(same, "{} {:?} {}: {:?} {:?}", draw.op, draw.params, got.ty, got.to_f64s(), want.to_f64s());
                }
            }
            seen.push(bits(&want[0]));
        }
        assert!(seen[0] != seen[1] || seen[0].len() < 5, "{}: two keys give the same values", draw.op);
    }
}

fn check(what: &str, chance: f64) {
    assert!(chance > CHANCE, "{what}: a chance of {chance:e}");
}

/// Mean, variance, correlation of neighbours, and the distribution function.
fn continuous(draw: &Draw, mean: f64, variance: f64, cdf: impl Fn(f64) -> f64) {
    let what = format!("{} {:?}", draw.op, draw.params);
    let values = draw.values();
    for (name, chance) in moments(&values, mean, variance) {
        check(&format!("{what}: {name}"), chance);
    }
    check(&format!("{what}: distribution"), kolmogorov_smirnov(&values, cdf));
}

/// Mean, variance, correlation of neighbours, and the frequency of each of `0..`.
fn discrete(draw: &Draw, mean: f64, variance: f64, ln_probability: impl Fn(f64) -> f64) {
    let what = format!("{} {:?}", draw.op, draw.params);
    let values = draw.values();
    assert!(values.iter().all(|x| *x >= 0.0 && x.fract() == 0.0), "{what}");
    if variance > 0.0 {
        for (name, chance) in moments(&values, mean, variance) {
            check(&format!("{what}: {name}"), chance);
        }
    }
    let top = (mean + 60.0 * variance.sqrt() + 60.0) as usize;
    let expected: Vec<f64> = (0..top).map(|n| values.len() as f64 * ln_probability(n as f64).exp()).collect();
    check(&format!("{what}: frequencies"), chi_square(&counts(&values, top), &expected));
}

#[test]
fn uniform_and_normal_numbers() {
    for dtype in [DType::F32, DType::F64] {
        let uniform = Draw::scalar("random_uniform", dtype, DRAWS, &[("low", -1.0), ("high", 3.0)]);
        continuous(&uniform, 1.0, 16.0 / 12.0, |x| ((x + 1.0) / 4.0).clamp(0.0, 1.0));
        let normal = Draw::scalar("random_normal", dtype, DRAWS, &[("mean", 0.5), ("scale", 2.0)]);
        continuous(&normal, 0.5, 4.0, |x| normal_cdf((x - 0.5) / 2.0));
        let exponential = Draw::scalar("random_exponential", dtype, DRAWS, &[("lam", 4.0)]);
        continuous(&exponential, 0.25, 1.0 / 16.0, |x| -(-4.0 * x).exp_m1());
    }
    // The tails reach as far as a sample of this size should: beyond 4 and 4.5 deviations.
    let far = Draw::scalar("random_normal", DType::F32, 5_000_000, &[]).values();
    for limit in [4.0, 4.5] {
        let expected = far.len() as f64 * 2.0 * normal_cdf(-limit);
        let found = far.iter().filter(|x| x.abs() > limit).count() as f64;
        check("tail", chi_square(&[found, far.len() as f64 - found], &[expected, far.len() as f64 - expected]));
    }
}

#[test]
fn half_precision_numbers() {
    for (dtype, bits) in [(DType::F16, 11), (DType::BF16, 8)] {
        // Rounding moves the distribution function by up to half a unit in the last place.
        let uniform = Draw::scalar("random_uniform", dtype, DRAWS, &[]).values();
        let in_tenths: Vec<f64> = uniform.iter().map(|x| (x * 8.0).floor()).collect();
        let share = DRAWS as f64 / 8.0;
        let slack = 0.5 * 2f64.powi(-bits) * DRAWS as f64;
        for found in counts(&in_tenths, 8) {
            let distance = ((found - share).abs() - slack).max(0.0);
            check("share of an eighth", 2.0 * normal_cdf(-distance / (share * 7.0 / 8.0).sqrt()));
        }
        assert!(uniform.iter().all(|x| (0.0..1.0).contains(x)));
        let normal = Draw::scalar("random_normal", dtype, DRAWS, &[]).values();
        let mean = normal.iter().sum::<f64>() / DRAWS as f64;
        check("mean", 2.0 * normal_cdf(-mean.abs() * (DRAWS as f64).sqrt()));
    }
}

#[test]
fn gamma_numbers() {
    for (alpha, beta) in [(0.05, 1.0), (0.5, 2.0), (1.0, 1.0), (1.7, 0.3), (20.0, 1.0), (1000.0, 1.0), (1e7, 1.0)] {
        let draw = Draw::scalar("random_gamma", DType::F64, DRAWS, &[("alpha", alpha), ("beta", beta)]);
        continuous(&draw, alpha * beta, alpha * beta * beta, |x| match alpha {
            // Cornish and Fisher's first terms; the rest is far below the resolution of the sample.
            a if a > 1e6 => normal_cdf(((x / a).cbrt() - (1.0 - 1.0 / (9.0 * a))) * (9.0 * a).sqrt()),
            a => lower_gamma(a, x / beta),
        });
    }
    let single = Draw::scalar("random_gamma", DType::F32, DRAWS, &[("alpha", 2.5)]);
    continuous(&single, 2.5, 2.5, |x| lower_gamma(2.5, x));
}

#[test]
fn poisson_numbers() {
    for lam in [0.01, 0.7, 5.0, 9.99, 10.0, 17.3, 100.0, 5000.0] {
        let draw = Draw::scalar("random_poisson", DType::F32, DRAWS, &[("lam", lam)]);
        discrete(&draw, lam, lam, |n| n * lam.ln() - lam - ln_gamma(n + 1.0));
    }
}

#[test]
fn negative_binomial_numbers() {
    let ln_probability = |k: f64, p: f64| {
        move |n: f64| ln_gamma(n + k) - ln_gamma(k) - ln_gamma(n + 1.0) + k * p.ln() + n * (1.0 - p).ln()
    };
    for (k, p) in [(1, 0.5), (3, 0.4), (20, 0.9), (2, 0.02)] {
        let mut draw = Draw::scalar("random_negative_binomial", DType::F32, DRAWS, &[("p", p)]);
        draw.params.set("k", ParamValue::Int(k));
        let k = k as f64;
        discrete(&draw, k * (1.0 - p) / p, k * (1.0 - p) / (p * p), ln_probability(k, p));
    }
    for (mu, alpha) in [(2.0, 0.3), (30.0, 2.0), (0.5, 0.01)] {
        let params = [("mu", mu), ("alpha", alpha)];
        let draw = Draw::scalar("random_generalized_negative_binomial", DType::F32, DRAWS, &params);
        let (k, p) = (1.0 / alpha, 1.0 / (1.0 + alpha * mu));
        discrete(&draw, mu, mu + alpha * mu * mu, ln_probability(k, p));
    }
}

#[test]
fn integers() {
    for (n, dtype) in [(3, DType::U8), (10, DType::I32), (1000, DType::I64), (97, DType::I16)] {
        let draw = randint(0, n, dtype, DRAWS);
        let (n, values) = (n as f64, draw.values());
        for (name, chance) in moments(&values, (n - 1.0) / 2.0, (n * n - 1.0) / 12.0) {
            check(&format!("integers below {n}: {name}"), chance);
        }
        let expected = vec![DRAWS as f64 / n; n as usize];
        check(&format!("integers below {n}"), chi_square(&counts(&values, n as usize), &expected));
    }
    // A range that is no power of two and beyond 2³²: high digits are as frequent as they should be.
    let n = 3i64 << 61;
    let thirds: Vec<f64> =
        randint(0, n, DType::I64, DRAWS).values().iter().map(|x| (x / (1i64 << 61) as f64).floor()).collect();
    check("thirds", chi_square(&counts(&thirds, 3), &[DRAWS as f64 / 3.0; 3]));
}

#[test]
fn categories_and_masks() {
    let weights = [0.5, 0.0, 3.0, 1.0, 1.5];
    let shape = [("shape", ParamValue::Ints(vec![DRAWS as i64]))];
    let draw = Draw::new("sample_multinomial", vec![filled(DType::F32, &[5], |i| weights[i as usize])], &shape);
    let expected = weights.map(|w| w / 6.0 * DRAWS as f64);
    check("categories", chi_square(&counts(&draw.values(), 5), &expected));
    let logs = filled(DType::F64, &[1, 5], |i| f64::ln(weights[i as usize]) + 100.0);
    let draw = Draw::new("multinomial", vec![logs], &[("sample_size", ParamValue::Int(DRAWS as i64))]);
    check("categories by logarithms", chi_square(&counts(&draw.values(), 5), &expected));
    for p in [0.001, 0.3, 0.999] {
        let chance = filled(DType::F32, &[DRAWS as u64], |_| p);
        let draw = Draw::new("bernoulli", vec![chance.clone()], &[]);
        let expected = [1.0 - p, p].map(|p| p * DRAWS as f64);
        check("bernoulli", chi_square(&counts(&draw.values(), 2), &expected));
        let mask = Draw::new("dropout_mask", vec![chance, filled(DType::F32, &[], |_| 1.0 - p)], &[]);
        check("dropout", chi_square(&counts(&mask.values(), 2), &expected));
    }
}

/// All orders of four slices are equally frequent, over draws of different keys.
#[test]
fn orders_are_equally_frequent() {
    let draw = Draw::new("shuffle", vec![filled(DType::I32, &[4], |i| i as f64)], &[]);
    let mut session = draw.session(&COMPILERS[0]);
    let orders: Vec<f64> = (0..24_000)
        .map(|n| {
            let order = run(&mut session, &draw.inputs([n, 5]))[0].to_i64s();
            // The number of the permutation: how many later entries each entry exceeds.
            let inversions = |i: usize| order[i + 1..].iter().filter(|x| **x < order[i]).count();
            (inversions(0) * 6 + inversions(1) * 2 + inversions(2)) as f64
        })
        .collect();
    check("orders", chi_square(&counts(&orders, 24), &[1000.0; 24]));
}
