//! Kernels for a GPU against the libraries of its maker, side by side in one run: layers by cuBLASLt with their own epilogue, and
//! convolutions by cuDNN.
//!
//! Each case is a chain of equal layers. What one layer takes is the difference of a long and a short chain, so that copies of the
//! ends, launches and waiting do not count.

use std::time::{Duration, Instant};

use clap::Args;
use tensorc::ir::build::Builder;
use tensorc::ir::graph::{Graph, Value};
use tensorc::ir::params::{ParamValue, Params};
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DType, DenseType, TensorData};
use tensorc::runtime::{TensorMut, TensorRef};
use tensorc::{Compiler, Error, GpuLibraries, Options, Session};

use crate::summary::summarize;

#[derive(Args)]
pub struct Arguments {
    /// The GPU: a number, or `interpreted`, on which times mean nothing
    #[arg(long, default_value = "0")]
    gpu: String,
    /// Rows, columns and terms of products
    #[arg(long, value_delimiter = ',', default_values_t = [4096, 8192])]
    sizes: Vec<u64>,
    /// Channels and side of images of convolutions of 3×3, as channels:side
    #[arg(long, value_delimiter = ',', default_values_t = ["64:56".to_owned(), "256:14".to_owned()])]
    convolutions: Vec<String>,
    /// Images of a convolution
    #[arg(long, default_value_t = 32)]
    batch: u64,
    #[arg(long, default_value = "bf16")]
    dtype: String,
    /// Let matrix units multiply f32
    #[arg(long)]
    tf32: bool,
    /// Measurements of each, taken in turn
    #[arg(long, default_value_t = 11)]
    rounds: u32,
}

/// Layers of the short and of the long chain.
const LAYERS: [u32; 2] = [4, 20];

/// A chain of layers, what one computes, and its name.
struct Case {
    name: String,
    dims: Vec<u64>,
    flops: f64,
    layer: Layer,
}

#[derive(Clone, Copy)]
enum Layer {
    /// A product with a square matrix, a bias and gelu.
    Product(u64),
    /// A convolution of 3×3 between as many channels, and relu.
    Convolution(u64),
}

fn weights(dtype: DType, dims: &[u64], terms: u64) -> TensorData {
    let scale = 1.0 / (terms as f64).sqrt();
    let number = |i: u64| (i.wrapping_mul(2_654_435_761) >> 7) % 1000;
    TensorData::from_fn(DenseType::new(dtype, dims), |i| {
        Scalar::from_f64(dtype, (number(i) as f64 / 500.0 - 1.0) * 1.7 * scale)
    })
}

impl Case {
    fn graph(&self, compiler: &Compiler, dtype: DType, layers: u32) -> Result<Graph, Error> {
        let mut graph = Graph::new("chain");
        let x = graph.add_input("x", DenseType::new(dtype, &self.dims).into());
        let values = |g: &Graph, v: Value| g.constant(v).cloned();
        let mut b = Builder::new(&mut graph, compiler.registry(), "layer".into(), &values);
        let mut y = x;
        match self.layer {
            Layer::Product(n) => {
                let (w, bias) = (b.constant(weights(dtype, &[n, n], n)), b.constant(weights(dtype, &[n], n)));
                for _ in 0..layers {
                    let product = b.call("matmul", &[y, w])?;
                    let sum = b.call("add", &[product, bias])?;
                    y = b.call("gelu", &[sum])?;
                }
            }
            Layer::Convolution(channels) => {
                let w = b.constant(weights(dtype, &[channels, channels, 3, 3], 9 * channels));
                for _ in 0..layers {
                    let pads = Params::new().with("pads", ParamValue::Ints(vec![1; 4]));
                    let product = b.op("conv", &[y, w], pads)?;
                    y = b.call("relu", &[product])?;
                }
            }
        }
        graph.add_output("y", y);
        Ok(graph)
    }

    /// Sessions of the short and the long chain.
    fn sessions(&self, compiler: &Compiler, dtype: DType) -> Result<[Session; 2], Error> {
        let session = |layers: u32| {
            let graph = self.graph(compiler, dtype, layers)?;
            compiler.model(graph).compile(&[DenseType::new(dtype, &self.dims)])
        };
        Ok([session(LAYERS[0])?, session(LAYERS[1])?])
    }
}

fn cases(arguments: &Arguments) -> Result<Vec<Case>, String> {
    let mut all = vec![];
    for &n in &arguments.sizes {
        let flops = 2.0 * (n as f64).powi(3);
        all.push(Case { name: format!("{n}³ + bias + gelu"), dims: vec![n, n], flops, layer: Layer::Product(n) });
    }
    for text in &arguments.convolutions {
        let known = text.split_once(':').and_then(|(c, s)| Some((c.parse::<u64>().ok()?, s.parse::<u64>().ok()?)));
        let (channels, side) = known.ok_or_else(|| format!("`{text}` is not channels:side, as in 64:56"))?;
        let dims = vec![arguments.batch, channels, side, side];
        let flops = 18.0 * (channels * channels * side * side * arguments.batch) as f64;
        let name = format!("3×3, {} × {channels} × {side}² + relu", arguments.batch);
        all.push(Case { name, dims, flops, layer: Layer::Convolution(channels) });
    }
    Ok(all)
}

/// Time of one layer.
fn layer_time(sessions: &mut [Session; 2], input: &TensorData, output: &mut [u8]) -> Result<Duration, Error> {
    let mut times = [Duration::ZERO; 2];
    for (session, time) in sessions.iter_mut().zip(&mut times) {
        let given = [TensorRef::new(input.dtype(), input.dims(), input.bytes())];
        let mut outputs = [TensorMut::new(input.dtype(), input.dims(), output)];
        let start = Instant::now();
        session.run_into(&given, &mut outputs)?;
        *time = start.elapsed();
    }
    Ok(times[1].saturating_sub(times[0]) / (LAYERS[1] - LAYERS[0]))
}

pub fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let driver = crate::driver(&arguments.gpu)?.ok_or("--gpu: libraries are for GPUs")?;
    let dtype =
        DType::from_name(&arguments.dtype).ok_or_else(|| format!("--dtype: unknown type `{}`", arguments.dtype))?;
    println!("{}, {}, time of a layer in µs (TFLOP/s)", driver.name(), dtype.name());
    let all = GpuLibraries { products: true, convolutions: true };
    for case in cases(arguments)? {
        let mut contenders = vec![];
        for gpu_libraries in [GpuLibraries::default(), all] {
            let mut options = Options { gpus: vec![driver.clone()], gpu_libraries, ..Options::default() };
            options.passes.tf32 = arguments.tf32;
            contenders.push((case.sessions(&Compiler::new(options)?, dtype)?, vec![]));
        }
        let elements = case.dims.iter().product();
        let input = weights(dtype, &case.dims, elements);
        let mut output = vec![0; input.bytes().len()];
        // The first runs load code, and the third records.
        for round in 0..arguments.rounds + 4 {
            for (sessions, times) in &mut contenders {
                let time = layer_time(sessions, &input, &mut output)?;
                if round >= 4 {
                    times.push(time);
                }
            }
        }
        let [own, library] = [0, 1].map(|i: usize| summarize(contenders[i].1.clone()).median.as_secs_f64());
        let shown = |seconds: f64| format!("{:9.1} ({:6.1})", seconds * 1e6, case.flops / seconds.max(1e-12) / 1e12);
        println!("{:32}  own {}  library {}  own/library {:.3}", case.name, shown(own), shown(library), own / library);
    }
    Ok(())
}
