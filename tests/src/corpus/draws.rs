//! Random number operators. A draw is a function of key and position, so GPU and CPU results are bit-equal.

use tensorc::DType;
use tensorc::ir::op::Registry;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DenseType, TensorData};

use super::{Case, parsed};

const PROGRAMS: [&str; 10] = [
    "random_uniform(%k) {shape = [50, 3], low = -2.0, high = 3.0}",
    "random_normal(%k) {shape = [50, 3]}",
    "random_exponential(%k) {shape = [150], lam = 2.0}",
    "random_gamma(%k) {shape = [150], alpha = 0.7, beta = 2.0}",
    "random_poisson(%k) {shape = [150], lam = 30.0}",
    "random_negative_binomial(%k) {shape = [150], k = 3, p = 0.4}",
    "bernoulli(%p, %k)",
    "multinomial(%p, %k) {sample_size = 9}",
    "dropout_mask(%p, %r, %k)",
    "shuffle(%p, %k)",
];

pub fn cases(registry: &Registry) -> Vec<Case> {
    let case = |program: &&str| {
        let text = format!(
            "tensorc-ir 1\ngraph @main(%k: u32[2], %p: f32[40, 7]) {{\n  \
             %r = const f32[] [0.25]\n  %y = {program}\n  return %y\n}}\n"
        );
        let inputs = vec![
            TensorData::from_fn(DenseType::new(DType::U32, [2]), |i| Scalar::from_f64(DType::U32, 77.0 + i as f64)),
            TensorData::from_fn(DenseType::new(DType::F32, [40, 7]), |i| Scalar::f32((i % 10) as f32 / 10.0)),
        ];
        let name = program.split('(').next().unwrap_or(program).to_owned();
        Case { name, graph: parsed(registry, &text), tf32: false, inputs }
    };
    PROGRAMS.iter().map(case).collect()
}
