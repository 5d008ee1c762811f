//! Latency of requests with many input shapes, or with data-dependent shapes, to one model.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DType, DenseType, Dim, DimId, Rng, Shape, TensorData, TensorType};
use tensorc::runtime::Profiler;
use tensorc::runtime::profiler::EventKind;
use tensorc::{Compiler, Model, Options, Specialize, Tensor};

#[derive(Args)]
pub struct ShapesArgs {
    model: PathBuf,
    /// One request: extents of the model's open dimensions, in the order in which its inputs have them first
    #[arg(long = "request", value_name = "N,…", required = true)]
    requests: Vec<String>,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Show what the passes took in all requests together
    #[arg(long)]
    passes: bool,
    /// Make plans and kernels for each shape
    #[arg(long)]
    specialize: bool,
    /// Random inputs instead of ones; the seed is the number of the request
    #[arg(long)]
    random: bool,
}

pub fn run(arguments: &ShapesArgs) -> Result<(), Box<dyn Error>> {
    let (begin, profiler) = (Instant::now(), arguments.passes.then(Profiler::default));
    let compiler = Compiler::new(Options {
        threads: Some(arguments.threads),
        profiler: profiler.clone(),
        specialize: if arguments.specialize { Specialize::Always } else { Specialize::Never },
        ..Options::default()
    })?;
    let model = compiler.load(&arguments.model)?;
    if !arguments.passes {
        model.prepare()?;
    }
    let load = begin.elapsed();
    let mut times = vec![];
    let mut passes: BTreeMap<String, Duration> = BTreeMap::new();
    for (number, request) in arguments.requests.iter().enumerate() {
        let extents = request.split(',').filter(|n| !n.is_empty()).map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let inputs = inputs(&model, &extents, arguments.random.then(|| Rng::new(number as u64)))?;
        let named: Vec<(&str, Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
        profiler.iter().for_each(Profiler::start);
        let begin = Instant::now();
        model.run(&named)?;
        times.push(begin.elapsed());
        profiler.iter().for_each(|profiler| add_phases(profiler, &mut passes));
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut by_time: Vec<_> = passes.into_iter().collect();
    by_time.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    by_time.iter().for_each(|(pass, time)| println!("{:10.2} ms  {pass}", ms(*time)));
    let each: Vec<f64> = times.iter().map(|time| ms(*time)).collect();
    println!("{}", serde_json::json!({ "load_ms": ms(load), "request_ms": each }));
    Ok(())
}

/// Adds the phases of compilation that were recorded to the sums by name.
fn add_phases(profiler: &Profiler, sums: &mut BTreeMap<String, Duration>) {
    profiler.stop();
    for (_, event) in profiler.recording().events() {
        if let (EventKind::Span { end, .. }, "compile") = (&event.kind, event.category.as_str()) {
            *sums.entry(event.name.as_str().to_owned()).or_default() += Duration::from_nanos(end - event.time);
        }
    }
    profiler.clear();
}

/// Random numbers, or ones, which are values of every type, and tokens of every vocabulary.
fn inputs(model: &Model, extents: &[u64], mut rng: Option<Rng>) -> Result<Vec<(String, Tensor)>, Box<dyn Error>> {
    let mut known: Vec<DimId> = vec![];
    let mut extent = |dim: &Dim| match dim {
        Dim::Const(n) => Ok(*n),
        Dim::Open(n) => Ok(n.fixed() as u64),
        Dim::Sym(id) => {
            let at = known.iter().position(|k| k == id).unwrap_or_else(|| {
                known.push(*id);
                known.len() - 1
            });
            extents.get(at).copied().ok_or("a request has fewer extents than the model open dimensions")
        }
    };
    let mut one = |(name, ty): (String, TensorType)| -> Result<_, Box<dyn Error>> {
        let Shape::Ranked(dims) = &ty.shape else { return Err(format!("`{name}` has no rank").into()) };
        let dims = dims.iter().map(&mut extent).collect::<Result<Vec<u64>, _>>()?;
        let dtype = ty.dtype.unwrap_or(DType::F32);
        let data = TensorData::from_fn(DenseType::new(dtype, &dims), |_| match &mut rng {
            Some(rng) => rng.element(dtype),
            None => Scalar::from_f64(dtype, 1.0),
        });
        Ok((name, Tensor::from_bytes(dtype, &dims, data.bytes().to_vec())?))
    };
    model.inputs().into_iter().map(&mut one).collect()
}
