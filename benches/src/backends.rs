//! The back ends against each other: kernels whose data lies in a cache, and whole models.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use tensorc::ir::build::Builder;
use tensorc::ir::graph::{Graph, Value};
use tensorc::ir::scalar::Scalar;

use tensorc::ir::{DType, DenseType, Shape, TensorData, TensorType};
use tensorc::runtime::{TensorMut, TensorRef};
use tensorc::{Backend, Compiler, Error, Model, Options, Session, Tensor};

use tensorc_bench::summary::summarize;

#[derive(Args)]
pub struct BackendsArgs {
    /// Models to run instead of the kernels
    models: Vec<PathBuf>,
    /// Measurements of each back end, taken in turn
    #[arg(long, default_value_t = 41)]
    rounds: u32,
    /// The extent of dimensions that a model leaves open
    #[arg(long, default_value_t = 1)]
    open: u64,
    /// Threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

const BACKENDS: [Backend; 3] = [Backend::Cranelift, Backend::Llvm, Backend::Auto];

/// Least duration of a measurement.
const SPAN: Duration = Duration::from_micros(500);

const NAMES: [&str; 7] = ["map", "gelu", "tanh", "softmax", "layer_norm", "gelu_f16", "log_softmax"];

/// Rows and columns: in the first and in the second level of the cache.
const SHAPES: [[u64; 2]; 2] = [[4, 1000], [64, 1024]];

fn constant(dims: &[u64], seed: u64) -> TensorData {
    TensorData::from_fn(DenseType::new(DType::F32, dims), |i| {
        Scalar::f32((i.wrapping_mul(2_654_435_761).wrapping_add(seed) % 1000) as f32 / 250.0 - 2.0)
    })
}

fn graph(compiler: &Compiler, name: &str, dims: [u64; 2]) -> Result<Graph, Error> {
    let mut graph = Graph::new(name);
    let dtype = if name.ends_with("_f16") { DType::F16 } else { DType::F32 };
    let x = graph.add_input("x", DenseType::new(dtype, dims).into());
    let values = |g: &Graph, v: Value| g.constant(v).cloned();
    let mut b = Builder::new(&mut graph, compiler.registry(), name.into(), &values);
    let y = match name {
        "map" => {
            let scale = b.constant(constant(&[dims[1]], 1));
            let product = b.call("mul", &[x, scale])?;
            let sum = b.call("add", &[product, x])?;
            b.call("relu", &[sum])?
        }
        "layer_norm" => {
            let (scale, bias) = (b.constant(constant(&[dims[1]], 2)), b.constant(constant(&[dims[1]], 3)));
            b.call("layer_norm", &[x, scale, bias])?
        }
        other => b.call(other.trim_end_matches("_f16"), &[x])?,
    };
    graph.add_output("y", y);
    Ok(graph)
}

struct Contender {
    session: Session,
    inputs: Vec<Tensor>,
    results: Vec<(DType, Vec<u64>, Vec<u8>)>,
    repeat: u32,
    /// Code generation, and how many kernels there are.
    compile: (Duration, usize),
}

impl Contender {
    fn new(model: &Model, open: u64) -> Result<Contender, Error> {
        let types = input_types(model, open);
        let inputs: Vec<Tensor> = types.iter().map(random).collect::<Result<_, _>>()?;
        let mut session = model.compile(&types)?;
        let codegen = session.report().timings.iter().find(|(step, _)| step == "codegen").map(|(_, t)| *t);
        let kernels = session.plan().kernels.len();
        let outputs = session.run(&inputs)?;
        let results = outputs.iter().map(|t| (t.dtype(), t.dims().to_vec(), t.bytes().to_vec())).collect();
        let compile = (codegen.unwrap_or_default(), kernels);
        let mut contender = Contender { session, inputs, results, repeat: 1, compile };
        while contender.run()? < SPAN && contender.repeat < 1 << 20 {
            contender.repeat *= 2;
        }
        Ok(contender)
    }

