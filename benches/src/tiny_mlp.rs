//! Latency of a perceptron of about a thousand parameters through the public API: what a run costs
//! besides arithmetic.

use std::time::Instant;

use tensorc::ir::build::Builder;
use tensorc::ir::graph::{Graph, Value};
use tensorc::ir::{DType, DenseType, TensorData};
use tensorc::runtime::{TensorMut, TensorRef};
use tensorc::{Compiler, Error, Options, Tensor};

use tensorc_bench::summary::summarize;

const WIDTHS: [u64; 4] = [16, 24, 20, 10];

fn weight(dims: &[u64], seed: u64) -> TensorData {
    TensorData::from_fn(DenseType::new(DType::F32, dims), |i| {
        let unit = ((i.wrapping_mul(2_654_435_761) + seed) % 1000) as f32 / 1000.0;
        tensorc::ir::scalar::Scalar::f32(unit - 0.5)
    })
}

fn perceptron(compiler: &Compiler) -> Result<Graph, Error> {
    let mut graph = Graph::new("perceptron");
    let mut x: Value = graph.add_input("x", DenseType::new(DType::F32, [1, WIDTHS[0]]).into());
    let values = |g: &Graph, v: Value| g.constant(v).cloned();
    for (layer, pair) in WIDTHS.windows(2).enumerate() {
        let mut b = Builder::new(&mut graph, compiler.registry(), format!("layer{layer}").into(), &values);
        let w = b.constant(weight(&[pair[0], pair[1]], layer as u64));
        let bias = b.constant(weight(&[pair[1]], 7 + layer as u64));
        let product = b.call("matmul", &[x, w])?;
        x = b.call("add", &[product, bias])?;
        if layer + 2 < WIDTHS.len() {
            x = b.call("relu", &[x])?;
        }
    }
    graph.add_output("y", x);
    Ok(graph)
}

pub fn run() -> Result<(), Error> {
    const BATCH: u32 = 1000;
    for threads in [1, 2] {
        let compiler = Compiler::new(Options { threads: Some(threads), ..Options::default() })?;
        let model = compiler.model(perceptron(&compiler)?);
        let mut session = model.compile(&[DenseType::new(DType::F32, [1, WIDTHS[0]])])?;
        let (input, mut output) = ([0.25f32; WIDTHS[0] as usize], [0f32; WIDTHS[3] as usize]);
        let named = [("x", Tensor::from_f32(&[1, WIDTHS[0]], &input)?)];
        let (mut direct, mut checked) = (vec![], vec![]);
        for _ in 0..200 {
            let start = Instant::now();
            for _ in 0..BATCH {
                let x = TensorRef::from_slice(&[1, WIDTHS[0]], &input);
                let y = TensorMut::from_slice(&[1, WIDTHS[3]], &mut output);
                session.run_into(&[x], &mut [y])?;
            }
            direct.push(start.elapsed() / BATCH);
            let start = Instant::now();
            for _ in 0..BATCH {
                std::hint::black_box(model.run(&named)?);
            }
            checked.push(start.elapsed() / BATCH);
        }
        println!(
            "{threads} thread(s): Session::run_into {:?}, Model::run (by name, allocating outputs) {:?}",
            summarize(direct).median,
            summarize(checked).median
        );
    }
    Ok(())
}
