//! Matrix products of f64, which the library computes as it does those of f32: with what follows them in their epilogues, of any
//! extents and orders of operands, the bits of the interpreter, whose sums run over ascending terms.

use tensorc::ir::interp::eval_graph;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::text::parse_module;
use tensorc::ir::{DenseType, Rng, TensorData};
use tensorc::{Compiler, DType, Options, Session};
use tensorc_tests::compare::{data, tensor};
use tensorc_tests::operators::same_bits;

use crate::support::backend::options;

fn values(dims: &[u64], seed: u64) -> TensorData {
    let mut rng = Rng::new(seed);
    TensorData::from_fn(DenseType::new(DType::F64, dims), |_| {
        Scalar::from_f64(DType::F64, rng.below(1 << 40) as f64 / (1u64 << 39) as f64 - 1.0)
    })
}

const BODIES: [&str; 4] = [
    "  %y = matmul(%a, %b)\n  return %y",
    "  %p = matmul(%a, %b)\n  %q = add(%p, %c)\n  %y = relu(%q)\n  return %y",
    "  %t = transpose(%b) {perm = [1, 0]}\n  %u = transpose(%t) {perm = [1, 0]}\n  %p = matmul(%a, %u)\n  %y = mul(%p, %p)\n  return %y",
    "  %e = exp(%a)\n  %p = matmul(%e, %b)\n  %y = transpose(%p) {perm = [1, 0]}\n  return %y",
];

#[test]
fn products_of_f64_have_the_bits_of_ascending_sums() {
    let compilers =
        [1, 2].map(|threads| Compiler::new(Options { threads: Some(threads), poison: true, ..options() }).unwrap());
    for (i, [m, n, k]) in [[1, 1, 1], [8, 24, 192], [7, 23, 193], [25, 50, 3], [130, 97, 260], [3, 5, 0], [0, 4, 3]]
        .into_iter()
        .enumerate()
    {
        let inputs = [values(&[m, k], 1), values(&[k, n], 2), values(&[n], i as u64)];
        for body in BODIES {
            let text =
                format!("tensorc-ir 1\ngraph @main(%a: f64[{m}, {k}], %b: f64[{k}, {n}], %c: f64[{n}]) {{\n{body}\n}}");
            let mut graph = parse_module(&text, compilers[0].registry()).unwrap().graphs.remove(0);
            let given: Vec<_> = inputs.iter().map(tensor).collect();
            let [one, two] = [0, 1].map(|i: usize| {
                let mut session = Session::new(&compilers[i], graph.clone()).unwrap();
                data(&session.run(&given).unwrap()[0])
            });
            tensorc::passes::infer::infer_graph(&mut graph, compilers[0].registry(), 1 << 20).unwrap();
            let expected = eval_graph(&graph, compilers[0].registry(), &inputs).unwrap();
            let same = same_bits(&one, &two).and_then(|()| same_bits(&one, &expected[0]));
            same.unwrap_or_else(|why| panic!("{text}\n{why}"));
        }
    }
}