    /// The time of all repetitions.
    fn run(&mut self) -> Result<Duration, Error> {
        let inputs: Vec<TensorRef<'_>> =
            self.inputs.iter().map(|t| TensorRef::new(t.dtype(), t.dims(), t.bytes())).collect();
        let start = Instant::now();
        for _ in 0..self.repeat {
            let mut results: Vec<TensorMut<'_>> =
                self.results.iter_mut().map(|(dtype, dims, bytes)| TensorMut::new(*dtype, dims, bytes)).collect();
            self.session.run_into(&inputs, &mut results)?;
        }
        Ok(start.elapsed())
    }
}

/// Types of a model's inputs, with one extent for every dimension that is open.
fn input_types(model: &Model, open: u64) -> Vec<DenseType> {
    let dims = |shape: &Shape| match shape {
        Shape::Ranked(dims) => dims.iter().map(|d| d.as_const().unwrap_or(open)).collect(),
        Shape::Unranked => vec![],
    };
    let one = |ty: &TensorType| DenseType::new(ty.dtype.unwrap_or(DType::F32), dims(&ty.shape));
    model.inputs().iter().map(|(_, ty)| one(ty)).collect()
}

fn random(ty: &DenseType) -> Result<Tensor, Error> {
    let data = TensorData::from_fn(ty.clone(), |i| {
        Scalar::from_f64(ty.dtype, (i.wrapping_mul(2_654_435_761) % 2000) as f64 / 250.0 - 4.0)
    });
    Tensor::from_bytes(ty.dtype, &ty.dims, data.bytes().to_vec())
}

fn measure(label: &str, elements: Option<u64>, models: &[Model], arguments: &BackendsArgs) -> Result<(), Error> {
    let mut contenders =
        models.iter().map(|model| Contender::new(model, arguments.open)).collect::<Result<Vec<_>, _>>()?;
    let mut times: Vec<Vec<f64>> = vec![vec![]; contenders.len()];
    for _ in 0..arguments.rounds {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            times.push(contender.run()?.as_secs_f64() * 1e6 / f64::from(contender.repeat));
        }
    }
    let same = contenders.iter().all(|c| c.results == contenders[0].results);
    let medians: Vec<f64> = times.into_iter().map(|t| summarize(t).median).collect();
    print!("{label:<24}");
    for (contender, median) in contenders.iter().zip(&medians) {
        let (codegen, kernels) = contender.compile;
        let rate = elements.map(|n| format!(" {:5.2} Gelem/s", n as f64 / median / 1e3)).unwrap_or_default();
        let each = codegen.as_secs_f64() * 1e3 / kernels.max(1) as f64;
        print!("  {median:9.2} us{rate} {each:6.2} ms/kernel");
    }
    let ratio = |i: usize| medians.get(i).map(|m| medians[0] / m).unwrap_or_default();
    println!("  x{:.2} x{:.2}  {}", ratio(1), ratio(2), if same { "same bits" } else { "BITS DIFFER" });
    Ok(())
}

pub fn run(arguments: &BackendsArgs) -> Result<(), Error> {
    let compilers = BACKENDS
        .map(|backend| Compiler::new(Options { backend, threads: Some(arguments.threads), ..Options::default() }))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    println!("{:<24}  cranelift, llvm, auto: median time, rate, code generation; llvm and auto over cranelift", "");
    let shapes = if arguments.models.is_empty() { &SHAPES[..] } else { &[] };
    for &dims in shapes {
        for name in NAMES {
            let make = |compiler: &Compiler| Ok(compiler.model(graph(compiler, name, dims)?));
            let models = compilers.iter().map(make).collect::<Result<Vec<_>, Error>>()?;
            measure(&format!("{name} {}x{}", dims[0], dims[1]), Some(dims[0] * dims[1]), &models, arguments)?;
        }
    }
    for path in &arguments.models {
        let models = compilers.iter().map(|c| c.load(path)).collect::<Result<Vec<_>, _>>()?;
        measure(&path.display().to_string(), None, &models, arguments)?;
    }
    Ok(())
}
