//! Products whose operands are rounded to bf16: near those of f32 and not the same, with the same bits for any number of threads
//! and as a program, but for nodes that are kept; a processor that lacks them is told so.

use std::collections::BTreeSet;
use std::sync::Arc;

use tensorc::ir::graph::Graph;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::text::parse_module;
use tensorc::ir::{DenseType, TensorData};
use tensorc::passes::Precision;
use tensorc::runtime::Pool;
use tensorc::{Compiler, DType, Options, Session};
use tensorc_tests::cache::visible;
use tensorc_tests::compare::{data, tensor};
use tensorc_tests::operators::same_bits;

use crate::aot::ranges::{library, run};
use crate::aot::{exists, request};
use crate::support::backend::options;

/// A network of products, attention and convolutions; `%x` has an odd number of rows.
const NETWORK: &str = "tensorc-ir 1
graph @main(%x: f32[3, 37, 33], %image: f32[2, 32, 13, 13]) {
  %wq = const f32[33, 40] random(1)
  %wk = const f32[33, 40] random(2)
  %w1 = const f32[64, 32, 1, 1] random(3)
  %w2 = const f32[48, 64, 5, 3] random(4)
  %q = matmul(%x, %wq)
  %k = matmul(%x, %wk)
  %kt = transpose(%k) {perm = [0, 2, 1]}
  %scores = matmul(%q, %kt)
  %small = const f32[] splat(0.02)
  %scaled = mul(%scores, %small)
  %p = softmax(%scaled) {axis = -1}
  %mixed = matmul(%p, %x)
  %c1 = conv(%image, %w1)
  %r1 = relu(%c1)
  %c2 = conv(%r1, %w2) {strides = [2, 1], pads = [2, 1, 1, 0]}
  return %mixed, %c2, %q
}";

fn compiler(threads: usize, keep: Option<&[&str]>) -> Compiler {
    let mut options = Options { threads: Some(threads), poison: true, ..options() };
    if let Some(keep) = keep {
        let keep: BTreeSet<String> = keep.iter().map(|name| (*name).to_owned()).collect();
        options.passes.precision = Precision::Bf16 { keep: Arc::new(keep) };
    }
    Compiler::new(options).unwrap()
}

fn network(compiler: &Compiler) -> Graph {
    parse_module(NETWORK, compiler.registry()).unwrap().graphs.remove(0)
}

fn inputs() -> [TensorData; 2] {
    let wave = |i: u64| Scalar::f32((i * 7919 % 1009) as f32 / 504.5 - 1.0);
    [&[3, 37, 33][..], &[2, 32, 13, 13]].map(|dims| TensorData::from_fn(DenseType::new(DType::F32, dims), wave))
}

/// Results, or why there are none.
fn results(threads: usize, keep: Option<&[&str]>) -> Result<Vec<TensorData>, String> {
    let compiler = compiler(threads, keep);
    let mut session = Session::new(&compiler, network(&compiler)).map_err(|error| error.to_string())?;
    Ok(session.run(&inputs().map(|input| tensor(&input))).unwrap().iter().map(data).collect())
}

/// Whether this processor has the products.
fn has_products() -> bool {
    tensorc_kernels::has_bf16_products()
}

#[test]
fn products_are_near_those_of_f32() {
    let rounded = results(2, Some(&[]));
    if !has_products() {
        let refused = rounded.err();
        assert!(refused.as_ref().is_some_and(|why| why.contains("AVX-512 BF16")), "{refused:?}");
        return;
    }
    let (rounded, exact) = (rounded.unwrap(), results(2, None).unwrap());
    for (i, (near, full)) in rounded.iter().zip(&exact).enumerate() {
        let (near, full) = (near.to_f32s(), full.to_f32s());
        let largest = full.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let error = near.iter().zip(&full).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(error > 0.0 && error < 0.02 * largest, "result {i}: {error} of {largest}");
    }
    let alone = results(1, Some(&[])).unwrap();
    for (one, two) in alone.iter().zip(&rounded) {
        same_bits(one, two).unwrap();
    }
    let kept = results(2, Some(&["q"])).unwrap();
    same_bits(&kept[2], &exact[2]).unwrap();
    assert!(same_bits(&kept[1], &exact[1]).is_err(), "another node was kept");
}

#[test]
fn programs_have_the_bits_of_the_process() {
    if !has_products() || !exists("cc") {
        return visible("skipped: it takes AVX-512 BF16 and a C compiler `cc`");
    }
    let compiler = compiler(2, Some(&[]));
    let model = compiler.model(network(&compiler));
    let pool = Pool::new(2).unwrap();
    let (_folder, artifact, _) = library(&model, request("m", "native"));
    let found = run(&mut artifact.context(&pool).unwrap(), &inputs()).unwrap();
    let given = inputs().map(|input| tensor(&input));
    let [x, image] = given;
    let expected = model.run(&[("x", x), ("image", image)]).unwrap();
    assert_eq!(found.len(), expected.len());
    for (found, (name, expected)) in found.iter().zip(&expected) {
        assert_eq!(found.2, expected.bytes(), "{name}");
    }
}
